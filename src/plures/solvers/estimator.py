"""Personal models fused by a sum of norms: fit one strength or a whole path, with proof.

    min  sum_i f_i(x_i)  +  alpha sum_{i<j} w_ij |x_i - x_j|

    fitted = convex_clustering(loss="logistic").fit(tables, targets)
    fitted.models, fitted.label, fitted.certificate, fitted.alpha_hat, fitted.path

Armacki, Bajovic, Jakovetic, Kar: Personalized Federated Learning via Convex Clustering, arXiv 2202.00718. The solver, the flow
test and the certificates are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from plures.errors import BadData, BadValue, UnknownChoice
from plures.solvers.certificate import Certificate, flow_margins
from plures.solvers.clients import Clients, as_clients
from plures.solvers.fused_problem import Problem, Solution, solve
from plures.solvers.graph import Graph, Ints, check_room, check_whole, complete, mixed, nearest, sketched
from plures.solvers.interval import AlphaInterval, certified_interval
from plures.solvers.losses import LinearLoss
from plures.solvers.newcomer import PlacedNewcomer, as_table, place_newcomer
from plures.solvers.partition import Partition
from plures.solvers.path import CRITERIA, ClusterPath, Consensus, Tell, by_hold_out, consensus, follow, grid
from plures.solvers.prox import own_best
from plures.solvers.scalings import FACTORS, to_alpha
from plures.types import Floats

GRAPHS = ("knn", "complete", "mixture")


@dataclass(frozen=True, kw_only=True)
class ConvexClustering:
    """How to fuse; ``fit`` and ``fit_path`` take one table and one list of targets per client.

    ``lam`` is "auto", or a number in the unit ``scaling``: "t" (alpha over alpha_hat), "alpha", or one of the paper's
    (``plures.solvers.FACTORS``). "auto" follows a path of ``num_lams`` strengths down to ``least`` times alpha_hat and takes
    the one that ``select`` likes: "bic", "plateau" or "hold-out"; it ends sooner where there are more clusters than half
    the clients, or their models are more than ``most_numbers`` numbers. ``graph`` is "knn" (neighbors by gradients at the global
    model, ``sketch`` numbers of each if given), "complete", "mixture" (``theta`` of the complete one) or a ``Graph``.
    With "hold-out" the graph and the strengths come from all rows, and only models are trained without the held-out ones.
    ``weighting="examples"`` counts a client by its rows. ``refit="cluster"`` trains every cluster found by itself.
    """

    loss: str | LinearLoss = "logistic"
    ridge: float = 1e-3
    intercept: bool = True
    intercept_ridge: float | None = None
    lam: float | str = "auto"
    scaling: str = "t"
    select: str = "bic"
    graph: str | Graph = "knn"
    num_neighbors: int = 5
    theta: float = 0.1
    sketch: int | None = None
    num_lams: int = 30
    least: float = 0.01
    most_numbers: int = 1_500
    weighting: str = "clients"
    refit: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.lam, str):
            if self.lam != "auto":
                raise BadValue("lam", self.lam, '"auto" or a positive number')
        elif not isinstance(self.lam, int | float) or not 0 < self.lam < np.inf:
            raise BadValue("lam", self.lam, '"auto" or a positive number; 0 is every client by itself')
        for kind, given, known in (
            ("selector", self.select, (*CRITERIA, "hold-out")),
            ("scaling", self.scaling, ("t", *FACTORS)),
            ("weighting", self.weighting, ("clients", "examples")),
            ("refit", self.refit, ("none", "cluster")),
            ("graph", GRAPHS[0] if isinstance(self.graph, Graph) else str(self.graph), GRAPHS),
        ):
            if given not in known:
                raise UnknownChoice(kind, given, known)

    def fit(self, x: Sequence[ArrayLike], y: Sequence[ArrayLike], *, tell: Tell | None = None) -> Fitted:
        """The fused models at ``lam``."""
        # Matrices are small here: threads of the linear algebra wait for one another longer than they work.
        with threadpool_limits(1, user_api="blas"):
            return self._fit(self._clients(x, y), tell)

    def _fit(self, clients: Clients, tell: Tell | None) -> Fitted:
        graph, start = self._graph(clients)
        if self.lam == "auto" and clients.num > 1 and start.alpha_hat > 0:
            path, step = self._path(clients, graph, start, tell)
            return self._fitted(clients, graph, start, path.solutions[step], path)
        # A client alone, or clients who agree, are fused at any strength.
        alpha = 0.0 if self.lam == "auto" else self._alpha(start.alpha_hat, clients.num)
        problem = Problem(clients, graph, alpha or 1.0)
        if problem.alpha < start.alpha_hat:
            return self._fitted(clients, graph, start, solve(problem), None)
        everyone = np.broadcast_to(start.model, (clients.num, clients.dim))
        found = solve(problem, guess=np.zeros(clients.num, np.int64), start=everyone, duals=start.flow)
        return self._fitted(clients, graph, start, found, None)

    def fit_path(self, x: Sequence[ArrayLike], y: Sequence[ArrayLike], *, tell: Tell | None = None) -> Fitted:
        """The whole path, and of it the strength that ``select`` likes."""
        return replace(self, lam="auto").fit(x, y, tell=tell)

    def _path(self, clients: Clients, graph: Graph, start: Consensus, tell: Tell | None) -> tuple[ClusterPath, int]:
        """The path, and the step of it that ``select`` likes."""
        alphas = grid(start.alpha_hat, self.num_lams, self.least)
        most = max(2, min(clients.num // 2, self.most_numbers // clients.dim))
        path = ClusterPath(follow(clients, graph, alphas, start, most=most, tell=tell), start.alpha_hat)
        if self.select in CRITERIA:
            return path, CRITERIA[self.select](path, clients)
        kept, held = _held_out(clients, self.seed)
        again = follow(kept, graph, alphas[: len(path.solutions)], consensus(kept), tell=tell)
        return path, by_hold_out(again, held)

    def _clients(self, x: Sequence[ArrayLike], y: Sequence[ArrayLike]) -> Clients:
        clients = as_clients(
            x, y, loss=self.loss, ridge=self.ridge, intercept=self.intercept, intercept_ridge=self.intercept_ridge
        )
        by_rows = self.weighting == "examples"
        return clients.weighted(clients.counts / clients.counts.mean()) if by_rows else clients

    def _graph(self, clients: Clients) -> tuple[Graph, Consensus]:
        """The graph, and the consensus on it."""
        num, dim = clients.num, clients.dim
        if isinstance(self.graph, Graph):
            if self.graph.num != num:
                raise BadData(f"the graph is for {self.graph.num} clients, there are {num}")
            check_whole(self.graph)
            return self.graph, consensus(clients, self.graph)
        if self.graph != "knn":
            check_room(num * (num - 1) // 2, dim)
        if self.graph == "complete" or num <= 2:
            graph = complete(num)
            return graph, consensus(clients, graph)
        gradients = consensus(clients).gradients
        if self.sketch is not None:
            gradients = sketched(jax.random.key(self.seed), gradients, self.sketch)
        graph = nearest(gradients, self.num_neighbors)
        graph = mixed(graph, self.theta) if self.graph == "mixture" else graph
        return graph, consensus(clients, graph)

    def _alpha(self, alpha_hat: float, num: int) -> float:
        lam = float(self.lam)
        return lam * alpha_hat if self.scaling == "t" else to_alpha(lam, self.scaling, num)

    def _fitted(
        self, clients: Clients, graph: Graph, start: Consensus, found: Solution, path: ClusterPath | None
    ) -> Fitted:
        models = found.models if self.refit == "none" else alone(found.partition, found.models)
        whole = self.theta if self.graph == "mixture" else 0.0
        if graph.is_uniform:
            whole = float(graph.weight[0]) if len(graph) else 1.0
        return Fitted(clients, graph, start, found, models, path, self, whole)


def convex_clustering(**options: object) -> ConvexClustering:
    """How to fuse personal models: see ``ConvexClustering`` for the options, then ``fit`` or ``fit_path``."""
    return ConvexClustering(**options)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Fitted:
    """FusedPoints models and what is known of them.

    ``models`` (K, dim) and ``label`` (N,); ``solution`` has the exact answer of the problem, which differs from
    ``models`` after a refit; ``path`` is there where one was followed.
    """

    clients: Clients
    graph: Graph
    consensus: Consensus
    solution: Solution
    models: Floats
    path: ClusterPath | None
    how: ConvexClustering
    theta: float  # the weight of edges that everybody has to everybody

    @property
    def label(self) -> Ints:
        """(N,) the cluster of each client."""
        return self.solution.label

    @property
    def certificate(self) -> Certificate:
        """What proves the answer."""
        return self.solution.certificate

    @property
    def alpha(self) -> float:
        """The strength of the penalty."""
        return self.certificate.alpha

    @property
    def alpha_hat(self) -> float:
        """The least alpha at which everybody shares the global model."""
        return self.consensus.alpha_hat

    @property
    def t(self) -> float:
        """alpha over alpha_hat."""
        return self.alpha / self.alpha_hat if self.alpha_hat else np.inf

    @property
    def rounds(self) -> int:
        """Newton steps and flow tests, of the whole path where one was followed."""
        return self.solution.rounds if self.path is None else sum(one.rounds for one in self.path.solutions)

    def _threshold(self) -> str:
        """alpha_hat, with its bracket where that is wide."""
        low, high = self.consensus.low, self.alpha_hat
        return f"{high:.6g}" if high - low <= 1e-3 * high else f"between {low:.4g} and {high:.4g}"

    @cached_property
    def margins(self) -> Floats:
        """(K,) alpha - phi_k: how much weaker the penalty could be before each cluster falls apart, its model staying.

        A lower bound, within a thousandth of phi where the search for the best flow ends in time. Infinite for a
        cluster of one client.
        """
        return flow_margins(self.solution.partition, self.alpha, self.solution.models, self.certificate.high)

    def interval(self) -> AlphaInterval | None:
        """The alphas around this one for which the partition is the solution's; None where it is not proved here."""
        found = self.solution
        return certified_interval(found.partition, self.alpha, found.models, duals=self.certificate.u)

    def place(self, x: ArrayLike, y: ArrayLike) -> PlacedNewcomer:
        """Where a new client goes, all others staying as they are."""
        return place_newcomer(self, x, y)

    def predict(self, client: int, x: ArrayLike) -> Floats:
        """The linear predictor of a client's model for rows of its table: (rows,) or (rows, outputs)."""
        return outputs(self.clients, self.models[self.label[client]], x, intercept=self.how.intercept)

    def summary(self) -> list[str]:
        """What to tell of the answer, line by line."""
        proof, sizes = self.certificate, np.sort(self.solution.sizes)[::-1]
        shown = ", ".join(str(size) for size in sizes[:10]) + (", .." if len(sizes) > 10 else "")
        rounds, dim = self.rounds, self.clients.dim
        lines = [
            f"alpha {self.alpha:.6g}, alpha_hat {self._threshold()}, t {self.t:.4g}",
            f"{len(sizes)} clusters of {shown} clients" if len(sizes) > 1 else f"1 cluster of all {shown} clients",
            f"Newton steps and tests {rounds}, for all strengths; as many rounds over a network, each {8 * dim:,} bytes down and "
            f"at most {8 * dim * (1 + dim):,} up per client (a gradient and a curvature; line searches not counted)",
        ]
        if proof.exact:
            least = float(self.margins.min(initial=np.inf))
            margin = f", least margin alpha - phi {least:.3g}" if np.isfinite(least) else ""
            lines.append(f"proved: these are the clusters of the exact solution (gap {proof.gap:.1e}{margin})")
        else:
            bound = f"the value is at most {proof.gap:.1e} above the best"
            lines.append(f"not proved to be exact: {bound if np.isfinite(proof.gap) else 'no bound is known'}")
        if self.t >= 1:
            lines.append("alpha is not below alpha_hat: this is the global model")
        return lines if self.path is None else [*lines, *self._path_notes(self.path)]

    def _path_notes(self, path: ClusterPath) -> list[str]:
        """What to tell of the path."""
        step, tried = int(np.argmin(np.abs(path.alphas - self.alpha))), len(path.solutions)
        upper, lower = path.plateau(step)
        found = [f"the same clusters from alpha {lower:.4g} to {upper:.4g} ({upper / lower:.2g} times)"]
        if tried < self.how.num_lams:
            end = f"the path ends at t {path.t[-1]:.3g}, after {tried} of {self.how.num_lams} strengths"
            found.append(f"{end}: beyond it there are too many clusters")
        if step == tried - 1:
            found.append("this is the weakest strength that was tried: a longer path (least) may go further")
        return found


