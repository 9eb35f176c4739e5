"""Feature shift: kinds shared out among clients, images changed for their own client alone."""

import jax
import numpy as np
import pytest

from plures.data import from_arrays
from plures.data.partition import feature_shift, rotation
from plures.data.partition.images import KINDS, rotate
from plures.data.partition.shift import chance_of
from plures.errors import BadValue, UnknownChoice, Unsupported

# Ten clients of one to ten gray images.
SIZES = np.arange(1, 11)
CLIENT = np.repeat([f"c{k}" for k in range(10)], SIZES)
IMAGES = np.array(jax.random.uniform(jax.random.key(1), (55, 8, 8)))
LABELS = np.arange(55) % 5
DATA = from_arrays(IMAGES, LABELS, CLIENT)
ORDER = np.asarray(jax.random.permutation(jax.random.key(2), 10))


def of_client(federation, row):
    first = federation.start[row, 0]
    return federation.x[first : first + federation.count[row].sum()]


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (8, 8, 3)])
def test_all_kinds_at_any_strength_stay_between_black_and_white(shape):
    images = np.broadcast_to(IMAGES.reshape(55, 8, 8, *[1] * (len(shape) - 2)), (55, *shape))
    given = from_arrays(images, LABELS, CLIENT)

    for strength in (0.5, 1.0, 4.0):
        shifted = feature_shift(given, strength=strength)
        assert shifted.shape == shape
        assert (shifted.x.min() >= 0, shifted.x.max() <= 1) == (True, True)
        assert np.isfinite(shifted.x).all()


def test_at_strength_0_nothing_changes():
    np.testing.assert_array_equal(feature_shift(DATA, strength=0.0).x, DATA.x)


def test_labels_and_splits_stay():
    shifted = feature_shift(DATA)

    assert (shifted.y is DATA.y, shifted.start is DATA.start, shifted.names) == (True, True, DATA.names)


def test_the_given_federation_is_left_alone():
    before = DATA.x.tobytes()

    feature_shift(DATA)
    rotation(DATA)

    assert (DATA.x.tobytes(), DATA.group, DATA.domain) == (before, None, None)


@pytest.mark.parametrize("kinds", [("none", "invert"), ("invert", "none", "invert"), tuple(KINDS)])
def test_kinds_are_given_evenly(kinds):
    shifted = feature_shift(DATA, kinds=kinds)

    sizes = np.bincount(shifted.domain, minlength=len(kinds))
    assert len(sizes) == len(kinds)
    assert np.ptp(sizes) <= 1


def test_the_kind_is_the_domain_and_the_group():
    shifted = feature_shift(DATA, kinds=("none", "invert", "none"))

    np.testing.assert_array_equal(shifted.domain, shifted.group)
    assert (shifted.num_domains, shifted.num_groups) == (3, 3)


@pytest.mark.parametrize("kind", ["invert", "blur", "contrast", "resolution", "rotation"])
def test_each_client_s_images_are_changed_by_its_kind(kind):
    shifted = feature_shift(DATA, kinds=("none", kind), strength=0.5)

    for row in range(10):
        before = of_client(DATA, row)
        after = KINDS[kind](before[..., None], 0.5, None)[..., 0]
        np.testing.assert_allclose(of_client(shifted, row), after if shifted.domain[row] else before, atol=1e-6)


# Two domains with two groups each, of two or three clients.
PARTED = from_arrays(
    IMAGES,
    LABELS,
    CLIENT,
    domain={f"c{k}": k % 2 for k in range(10)},
    group={f"c{k}": k // 5 for k in range(10)},
)


def test_kinds_nest_inside_groups_and_domains():
    """With two kinds, domain d becomes 2 d + kind and group g becomes 2 g + kind; every part has both kinds."""
    shifted = feature_shift(PARTED, kinds=("none", "invert"))

    kind = shifted.domain % 2
    assert (shifted.num_domains, shifted.num_groups) == (4, 4)
    np.testing.assert_array_equal(shifted.domain, PARTED.domain * 2 + kind)
    np.testing.assert_array_equal(shifted.group, PARTED.group * 2 + kind)
    assert len(set(zip(shifted.domain.tolist(), shifted.group.tolist(), strict=True))) == 8
    for row in range(10):
        before = of_client(PARTED, row)
        np.testing.assert_allclose(of_client(shifted, row), 1 - before if kind[row] else before, atol=1e-6)


def test_more_kinds_than_the_smallest_part_has_clients_are_refused():
    with pytest.raises(
        BadValue, match=r"^kinds must be a list of 1 to 2 kinds, so that every group and domain has"
    ):
        feature_shift(PARTED, kinds=("none", "invert", "blur"))


def test_the_seed_decides_kinds_and_noise():
    drawn = [feature_shift(DATA, kinds=("noise", "none"), seed=seed) for seed in (0, 0, 1)]

    np.testing.assert_array_equal(drawn[0].x, drawn[1].x)
    assert drawn[0].domain.tolist() != drawn[2].domain.tolist()


def test_another_seed_gives_other_noise():
    drawn = [feature_shift(DATA, kinds=("noise",), seed=seed).x for seed in (0, 1)]

    assert (drawn[0] != drawn[1]).any()


@pytest.mark.parametrize("kinds", [("noise",), ("background",), ("none", "noise", "background")])
def test_the_order_of_rows_does_not_matter(kinds):
    shuffled, expected = feature_shift(DATA.take(ORDER), kinds=kinds), feature_shift(DATA, kinds=kinds)

    np.testing.assert_array_equal(shuffled.x, expected.x)
    np.testing.assert_array_equal(shuffled.domain, expected.domain[ORDER])


@pytest.mark.parametrize("kind", ["noise", "background"])
def test_a_client_s_noise_does_not_depend_on_who_else_is_there(kind):
    alone, together = (feature_shift(part, kinds=(kind,)) for part in (DATA.take([7, 4]), DATA))

    np.testing.assert_array_equal(of_client(alone, 0), of_client(together, 7))
    np.testing.assert_array_equal(of_client(alone, 1), of_client(together, 4))


def test_rows_of_no_client_stay():
    shifted = feature_shift(DATA.take([9]), kinds=("invert",))

    np.testing.assert_array_equal(shifted.x[:45], DATA.x[:45])


def test_chance_counts_the_rows_of_each_client():
    chance = chance_of(DATA, jax.random.key(0))

    np.testing.assert_array_equal(chance.uid, np.repeat(np.arange(10), SIZES))
    assert chance.place.tolist() == [place for size in SIZES for place in range(size)]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"kinds": ("blurr",)},
            UnknownChoice,
            "no kind of feature shift is called 'blurr'; did you mean 'blur'? "
            "Known: background, blur, contrast, invert, noise, none, resolution, rotation",
        ),
        (
            {"kinds": ()},
            BadValue,
            "kinds must be a list of 1 to 10 kinds, so that every group and domain has all of them, got ()",
        ),
        (
            {"kinds": ("none",) * 11},
            BadValue,
            "kinds must be a list of 1 to 10 kinds, so that every group and domain has all of them, "
            f"got {('none',) * 11}",
        ),
        ({"strength": -0.1}, BadValue, "strength must be 0 or more, got -0.1"),
        ({"strength": float("inf")}, BadValue, "strength must be 0 or more, got inf"),
        ({"strength": float("nan")}, BadValue, "strength must be 0 or more, got nan"),
    ],
)
def test_a_shift_that_cannot_be_is_refused(options, error, message):
    with pytest.raises(error) as refusal:
        feature_shift(DATA, **options)

    assert str(refusal.value) == message


