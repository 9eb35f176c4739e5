"""The losses of all clients at once, what each does by itself, and the summed losses of groups."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from ellipses_world import LOSSES, blobs, tables
from referee import own_loss, solved

from plures.errors import BadData, BadValue
from plures.solvers import as_clients, points_as_clients
from plures.solvers.clients import TINY_RIDGE
from plures.solvers.partition import GroupedClients
from plures.solvers.prox import lowest, own_best, shortfall

STEP = 1e-6


def clients_of(loss, *, num=6, ridge=0.05, **options):
    world = tables(loss, num=num)
    return as_clients(world.x, world.y, loss=loss, ridge=ridge, **options)


def models(clients, seed=0):
    return 0.5 * np.random.default_rng(seed).normal(size=(clients.num, clients.dim))


# Values, gradients and curvatures


@pytest.mark.parametrize("loss", LOSSES)
def test_slopes_are_those_of_the_values(loss):
    clients = clients_of(loss)
    x = models(clients)

    found = clients.gradient(x)

    for k, way in enumerate(STEP * np.eye(clients.dim)):
        rise = (clients.value(x + way) - clients.value(x - way)) / (2 * STEP)
        np.testing.assert_allclose(found[:, k], rise, atol=1e-7)


@pytest.mark.parametrize("loss", LOSSES)
def test_curves_are_those_of_the_slopes(loss):
    clients = clients_of(loss)
    x = models(clients)

    found = clients.curvature(x)

    for k, way in enumerate(STEP * np.eye(clients.dim)):
        rise = (clients.gradient(x + way) - clients.gradient(x - way)) / (2 * STEP)
        np.testing.assert_allclose(found[:, :, k], rise, atol=1e-5)
    np.testing.assert_allclose(found, found.swapaxes(1, 2), atol=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
def test_values_are_those_of_the_formula_client_by_client(loss):
    clients = clients_of(loss)
    x = models(clients)

    found = clients.value(x)

    np.testing.assert_allclose(found, [own_loss(clients, i, x[i]).value for i in range(clients.num)], rtol=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
def test_padding_changes_nothing(loss):
    world = tables(loss, num=4)
    x, y = [one[: 3 + i] for i, one in enumerate(world.x)], [one[: 3 + i] for i, one in enumerate(world.y)]
    link = as_clients(world.x, world.y, loss=loss).loss
    together = as_clients(x, y, loss=link, ridge=0.1)
    at = models(together)

    for i in range(4):
        alone = as_clients(x[i : i + 1], y[i : i + 1], loss=link, ridge=0.1)
        np.testing.assert_allclose(together.value(at)[i], alone.value(at[i : i + 1])[0], rtol=1e-13)
        np.testing.assert_allclose(together.gradient(at)[i], alone.gradient(at[i : i + 1])[0], atol=1e-13)
        np.testing.assert_allclose(together.curvature(at)[i], alone.curvature(at[i : i + 1])[0], atol=1e-13)


def test_tables_of_one_length_are_the_same_as_a_list_of_them():
    world = tables("logistic", num=5)

    whole, parts = as_clients(np.stack(world.x), np.stack(world.y)), as_clients(world.x, world.y)

    np.testing.assert_array_equal(whole.a, parts.a)
    np.testing.assert_array_equal(whole.share, parts.share)
    np.testing.assert_array_equal(whole.y, parts.y)


def test_counts_are_the_clients_rows():
    clients = as_clients([np.ones((2, 1)), np.ones((5, 1))], [[0, 1], [0, 1, 1, 0, 0]])

    np.testing.assert_array_equal(clients.counts, [2, 5])


def test_the_intercept_comes_last_with_its_own_ridge():
    clients = as_clients([[[3.0, 4.0]]], [[1.0]], ridge=0.5, intercept_ridge=0.25)

    np.testing.assert_array_equal(clients.a, [[[3.0, 4.0, 1.0]]])
    np.testing.assert_array_equal(clients.ridge, [0.5, 0.5, 0.25])


def test_without_an_intercept_there_are_only_the_columns():
    assert as_clients([[[3.0, 4.0]]], [[1.0]], intercept=False).dim == 2


def test_every_output_of_multinomial_has_a_ridge():
    clients = as_clients([[[3.0], [4.0]]], [[0.0, 2.0]], loss="multinomial", ridge=0.5, intercept_ridge=0.25)

    np.testing.assert_array_equal(clients.ridge, [0.5, 0.5, 0.5, 0.25, 0.25, 0.25])


@pytest.mark.parametrize(
    ("loss", "least"), [("logistic", TINY_RIDGE), ("squared_hinge", TINY_RIDGE), ("least_squares", 0)]
)
def test_a_loss_that_can_run_away_keeps_a_tiny_ridge(loss, least):
    clients = as_clients([[[3.0]]], [[1.0]], loss=loss, ridge=0.0)

    np.testing.assert_array_equal(clients.ridge, [least, least])


def test_weights_multiply_losses_and_leave_ridges():
    clients = clients_of("logistic", num=3)
    x = models(clients)
    ridge = 0.5 * (x * x) @ clients.ridge

    found = clients.weighted(np.array([1.0, 2.0, 5.0])).value(x)

    np.testing.assert_allclose(found, [1, 2, 5] * (clients.value(x) - ridge) + ridge, rtol=1e-13)


def test_points_are_clients_with_half_the_squared_distance():
    points = blobs(5)
    x = blobs(5, seed=2)

    clients = points_as_clients(points)

    np.testing.assert_allclose(clients.value(x), 0.5 * ((x - points) ** 2).sum(1), rtol=1e-12)
    np.testing.assert_allclose(clients.gradient(x), x - points, atol=1e-12)
    np.testing.assert_allclose(clients.curvature(x), np.broadcast_to(np.eye(2), (5, 2, 2)))
    assert clients.least_curvature == 1.0


@pytest.mark.parametrize("loss", [one for one in LOSSES if one != "poisson"])
def test_gradients_are_no_steeper_than_said(loss):
    clients = clients_of(loss)
    one, other = models(clients, 1), models(clients, 2)

    steep = np.linalg.norm(clients.gradient(one) - clients.gradient(other), axis=1) / np.linalg.norm(
        one - other, axis=1
    )

    assert (steep <= clients.lipschitz * (1 + 1e-12)).all()


def test_squared_errors_are_as_steep_as_said():
    clients = clients_of("least_squares")

    np.testing.assert_allclose(clients.lipschitz, np.linalg.eigvalsh(clients.curvature(models(clients)))[:, -1])


def test_counts_have_no_steepest_gradient():
    assert np.isinf(clients_of("poisson").lipschitz).all()


# What a client does by itself


@pytest.mark.parametrize("loss", LOSSES)
def test_own_best_is_that_of_an_interior_point_method(loss):
    clients = clients_of(loss, num=3)
    rng = np.random.default_rng(0)
    tilt, center, omega = rng.normal(size=(2, 3, clients.dim)).tolist() + [np.array([0.5, 1.0, 2.0])]
    tilt, center = 0.1 * np.array(tilt), np.array(center)

    found = own_best(clients, np.zeros((3, clients.dim)), tilt=tilt, center=center, omega=omega)

    for i in range(3):
        x = cp.Variable(clients.dim)
        cost = own_loss(clients, i, x) + tilt[i] @ x + 0.5 * omega[i] * cp.sum_squares(x - center[i])
        np.testing.assert_allclose(found.x[i], solved(cost, x), atol=2e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_at_its_own_best_a_client_has_no_slope_left(loss):
    clients = clients_of(loss, ridge=1e-3)

    found = own_best(clients, np.zeros((clients.num, clients.dim)), omega=0.7, center=models(clients))

    left = clients.gradient(found.x) + 0.7 * (found.x - models(clients))
    np.testing.assert_allclose(left, 0, atol=1e-9)
    np.testing.assert_allclose(found.gradient, left, atol=1e-12)


def test_prox_of_squared_errors_is_a_linear_solve():
    clients = clients_of("least_squares", num=4)
    center = models(clients)

    found = own_best(clients, np.zeros_like(center), omega=2.0, center=center)

    for i in range(4):
        a, y = clients.a[i], clients.y[i]
        matrix = a.T @ a / len(a) + np.diag(clients.ridge) + 2 * np.eye(clients.dim)
        np.testing.assert_allclose(
            found.x[i], np.linalg.solve(matrix, a.T @ y / len(a) + 2 * center[i]), atol=1e-10
        )


def test_own_best_does_not_depend_on_the_start():
    clients = clients_of("squared_hinge", ridge=1e-2)

    near, far = (own_best(clients, scale * models(clients)) for scale in (1.0, 50.0))

    np.testing.assert_allclose(near.x, far.x, atol=1e-8)


def test_the_start_is_left_alone():
    clients = clients_of("logistic")
    start = np.zeros((clients.num, clients.dim))

    own_best(clients, start)

    assert not start.any()


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_a_client_of_one_class_has_a_finite_best_model(loss, ridge):
    clients = as_clients([np.array([[1.0], [2.0], [-1.0]])], [[1.0, 1.0, 1.0]], loss=loss, ridge=ridge)

    found = own_best(clients, np.zeros((1, 2)))

    assert np.isfinite(found.x).all()
    np.testing.assert_allclose(found.gradient, 0, atol=1e-9)


def test_lowest_of_points_has_a_closed_form():
    """min_x 1/2 |x - a|^2 + <t, x> is at x = a - t."""
    points, tilt = blobs(5), blobs(5, seed=2)

    found = lowest(points_as_clients(points), tilt, np.zeros((5, 2)))

    np.testing.assert_allclose(found, (tilt * points).sum(1) - 0.5 * (tilt**2).sum(1), rtol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_shortfall_bounds_how_far_a_loss_is_above_its_least(loss):
    clients = clients_of(loss)
    x = models(clients)
    least = own_best(clients, x).value

    found = shortfall(clients, clients.gradient(x))

    assert (found >= clients.value(x) - least - 1e-12).all()


def test_shortfall_of_squared_errors_is_exact():
    clients = clients_of("least_squares")
    x = models(clients)

    found = shortfall(clients, clients.gradient(x))

    np.testing.assert_allclose(found, clients.value(x) - own_best(clients, x).value, rtol=1e-9)


def test_without_curvature_nothing_bounds_the_shortfall():
    clients = replace(clients_of("huber"), ridge=np.array([1.0, 0.0, 1.0]))

    found = shortfall(clients, np.array([[1.0, 0.0, 2.0], [1.0, 1e-9, 2.0]]))

    np.testing.assert_array_equal(found, [2.5, np.inf])


# Groups


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "label",
    [np.zeros(10, int), np.array([2, 0, 1, 1, 0, 2, 2, 2, 1, 0]), np.arange(10) % 5, np.arange(10)],
    ids=["one group", "uneven", "five pairs", "alone"],
)
def test_groups_sum_their_members_losses(loss, label):
    clients = clients_of(loss, num=10)
    number = int(label.max()) + 1
    w = 0.3 * np.random.default_rng(0).normal(size=(number, clients.dim))

    curvature = GroupedClients(clients, label, number).expand(w)

    x = w[label]
    np.testing.assert_allclose(curvature.value, clients.value(x).sum(), rtol=1e-12)
    for k in range(number):
        np.testing.assert_allclose(curvature.gradient[k], clients.gradient(x)[label == k].sum(0), atol=1e-11)
        np.testing.assert_allclose(curvature.curvature[k], clients.curvature(x)[label == k].sum(0), atol=1e-11)


# Bad input


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        ([], [], "got 0 tables and 0 lists"),
        ([[[1.0]]], [[1.0], [0.0]], "got 1 tables and 2 lists"),
        ([[[1.0]], [[1.0, 2.0]]], [[1.0], [0.0]], "client 1 has 2 columns, client 0 has 1"),
        ([[[1.0]], [[1.0], [2.0]]], [[1.0], [0.0]], "client 1 has 2 rows and 1 targets"),
        ([[[1.0]], [[np.nan]]], [[1.0], [0.0]], "client 1 has a value that is not a finite number"),
        ([[[1.0]], [[1.0]]], [[1.0], [np.inf]], "client 1 has a value that is not a finite number"),
        ([[[1.0]], np.zeros((0, 1))], [[1.0], []], "client 1 has 0 rows and 0 targets"),
        (np.full((2, 3, 1), np.nan), np.zeros((2, 3)), "not a finite number"),
        (np.zeros((2, 3, 1)), np.zeros((2, 4)), r"need targets of shape \(2, 3\), got \(2, 4\)"),
    ],
)
def test_tables_that_do_not_fit_are_refused(x, y, says):
    with pytest.raises(BadData, match=says):
        as_clients(x, y)


def test_targets_of_unlike_lengths_are_refused_by_name():
    with pytest.raises(BadData):
        as_clients(np.zeros((2, 3, 1)), [[0.0, 1.0, 0.0], [1.0]])


@pytest.mark.parametrize("options", [{"ridge": -1.0}, {"ridge": np.nan}, {"intercept_ridge": -0.1}])
def test_ridges_must_not_be_negative(options):
    with pytest.raises(BadValue, match="ridge must be 0 or more"):
        as_clients([[[1.0]]], [[1.0]], **options)
