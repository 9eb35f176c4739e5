"""Graphs among clients as edge lists of a static length: complete, nearest neighbors, and mixtures of both.

An edge of weight 0 is not there: lists have as much room as a graph of their kind can need. The weights of a graph
add up to N (N - 1) / 2, as those of the complete graph do, so that a penalty on edges keeps its unit.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures.aggregate.points import squared_distances
from plures.errors import require, require_choice, require_least

GRAPHS = ("knn", "complete", "mixture")


class Edges(NamedTuple):
    """Room for m edges, each between a head and a tail; of weight 0 where there is none."""

    heads: Array  # (m,)
    tails: Array  # (m,)
    weights: Array  # (m,)


def check_graph(name: str, num_neighbors: int, share: float) -> None:
    """Refuse a graph that there is not, and numbers that make none."""
    require_choice("graph", name, GRAPHS)
    require_least(1, num_neighbors=num_neighbors)
    require(0 <= share <= 1, "share", share, "a number in [0, 1]")


def num_edges(name: str, number: int, num_neighbors: int) -> int:
    """How many edges there must be room for in such a graph of ``number`` points."""
    if number == 1:
        return 1
    if name == "knn":
        return number * min(num_neighbors, number - 1) + number - 1
    return number * (number - 1) // 2


def build_graph(name: str, points: Array, *, num_neighbors: int, share: float = 0.1) -> Edges:
    """The graph of that name among the rows of (N, d) ``points``; ``share`` is the complete graph's in a mixture."""
    if name == "complete":
        return complete_graph(len(points))
    if name == "knn":
        return neighbor_graph(points, num_neighbors)
    return mixed_graph(points, num_neighbors, share)


def complete_graph(number: int) -> Edges:
    """All pairs, of weight 1.

    >>> complete_graph(3).heads.tolist(), complete_graph(3).tails.tolist()
    ([0, 0, 1], [1, 2, 2])
    """
    if number == 1:  # no edge at all; a list has room for one at least
        return Edges(jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32), jnp.zeros(1))
    heads, tails = np.triu_indices(number, 1)
    return Edges(jnp.asarray(heads, jnp.int32), jnp.asarray(tails, jnp.int32), jnp.ones(len(heads)))


def neighbor_graph(points: Array, num_neighbors: int) -> Edges:
    """Every point with its nearest neighbors, and the links of a minimum spanning tree: it is connected.

    Two points are linked if one of them is among the ``num_neighbors`` nearest of the other. All edges weigh the same.
    """
    number = len(points)
    if number == 1:
        return complete_graph(1)
    near, heads, tails = _nearest(points, num_neighbors)
    once = (heads < tails) | ~near[tails, heads]
    links = _spanning_tree(squared_distances(points, jnp.ones(number, bool)))
    new = ~(near[links] | near[links[::-1]])
    weights = jnp.concatenate([once, new]).astype(jnp.float32)
    return Edges(jnp.append(heads, links[0]), jnp.append(tails, links[1]), _to_unit(weights, number))


def mixed_graph(points: Array, num_neighbors: int, share: float) -> Edges:
    """(1 - share) times the graph of neighbors plus ``share`` times the complete graph."""
    number = len(points)
    every, few = complete_graph(number), neighbor_graph(points, num_neighbors)
    table = jnp.zeros((number, number)).at[few.heads, few.tails].add(few.weights)
    table = table + table.T
    return every._replace(weights=(1 - share) * table[every.heads, every.tails] + share * every.weights)


def degrees(edges: Edges, number: int, *, weighted: bool = True) -> Array:
    """(N,) the sum of the weights at every point, or how many edges it has."""
    weights = edges.weights if weighted else (edges.weights > 0).astype(jnp.float32)
    return jnp.zeros(number).at[edges.heads].add(weights).at[edges.tails].add(weights)


def components(edges: Edges, linked: Array, number: int) -> Array:
    """(N,) the least number among the points that each is connected with by ``linked`` edges."""

    def spread(state: tuple[Array, Array]) -> tuple[Array, Array]:
        labels, _ = state
        there, back = (jnp.where(linked, labels[ends], number) for ends in (edges.tails, edges.heads))
        new = labels.at[edges.heads].min(there).at[edges.tails].min(back)
        new = new[new]  # whoever I am called after has found a lower name in the meantime
        return new, (new != labels).any()

    first = (jnp.arange(number, dtype=jnp.int32), jnp.asarray(True))
    return jax.lax.while_loop(lambda state: state[1], spread, first)[0]


def numbered(labels: Array) -> Array:
    """Labels that are members' own numbers, as 0, 1, ... in the order of these."""
    first = labels == jnp.arange(len(labels))
    return (jnp.cumsum(first) - 1)[labels].astype(jnp.int32)


def cluster_means(points: Array, labels: Array) -> tuple[Array, Array]:
    """(N, d) the mean of the points of every label, and (N,) how many they are; zeros for labels that nobody has."""
    sizes = jnp.zeros(len(points)).at[labels].add(1.0)
    return jnp.zeros_like(points).at[labels].add(points) / jnp.maximum(sizes, 1)[:, None], sizes


def _nearest(points: Array, num_neighbors: int) -> tuple[Array, Array, Array]:
    """(N, N) who is among the nearest of whom, and the same as heads and tails."""
    number = len(points)
    most = min(num_neighbors, number - 1)
    squares = squared_distances(points, jnp.ones(number, bool))
    apart = jnp.where(np.eye(number, dtype=bool), jnp.inf, squares)
    tails = jax.lax.top_k(-apart, most)[1].reshape(-1).astype(jnp.int32)
    heads = jnp.repeat(jnp.arange(number, dtype=jnp.int32), most, total_repeat_length=number * most)
    return jnp.zeros((number, number), bool).at[heads, tails].set(True), heads, tails


def _spanning_tree(squares: Array) -> tuple[Array, Array]:
    """The N - 1 links of a minimum spanning tree, by Prim's algorithm on all distances."""
    number = len(squares)

    def add(index: Array, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        reach, parent, heads, tails = state
        new = reach.argmin().astype(jnp.int32)
        heads, tails = heads.at[index].set(parent[new]), tails.at[index].set(new)
        nearer = (squares[new] < reach) & jnp.isfinite(reach)  # who is in the tree is out of reach
        parent = jnp.where(nearer, new, parent)
        return jnp.where(nearer, squares[new], reach).at[new].set(jnp.inf), parent, heads, tails

    nobody = jnp.zeros(number - 1, jnp.int32)
    first = (squares[0].at[0].set(jnp.inf), jnp.zeros(number, jnp.int32), nobody, nobody)
    return jax.lax.fori_loop(0, number - 1, add, first)[2:]


def _to_unit(weights: Array, number: int) -> Array:
    return weights * (number * (number - 1) / 2) / jnp.maximum(weights.sum(), 1e-30)
