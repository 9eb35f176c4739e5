"""Planted groups: turned back or renamed back they are the data again; groups nest; uids decide, not rows."""

from functools import partial

import jax
import numpy as np
import pytest

from plures.data import from_arrays
from plures.data.partition import label_permutation_groups, label_set_groups, rotation_groups
from plures.data.partition.groups import draw_groups, of_rows, with_groups
from plures.data.partition.images import rotate
from plures.errors import BadValue, Unsupported

KEY = jax.random.key(0)
# Ten clients of twelve images each, none of them symmetric.
IMAGES = np.array(jax.random.uniform(jax.random.key(1), (120, 5, 5)))
LABELS = np.arange(120) % 6
CLIENT = np.repeat([f"c{k}" for k in range(10)], 12)
DATA = from_arrays(IMAGES, LABELS, CLIENT)
MAKERS = {
    "rotation_groups": rotation_groups,
    "label_permutation_groups": label_permutation_groups,
    "label_set_groups": partial(label_set_groups, num_clients=10),
}
PLANTED = {name: MAKERS[name] for name in ("rotation_groups", "label_permutation_groups")}
every_maker = pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
planted_groups = pytest.mark.parametrize("maker", PLANTED.values(), ids=PLANTED)


def groups_of_rows(federation):
    return np.repeat(federation.group, federation.count.sum(1))


def turned_back(federation, quarter_turns=1):
    turns = groups_of_rows(federation) * quarter_turns
    return np.stack([np.rot90(image, -turn) for image, turn in zip(federation.x, turns, strict=True)])


def test_turning_back_gives_every_client_its_images():
    planted = rotation_groups(DATA, num_groups=4)

    np.testing.assert_array_equal(turned_back(planted), DATA.x)
    assert planted.start is DATA.start


def test_two_groups_differ_by_half_a_turn():
    planted = rotation_groups(DATA, num_groups=2)

    np.testing.assert_array_equal(turned_back(planted, 2), DATA.x)


def test_the_angle_between_groups_can_be_given():
    planted = rotation_groups(DATA, num_groups=3, degrees=-90.0)

    np.testing.assert_array_equal(turned_back(planted, -1), DATA.x)


def test_group_g_is_turned_by_g_times_the_degrees():
    planted = rotation_groups(DATA, num_groups=3, degrees=25.0)

    for g in range(3):
        mine = groups_of_rows(planted) == g
        np.testing.assert_allclose(planted.x[mine], rotate(DATA.x[mine][..., None], 25.0 * g)[..., 0], atol=1e-6)


def test_colored_images_are_turned_as_gray_ones_are():
    colored = from_arrays(np.repeat(IMAGES[..., None], 3, axis=3), LABELS, CLIENT)

    planted = rotation_groups(colored, num_groups=4)

    assert planted.shape == (5, 5, 3)
    np.testing.assert_array_equal(planted.x[..., 2], rotation_groups(DATA, num_groups=4).x)


def test_renaming_back_gives_every_client_its_labels():
    planted = label_permutation_groups(DATA, num_groups=4)

    np.testing.assert_array_equal((planted.y - groups_of_rows(planted)) % 6, DATA.y)
    np.testing.assert_array_equal(planted.x, DATA.x)
    assert planted.y.dtype == DATA.y.dtype


def test_as_many_groups_as_classes_have_as_many_names_for_a_class():
    planted = label_permutation_groups(DATA, num_groups=6)

    assert set(planted.y[DATA.y == 2]) == set(range(6))


def test_rows_of_no_client_keep_their_labels():
    part = DATA.take([0, 1, 2])

    planted = label_permutation_groups(part, num_groups=3)

    np.testing.assert_array_equal(planted.y[36:], DATA.y[36:])


def test_rows_of_no_client_keep_their_images():
    planted = rotation_groups(DATA.take([0, 1, 2]), num_groups=3)

    np.testing.assert_array_equal(planted.x[36:], DATA.x[36:])


