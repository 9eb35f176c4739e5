"""kNN-Per: the base's prediction mixed with what the nearest of the client's own rows say.

    near(y)   ~   sum over the k rows i nearest to x  [y_i = y] exp(-d_i / scale),     d_i  =  |phi(x) - phi(x_i)|
    h(y)      =   lam near(y) + (1 - lam) base(y)                                       (probabilities, in log space)

phi are the features of the base's model, and the rows the client's training rows: nothing is trained. ``lam`` is a number, or
"valid": what makes the client's valid rows likeliest (concave in lam) together with one row more that the base alone explains.
So n rows of which the neighbors know all give n / (n + 1), never 1, and a client without valid rows has lam = 0. So has one
without training rows. Without a ``scale`` it is the mean distance of the k neighbors: features in another unit change nothing.

Marfoq, Neglia, Vidal, Kameni: Personalized Federated Learning through Local Memorization, ICML 2022. arXiv 2111.09360. The paper
has scale = 1 and lam from a grid by accuracy; its code takes squared distances over the number of features. A label that no
neighbor has gets the probability exp(-50) here instead of 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures.errors import Unsupported, require, require_least
from plures.local import outputs_of
from plures.method import Method
from plures.models.parts import parts_of
from plures.personalize.base_checks import check_lam, needs_weights
from plures.personalize.mixtures import FAR, MixtureEvidence, best_mixture, evidence, kind_of, mixture
from plures.registry import Limit, personalizer
from plures.types import Data, Info, Key, Model, Rows, Tree, Weights

TASKS = ("classification", "binary", "sequence")


class NeighborStore(NamedTuple):
    """A model, the features and labels of a client's rows, and the share of what those say."""

    weights: Weights
    features: Array  # (rows, dim); sequences have a row for every position
    labels: Array  # (rows,)
    mask: Array  # (rows,)
    lam: Array


@personalizer(
    title="kNN-Per",
    paper="arXiv:2111.09360",
    degree="lam",
    limits=[Limit("no share for neighbors: the base itself", {"lam": 0.0}, same_served_as="fedavg")],
)
def knn_per(base: Method, *, k: int = 10, lam: float | str = "valid", scale: float | None = None) -> Method:
    """The base's predictions mixed with the labels of the client's ``k`` nearest rows.

    Args:
        k: How many neighbors vote; at most the client's training rows.
        lam: Share of the neighbors in the prediction, in [0, 1] (0 is the base), or "valid": what makes the client's valid
            rows likeliest.
        scale: Distance at which a neighbor's vote has fallen to 1/e; None is the mean distance of the k neighbors.
    """
    needs_weights("knn_per", base)
    require_least(1, k=k)
    check_lam(lam, ("valid",))
    fine = scale is None or 0 < scale < float("inf")
    require(fine, "scale", scale, "a positive number (or None for the neighbors' mean distance)")
    model, voting = base.model, NeighborVote(base.model, k, scale)
    _check_model(model)

    def serve(key: Key, offer: Tree, private: Tree, data: Data) -> NeighborStore:
        store = store_rows(model, base.serve(key, offer, private, data), data.train)
        if isinstance(lam, str):
            share = best_mixture(with_a_row_for_the_base(voting.evidence(store, data.valid)))
        else:
            share = jnp.asarray(lam, jnp.float32)
        return store._replace(lam=jnp.where(store.mask.any(), share, 0.0))

    def predict(served: NeighborStore, x: Array) -> Array:
        return mixture(model, model.apply(served.weights, x), voting.outputs(served, x), served.lam)

    def without_rows(common: Weights) -> NeighborStore:
        blank = jnp.zeros(1, jnp.int32)
        return NeighborStore(common, jnp.zeros((1, 1)), blank, blank > 0, jnp.zeros(()))

    def facts(offer: Tree, private: Tree, served: NeighborStore) -> Info:
        of_base = {} if base.views.facts is None else base.views.facts(offer, private, served.weights)
        return {**of_base, "neighbors": served.lam}

    return replace(
        base,
        serve=serve,
        predict=predict,
        views=replace(base.views, common=base.views.common_as(without_rows), facts=facts),
    )


