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

from plures.solvers.clients import Clients
from plures.solvers.links import Floats

if TYPE_CHECKING:
    from plures.solvers.fitting import Fitted


@dataclass(frozen=True, eq=False)
class Placed:
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


def as_newcomer(clients: Clients, x: Floats, y: Floats) -> Clients:
    """One more client like the others."""
    table = x.reshape(len(x), -1)
    if table.shape[1] == clients.a.shape[2] - 1:
        table = np.concatenate([table, np.ones((len(table), 1))], axis=1)
    share = np.full((1, len(table)), 1.0 / len(table))
    return Clients(table[None], y.reshape(1, -1), share, clients.ridge, clients.link)


def ties_of(fitted: Fitted, new: Clients) -> Floats:
    """(K,) the weight of the newcomer's edges to every cluster: to all clients, to its nearest by gradients, or to both."""
    number, graph = len(fitted.models), fitted.graph
    everywhere: Floats = fitted.theta * fitted.solution.sizes.astype(float)
    if fitted.theta == 1.0:
        return everywhere
    slope = new.slope(fitted.consensus.model[None])
    apart = ((fitted.consensus.slopes - slope) ** 2).sum(1)
    near = np.argsort(apart, kind="stable")[: fitted.num_neighbors]
    near_each: Floats = np.bincount(fitted.label[near], minlength=number).astype(float)
    own = float(graph.weight.max()) - fitted.theta if len(graph) else 1.0
    return near_each * own + everywhere


def placed(fitted: Fitted, x: Floats, y: Floats) -> Placed:
    """The newcomer's place among the clusters of a fitted problem."""
    new, w, alpha = as_newcomer(fitted.clients, x, y), fitted.solution.models, fitted.alpha
    ties = ties_of(fitted, new)
    apart = w[:, None] - w[None]
    size = np.maximum(np.sqrt((apart**2).sum(2)), 1e-300)
    pull = alpha * ((ties[None, :] / size)[..., None] * apart).sum(1)
    slope = np.concatenate([new.slope(one[None]) for one in w])
    excess = np.sqrt(((slope + pull) ** 2).sum(1)) - alpha * ties
    losses = np.concatenate([new.value(one[None]) for one in w])
    passed = np.flatnonzero(excess <= 1e-9 * max(alpha * float(ties.max()), 1e-300))
    best = int(passed[np.argmin(excess[passed])]) if len(passed) else -1
    return Placed(best, int(np.argmin(losses)), excess)
