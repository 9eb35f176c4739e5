"""What clients find around their gradients at one model, and the steps that follow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.errors import UnknownChoice
from plures.methods.threshold.comparison import (
    center_rule,
    cluster_steps,
    compare_at,
    limit_lengths,
    mix_points,
    rescale,
)
from plures.methods.threshold.gradients import ThresholdOptions
from plures.types import Weights

POINTS = Weights(jnp.array([[0.0], [1.0], [10.0], [11.0], [jnp.nan]]))
MEMBERS = jnp.arange(5)


def compared(*, sparing=False, **options):
    """Everybody with a model of its own, at that of client 0, with the nearest two kept."""
    nearest = ThresholdOptions(radius="k_nearest:k=2", max_iter=200)
    rule = center_rule(
        nearest, options.get("aggregate", "center"), options.get("look", "euclidean"), sparing=sparing
    )
    return rule, compare_at(rule, MEMBERS, POINTS, jnp.ones(5), MEMBERS, jnp.asarray(0))


@pytest.mark.parametrize("sparing", [False, True])
def test_only_the_one_whose_model_it_is_makes_a_step_with_those_it_keeps(sparing):
    _, found = compared(sparing=sparing)

    assert found.who.tolist() == [0, 5, 5, 5, 5]  # 5 is nobody
    assert found.kept[0].tolist() == [True, True, False, False, False]
    np.testing.assert_allclose(found.mix[0], [0.5, 0.5, 0, 0, 0], atol=1e-4)
    np.testing.assert_allclose(found.mix[1:], 0.0)


def test_a_step_is_the_mean_of_the_kept_gradients_or_another_aggregate_of_them():
    rule, found = compared()
    steps = cluster_steps(rule, jax.random.key(0), POINTS, jnp.ones(5), found)
    np.testing.assert_allclose(steps.params[0], [0.5], atol=1e-4)

    rule, found = compared(aggregate="krum:num_byzantine=0")
    steps = cluster_steps(rule, jax.random.key(0), POINTS, jnp.ones(5), found)
    np.testing.assert_allclose(steps.params[0], [0.5], atol=1e-4)  # both score the same, and are averaged


def test_one_row_or_many_are_mixed_alike():
    points = jnp.array([[1.0], [2.0], [4.0]])
    single = jnp.array([[0.0, 0, 0], [0.5, 0.5, 0], [0, 0, 0]])
    many = single.at[0].set(jnp.array([0, 0, 1.0]))

    np.testing.assert_allclose(mix_points(single, points), [[0.0], [1.5], [0.0]])
    np.testing.assert_allclose(mix_points(many, points), [[4.0], [1.5], [0.0]])


def test_a_look_that_there_is_not_is_refused():
    with pytest.raises(UnknownChoice, match="cosine"):
        compared(look="sideways")


def test_directions_alone_do_not_let_a_huge_gradient_in():
    points = {"a": jnp.array([[3.0, 4.0], [6.0, 8.0], [3e6, 4e6], [0.0, 1.0]])}

    found = limit_lengths(points, jnp.array([1.0, 1.0, 1.0, 0.0]))

    np.testing.assert_allclose(np.linalg.norm(found["a"], axis=1), [5.0, 10.0, 10.0, 1.0], rtol=1e-6)


def test_points_are_seen_by_direction_or_with_layers_of_equal_length():
    points = {"a": jnp.array([[3.0, 4.0], [6.0, 8.0]]), "b": jnp.array([[0.0], [0.0]])}

    cosine = rescale("cosine", points)
    np.testing.assert_allclose(cosine["a"], [[0.6, 0.8], [0.6, 0.8]], rtol=1e-6)
    layers = rescale("layers", {**points, "b": jnp.array([[100.0], [300.0]])})
    # The median squared length of each leaf is 1 afterwards: (25 + 100) / 2 and (1e4 + 9e4) / 2 before.
    np.testing.assert_allclose(layers["a"][0], np.array([3.0, 4.0]) / np.sqrt(62.5), rtol=1e-6)
    np.testing.assert_allclose(layers["b"][:, 0], np.array([100.0, 300.0]) / np.sqrt(5e4), rtol=1e-6)
