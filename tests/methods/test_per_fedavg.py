"""Per-FedAvg: gradients of the loss after a step, against closed forms and against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.errors import BadValue, UnknownChoice
from plures.local import objective
from plures.methods.per_fedavg import LookAhead, per_fedavg
from plures.models.build import CLASSIFICATION, from_functions
from plures.models.conv import conv2d
from plures.models.linear import least_squares, mean, softmax
from plures.types import Batch, Data, Plan, Rows, Weights

KEY = jax.random.key(0)
RATE = 0.3
DIM = 3


def table(seed, rows=7):
    """Inputs and targets of a regression, the last row under a false mask."""
    key_x, key_y = jax.random.split(jax.random.key(seed))
    return Batch(
        jax.random.normal(key_x, (rows, DIM)), jax.random.normal(key_y, (rows,)), jnp.arange(rows) < rows - 1
    )


def quadratic(batch):
    """(H, b) of the loss w'Hw / 2 - b'w of a table, the bias last."""
    x, y = (np.asarray(part, float)[np.asarray(batch.mask)] for part in (batch.x, batch.y))
    x = np.append(x, np.ones((len(x), 1)), axis=1)
    return x.T @ x / len(x), x.T @ y / len(x)


def flat(params):
    return np.append(np.asarray(params["head"]["kernel"]), np.asarray(params["head"]["bias"]))


def slope_of(variant, model, weights, batches, *, rate=RATE, delta=1e-2):
    ahead, loss = LookAhead(rate, variant, delta), objective(model)
    return jax.jit(lambda weights: ahead.gradient(loss, KEY, weights, batches))(weights)


@pytest.mark.parametrize("variant", ["first_order", "hessian_free", "exact"])
def test_gradients_of_a_quadratic_are_the_closed_form(variant):
    """(I - a H'') (H' u - b') with u = w - a (H w - b), each from its own batch; without H'' in first order."""
    batches = [table(seed) for seed in (1, 2, 3)]
    w = np.array([0.5, -1.0, 2.0, 0.3])
    weights = Weights(
        {"head": {"kernel": jnp.asarray(w[:DIM], jnp.float32), "bias": jnp.asarray(w[DIM], jnp.float32)}}
    )

    value, _, found = slope_of(variant, least_squares((DIM,)), weights, batches)

    (first, b_first), (second, b_second), (third, _) = map(quadratic, batches)
    u = w - RATE * (first @ w - b_first)
    after = second @ u - b_second
    wanted = after if variant == "first_order" else after - RATE * third @ after
    left = np.asarray(batches[1].y)[:-1] - np.asarray(batches[1].x)[:-1] @ u[:DIM] - u[DIM]
    np.testing.assert_allclose(flat(found), wanted, atol=2e-4)
    assert float(value) == pytest.approx((left**2).mean() / 2, rel=1e-4)


def labels(batch):
    return batch._replace(y=(jnp.abs(batch.y) > 0.5).astype(jnp.int32))


def distance(left, right):
    return float(
        jnp.sqrt(sum(jnp.sum((a - b) ** 2) for a, b in zip(*map(jax.tree.leaves, (left, right)), strict=True)))
    )


def test_differences_of_gradients_tend_to_the_exact_gradient_with_the_square_of_delta():
    model, batch = softmax((DIM,), 2), labels(table(4))
    weights = Weights(
        jax.tree.map(lambda leaf: leaf + 0.3 * jnp.arange(leaf.size).reshape(leaf.shape), model.init(KEY).params)
    )

    exact = slope_of("exact", model, weights, [batch] * 3)[2]
    gaps = [distance(slope_of("hessian_free", model, weights, [batch] * 3, delta=d)[2], exact) for d in (1.0, 0.1)]

    assert gaps[0] / gaps[1] == pytest.approx(100, rel=0.2)


def test_the_exact_gradient_is_the_derivative_of_the_loss_after_a_step():
    model, batch, loss = softmax((DIM,), 2), labels(table(4)), objective(softmax((DIM,), 2))
    weights = Weights(jax.tree.map(lambda leaf: leaf + 0.2, model.init(KEY).params))

    def after(params):
        slope = jax.grad(lambda inner: loss(KEY, Weights(inner), batch)[0])(params)
        return loss(KEY, Weights(jax.tree.map(lambda w, g: w - RATE * g, params, slope)), batch)[0]

    found = slope_of("exact", model, weights, [batch] * 3)[2]

    assert distance(found, jax.grad(after)(weights.params)) < 1e-6


def test_the_exact_gradient_goes_through_convolutions():
    def apply(params, x):
        return jnp.tanh(conv2d(x.reshape(-1, 4, 4, 1), params["kernel"])).mean((1, 2))

    model = from_functions(
        init=lambda key: {"kernel": jax.random.normal(key, (2, 2, 1, 2))}, apply=apply, task=CLASSIFICATION
    )
    batch = Batch(jax.random.normal(KEY, (5, 16)), jnp.array([0, 1, 0, 1, 1]), jnp.ones(5, bool))

    exact, near, without = (
        slope_of(variant, model, model.init(KEY), [batch] * 3, rate=3.0)[2]
        for variant in ("exact", "hessian_free", "first_order")
    )

    assert distance(exact, near) < 1e-3 * distance(exact, without)


def data_of(targets, *, count=None):
    y = jnp.asarray(targets, jnp.float32)
    rows = Rows(jnp.zeros((len(y), 0)), y, 0, len(y) if count is None else count, len(y))
    return Data(train=rows, valid=rows)


@pytest.mark.parametrize(("variant", "power"), [("first_order", 1), ("hessian_free", 2), ("exact", 2)])
def test_clients_descend_the_loss_after_a_step(variant, power):
    """For half the squared distance to the rows' mean m the gradient at w is (1 - a)^2 (w - m), in first order (1 - a)(w - m)."""
    method = per_fedavg(
        mean((0,), 1), plan=Plan(batch=None, lr=0.5, steps=2), inner_lr=0.2, variant=variant, delta=0.1
    )

    upload, _, info = method.train(KEY, Weights({"point": jnp.array([1.0])}), (), data_of([3.0, 5.0]))

    shrink = 1 - 0.5 * 0.8**power
    assert float(upload.params["point"][0]) == pytest.approx(4 + shrink**2 * (1 - 4) - 1, abs=1e-5)
    assert float(info["steps"]) == 2 * (2 if variant == "first_order" else 4)


