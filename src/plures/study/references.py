"""References that are not federated: what a constant, a linear predictor and boosted trees get, alone and pooled.

A study compares federated methods with each other; these say whether federating *these models* pays at all. They are
fit on training rows only, and scored by the model's own metrics on the same valid and test rows:

    trivial                    the client's own mean, or how frequent its classes are
    ridge | logistic  alone    a linear predictor of the client's own rows
    ridge | logistic  pooled   one of the rows of all clients in training
    boosting  alone, pooled    scikit-learn's histogram gradient boosting

What is pooled breaks the promise that rows stay with their clients: it is a yardstick on one machine, never advice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from time import process_time
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from plures._version import __version__
from plures.data import Federation
from plures.errors import Unsupported
from plures.study.reference_clients import TRAIN, ReferenceClients, reference_clients
from plures.study.reference_fits import Predictor, Target, fit_linear, fit_trees, iterations_of
from plures.types import Model

TRIVIAL = "trivial"
SECONDS = 20.0
WORSE, FEW = 0.2, 0.01
"""By what share of the trivial predictor's error a score may be worse and still be of use; shares that are this small are few rows."""

WIDEST_FOR_TREES = 1024
FIRST = 3
"""From so many clients it is told how long all will take."""

Tell: TypeAlias = Callable[[str, int, int], None]
"""(reference, clients done, clients in all)"""


@dataclass(frozen=True, eq=False)
class References:
    """Scores of predictors that are not federated, in the unit of the target.

    ``table`` has a row per (reference, client): who it is, what it has, its scores on valid and test rows, and its loss
    where that is not the score. ``left_out`` says why a reference is not there; ``seconds`` is what each one took of the
    processor. ``data`` says of which data and metric they are.
    """

    table: pl.DataFrame
    metric: str
    higher_is_better: bool
    left_out: Mapping[str, str]
    seconds: Mapping[str, float]
    data: str = ""

    @property
    def means(self) -> dict[str, float]:
        """The mean test score of clients in training by reference; clients count equally, as in the leaderboard."""
        seen = self.table.filter(pl.col("seen"))
        rows = seen.group_by("reference", maintain_order=True).agg(pl.col("test_score").mean())
        return {name: math.nan if mean is None else mean for name, mean in rows.iter_rows()}


def references_of(
    federation: Federation,
    unseen: Federation | None,
    model: Model,
    *,
    seconds: float = SECONDS,
    progress: Tell | None = None,
) -> References:
    """All references that fit the task and the time; clients that are ``unseen`` have none of their rows pooled.

    ``seconds`` is the time of the processor for all together; one that would take longer than what is left is left out,
    which is told from its first clients. No valid and no test row is ever fit on.
    """
    import sklearn.ensemble
    import sklearn.linear_model  # noqa: F401  (loading them is no time of a fit)

    clients = reference_clients(federation, unseen, model)
    parts, left_out, took = dict[str, pl.DataFrame](), dict[str, str](), dict[str, float]()
    end = process_time() + seconds
    with threadpool_limits(1):
        for name, make in _makers(clients, end, progress):
            began = process_time()
            try:
                parts[name] = clients.score(name, make())
            except Unsupported as error:
                left_out[name] = str(error)
            except (ValueError, ArithmeticError) as error:
                left_out[name] = f"it failed: {(str(error).splitlines() or [type(error).__name__])[0]}"
            took[name] = process_time() - began
    order = sorted(parts, key=_rank)
    return References(
        pl.concat([parts[name] for name in order]) if order else clients.score("", clients.constants())[:0],
        model.score,
        model.higher_is_better,
        left_out,
        {name: took[name] for name in order},
        data_mark(federation, unseen, model),
    )


def trivial_of(federation: Federation, unseen: Federation | None, model: Model) -> pl.DataFrame:
    """The rows of ``References.table`` of the trivial predictor alone, which takes milliseconds."""
    clients = reference_clients(federation, unseen, model)
    return clients.score(TRIVIAL, clients.constants())


def is_useless(score: float | None, trivial: float | None, *, higher_is_better: bool, metric: str) -> bool:
    """Whether a mean score is of no use: worse than the trivial predictor's by a fifth of that one's error, and by a point of accuracy.

    The error is 1 - score of an accuracy or an area under the curve, and the score itself of a loss or an RMSE. Who has
    no model at all can still predict a client's mean or most frequent class, so a method that does clearly worse than
    that has not learned: it diverged, or its step was far too small. A fifth is beyond what the luck of a split does to a
    mean over clients, and far below what divergence does. Being a little worse is an ordinary loss, and is said as one.
    A score that is not a finite number is useless; where the trivial predictor has none, nothing else is.

    >>> is_useless(0.927, 0.953, higher_is_better=True, metric="accuracy")
    True
    >>> is_useless(2.3, 2.15, higher_is_better=False, metric="rmse")
    False
    """
    if score is None or not math.isfinite(score):
        return True
    if trivial is None or not math.isfinite(trivial):
        return False
    if metric in ("accuracy", "auc"):
        return trivial - score > max(WORSE * (1 - trivial), FEW)
    if higher_is_better:
        score, trivial = -score, -trivial
    # A constant target is predicted without an error, and any other error is infinitely many times as large.
    return trivial != 0 and score > trivial + WORSE * abs(trivial)


