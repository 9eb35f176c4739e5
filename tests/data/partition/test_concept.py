"""Concept shift: how many classes move and where to; what is added to a real target."""

import jax
import numpy as np
import pytest

from plures.data import from_arrays
from plures.data.partition import concept_shift
from plures.errors import BadValue, Unsupported

# Twelve clients of twenty rows; of each of ten classes every client has two.
CLIENT = np.repeat([f"c{k:02d}" for k in range(12)], 20)
X = np.array(jax.random.normal(jax.random.key(1), (240, 4))) * [1.0, 2.0, 0.5, 3.0] + [0.0, 5.0, -1.0, 2.0]
CLASSES = from_arrays(X, np.arange(240) % 10, CLIENT, num_classes=10)
TARGETS = from_arrays(X, X @ [1.0, -1.0, 2.0, 0.5] + np.sin(np.arange(240)), CLIENT, task="regression")


def rows_of_group(federation, g):
    return np.repeat(federation.group, federation.count.sum(1)) == g


def renaming(shifted, g, given=CLASSES):
    """What group g calls each class: exactly one name for each."""
    mine = rows_of_group(shifted, g)
    pairs = {(int(before), int(after)) for before, after in zip(given.y[mine], shifted.y[mine], strict=True)}
    assert len(pairs) == 10
    return np.array([after for _, after in sorted(pairs)])


@pytest.mark.parametrize("given", [CLASSES, TARGETS], ids=["classes", "targets"])
def test_at_dial_0_nothing_changes_but_the_groups_are_there(given):
    shifted = concept_shift(given, dial=0.0, num_groups=3)

    np.testing.assert_array_equal(shifted.y, given.y)
    assert np.bincount(shifted.group).tolist() == [4, 4, 4]
    assert shifted.num_groups == 3


@pytest.mark.parametrize("given", [CLASSES, TARGETS], ids=["classes", "targets"])
def test_inputs_and_splits_stay(given):
    shifted = concept_shift(given)

    assert (shifted.x is given.x, shifted.start is given.start, shifted.y.dtype) == (True, True, given.y.dtype)


@pytest.mark.parametrize("given", [CLASSES, TARGETS], ids=["classes", "targets"])
def test_the_seed_decides_the_shift(given):
    drawn = [concept_shift(given, seed=seed).y for seed in (0, 0, 1)]

    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


@pytest.mark.parametrize("given", [CLASSES, TARGETS], ids=["classes", "targets"])
def test_the_order_of_rows_does_not_matter(given):
    order = np.asarray(jax.random.permutation(jax.random.key(2), 12))

    shuffled, expected = concept_shift(given.take(order)), concept_shift(given)

    np.testing.assert_array_equal(shuffled.y, expected.y)
    np.testing.assert_array_equal(shuffled.group, expected.group[order])


@pytest.mark.parametrize("given", [CLASSES, TARGETS], ids=["classes", "targets"])
def test_group_0_keeps_what_it_means(given):
    shifted = concept_shift(given, dial=1.0, num_groups=3)

    first = rows_of_group(shifted, 0)
    np.testing.assert_array_equal(shifted.y[first], given.y[first])


@pytest.mark.parametrize("given", [CLASSES, TARGETS], ids=["classes", "targets"])
def test_rows_of_no_client_stay(given):
    shifted = concept_shift(given.take([0, 1, 2, 3]), dial=1.0)

    np.testing.assert_array_equal(shifted.y[80:], given.y[80:])


