"""Douglas-Rachford splitting: one round by hand, and who counts in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.method import Views
from plures.methods.fusion.splitting import RELAX, Splitting, residual
from plures.methods.fusion.warm_start import LocalProblem
from plures.models.linear import least_squares
from plures.types import Plan

MODEL = least_squares((1,))


def halves(anchors, rho, memory):
    """The proximal map of a penalty whose weight is rho: y = s / 2; it counts its calls."""
    return anchors / 2, memory + 1


def splitting(local="newton"):
    solver = LocalProblem(local=local).solver(MODEL, Plan())
    return Splitting(
        solver=solver,
        penalty=halves,
        memory=lambda number: jnp.zeros(()),
        extra=lambda server, uid: (),
        newcomer=lambda key, offer, data: offer.own,
        rho=4.0,
    )


def begun(value=3.0, heard=True, **options):
    table = splitting(**options).start(jax.random.key(0), 3)
    same = jnp.full_like(table.own, value)
    return table._replace(own=same, anchors=2 * same, heard=jnp.full(3, heard))


def test_a_client_aims_at_the_reflection_of_its_anchor():
    server = begun()._replace(own=jnp.array([[1.0, 1.0]] * 3), anchors=jnp.array([[5.0, 5.0]] * 3))

    method = splitting().method(views=Views(), num_clusters=0)

    assert method.send(server, jnp.asarray(1)).tolist() == [-3.0, -3.0]


@pytest.mark.parametrize(("local", "relax"), [("newton", RELAX), ("sgd", 1.0)])
def test_anchors_move_by_the_relaxed_step_and_models_are_the_penaltys(local, relax):
    """s = 6, y = 3, aim 0: x = 0 + 1, so that s moves by relax (1 - 3)."""
    uploads = jnp.ones((2, 2))  # two clients, two params

    after = splitting(local).merge(begun(), uploads, jnp.ones(2), jnp.array([0, 2]))

    np.testing.assert_allclose(after.anchors[0], 6 + relax * (1 - 3), rtol=1e-6)
    np.testing.assert_allclose(after.own, after.anchors / 2)
    np.testing.assert_allclose(after.trained[2], 1.0)
    np.testing.assert_allclose(after.gradients[0], -4.0)  # - rho (x - aim)
    np.testing.assert_allclose(after.anchors[1], 6.0)  # who did not take part keeps its anchor
    assert int(after.rounds) == 1
    assert float(after.memory) == 1.0


def test_an_upload_that_is_no_number_does_not_count_and_who_was_never_heard_has_no_anchor():
    uploads = jnp.array([[1.0, 1.0], [jnp.nan, 1.0]])

    after = splitting().merge(begun(heard=False), uploads, jnp.ones(2), jnp.array([0, 1]))

    assert after.heard.tolist() == [True, False, False]
    np.testing.assert_allclose(after.anchors[1:], 3.0)  # s_i = y_i


def test_the_residual_is_zero_where_models_are_what_clients_sent():
    server = begun()

    assert residual(server._replace(trained=server.own)) == 0.0
    assert residual(server._replace(trained=2 * server.own)) == pytest.approx(1.0)
