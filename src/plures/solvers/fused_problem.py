"""The exact solution of one problem: guess a partition, solve for one model per cluster, prove it; else split or fuse.

    Phi(x)  =  sum_i f_i(x_i)  +  alpha sum_e w_e |x_head - x_tail|

A guess is tried first (the clusters at the last alpha, say). Models of a partition come from Newton's method; clusters
that meet on the way are fused, clusters whose flow test fails are split where it says. If that does not settle after
a few tries, norms are rounded off (``plures.solvers.newton``) or, for large problems, Douglas-Rachford rounds are made; both
show a partition, which is then solved and proved as before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from plures.errors import BadData, BadValue
from plures.solvers.certificate import QUICK, Certificate, certify, gap_bound, objective, true_gap
from plures.solvers.clients import Clients
from plures.solvers.flow import Flow
from plures.solvers.graph import Graph, Ints, lengths, means_by
from plures.solvers.newton import centered
from plures.solvers.partition import Partition, Reduced, guess_partition
from plures.solvers.point_fusion import within
from plures.solvers.splitting import SplittingRun, douglas_rachford
from plures.types import Floats

SMOOTH = 2_000
"""Up to so many unknowns the rounded problem of all clients is solved; beyond, Douglas-Rachford rounds are made."""

MOST_ROUNDS = 3_000
"""Up to so many clients there is another way where splitting and fusing does not settle; beyond, that would take minutes."""

MOST_TRIES = 12
"""Splits and fusions tried before another way is taken."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Clients, the graph between them, and alpha."""

    clients: Clients
    graph: Graph
    alpha: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise BadValue("alpha", self.alpha, "a positive number; 0 is every client by itself")
        if self.graph.num != self.clients.num:
            raise BadData(f"the graph is for {self.graph.num} clients, there are {self.clients.num}")


@dataclass(frozen=True, eq=False)
class Solution:
    """One model per cluster (K, dim), everybody's ``label``, the objective's value and what proves it.

    ``rounds`` counts exchanges with the clients: a gradient (and curvature) each. ``how`` names the way that led here.
    """

    partition: Partition
    models: Floats
    value: float
    certificate: Certificate
    rounds: int
    how: str

    @property
    def label(self) -> Ints:
        """(N,) the cluster of each client."""
        return self.partition.label

    @property
    def x(self) -> Floats:
        """(N, dim) everybody's model."""
        return self.models[self.label]

    @property
    def num_clusters(self) -> int:
        """How many different models there are."""
        return len(self.models)

    @property
    def sizes(self) -> Ints:
        """(K,) clients of each cluster."""
        return np.bincount(self.label, minlength=len(self.models))