@pytest.mark.parametrize("dial", [0.3, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("num_groups", [2, 3])
def test_a_dial_of_the_classes_moves_in_every_other_group(dial, num_groups):
    """So many that round(10 dial) of ten change their name, the same ones in every group; none shares a name."""
    shifted = concept_shift(CLASSES, dial=dial, num_groups=num_groups)

    moved = []
    for g in range(1, num_groups):
        names = renaming(shifted, g)
        assert sorted(names) == list(range(10))
        moved.append(tuple(np.flatnonzero(names != np.arange(10))))
    assert {len(classes) for classes in moved} == {round(10 * dial)}
    assert len(set(moved)) == 1


def test_groups_disagree_with_one_another_about_every_moved_class():
    shifted = concept_shift(CLASSES, dial=0.5, num_groups=4)

    names = np.stack([renaming(shifted, g) for g in range(4)])
    for column in names[:, (names[0] != names[1])].T:
        assert len(set(column)) == 4


def test_group_g_moves_by_g_steps_of_one_circle():
    """What group 1 does once, group g does g times."""
    shifted = concept_shift(CLASSES, dial=0.7, num_groups=4)

    once = renaming(shifted, 1)
    np.testing.assert_array_equal(renaming(shifted, 2), once[once])
    np.testing.assert_array_equal(renaming(shifted, 3), once[once[once]])


def test_the_moved_classes_are_drawn():
    moved = {
        tuple(np.flatnonzero(renaming(concept_shift(CLASSES, dial=0.3, seed=k), 1) != np.arange(10)))
        for k in range(5)
    }

    assert len(moved) > 1


def test_there_may_be_as_many_groups_as_classes():
    shifted = concept_shift(CLASSES, dial=1.0, num_groups=10)

    assert sorted(np.unique(shifted.group)) == list(range(10))
    assert len({tuple(renaming(shifted, g)) for g in range(10)}) == 10


def test_one_group_agrees_with_itself():
    np.testing.assert_array_equal(concept_shift(CLASSES, dial=1.0, num_groups=1).y, CLASSES.y)
    np.testing.assert_array_equal(concept_shift(TARGETS, dial=1.0, num_groups=1).y, TARGETS.y)


@pytest.mark.parametrize("dial", [0.25, 1.0])
@pytest.mark.parametrize("num_groups", [2, 4])
def test_what_is_added_deviates_by_the_dial_times_the_target_s_deviation(dial, num_groups):
    shifted = concept_shift(TARGETS, dial=dial, num_groups=num_groups)

    added = (shifted.y - TARGETS.y)[~rows_of_group(shifted, 0)]
    assert added.std() == pytest.approx(dial * TARGETS.y.std(), rel=1e-6)


def slopes(shifted, g):
    """The linear function of the inputs that group g adds: its slopes, and how far off a line it is."""
    mine = rows_of_group(shifted, g)
    centered = TARGETS.x - TARGETS.x.mean(0)
    found, rest, *_ = np.linalg.lstsq(centered[mine], (shifted.y - TARGETS.y)[mine])
    return found, rest


def test_every_group_adds_a_linear_function_of_its_own_that_is_0_at_the_mean_input():
    shifted = concept_shift(TARGETS, dial=0.5, num_groups=4)

    found = [slopes(shifted, g) for g in (1, 2, 3)]
    assert all(rest < 1e-9 for _, rest in found)
    directions = [slope / np.linalg.norm(slope) for slope, _ in found]
    assert all(abs(directions[a] @ directions[b]) < 0.99 for a, b in [(0, 1), (0, 2), (1, 2)])


def test_the_dial_scales_what_is_added():
    half, whole = (concept_shift(TARGETS, dial=dial).y - TARGETS.y for dial in (0.5, 1.0))

    np.testing.assert_allclose(whole, 2 * half, atol=1e-9)


def test_a_part_of_a_federation_is_measured_by_its_own_rows():
    """The others' targets and inputs, however large, change nothing."""
    large = from_arrays(
        np.where(np.arange(240)[:, None] < 120, TARGETS.x, 1e6),
        np.where(np.arange(240) < 120, TARGETS.y, -1e9),
        CLIENT,
        task="regression",
        split=np.repeat([0, 1, 2], [240, 0, 0]),
    )
    alone = from_arrays(TARGETS.x[:120], TARGETS.y[:120], CLIENT[:120], task="regression", split=[0] * 120)

    found, expected = concept_shift(large.take(np.arange(6))), concept_shift(alone)

    np.testing.assert_allclose(found.y[:120], expected.y, rtol=1e-9)


def test_whole_numbered_targets_become_real():
    given = from_arrays(X, np.arange(240) % 7, CLIENT, task="regression")

    shifted = concept_shift(given, dial=1.0)

    added = (shifted.y - given.y)[rows_of_group(shifted, 1)]
    assert shifted.y.dtype == np.float64
    assert added.std() == pytest.approx(given.y.std(), rel=1e-6)


def test_constant_inputs_add_nothing():
    given = from_arrays(np.ones((240, 2)), TARGETS.y, CLIENT, task="regression")

    np.testing.assert_array_equal(concept_shift(given, dial=1.0).y, given.y)


def test_images_are_inputs_of_a_linear_function_too():
    given = from_arrays(X.reshape(240, 2, 2), TARGETS.y, CLIENT, task="regression", split=[0] * 240)
    flat = from_arrays(X, TARGETS.y, CLIENT, task="regression", split=[0] * 240)

    np.testing.assert_array_equal(concept_shift(given).y, concept_shift(flat).y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dial": -0.1}, "dial must be a number in [0, 1], got -0.1"),
        ({"dial": 1.1}, "dial must be a number in [0, 1], got 1.1"),
        ({"dial": float("nan")}, "dial must be a number in [0, 1], got nan"),
        ({"dial": 0.1}, "dial must be 0, or at least 0.2 for 2 groups and 10 classes, got 0.1"),
        (
            {"dial": 0.2, "num_groups": 3},
            "dial must be 0, or at least 0.3 for 3 groups and 10 classes, got 0.2",
        ),
        ({"num_groups": 0}, "num_groups must be between 1 and the 12 clients there are, got 0"),
        ({"num_groups": 13}, "num_groups must be between 1 and the 12 clients there are, got 13"),
        ({"num_groups": 11}, "num_groups must be at most the 10 classes there are, got 11"),
    ],
)
def test_a_shift_that_cannot_be_is_refused(options, message):
    with pytest.raises(BadValue) as refusal:
        concept_shift(CLASSES, **options)

    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("y", "task", "words"),
    [
        (np.zeros(240, int), "density", "density"),
        (np.zeros((240, 3), int), "sequence", "sequence"),
        (np.zeros((240, 3)), "regression", "regression of several targets"),
    ],
)
def test_other_tasks_are_refused(y, task, words):
    with pytest.raises(Unsupported) as refusal:
        concept_shift(from_arrays(X, y, CLIENT, task=task))

    wanted = "concept_shift is for classification and regression of one target"
    assert str(refusal.value) == f"{wanted}, but these data are for {words}"


def test_a_real_target_without_inputs_is_refused():
    with pytest.raises(Unsupported) as refusal:
        concept_shift(from_arrays(np.zeros((240, 0)), TARGETS.y, CLIENT, task="regression"))

    assert str(refusal.value) == "concept_shift of a real target needs inputs, and these data have none"
