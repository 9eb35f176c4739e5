"""Roles: windows that cover every character once, in the order of the play."""

import numpy as np
import pytest

from plures.data.sets import shakespeare
from plures.errors import BadValue


def test_1109_roles_and_an_alphabet_of_83(loaded):
    federation = loaded("shakespeare")

    assert (federation.num_clients, federation.num_classes, federation.shape) == (1109, 83, (80,))
    assert (federation.x.dtype, federation.y.dtype, federation.task) == (np.int32, np.int32, "sequence")


def test_441_roles_have_2000_characters(loaded):
    federation = loaded("shakespeare", min_characters=2000)

    assert federation.num_clients == 441
    assert federation.notes[0] == "668 roles with fewer than 2000 characters are left out"


def test_leaving_out_roles_keeps_the_alphabet(loaded):
    assert loaded("shakespeare", min_characters=40000).num_classes == 83


def test_padding_and_short_roles_are_counted_in_notes(loaded):
    federation = loaded("shakespeare")

    windows = federation.count.sum(1)
    untested = (federation.count[:, 2] == 0).sum()
    padded, short = federation.notes
    # 4,229,221 characters with the newlines between speeches.
    assert padded.endswith(f"{80 * windows.sum() - 4229221} in all")
    assert short.startswith(
        f"{(windows < 3).sum()} roles have fewer than 3 windows and so no valid rows, {untested} of"
    )
    assert short.endswith(
        "'alls_well_that_ends_well|ALL', 'alls_well_that_ends_well|BOTH', 'antony_and_cleopatra|ALL', ..."
    )


def test_windows_cover_every_character_once():
    federation = shakespeare.windows_of({"a": "abcde", "b": "xy", "c": "z"}, "\nabcdexyz", 2)

    spoken = ["".join("\nabcdexyz"[code] for code in row) for row in federation.y]
    heard = ["".join("\nabcdexyz"[code] for code in row) for row in federation.x]
    assert spoken == ["\na", "bc", "de", "xy", "\nz"]
    assert heard == ["\n\n", "ab", "cd", "\nx", "\n\n"]
    assert federation.count.tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]


def test_padding_is_never_tested_or_validated(loaded):
    federation = loaded("shakespeare")
    codes = np.repeat(np.tile([0, 1, 2], federation.num_clients), federation.count.ravel())

    # No speech holds five newlines in a row.
    runs = np.lib.stride_tricks.sliding_window_view(federation.y[codes > 0] == 0, 5, axis=1).all(2)
    assert not runs.any()


def test_a_role_of_two_windows_has_no_valid_rows():
    federation = shakespeare.windows_of({"a": "abc", "b": "abcdef"}, "\nabcdef", 2)

    assert shakespeare.notes_of(federation, [3, 6], 2) == [
        "1 roles have a first window with newlines in front, 1 in all",
        "1 roles have fewer than 3 windows and so no valid rows, 0 of them no test rows either: 'a'",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be 1 or more, got 0"),
        (
            {"min_characters": 10**6},
            r"min_characters must be at most \d+, the characters of the longest role, got 1000000",
        ),
    ],
)
def test_no_windows_and_no_roles_are_refused(needs, options, message):
    needs(shakespeare.SOURCE)

    with pytest.raises(BadValue, match=message):
        shakespeare.shakespeare(**options)