def tidy(label: Ints) -> Ints:
    """Labels renamed to 0, 1, .. in the order in which they first appear."""
    _, first, place = np.unique(label, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[place].astype(np.int64)


def connected(graph: Graph, label: Ints) -> Ints:
    """Labels of groups that hang together: what is fused is fused along edges."""
    if graph.is_uniform:
        return label
    return tidy(graph.among(label[graph.head] == label[graph.tail]).part)


def solve(
    problem: Problem,
    *,
    guess: Ints | None = None,
    start: Floats | None = None,
    duals: Floats | None = None,
) -> Solution:
    """The solution at ``problem.alpha``; ``guess`` are labels to try, ``start`` models (N, dim) to start from.

    Without a guess the global model is found first: it is the solution where alpha is large, and else the clients'
    gradients there say who may belong together.
    """
    clients, before = problem.clients, 0
    start = np.zeros((clients.num, clients.dim)) if start is None else start
    if guess is None:
        whole = Partition(clients, problem.graph, np.zeros(clients.num, np.int64))
        together = fuse_and_split(problem, whole, start.mean(0)[None], search=QUICK, tries=1)
        if together.certificate.exact:
            return together
        start, before = together.x, together.rounds
        guess = guess_partition(clients.gradient(start))
    first = Partition(clients, problem.graph, connected(problem.graph, tidy(guess)))
    found = fuse_and_split(problem, first, means_by(first.label, start), duals=duals)
    if found.certificate.exact:
        return replace(found, rounds=before + found.rounds)
    if clients.num > MOST_ROUNDS:
        kept = SplittingRun(found.x, found.certificate.u, found.label, before + found.rounds)
        return replace(_unproved(problem, kept, found), rounds=kept.rounds, how="fuse and split, not closed")
    other, how = _discovered(problem, found)
    shown = Partition(clients, problem.graph, other.label)
    again = fuse_and_split(problem, shown, means_by(other.label, other.x), duals=other.u, tries=3)
    rounds = before + found.rounds + other.rounds + again.rounds
    if again.certificate.exact:
        return replace(again, rounds=rounds, how=how)
    return replace(_unproved(problem, other, again, found), rounds=rounds, how=f"{how}, not closed")


def fuse_and_split(
    problem: Problem,
    first: Partition,
    start: Floats,
    *,
    duals: Floats | None = None,
    search: int = 2_000,
    tries: int = MOST_TRIES,
) -> Solution:
    """The best that splitting and fusing reaches from a partition; ``start`` are models of its groups (K, dim)."""
    alpha, partition, w, rounds, best = problem.alpha, first, start, 0, None
    seen: set[bytes] = set()
    for _ in range(tries):
        partition, w, made = models_of(problem, partition, w)
        certificate, tests = certify(partition, alpha, w, start=duals, search=search)
        rounds += made + 1
        duals = certificate.u
        value = objective(problem.clients, problem.graph, alpha, w[partition.label])
        now = Solution(partition, w, value, certificate, rounds, "fuse and split")
        best = now if best is None or now.value < best.value or now.certificate.exact else best
        state = partition.label.tobytes()
        if certificate.exact or state in seen or bool(certificate.held.all()):
            break
        seen.add(state)
        label, w = _parted(partition.label, w, tests, certificate)
        if label is None:
            break
        partition = Partition(problem.clients, problem.graph, label)
    assert best is not None
    return replace(best, rounds=rounds)


def models_of(problem: Problem, partition: Partition, w: Floats) -> tuple[Partition, Floats, int]:
    """The partition's own solution; clusters that meet there are one afterwards.

    Newton's method stops where two models come near. Whether they meet, or only pass, is seen with rounded norms.
    """
    rounds, sure = 0, False
    while True:
        small = partition.at(problem.alpha)
        found = centered(small, _nudged(w, small), careful=not sure)
        rounds += found.steps
        if not len(found.met):
            return partition, found.w, rounds
        shown = rounded(small, found.w, reach=1e-2)
        rounds += shown.rounds
        w, sure = shown.x, int(shown.label.max()) + 1 == len(shown.x)
        if not sure:
            w = means_by(shown.label, shown.x, small.groups.size)
            partition = Partition(problem.clients, problem.graph, shown.label[partition.label])


def _nudged(w: Floats, small: Reduced) -> Floats:
    """Models that lie on one spot are moved apart by a hair, along their own gradients: at the kink there is no Newton step."""
    if not len(small.ties) or lengths(small.ties.gaps(w)).min() > 0:
        return w
    curvature = small.groups.expand(w)
    step = np.linalg.solve(curvature.curvature + 1e-12 * np.eye(w.shape[1]), curvature.gradient[..., None])[..., 0]
    size = max(float(np.abs(step).max()), 1e-300)
    return w - 1e-3 * max(float(np.abs(w).max()), 1.0) * step / size


def _parted(
    label: Ints, w: Floats, tests: list[Flow | None], certificate: Certificate
) -> tuple[Ints | None, Floats]:
    """Labels and models after the clusters that fail were split; None where no test says how."""
    new, models = label.copy(), list(w)
    for k, test in enumerate(tests):
        if test is None or certificate.held[k] or test.split.max() == 0:
            continue
        away = means_by(test.split, test.drift)
        reach = 1e-3 * max(float(np.abs(w).max()), 1e-3) / max(float(np.abs(away).max()), 1e-300)
        new[label == k] = np.where(test.split == 0, k, len(models) + test.split - 1)
        models[k], *more = w[k] + reach * away
        models += more
    if len(models) == len(w):
        return None, w
    return new, np.stack(models)


def _discovered(problem: Problem, found: Solution) -> tuple[SplittingRun, str]:
    """What an approximate method shows, and its name."""
    clients, graph = problem.clients, problem.graph
    if clients.num * clients.dim <= SMOOTH:
        everyone = Partition(clients, graph, np.arange(clients.num)).at(problem.alpha)
        return rounded(everyone, found.x), "rounded norms"
    run = douglas_rachford(clients, graph, problem.alpha, start=found.x, rounds=200, tol=1e-7)
    return run, "Douglas-Rachford"


def rounded(small: Reduced, start: Floats, *, reach: float = 1.0) -> SplittingRun:
    """The solution with rounded norms, rounded off less and less, and who is fused in it.

    It begins with ``reach`` times the size of the models and ends with a billionth of it.
    """
    size = _size(small, start)
    w, rounds, eps, ties = start, 0, reach * size, small.ties
    while True:
        found = centered(small, w, eps=eps, tol=1e-7 if eps > 1e-8 * size else 1e-11, most=25)
        w, rounds = found.w, rounds + found.steps
        if eps <= 1e-9 * size:
            break
        eps *= 0.1
    # A flow well below what an edge may carry goes with a distance of a few eps: fused.
    fused = lengths(found.u) < (1.0 - 1e-6) * small.alpha * ties.weight
    return SplittingRun(w, found.u, ties.among(fused).part, rounds)


def _size(small: Reduced, models: Floats) -> float:
    """How far models are apart; where they are all zero and say nothing of it, how far each would step by itself."""
    size = max(float(np.abs(models - models.mean(0)).max()), 1e-3 * float(np.abs(models).max()))
    if size < 1e-6:
        _, gradient, curvature = small.groups.expand(models)
        size = float(np.abs(np.einsum("kij,kj->ki", np.linalg.pinv(curvature, hermitian=True), gradient)).max())
    return max(size, 1e-6)


def _unproved(problem: Problem, shown: SplittingRun, *others: Solution) -> Solution:
    """The best answer at hand with the gap that can be shown for it."""
    clients, graph, alpha = problem.clients, problem.graph, problem.alpha
    labels = [shown.label, np.arange(clients.num), *(one.label for one in others)]
    models = [means_by(shown.label, shown.x), shown.x, *(one.models for one in others)]
    values = [objective(clients, graph, alpha, own[label]) for own, label in zip(models, labels, strict=True)]
    # What is fused is preferred, unless it costs more than rounding does.
    best = int(np.argmin(np.array(values) + np.where(np.arange(len(values)) == 1, 1e-12 * np.abs(values), 0.0)))
    value, label, w = values[best], labels[best], models[best]
    x = w[label]
    u = within(shown.u, alpha * graph.weight)
    gap = gap_bound(clients, graph, alpha, x, u)
    if gap > 1e-6 * abs(value):
        gap = max(min(gap, true_gap(clients, graph, alpha, x, u)), 0.0)
    zero, many = np.zeros(len(w)), np.full(len(w), np.inf)
    proof = Certificate(alpha, u, gap, zero, many, False)
    return Solution(Partition(clients, graph, label), w, value, proof, 0, "")