def outputs(clients: Clients, model: Floats, x: ArrayLike, *, intercept: bool = True) -> Floats:
    """The linear predictor of a model for rows of a table."""
    table = as_table(clients, x, intercept=intercept)
    found: Floats = table @ model.reshape(table.shape[1], -1)
    return found[:, 0] if clients.loss.num_outputs == 1 else found


def alone(partition: Partition, start: Floats) -> Floats:
    """(K, dim) every cluster's own best model, without the penalty that ties it to the others."""
    own = (partition.clients.take(partition.label == k) for k in range(partition.number))
    return np.concatenate([own_best(some.pooled(), start[k][None]).x for k, some in enumerate(own)])


def _held_out(clients: Clients, seed: int) -> tuple[Clients, Clients]:
    """Four fifths of every client's rows, and the rest; a client with fewer than two rows keeps all on both sides."""
    draw = np.asarray(jax.random.uniform(jax.random.key(seed), clients.share.shape))
    rank = np.argsort(np.argsort(np.where(clients.share > 0, draw, np.inf), axis=1), axis=1)
    apart = (rank < np.maximum(1, np.round(0.2 * clients.counts))[:, None]) & (clients.counts > 1)[:, None]

    def only(rows: np.ndarray) -> Clients:
        kept = np.where(rows & (clients.share > 0), clients.share, 0.0)
        total = kept.sum(1, keepdims=True)
        return replace(clients, share=kept * clients.share.sum(1, keepdims=True) / np.maximum(total, 1e-300))

    return only(~apart), only(apart | (clients.counts <= 1)[:, None])
