"""Models fused by a sum of norms on a graph: how the graph is found, who joins later, and what can be said of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures.aggregate.fuse import consensus_threshold
from plures.aggregate.graph import Edges, build_graph, num_edges
from plures.errors import BadValue
from plures.methods._centers import losses_of
from plures.methods._part import Part, Rest
from plures.methods._views import sizes_told
from plures.types import Data, Forecast, Key

HEAVY = 4e9  # bytes for the graph from which on a warning is due
FUSED = 1e-6  # of the length of a cluster's model: nearer ones are the same


class Found(NamedTuple):
    """What the server learns from everyone's slopes at the global model."""

    edges: Edges
    threshold: Array  # alpha_hat


class Fusion(NamedTuple):
    """The penalty alpha sum_e w_e |x_i - x_j|, and what it made of the models."""

    edges: Edges
    threshold: Array
    alpha: Array
    duals: Array  # (m, d) u_e, none longer than alpha w_e
    labels: Array  # (N,) 0, 1, ...


class Offered(NamedTuple):
    """The largest clusters, for newcomers, and a client's own label."""

    models: Array  # (K, d)
    sizes: Array  # (K,), 0 where there is no cluster
    labels: Array  # (K,)
    own: Array
    alpha: Array


def check_strength(alpha: float | None, t: float) -> None:
    """Refuse a penalty that is not a positive number."""
    if alpha is not None and not 0 < alpha < float("inf"):
        raise BadValue("alpha", alpha, "a positive number (or None for t times alpha_hat)")
    if not 0 < t < float("inf"):
        raise BadValue("t", t, "a positive number: the share of alpha_hat, at which all models are one")


def graph_finder(part: Part, graph: str, num_neighbors: int, share: float, norm: str) -> Callable[..., Found]:
    """(slopes, heard) -> the graph among the slopes, and the penalty from which on there is one model."""

    def conclude(slopes: Array, heard: Array) -> Found:
        known = heard[:, None]
        middle = jnp.where(known, slopes, 0.0).sum(0) / jnp.maximum(heard.sum(), 1)
        points = jnp.where(known, slopes, middle)
        edges = build_graph(graph, points, num_neighbors=num_neighbors, share=share)
        each = [consensus_threshold(points[:, at], edges) / factor for at, factor in part.blocks(norm)]
        return Found(edges, jnp.stack(each).max())

    return conclude


def blank_fusion(part: Part, graph: str, number: int, num_neighbors: int) -> Fusion:
    """Nothing found yet: everybody in one cluster."""
    size = num_edges(graph, number, num_neighbors)
    ends = jnp.zeros(size, jnp.int32)
    zero = jnp.zeros(())
    return Fusion(
        Edges(ends, ends, jnp.zeros(size)), zero, zero, jnp.zeros((size, part.size)), jnp.zeros(number, jnp.int32)
    )


def strength(alpha: float | None, t: float, threshold: Array) -> Array:
    """alpha as it was given, or as a share of the threshold."""
    return t * threshold if alpha is None else jnp.asarray(alpha, jnp.float32)


def offered(own: Array, fusion: Fusion, uid: Array, number: int) -> Offered:
    """The mean models of the ``number`` largest clusters; labels are 0, 1, ..."""
    labels = fusion.labels
    sizes = jnp.zeros(len(own)).at[labels].add(1.0)
    middle = jnp.zeros_like(own).at[labels].add(own) / jnp.maximum(sizes, 1)[:, None]
    some = jnp.argsort(-sizes, stable=True)[: min(number, len(own))]
    mine = labels[jnp.minimum(uid, len(own) - 1)]
    return Offered(middle[some], sizes[some], some.astype(jnp.int32), mine, fusion.alpha)


