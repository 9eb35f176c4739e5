"""Activities by person: whole recordings in one split, summaries of windows, a scale of seen people."""

import numpy as np
import pytest

from plures.data.files import read_npz
from plures.data.sets import har
from plures.errors import UnknownChoice


def codes_of(federation):
    """(client, split) of every row."""
    owner = np.repeat(np.arange(federation.num_clients), federation.count.sum(1))
    return owner, np.repeat(np.tile([0, 1, 2], federation.num_clients), federation.count.ravel())


def seen_training_rows(federation):
    owner, codes = codes_of(federation)
    return federation.x[(codes == 0) & ~federation.held_out[owner]]


def test_thirty_people_with_195_numbers_per_window(loaded):
    federation = loaded("har")

    assert (federation.num_clients, federation.shape, len(federation.y)) == (30, (195,), 10299)


def test_no_half_window_is_in_two_splits(loaded):
    """Neighboring windows of a recording share a half, so a recording cut in two would show."""
    federation = loaded("har", inputs="raw")
    _, codes = codes_of(federation)

    halves = [{half.tobytes() for half in federation.x[codes == part].reshape(-1, 64 * 9)} for part in range(3)]

    assert [len(a & b) for a, b in ((halves[0], halves[1]), (halves[0], halves[2]), (halves[1], halves[2]))] == [
        0
    ] * 3


def test_every_recording_of_the_file_lies_in_one_fold(needs):
    stored = read_npz(needs(har.SOURCE), ("subject", "segment", "fold"))

    triples = set(zip(*(stored[key].tolist() for key in ("subject", "segment", "fold")), strict=True))
    assert len({triple[:2] for triple in triples}) == len(triples) == 857


def test_folds_0_and_1_train_fold_2_validates_fold_3_tests(loaded, needs):
    stored = read_npz(needs(har.SOURCE), ("subject", "fold"))

    sizes = np.zeros((30, 4), int)
    np.add.at(sizes, (stored["subject"] - 1, stored["fold"]), 1)
    expected = np.stack([sizes[:, 0] + sizes[:, 1], sizes[:, 2], sizes[:, 3]], 1)
    assert loaded("har").count.tolist() == expected.tolist()


@pytest.mark.parametrize("inputs", ["summary", "raw"])
def test_people_set_apart_do_not_count_in_the_scale(loaded, inputs):
    federation = loaded("har", inputs=inputs, hold_out=6)

    x = seen_training_rows(federation)
    columns = x.reshape(-1, x.shape[-1]).astype(float)
    np.testing.assert_allclose(columns.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(columns.std(0), 1, atol=1e-4)


def test_a_window_is_a_half_and_the_next_one():
    halves = np.arange(3 * 64 * 9).reshape(3, 64, 9)

    windows = har.windows_of(halves, np.array([1, 0]))

    assert windows.shape == (2, 128, 9)
    assert windows[0].ravel().tolist() == halves[1:3].ravel().tolist()
    assert windows[1].ravel().tolist() == halves[0:2].ravel().tolist()


def test_the_summary_of_a_wave():
    """Channel 0 is 2 sin(2 pi 3 t / 128), channel 1 the same with cos, channel 8 the constant 5."""
    angle = 2 * np.pi * 3 * np.arange(128) / 128
    window = np.zeros((1, 128, 9), np.float32)
    window[0, :, 0], window[0, :, 1], window[0, :, 8] = 2 * np.sin(angle), 2 * np.cos(angle), 5

    found = har.summary(window)[0]

    mean, deviation, low, high, step = found[:45].reshape(5, 9)
    np.testing.assert_allclose(mean, [0] * 8 + [5], atol=1e-6)
    np.testing.assert_allclose(deviation, [2**0.5] * 2 + [0] * 7, atol=1e-6)
    # The middle of the wave lies between two steps where 128 / 3 does not hit it.
    np.testing.assert_allclose((low[1], low[8], high[1], high[8]), (-2, 5, 2, 5), atol=0.01)
    assert low[0] == window[0, :, 0].min()
    np.testing.assert_allclose(step[[2, 8]], 0)
    np.testing.assert_allclose(step[0], np.abs(np.diff(2 * np.sin(angle))).mean(), rtol=1e-5)
    # The length of (2 sin, 2 cos, 0) is 2 at every step.
    np.testing.assert_allclose(found[45:51], [2, 0, 5, 0, 0, 0], atol=1e-6)


def test_the_frequencies_of_a_wave():
    """A sine of height 2 and three periods has the size 2 * 128 / 2 at frequency 3 and nothing elsewhere."""
    window = np.zeros((1, 128, 9), np.float32)
    window[0, :, 4] = 7 + 2 * np.sin(2 * np.pi * 3 * np.arange(128) / 128)

    waves = har.summary(window)[0, 51:].reshape(16, 9)

    expected = np.zeros((16, 9))
    expected[3 - 1, 4] = np.log1p(128)
    np.testing.assert_allclose(waves, expected, atol=1e-4)


def test_sensors_are_three_neighboring_channels():
    window = np.zeros((1, 128, 9), np.float32)
    window[0, :, 3:6] = 2, 3, 6

    assert har.summary(window)[0, 45:48].tolist() == [0, 7, 0]


def test_windows_are_scaled_per_channel():
    x = np.array([[[1.0, 10.0], [3.0, 10.0]], [[5.0, 30.0], [7.0, 30.0]], [[4.0, 20.0], [4.0, 0.0]]])

    found = har.standardize(x, np.array([0, 1, 1]), np.array([True, True, False]))

    # Of 1, 3, 5, 7: mean 4, variance 5. Of 10, 10, 30, 30: mean 20, deviation 10.
    root = 5**0.5
    expected = [[[-3 / root, -1], [-1 / root, -1]], [[1 / root, 1], [3 / root, 1]], [[0, 0], [0, -2]]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_unknown_kind_of_inputs_is_refused():
    with pytest.raises(UnknownChoice) as refusal:
        har.har(inputs="row")

    assert str(refusal.value) == "no kind of inputs is called 'row'; did you mean 'raw'? Known: raw, summary"
