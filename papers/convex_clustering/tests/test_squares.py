"""Personal models held together by squares of distances."""

import numpy as np
import pytest
from ellipses_world import blobs, tables

from papers.convex_clustering.squared_penalty import held_together, l2gd_strength
from plures.solvers import Penalized, as_clients


def test_squares_between_all_pairs_are_a_pull_to_the_mean():
    """gamma sum_{i<j} |x_i - x_j|^2, with the value of that problem."""
    world, gamma = tables("logistic", seed=0, num=6), 0.03
    clients = as_clients(world.x, world.y, loss="logistic", ridge=1e-2)

    found = held_together(clients, gamma)

    pairs = sum(np.sum((found.x[i] - found.x[j]) ** 2) for i in range(6) for j in range(i))
    wanted = Penalized(clients).solve([12 * gamma])
    np.testing.assert_allclose(found.x, wanted.own[0], atol=1e-9)
    assert found.value == pytest.approx(clients.value(found.x).sum() + gamma * pairs, rel=1e-12)
    assert 0 < found.steps < 20


def test_squares_to_the_mean_are_the_squares_of_all_pairs():
    """gamma sum_{i<j} |x_i - x_j|^2 = strength / 2 sum_i |x_i - mean|^2."""
    x = blobs(7)
    pairs = sum(((x[i] - x[j]) ** 2).sum() for i in range(7) for j in range(i))

    strength = l2gd_strength(0.3, 7)

    assert 0.5 * strength * ((x - x.mean(0)) ** 2).sum() == pytest.approx(0.3 * pairs, rel=1e-12)
