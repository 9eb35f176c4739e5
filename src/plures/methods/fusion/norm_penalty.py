"""The penalty alpha sum_e w_e |x_i - x_j| on a graph of clients: its options, its graph, newcomers, what can be said of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures.aggregate.graph import Edges, build_graph, check_graph, cluster_means, num_edges
from plures.aggregate.norm_fusion import consensus_threshold
from plures.errors import require
from plures.local import losses_of
from plures.method import Forecast, Method
from plures.methods.fusion.warm_start import GradientSurvey, ProximalOffer, ProximalSolver, after_survey
from plures.methods.penalized.vector import PartVector, Rest
from plures.registry import OptionGroup
from plures.types import Data, Info, Key, Tree
from plures.wording import bytes_in_words

HEAVY = 4e9  # bytes for the graph from which on a warning is due
FUSED = 1e-6  # of the length of a cluster's model: nearer ones are the same


@dataclass(frozen=True)
class NormPenalty(OptionGroup):
    """The options of a sum of norms.

    Args:
        t: Penalty in units of alpha_hat, from which on one model for all is the answer: near 0 everybody is alone.
        alpha: Penalty in its own unit, instead of ``t``; set this one against attackers, whose gradients move alpha_hat.
        graph: Which clients are linked: "knn" (those of the nearest gradients, and a spanning tree), "complete" (all
            pairs), or "mixture" of both.
        num_neighbors: Neighbors of a client in the graphs "knn" and "mixture".
        share: Share of the complete graph in a "mixture".
    """

    t: float = 0.5
    alpha: float | None = None
    graph: str = "knn"
    num_neighbors: int = 5
    share: float = 0.1

    def __post_init__(self) -> None:
        fine = self.alpha is None or 0 < self.alpha < float("inf")
        require(fine, "alpha", self.alpha, "a positive number (or None for t times alpha_hat)")
        wanted = "a positive number: the share of alpha_hat, at which all models are one"
        require(0 < self.t < float("inf"), "t", self.t, wanted)
        check_graph(self.graph, self.num_neighbors, self.share)

    def strength(self, threshold: Array) -> Array:
        """alpha as it was given, or as a share of the threshold."""
        return self.t * threshold if self.alpha is None else jnp.asarray(self.alpha, jnp.float32)

    def num_edges(self, number: int) -> int:
        """How many edges the graph of ``number`` clients has room for."""
        return num_edges(self.graph, number, self.num_neighbors)


class GradientGraph(NamedTuple):
    """What the server learns from everyone's gradients at the global model."""

    edges: Edges
    threshold: Array  # alpha_hat


class PenaltyState(NamedTuple):
    """The penalty alpha sum_e w_e |x_i - x_j|, and what it made of the models."""

    edges: Edges
    threshold: Array
    alpha: Array
    duals: Array  # (m, d) u_e, none longer than alpha w_e
    labels: Array  # (N,) 0, 1, ...


class FusedClusters(NamedTuple):
    """The largest clusters, for newcomers, and a client's own label."""

    models: Array  # (K, d)
    sizes: Array  # (K,), 0 where there is no cluster
    labels: Array  # (K,)
    own: Array
    alpha: Array


def find_graph(part: PartVector, penalty: NormPenalty, norm: str, gradients: Array, heard: Array) -> GradientGraph:
    """The graph among the gradients, and the penalty from which on there is one model."""
    known = heard[:, None]
    middle = jnp.where(known, gradients, 0.0).sum(0) / jnp.maximum(heard.sum(), 1)
    points = jnp.where(known, gradients, middle)
    edges = build_graph(penalty.graph, points, num_neighbors=penalty.num_neighbors, share=penalty.share)
    each = [consensus_threshold(points[:, at], edges) / factor for at, factor in part.blocks(norm)]
    return GradientGraph(edges, jnp.stack(each).max())


