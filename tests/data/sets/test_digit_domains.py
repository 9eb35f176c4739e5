"""Digit domains: equal sizes, no digit twice, images laid over each other."""

import numpy as np
import pytest

from plures import data
from plures.data.files import read_npz
from plures.data.sets import digit_domains, mnist_writers
from plures.errors import BadValue


def test_three_domains_of_equal_size(loaded):
    federation = loaded("digit-domains")

    assert (federation.names, federation.shape) == (("mnist", "mnist-m", "usps"), (28, 28, 3))
    assert federation.count.tolist() == [[1200, 400, 400]] * 3
    assert federation.domain.tolist() == federation.group.tolist() == [0, 1, 2]


def test_the_rows_of_a_domain_are_dealt_over_its_clients(loaded):
    federation = loaded("digit-domains", rows=100, clients_per_domain=2)

    assert federation.names == ("mnist-0", "mnist-1", "mnist-m-0", "mnist-m-1", "usps-0", "usps-1")
    assert federation.count.tolist() == [[30, 10, 10]] * 6
    assert federation.domain.tolist() == [0, 0, 1, 1, 2, 2]


def test_no_digit_is_in_mnist_and_in_mnist_m(loaded, needs):
    stored = read_npz(needs(mnist_writers.SOURCE), ("x_train", "x_test"))
    places = read_npz(needs(digit_domains.MNIST_M), digit_domains.PLACES)
    federation = loaded("digit-domains", rows=5001)

    shown = {
        image.tobytes()
        for part in ("train", "test")
        for image in stored[f"x_{part}"][places[f"mnist_index_{part}"]]
    }
    mnist = federation.x[: federation.count[0].sum(), :, :, 0]
    used = {image.tobytes() for image in np.rint(mnist * 255).astype(np.uint8)}
    assert len(used) == 5001
    assert used.isdisjoint(shown)


def correlation(a, b):
    a, b = (one.reshape(len(one), -1) - one.reshape(len(one), -1).mean(1, keepdims=True) for one in (a, b))
    return (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1))


@pytest.mark.parametrize("part", ["train", "test"])
def test_mnist_m_shows_the_digits_it_says_in_its_middle(needs, part):
    """An inked MNIST pixel shows as an inverted photograph: a picture follows its own digit, up to sign."""
    digits = read_npz(needs(mnist_writers.SOURCE), (f"x_{part}", f"y_{part}"))
    shown = read_npz(needs(digit_domains.MNIST_M), (f"x_{part}", f"y_{part}", f"mnist_index_{part}"))
    place = shown[f"mnist_index_{part}"]
    ink = (digits[f"x_{part}"][place] > 0).astype(float)

    images = digit_domains.middle(shown[f"x_{part}"]).mean(3)

    own, other = (np.abs(correlation(images, one)) for one in (ink, np.roll(ink, 1, axis=0)))
    shifted = [np.abs(correlation(images, np.roll(ink, step, axis=(1, 2)))).mean() for step in (-1, 1)]
    np.testing.assert_array_equal(shown[f"y_{part}"], digits[f"y_{part}"][place])
    assert np.median(own) > 0.6
    assert np.median(other) < 0.3
    assert own.mean() > max(shifted) + 0.1


def test_test_rows_are_the_test_rows_of_the_file(loaded, needs):
    stored = read_npz(needs(digit_domains.MNIST_M), ("x_train", "x_test"))
    federation = loaded("digit-domains")

    known = {part: {image.tobytes() for image in stored[f"x_{part}"][:, 2:30, 2:30]} for part in ("train", "test")}
    drawn = {
        split: {
            np.rint(image * 255).astype(np.uint8).tobytes() for image in federation.rows_of("mnist-m", split)[0]
        }
        for split in data.SPLITS
    }
    assert drawn["train"] | drawn["valid"] <= known["train"]
    assert drawn["test"] <= known["test"]


def test_stretching_interpolates_between_pixel_centers():
    """From 14 to 28 pixels a new center lies a quarter of a pixel off an old one."""
    ramp = np.tile(np.arange(14.0), (14, 1))[None]

    found = digit_domains.stretch(ramp)

    assert found.shape == (1, 28, 28, 3)
    np.testing.assert_allclose(found[0, 5, :4, 1], [0, 0.25, 0.75, 1.25])
    np.testing.assert_allclose(found[0, :, 9, 2], found[0, 0, 9, 0])


def test_the_middle_loses_an_equal_rim():
    images = np.zeros((1, 32, 32, 3), np.uint8)
    images[0, 2, 2] = images[0, 29, 29] = 255

    found = digit_domains.middle(images)

    assert found.shape == (1, 28, 28, 3)
    assert (found[0, 0, 0].tolist(), found[0, 27, 27].tolist()) == ([1.0] * 3, [1.0] * 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 5002}, "rows must be between 5 and 5001, what the smallest domain has, got 5002"),
        ({"rows": 4}, "rows must be between 5 and 5001, what the smallest domain has, got 4"),
        ({"rows": 20, "clients_per_domain": 5}, "clients_per_domain must be between 1 and 4 for 20 rows, got 5"),
        ({"clients_per_domain": 0}, "clients_per_domain must be between 1 and 400 for 2000 rows, got 0"),
    ],
)
def test_what_the_domains_do_not_have_is_refused(loaded, options, message):
    loaded("digit-domains")

    with pytest.raises(BadValue) as refusal:
        digit_domains.digit_domains(**options)

    assert str(refusal.value) == message
