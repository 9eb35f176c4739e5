"""Should clients federate? How they differ against how noisy they are alone, what lam that means, and who gains.

Linear models of a federation's clients are held near a shared one by (lam / 2) |w_i - w_g|^2. lam = 0 is training
alone, an infinite lam one model for all. Strengths come from training rows ("auto"), or from valid rows; both also
client by client. Test rows decide nothing: they say afterwards what was right.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl

from plures.data import Federation
from plures.data.own.words import counted
from plures.errors import BadData, BadValue, UnknownChoice
from plures.keys import Purpose, derive, root
from plures.solvers import LINKS, Clients, as_clients
from plures.solvers.degree import PlugIn, Validated, plug_in_degree, row_losses, statistics, valid_degree
from plures.solvers.links import Floats
from plures.solvers.penalized import Penalized
from plures.solvers.settled import Outlook, Settled, outlook, settled_degree
from plures.study.linear import Linear, Part, check_width, linear_parts, link_of, metric_of, score
from plures.study.statistics import Interval, bootstrap

ENDS = ("alone", "global")
CHOSEN = ("auto", "auto each", "valid", "valid each")
WAYS = (*ENDS, *CHOSEN)
WEIGHTINGS = ("clients", "examples")
CLEAR = 0.05
"""The share of the predicted loss that penalized models must save to be worth it."""


@dataclass(frozen=True, kw_only=True)
class How:
    """How models are trained: ``valid_share`` of training rows is held out for clients without valid rows."""

    loss: str = "auto"
    axes: int | None = None
    ridge: float = 1e-2
    weighting: str = "clients"
    valid_share: float = 0.2
    num_lams: int = 31

    def __post_init__(self) -> None:
        if self.loss != "auto" and self.loss not in LINKS:
            raise UnknownChoice("loss", self.loss, ["auto", *LINKS])
        if self.weighting not in WEIGHTINGS:
            raise UnknownChoice("weighting", self.weighting, WEIGHTINGS)
        if not 0 < self.valid_share < 1:
            raise BadValue("valid_share", self.valid_share, "a number between 0 and 1")
        if self.num_lams < 2:
            raise BadValue("lams", self.num_lams, "2 or more")


@dataclass(frozen=True, eq=False)
class Worth:
    """What federating is worth: strengths, predictions, and the losses (m,) of every way on valid and test rows."""

    how: How
    rows: Linear
    clients: Clients
    degree: Settled
    one_round: PlugIn | str  # or why it cannot be had
    validated: Validated
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
        return metric_of(self.clients.link.name)

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
        """How far auto's lam is above the rival on valid rows, where that is clear: predictions are wrong then."""
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
    def table(self) -> pl.DataFrame:
        """A row per client: rows, lams, predicted losses, measured ones, and what auto gains."""
        ahead = self.predicted
        facts: dict[str, Any] = {
            "client": self.rows.names,
            "rows": self.clients.counts.astype(int),
            "test_rows": self.rows.parts["test"].counts,
            "lam_auto": self.lams["auto each"],
            "lam_valid": self.lams["valid each"],
            **{f"predicted_{_word(way)}": losses for way, losses in ahead.items()},
            **{f"predicted_gain_over_{end}": ahead[end] - ahead["auto"] for end in ENDS},
            "gain_over_alone": self.test["alone"] - self.test["auto"],
            "gain_over_global": self.test["global"] - self.test["auto"],
        }
        losses = {f"loss_{_word(way)}": self.test[way] for way in WAYS}
        scores = {f"{self.metric.lower()}_{_word(way)}": self.scores[way] for way in WAYS}
        return pl.DataFrame({**facts, **losses, **scores})

    @cached_property
    def sentences(self) -> list[str]:
        """The answer, what it rests on, and what test rows say of it."""
        return [_answer(self), _reason(self), _unit(self), _measured(self), _who(self)]


