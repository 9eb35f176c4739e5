"""The flow test: does a group of clients stay together?

FusedPoints clients push on one another along the edges between them. A group with forces b_i (which sum to zero) stays
fused at alpha exactly if there is a flow inside it with outflows b_i and |u_e| <= alpha w_e. Equivalently: convex
clustering of the forces, with the same alpha, puts them all on one spot. Where it does not, its clusters are the
split to make.

    phi  =  the least such alpha  =  max_v  sum_i <b_i, v_i> / sum_e w_e |v_head - v_tail|

Both sides are bracketed: any v gives a lower bound, any flow with the right outflows an upper one. Both come from
alternating projections: flows are shortened to what edges may carry, then corrected to the right outflows by the
electrical flow, whose potentials are the v. Where there is room this ends after a few rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plures.solvers.graph import Graph, Ints, lengths
from plures.solvers.laplacian_flow import corrected, solver_of, strain
from plures.solvers.point_fusion import EVERY, DualAscent, settled, spread, together, within
from plures.types import Floats

HAIR = 1e-9
"""What rounding may do to a bound, relatively."""

FEW = 30
"""Groups up to this size are split by clustering their forces; larger ones are first cut in two."""


@dataclass(frozen=True, eq=False)
class Flow:
    """A flow ``u`` with outflows b, and what is known of phi: ``low <= phi <= high``.

    ``split`` are labels of the parts a group falls into; all 0 where it holds together.
    """

    u: Floats
    low: float
    high: float
    split: Ints
    drift: Floats


def cut_ratio(b: Floats, v: Floats, graph: Graph) -> float:
    """The lower bound on phi that a direction v gives."""
    cost = graph.penalty(v)
    return float(np.vdot(b, v)) / cost if cost > 0 else 0.0


def client_ratios(b: Floats, graph: Graph) -> Floats:
    """(N,) |b_i| / deg_i: what it takes to hold each client; the largest is a lower bound of phi."""
    return np.where(graph.degree > 0, lengths(b) / np.maximum(graph.degree, 1e-300), 0.0)


def alternated(
    b: Floats, graph: Graph, alpha: float, u: Floats, low: float, *, most: int
) -> tuple[Floats, float, float, Floats]:
    """The least strained of the flows that alternating projections find, its strain, a lower bound of phi, and its v.

    It ends when the strain is at most alpha, when the lower bound is above it, or after ``most`` rounds.
    """
    solve, weight = solver_of(graph), graph.weight[:, None]
    best, high, v = u, strain(graph, u), b
    for turn in range(most):
        if high <= alpha or low > alpha * (1 + HAIR):
            break
        # Shortening by a little more than needed ends sooner where there is room; where there is hardly any, by less.
        short = within(u, (1.0 - 0.08 * 0.7 ** (turn // 6)) * alpha * graph.weight)
        v = solve(b - graph.divergence @ short)
        u = short + weight * graph.gaps(v)
        low = max(low, cut_ratio(b, v, graph))
        now = strain(graph, u)
        if now < high:
            best, high = u, now
    return best, high, low, v


def flow_test(
    b: Floats,
    graph: Graph,
    alpha: float,
    *,
    start: Floats | None = None,
    max_steps: int = 5_000,
) -> Flow:
    """Whether a connected group with forces ``b`` stays fused at ``alpha``, and if not how it falls apart."""
    whole, none = np.zeros(len(b), np.int64), np.zeros_like(b)
    first = np.zeros((len(graph), b.shape[1])) if start is None else start
    low, best = float(client_ratios(b, graph).max()), corrected(graph, first, b)
    best, high, low, v = alternated(b, graph, alpha, best, low, most=min(100, max_steps))
    if high <= alpha * (1 + HAIR) or len(b) == 1:
        return Flow(best, low, high, whole, none)
    cut = cut_test(b, v, graph, alpha, best)
    if cut is not None:
        return cut
    room = alpha * graph.weight
    climb = DualAscent(b, np.ones(len(b)), graph, room, within(best, room))
    while climb.steps < max_steps:
        for _ in range(EVERY):
            climb.step()
        gap, v = climb.gap()
        low = max(low, cut_ratio(b, v, graph))
        # The gap is a small part of what moving along v gains: the parts of v are those of the answer.
        if low > alpha * (1 + HAIR) and gap < 1e-4 * float(np.vdot(v, v)):
            break
    found = corrected(graph, climb.u, b)
    high, best = min((high, best), (strain(graph, found), found), key=lambda pair: pair[0])
    if high <= alpha * (1 + HAIR):
        return Flow(best, low, high, whole, none)
    return Flow(best, low, high, together(graph, climb.u, room, v, spread(v)), v)


def cut_test(b: Floats, v: Floats, graph: Graph, alpha: float, u: Floats) -> Flow | None:
    """The quick answer for a large group that falls apart along ``v``; None where no cut shows that it does."""
    sides = best_cut(b, v, graph, alpha) if len(b) > FEW else None
    if sides is None:
        return None
    return Flow(u, alpha * (1 + 2 * HAIR), strain(graph, u), sides, settled(b, sides))


def best_cut(b: Floats, v: Floats, graph: Graph, alpha: float) -> Ints | None:
    """Parts of a group that alpha cannot hold together: |sum of b over a side| > alpha times the weight of the cut.

    Clients are put in a row along the main direction of ``v``, and the row is cut at the best place. A side that does not
    hang together by itself is more than one part.
    """
    main = np.linalg.svd(v - v.mean(0), full_matrices=False)[2][0] if v.shape[1] > 1 else np.ones(1)
    place = np.argsort(np.argsort(v @ main, kind="stable"))
    row = np.empty_like(b)
    row[place] = b
    force = lengths(np.cumsum(row, 0))[:-1]
    one, other = place[graph.head], place[graph.tail]
    first, last = np.minimum(one, other), np.maximum(one, other)
    crossing = np.bincount(first, graph.weight, len(b)) - np.bincount(last, graph.weight, len(b))
    across = np.maximum(np.cumsum(crossing)[:-1], 1e-300)
    cut = int(np.argmax(force / across))
    if force[cut] <= alpha * (1 + 1e-6) * across[cut]:
        return None
    side = place > cut
    return graph.among(side[graph.head] == side[graph.tail]).part


def threshold(b: Floats, graph: Graph, *, tol: float = 1e-5, most: int = 1_000) -> Flow:
    """phi itself, as a bracket of relative width ``tol``; wider if ``most`` rounds came first, as on large graphs."""
    best = corrected(graph, np.zeros((len(graph), b.shape[1])), b)
    low, high, v, made = float(client_ratios(b, graph).max()), strain(graph, best), b, 0
    while high - low > tol * high and made < most:
        middle = low + 0.5 * (high - low)
        found, now, low, v = alternated(b, graph, middle, best, low, most=40)
        made += 40
        if now < high:
            best, high = found, now
    return Flow(best, min(low, high), high, np.zeros(len(b), np.int64), v)
