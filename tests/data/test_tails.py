"""Heavy tails are drawn in by a rule that can be undone, learned from the training rows of seen clients alone."""

import numpy as np
import polars as pl
import pytest

from plures.data.tables import TableOptions, inspect_own, read_own
from plures.data.tails import KNEE, tame
from plures.errors import UnknownChoice

ROWS = 40


def undone(value, knee):
    """z from tame(z), by the inverse of the formula."""
    size = np.abs(value)
    return np.where(size > knee, np.sign(value) * (knee + np.expm1(np.maximum(size - knee, 0))), value)


@pytest.fixture
def table(tmp_path):
    """A function that writes a table of two clients: training rows of the last column, an outlier among those of b."""

    def write(outlier=1000.0, name="t.csv"):
        lines = ["site,part,plain,heavy,y"]
        for site in "ab":
            for row in range(ROWS):
                heavy = outlier if (site, row) == ("b", 3) else row % 7
                part = "test" if row % 4 == 3 else "train"
                lines.append(f"{site},{part},{row % 5},{heavy},{row + 0.5}")
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


OPTIONS = {"client": "site", "target": "y", "split": "part", "shares": (0.8, 0.0, 0.2)}


def test_the_rule_can_be_undone():
    z = np.linspace(-60, 60, 241)

    np.testing.assert_allclose(undone(tame(z, 3.0), 3.0), z, rtol=1e-12)


def test_the_rule_rises_and_bends_without_a_corner():
    z = np.linspace(0, 40, 40_001)

    rise = np.diff(tame(z, KNEE)) / np.diff(z)

    assert (rise > 0).all()
    assert rise.max() <= 1 + 1e-9
    assert np.abs(np.diff(rise)).max() < 2e-3  # the slope falls from 1 on, it does not jump


def test_missing_values_stay_missing_and_other_values_stay_bit_for_bit():
    z = np.array([np.nan, -KNEE, 0.3, KNEE])

    np.testing.assert_array_equal(tame(z, KNEE), z)


def test_an_outlier_among_training_rows_is_drawn_in_and_noted_once(table):
    found = inspect_own(
        table(), TableOptions(**OPTIONS | {"split": None, "shares": (1.0, 0.0, 0.0), "ignore": ("part",)})
    )

    # One value of 1000 among n = 80 of a mean near 0 lies at about sqrt(n - 1) = 8.9 deviations.
    assert [note for note in found.notes if "deviations" in note] == [
        "column 'heavy': 1 training value beyond 5 deviations, the farthest at 8.89, drawn in by a logarithm "
        "(tails=keep leaves them)"
    ]


def test_values_are_tamed_as_the_formula_says_and_kept_where_asked(table):
    plain = read_own(table(), TableOptions(**OPTIONS, tails="keep"))
    tamed = read_own(table(), TableOptions(**OPTIONS))

    z = plain.x.astype(float)
    expected = np.where(np.abs(z) > 5, np.sign(z) * (5 + np.log(1 + np.abs(np.where(np.abs(z) > 5, z, 5)) - 5)), z)
    assert np.abs(z).max() > 100  # the outlier is a test row, so the scale does not know it
    np.testing.assert_allclose(tamed.x, expected, rtol=1e-5)
    assert plain.notes == ()


def test_rows_that_are_not_learned_from_are_tamed_without_a_note(table):
    found = inspect_own(table(), TableOptions(**OPTIONS))

    assert found.notes == ()


def test_arrays_are_tamed_too_and_say_so(tmp_path):
    x = np.zeros((80, 2))
    x[:, 0], x[5, 1] = np.arange(80), 1000.0
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(80) + 0.5)

    tamed, kept = (
        read_own(tmp_path, TableOptions(shares=(1.0, 0.0, 0.0), tails=tails)) for tails in ("tame", "keep")
    )

    assert kept.x.max() == pytest.approx(np.sqrt(79), rel=1e-5)
    assert tamed.x.max() == pytest.approx(5 + np.log(1 + np.sqrt(79) - 5), rel=1e-5)
    assert [note for note in tamed.notes if note.startswith("x: 1 training value beyond")]
    assert not [note for note in kept.notes if "deviations" in note]


def test_another_way_is_refused(table):
    with pytest.raises(UnknownChoice, match="keep, tame"):
        read_own(table(), TableOptions(**OPTIONS, tails="clip"))


def test_many_columns_with_tails_have_one_note(tmp_path):
    rng = np.random.default_rng(0)
    columns = {f"x{j}": np.where(np.arange(200) == 7 * j, 50.0, rng.normal(size=200)) for j in range(8)}
    frame = pl.DataFrame({"who": [f"c{i % 4}" for i in range(200)], **columns, "y": rng.normal(size=200)})
    frame.write_parquet(tmp_path / "t.parquet")

    found = inspect_own(
        tmp_path / "t.parquet", TableOptions(client="who", target="y", hold_out=0, shares=(1.0, 0.0, 0.0))
    )

    (note,) = [note for note in found.notes if "deviations" in note]
    assert note.startswith("columns 'x0', 'x1', 'x2', 'x3', 'x4' and 3 more: 8 training values beyond 5 deviations")
