"""Should clients federate? WorthOptions they differ against how noisy they are alone, what lam that means, and who gains.

LinearRows models of a federation's clients are held near a shared one by (lam / 2) |w_i - w_g|^2. lam = 0 is training
alone, an infinite lam one model for all. Strengths come from training rows ("auto"), or from valid rows; both also
client by client. Test rows decide nothing: they say afterwards what was right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
import polars as pl

from plures.advise.advice import Advice, bounds
from plures.advise.families import ENDS
from plures.advise.linear_rows import (
    LinearRows,
    SplitRows,
    check_width,
    link_of,
    metric_of,
    prepare_linear_rows,
    score,
)
from plures.advise.worth_wording import sentences_of
from plures.data import Federation
from plures.errors import BadData, BadValue, UnknownChoice
from plures.keys import Purpose, derive, root
from plures.solvers import LINEAR_LOSSES, Clients, as_clients
from plures.solvers.degree import (
    PlugIn,
    ValidatedDegree,
    degree_statistics,
    plug_in_degree,
    row_losses,
    valid_degree,
)
from plures.solvers.penalized import Penalized
from plures.solvers.reml import Outlook, RemlDegree, outlook, reml_degree
from plures.study.statistics import Interval, bootstrap
from plures.types import Floats
from plures.wording import counted

CHOSEN = ("auto", "auto each", "valid", "valid each")
WAYS = (*ENDS, *CHOSEN)
WEIGHTINGS = ("clients", "examples")
CLEAR = 0.05
"""The share of the predicted loss that penalized models must save to be worth it."""


@dataclass(frozen=True, kw_only=True)
class WorthOptions:
    """WorthOptions models are trained: ``valid_share`` of training rows is held out for clients without valid rows."""

    loss: str = "auto"
    axes: int | None = None
    ridge: float = 1e-2
    weighting: str = "clients"
    valid_share: float = 0.2
    num_lams: int = 31

    def __post_init__(self) -> None:
        if self.loss != "auto" and self.loss not in LINEAR_LOSSES:
            raise UnknownChoice("loss", self.loss, ["auto", *LINEAR_LOSSES])
        if self.weighting not in WEIGHTINGS:
            raise UnknownChoice("weighting", self.weighting, WEIGHTINGS)
        if not 0 < self.valid_share < 1:
            raise BadValue("valid_share", self.valid_share, "a number between 0 and 1")
        if self.num_lams < 2:
            raise BadValue("lams", self.num_lams, "2 or more")


@dataclass(frozen=True, eq=False)
class Worth(Advice):
    """What federating is worth: strengths, predictions, and the losses (m,) of every way on valid and test rows."""

    QUESTION = "should these clients federate, and how much?"

    options: WorthOptions
    rows: LinearRows
    clients: Clients
    degree: RemlDegree
    one_round: PlugIn | str  # or why it cannot be had
    validated: ValidatedDegree
    outlooks: dict[str, Outlook]  # of one lam ("auto") and of own lams ("auto each")
    lams: dict[str, Floats]
    valid: dict[str, Floats]
    test: dict[str, Floats]
    scores: dict[str, Floats]
    path_test: Floats  # (L,) mean test loss along the path
    held_out: int

    @property
    def metric(self) -> str:
        """What models are scored by."""
        return metric_of(self.clients.loss.name)

    @cached_property
    def rival(self) -> str:
        """The better of training alone and one model for all, by valid rows."""
        return min(ENDS, key=lambda way: self.valid[way].mean())

    @cached_property
    def rival_by_test(self) -> str:
        """The better of the two by test rows: known only afterwards."""
        return min(ENDS, key=lambda way: self.test[way].mean())

    def against(self, way: str, other: str | None = None) -> Interval:
        """The mean over clients of the test loss above another way's (the rival's), with its interval."""
        return bootstrap(self.test[way] - self.test[other or self.rival])

    @property
    def outlook(self) -> Outlook:
        """What is predicted for own lams, those of "auto each"."""
        return self.outlooks["auto each"]

    @cached_property
    def predicted(self) -> dict[str, Floats]:
        """(m,) predicted excess losses by way."""
        one = self.outlooks["auto"]
        return {
            "alone": one.alone,
            "global": one.shared,
            "auto": one.penalized,
            "auto each": self.outlook.penalized,
        }

    @property
    def predicted_means(self) -> dict[str, float]:
        """The mean over clients of each."""
        return {way: float(losses.mean()) for way, losses in self.predicted.items()}

    @cached_property
    def doubt(self) -> Interval | None:
        """WorthOptions far auto's lam is above the rival on valid rows, where that is clear: predictions are wrong then."""
        gap = bootstrap(self.valid["auto"] - self.valid[self.rival])
        return gap if gap.low > 0 else None

    @cached_property
    def way(self) -> str:
        """The way to go: auto or an end by predictions; where there is doubt, valid or the rival by valid rows."""
        if self.doubt is not None:
            return "valid" if bootstrap(self.valid["valid"] - self.valid[self.rival]).high < 0 else self.rival
        means = self.predicted_means
        best = min(ENDS, key=lambda end: means[end])
        return "auto" if means["auto"] < (1 - CLEAR) * means[best] else best

    @property
    def verdict(self) -> str:
        """ "yes", "alone" or "global"."""
        return self.way if self.way in ENDS else "yes"

    @cached_property
    def clients_table(self) -> pl.DataFrame:
        """A row per client: rows, lams, predicted losses, measured ones, and what auto gains."""
        ahead = self.predicted
        return pl.DataFrame(
            {
                "client": self.rows.names,
                "rows": self.clients.counts.astype(int),
                "test_rows": self.rows.parts["test"].counts,
                "lam_auto": self.lams["auto each"],
                "lam_valid": self.lams["valid each"],
                **{f"predicted_{_column(way)}": losses for way, losses in ahead.items()},
                **{f"predicted_gain_over_{end}": ahead[end] - ahead["auto"] for end in ENDS},
                **{f"gain_over_{end}": self.test[end] - self.test["auto"] for end in ENDS},
                **{f"loss_{_column(way)}": self.test[way] for way in WAYS},
                **{f"{self.metric.lower()}_{_column(way)}": self.scores[way] for way in WAYS},
            }
        )

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """Clients, and the path: for every strength the mean loss over clients on valid and on test rows."""
        valid = self.validated
        path = {"lam": valid.lams, "valid_loss": valid.losses.mean(1), "test_loss": self.path_test}
        return {"clients": self.clients_table, "path": pl.DataFrame(path)}

    @cached_property
    def sentences(self) -> list[str]:
        """The answer, what it rests on, and what test rows say of it."""
        return sentences_of(self)

    @property
    def remarks(self) -> list[str]:
        """What one round alone would say, and who is left out or gave up training rows."""
        once, share = self.one_round, 100 * self.options.valid_share
        known = f"lam = {once.lam:.3g}" if isinstance(once, PlugIn) else f"no lam, since {once.split(';')[0]}"
        found = [f"from one round of local estimates: {known}"]
        if self.held_out:
            who = counted(self.held_out, "client")
            found.append(f"{who} without valid rows: {share:.0f} % of the training rows are held out for them")
        return found + self.rows.remarks

    @property
    def facts(self) -> dict[str, Any]:
        """Strengths, predictions and what every way gives."""
        degree, once = self.degree, self.one_round
        known = ("lam", "noise", "spread", "unexplained", "heterogeneity", "curvature", "freedom")
        return {
            "way": self.way,
            "valid_rows_disagree": self.doubt is not None,
            "lam": degree.lam,
            "lam_interval": [degree.low, degree.high],
            "lam_valid": self.validated.lam,
            "scatter": degree.spread,
            "dispersion": degree.dispersion,
            "evidence": degree.freedom,
            "predicted_excess_loss": self.predicted_means,
            "one_round": {"refused": once}
            if isinstance(once, str)
            else {name: float(getattr(once, name)) for name in known},
            "metric": self.metric,
            "rival_by_valid": self.rival,
            "rival_by_test": self.rival_by_test,
            "ways": {way: self._facts_of(way) for way in WAYS},
            "clients": len(self.rows.names),
            "left_out": list(self.rows.left_out),
            "valid_rows_held_out_of_training_for": self.held_out,
        }

    def _facts_of(self, way: str) -> dict[str, Any]:
        return {
            "valid_loss": float(self.valid[way].mean()),
            "test_loss": float(self.test[way].mean()),
            "test_score": float(self.scores[way].mean()),
            "against_rival": bounds(self.against(way)),
            "against_rival_by_test": bounds(self.against(way, self.rival_by_test)),
        }


