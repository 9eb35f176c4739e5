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
from plures.errors import Unsupported, require_choice, require_least
from plures.local import Loss, begin, descend, masked_mean, mean_loss, num_steps, objective, penalty
from plures.method import Method
from plures.personalize.base_checks import check_shares, needs_weights
from plures.personalize.mixtures import kind_of, soft_loss
from plures.personalize.row_pools import OwnAndPool, pool_of, public_rows, with_rows, with_sums
from plures.registry import Limit, personalizer
from plures.types import Batch, Data, Drawable, Key, Model, Plan, Rows, Tree, Weights
from plures.wrap.closing import Survey, cluster_of
from plures.wrap.cross_validation import RowFolds, folds_of

SOURCES = ("generative", "statistics", "proxy", "raw")
ROUNDING = 1e-5
GRID = tuple(step / 10 for step in range(11))


class InterpolatedModel(NamedTuple):
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

    Args:
        source: What stands for the rows of others: "generative" (labels that the served model would draw), "statistics" (sums
            over clients that determine the loss), "proxy" (public inputs) or "raw" (rows of other clients).
        lam: Share of the own rows in the loss: 1 is fine-tuning, 0 goes on with central training; None is chosen by
            cross-validation.
        lams: The shares in [0, 1] among which cross-validation chooses.
        folds: Folds of that cross-validation, 2 or more; more cost more training.
        keep: Whether a client whose held-out rows speak for the base's model keeps that one.
        plan: How clients tune; None is the base's plan.
        epochs: Epochs of tuning; 0 is the base itself.
        lr: Step size of tuning; None is the plan's.
        ratio: How many rows of the pool go with each own row, for "proxy" and "raw".
        pool_rows: How many rows a pool holds at most.
        shared_rows: How many rows every client gives to its pool at most, for "raw".
        mixing: How a step takes rows for "raw": from the "union" of own and pool rows, weighted, or "paired" batches, one of
            each.
        proxy: Public inputs for source="proxy": an array, or a .npy file with one.
        allow_raw_sharing: Whether clients agreed to show each other their rows; source="raw" is refused without it.
        example: The shapes of a row, for source="raw" (``federation.example``).
    """
    needs_weights("dapper", base)
    require_choice("source", source, SOURCES)
    require_choice("mixing", mixing, ("union", "paired"))
    if source == "raw" and not allow_raw_sharing:
        raise Unsupported(
            "source=raw shows clients each other's rows; say allow_raw_sharing=true if they agreed, "
            "or use generative, statistics or proxy"
        )
    lams = check_shares("lams", lams) if lam is None else check_shares("lam", (lam,))
    require_least(0, epochs=epochs)
    require_least(1, ratio=ratio, pool_rows=pool_rows, shared_rows=shared_rows)
    require_least(2, folds=folds)
    own = plan or base.plan
    tuned = replace(own, epochs=epochs, steps=None, lr=own.lr if lr is None else lr)
    search = BalanceSearch(tuned, lams, folds, keep)
    if source in ("generative", "proxy"):
        kind_of(base.model)
    if source == "generative":
        return _serve_interpolated(base, search, lambda first, offer, data: _echo_job(base.model, first))
    if source == "proxy":
        public = public_rows(base.model, proxy, pool_rows)
        beside = PoolTraining(base.model, tuned, ratio)
        return _serve_interpolated(base, search, lambda first, offer, data: beside.job(public, teacher=first))
    if source == "statistics":
        asked = with_sums(base)
        return _serve_interpolated(asked, search, lambda first, offer, data: _sums_job(base, offer, data))
    asked = with_rows(base, example, pool_rows, shared_rows)
    beside = PoolTraining(base.model, tuned, ratio, union=mixing == "union" and tuned.batch is not None)
    return _serve_interpolated(
        asked, search, lambda first, offer, data: beside.job(pool_of(base, offer, data), teacher=None)
    )


def _serve_interpolated(
    method: Method, search: BalanceSearch, job_of: Callable[[Weights, Tree, Data], Job]
) -> Method:
    """``method`` serving interpolated models; ``job_of(first, offer, data)`` says what is trained on."""
    plan, lams, folds, keep = search
    model, grid = method.model, jnp.asarray(lams)

    def serve(key: Key, offer: Tree, private: Tree, data: Data) -> InterpolatedModel:
        # The same keys as fine-tuning: with lam = 1 it makes the same steps.
        key_base, key_own = jax.random.split(key)
        first = method.serve(key_base, offer, private, data)
        job = job_of(first, offer, data)

        def tune(lam: Array, rows: Rows) -> Weights:
            drawn, loss = job(lam, rows)
            return descend(key_own, begin(first, plan), drawn, plan, loss, stop=num_steps(drawn, plan)).weights

        if len(lams) == 1:
            return InterpolatedModel(tune(grid[0], data.train), grid[0], jnp.asarray(True))
        parts = folds_of(jax.random.fold_in(key_own, 1), data.train, folds)
        losses = held_out_losses(model, parts, grid, tune)
        before = held_out_losses(model, parts, grid[:1], lambda lam, rows: first)[0]
        # Losses that differ by rounding alone are ties, and ties go to the simpler side.
        level = losses.min() + ROUNDING * before
        worth = ~jnp.asarray(keep) | (level < before)
        lam = jnp.where(worth, grid[(losses <= level).argmax()], 0.0)
        return InterpolatedModel(tree.choose(worth, tune(lam, data.train), first), lam, worth)

    return replace(
        method,
        serve=serve,
        predict=lambda served, x: model.apply(served.weights, x),
        views=replace(
            method.views,
            common=method.views.common_as(
                lambda first: InterpolatedModel(first, jnp.zeros(()), jnp.asarray(False))
            ),
            facts=lambda offer, private, served: {"lam": served.lam, "tuned": served.tuned},
        ),
        traits=replace(method.traits, lanes=len(lams) * folds if len(lams) > 1 else 1),
    )


def held_out_losses(model: Model, parts: RowFolds, grid: Array, tune: Callable[[Array, Rows], Weights]) -> Array:
    """The loss of every lam on rows it was not trained on, summed: all folds and all lams side by side."""

    def one(lam: Array, fold: Array) -> Array:
        return mean_loss(model, model.apply, tune(lam, parts.fit(fold)), parts.held(fold))

    losses = jax.vmap(lambda lam: jax.vmap(lambda fold: one(lam, fold))(jnp.arange(parts.number)))(grid)
    counted = parts.sizes
    total = jnp.where(counted > 0, counted * losses, 0.0).sum(1)
    # A lam whose training broke down is the last to be chosen; argmin would take it first.
    return jnp.where(jnp.isnan(total), jnp.inf, total)


def _echo_job(model: Model, first: Weights) -> Job:
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


def _sums_job(base: Method, offer: Survey, data: Data) -> Job:
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


class BalanceSearch(NamedTuple):
    """How a client trains, and what it tries."""

    plan: Plan
    lams: tuple[float, ...]
    folds: int
    keep: bool


@dataclass(frozen=True, eq=False)
class PoolTraining:
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

        def draw_pairs(lam: Array, rows: Rows) -> tuple[Rows, Loss]:
            def loss(key: Key, weights: Weights, batch: Batch) -> tuple[Array, Tree]:
                value, stats = objective(model)(key, weights, batch)
                return lam * value + (1 - lam) * of_pool(jax.random.fold_in(key, 1), weights), stats

            return rows, loss

        def join_rows(lam: Array, rows: Rows) -> tuple[OwnAndPool, Loss]:
            number = jnp.minimum(pool.count, self.ratio * rows.count)
            return OwnAndPool(rows, replace(pool, count=number), lam), objective(model)

        return join_rows if self.union else draw_pairs

    def _some(self, key: Key, pool: Rows) -> Batch:
        """All rows of the pool for a full batch, or ``ratio`` times a batch drawn with replacement."""
        if self.plan.batch is None:
            return pool.all()
        size = self.ratio * self.plan.batch
        return pool.take(jax.random.randint(key, (size,), 0, jnp.maximum(pool.count, 1)))