def new_penalty(part: PartVector, penalty: NormPenalty, number: int) -> PenaltyState:
    """Nothing found yet: everybody in one cluster."""
    size = penalty.num_edges(number)
    ends, zero = jnp.zeros(size, jnp.int32), jnp.zeros(())
    return PenaltyState(
        edges=Edges(ends, ends, jnp.zeros(size)),
        threshold=zero,
        alpha=zero,
        duals=jnp.zeros((size, part.size)),
        labels=jnp.zeros(number, jnp.int32),
    )


def offer_clusters(own: Array, state: PenaltyState, uid: Array, number: int) -> FusedClusters:
    """The mean models of the ``number`` largest clusters; labels are 0, 1, ..."""
    labels = state.labels
    middle, sizes = cluster_means(own, labels)
    some = jnp.argsort(-sizes, stable=True)[: min(number, len(own))]
    mine = labels[jnp.minimum(uid, len(own) - 1)]
    return FusedClusters(middle[some], sizes[some], some.astype(jnp.int32), mine, state.alpha)


def nearest_cluster(
    part: PartVector, norm: str, graph: str, key: Key, rest: Rest, offer: FusedClusters, data: Data
) -> Array:
    """Which of the offered clusters a newcomer belongs to.

    With the others as they are, on the complete graph it has the model w_k of cluster k in the joint minimum if

        | grad f(w_k) + alpha sum_(l != k) n_l (w_k - w_l) / |w_k - w_l| |  <=  alpha n_k

    n_l being the size of cluster l. Where this holds for no cluster, and on the other graphs, where a newcomer's neighbors
    are not known, it is the cluster of the least loss.
    """
    weights = jax.vmap(lambda vector: part.put(vector, rest))(offer.models)
    losses = jnp.where(offer.sizes > 0, losses_of(part.model, weights, data), jnp.inf)
    if graph != "complete":
        return losses.argmin()
    gradients = jax.vmap(lambda each: part.gradient(key, each, data))(weights)
    fits = offer.sizes > 0
    for at, factor in part.blocks(norm):
        force, reach = _forces(offer.models[:, at], offer.sizes)
        alpha = offer.alpha * factor
        fits &= jnp.linalg.norm(gradients[:, at] + alpha * force, axis=1) <= alpha * reach
    return jnp.where(fits.any(), fits.argmax(), losses.argmin())


def _forces(models: Array, sizes: Array) -> tuple[Array, Array]:
    """For each of some models: the sum of the forces of the others, and the weight of those that are the same."""
    apart = models[:, None] - models[None]
    length = jnp.sqrt(jnp.square(apart).sum(-1))
    same = length <= FUSED * jnp.sqrt(jnp.square(models).sum(-1)).max()
    force = jnp.where(same[..., None], 0.0, apart / jnp.maximum(length, 1e-30)[..., None])
    return (sizes[None, :, None] * force).sum(1), (sizes * same).sum(1)


class DualEvidence(NamedTuple):
    """Models, the gradients of the f_i there, and duals of edges, none longer than alpha w_e."""

    models: Array  # (N, d)
    gradients: Array  # (N, d)
    duals: Array  # (m, d)
    heard: Array  # (N,)


def certificate(part: PartVector, norm: str, state: PenaltyState, evidence: DualEvidence) -> float:
    """A bound on how far the objective at the models is above its minimum, if the f_i are mu-strongly convex:

    sum_e [ alpha w_e |x_i - x_j| - <u_e, x_i - x_j> ]  +  sum_i |grad f_i(x_i) + sum_e u_e|^2 / (2 mu)
    """
    models, gradients, duals, heard = evidence
    heads, tails, weights = state.edges
    differences = models[heads] - models[tails]
    slack = -(duals * differences).sum()
    for at, factor in part.blocks(norm):
        slack += state.alpha * factor * (weights * jnp.linalg.norm(differences[:, at], axis=1)).sum()
    residual = gradients + jnp.zeros_like(gradients).at[heads].add(duals).at[tails].add(-duals)
    curved = jnp.square(residual)[heard].sum() / (2 * max(part.least_curvature(), 1e-30))
    return float(jnp.maximum(slack, 0.0) + curved)