@pytest.mark.parametrize(("steps", "count", "wanted"), [(0, 2, 1.0), (1, 2, 1.6), (2, 2, 2.08), (3, 0, 1.0)])
def test_served_is_the_model_after_steps_on_all_own_rows(steps, count, wanted):
    """m + (1 - a)^steps (w - m) with w = 1, m = 4, a = 0.2; the shared model without rows."""
    method = per_fedavg(mean((0,), 1), plan=Plan(batch=1), inner_lr=0.2, steps=steps)
    shared = Weights({"point": jnp.array([1.0])})

    served = method.serve(KEY, shared, (), data_of([3.0, 5.0], count=jnp.asarray(count)))

    assert float(served.params["point"][0]) == pytest.approx(wanted, abs=1e-6)
    assert method.views.common(shared) is shared


def test_batches_are_drawn_independently():
    """Two rows, one per batch: of the eight ways to draw three batches, training must see several."""
    method = per_fedavg(mean((0,), 1), plan=Plan(batch=1, lr=1.0, steps=1), inner_lr=0.5, variant="first_order")
    shared = Weights({"point": jnp.array([0.0])})
    train = jax.jit(lambda key: method.train(key, shared, (), data_of([1.0, 3.0]))[0].params["point"][0])

    found = {round(float(train(key)), 4) for key in jax.random.split(KEY, 24)}

    # u = a y1 and the update y2 - u, for rows y1 and y2 of 1 and 3.
    assert found == {1 - 0.5, 3 - 0.5, 1 - 1.5, 3 - 1.5}


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"inner_lr": -0.1}, BadValue, "inner_lr must be 0 or more"),
        ({"delta": 0.0}, BadValue, "delta must be a positive number, got 0.0"),
        ({"steps": -1}, BadValue, "steps must be 0 or more"),
        ({"variant": "first_ordr"}, UnknownChoice, "did you mean 'first_order'"),
    ],
)
def test_bad_options_are_refused(options, error, said):
    with pytest.raises(error, match=said):
        per_fedavg(mean((0,), 1), **options)
