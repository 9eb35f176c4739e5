"""Dapper: fine-tuning on the client's rows together with those of its pool.

    min over h   lam L_k(h)  +  (1 - lam) L_C(h),      from the model served

where C is everyone's data, or the client's cluster's. lam = 1 is fine-tuning, lam = 0 goes on with central training. lam
is chosen by cross-validation on the client's training rows (the smaller one on ties), then all of them are trained on;
a client whose held-out rows speak for the model served keeps that one.

Other clients' rows are not needed for L_C. The ``source`` says what stands for them:

    generative   labels that the served model itself would draw, in expectation: (1 - lam) KL(served || h) on the
                 client's own inputs. Nothing is sent.
    statistics   sums that determine the loss (second moments, counts), added up over clients in a closing round
    proxy        public inputs without labels, labeled softly by the served model
    raw          rows of other clients, as in the paper; only with ``allow_raw_sharing``

In cross-validation rows that are held out do not count in the sums of ``statistics`` either. For ``raw`` every client gives
up to ``shared_rows``. A client's own are among those of its cluster's pool, and all draw from the first ``ratio`` m_k of
them. A step takes rows of the union of own and pool rows, with weights lam / m_k and (1 - lam) / n ("union"), or a batch
of each ("paired", as for ``proxy``).

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization, arXiv 2002.10619, section 5. The paper does not say
grid, folds or whether it refits; the choice of sources is its appendix D.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.local import Loss, begin, descend, masked_mean, mean_loss, num_steps, objective, penalty
from plures.personalize._check import check_shares, needs_weights
from plures.personalize._folds import Folds, folds_of
from plures.personalize._pool import Union, pool_of, public_rows, with_rows, with_sums
from plures.personalize._predictions import kind_of, soft_loss
from plures.registry import Limit, personalizer
from plures.survey import Survey, cluster_of
from plures.types import Batch, Data, Drawable, Key, Method, Model, Plan, Rows, Tree, Weights

SOURCES = ("generative", "statistics", "proxy", "raw")
ROUNDING = 1e-5
GRID = tuple(step / 10 for step in range(11))


class Interpolated(NamedTuple):
    """A client's model, the share its own rows had in it, and whether it was tuned at all."""

    weights: Weights
    lam: Array
    tuned: Array


Job: TypeAlias = Callable[[Array, Rows], tuple[Drawable, Loss]]
"""(lam, own rows) -> the rows to draw from, and the loss of a batch of them."""


@personalizer(
    title="Dapper",
    paper="arXiv:2002.10619",
    degree="lam",
    limits=[
        Limit("no epochs: the base itself", {"epochs": 0}, same_served_as="fedavg"),
        Limit("only the pool, as the base sees it: the base itself", {"lam": 0.0}, same_served_as="fedavg"),
    ],
)
def dapper(
    base: Method,
    *,
    source: str = "generative",
    lam: float | None = None,
    lams: tuple[float, ...] = GRID,
    folds: int = 5,
    keep: bool = True,
    plan: Plan | None = None,
    epochs: int = 1,
    lr: float | None = None,
    ratio: int = 5,
    pool_rows: int = 500,
    shared_rows: int = 10,
    mixing: str = "union",
    proxy: str | Any = None,
    allow_raw_sharing: bool = False,
    example: Any = None,
) -> Method:
    """The base's model tuned on the client's rows and its pool, their balance by cross-validation.

    ``lam`` fixes the balance. Without ``keep`` a client is served a tuned model even where its held-out rows speak for
    the base's. ``ratio`` is how many pool rows go with each own row, of at most ``pool_rows``; every
    client gives at most ``shared_rows`` for ``raw``, where ``example`` has the shapes of a row
    (``federation.example``). ``proxy`` is an array of public inputs or a .npy file with one.
    """
    needs_weights("dapper", base)
    _check(source, allow_raw_sharing, mixing)
    lams = check_shares("lams", lams) if lam is None else check_shares("lam", (lam,))
    at_least = {"folds": 2, "epochs": 0, "ratio": 1, "pool_rows": 1, "shared_rows": 1}
    given = {"folds": folds, "epochs": epochs, "ratio": ratio, "pool_rows": pool_rows, "shared_rows": shared_rows}
    for name, number in given.items():
        if number < at_least[name]:
            raise BadValue(name, number, f"{at_least[name]} or more")
    own = plan or base.plan
    tuned = replace(own, epochs=epochs, steps=None, lr=own.lr if lr is None else lr)
    search = Search(tuned, lams, folds, keep)
    if source == "generative":
        kind_of(base.model)
        return _personal(base, search, lambda first, offer, data: _echoing(base.model, first))
    if source == "proxy":
        kind_of(base.model)
        public = public_rows(base.model, proxy, pool_rows)
        beside = Beside(base.model, tuned, ratio)
        return _personal(base, search, lambda first, offer, data: beside.job(public, teacher=first))
    if source == "statistics":
        asked = with_sums(base)
        return _personal(asked, search, lambda first, offer, data: _summed(base, offer, data))
    asked = with_rows(base, example, pool_rows, shared_rows)
    beside = Beside(base.model, tuned, ratio, union=mixing == "union" and tuned.batch is not None)
    return _personal(asked, search, lambda first, offer, data: beside.job(pool_of(base, offer, data), teacher=None))


