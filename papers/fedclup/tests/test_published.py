"""The generator of labels published with FedCLUP, and its two defects."""

import jax
import numpy as np

from papers.fedclup.published import argmax_labels
from plures.data.worlds.offsets import logistic_offsets


def stacked(world, split="train"):
    """(clients, rows, dim) inputs and (clients, rows) targets."""
    rows = [world.federation.rows_of(name, split) for name in world.federation.names]
    return np.stack([x for x, _ in rows]).astype(float), np.stack([y for _, y in rows])


def test_published_labels_are_the_same_for_every_radius():
    near, far = (argmax_labels(jax.random.key(1), radius=radius) for radius in (0.1, 3.0))

    np.testing.assert_array_equal(near.x, far.x)
    np.testing.assert_array_equal(near.y, far.y)
    assert 0.05 < near.y.mean() < 0.95
    np.testing.assert_allclose(far.truth, 30 * near.truth)


def test_published_labels_have_no_best_model_and_drawn_ones_do():
    """Gradient descent on separable labels never comes to rest: ten times the steps, much longer coefficients."""

    def norms(x, y, steps):
        w = np.zeros((len(x), x.shape[2]))
        for _ in range(steps):
            error = 1 / (1 + np.exp(-np.einsum("crd,cd->cr", x, w))) - y
            w -= 0.2 * np.einsum("crd,cr->cd", x, error) / x.shape[1]
        return np.linalg.norm(w, axis=1)

    published = argmax_labels(jax.random.key(1), num_clients=4, dim=5, rows=100)
    drawn = stacked(logistic_offsets(num_clients=4, rows=100))

    assert (norms(published.x, published.y, 6000) > 1.3 * norms(published.x, published.y, 600)).all()
    np.testing.assert_allclose(norms(*drawn, 6000), norms(*drawn, 600), rtol=1e-3)