def estimate_worth(
    federation: Federation, options: WorthOptions = WorthOptions(), tell: Callable[[str], None] = lambda stage: None
) -> Worth:
    """Everything: strengths from training and valid rows, predictions, and what test rows say; ``tell`` hears the stage."""
    rows, held_out = _with_valid(
        prepare_linear_rows(federation, axes=options.axes, splits=("train", "valid", "test"), deed="compared"),
        options.valid_share,
    )
    train, valid, test = (_clients(rows.parts[split], options, federation) for split in ("train", "valid", "test"))
    shares = (
        train.counts / train.counts.sum() if options.weighting == "examples" else np.full(train.num, 1 / train.num)
    )
    tell("statistics: how clients differ, and their noise")
    degree, once = reml_degree(train), _one_round(train)
    tell(f"path: models at {options.num_lams} strengths, and their loss on valid rows")
    grid = degree.curvature * np.geomspace(1e-3, 1e3, options.num_lams)
    validated = valid_degree(train, valid, grid, weights=shares)
    tell("valid rows, test rows: the loss of every way")
    lams = _lams(degree, validated, train.num)
    solved = Penalized(train, shares).solve(np.stack(list(lams.values())))
    own = dict(zip(lams, solved.own, strict=True))
    ahead = {way: outlook(train, degree, own["auto"], lams[way], weights=shares) for way in ("auto", "auto each")}
    return Worth(
        options,
        rows,
        train,
        degree,
        once,
        validated,
        ahead,
        lams,
        {way: _losses(valid, model) for way, model in own.items()},
        {way: _losses(test, model) for way, model in own.items()},
        {way: _scores(test, model) for way, model in own.items()},
        np.array([_losses(test, model).mean() for model in validated.path.own]),
        held_out,
    )


