"""The embedded digits: every image once, quarter turns by group, sizes by seed."""

import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits

from plures import data
from plures.data.partition.images import rotate_each
from plures.data.partition.quantity import sizes_of_kind
from plures.data.sets.digits import SMALLEST, digits
from plures.errors import BadValue, UnknownChoice

IMAGES = load_digits().images / 16.0


def as_set(images):
    return sorted(map(tuple, images.reshape(len(images), -1).round(6).tolist()))


@pytest.fixture(scope="module")
def federation():
    return digits()


def test_the_default_federation_has_forty_clients_in_four_groups(federation):
    assert (federation.num_clients, federation.facts, federation.shape, federation.num_classes) == (
        40,
        {"num_clients": 40, "num_groups": 4},
        (8, 8),
        10,
    )


def test_turning_back_gives_every_image_once(federation):
    back = federation.x.copy()
    for row in range(federation.num_clients):
        first, size = federation.start[row, 0], federation.count[row].sum()
        own = slice(first, first + size)
        back[own] = np.rot90(federation.x[own], -federation.group[row], axes=(1, 2))

    assert as_set(back) == as_set(IMAGES.astype(np.float32))


def test_every_client_has_at_least_the_smallest_size(federation):
    assert federation.count.sum(1).min() >= SMALLEST


def test_every_client_has_rows_of_every_split(federation):
    assert (federation.count > 0).all()


@pytest.mark.parametrize(("num_clients", "spread"), [(4, 0.5), (40, 0.5), (40, 2.0), (119, 1.0), (7, 0.0)])
def test_sizes_add_up_to_all_images(num_clients, spread):
    sizes = sizes_of_kind("lognormal", jax.random.key(0), 1797, num_clients, spread=spread, smallest=SMALLEST)

    assert sizes.sum() == 1797
    assert sizes.min() >= SMALLEST


def test_no_spread_gives_equal_sizes():
    sizes = sizes_of_kind("lognormal", jax.random.key(0), 1797, 40, spread=0.0, smallest=SMALLEST)

    assert sizes.max() - sizes.min() <= 1


def test_every_image_is_turned_by_its_own_quarter_turns():
    image = np.array([[1.0, 2.0], [3.0, 4.0]])

    found = rotate_each(np.stack([image] * 4), 90.0 * np.array([2, 0, 3, 1]))

    assert found.tolist() == [[[4, 3], [2, 1]], [[1, 2], [3, 4]], [[3, 1], [4, 2]], [[2, 4], [1, 3]]]


def test_turning_leaves_the_given_images_alone():
    images = np.arange(4.0).reshape(1, 2, 2)

    rotate_each(images, np.array([90.0]))

    assert images.tolist() == [[[0.0, 1.0], [2.0, 3.0]]]


def test_another_seed_gives_other_clients(federation):
    other = digits(seed=1)

    assert other.count.tolist() != federation.count.tolist()


def test_the_same_seed_gives_the_same_federation(federation):
    again = data.load("digits")

    np.testing.assert_array_equal(again.x, federation.x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_groups": 5}, "num_groups must be 1 to 4 (quarter turns), got 5"),
        ({"num_clients": 3}, "num_clients must be between num_groups and 119, got 3"),
        ({"num_clients": 120}, "num_clients must be between num_groups and 119, got 120"),
    ],
)
def test_what_the_images_do_not_allow_is_refused(options, message):
    with pytest.raises(BadValue) as refusal:
        digits(**options)

    assert str(refusal.value) == message


def test_loading_checks_the_options():
    with pytest.raises(UnknownChoice) as refusal:
        data.load("digits", clients=3)

    assert str(refusal.value) == (
        "no option of digits is called 'clients'; did you mean 'num_clients'? "
        "Known: num_clients, num_groups, seed, spread"
    )


def test_loading_an_unknown_name_is_refused():
    with pytest.raises(
        UnknownChoice, match=r"^no data set, file or folder is called 'digts'; did you mean 'digits'\?"
    ):
        data.load("digts")


@pytest.mark.slow
def test_a_world_loads_as_its_federation():
    assert data.load("mean_estimation", num_clients=6, rows=20).count.tolist() == [[20, 0, 0]] * 6