def nearest_cluster(part: Part, norm: str, graph: str, key: Key, rest: Rest, given: Offered, data: Data) -> Array:
    """Which of the offered clusters a newcomer belongs to.

    With the others as they are, on the complete graph it has the model w_k of cluster k in the joint minimum if

        | grad f(w_k) + alpha sum_(l != k) n_l (w_k - w_l) / |w_k - w_l| |  <=  alpha n_k

    n_l being the size of cluster l. Where this holds for no cluster, and on the other graphs, where a newcomer's neighbors
    are not known, it is the cluster of the least loss.
    """
    weights = jax.vmap(lambda vector: part.put(vector, rest))(given.models)
    losses = jnp.where(given.sizes > 0, losses_of(part.model, weights, data), jnp.inf)
    if graph != "complete":
        return losses.argmin()
    slopes = jax.vmap(lambda one: part.slope(key, one, data))(weights)
    fits = given.sizes > 0
    for at, factor in part.blocks(norm):
        force, reach = _forces(given.models[:, at], given.sizes)
        alpha = given.alpha * factor
        fits &= jnp.linalg.norm(slopes[:, at] + alpha * force, axis=1) <= alpha * reach
    return jnp.where(fits.any(), fits.argmax(), losses.argmin())


def _forces(models: Array, sizes: Array) -> tuple[Array, Array]:
    """For each of some models: how the others pull at it, and the weight of those that are the same."""
    apart = models[:, None] - models[None]
    length = jnp.sqrt(jnp.square(apart).sum(-1))
    same = length <= FUSED * jnp.sqrt(jnp.square(models).sum(-1)).max()
    pull = jnp.where(same[..., None], 0.0, apart / jnp.maximum(length, 1e-30)[..., None])
    return (sizes[None, :, None] * pull).sum(1), (sizes * same).sum(1)


class Evidence(NamedTuple):
    """Models, the gradients of the f_i there, and duals of edges, none longer than alpha w_e."""

    models: Array  # (N, d)
    slopes: Array  # (N, d)
    duals: Array  # (m, d)
    heard: Array  # (N,)


def certificate(part: Part, norm: str, fusion: Fusion, given: Evidence) -> float:
    """A bound on how far the objective at the models is above its minimum, if the f_i are mu-strongly convex:

    sum_e [ alpha w_e |x_i - x_j| - <u_e, x_i - x_j> ]  +  sum_i |grad f_i(x_i) + sum_e u_e|^2 / (2 mu)
    """
    heads, tails, weights = fusion.edges
    apart = given.models[heads] - given.models[tails]
    loose = -(given.duals * apart).sum()
    for at, factor in part.blocks(norm):
        loose += fusion.alpha * factor * (weights * jnp.linalg.norm(apart[:, at], axis=1)).sum()
    rest = given.slopes + jnp.zeros_like(given.slopes).at[heads].add(given.duals).at[tails].add(-given.duals)
    bent = jnp.square(rest)[given.heard].sum() / (2 * max(part.curvature(), 1e-30))
    return float(jnp.maximum(loose, 0.0) + bent)


def summary(
    fusion: Fusion,
    rounds: int,
    residual: float,
    gap: float | None,
    *,
    what: str = "fixed-point residual",
    also: Sequence[str] = (),
) -> str:
    """The clustering in a line."""
    sizes = sorted(jnp.bincount(fusion.labels).tolist(), reverse=True)
    alpha, threshold = float(fusion.alpha), float(fusion.threshold)
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
    if len(fusion.labels) > 1 and alpha >= threshold:
        one = "this is the global model" if len(sizes) == 1 else "one model for all is where this leads"
        said.append(f"alpha is above alpha_hat: {one}")
    return "; ".join([*said, *also])


def graph_forecast(part: Part, graph: str, num_neighbors: int, number: int) -> Forecast:
    """What the server's graph takes, and what to do where that is too much."""
    edges = num_edges(graph, number, num_neighbors)
    # Duals, what they were and what they look ahead to, differences; and distances of all pairs.
    pairs = 0 if graph == "complete" else 12 * number**2
    size = 16 * edges * part.size + pairs
    cost = f"N={number} clients: {edges:,} edges, {sizes_told(size)} on the server, {part.size:,} numbers each way"
    if size < HEAVY:
        return Forecast(cost)
    sparse = 16 * num_edges("knn", number, num_neighbors) * part.size + 12 * number**2
    instead = "cluster a smaller part, such as part='head'"
    if graph != "knn" and sparse < size / 2:
        instead = f"use graph='knn', which needs {sizes_told(sparse)}"
    return Forecast(cost, (f"the {graph} graph of {number} clients needs {size / 1e9:.3g} GB: {instead}",))
