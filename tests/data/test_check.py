"""What ``from_arrays`` refuses, and in which words."""

import numpy as np
import pytest

from plures.data import from_arrays
from plures.errors import BadData, BadValue, UnknownChoice, UserError

NAN = float("nan")
X = [[0.0], [1.0], [2.0]]
Y = [0, 1, 2]
CLIENT = ["a", "a", "b"]
SHARES = "three numbers >= 0 that add up to 1, the first above 0"

REFUSED = {
    "lengths": (
        {"y": [0, 1]},
        BadData,
        "x, y and client must be equally long, got 3, 2 and 3 examples",
    ),
    "no examples": (
        {"x": [], "y": [], "client": []},
        BadData,
        "there are no examples; give at least one",
    ),
    "NaN inputs": (
        {"x": [[0.0], [NAN], [NAN]]},
        BadData,
        "x holds NaN or infinity in 2 rows, the first is row 1",
    ),
    "infinite inputs": (
        {"x": [[0.0], [0.0], [float("inf")]]},
        BadData,
        "x holds NaN or infinity in row 2",
    ),
    "NaN labels": (
        {"y": [0.0, 1.0, NAN]},
        BadData,
        "y holds NaN or infinity in row 2",
    ),
    "NaN targets": (
        {"y": [NAN, 1.0, 0.5], "task": "regression"},
        BadData,
        "y holds NaN or infinity in row 0",
    ),
    "text inputs": (
        {"x": [["p"], ["q"], ["r"]]},
        BadData,
        "x must hold numbers, got dtype <U1",
    ),
    "text labels": (
        {"y": ["p", "q", "r"]},
        BadData,
        "y must hold numbers, got dtype <U1",
    ),
    "class outside the range": (
        {"num_classes": 2},
        BadData,
        "labels must lie in 0..1, found 2",
    ),
    "negative label": (
        {"y": [0, -1, 2]},
        BadData,
        "labels must lie in 0..2, found -1",
    ),
    "labels between whole numbers": (
        {"y": [0.0, 0.5, 1.0]},
        BadData,
        "labels must be whole numbers for classification; for real targets use task='regression'",
    ),
    "unknown task": (
        {"task": "regresion"},
        UnknownChoice,
        "no task is called 'regresion'; did you mean 'regression'? "
        "Known: classification, density, regression, sequence",
    ),
    "listed client without rows": (
        {"clients": ["a", "b", "d", "c"]},
        BadData,
        "client 'c' has no rows; give it some, or leave it out of the list",
    ),
    "client listed twice": (
        {"clients": ["a", "b", "b"]},
        BadData,
        "client 'b' is listed twice; names must differ",
    ),
    "client not listed": (
        {"clients": ["b"]},
        BadData,
        "client 'a' has rows but is not listed; add it to the list of clients",
    ),
    "shares that do not add up": (
        {"shares": (0.5, 0.2, 0.2)},
        BadValue,
        f"shares must be {SHARES}, got (0.5, 0.2, 0.2)",
    ),
    "a negative share": (
        {"shares": (1.2, -0.1, -0.1)},
        BadValue,
        f"shares must be {SHARES}, got (1.2, -0.1, -0.1)",
    ),
    "no share to train": (
        {"shares": (0.0, 0.5, 0.5)},
        BadValue,
        f"shares must be {SHARES}, got (0.0, 0.5, 0.5)",
    ),
    "two shares": (
        {"shares": (0.8, 0.2)},
        BadValue,
        f"shares must be {SHARES}, got (0.8, 0.2)",
    ),
    "bad split word": (
        {"split": ["train", "train", "trian"]},
        UnknownChoice,
        "no split is called 'trian'; did you mean 'train'? Known: test, train, valid",
    ),
    "split of wrong length": (
        {"split": ["train", "train"]},
        BadData,
        "split must have one entry per example, got 2 for 3",
    ),
    "no training rows": (
        {"split": ["train", "test", "valid"]},
        BadData,
        "client 'b' has no training rows; give it some, or leave it out",
    ),
    "client without group": (
        {"group": {"a": 0}},
        BadData,
        "client 'b' has no group; give every client one, or none at all",
    ),
    "client without domain": (
        {"domain": {"b": 0}},
        BadData,
        "client 'a' has no domain; give every client one, or none at all",
    ),
    "negative group": (
        {"group": {"a": 0, "b": -1}},
        BadData,
        "group numbers start at 0, found -1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_in_one_clear_line(case):
    changed, error, message = REFUSED[case]

    with pytest.raises(error) as refusal:
        from_arrays(**{"x": X, "y": Y, "client": CLIENT, **changed})

    assert str(refusal.value) == message


@pytest.mark.parametrize("kind", [float, np.uint8, np.int64, bool])
def test_whole_labels_of_any_numeric_type_are_classes(kind):
    assert from_arrays(X, np.array([0, 1, 1]).astype(kind), CLIENT).num_classes == 2


def test_real_targets_are_fine_for_regression():
    assert from_arrays(X, [-0.5, 1.5, 2.5], CLIENT, task="regression").num_classes == 0


@pytest.mark.parametrize("changed", [{"split": "train"}, {"x": 1.0}, {"client": "a"}])
def test_a_bare_value_instead_of_an_array_is_refused(changed):
    with pytest.raises(UserError):
        from_arrays(**{"x": X, "y": Y, "client": CLIENT, **changed})


def test_rows_of_unequal_length_are_refused():
    with pytest.raises(UserError):
        from_arrays([[0.0], [1.0, 2.0], [3.0]], Y, CLIENT)