@pytest.mark.parametrize("shift", [feature_shift, rotation])
def test_what_is_no_image_is_refused(shift):
    given = from_arrays(IMAGES.reshape(55, 64), LABELS, CLIENT)

    with pytest.raises(Unsupported) as refusal:
        shift(given)

    wanted = "needs images with values from 0 to 1, got inputs of shape (64,)"
    assert str(refusal.value).startswith(f"{shift.__name__} {wanted} from 0")


def angles(federation):
    """Each client's angle, from where a white pixel ten pixels above the middle went."""
    return [np.degrees(np.arctan2(*_arm(federation.x[row]))) for row in range(federation.num_clients)]


def _arm(image):
    row, column = (np.mgrid[: image.shape[0], : image.shape[1]] * image).sum((1, 2)) / image.sum()
    return 16 - column, 16 - row


POINTS = np.zeros((200, 33, 33))
POINTS[:, 6, 16] = 1.0
ONE_EACH = from_arrays(POINTS, np.zeros(200, int), np.arange(200))


@pytest.mark.parametrize("degrees", [20.0, 60.0])
def test_angles_are_drawn_evenly_between_minus_and_plus_the_degrees(degrees):
    """Over 200 clients: the mean is 0, the deviation degrees / sqrt(3), and nobody is outside."""
    found = np.array(angles(rotation(ONE_EACH, degrees=degrees)))

    assert abs(found).max() <= degrees + 1
    assert abs(found.mean()) < 4 * degrees / np.sqrt(3 * 200)
    # A uniform draw's squares have mean 1/3 and variance 4/45.
    assert abs((found**2).mean() / degrees**2 - 1 / 3) < 4 * np.sqrt(4 / 45 / 200)


def test_all_images_of_a_client_are_turned_by_one_angle():
    given = from_arrays(np.repeat(IMAGES[:1], 55, axis=0), LABELS, CLIENT)

    turned = rotation(given, degrees=40.0)

    per_client = [{image.tobytes() for image in of_client(turned, row)} for row in range(10)]
    assert [len(images) for images in per_client] == [1] * 10
    assert len(set.union(*per_client)) == 10


def test_no_degrees_turn_nothing():
    np.testing.assert_array_equal(rotation(DATA, degrees=0.0).x, DATA.x)


def test_a_rotation_plants_no_groups():
    turned = rotation(DATA)

    assert (turned.group, turned.domain, turned.shape) == (None, None, (8, 8))


def test_a_client_s_angle_hangs_on_its_uid_alone():
    few, all_of_them = rotation(DATA.take([8, 3])), rotation(DATA)

    np.testing.assert_array_equal(of_client(few, 0), of_client(all_of_them, 8))
    np.testing.assert_array_equal(few.x[: SIZES[:3].sum()], DATA.x[: SIZES[:3].sum()])


def test_the_seed_decides_the_angles():
    drawn = [rotation(DATA, seed=seed).x for seed in (0, 0, 1)]

    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


def test_turned_clients_keep_what_they_show():
    """Each client's images are its own, turned by some angle within the bound: the best such angle fits exactly."""
    turned = rotation(DATA, degrees=5.0)

    tried = np.linspace(-5, 5, 401)
    for row in (0, 4, 9):
        before, after = of_client(DATA, row)[..., None], of_client(turned, row)[..., None]
        assert min(abs(rotate(before, angle) - after).max() for angle in tried) < 0.01


@pytest.mark.parametrize("degrees", [-1.0, 361.0, float("nan")])
def test_degrees_outside_a_full_turn_are_refused(degrees):
    with pytest.raises(BadValue) as refusal:
        rotation(DATA, degrees=degrees)

    assert str(refusal.value) == f"degrees must be between 0 and 360, got {degrees}"