def _personal(method: Method, search: Search, job_of: Callable[[Weights, Tree, Data], Job]) -> Method:
    """``method`` serving interpolated models; ``job_of(first, offer, data)`` says what is trained on."""
    plan, lams, folds, keep = search
    model, grid = method.model, jnp.asarray(lams)

    def serve(key: Key, offer: Tree, private: Tree, data: Data) -> Interpolated:
        # The same keys as fine-tuning: with lam = 1 it makes the same steps.
        key_base, key_own = jax.random.split(key)
        first = method.serve(key_base, offer, private, data)
        job = job_of(first, offer, data)

        def tuned(lam: Array, rows: Rows) -> Weights:
            drawn, loss = job(lam, rows)
            return descend(key_own, begin(first, plan), drawn, plan, loss, stop=num_steps(drawn, plan)).weights

        if len(lams) == 1:
            return Interpolated(tuned(grid[0], data.train), grid[0], jnp.asarray(True))
        parts = folds_of(jax.random.fold_in(key_own, 1), data.train, folds)
        losses = held_out(model, parts, grid, tuned)
        before = held_out(model, parts, grid[:1], lambda lam, rows: first)[0]
        # Losses that differ by rounding alone are ties, and ties go to the simpler side.
        level = losses.min() + ROUNDING * before
        worth = ~jnp.asarray(keep) | (level < before)
        lam = jnp.where(worth, grid[(losses <= level).argmax()], 0.0)
        return Interpolated(tree.choose(worth, tuned(lam, data.train), first), lam, worth)

    def common(offer: Tree) -> Interpolated:
        assert method.common is not None
        return Interpolated(method.common(offer), jnp.zeros(()), jnp.asarray(False))

    return replace(
        method,
        serve=serve,
        predict=lambda served, x: model.apply(served.weights, x),
        common=None if method.common is None else common,
        facts=lambda offer, private, served: {"lam": served.lam, "tuned": served.tuned},
        lanes=len(lams) * folds if len(lams) > 1 else 1,
    )


def held_out(model: Model, parts: Folds, grid: Array, tuned: Callable[[Array, Rows], Weights]) -> Array:
    """The loss of every lam on rows it was not trained on, summed: all folds and all lams side by side."""

    def one(lam: Array, fold: Array) -> Array:
        return mean_loss(model, model.apply, tuned(lam, parts.fit(fold)), parts.held(fold))

    losses = jax.vmap(lambda lam: jax.vmap(lambda fold: one(lam, fold))(jnp.arange(parts.number)))(grid)
    counted = parts.sizes
    total = jnp.where(counted > 0, counted * losses, 0.0).sum(1)
    # A lam whose training broke down is the last to be chosen; argmin would take it first.
    return jnp.where(jnp.isnan(total), jnp.inf, total)


