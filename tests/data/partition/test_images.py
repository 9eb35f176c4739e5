"""What is done to images: formulas, what stays the same, and noise that belongs to a client's row."""

import jax
import numpy as np
import pytest

from plures.data import from_arrays
from plures.data.partition.images import KINDS, Chance, as_images, rotate
from plures.errors import Unsupported

KEY = jax.random.key(0)


def chance(uids, places):
    return Chance(KEY, np.array(uids), np.array(places))


def images(*shape):
    return np.array(jax.random.uniform(jax.random.key(3), shape))


def point(size, row, column):
    """One white pixel on black, (1, size, size, 1)."""
    image = np.zeros((1, size, size, 1), np.float32)
    image[0, row, column] = 1.0
    return image


FOUR = chance([0, 0, 1, 1], [0, 1, 0, 1])
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("shape", [(4, 8, 8, 1), (4, 8, 8, 3), (4, 7, 10, 1)])
def test_at_strength_0_images_stay_as_they_are(kind, shape):
    given = images(*shape)

    np.testing.assert_array_equal(KINDS[kind](given, 0.0, FOUR), given)


@every_kind
@pytest.mark.parametrize("shape", [(4, 8, 8, 1), (4, 8, 8, 3), (4, 7, 10, 1)])
def test_shape_and_precision_stay(kind, shape):
    found = KINDS[kind](images(*shape), 1.0, FOUR)

    assert (found.shape, found.dtype) == (shape, np.float32)


@every_kind
def test_the_given_images_are_not_changed(kind):
    given = images(4, 8, 8, 1)
    before = given.copy()

    KINDS[kind](given, 1.0, FOUR)

    np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
def test_at_strength_1_something_changes(kind):
    given = images(4, 8, 8, 1)

    assert abs(KINDS[kind](given, 1.0, FOUR) - given).max() > 0.05


def test_inverting_takes_a_value_to_1_minus_itself():
    given = images(4, 8, 8, 1)

    np.testing.assert_allclose(KINDS["invert"](given, 1.0, FOUR), 1 - given, atol=1e-6)


def test_inverting_twice_gives_the_images_back():
    given = images(4, 8, 8, 3)

    twice = KINDS["invert"](KINDS["invert"](given, 1.0, FOUR), 1.0, FOUR)

    np.testing.assert_allclose(twice, given, atol=1e-6)


def test_inverting_a_quarter_goes_a_quarter_of_the_way():
    given = images(4, 8, 8, 1)

    found = KINDS["invert"](given, 0.25, FOUR)

    np.testing.assert_allclose(found, 0.75 * given + 0.25 * (1 - given), atol=1e-6)


def test_contrast_shrinks_towards_gray():
    """At strength 1 a distance of 0.3 from gray becomes 0.1, at strength 2 it becomes 0.06."""
    given = np.full((1, 2, 2, 1), 0.8)

    for strength, expected in [(1.0, 0.6), (2.0, 0.56)]:
        np.testing.assert_allclose(KINDS["contrast"](given, strength, FOUR), expected)


def test_blurring_keeps_a_constant_image():
    given = np.full((2, 16, 16, 3), 0.3)

    np.testing.assert_allclose(KINDS["blur"](given, 1.0, FOUR), 0.3, rtol=1e-12)


def test_blurring_keeps_the_light_of_a_point_and_spreads_it_by_its_deviation():
    """At strength 2, 32 pixels high: a deviation of 4 pixels in each direction (cut off at four deviations)."""
    blurred = KINDS["blur"](point(33, 16, 16).astype(float), 2.0 * 32 / 33, FOUR)[0, :, :, 0]

    places = np.arange(33) - 16
    assert blurred.sum() == pytest.approx(1.0)
    for marginal in (blurred.sum(0), blurred.sum(1)):
        assert (marginal * places).sum() == pytest.approx(0.0, abs=1e-9)
        assert (marginal * places**2).sum() == pytest.approx(4.0**2, rel=0.01)


def test_blurring_mixes_neither_images_nor_colors():
    given = np.zeros((2, 16, 16, 3))
    given[0, 8, 8, 1] = 1.0

    blurred = KINDS["blur"](given, 1.0, FOUR)

    assert blurred[0, :, :, 1].sum() == pytest.approx(1.0)
    assert blurred.sum() == pytest.approx(1.0)


