"""Hospitals: sizes, missing values, levels, and a scale of seen training rows."""

import numpy as np

from plures import data
from plures.data.sets.heart import category_columns, number_columns, without_zeros


def codes_of(federation):
    """(client, split) of every row."""
    owner = np.repeat(np.arange(federation.num_clients), federation.count.sum(1))
    return owner, np.repeat(np.tile([0, 1, 2], federation.num_clients), federation.count.ravel())


def seen_training_rows(federation):
    owner, codes = codes_of(federation)
    return federation.x[(codes == 0) & ~federation.held_out[owner]]


def test_four_hospitals_of_known_size(loaded):
    federation = loaded("heart")

    sizes = dict(zip(federation.names, federation.count.sum(1).tolist(), strict=True))
    assert sizes == {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    assert (federation.num_classes, int(federation.y.sum())) == (2, 920 - 411)


def test_missing_values_are_counted_in_notes(loaded):
    first, second = loaded("heart").notes[:2]

    assert first == (
        "missing values of 920 patients: trestbps 59, chol 30, thalach 55, oldpeak 62, fbs 90, restecg 2, exang 55, "
        "slope 309, ca 611, thal 486"
    )
    assert second == "values of 0 that count as missing: trestbps 1, chol 172"


def test_all_of_switzerland_is_marked_to_lack_cholesterol(loaded):
    federation = loaded("heart")

    x = np.concatenate([federation.rows_of("switzerland", split)[0] for split in data.SPLITS])
    # Five numbers, then the marks of trestbps, chol, thalach, oldpeak.
    assert x[:, 2].tolist() == [0.0] * 123
    assert x[:, 6].tolist() == [1.0] * 123


def test_hospitals_set_apart_do_not_count_in_the_scale(loaded):
    federation = loaded("heart", hold_out=("va",))

    age = seen_training_rows(federation)[:, 0]
    np.testing.assert_allclose((age.mean(), age.std()), (0, 1), atol=1e-5)


def test_numbers_are_scaled_by_known_rows_and_marked_where_missing():
    nan = np.nan
    numbers = np.array([[1.0, 1, nan, 0, 0], [3.0, 3, nan, 0, nan], [9.0, nan, 4, 0, nan]])

    found = number_columns(numbers, np.array([0, 0, 1]), np.array([True, True, False]))

    # Marks for columns 2 and 4, the only ones missing in the known rows.
    assert found.x.tolist() == [[-1, -1, 0, 0, 0, 1, 0], [1, 1, 0, 0, 0, 1, 1], [7, 0, 0, 0, 0, 0, 1]]
    assert found.notes == [
        "trestbps: 1 missing values have no mark of their own",
        "chol: no seen client measured it; 1 values are not used",
    ]


def test_levels_are_those_of_known_rows_and_missing_is_one():
    values = np.zeros((4, 8))
    values[:, 1] = 2, np.nan, 3, np.nan

    found = category_columns(values, np.array([True, True, False, False]))

    # Column 0 is sex with its one level; columns 1 and 2 are chest pain 2 and chest pain missing.
    assert found.x[:, :4].tolist() == [[1, 1, 0, 1], [1, 0, 1, 1], [1, 0, 0, 1], [1, 0, 1, 1]]
    assert found.x.sum(1).tolist() == [8, 8, 7, 8]
    assert found.notes == [
        "cp: 1 rows have a level that no training row of a seen client has; all its columns are 0"
    ]


def test_only_zeros_that_cannot_be_are_missing():
    found, note = without_zeros(np.array([[40.0, 0, 0, 0, 0], [0.0, 120, 200, 0, 0]]))

    assert np.isnan(found).tolist() == [[False, True, True, False, False], [False] * 5]
    assert note == "values of 0 that count as missing: trestbps 1, chol 1"
