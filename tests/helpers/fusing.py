"""The problem of convex clustering with the squared hinge, in float64, with an interior-point solver as referee."""

import cvxpy as cp
import jax.numpy as jnp
import numpy as np

from plures.data.federation import from_arrays
from plures.models.build import MARGIN, from_functions
from plures.models.linear import dense, flat

RIDGE = 1e-6  # the methods' default, on all params


class Hinge:
    """Three groups of clients, each with two classes on ellipses along its own axis (arXiv 2202.00718, section V).

    Params are a bias, without penalty of the model's, and a kernel with the penalty (c / 2) |kernel|^2.
    """

    def __init__(self, *, per_group, rows=10, c=1e-3, seed=0):
        rng = np.random.default_rng(seed)
        parts = [self._group(rng, k, per_group, rows) for k in range(3)]
        self.x = np.concatenate(parts).astype(np.float32).astype(float)  # (clients, rows, 2)
        self.number, self.rows, self.c = 3 * per_group, rows, c
        self.group = np.repeat(np.arange(3), per_group)
        self.y = np.tile(np.repeat([1, 0], rows // 2), (self.number, 1))
        self.sign = 2 * self.y - 1
        self.model = from_functions(
            init=lambda key: {"head": {"kernel": jnp.zeros(2), "bias": jnp.zeros(())}},
            apply=lambda params, x: dense(params["head"], flat(x)),
            task=MARGIN,
            parts={"head": ("head/*",)},
            penalty=lambda params: 0.5 * c * jnp.square(params["head"]["kernel"]).sum(),
        )

    @staticmethod
    def _group(rng, k, per_group, rows):
        along = np.array([np.cos(2 * np.pi * k / 3), np.sin(2 * np.pi * k / 3)])
        across = np.array([-along[1], along[0]])
        size = (per_group, rows)
        radius, angle = np.sqrt(rng.uniform(size=size)), rng.uniform(0, 2 * np.pi, size=size)
        sign = np.where(np.arange(rows) < rows // 2, 1, -1)
        far = sign * 2.52 + 4 * radius * np.cos(angle)
        return far[..., None] * along + (radius * np.sin(angle))[..., None] * across

    @property
    def names(self):
        return [f"client-{k:02d}" for k in range(self.number)]

    @property
    def federation(self):
        return from_arrays(
            self.x.reshape(-1, 2).astype(np.float32),
            self.y.reshape(-1),
            np.repeat(self.names, self.rows),
            group=dict(zip(self.names, self.group.tolist(), strict=True)),
            split=np.repeat(["train"], self.number * self.rows),
            num_classes=2,
        )

    def slack(self, models):
        """max(0, 1 - s f(x)) of every row; a model is (bias, kernel)."""
        scores = np.einsum("crd,cd->cr", self.x, models[:, 1:]) + models[:, :1]
        return np.maximum(0, 1 - self.sign * scores)

    def losses(self, models):
        """(clients,) f_i."""
        penalty = self.c * np.square(models[:, 1:]).sum(1) + RIDGE * np.square(models).sum(1)
        return np.square(self.slack(models)).mean(1) + 0.5 * penalty

    def gradients(self, models):
        """(clients, 3) the gradients of the f_i."""
        force = -2 * self.slack(models) * self.sign / self.rows
        fit = np.concatenate([force.sum(1, keepdims=True), np.einsum("cr,crd->cd", force, self.x)], axis=1)
        return fit + self.c * models * [0, 1, 1] + RIDGE * models

    def objective(self, models, alpha, edges):
        models, (heads, tails, weights) = np.asarray(models, float), map(np.asarray, edges)
        apart = np.linalg.norm(models[heads] - models[tails], axis=1)
        return float(self.losses(models).sum() + alpha * weights @ apart)

    def solved(self, alpha, edges):
        """(models, objective) at the minimum."""
        heads, tails, weights = (np.asarray(one)[np.asarray(edges.weights) > 0] for one in edges)
        incidence = np.zeros((len(heads), self.number))
        incidence[np.arange(len(heads)), heads] += 1
        incidence[np.arange(len(heads)), tails] -= 1
        models = cp.Variable((self.number, 3))
        penalty = cp.sum(cp.multiply(weights, cp.norm(incidence @ models, 2, axis=1)))
        losses = cp.sum([self._loss(models[i], i) for i in range(self.number)])
        cp.Problem(cp.Minimize(losses + alpha * penalty)).solve(solver="CLARABEL")
        return models.value, self.objective(models.value, alpha, edges)

    def newcomer(self, centers, sizes, alpha, client):
        """The model of one client added to clusters that stay as they are."""
        model = cp.Variable(3)
        pulls = sum(size * cp.norm(model - center) for center, size in zip(centers, sizes, strict=True))
        cp.Problem(cp.Minimize(self._loss(model, client) + alpha * pulls)).solve(solver="CLARABEL")
        return model.value

    def _loss(self, model, client):
        scores = self.x[client] @ model[1:] + model[0]
        fit = cp.sum_squares(cp.pos(1 - cp.multiply(self.sign[client], scores))) / self.rows
        return fit + 0.5 * self.c * cp.sum_squares(model[1:]) + 0.5 * RIDGE * cp.sum_squares(model)
