"""Flows on a graph with given outflows: the electrical one, found by solving with the Laplacian."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import numpy as np
from scipy.sparse import diags_array
from scipy.sparse.linalg import cg, splu

from plures.solvers.graph import Graph, lengths, means_by
from plures.types import Floats

Solve = Callable[[Floats], Floats]

DENSE, DIRECT = 150, 3_000
"""Up to so many clients the Laplacian is inverted, or factored; beyond them conjugate gradients are tried first."""

TRIAL = 100
"""Conjugate-gradient steps that must do for a large graph. Where they do not, it conducts badly, and factors well."""


def corrected(graph: Graph, u: Floats, ask: Floats) -> Floats:
    """``u`` plus the electrical flow that makes its outflow ``ask``.

    Within each connected part ``ask`` should sum to zero; where it does not, its mean is taken off.
    """
    if not len(graph):
        return u
    potential = solver_of(graph)(ask - graph.outflow(u))
    return u + graph.weight[:, None] * graph.gaps(potential)


def strain(graph: Graph, u: Floats) -> float:
    """The largest |u_e| / w_e: the least alpha at which the flow is allowed."""
    return float((lengths(u) / graph.weight).max()) if len(graph) else 0.0


_SOLVERS: WeakKeyDictionary[Graph, Solve] = WeakKeyDictionary()


def solver_of(graph: Graph) -> Solve:
    """Potentials for outflows, (clients, dim) to (clients, dim); made once for a graph."""
    if graph not in _SOLVERS:
        _SOLVERS[graph] = _made(graph)
    return _SOLVERS[graph]


def _made(graph: Graph) -> Solve:
    if not len(graph):
        return np.zeros_like
    if graph.is_uniform:
        scale = 1.0 / (graph.num * graph.weight[0])
        return lambda ask: scale * (ask - ask.mean(0))
    if graph.num <= DENSE:
        # One over its size between any two of a part makes the Laplacian invertible, and changes nothing for what is centered.
        means = (graph.part[:, None] == graph.part) / np.bincount(graph.part)[graph.part]
        inverse = np.linalg.inv(graph.laplacian.toarray() + means)
        return lambda ask: inverse @ _centered(graph, ask)
    return (_by_gradients(graph) if graph.num > DIRECT else None) or _factored(graph)


def _centered(graph: Graph, ask: Floats) -> Floats:
    return ask - means_by(graph.part, ask)[graph.part]


def _factored(graph: Graph) -> Solve:
    """One client of every part is held at zero, so that the rest is positive definite."""
    held = np.unique(graph.part, return_index=True)[1]
    free = np.setdiff1d(np.arange(graph.num), held)
    inner = graph.laplacian[free][:, free].tocsc()
    factor = splu(inner, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})

    def solve(ask: Floats) -> Floats:
        found = np.zeros_like(ask)
        found[free] = factor.solve(np.ascontiguousarray(_centered(graph, ask)[free]))
        return found

    return solve


def _by_gradients(graph: Graph) -> Solve | None:
    """Conjugate gradients; None where a few steps do not solve for some outflow."""
    scale = diags_array(1.0 / np.maximum(graph.degree, 1e-300))

    def run(column: Floats, most: int) -> tuple[Floats, int]:
        return cg(graph.laplacian, column, rtol=1e-10, atol=0.0, maxiter=most, M=scale)

    trial = _centered(graph, np.cos(np.arange(graph.num, dtype=float))[:, None])
    if run(trial[:, 0], TRIAL)[1]:
        return None
    return lambda ask: np.stack([run(column, 20 * TRIAL)[0] for column in _centered(graph, ask).T], axis=1)
