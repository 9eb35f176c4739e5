"""FedALA: shares by algebra, when they are learned and on which rows, and what of the model is mixed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from plures.errors import BadValue, UnknownChoice
from plures.methods.parts.fedala import FedalaState, fedala, some_of, top_of
from plures.models.build import CLASSIFICATION, from_flax
from plures.models.linear import mean
from plures.models.mlp import mlp
from plures.types import Data, Plan, Rows, Weights

KEY = jax.random.key(0)
FULL = Plan(batch=None, lr=0.5)
SHARED = np.array([1.0, 1.0, 1.0], np.float32)
OWN = np.array([0.0, 0.0, 3.0], np.float32)
TARGET = np.array([0.25, -2.0, 0.0], np.float32)
"""Of the first number a quarter is best; the second had best be the own one, the third the shared one."""


def data_of(x, y, *, count=None):
    rows = Rows(jnp.asarray(x), jnp.asarray(y), 0, len(y) if count is None else count, len(y))
    return Data(train=rows, valid=rows)


POINTS = data_of(np.zeros((2, 0), np.float32), np.stack([TARGET - 0.5, TARGET + 0.5]))


def point(value):
    return Weights({"point": jnp.asarray(value)})


def own_of(visits):
    return FedalaState([jnp.asarray(OWN)], [jnp.ones(3)], jnp.asarray(visits, jnp.int32))


def served(*, visits=1, data=POINTS, **options):
    method = fedala(mean((0,), 3), plan=FULL, share=1.0, **options)
    return np.asarray(method.serve(KEY, point(SHARED), own_of(visits), data).params["point"])


@pytest.mark.parametrize("rate", [0.0, 0.2, 5.0])
def test_one_step_of_the_shares_is_as_the_paper_has_it(rate):
    """W = clip(1 - rate (theta - m)(theta - theta_k), 0, 1): the gradient at W = 1 is theta - m."""
    share = np.clip(1 - rate * (SHARED - TARGET) * (SHARED - OWN), 0, 1)

    found = served(rate=rate, first_epochs=1)

    np.testing.assert_allclose(found, OWN + share * (SHARED - OWN), atol=1e-6)


def test_shares_that_have_settled_are_the_best_between_own_and_shared():
    """By coordinate the best point between theta_k and theta is the target, cut off at these ends."""
    found = served(rate=0.2, first_epochs=200)

    np.testing.assert_allclose(found, np.clip(TARGET, np.minimum(OWN, SHARED), np.maximum(OWN, SHARED)), atol=1e-5)


def test_a_client_that_never_trained_and_one_without_rows_get_the_shared_model():
    empty = Data(train=Rows(POINTS.train.x, POINTS.train.y, 0, jnp.asarray(0), 2), valid=POINTS.valid)

    np.testing.assert_array_equal(served(visits=0, rate=1.0), SHARED)
    np.testing.assert_array_equal(served(visits=1, rate=1.0, data=empty), SHARED)


@pytest.mark.parametrize(("visits", "epochs"), [(0, 0), (1, 7), (2, 1), (9, 1)])
def test_shares_are_learned_longest_the_first_time_there_is_something_to_choose(visits, epochs):
    method = fedala(mean((0,), 3), plan=FULL, rate=0.1, first_epochs=7)

    _, own, info = method.train(KEY, point(SHARED), own_of(visits), POINTS)

    assert (float(info["steps"]), int(own.visits)) == (epochs + 1, visits + 1)


def test_training_starts_from_the_mixture_and_goes_on_with_its_shares():
    method = fedala(mean((0,), 3), plan=FULL, rate=0.2, share=1.0, first_epochs=1)
    share = np.clip(1 - 0.2 * (SHARED - TARGET) * (SHARED - OWN), 0, 1)
    start = OWN + share * (SHARED - OWN)

    upload, own, info = method.train(KEY, point(SHARED), own_of(1), POINTS)

    local = (start + TARGET) / 2  # one step of half the way
    np.testing.assert_allclose(own.mix[0], share, atol=1e-6)
    np.testing.assert_allclose(own.top[0], local, atol=1e-6)
    np.testing.assert_allclose(method.views.trained(point(SHARED), own, upload).params["point"], local, atol=1e-6)
    assert float(info["global_share"]) == pytest.approx(share.mean(), abs=1e-6)


def test_only_the_head_is_mixed_and_lower_layers_are_the_shared_ones():
    model = mlp((3,), 3, hidden=(4,))
    method = fedala(model, plan=FULL, first_epochs=3)
    shared, other = model.init(KEY), model.init(jax.random.key(1))
    x = np.asarray(jax.random.normal(KEY, (6, 3)))
    own = method.join(KEY, other)._replace(visits=jnp.asarray(1, jnp.int32))

    found = method.serve(KEY, shared, own, data_of(x, x.argmin(1).astype(np.int32))).params

    np.testing.assert_array_equal(found["dense_0"]["kernel"], shared.params["dense_0"]["kernel"])
    ends = np.sort([shared.params["head"]["kernel"], other.params["head"]["kernel"]], axis=0)
    head = np.asarray(found["head"]["kernel"])
    assert ((head >= ends[0] - 1e-6) & (head <= ends[1] + 1e-6)).all()
    assert (head != np.asarray(shared.params["head"]["kernel"])).any()


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x, train, mask=None):
        return nn.Dense(3)(
            nn.BatchNorm(use_running_average=not train)(x, mask=None if mask is None else mask[:, None])
        )


def test_statistics_are_the_shared_ones_and_never_mixed():
    model = from_flax(Normed(), shape=(3,), task=CLASSIFICATION)
    method, shared = fedala(model, plan=FULL, adapt="norm"), model.init(KEY)
    x = 5 + np.asarray(jax.random.normal(KEY, (6, 3)))
    data = data_of(x, np.arange(6, dtype=np.int32) % 3)

    upload, own, _ = method.train(KEY, shared, method.join(KEY, shared), data)
    found = method.serve(KEY, shared, own, data)

    assert [leaf.shape for leaf in own.top] == [(3,), (3,)]  # scale and shift
    assert (np.asarray(upload.stats["BatchNorm_0"]["mean"]) != 0).all()
    jax.tree.map(np.testing.assert_array_equal, found.stats, shared.stats)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize(
    ("count", "share", "wanted"), [(5, 0.8, 4), (7, 0.5, 4), (1, 0.1, 1), (6, 1.0, 6), (0, 0.8, 0)]
)
def test_a_random_share_of_rows_without_repetition(count, share, wanted):
    """Whether the number of rows is known beforehand or not."""
    for given in (count, jnp.asarray(count)):
        rows = Rows(jnp.zeros((9, 1)), jnp.arange(9), 0, given, 8, weight=10.0 * jnp.arange(8))

        batch = some_of(KEY, rows, share).all()

        drawn = np.asarray(batch.y)[np.asarray(batch.mask)]
        assert len(drawn) == len(set(drawn)) == wanted
        assert (drawn < max(count, 1)).all()
        np.testing.assert_array_equal(np.asarray(batch.weight)[np.asarray(batch.mask)], 10.0 * drawn)


def test_other_rows_are_drawn_by_another_key():
    rows = Rows(jnp.zeros((20, 1)), jnp.arange(20), 0, 20, 20)
    drawn = {tuple(sorted(np.asarray(some_of(key, rows, 0.5).all().y[:10]))) for key in jax.random.split(KEY, 4)}

    assert len(drawn) == 4


def test_the_part_that_is_mixed():
    model = mlp((3,), 3, hidden=(4,))

    assert [
        sum(top_of(one, adapt).private) for one, adapt in ((model, None), (model, "all"), (mean((0,), 2), None))
    ] == [2, 4, 1]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"adapt": "hed"},
            UnknownChoice,
            "no part of this model is called 'hed'; did you mean 'head'.* Known: all, body, head",
        ),
        ({"rate": -1.0}, BadValue, "rate must be 0 or more"),
        ({"share": 0.0}, BadValue, r"share must be a number in \(0, 1\], got 0.0"),
        ({"first_epochs": -1}, BadValue, "first_epochs must be 0 or more"),
    ],
)
def test_bad_options_are_refused(options, error, said):
    with pytest.raises(error, match=said):
        fedala(mlp((3,), 3, hidden=(4,)), **options)