def summary(
    state: PenaltyState,
    rounds: int,
    residual: float,
    gap: float | None,
    *,
    what: str = "fixed-point residual",
    also: Sequence[str] = (),
) -> str:
    """The clustering in a line."""
    sizes = sorted(jnp.bincount(state.labels).tolist(), reverse=True)
    alpha, threshold = float(state.alpha), float(state.threshold)
    share = f", t {alpha / threshold:.3g}" if threshold > 0 else ""
    shown = ", ".join(str(size) for size in sizes[:8]) + (", ..." if len(sizes) > 8 else "")
    said = [
        f"alpha {alpha:.4g} (alpha_hat {threshold:.4g}{share})",
        f"{len(sizes)} clusters of {shown} clients" if len(sizes) > 1 else f"1 cluster of {sizes[0]} clients",
        f"{rounds} rounds",
        f"{what} {residual:.2g}",
    ]
    if gap is None:
        said.append("no certificate: this is only known for convex losses that are solved exactly")
    else:
        said.append(
            f"certificate: at the models that clients sent last the objective is within {gap:.2g} of its minimum"
        )
    if len(state.labels) > 1 and alpha >= threshold:
        one = "this is the global model" if len(sizes) == 1 else "one model for all is where this leads"
        said.append(f"alpha is above alpha_hat: {one}")
    return "; ".join([*said, *also])


@dataclass(frozen=True, eq=False)
class NormFusion:
    """A sum of norms on models that clients find by ``solver``: its graph and newcomers."""

    penalty: NormPenalty
    solver: ProximalSolver
    norm: str
    num_offered: int

    def after_survey(
        self, main: Method, warm: int, hand_over: Callable[[Key, Any, GradientSurvey], Tree]
    ) -> Method:
        """``main`` after rounds for the global model, and one in which the graph and alpha_hat are found."""
        find = partial(find_graph, self.solver.part, self.penalty, self.norm)
        return after_survey(main, self.solver, warm, find, hand_over)

    def found(self, state: PenaltyState, graph: GradientGraph) -> PenaltyState:
        """The penalty on the graph that was found."""
        strength = self.penalty.strength(graph.threshold)
        return state._replace(edges=graph.edges, threshold=graph.threshold, alpha=strength)

    def choose(self, key: Key, offer: ProximalOffer, data: Data) -> Array:
        """Which of the offered clusters a newcomer belongs to."""
        graph = self.penalty.graph
        return nearest_cluster(self.solver.part, self.norm, graph, key, offer.rest, offer.extra, data)

    def newcomer(self, key: Key, offer: ProximalOffer, data: Data) -> Array:
        """The model of its cluster."""
        return offer.extra.models[self.choose(key, offer, data)]

    def assign(self, offer: ProximalOffer, private: Tree, data: Data) -> Info:
        """A client's cluster."""
        index = self.choose(jax.random.key(0), offer, data)
        return {"cluster": jnp.where(offer.known, offer.extra.own, offer.extra.labels[index])}

    def certificate(self, state: PenaltyState, evidence: DualEvidence) -> float:
        """A bound on how far these models are from the best."""
        return certificate(self.solver.part, self.norm, state, evidence)

    def forecast(self, number: int, group_sizes: Sequence[int]) -> Forecast:
        """What the server's graph takes, and what to do where that is too much."""
        graph, edges, dim = self.penalty.graph, self.penalty.num_edges(number), self.solver.part.size
        # Duals, what they were and what they look ahead to, differences; and distances of all pairs.
        size = 16 * edges * dim + (0 if graph == "complete" else 12 * number**2)
        cost = (
            f"N={number} clients: {edges:,} edges, {bytes_in_words(size)} on the server, {dim:,} numbers each way"
        )
        if size < HEAVY:
            return Forecast(cost)
        sparse = 16 * num_edges("knn", number, self.penalty.num_neighbors) * dim + 12 * number**2
        instead = "cluster a smaller part, such as part='head'"
        if graph != "knn" and sparse < size / 2:
            instead = f"use graph='knn', which needs {bytes_in_words(sparse)}"
        return Forecast(cost, (f"the {graph} graph of {number} clients needs {size / 1e9:.3g} GB: {instead}",))