@every_maker
def test_the_given_federation_is_left_alone(maker):
    before = DATA.x.tobytes(), DATA.y.tobytes()

    maker(DATA, num_groups=3)

    assert (DATA.x.tobytes(), DATA.y.tobytes()) == before
    assert DATA.group is None


@every_maker
@pytest.mark.parametrize("num_groups", [1, 2, 3, 4])
def test_groups_are_equally_large_up_to_one_client(maker, num_groups):
    planted = maker(DATA, num_groups=num_groups)

    sizes = np.bincount(planted.group, minlength=num_groups)
    assert (planted.num_groups, len(sizes)) == (num_groups, num_groups)
    assert np.ptp(sizes) <= 1


@planted_groups
def test_the_seed_decides_who_is_in_which_group(maker):
    drawn = [maker(DATA, seed=seed).group.tolist() for seed in (0, 0, 1)]

    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_kinds_of_groups_are_drawn_independently():
    assert rotation_groups(DATA).group.tolist() != label_permutation_groups(DATA).group.tolist()


@planted_groups
def test_a_client_keeps_its_group_when_rows_are_shuffled(maker):
    order = np.asarray(jax.random.permutation(KEY, 10))

    shuffled = maker(DATA.take(order))

    expected = maker(DATA)
    np.testing.assert_array_equal(shuffled.group, expected.group[order])
    np.testing.assert_array_equal(shuffled.x, expected.x)
    np.testing.assert_array_equal(shuffled.y, expected.y)


@pytest.mark.parametrize("num_groups", [2, 3])
def test_label_sets_of_groups_are_disjoint_and_cover_all_classes(num_groups):
    planted = label_set_groups(DATA, num_groups=num_groups, num_clients=10)

    sets = [set(planted.y[groups_of_rows(planted) == g]) for g in range(num_groups)]
    assert sum(len(one) for one in sets) == 6 == len(set.union(*sets))
    assert len({len(one) for one in sets}) == 1


def test_label_sets_are_drawn():
    sets = {
        frozenset(label_set_groups(DATA, num_clients=4, seed=seed).rows_of("client-000", "train")[1])
        for seed in range(8)
    }

    assert len(sets) > 1


def test_who_gets_which_rows_of_a_label_set_is_drawn():
    made = [label_set_groups(DATA, num_groups=1, num_clients=4, seed=seed) for seed in (0, 1)]

    first_client = [set(planted.x[:30, 0, 0].tolist()) for planted in made]
    assert first_client[0] != first_client[1]


def test_a_group_s_rows_are_dealt_equally_and_at_random():
    """Two groups of three classes, 60 rows each, for five clients: twelve rows, of about four per class."""
    planted = label_set_groups(DATA, num_groups=2, num_clients=10)

    assert planted.count.sum(1).tolist() == [12] * 10
    for row in range(10):
        own = planted.y[12 * row : 12 * row + 12]
        assert len(np.unique(own)) == 3