def worth_of(federation: Federation, how: How, tell: Callable[[str], None] = lambda stage: None) -> Worth:
    """Everything: strengths from training and valid rows, predictions, and what test rows say; ``tell`` hears the stage."""
    rows, held_out = _with_valid(
        linear_parts(federation, axes=how.axes, splits=("train", "valid", "test"), deed="compared"), how.valid_share
    )
    train, valid, test = (_clients(rows.parts[split], how, federation) for split in ("train", "valid", "test"))
    shares = train.counts / train.counts.sum() if how.weighting == "examples" else np.full(train.num, 1 / train.num)
    tell("statistics: how clients differ, and their noise")
    degree, once = settled_degree(train), _one_round(train)
    tell(f"path: models at {how.num_lams} strengths, and their loss on valid rows")
    grid = degree.curvature * np.geomspace(1e-3, 1e3, how.num_lams)
    validated = valid_degree(train, valid, grid, weights=shares)
    tell("valid rows, test rows: the loss of every way")
    lams = _lams(degree, validated, train.num)
    solved = Penalized(train, shares).solve(np.stack(list(lams.values())))
    own = dict(zip(lams, solved.own, strict=True))
    ahead = {way: outlook(train, degree, own["auto"], lams[way], weights=shares) for way in ("auto", "auto each")}
    return Worth(
        how,
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


def _with_valid(rows: Linear, share: float) -> tuple[Linear, int]:
    """The rows, with some of the training rows held out for clients without valid rows; how many clients those are."""
    train = rows.parts["train"]
    lacking = [place for place, number in enumerate(rows.parts["valid"].counts) if not number]
    poor = [rows.names[place] for place in lacking if train.counts[place] < 2]
    if poor:
        raise BadData(f"client {poor[0]} has one training row, no valid row: two are needed to hold one out")
    parts = {name: Part(list(part.tables), list(part.targets)) for name, part in rows.parts.items()}
    for place in lacking:
        number = train.counts[place]
        order = np.asarray(jax.random.permutation(derive(root(0), Purpose.SPLIT, uid=place), number))
        cut = min(max(round(share * number), 1), number - 1)
        for name, some in (("valid", order[:cut]), ("train", order[cut:])):
            parts[name].tables[place] = train.tables[place][some]
            parts[name].targets[place] = train.targets[place][some]
    return replace(rows, parts=parts), len(lacking)


def _clients(part: Part, how: How, federation: Federation) -> Clients:
    link = link_of(how.loss, federation)
    check_width(part.tables[0].shape[1] + 1, link.num_outputs)
    return as_clients(part.tables, part.targets, loss=link, ridge=how.ridge)


def _lams(degree: Settled, validated: Validated, num: int) -> dict[str, Floats]:
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
        return plug_in_degree(statistics(train))
    except BadData as error:
        return str(error)


def _losses(clients: Clients, models: Floats) -> Floats:
    """(m,) mean losses over rows, without ridges."""
    return np.asarray((row_losses(clients, models[None])[0] * clients.share).sum(1))


def _scores(clients: Clients, models: Floats) -> Floats:
    """(m,) accuracies or errors."""
    outputs, name = clients.outputs(models), clients.link.name
    found = []
    for given, wanted, share in zip(outputs, clients.y, clients.share, strict=True):
        real = given[share > 0] if name == "multinomial" else given[share > 0, 0]
        found.append(score(real, wanted[share > 0], name))
    return np.array(found)


def _word(way: str) -> str:
    return way.replace(" ", "_")


def _answer(worth: Worth) -> str:
    means, lam = worth.predicted_means, worth.degree.lam
    if worth.doubt is not None:
        return f"{_head(worth)}; {_against(worth, worth.doubt)}"
    if worth.verdict == "yes":
        return (
            f"{_head(worth)}; predicted excess loss {means['auto']:.3g}, {_percent(1 - means['auto'] / means['alone'])} "
            f"less than alone and {_percent(1 - means['auto'] / means['global'])} less than with one model for all"
        )
    other = {"alone": "global", "global": "alone"}[worth.verdict]
    return (
        f"{_head(worth)}; predicted excess loss {means[worth.verdict]:.3g} ({NAMED[other]} {means[other]:.3g}), and a model "
        f"each with lam = {lam:.3g} is predicted to save {_percent(1 - means['auto'] / means[worth.verdict])} of it"
    )


def _head(worth: Worth) -> str:
    """The answer in short, in words of the verdict."""
    if worth.verdict == "yes":
        return f"yes: federate, and keep a model each with lam = {worth.lams[worth.way][0]:.3g}"
    return {"alone": "no: train alone", "global": "one model for all is about as good as it gets"}[worth.verdict]


def _against(worth: Worth, gap: Interval) -> str:
    return (
        f"this is by valid rows, which speak clearly against lam = {worth.degree.lam:.3g} from training rows: {gap.mean:+.3g} "
        f"({gap.low:+.3g} to {gap.high:+.3g}) of loss against {NAMED[worth.rival]}, so clients do not differ, or their rows "
        f"are not noisy, as assumed{_rough(worth)}"
    )


def _rough(worth: Worth) -> str:
    return "" if len(worth.rows.names) >= FEW else f", as far as {len(worth.rows.names)} clients can tell"


def _percent(share: float) -> str:
    return f"{100 * max(share, 0.0):.0f} %"


def _reason(worth: Worth) -> str:
    degree, means = worth.degree, worth.predicted_means
    return (
        f"{'why' if worth.doubt is None else 'predicted'}: clients' own noise costs {means['alone']:.3g} of loss alone, their "
        f"differences cost {means['global']:.3g} with one model; lam = {degree.lam:.3g}, and if models scatter alike in every "
        f"direction with 95 % probability between {degree.low:.3g} and {degree.high:.3g} "
        f"({counted(round(degree.freedom), 'number')} of evidence)"
    )


def _unit(worth: Worth) -> str:
    if worth.rows.as_given:
        return "lam is for columns on one scale, as these are: `fedclup` with a linear model can take it"
    axes = "principal axes of " if worth.how.axes else ""
    return f"lam is for {axes}columns on one scale; these are not as they come, so let `fedclup` find its own (lam=auto)"


NAMED = {"alone": "training alone", "global": "one model for all"}
FEW = 10
"""With fewer clients an interval over clients is rough."""


def _measured(worth: Worth) -> str:
    way = "valid" if worth.way == "valid" else "auto"
    gap = worth.against(way)
    verdict = "within noise" if not gap.excludes_zero else "a clear gain" if gap.mean < 0 else "a clear loss"
    agree = "and by test rows"
    if worth.rival != worth.rival_by_test:
        other = worth.against(way, worth.rival_by_test)
        agree = f"but by test rows it is {NAMED[worth.rival_by_test]}: {other.mean:+.3g}, {other.low:+.3g} to {other.high:+.3g}"
    return (
        f"on test rows lam = {worth.lams[way][0]:.3g} is at {gap.mean:+.3g} of loss against {NAMED[worth.rival]}, 95 % interval "
        f"{gap.low:+.3g} to {gap.high:+.3g}: {verdict}{_rough(worth)} ({NAMED[worth.rival]} is the better of the two by valid rows, {agree})"
    )


def _who(worth: Worth) -> str:
    table, said = worth.table, []
    for other in ENDS:
        gains, ahead = table[f"gain_over_{other}"], table[f"predicted_gain_over_{other}"]
        said.append(
            f"{int((gains > 0).sum())} of {table.height} gain over {other} ({int((ahead > 0).sum())} predicted)"
        )
    return f"who, with lam = {worth.degree.lam:.3g}: " + ", ".join(said)


def save_worth(worth: Worth, folder: Path) -> None:
    """Clients, path and summary as files."""
    folder.mkdir(parents=True, exist_ok=True)
    worth.table.write_csv(folder / "clients.csv")
    path_table(worth).write_csv(folder / "path.csv")
    (folder / "summary.json").write_text(json.dumps(summary(worth), indent=2) + "\n")


def path_table(worth: Worth) -> pl.DataFrame:
    """One row per strength: the mean loss over clients on valid and on test rows."""
    valid = worth.validated
    return pl.DataFrame({"lam": valid.lams, "valid_loss": valid.losses.mean(1), "test_loss": worth.path_test})


def summary(worth: Worth) -> dict[str, Any]:
    """The result as plain facts."""
    degree, once = worth.degree, worth.one_round
    return {
        "verdict": worth.verdict,
        "way": worth.way,
        "valid_rows_disagree": worth.doubt is not None,
        "said": worth.sentences,
        "lam": degree.lam,
        "lam_interval": [degree.low, degree.high],
        "lam_valid": worth.validated.lam,
        "scatter": degree.spread,
        "dispersion": degree.dispersion,
        "evidence": degree.freedom,
        "predicted_excess_loss": worth.predicted_means,
        "one_round": _facts(once) if isinstance(once, PlugIn) else {"refused": once},
        "metric": worth.metric,
        "rival_by_valid": worth.rival,
        "rival_by_test": worth.rival_by_test,
        "ways": {way: _way_facts(worth, way) for way in WAYS},
        "clients": len(worth.rows.names),
        "left_out": list(worth.rows.left_out),
        "valid_rows_held_out_of_training_for": worth.held_out,
    }


def _facts(once: PlugIn) -> dict[str, float]:
    names = ("lam", "noise", "spread", "unexplained", "heterogeneity", "curvature", "freedom")
    return {name: float(getattr(once, name)) for name in names}


def _way_facts(worth: Worth, way: str) -> dict[str, Any]:
    gap, by_test = worth.against(way), worth.against(way, worth.rival_by_test)
    return {
        "valid_loss": float(worth.valid[way].mean()),
        "test_loss": float(worth.test[way].mean()),
        "test_score": float(worth.scores[way].mean()),
        "against_rival": [gap.mean, gap.low, gap.high],
        "against_rival_by_test": [by_test.mean, by_test.low, by_test.high],
    }