def test_half_the_resolution_averages_squares_of_four_pixels():
    given = images(2, 8, 6, 3)

    found = KINDS["resolution"](given, 1.0, FOUR)

    cells = given.reshape(2, 4, 2, 3, 2, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(found, cells.repeat(2, 1).repeat(2, 2), atol=1e-6)


def test_a_third_of_the_resolution_of_eight_pixels_is_three_cells():
    """8 / 3 rounds to three cells: the first, second and third of three, three and two pixels."""
    row = np.arange(8.0).reshape(1, 1, 8, 1)

    found = KINDS["resolution"](row, 2.0, FOUR)

    np.testing.assert_allclose(found.ravel(), [1, 1, 1, 4, 4, 4, 6.5, 6.5])


def test_no_resolution_is_left_at_a_huge_strength():
    given = images(2, 8, 8, 1)

    found = KINDS["resolution"](given, 100.0, FOUR)

    np.testing.assert_allclose(found, np.broadcast_to(given.mean((1, 2), keepdims=True), found.shape), atol=1e-6)


@pytest.mark.parametrize("strength", [0.1, 0.4])
def test_noise_has_its_deviation(strength):
    """On gray images hardly anything is cut off: 400 images of 64 pixels, deviation 0.3 times the strength."""
    many = chance(np.arange(400) // 20, np.arange(400) % 20)

    added = KINDS["noise"](np.full((400, 8, 8, 1), 0.5), strength, many) - 0.5

    assert abs(added.mean()) < 4 * 0.3 * strength / np.sqrt(25600)
    assert abs(added.std() / (0.3 * strength) - 1) < 4 / np.sqrt(2 * 25600)


def test_noise_is_cut_off_at_black_and_white():
    added = KINDS["noise"](np.repeat([[[[0.0]]], [[[1.0]]]], 64, axis=1), 3.0, chance([0, 1], [0, 0]))

    assert (added.min(), added.max()) == (0.0, 1.0)


def test_noise_is_the_same_in_every_color():
    added = KINDS["noise"](np.full((4, 8, 8, 3), 0.5), 0.3, FOUR)

    np.testing.assert_array_equal(added[..., 0], added[..., 2])


@pytest.mark.parametrize("kind", ["noise", "background"])
def test_chance_belongs_to_a_client_and_a_place(kind):
    """Row by row, in another order and with others around: the same client's same row is changed alike."""
    given = np.full((4, 8, 8, 1), 0.5)
    together = KINDS[kind](given, 0.3, FOUR)

    shuffled = KINDS[kind](given, 0.3, chance([1, 0, 1, 0], [1, 1, 0, 0]))
    alone = KINDS[kind](given[:1], 0.3, chance([1], [0]))

    np.testing.assert_array_equal(shuffled[[3, 1, 2, 0]], together)
    np.testing.assert_array_equal(alone[0], together[2])


@pytest.mark.parametrize("kind", ["noise", "background"])
def test_no_two_rows_share_their_chance(kind):
    changed = KINDS[kind](np.full((4, 8, 8, 1), 0.5), 0.3, FOUR)

    assert len({row.tobytes() for row in changed}) == 4


def test_chance_is_the_same_in_blocks(monkeypatch):
    whole = FOUR.normal(3, 3)

    monkeypatch.setattr("plures.data.partition.images.BLOCK", 3)

    np.testing.assert_array_equal(FOUR.normal(3, 3), whole)


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_a_background_is_the_distance_from_a_pattern_between_0_and_the_strength(strength):
    """|0 - s p| and |1 - s p| add up to 1, and give the pattern: it lies between 0 and s."""
    black = KINDS["background"](np.zeros((4, 9, 9, 1)), strength, FOUR)
    white = KINDS["background"](np.ones((4, 9, 9, 1)), strength, FOUR)

    np.testing.assert_allclose(black + white, 1.0)
    assert (black > 0).all()
    assert (black < strength).all()


def test_a_background_has_the_normal_s_logistic_every_four_pixels_and_lines_between():
    """The pattern is logistic(2 v): v is a standard normal at every fourth pixel, and linear between."""
    pattern = KINDS["background"](np.zeros((4, 9, 13, 1)), 1.0, FOUR)

    values = np.log(pattern / (1 - pattern)) / 2
    knots = FOUR.normal(4, 5)[:, :3, :4]
    np.testing.assert_allclose(values[:, ::4, ::4], knots, atol=1e-5)
    for part in (1, 2, 3):
        rows = (1 - part / 4) * knots[:, :-1] + part / 4 * knots[:, 1:]
        np.testing.assert_allclose(values[:, part::4, ::4], rows, atol=1e-5)
        columns = (1 - part / 4) * knots[:, :, :-1] + part / 4 * knots[:, :, 1:]
        np.testing.assert_allclose(values[:, ::4, part::4], columns, atol=1e-5)


@pytest.mark.parametrize("turns", [-3, -1, 0, 1, 2, 3, 4, 7])
def test_quarter_turns_are_exact(turns):
    given = images(2, 5, 5, 3)

    np.testing.assert_array_equal(rotate(given, 90.0 * turns), np.rot90(given, turns, axes=(1, 2)))


def test_half_a_turn_of_an_oblong_image_is_exact():
    given = images(2, 4, 7, 1)

    np.testing.assert_allclose(rotate(given, 180.0), given[:, ::-1, ::-1], atol=1e-6)


def test_a_quarter_turn_of_an_oblong_image_keeps_its_shape():
    """Five by seven pixels: a square of five by five turns, and what comes from outside the image is black."""
    given = images(2, 5, 7, 1)

    turned = rotate(given, 90.0)

    np.testing.assert_allclose(turned[:, :, 1:6], np.rot90(given[:, :, 1:6], axes=(1, 2)), atol=1e-6)
    assert (turned[:, :, [0, 6]] == 0).all()


def test_angles_between_are_interpolated_in_straight_lines():
    """Turned by 45 degrees, a neighbor of the middle comes from sqrt(1/2) away in both directions."""
    turned = rotate(point(9, 4, 4), 45.0)[0, :, :, 0]

    corner = (1 - np.sqrt(0.5)) ** 2
    np.testing.assert_allclose([turned[3, 4], turned[4, 3], turned[5, 4], turned[4, 5]], corner, rtol=1e-5)


@pytest.mark.parametrize("degrees", [10.0, 45.0, 123.0])
def test_the_middle_pixel_stays_at_every_angle(degrees):
    turned = rotate(point(9, 4, 4), degrees)

    assert turned[0, 4, 4, 0] == pytest.approx(1.0)


@pytest.mark.parametrize("degrees", [30.0, 45.0, 200.0])
def test_a_smooth_disc_looks_the_same_at_every_angle(degrees):
    """Its value falls off linearly from the middle, so interpolation errs by less than one step of 1/16."""
    row, column = np.mgrid[:33, :33] - 16
    disc = np.clip(1 - np.hypot(row, column) / 16, 0, 1)[None, :, :, None]

    assert abs(rotate(disc, degrees) - disc).max() < 1 / 16


@pytest.mark.parametrize(
    ("degrees", "row", "column"), [(45.0, -1, -1), (135.0, 1, -1), (225.0, 1, 1), (315.0, -1, 1), (-45.0, -1, 1)]
)
def test_angles_turn_counterclockwise(degrees, row, column):
    """A point ten pixels above the middle goes to the upper left first; the diagonal is 10 / sqrt(2) = 7.07 away."""
    turned = rotate(point(33, 6, 16), degrees)[0, :, :, 0]

    assert np.unravel_index(np.argmax(turned), turned.shape) == (16 + 7 * row, 16 + 7 * column)


def test_corners_turned_in_are_black():
    turned = rotate(np.ones((1, 9, 9, 1)), 45.0)

    assert (turned[0, 0, 0, 0], turned[0, 4, 4, 0]) == (0.0, 1.0)


def test_a_kind_of_rotation_turns_by_thirty_degrees_times_the_strength():
    given = images(2, 8, 8, 1)

    for strength, degrees in [(0.5, 15.0), (3.0, 90.0)]:
        np.testing.assert_array_equal(KINDS["rotation"](given, strength, FOUR), rotate(given, degrees))


def federation(x):
    return from_arrays(x, np.zeros(len(x), int), np.zeros(len(x), int))


@pytest.mark.parametrize(
    ("shape", "expected"), [((8, 6), (4, 8, 6, 1)), ((8, 6, 1), (4, 8, 6, 1)), ((8, 6, 3), (4, 8, 6, 3))]
)
def test_images_get_an_axis_of_colors(shape, expected):
    assert as_images(federation(images(4, *shape)), "this").shape == expected


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((4, 8)),
        np.zeros((4, 8, 8, 2)),
        np.zeros((4, 2, 8, 8, 1)),
        np.zeros((4, 8, 8), int),
        np.full((4, 8, 8), 1.1),
        np.full((4, 8, 8), -0.1),
    ],
    ids=["vectors", "two colors", "films", "whole numbers", "above 1", "below 0"],
)
def test_what_is_no_image_is_refused(x):
    with pytest.raises(Unsupported) as refusal:
        as_images(federation(x), "this")

    said = str(refusal.value)
    assert said.startswith(f"this needs images with values from 0 to 1, got inputs of shape {x.shape[1:]} from")
