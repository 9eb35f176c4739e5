"""How it is found out whether clients should federate: strengths, the models of every way, and their losses.

Clients that would spoil the estimates, or must not be in them, are served afterwards: those held out of training, those with one row
to train on, and outliers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import jax
import numpy as np

from plures.advise.families import ModelFamily
from plures.advise.family_advice import FEW, FOUND_AGAIN, FamilyAdvice, try_advise
from plures.advise.linear_rows import LinearRows, SplitRows, check_width, link_of, prepare_linear_rows, score
from plures.advise.preparation import distinct_rows
from plures.advise.worth import AUTO, LateClients, Worth, WorthOptions
from plures.data import Federation
from plures.data.federation import SPLITS
from plures.errors import BadData
from plures.keys import Purpose, derive, root
from plures.solvers import Clients, as_clients
from plures.solvers.degree import row_losses, valid_degree
from plures.solvers.losses import LinearLoss
from plures.solvers.path import consensus
from plures.solvers.penalized import Penalized
from plures.solvers.prox import own_best
from plures.solvers.reml import Outlook, RemlDegree, outlook, reml_degree
from plures.types import Floats

CENTERED = ("least_squares", "huber")
"""Losses of which the target may be moved by a constant."""


def estimate_worth(
    federation: Federation,
    options: WorthOptions = WorthOptions(),
    tell: Callable[[str], None] = lambda stage: None,
    *,
    unseen: Federation | None = None,
) -> Worth:
    """Everything: strengths from training and valid rows, predictions, and what test rows say; ``tell`` hears the stage.

    The clients of ``unseen`` are served at the end, and no estimate sees them.
    """
    end = time.monotonic() + options.limit
    federation = distinct_rows(federation)
    rows = prepare_linear_rows(federation, axes=options.axes, splits=SPLITS, deed="compared")
    maker = ClientsMaker.of(rows, link_of(options.loss, federation), options.ridge)
    tell("families: clusters and outliers")
    families = try_advise(federation)
    apart = dict.fromkeys(_poor(rows), "one training row, no valid row")
    apart |= dict.fromkeys(() if families is None else families.outliers, "unlike the others")
    rows = rows.keep([name for name in rows.names if name not in apart])
    if len(rows.names) < 2:
        raise BadData("fewer than two clients have the two rows each by which models are trained and chosen")
    rows, held_out = _with_valid(rows, options.valid_share)
    train, valid, test = (maker.clients(rows.parts[split]) for split in SPLITS)

    tell("statistics: how clients differ, and their noise")
    # A third of the time, so that there is some left for the losses.
    degree = reml_degree(train, _groupings(train, end - 2 * options.limit / 3))
    train, valid, test = (one.scaled(degree.scale) for one in (train, valid, test))
    found = _fit_ways(train, degree, options.weighting)
    tell(f"path: models at {options.num_lams} strengths, and their loss on valid rows")
    grid = degree.curvature * np.geomspace(1e-3, 1e3, options.num_lams)
    path = valid_degree(train, valid, grid, weights=found.shares, enough=lambda: time.monotonic() > end)
    lams = {**found.lams, "valid": np.full(train.num, path.lam), "valid each": path.own_lams}
    own = {**found.own, "valid": path.path.own[path.place], "valid each": path.own_models}
    if (clusters := _cluster_models(families, rows.names, train)) is not None:
        own[ModelFamily.CLUSTERS], lams[ModelFamily.CLUSTERS] = clusters, found.lams[ModelFamily.GLOBAL]

    tell("valid rows, test rows: the loss of every way")
    late = _Late.of(federation, apart) + _Late.of(unseen, _able(unseen))
    return Worth(
        options=options,
        rows=rows,
        clients=train,
        degree=degree,
        validated=path,
        outlooks=found.outlooks,
        lams=lams,
        valid={way: _losses(valid, model) for way, model in own.items()},
        test={way: _losses(test, model) for way, model in own.items()},
        scores={way: _scores(test, model) for way, model in own.items()},
        path_test=np.array([_losses(test, model).mean() for model in path.path.own]),
        held_out=held_out,
        families=families,
        served=late.serve(rows, maker, degree, found),
    )


@dataclass(frozen=True)
class ClientsMaker:
    """Clients from rows: targets less their mean over all training rows, and intercepts that no ridge shrinks."""

    link: LinearLoss
    ridge: float
    middle: float

    @classmethod
    def of(cls, rows: LinearRows, link: LinearLoss, ridge: float) -> ClientsMaker:
        """For these rows; targets that the loss does not take are refused."""
        train = rows.parts["train"]
        check_width(train.tables[0].shape[1] + 1, link.num_outputs)
        found = cls(link, ridge, float(np.concatenate(train.targets).mean()) if link.name in CENTERED else 0.0)
        found.clients(train)
        return found

    def clients(self, part: SplitRows) -> Clients:
        """Those of some rows."""
        targets = [target - self.middle for target in part.targets]
        # Of classes a little is kept: a client with one class has no best intercept of its own.
        intercept = 0.0 if self.link.name in CENTERED else self.ridge
        return as_clients(part.tables, targets, loss=self.link, ridge=self.ridge, intercept_ridge=intercept)


@dataclass(frozen=True, eq=False)
class _Ways:
    """Strengths and models of the ways that training rows give, and what is predicted of them."""

    shares: Floats
    lams: dict[str, Floats]
    own: dict[str, Floats]
    pooled: Floats
    shared: Floats
    outlooks: dict[str, Outlook]


def _fit_ways(train: Clients, degree: RemlDegree, weighting: str) -> _Ways:
    """Both ends, one lam for all, and each its own, where clients also count by what their rows tell."""
    by_rows = weighting == "examples"
    shares = train.counts / train.counts.sum() if by_rows else np.full(train.num, 1 / train.num)
    precise = train.counts / degree.dispersion
    precise = precise / precise.sum()
    one: dict[str, Floats] = {
        ModelFamily.ALONE: np.zeros(train.num),
        ModelFamily.GLOBAL: np.full(train.num, np.inf),
    }
    lams: dict[str, Floats] = {**one, "auto": np.full(train.num, degree.lam)}
    plain = Penalized(train, shares).solve(np.stack(list(lams.values())))
    each = Penalized(train, precise).solve(degree.own_lams[None])
    own = {**dict(zip(lams, plain.own, strict=True)), "auto each": each.own[0]}
    lams["auto each"] = degree.own_lams
    ahead = {
        way: outlook(train, degree, own["auto"], lams[way], weights=weights)
        for way, weights in zip(AUTO, (shares, precise), strict=True)
    }
    return _Ways(shares, dict(lams), dict(own), plain.shared[1], each.shared[0], ahead)


def _poor(rows: LinearRows) -> list[str]:
    """Clients with one training row and no valid row: nothing can be held out of theirs."""
    train, valid = (rows.parts[split].counts for split in ("train", "valid"))
    return [name for name, own, held in zip(rows.names, train, valid, strict=True) if own < 2 and not held]


def _with_valid(rows: LinearRows, share: float) -> tuple[LinearRows, int]:
    """The rows, with some of the training rows held out for clients without valid rows; how many clients those are."""
    train = rows.parts["train"]
    lacking = [client for client, number in enumerate(rows.parts["valid"].counts) if not number]
    parts = {name: SplitRows(list(part.tables), list(part.targets)) for name, part in rows.parts.items()}
    for client in lacking:
        number = train.counts[client]
        # The same draw for all clients, so that neither their names nor their order make a difference.
        order = np.asarray(jax.random.permutation(derive(root(0), Purpose.SPLIT), number))
        cut = min(max(round(share * number), 1), number - 1)
        for name, some in (("valid", order[:cut]), ("train", order[cut:])):
            parts[name].tables[client] = train.tables[client][some]
            parts[name].targets[client] = train.targets[client][some]
    return replace(rows, parts=parts), len(lacking)


def _groupings(train: Clients, end: float) -> Iterator[np.ndarray]:
    """Columns that may scatter by variances of their own: the intercept, then all of them, as long as there is time.

    Few clients tell one variance badly enough.
    """
    width = train.a.shape[2]
    for grouping in (np.arange(width) == width - 1, np.arange(width)):
        if width > 1 and train.num >= FEW and time.monotonic() < end:
            yield grouping.astype(int)


def _cluster_models(families: FamilyAdvice | None, names: tuple[str, ...], train: Clients) -> Floats | None:
    """(m, d) models of the clusters that folds find again; everyone takes the one that fits its training rows best."""
    if families is None or families.clusters is None or families.clusters.stability < FOUND_AGAIN:
        return None
    where = dict(zip(families.rows.names, families.clusters.label, strict=True))
    if not set(names) <= set(where):
        return None
    label = np.array([where[name] for name in names])
    models = np.stack([consensus(train.take(label == one)).model for one in np.unique(label)])
    losses = np.stack([train.value(np.tile(model, (train.num, 1))) for model in models])
    return models[losses.argmin(0)]


def _able(unseen: Federation | None) -> dict[str, str]:
    """Clients held out that have rows to train and to test on."""
    if unseen is None:
        return {}
    return {name: "held out" for name, row in zip(unseen.names, unseen.count, strict=True) if row[0] and row[2]}


@dataclass(frozen=True)
class _Late:
    """Clients that come when all is estimated: name, why, and the federation that has their rows."""

    clients: tuple[tuple[str, str, Federation], ...]

    @classmethod
    def of(cls, federation: Federation | None, reasons: Mapping[str, str]) -> _Late:
        return cls(tuple((name, why, federation) for name, why in reasons.items() if federation is not None))

    def __add__(self, other: _Late) -> _Late:
        return _Late(self.clients + other.clients)

    def serve(self, rows: LinearRows, maker: ClientsMaker, degree: RemlDegree, found: _Ways) -> LateClients:
        """Their losses on test rows: alone, with the pooled model, and with own rows near the shared model."""
        if not self.clients:
            return LateClients((), (), {})
        names, reasons, _ = zip(*self.clients, strict=True)

        def clients_of(split: str) -> Clients:
            each = [rows.of(whole, [name], split) for name, _, whole in self.clients]
            part = SplitRows([one.tables[0] for one in each], [one.targets[0] for one in each])
            return maker.clients(part).scaled(degree.scale)

        train, test = clients_of("train"), clients_of("test")
        center = np.tile(found.shared, (train.num, 1))
        strong = float(np.median(degree.dispersion)) / (train.counts * degree.spread)
        models = {
            "alone": own_best(train, np.zeros_like(center)).x,
            "global": np.tile(found.pooled, (train.num, 1)),
            "auto": own_best(train, center, omega=strong, center=center).x,
        }
        return LateClients(names, reasons, {way: _losses(test, model) for way, model in models.items()})


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
