"""The table of all models: groups, equal models, steps with momentum, clusters that are united."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.methods.threshold.model_table import (
    HeavyBall,
    draw_groups,
    first_alike,
    group_of,
    move_models,
    new_table,
    num_distinct,
    unite_clusters,
)
from plures.types import Weights


def table(groups=1, momentum=False):
    """Six clients at the same point in the plane."""
    return new_table(jax.random.key(0), Weights({"point": jnp.zeros((6, 2))}), groups, momentum=momentum)


def steps(value):
    return Weights({"point": jnp.full((6, 2), value)})


def test_every_client_is_in_one_group_and_groups_are_of_even_size():
    server = table(groups=4)

    members = np.asarray(server.members)
    assert sorted(members[members < 6].tolist()) == list(range(6))
    assert sorted((members < 6).sum(1).tolist()) == [1, 1, 2, 2]
    assert num_distinct(server).tolist() == [1] * 4  # all models are the same at first
    np.testing.assert_array_equal(np.asarray(group_of(server))[members[members < 6]], np.nonzero(members < 6)[0])
    again = draw_groups(server)
    assert not np.array_equal(again.members, members)


def test_uniting_takes_the_median_of_a_cluster_so_that_one_model_astray_does_not_count():
    server = table()
    astray = jnp.arange(12.0).reshape(6, 2).at[2].set(1e6)
    server = server._replace(models=Weights({"point": astray}), label=jnp.zeros(6, int), steps=jnp.ones(6, int))

    after = np.asarray(unite_clusters(server).models.params["point"])

    np.testing.assert_array_equal(after, np.tile([7.0, 8.0], (6, 1)))  # of 0, 2, 6, 8, 10 and 1e6


def test_uniting_leaves_out_who_never_moved():
    server = table()
    models = Weights({"point": jnp.arange(12.0).reshape(6, 2)})
    label = jnp.array([0, 0, 2, 2, 2, 5])
    server = server._replace(models=models, label=label, steps=jnp.array([1, 1, 0, 1, 1, 1]))

    after = np.asarray(unite_clusters(server).models.params["point"])

    # Client 2 has made no step: it stays, and the rest of its cluster are clients 3 and 4.
    np.testing.assert_array_equal(after, [[1, 2], [1, 2], [4, 5], [7, 8], [7, 8], [10, 11]])


def test_equal_models_are_found_by_their_bits_and_only_inside_a_group():
    values = jnp.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])

    assert first_alike(Weights(values), jnp.array([0, 0, 0, 1])).tolist() == [0, 0, 2, 3]
    assert first_alike(Weights(values), jnp.zeros(4, jnp.int32)).tolist() == [0, 0, 2, 0]


def test_models_that_are_the_same_travel_once_and_come_first():
    server = table()
    points = jnp.array([[1.0, 0.0]] * 3 + [[2.0, 0.0], [1.0, 0.0], [3.0, 0.0]])

    server = draw_groups(server._replace(models=Weights({"point": points})))

    assert num_distinct(server).tolist() == [3]
    assert server.queue[0, :3].tolist() == [0, 3, 5]


def test_only_who_moved_makes_a_step():
    moved = jnp.array([True, False, True, False, False, True])

    after = move_models(HeavyBall(0.5), table(), steps(2.0), moved)

    np.testing.assert_array_equal(after.models.params["point"][:, 0], [-1, 0, -1, 0, 0, -1])
    assert after.steps.tolist() == [1, 0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("dampened", "second"),
    [
        (False, 0.5 * 1.0 + 4.0),  # a sum: b_2 = momentum b_1 + v_2
        (True, 0.5 * 1.0 + 0.5 * 4.0),  # a running mean that begins with the first step
    ],
)
def test_momentum_is_a_sum_or_a_running_mean_of_steps(dampened, second):
    everyone, descent = jnp.ones(6, bool), HeavyBall(1.0, 0.5, dampened)

    after = move_models(descent, table(momentum=True), steps(1.0), everyone)
    after = move_models(descent, after, steps(4.0), everyone)

    np.testing.assert_allclose(after.models.params["point"], -(1.0 + second))


def test_a_raw_step_leaves_momentum_out_but_feeds_it():
    everyone, descent = jnp.ones(6, bool), HeavyBall(1.0, 0.5)

    after = move_models(descent, table(momentum=True), steps(1.0), everyone)
    after = move_models(descent, after, steps(4.0), everyone, raw=True)

    np.testing.assert_allclose(after.models.params["point"], -(1.0 + 4.0))
    np.testing.assert_allclose(after.memory["point"], 0.5 * 1.0 + 4.0)