def data_mark(federation: Federation, unseen: Federation | None, model: Model) -> str:
    """What references are of: those that were computed fit as long as this does not change."""
    others = "none" if unseen is None else unseen.fingerprint
    return f"{federation.fingerprint} {others} {model.task} {model.score} {__version__}"


def _rank(name: str) -> tuple[int, str]:
    """Where a reference stands in the table: the simple ones first, alone before pooled."""
    return (TRIVIAL, "ridge", "logistic", "boosting").index(name.partition(" ")[0]), name


Fit: TypeAlias = Callable[[NDArray[Any], NDArray[Any], Target], Predictor]
Make: TypeAlias = Callable[[], list[Predictor]]


class _Family(NamedTuple):
    """One kind of fit. ``quick`` makes a part of one; the whole takes ``times(y, target)`` as long."""

    name: str
    fit: Fit
    quick: Fit
    times: Callable[[NDArray[Any], Target], float]


QUICK_SHARE, QUICK_ITERATIONS = 10, 3

_BOOSTING = _Family(
    "boosting",
    fit_trees,
    partial(fit_trees, iterations=QUICK_ITERATIONS),
    lambda y, target: iterations_of(y, target, stops=True) / QUICK_ITERATIONS,
)


def _linear(model: Model) -> _Family:
    return _Family(
        "ridge" if model.task == "regression" else "logistic",
        fit_linear,
        lambda x, y, target: fit_linear(x[::QUICK_SHARE], y[::QUICK_SHARE], target),
        lambda y, target: QUICK_SHARE,
    )


def _makers(clients: ReferenceClients, end: float, tell: Tell | None) -> Iterator[tuple[str, Make]]:
    """What makes a predictor for every client, by reference; what takes little time first."""
    yield TRIVIAL, clients.constants
    for family in (_linear(clients.model), _BOOSTING):
        why = refusal(family, clients)
        for name, make in (("pooled", fit_pooled), ("alone", fit_alone)):
            full = f"{family.name} {name}"
            yield full, partial(_refuse, why) if why else partial(make, full, family, clients, end, tell)


def _refuse(why: str) -> list[Predictor]:
    raise Unsupported(why)


def refusal(family: _Family, clients: ReferenceClients) -> str:
    """Why a kind of fit is not for these data; empty if it is."""
    task = clients.model.task
    if task not in ("regression", "classification", "binary"):
        return f"{family.name} predicts a number or a class, and the task is {task}"
    if not clients.width:
        return "there are no inputs to predict from"
    if clients.seen.x.dtype.kind != "f":
        return "the inputs are whole numbers that name symbols, and not amounts"
    if family is _BOOSTING and clients.width > WIDEST_FOR_TREES:
        return f"boosting is for at most {WIDEST_FOR_TREES} inputs, and there are {clients.width}"
    if family is _BOOSTING and clients.seen.y.ndim > 1:
        return "boosting predicts one number, and targets have several"
    return ""


def fit_pooled(
    name: str, family: _Family, clients: ReferenceClients, end: float, tell: Tell | None
) -> list[Predictor]:
    """One predictor for all, from the training rows of clients in training."""
    rows, began = clients.pooled_rows(), process_time()
    family.quick(*rows, clients.target)
    check_time((process_time() - began) * family.times(rows.y, clients.target), end)
    shared, number = family.fit(*rows, clients.target), len(clients.places)
    if tell is not None:
        tell(name, number, number)
    return [shared] * number


def fit_alone(
    name: str, family: _Family, clients: ReferenceClients, end: float, tell: Tell | None
) -> list[Predictor]:
    """A predictor for every client, from its own training rows."""
    found, number, began = dict[int, Predictor](), len(clients.places), process_time()
    sizes = [int(part.count[one, TRAIN]) for part, one in clients.places]
    for done, client in enumerate(all_sizes_first(sizes)):
        mean = (process_time() - began) / max(done, 1)
        check_time(mean * (number - done) if done == FIRST else 0.0, end)
        found[client] = family.fit(*clients.own_rows(client), clients.target)
        if tell is not None:
            tell(name, done + 1, number)
    return [found[client] for client in range(number)]


def all_sizes_first(sizes: list[int]) -> list[int]:
    """The places of all clients; the first are a small, a middling and a large one, so that they tell of all.

    >>> all_sizes_first([10, 20, 30, 40, 50, 60])
    [1, 3, 5, 0, 2, 4]
    """
    order = np.argsort(sizes, kind="stable")
    first = [int(order[(2 * number + 1) * len(order) // (2 * FIRST)]) for number in range(FIRST)]
    return list(dict.fromkeys([*first, *map(int, order)]))


def check_time(needed: float, end: float) -> None:
    """Refuse what needs more seconds than are left."""
    left = end - process_time()
    if left <= 0:
        raise Unsupported("the time that references have was over before it was done")
    if needed > left:
        raise Unsupported(f"it would take about {needed:.3g} s, and references have {left:.3g} s left")