def _with_valid(rows: LinearRows, share: float) -> tuple[LinearRows, int]:
    """The rows, with some of the training rows held out for clients without valid rows; how many clients those are."""
    train = rows.parts["train"]
    lacking = [client for client, number in enumerate(rows.parts["valid"].counts) if not number]
    poor = [rows.names[client] for client in lacking if train.counts[client] < 2]
    if poor:
        raise BadData(f"client {poor[0]} has one training row, no valid row: two are needed to hold one out")
    parts = {name: SplitRows(list(part.tables), list(part.targets)) for name, part in rows.parts.items()}
    for client in lacking:
        number = train.counts[client]
        order = np.asarray(jax.random.permutation(derive(root(0), Purpose.SPLIT, uid=client), number))
        cut = min(max(round(share * number), 1), number - 1)
        for name, some in (("valid", order[:cut]), ("train", order[cut:])):
            parts[name].tables[client] = train.tables[client][some]
            parts[name].targets[client] = train.targets[client][some]
    return replace(rows, parts=parts), len(lacking)


def _clients(part: SplitRows, options: WorthOptions, federation: Federation) -> Clients:
    link = link_of(options.loss, federation)
    check_width(part.tables[0].shape[1] + 1, link.num_outputs)
    return as_clients(part.tables, part.targets, loss=link, ridge=options.ridge)


def _lams(degree: RemlDegree, validated: ValidatedDegree, num: int) -> dict[str, Floats]:
    """(m,) strengths of every way."""
    return {
        "alone": np.zeros(num),
        "global": np.full(num, np.inf),
        "auto": np.full(num, degree.lam),
        "auto each": degree.own_lams,
        "valid": np.full(num, validated.lam),
        "valid each": validated.own_lams,
    }


def _one_round(train: Clients) -> PlugIn | str:
    try:
        return plug_in_degree(degree_statistics(train))
    except BadData as error:
        return str(error)


def _losses(clients: Clients, models: Floats) -> Floats:
    """(m,) mean losses over rows, without ridges."""
    return np.asarray((row_losses(clients, models[None])[0] * clients.share).sum(1))


def _scores(clients: Clients, models: Floats) -> Floats:
    """(m,) accuracies or errors."""
    outputs, name = clients.outputs(models), clients.loss.name
    found = []
    for given, wanted, share in zip(outputs, clients.y, clients.share, strict=True):
        real = given[share > 0] if name == "multinomial" else given[share > 0, 0]
        found.append(score(real, wanted[share > 0], name))
    return np.array(found)


def _column(way: str) -> str:
    return way.replace(" ", "_")