def store_rows(model: Model, weights: Weights, rows: Rows) -> NeighborStore:
    """The features and labels of all rows; those of padding are zero."""
    assert model.features is not None
    batch, features = rows.all(), outputs_of(model.features, weights, rows)
    labels = (batch.y > 0 if kind_of(model) == "binary" else batch.y).astype(jnp.int32).reshape(-1)
    features = features.reshape(labels.size, -1)
    mask = jnp.repeat(batch.mask, labels.size // batch.mask.size)
    return NeighborStore(weights, jnp.where(mask[:, None], features, 0.0), labels, mask, jnp.zeros(()))


@dataclass(frozen=True, eq=False)
class NeighborVote:
    """What the ``k`` nearest of the stored rows say, as outputs of the model."""

    model: Model
    k: int
    scale: float | None

    def outputs(self, store: NeighborStore, x: Array) -> Array:
        """Log-probabilities of classes, or the one logit of a binary model."""
        assert self.model.features is not None
        shape = jax.eval_shape(self.model.apply, store.weights, x).shape
        features = self.model.features(store.weights, x)
        binary = kind_of(self.model) == "binary"

        def vote(queries: Array) -> Array:
            return self.log_probs(store, queries, 2 if binary else shape[-1])

        # The positions of one text after the other: all at once would compare every two positions of the client.
        found = jax.lax.map(vote, features) if features.ndim > 2 else vote(features)
        return found[..., 1] - found[..., 0] if binary else found.reshape(shape)

    def log_probs(self, store: NeighborStore, queries: Array, num_classes: int) -> Array:
        """(queries, classes) the logarithms of near(y)."""
        # The store of the model common to all has one blank row, of whatever width.
        rows = jnp.broadcast_to(store.features, (len(store.features), queries.shape[-1]))
        center = rows.sum(0) / jnp.maximum(store.mask.sum(), 1)
        rows, queries = rows - center, queries - center  # distances lose fewer digits
        index = nearest(rows, store.mask, queries, min(self.k, len(rows)))
        gaps = jnp.sqrt(((queries[:, None] - rows[index]) ** 2).sum(-1))  # (queries, k)
        weights = closeness(gaps, store.mask[index], self.scale)
        votes = (weights[..., None] * jax.nn.one_hot(store.labels[index], num_classes)).sum(1)
        return jnp.log(jnp.maximum(votes, jnp.exp(-FAR)))

    def evidence(self, store: NeighborStore, rows: Rows) -> MixtureEvidence:
        """What rows say for the neighbors against the model."""
        batch = rows.all()
        common = outputs_of(self.model.apply, store.weights, rows)
        return evidence(self.model, common, outputs_of(self.outputs, store, rows), batch.y, batch.mask)


def nearest(rows: Array, mask: Array, queries: Array, number: int) -> Array:
    """(queries, number) which rows are nearest to each query; rows with a false mask come last."""
    products = jnp.matmul(queries, rows.T, precision=jax.lax.Precision.HIGHEST)
    order = jnp.where(mask, 2 * products - (rows**2).sum(1), -jnp.inf)  # |query|^2 is the same for all rows
    return jax.lax.top_k(order, number)[1]


def closeness(gaps: Array, mask: Array, scale: float | None) -> Array:
    """(queries, k) exp(-gap / scale), made to sum to 1; zeros where no neighbor counts."""
    some = jnp.maximum(mask.sum(1, keepdims=True), 1)
    gaps = jnp.where(mask, gaps, 0.0)
    width = jnp.maximum(gaps.sum(1, keepdims=True) / some, 1e-30) if scale is None else scale
    # The nearest gets exp(0): nothing underflows to 0 / 0.
    least = jnp.where(mask, gaps, jnp.inf).min(1, keepdims=True)
    weights = jnp.where(mask, jnp.exp((jnp.where(mask, least, 0.0) - gaps) / width), 0.0)
    return weights / jnp.maximum(weights.sum(1, keepdims=True), 1e-30)


def with_a_row_for_the_base(found: MixtureEvidence) -> MixtureEvidence:
    """The evidence with one row more, of which the neighbors know nothing."""
    against = jnp.full_like(found.gain[:1], -FAR)
    return MixtureEvidence(jnp.concatenate([found.gain, against]), None, jnp.append(found.mask, True))


def _check_model(model: Model) -> None:
    if model.task not in TASKS:
        raise Unsupported(
            f"knn_per lets neighbors vote for labels, in tasks of {', '.join(TASKS)}; this model's is {model.task}"
        )
    kind_of(model)
    if model.features is None:
        parts = ", ".join(parts_of(model)) or "no named parts"
        raise Unsupported(f"knn_per needs a model that tells its features; this one has: {parts}")
