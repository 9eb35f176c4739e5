"""Should clients federate? How they differ against how noisy they are alone, what lam that means, and who gains.

Linear models of a federation's clients are held near a shared one by (lam_i / 2) |w_i - w_g|^2. lam = 0 is training
alone, an infinite lam one model for all. Strengths come from training rows ("auto": one for all; "auto each": lam_i by rows
and noise), or from valid rows ("valid", "valid each"). Test rows decide nothing: they say afterwards what was right.

Targets are centered and intercepts are not shrunk, so that a constant added to the target changes nothing. Intercepts, or every
column, are held by a strength of their own where rows ask for it. Groups and outliers, which such models do not fit, are those that
``advise`` finds: outliers are left out of the estimates, and groups have "clusters" as a way of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from plures.advise.advice import Advice, bounds
from plures.advise.families import ENDS, ModelFamily
from plures.advise.family_advice import MARGIN, FamilyAdvice
from plures.advise.family_wording import SAME
from plures.advise.linear_rows import LinearRows, metric_of
from plures.advise.worth_wording import sentences_of
from plures.errors import BadValue, UnknownChoice
from plures.solvers import LINEAR_LOSSES, Clients
from plures.solvers.degree import ValidatedDegree
from plures.solvers.reml import Outlook, RemlDegree
from plures.study.statistics import Interval, bootstrap
from plures.types import Floats
from plures.wording import counted

AUTO = ("auto", "auto each")
WAYS = (*ENDS, *AUTO, "valid", "valid each")
WEIGHTINGS = ("clients", "examples")
MODELS = {name: name for name in ("least_squares", "logistic", "squared_hinge")} | {"multinomial": "softmax"}
"""The model of a method that has this loss."""
CLEAR = 0.05
"""The share of the predicted excess loss that a richer way must save to be worth it; of the whole loss it is ``MARGIN``."""


@dataclass(frozen=True, kw_only=True)
class WorthOptions:
    """How models are trained: ``valid_share`` of training rows is held out for clients without valid rows.

    After ``limit`` seconds nothing new is begun: the answer is what is known so far.
    """

    loss: str = "auto"
    axes: int | None = None
    ridge: float = 1e-2
    weighting: str = "clients"
    valid_share: float = 0.2
    num_lams: int = 31
    limit: float = 60.0

    def __post_init__(self) -> None:
        if self.loss != "auto" and self.loss not in LINEAR_LOSSES:
            raise UnknownChoice("loss", self.loss, ["auto", *LINEAR_LOSSES])
        if self.weighting not in WEIGHTINGS:
            raise UnknownChoice("weighting", self.weighting, WEIGHTINGS)
        if not 0 < self.valid_share < 1:
            raise BadValue("valid_share", self.valid_share, "a number between 0 and 1")
        if self.num_lams < 2:
            raise BadValue("lams", self.num_lams, "2 or more")
        if not self.limit > 0:
            raise BadValue("limit", self.limit, "a number of seconds above 0")


@dataclass(frozen=True, eq=False)
class LateClients:
    """Clients that no estimate has seen, ``why``, and their test losses (k,): alone, with the shared model, and near it."""

    names: tuple[str, ...]
    why: tuple[str, ...]
    test: dict[str, Floats]


@dataclass(frozen=True, eq=False)
class Worth(Advice):
    """What federating is worth: strengths, predictions, and the losses (m,) of every way on valid and test rows.

    ``clients`` are training rows, of columns times ``degree.scale``. ``families`` is what held-out folds say of all families.
    """

    QUESTION = "should these clients federate, and how much?"
    COMMAND = "plures worth"
    LOOKS = "the likelihood of linear models, with a noise for every client and strengths for groups of columns"

    options: WorthOptions
    rows: LinearRows
    clients: Clients
    degree: RemlDegree
    validated: ValidatedDegree
    outlooks: dict[str, Outlook]  # of one lam ("auto") and of own lams ("auto each")
    lams: dict[str, Floats]
    valid: dict[str, Floats]
    test: dict[str, Floats]
    scores: dict[str, Floats]
    path_test: Floats  # (L,) mean test loss along the path
    held_out: int
    families: FamilyAdvice | None
    served: LateClients

    @property
    def missing(self) -> str:
        """What time did not allow, if anything."""
        done, asked = len(self.validated.lams), self.options.num_lams
        return "" if done == asked else f"valid rows chose among {done} of {asked} strengths"

    @property
    def ways(self) -> tuple[str, ...]:
        """All ways that were tried."""
        return tuple(self.test)

    @property
    def metric(self) -> str:
        """What models are scored by."""
        return metric_of(self.clients.loss.name)

    @property
    def outliers(self) -> tuple[str, ...]:
        """Clients that are unlike all others."""
        return () if self.families is None else self.families.outliers

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
    def auto(self) -> str:
        """One lam for all, or where that is predicted to be clearly better, each its own."""
        means = self.predicted_means
        return "auto each" if means["auto each"] < (1 - CLEAR) * means["auto"] else "auto"

    @cached_property
    def doubt(self) -> Interval | None:
        """How far auto's lam is above the rival on valid rows, where that is clear: predictions are wrong then."""
        gap = bootstrap(self.valid[self.auto] - self.valid[self.rival])
        return gap if gap.low > 0 else None

    @cached_property
    def way(self) -> str:
        """The way to go: clusters where valid rows are clear for them, else auto or an end by predictions.

        Where there is doubt of these, valid or the rival by valid rows.
        """
        if self.has_clusters:
            return "clusters"
        if self.doubt is not None:
            return "valid" if self._clearly_less("valid", self.rival) else self.rival
        means = self.predicted_means
        best = min(ENDS, key=lambda end: means[end])
        saved = means[best] - means[self.auto]
        return self.auto if saved > max(CLEAR * means[best], MARGIN * self.valid[best].mean()) else best

    @cached_property
    def has_clusters(self) -> bool:
        """Whether folds find the same clusters and name them as the family, and valid rows do not speak against them."""
        found = self.families
        if "clusters" not in self.valid or found is None or found.clusters is None:
            return False
        stable = found.clusters.stability >= SAME and "personal" not in found.possible
        others = [self.valid[way].mean() for way in (self.auto, self.rival)]
        return stable and bool(self.valid["clusters"].mean() <= (1 + CLEAR) * min(others))

    def _clearly_less(self, way: str, other: str) -> bool:
        return bootstrap(self.valid[way] - self.valid[other]).high < 0

    @property
    def verdict(self) -> str:
        """ "yes", "clusters", "alone" or "global"."""
        return self.way if self.way in (*ENDS, ModelFamily.CLUSTERS) else "yes"

    @property
    def family(self) -> ModelFamily:
        """The family of models that is advised."""
        return ModelFamily.PERSONAL if self.verdict == "yes" else ModelFamily(self.verdict)

    @property
    def use(self) -> tuple[str, str] | None:
        """The model and the method that use lam, where columns are on its scale and one lam for all of them is advised."""
        model, fits = MODELS.get(self.clients.loss.name), self.rows.as_given and self.degree.is_alike
        if self.verdict != "yes" or not fits or model is None or self.way.endswith("each"):
            return None
        weighting = "" if self.options.weighting == "clients" else ",weighting=examples"
        return f"{model}:ridge={self.options.ridge:g}", f"fedclup:lam={self.lams[self.way][0]:.3g}{weighting}"

    @cached_property
    def clients_table(self) -> pl.DataFrame:
        """A row per client: rows, noise, lams, predicted losses, measured ones, and what auto gains."""
        ahead = self.predicted
        return pl.DataFrame(
            {
                "client": self.rows.names,
                "rows": self.clients.counts.astype(int),
                "test_rows": self.rows.parts["test"].counts,
                "dispersion": np.broadcast_to(self.degree.dispersion, self.clients.num),
                "lam_auto": self.lams["auto each"],
                "lam_valid": self.lams["valid each"],
                **{f"predicted_{_column(way)}": losses for way, losses in ahead.items()},
                **{f"predicted_gain_over_{end}": ahead[end] - ahead[self.auto] for end in ENDS},
                **{f"gain_over_{end}": self.test[end] - self.test[self.auto] for end in ENDS},
                **{f"loss_{_column(way)}": losses for way, losses in self.test.items()},
                **{f"{self.metric.lower()}_{_column(way)}": found for way, found in self.scores.items()},
            }
        )

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """Clients, the path (for every strength the mean loss on valid and on test rows), and who was only served."""
        valid, served = self.validated, self.served
        path = {"lam": valid.lams, "valid_loss": valid.losses.mean(1), "test_loss": self.path_test}
        found = {"clients": self.clients_table, "path": pl.DataFrame(path)}
        if served.names:
            losses = {f"loss_{_column(way)}": losses for way, losses in served.test.items()}
            found["served"] = pl.DataFrame({"client": served.names, "why": served.why, **losses})
        return found

    @cached_property
    def sentences(self) -> list[str]:
        """The answer, what it rests on, and what test rows say of it."""
        return sentences_of(self)

    @property
    def remarks(self) -> list[str]:
        """Where rows are read, who is left out or gave up training rows, and what time did not allow."""
        found = list(self.rows.remarks)
        if self.held_out:
            who, share = counted(self.held_out, "client"), 100 * self.options.valid_share
            found.append(f"{who} without valid rows: {share:.0f} % of the training rows are held out for them")
        if self.missing:
            found.append(
                f"the time limit of {self.options.limit:g} s was reached: {self.missing}; --limit gives more"
            )
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """Strengths, predictions and what every way gives."""
        degree = self.degree
        return {
            "way": self.way,
            "family": self.family,
            "valid_rows_disagree": self.doubt is not None,
            "lam": degree.lam,
            "lam_interval": [degree.low, degree.high],
            "lam_valid": self.validated.lam,
            "lam_auto_each": [float(self.lams["auto each"].min()), float(self.lams["auto each"].max())],
            "scatter": degree.spread,
            "column_scales": degree.scale.tolist(),
            "dispersion": [float(np.min(degree.dispersion)), float(np.max(degree.dispersion))],
            "evidence": degree.freedom,
            "predicted_excess_loss": self.predicted_means,
            "metric": self.metric,
            "rival_by_valid": self.rival,
            "rival_by_test": self.rival_by_test,
            "ways": {way: self._facts_of(way) for way in self.ways},
            "clients": len(self.rows.names),
            "left_out": list(self.rows.left_out),
            "served": dict(zip(self.served.names, self.served.why, strict=True)),
            "outliers": list(self.outliers),
            "valid_rows_held_out_of_training_for": self.held_out,
            "missing_for_want_of_time": self.missing,
        }

    def _facts_of(self, way: str) -> dict[str, Any]:
        return {
            "valid_loss": float(self.valid[way].mean()),
            "test_loss": float(self.test[way].mean()),
            "test_score": float(self.scores[way].mean()),
            "against_rival": bounds(self.against(way)),
            "against_rival_by_test": bounds(self.against(way, self.rival_by_test)),
        }


def _column(way: str) -> str:
    return way.replace(" ", "_")