def test_label_sets_of_a_real_target_are_sets_of_deciles():
    target = np.asarray(jax.random.permutation(KEY, 120)) * 1.0
    given = from_arrays(IMAGES, target, CLIENT, task="regression")

    planted = label_set_groups(given, num_groups=5, num_clients=10)

    deciles = [set(planted.y[groups_of_rows(planted) == g] // 12) for g in range(5)]
    assert [len(one) for one in deciles] == [2] * 5
    assert len(set.union(*deciles)) == 10


def test_label_sets_are_drawn_inside_each_domain():
    given = from_arrays(IMAGES, LABELS, CLIENT, domain={f"c{k}": k % 2 for k in range(10)})

    planted = label_set_groups(given, num_groups=3, num_clients=7)

    assert planted.group.tolist() == [0, 1, 2, 0, 0, 1, 2]
    assert planted.domain.tolist() == [0] * 4 + [1] * 3
    for domain in (0, 1):
        here = np.repeat(planted.domain, planted.count.sum(1)) == domain
        sets = [set(planted.y[here & (groups_of_rows(planted) == g)]) for g in range(3)]
        assert sum(len(one) for one in sets) == len(set.union(*sets)) == 6


def test_label_sets_nest_inside_groups():
    """Group g of before holds the groups 2 g and 2 g + 1, of disjoint classes."""
    given = rotation_groups(DATA, num_groups=2, degrees=0.0)

    planted = label_set_groups(given, num_groups=2, num_clients=9)

    assert (planted.num_groups, planted.group.tolist()) == (4, [0, 1, 0, 1, 0, 2, 3, 2, 3])
    sets = [set(planted.y[groups_of_rows(planted) == g]) for g in range(4)]
    assert [len(sets[0] | sets[1]), len(sets[2] | sets[3])] == [6, 6]
    assert [len(one) for one in sets] == [3] * 4


def test_a_part_of_a_federation_shares_out_the_classes_it_has():
    """The clients taken see the classes 0 and 1 alone: two groups at most."""
    given = from_arrays(IMAGES, np.repeat(np.arange(5), 24), CLIENT).take([0, 1, 2])

    assert label_set_groups(given, num_groups=2, num_clients=2).num_groups == 2
    with pytest.raises(BadValue) as refusal:
        label_set_groups(given, num_groups=3, num_clients=3)
    assert str(refusal.value) == "num_groups must be between 1 and the 2 classes there are, got 3"


@planted_groups
def test_groups_nest_by_a_formula(maker):
    """A client of groups g, h of two and three has the group 3 g + h of six; each g has every h."""
    given = rotation_groups(DATA, num_groups=2, degrees=180.0)

    planted = maker(given, num_groups=3, seed=5)

    assert planted.num_groups == 6
    np.testing.assert_array_equal(planted.group // 3, given.group)
    assert sorted(np.bincount(planted.group)) == [1, 1, 2, 2, 2, 2]


def test_nested_names_are_those_of_the_inner_group():
    given = rotation_groups(DATA, num_groups=2, degrees=0.0)

    planted = label_permutation_groups(given, num_groups=3, seed=5)

    inner = np.repeat(planted.group % 3, planted.count.sum(1))
    np.testing.assert_array_equal((planted.y - inner) % 6, DATA.y)


@planted_groups
def test_the_same_groups_twice_are_drawn_anew(maker):
    """Inside each of two groups there are both again, though seed and step are the same."""
    planted = maker(maker(DATA, num_groups=2), num_groups=2)

    assert sorted(np.bincount(planted.group)) == [2, 2, 3, 3]


def test_nested_turns_add_up():
    planted = rotation_groups(rotation_groups(DATA, num_groups=2), num_groups=4, seed=1)

    turns = np.repeat(planted.group // 4 * 2 + planted.group % 4, planted.count.sum(1))
    back = np.stack([np.rot90(image, -turn) for image, turn in zip(planted.x, turns, strict=True)])
    np.testing.assert_array_equal(back, DATA.x)


def test_a_first_group_is_not_nested():
    planted = with_groups(DATA, np.arange(10) % 2, 2)

    assert (planted.group.tolist(), planted.num_groups) == ([0, 1] * 5, 2)


def test_draws_cover_all_groups_for_every_seed():
    for seed in range(10):
        group = draw_groups(DATA, 3, jax.random.key(seed))
        assert sorted(np.bincount(group)) == [3, 3, 4]


# Ten clients in two domains with two groups each, of two or three.
PARTED = from_arrays(
    IMAGES,
    LABELS,
    CLIENT,
    domain={f"c{k}": k % 2 for k in range(10)},
    group={f"c{k}": k // 5 for k in range(10)},
)


def test_draws_are_even_inside_each_group_and_domain():
    for seed in range(10):
        group = draw_groups(PARTED, 2, jax.random.key(seed))
        for part in ([0, 2, 4], [1, 3], [6, 8], [5, 7, 9]):
            assert set(group[part]) == {0, 1}


def test_groups_and_domains_draw_differently():
    """Over keys, the two clients of one part are not in the same order of groups as those of another."""
    drawn = np.array([draw_groups(PARTED, 2, jax.random.key(seed)) for seed in range(12)])

    assert (drawn[:, 1] != drawn[:, 6]).any()


def test_draws_inside_groups_follow_the_uids():
    order = np.asarray(jax.random.permutation(KEY, 10))

    np.testing.assert_array_equal(draw_groups(PARTED.take(order), 2, KEY), draw_groups(PARTED, 2, KEY)[order])


def test_more_groups_than_the_smallest_group_has_clients_are_refused():
    with pytest.raises(BadValue) as refusal:
        draw_groups(PARTED, 3, KEY)

    assert (
        str(refusal.value)
        == "num_groups must be between 1 and the 2 clients of the smallest group or domain, got 3"
    )


def test_what_a_client_has_is_given_to_its_rows_and_minus_1_to_others():
    part = DATA.take([3, 1])

    found = of_rows(part, np.array([7, 9]))

    assert found.reshape(10, 12).tolist() == [[{3: 7, 1: 9}.get(k, -1)] * 12 for k in range(10)]


@pytest.mark.parametrize(
    ("maker", "options", "message"),
    [
        (rotation_groups, {"num_groups": 0}, "num_groups must be between 1 and the 10 clients there are, got 0"),
        (rotation_groups, {"num_groups": 11}, "num_groups must be between 1 and the 10 clients there are, got 11"),
        (rotation_groups, {"degrees": float("nan")}, "degrees must be a finite number, got nan"),
        (rotation_groups, {"degrees": float("inf")}, "degrees must be a finite number, got inf"),
        (
            label_permutation_groups,
            {"num_groups": 7},
            "num_groups must be between 1 and the 6 classes there are, got 7",
        ),
        (
            label_permutation_groups,
            {"num_groups": 0},
            "num_groups must be between 1 and the 6 classes there are, got 0",
        ),
        (label_set_groups, {"num_groups": 7}, "num_groups must be between 1 and the 6 classes there are, got 7"),
        (label_set_groups, {"num_groups": 0}, "num_groups must be between 1 and the 6 classes there are, got 0"),
        (label_set_groups, {"num_clients": 1}, "num_clients must be at least 2, one per group, got 1"),
    ],
)
def test_groups_that_cannot_be_are_refused(maker, options, message):
    with pytest.raises(BadValue) as refusal:
        maker(DATA, **options)

    assert str(refusal.value) == message


def test_a_label_set_of_as_many_rows_as_clients_gives_them_one_each():
    assert label_set_groups(DATA, num_groups=6, num_clients=120).count.sum(1).tolist() == [1] * 120


def test_every_domain_needs_a_client_for_every_label_set():
    given = from_arrays(IMAGES, LABELS, CLIENT, domain={f"c{k}": k % 2 for k in range(10)})

    with pytest.raises(BadValue) as refusal:
        label_set_groups(given, num_groups=3, num_clients=5)

    assert str(refusal.value) == "num_clients must be at least 6, one per group, got 5"


def test_a_label_set_with_fewer_rows_than_clients_is_refused():
    """One row of class 1 for two clients; the rows of the other set would not do."""
    given = from_arrays(np.zeros((10, 1)), np.array([0] * 9 + [1]), np.zeros(10, int))

    with pytest.raises(BadValue) as refusal:
        label_set_groups(given, num_groups=2, num_clients=4)

    wanted = "fewer: the classes of one group have 1 rows for 2 clients"
    assert str(refusal.value) == f"num_clients must be {wanted}, got 4"


def test_renaming_real_targets_is_refused():
    given = from_arrays(IMAGES, LABELS * 1.0, CLIENT, task="regression")

    with pytest.raises(Unsupported) as refusal:
        label_permutation_groups(given)

    assert str(refusal.value) == "label_permutation_groups renames classes, but these data are for regression"


def test_turning_what_is_no_image_is_refused():
    with pytest.raises(Unsupported, match=r"^rotation_groups needs images"):
        rotation_groups(from_arrays(np.zeros((20, 4)), np.zeros(20, int), np.arange(20) % 4))
