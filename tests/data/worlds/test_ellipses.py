"""Two ellipses per group: points lie where they should, are dealt without replacement, and no line does better."""

import math

import numpy as np
import pytest

from plures import run
from plures.data import load
from plures.data.worlds.known_optima import ellipses
from plures.errors import BadValue
from plures.methods.clustering.oracle import oracle
from plures.types import Plan


@pytest.fixture(scope="module")
def world():
    return ellipses(seed=3)


def rows_of(world, client, split="train"):
    return world.federation.rows_of(world.federation.names[client], split)


def pooled(world, group, split="train"):
    parts = [rows_of(world, client, split) for client in np.flatnonzero(world.federation.group == group)]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def test_lines_of_groups_stand_at_120_degrees(world):
    assert world.federation.group.tolist() == [0, 1, 2] * 20
    np.testing.assert_allclose(np.linalg.norm(world.truth, axis=1), 1.0)
    np.testing.assert_allclose(world.truth[:3] @ world.truth[:3].T, np.eye(3) * 1.5 - 0.5, atol=1e-12)
    np.testing.assert_array_equal(world.truth[:3], world.truth[57:])


@pytest.mark.parametrize("group", [0, 1, 2])
def test_points_lie_on_the_ellipse_of_their_class(world, group):
    x, y = pooled(world, group, "test")
    line = world.truth[group]
    along, across = x @ line - np.where(y == 1, 2.52, -2.52), x @ [-line[1], line[0]]

    inside = (along / 4) ** 2 + across**2

    assert inside.max() <= 1 + 1e-6
    # The squared radius of a uniform point of the disc is uniform: mean 1/2, deviation 1/sqrt(12).
    assert inside.mean() == pytest.approx(0.5, abs=5 / math.sqrt(12 * len(x)))
    assert len(x) == 4000
    assert (y == 1).sum() == 2000


@pytest.mark.parametrize("balanced", [True, False])
def test_a_group_has_as_many_points_of_either_class(balanced):
    world = ellipses(seed=3, balanced=balanced)

    ones = [rows_of(world, client)[1].sum() for client in range(60)]

    assert [pooled(world, group)[1].sum() for group in range(3)] == [100] * 3
    assert (set(ones) == {5}) is balanced


def test_free_clients_are_dealt_the_points_of_the_balanced_ones(world):
    free = ellipses(seed=3, balanced=False)

    for group in range(3):
        one, other = pooled(world, group)[0], pooled(free, group)[0]
        np.testing.assert_array_equal(np.sort(one, axis=0), np.sort(other, axis=0))
    np.testing.assert_array_equal(rows_of(world, 7, "test")[0], rows_of(free, 7, "test")[0])


def test_the_truth_is_as_good_as_the_formula_says():
    """Of an ellipse at 2.52 with semi-axis 4, the part beyond the origin is a segment of the disc: (acos c - c s) / pi."""
    world = ellipses(seed=1, test_rows=2000)

    right = [
        ((x @ world.truth[client] > 0) == y).mean()
        for client in range(60)
        for x, y in [rows_of(world, client, "test")]
    ]

    cut = 2.52 / 4
    best = 1 - (math.acos(cut) - cut * math.sqrt(1 - cut**2)) / math.pi
    assert world.facts == {"best_accuracy": pytest.approx(best)}
    assert np.mean(right) == pytest.approx(best, abs=5 * math.sqrt(best * (1 - best) / 120_000))


def test_known_groups_come_near_the_best(world):
    done = run(
        oracle(world.model, num_groups=3, plan=Plan(steps=5, batch=None, lr=0.02)), world.federation, rounds=30
    )

    accuracy = done.record.latest("personal", "test").metrics["accuracy"]

    assert np.mean(accuracy) == pytest.approx(0.871, abs=0.01)


def test_the_seed_decides_what_is_drawn():
    one, again, other = (ellipses(seed=seed).federation.x for seed in (0, 0, 1))

    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


@pytest.mark.parametrize("options", [{"rows": 5}, {"test_rows": 3}, {"num_clients": 2}, {"rows": 0}])
def test_sizes_that_cannot_work_are_refused(options):
    with pytest.raises(BadValue):
        ellipses(**options)


def test_the_world_is_loaded_by_name():
    federation = load("ellipses:num_clients=7,balanced=false")

    assert federation.num_classes == 2
    assert federation.num_groups == 3
    assert federation.count.tolist() == [[10, 10, 200]] * 7
