"""The same problems by an interior-point method (CVXPY with Clarabel), written down once more from the formula."""

import warnings

import cvxpy as cp
import numpy as np
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

TIGHT = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}


def loss_of(name, outputs, y):
    """The summed loss of rows at outputs (rows, C), as an expression."""
    if name == "multinomial":
        hot = np.eye(outputs.shape[1])[y.astype(int)]
        return cp.sum(cp.log_sum_exp(outputs, axis=1)) - cp.sum(cp.multiply(hot, outputs))
    o, sign = outputs[:, 0], 2 * y - 1
    return {
        "squared_hinge": lambda: cp.sum_squares(cp.pos(1 - cp.multiply(sign, o))),
        "logistic": lambda: cp.sum(cp.logistic(cp.multiply(-sign, o))),
        "least_squares": lambda: 0.5 * cp.sum_squares(o - y),
        "huber": lambda: 0.5 * cp.sum(cp.huber(o - y, 1.0)),
        "poisson": lambda: cp.sum(cp.exp(o)) - cp.sum(cp.multiply(y, o)),
    }[name]()


def own_loss(clients, client, x):
    """f_i at an expression ``x`` (dim,): (1 / m_i) sum of losses + 1/2 sum ridge x^2."""
    rows = clients.share[client] > 0
    model = cp.reshape(x, (clients.a.shape[2], clients.loss.num_outputs), order="C")
    loss = loss_of(clients.loss.name, clients.a[client][rows] @ model, clients.y[client][rows])
    weight = clients.share[client][rows][0]
    return weight * loss + 0.5 * cp.sum(cp.multiply(clients.ridge, cp.square(x)))


class Referee:
    """One problem for many alphas, compiled once."""

    def __init__(self, clients, graph):
        self.alpha = cp.Parameter(nonneg=True)
        self.x = cp.Variable((clients.num, clients.dim))
        losses = sum(own_loss(clients, client, self.x[client]) for client in range(clients.num))
        apart = cp.norm(self.x[graph.head] - self.x[graph.tail], 2, axis=1)
        self.problem = cp.Problem(cp.Minimize(losses + self.alpha * (graph.weight @ apart)))

    def solve(self, alpha):
        """(value, models) at alpha."""
        self.alpha.value = alpha
        _solved(self.problem)
        return float(self.problem.value), np.array(self.x.value)


def _solved(problem):
    """Solve as tightly as rounding lets the method, and no less than it does by itself."""
    for options in (TIGHT, {}):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Solution may be inaccurate")
            problem.solve(solver="CLARABEL", **options)
        if problem.status == "optimal":
            return
    raise AssertionError(f"the referee ends with {problem.status}")


def solved(cost, x):
    """The models at which an expression is least."""
    _solved(cp.Problem(cp.Minimize(cost)))
    return np.array(x.value)


def clustered(points, gamma, graph):
    """Points after convex clustering."""
    y = cp.Variable(points.shape)
    apart = cp.norm(y[graph.head] - y[graph.tail], 2, axis=1)
    return solved(0.5 * cp.sum_squares(y - points) + gamma * (graph.weight @ apart), y)


def spots(x, tol=1e-4):
    """Labels of models that lie on one spot, by distance alone."""
    return connected_components(cdist(x, x) < tol, directed=False)[1]


def same_partition(one, other):
    """Whether two lists of labels put the same clients together."""
    return np.array_equal(np.equal.outer(one, one), np.equal.outer(other, other))
