"""A new client, all others staying as they are: which cluster it fuses with, or none.

With W_k the weight of its edges to cluster k it fuses with k exactly if

    | grad f(w_k)  +  alpha sum_{l != k} W_l (w_k - w_l) / |w_k - w_l| |  <=  alpha W_k

which takes K gradients on its own device. At most one cluster passes. Where none does, the cluster of least loss serves
it, or the model that its own d-dimensional problem gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from plures.errors import BadData
from plures.solvers.clients import Clients
from plures.types import Floats

if TYPE_CHECKING:
    from plures.solvers.estimator import Fitted


@dataclass(frozen=True, eq=False)
class PlacedNewcomer:
    """Where a new client goes: the ``cluster`` it fuses with (-1: none), and that of least loss on its rows.

    ``excess`` (K,) is how far the force on it exceeds what each cluster holds; not above 0 where it fuses.
    """

    cluster: int
    least_loss: int
    excess: Floats

    @property
    def serves(self) -> int:
        """The cluster whose model serves it."""
        return self.cluster if self.cluster >= 0 else self.least_loss


def as_table(clients: Clients, x: ArrayLike, *, intercept: bool) -> Floats:
    """The rows of a table as the clients' are kept, with a column of ones where there is an intercept."""
    table = np.asarray(x, float)
    table = table.reshape(len(table), -1) if table.size else np.zeros((0, clients.a.shape[2] - intercept))
    if table.shape[1] != clients.a.shape[2] - intercept:
        raise BadData(f"the table has {table.shape[1]} columns, the clients' have {clients.a.shape[2] - intercept}")
    return np.concatenate([table, np.ones((len(table), 1))], axis=1) if intercept else table


def as_newcomer(fitted: Fitted, x: ArrayLike, y: ArrayLike) -> Clients:
    """One more client like the others."""
    clients, wanted = fitted.clients, np.asarray(y, float).reshape(-1)
    table = as_table(clients, x, intercept=fitted.how.intercept)
    if not len(table) or len(table) != len(wanted):
        raise BadData(
            f"the new client has {len(table)} rows and {len(wanted)} targets; both must be alike, 1 or more"
        )
    if not (np.isfinite(table).all() and np.isfinite(wanted).all()):
        raise BadData("the new client has a value that is not a finite number")
    if (wants := clients.loss.check(wanted)) is not None:
        raise BadData(f"the targets of {clients.loss.name} must be {wants}; the new client's are not")
    # Where clients count by their rows, so does a new one.
    weight = len(table) / float(clients.counts.mean()) if fitted.how.weighting == "examples" else 1.0
    share = np.full((1, len(table)), weight / len(table))
    return Clients(table[None], wanted[None], share, clients.ridge, clients.loss)


def ties_of(fitted: Fitted, new: Clients) -> Floats:
    """(K,) the weight of the newcomer's edges to every cluster: to all clients, to its nearest by gradients, or to both."""
    graph = fitted.graph
    everywhere: Floats = fitted.theta * fitted.solution.sizes.astype(float)
    if graph.is_uniform:
        return everywhere
    gradient = new.gradient(fitted.consensus.model[None])
    apart = ((fitted.consensus.gradients - gradient) ** 2).sum(1)
    near = np.argsort(apart, kind="stable")[: fitted.how.num_neighbors]
    near_each: Floats = np.bincount(fitted.label[near], minlength=len(fitted.models)).astype(float)
    own = float(graph.weight.max()) - fitted.theta if len(graph) else 1.0
    return near_each * own + everywhere


def place_newcomer(fitted: Fitted, x: ArrayLike, y: ArrayLike) -> PlacedNewcomer:
    """The newcomer's place among the clusters of a fitted problem."""
    new, w, alpha = as_newcomer(fitted, x, y), fitted.solution.models, fitted.alpha
    ties = ties_of(fitted, new)
    apart = w[:, None] - w[None]
    size = np.maximum(np.sqrt((apart**2).sum(2)), 1e-300)
    force = alpha * ((ties[None, :] / size)[..., None] * apart).sum(1)
    many = new.take(np.zeros(len(w), int))
    excess = np.sqrt(((many.gradient(w) + force) ** 2).sum(1)) - alpha * ties
    passed = np.flatnonzero(excess <= 1e-9 * max(alpha * float(ties.max()), 1e-300))
    best = int(passed[np.argmin(excess[passed])]) if len(passed) else -1
    return PlacedNewcomer(best, int(np.argmin(many.value(w))), excess)
