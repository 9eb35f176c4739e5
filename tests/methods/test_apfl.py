"""APFL: one step of each of its three parts by algebra, its two ends, and what becomes of statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from plures import run
from plures.contract import worlds
from plures.data.worlds import mean_estimation
from plures.errors import BadValue
from plures.methods.apfl import OwnAndShare, apfl
from plures.methods.fedavg import fedavg
from plures.methods.local_only import OwnModel as Alone
from plures.methods.local_only import local_only
from plures.models.build import CLASSIFICATION, from_flax
from plures.models.linear import mean, softmax
from plures.types import Data, Plan, Rows, Weights

KEY = jax.random.key(0)
LR, PACE, ALPHA = 0.25, 0.3, 0.4
SHARED, OWN, TARGET = np.array([1.0, -2.0]), np.array([0.5, 1.0]), np.array([0.8, 0.2])


def data_of(x, y, *, count=None):
    rows = Rows(
        x=jnp.asarray(x), y=jnp.asarray(y), start=0, count=len(y) if count is None else count, capacity=len(y)
    )
    return Data(train=rows, valid=rows)


def point(value):
    return Weights({"point": jnp.asarray(value, jnp.float32)})


def trained(method, *, alpha=ALPHA, count=None):
    """What a client whose rows have the mean TARGET makes of SHARED and OWN."""
    spread = np.array([[0.3, -0.1], [-0.3, 0.1]], np.float32)
    data = data_of(np.zeros((2, 0), np.float32), TARGET.astype(np.float32) + spread, count=count)
    upload, own, info = method.train(KEY, point(SHARED), OwnAndShare(point(OWN), jnp.asarray(alpha)), data)
    return SHARED + np.asarray(upload.params["point"]), np.asarray(own.weights.params["point"]), own.alpha, info


def plan(steps):
    return Plan(batch=None, lr=LR, steps=steps)


def by_hand(steps, *, adaptive=True):
    """The gradient of half the squared distance to TARGET is the difference from it."""
    w, v, alpha = SHARED, OWN, ALPHA
    for number in range(steps):
        slope = alpha * v + (1 - alpha) * w - TARGET
        change = PACE * (v - w) @ slope if adaptive and number == 0 else 0.0
        w, v, alpha = w - LR * (w - TARGET), v - LR * alpha * slope, np.clip(alpha - change, 0, 1)
    return w, v, alpha


@pytest.mark.parametrize(("steps", "adaptive"), [(1, True), (3, True), (2, False)])
def test_three_parts_move_as_the_paper_has_it(steps, adaptive):
    """The share moves once per round, by the first batch; w and v in every step."""
    w, v, alpha, info = trained(apfl(mean((0,), 2), plan=plan(steps), alpha_lr=PACE, adaptive=adaptive))

    wanted = by_hand(steps, adaptive=adaptive)
    assert (wanted[2] == ALPHA) != adaptive
    np.testing.assert_allclose(w, wanted[0], atol=1e-6)
    np.testing.assert_allclose(v, wanted[1], atol=1e-6)
    assert float(alpha) == float(info["alpha"]) == pytest.approx(wanted[2], abs=1e-6)


def test_the_share_stays_between_0_and_1():
    _, _, alpha, _ = trained(apfl(mean((0,), 2), plan=plan(1), alpha_lr=1e3))
    _, _, other, _ = trained(apfl(mean((0,), 2), plan=plan(1), alpha_lr=1e3), alpha=1.0)

    assert (float(alpha), float(other)) == (1.0, 0.0)  # v is nearer at 0.4; at 1 the way back is downhill


def test_served_is_the_mixture_and_the_share_is_told():
    method, own = apfl(mean((0,), 2)), OwnAndShare(point(OWN), jnp.asarray(ALPHA))

    served = method.serve(KEY, point(SHARED), own, None)

    np.testing.assert_allclose(served.params["point"], ALPHA * OWN + (1 - ALPHA) * SHARED, atol=1e-6)
    assert float(method.views.facts(point(SHARED), own, served)["alpha"]) == pytest.approx(ALPHA)


def test_a_client_without_rows_is_served_the_shared_model():
    method = apfl(mean((0,), 2), plan=Plan(batch=2))
    w, v, alpha, _ = trained(method, count=jnp.asarray(0))

    served = method.serve(KEY, point(SHARED), OwnAndShare(point(v), alpha), None)

    np.testing.assert_array_equal(served.params["point"], SHARED)
    np.testing.assert_array_equal(w, SHARED)


def test_with_batches_and_any_share_the_shared_model_is_fedavgs_and_at_1_the_own_one_trains_alone():
    """Both descend on the batches that fedavg and local_only draw from the same key."""
    model, batches = softmax((3,), 3), Plan(epochs=2, batch=2, lr=0.3)
    x = np.asarray(jax.random.normal(KEY, (5, 3)))
    data = data_of(x, x.argmax(1).astype(np.int32))
    shared, own = (Weights(jax.tree.map(lambda leaf, s=s: leaf + s, model.init(KEY).params)) for s in (0.1, 0.2))

    upload, private, _ = apfl(model, plan=batches, alpha=1.0, adaptive=False).train(
        KEY, shared, OwnAndShare(own, jnp.ones(())), data
    )
    plain, _, _ = fedavg(model, plan=batches).train(KEY, shared, (), data)
    _, alone, _ = local_only(model, plan=batches).train(KEY, (), Alone(own, jnp.asarray(True)), data)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), upload, plain)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), private.weights, alone.weights)


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x, train, mask=None):
        mask = None if mask is None else mask[:, None]
        return nn.BatchNorm(use_running_average=not train)(nn.Dense(3, use_bias=False)(x), mask=mask)


def test_statistics_are_those_of_the_mixed_models_own_passes():
    """A pass moves them by a hundredth towards the mean of what is normalized, which is linear in the kernel."""
    model = from_flax(Normed(), shape=(3,), task=CLASSIFICATION)
    method = apfl(model, plan=Plan(batch=None, steps=1), alpha=ALPHA)
    x = 5 + np.asarray(jax.random.normal(KEY, (6, 3)))
    data = data_of(x, np.arange(6, dtype=np.int32) % 3)
    shared, mine = model.init(KEY), model.init(jax.random.key(1))
    mine = mine._replace(stats=jax.tree.map(lambda leaf: leaf + 2, mine.stats))

    upload, own, _ = method.train(KEY, shared, method.join(KEY, mine), data)
    served, without = (method.serve(KEY, shared, one, data) for one in (own, own._replace(alpha=jnp.zeros(()))))

    kernels = [one.params["Dense_0"]["kernel"] for one in (mine, shared)]
    passed = [0.01 * (x @ kernel).mean(0) for kernel in (ALPHA * kernels[0] + (1 - ALPHA) * kernels[1], kernels[1])]
    np.testing.assert_allclose(served.stats["BatchNorm_0"]["mean"], 0.99 * 2 + passed[0], atol=1e-5)
    np.testing.assert_allclose(upload.stats["BatchNorm_0"]["mean"], passed[1], atol=1e-5)
    np.testing.assert_array_equal(without.stats["BatchNorm_0"]["mean"], np.zeros(3))


def test_clients_that_differ_more_take_more_of_their_own():
    shares = []
    for radius in (0.0, 3.0):
        world = mean_estimation(num_clients=4, dim=2, rows=6, radius=radius, sigma=0.3)
        result = run(apfl(world.model, plan=plan(2)), world.federation, rounds=5, executor="vectorized")
        shares.append(result.record.latest("facts", "served").metrics["alpha"].mean())

    assert shares[1] > shares[0] + 0.1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"alpha": 1.5}, r"alpha must be a number in \[0, 1\], got 1.5"),
        ({"alpha": float("nan")}, "alpha must be a number in"),
        ({"alpha_lr": -1.0}, "alpha_lr must be 0 or more"),
    ],
)
def test_bad_options_are_refused(options, said):
    with pytest.raises(BadValue, match=said):
        apfl(worlds.model(), **options)