def _echoing(model: Model, first: Weights) -> Job:
    """Labels of the client's own inputs that the first model would draw, in expectation."""

    def job(lam: Array, rows: Rows) -> tuple[Rows, Loss]:
        def loss(key: Key, weights: Weights, batch: Batch) -> tuple[Array, Tree]:
            outputs, stats = model.forward(key, weights, batch.x, batch.mask)
            echo = soft_loss(model, outputs, model.apply(first, batch.x))
            own, other = (masked_mean(one, batch.mask) for one in (model.loss(outputs, batch.y), echo))
            # The first model minimizes loss and penalty together, so its echo needs no penalty of its own.
            return lam * (own + penalty(model, weights)) + (1 - lam) * other, stats

        return rows, loss

    return job


def _summed(base: Method, offer: Survey, data: Data) -> Job:
    """The pool's loss from the sums of its rows; rows of the client that are held out are taken out of them."""
    model, everyone = base.model, tree.at(offer.found, cluster_of(base, offer.base, data))
    own, summary = objective(model), model.summary
    assert summary is not None

    def sums_of(rows: Rows) -> Tree:
        batch = rows.all()
        return summary.of(batch.x, batch.y, batch.mask)

    mine = sums_of(data.train)

    def job(lam: Array, rows: Rows) -> tuple[Rows, Loss]:
        held = tree.scale(offer.heard.astype(jnp.float32), tree.subtract(mine, sums_of(rows)))
        sums = tree.subtract(everyone, held)

        def loss(key: Key, weights: Weights, batch: Batch) -> tuple[Array, Tree]:
            value, stats = own(key, weights, batch)
            other = summary.loss(weights, sums) + penalty(model, weights)
            return lam * value + (1 - lam) * other, stats

        return rows, loss

    return job


class Search(NamedTuple):
    """How a client trains, and what it tries."""

    plan: Plan
    lams: tuple[float, ...]
    folds: int
    keep: bool


@dataclass(frozen=True, eq=False)
class Beside:
    """Training on own rows beside those of a pool, as one set of rows or with a batch of each."""

    model: Model
    plan: Plan
    ratio: int
    union: bool = False

    def job(self, pool: Rows, teacher: Weights | None) -> Job:
        """What to train on; a ``teacher`` labels the pool."""
        model = self.model

        def of_pool(key: Key, weights: Weights) -> Array:
            batch = self._some(key, pool)
            outputs, _ = model.forward(key, weights, batch.x, batch.mask)
            if teacher is None:
                return masked_mean(model.loss(outputs, batch.y), batch.mask) + penalty(model, weights)
            return masked_mean(soft_loss(model, outputs, model.apply(teacher, batch.x)), batch.mask)

        def paired(lam: Array, rows: Rows) -> tuple[Rows, Loss]:
            def loss(key: Key, weights: Weights, batch: Batch) -> tuple[Array, Tree]:
                value, stats = objective(model)(key, weights, batch)
                return lam * value + (1 - lam) * of_pool(jax.random.fold_in(key, 1), weights), stats

            return rows, loss

        def joined(lam: Array, rows: Rows) -> tuple[Union, Loss]:
            number = jnp.minimum(pool.count, self.ratio * rows.count)
            return Union(rows, replace(pool, count=number), lam), objective(model)

        return joined if self.union else paired

    def _some(self, key: Key, pool: Rows) -> Batch:
        """All rows of the pool for a full batch, or ``ratio`` times a batch drawn with replacement."""
        if self.plan.batch is None:
            return pool.all()
        size = self.ratio * self.plan.batch
        return pool.take(jax.random.randint(key, (size,), 0, jnp.maximum(pool.count, 1)))


def _check(source: str, allowed: bool, mixing: str) -> None:
    if source not in SOURCES:
        raise UnknownChoice("source", source, SOURCES)
    if mixing not in ("union", "paired"):
        raise UnknownChoice("mixing", mixing, ("union", "paired"))
    if source == "raw" and not allowed:
        raise Unsupported(
            "source=raw shows clients each other's rows; say allow_raw_sharing=true if they agreed, "
            "or use generative, statistics or proxy"
        )
