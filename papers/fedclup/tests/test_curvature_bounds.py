"""Bounds of the curvature of losses, which steps and rounds of gradient methods go by."""

import numpy as np
import pytest
from ellipses_world import tables

from papers.fedclup.client_losses import curvature_bounds
from plures.errors import BadData, Unsupported
from plures.solvers import as_clients
from plures.solvers.prox import own_best


def clients_of(loss):
    world = tables(loss, seed=0, num=6)
    return as_clients(world.x, world.y, loss=loss, ridge=1e-2)


def test_bounds_of_squared_errors_are_eigenvalues():
    clients = clients_of("least_squares")

    found = curvature_bounds(clients)

    values = np.linalg.eigvalsh(clients.curvature(np.zeros((6, clients.dim))))
    assert found.least == pytest.approx(values.min())
    assert found.most == pytest.approx(values.max())


@pytest.mark.parametrize("loss", ["logistic", "multinomial", "squared_hinge", "huber"])
def test_no_model_bends_a_loss_more_than_the_bound(loss):
    clients, rng = clients_of(loss), np.random.default_rng(0)

    found = curvature_bounds(clients)

    alone = own_best(clients, np.zeros((6, clients.dim))).x
    assert found.least == pytest.approx(np.linalg.eigvalsh(clients.curvature(alone)).min(), rel=1e-6)
    for size in (0.1, 1.0, 3.0):
        values = np.linalg.eigvalsh(clients.curvature(size * rng.normal(size=(6, clients.dim))))
        assert values.max() <= found.most * (1 + 1e-12)


def test_bounds_are_taken_where_asked():
    clients = clients_of("logistic")
    there = np.full((6, clients.dim), 2.0)

    assert curvature_bounds(clients, there).least == np.linalg.eigvalsh(clients.curvature(there)).min()


def test_a_loss_without_a_bound_is_refused_by_name():
    with pytest.raises(Unsupported, match="the curvature of poisson has no bound"):
        curvature_bounds(clients_of("poisson"))


def test_a_flat_loss_is_refused_by_client():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 9, 2)), rng.normal(size=(3, 9))
    x[1, :, 1] = 0.0

    with pytest.raises(BadData, match=r"client 1 is not strongly convex.*a ridge would do"):
        curvature_bounds(as_clients(x, y, loss="least_squares", ridge=0.0, intercept=False))
