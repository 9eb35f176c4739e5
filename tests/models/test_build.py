"""Models from plain functions and from flax modules: statistics, dropout, masks and parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from plures import tree
from plures.errors import UnknownChoice, Unsupported
from plures.models import from_flax, from_functions
from plures.models.build import CLASSIFICATION, REGRESSION, SEQUENCE, cross_entropy
from plures.types import Weights

KEYS = jax.random.split(jax.random.key(0), 4)
ALL = jnp.ones(4, bool)
X = jnp.array([[1.0, 0.0, 2.0], [3.0, -1.0, 0.0], [-2.0, 4.0, 1.0], [0.0, 1.0, 5.0]])


class Net(nn.Module):
    """Batch norm on the inputs, dropout on the hidden layer."""

    @nn.compact
    def __call__(self, x, train, mask=None, up_to_features=False):
        mask = None if mask is None else mask[:, None]
        x = nn.BatchNorm(use_running_average=not train, momentum=0.75)(x, mask=mask)
        x = nn.relu(nn.Dense(8)(x))
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return x if up_to_features else nn.Dense(2)(x)

    def hidden(self, x, train):
        return self(x, train, up_to_features=True)


class Plain(nn.Module):
    """No batch norm, no dropout, no mask."""

    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(2)(x)


NET = from_flax(Net(), shape=(3,), task=CLASSIFICATION, parts={"head": ("params/Dense_1/*",)}, features="hidden")
WEIGHTS = jax.jit(NET.init)(KEYS[0])
FORWARD, APPLY = jax.jit(NET.forward), jax.jit(NET.apply)


def norm_stats(stats):
    return stats["BatchNorm_0"]["mean"], stats["BatchNorm_0"]["var"]


def test_training_moves_the_statistics_towards_those_of_the_batch():
    """mean <- 3/4 * 0 + 1/4 * batch mean; var <- 3/4 * 1 + 1/4 * batch variance."""
    _, stats = FORWARD(KEYS[1], WEIGHTS, X, ALL)

    mean, var = norm_stats(stats)
    np.testing.assert_allclose(mean, 0.25 * X.mean(0), rtol=1e-5)
    np.testing.assert_allclose(var, 0.75 + 0.25 * X.var(0), rtol=1e-5)


def test_prediction_uses_the_running_statistics():
    shifted = {"BatchNorm_0": {"mean": jnp.ones(3), "var": jnp.full(3, 4.0)}}

    moved = APPLY(Weights(WEIGHTS.params, shifted), X)

    np.testing.assert_allclose(moved, APPLY(WEIGHTS, (X - 1.0) / 2.0), rtol=1e-4)


def test_training_normalizes_by_the_batch():
    """A shifted and scaled batch gives the same training outputs."""
    outputs, _ = FORWARD(KEYS[1], WEIGHTS, X, ALL)

    moved, _ = FORWARD(KEYS[1], WEIGHTS, 10.0 * X + 3.0, ALL)

    np.testing.assert_allclose(moved, outputs, atol=1e-4)


def test_masked_rows_do_not_change_the_batch_statistics():
    _, clean = FORWARD(KEYS[1], WEIGHTS, X[jnp.array([0, 1, 2, 0])], jnp.array([True, True, True, False]))

    _, spoiled = FORWARD(KEYS[1], WEIGHTS, X.at[3].set(1e3), jnp.array([True, True, True, False]))

    jax.tree.map(np.testing.assert_array_equal, spoiled, clean)
    np.testing.assert_allclose(norm_stats(clean)[0], 0.25 * X[:3].mean(0), rtol=1e-5)


def test_another_dropout_key_gives_other_training_outputs():
    first, _ = FORWARD(KEYS[1], WEIGHTS, X, ALL)
    second, _ = FORWARD(KEYS[2], WEIGHTS, X, ALL)

    assert (first != second).any()


def test_the_same_dropout_key_gives_the_same_training_outputs():
    first, _ = FORWARD(KEYS[1], WEIGHTS, X, ALL)
    second, _ = FORWARD(KEYS[1], WEIGHTS, X, ALL)

    np.testing.assert_array_equal(first, second)


def test_prediction_drops_nothing():
    layer = WEIGHTS.params
    normal = X / np.sqrt(1 + 1e-5)
    hidden = np.maximum(normal @ layer["Dense_0"]["kernel"] + layer["Dense_0"]["bias"], 0)

    expected = hidden @ layer["Dense_1"]["kernel"] + layer["Dense_1"]["bias"]

    np.testing.assert_allclose(APPLY(WEIGHTS, X), expected, rtol=1e-4, atol=1e-6)


def test_features_are_the_inputs_of_the_head():
    head = WEIGHTS.params["Dense_1"]

    features = NET.features(WEIGHTS, X)

    np.testing.assert_allclose(features @ head["kernel"] + head["bias"], APPLY(WEIGHTS, X), rtol=1e-4, atol=1e-6)


def test_a_flax_model_trains_under_vmap_as_each_client_alone():
    clients = tree.stack([WEIGHTS, NET.init(KEYS[3])])
    masks = jnp.array([[True, True, True, True], [True, True, False, False]])
    xs = jnp.stack([X, -X])

    together = jax.jit(jax.vmap(NET.forward))(KEYS[:2], clients, xs, masks)

    alone = tree.stack([FORWARD(KEYS[k], tree.at(clients, k), xs[k], masks[k]) for k in range(2)])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), together, alone)


def part(model, weights, name):
    found = tree.matches(weights, model.parts[name])
    return {path for path, inside in zip(tree.paths(weights), found, strict=True) if inside}


def test_the_norm_part_is_found_by_itself():
    assert part(NET, WEIGHTS, "norm") == {
        "params/BatchNorm_0/bias",
        "params/BatchNorm_0/scale",
        "stats/BatchNorm_0/mean",
        "stats/BatchNorm_0/var",
    }


def test_a_named_part_holds_the_leaves_of_its_patterns():
    assert part(NET, WEIGHTS, "head") == {"params/Dense_1/bias", "params/Dense_1/kernel"}


def test_a_batch_norm_under_another_name_is_whole_in_the_norm_part():
    class Renamed(nn.Module):
        @nn.compact
        def __call__(self, x, train, mask=None):
            return nn.Dense(2)(nn.BatchNorm(use_running_average=not train, name="bn")(x, mask=mask))

    model = from_flax(Renamed(), shape=(3,), task=CLASSIFICATION)

    assert part(model, model.init(KEYS[0]), "norm") == {
        "params/bn/bias",
        "params/bn/scale",
        "stats/bn/mean",
        "stats/bn/var",
    }


def test_a_module_without_mask_or_statistics_trains_too():
    model = from_flax(Plain(), shape=(3,), task=CLASSIFICATION)
    weights = model.init(KEYS[0])

    outputs, stats = model.forward(KEYS[1], weights, X, ALL)

    np.testing.assert_allclose(outputs, model.apply(weights, X), rtol=1e-6)
    assert jax.tree.leaves(stats) == []


def test_a_missing_features_method_is_refused():
    with pytest.raises(
        UnknownChoice, match=r"^no method of the module is called 'hiden'; did you mean 'hidden'\? "
    ):
        from_flax(Net(), shape=(3,), task=CLASSIFICATION, features="hiden")


def test_a_model_without_features_says_so():
    assert from_flax(Plain(), shape=(3,), task=CLASSIFICATION).features is None


def test_batch_norm_that_takes_no_mask_is_refused():
    class Maskless(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.Dense(2)(nn.BatchNorm(use_running_average=not train)(x))

    with pytest.raises(Unsupported, match="must take `mask`"):
        from_flax(Maskless(), shape=(3,), task=CLASSIFICATION)


def test_a_module_of_symbols_can_be_initialized():
    class Symbols(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.Embed(5, 2)(x)

    model = from_flax(Symbols(), shape=(7,), task=SEQUENCE, dtype=jnp.int32)

    assert model.init(KEYS[0]).params["Embed_0"]["embedding"].shape == (5, 2)


def double(params, x):
    return 2.0 * x[:, 0] * params["head"]["slope"]


def test_functions_become_a_model_of_weights():
    model = from_functions(init=lambda key: {"head": {"slope": jnp.asarray(3.0)}}, apply=double, task=REGRESSION)
    weights = model.init(KEYS[0])

    assert (weights.stats, model.apply(weights, X).tolist()) == ((), [6.0, 18.0, -12.0, 0.0])


def test_functions_train_as_they_predict_unless_told_otherwise():
    model = from_functions(init=lambda key: {"head": {"slope": jnp.asarray(3.0)}}, apply=double, task=REGRESSION)

    outputs, stats = model.forward(KEYS[1], model.init(KEYS[0]), X, ALL)

    assert (outputs.tolist(), stats) == ([6.0, 18.0, -12.0, 0.0], ())


def test_a_training_pass_of_its_own_gets_the_key():
    def noisy(key, params, x):
        return double(params, x) + jax.random.normal(key, (len(x),))

    model = from_functions(init=lambda key: {"head": {"slope": 1.0}}, apply=double, forward=noisy, task=REGRESSION)

    outputs, _ = model.forward(KEYS[1], model.init(KEYS[0]), X, ALL)

    np.testing.assert_allclose(outputs, 2.0 * X[:, 0] + jax.random.normal(KEYS[1], (4,)), rtol=1e-6)


def test_parts_of_functions_are_paths_within_params():
    model = from_functions(
        init=lambda key: {"head": {"slope": jnp.ones(())}, "body": jnp.ones(2)},
        apply=double,
        task=REGRESSION,
        parts={"head": ("head/*",)},
    )

    assert part(model, model.init(KEYS[0]), "head") == {"params/head/slope"}


def test_a_task_gives_the_model_its_loss_and_score():
    model = from_functions(init=lambda key: {}, apply=double, task=REGRESSION)

    assert (model.loss, model.metrics, model.score, model.higher_is_better) == (
        REGRESSION.loss,
        REGRESSION.metrics,
        "rmse",
        False,
    )


def test_cross_entropy_of_a_sequence_is_the_mean_over_its_places():
    """Probabilities 1/2 and 1/8 of the symbols seen: (log 2 + log 8) / 2 = log 4."""
    logits = jnp.log(jnp.array([[[0.5, 0.5], [0.125, 0.875]]]))

    np.testing.assert_allclose(cross_entropy(logits, jnp.zeros((1, 2), int)), [np.log(4)], rtol=1e-5)
