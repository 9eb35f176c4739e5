"""CSV files as people write them: separators, signs, spaces, blank lines, dates and holes."""

import numpy as np
import polars as pl
import pytest

from plures.data.tables import TableOptions, inspect_own, read_own
from plures.errors import BadData

OPTIONS = TableOptions(client="site", target="y", shares=(1.0, 0.0, 0.0))
SCALED = (np.array([-1.0, 1.0, 0.0, 0.0]) * np.sqrt(2)).astype(np.float32)  # of 1, 3, 2, 2


def inputs(path):
    return read_own(path, OPTIONS).x[:, 0]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separator_is_found_in_the_header(csv, separator):
    rows = [["site", "size", "y"], ["a", "1", "1.5"], ["a", "3", "2.5"], ["a", "2", "3.5"], ["b", "2", "4.5"]]

    np.testing.assert_allclose(inputs(csv(*(separator.join(row) for row in rows))), SCALED, rtol=1e-6)


def test_a_separator_inside_quotes_does_not_count(csv):
    path = csv('site;"size; a, b, c, d";y', "a;1;1.5", "a;3;2.5")

    assert inspect_own(path, OPTIONS).feature_names == ("size; a, b, c, d",)


def test_a_byte_order_mark_does_not_hurt(csv):
    path = csv("site,size,y", "a,1,1.5", "a,3,2.5", "a,2,3.5", "b,2,4.5", encoding="utf-8-sig")

    np.testing.assert_allclose(inputs(path), SCALED, rtol=1e-6)


def test_space_around_names_and_values_is_cut(csv):
    path = csv(" site , size, y", "a , 1, 1.5", "a, 3 , 2.5", " a,2,3.5", "b, 2,4.5")

    federation = read_own(path, OPTIONS)

    np.testing.assert_allclose(federation.x[:, 0], SCALED, rtol=1e-6)
    assert federation.names == ("a", "b")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_decimal_commas_are_read_where_commas_do_not_separate(csv, separator):
    rows = [["site", "size", "y"], ["a", "1,5", "1"], ["a", "-0,5", "2,5"], ["a", "5e-1", "3"], ["b", ",5", "4"]]

    federation = read_own(csv(*(separator.join(row) for row in rows)), OPTIONS)

    # 1.5, -0.5, 0.5, 0.5: mean 0.5, deviation sqrt(1/2)
    np.testing.assert_allclose(federation.x[:, 0], np.array([1, -1, 0, 0]) * np.sqrt(2), rtol=1e-6)
    assert federation.y.tolist() == [1.0, 2.5, 3.0, 4.0]


def test_client_names_keep_their_commas(csv):
    path = csv("site;size;y", "1,5;1;1.5", "2,5;2;2.5")

    assert read_own(path, OPTIONS).names == ("1,5", "2,5")


@pytest.mark.parametrize("word", ["", "NA", "NaN", "nan", "null", "?", " ? "])
def test_words_for_missing_values(csv, word):
    path = csv("site,size,color,y", "a,1,red,1.5", f"a,{word},{word},2.5", "a,3,red,3.5")

    columns = inspect_own(path, OPTIONS).columns

    assert [column.missing for column in columns] == [0, 1, 1, 0]


def test_blank_lines_are_left_out_with_a_note_and_still_counted_in_row_numbers(csv):
    path = csv("site,size,y", "a,1,1.5", "", "a,inf,2.5", "", "")

    summary = inspect_own(path, OPTIONS)

    assert summary.notes == ("table.csv: 3 rows without any value left out",)
    assert summary.errors == ("column 'size' holds inf in row 3; give a finite number, or leave it empty",)


def test_blank_lines_before_the_header_do_not_hurt(csv):
    assert inspect_own(csv("", "", "site,size,y", "a,1,1.5", "a,3,2.5"), OPTIONS).feature_names == ("size",)


def test_lines_may_end_as_on_windows(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"site,size,y\r\na,1,1.5\r\na,3,2.5\r\na,2,3.5\r\nb,2,4.5\r\n")

    np.testing.assert_allclose(inputs(tmp_path / "t.csv"), SCALED, rtol=1e-6)


def test_a_quoted_name_may_hold_a_line_break(csv):
    path = csv('site,"size', 'in cm",y', "a,1,1.5", "a,3,2.5", "a,2,3.5", "b,2,4.5")

    np.testing.assert_allclose(inputs(path), SCALED, rtol=1e-6)


def test_columns_without_a_name_are_left_out_with_a_note(csv):
    path = csv(",site,size,y,", "0,a,1,1.5,", "1,a,3,2.5,")

    summary = inspect_own(path, OPTIONS)

    assert summary.feature_names == ("size",)
    assert summary.notes[:2] == (
        "column '(unnamed 1)' has no name of its own and is left out",
        "column '(unnamed 5)' has no name of its own and is left out",
    )


def test_a_stored_index_is_left_out_with_a_note(tmp_path):
    frame = pl.DataFrame({"site": ["a", "b"], "size": [1, 2], "y": [1.5, 2.5], "__index_level_0__": [0, 1]})
    frame.write_parquet(tmp_path / "t.parquet")

    assert inspect_own(tmp_path / "t.parquet", OPTIONS).feature_names == ("size",)


def test_dates_with_slashes_tell_how_they_are_read(csv):
    path = csv("site,when,y", "a,05/01/2024,1.5", "a,06/01/2024,2.5", "b,07/01/2024,3.5")

    assert read_own(path, OPTIONS).notes == ("column 'when': '05/01/2024' is read as 2024-01-05",)


def test_a_later_value_shows_that_months_come_first(csv):
    early = [f"a,01/{day:02d}/2024,{day}.5" for day in range(1, 13) for _ in range(10)]

    federation = read_own(csv("site,when,y", *early, "a,01/13/2024,13.5"), OPTIONS)

    assert federation.notes[0] == "column 'when': '01/01/2024' is read as 2024-01-01"
    assert federation.x[-1, 0] > federation.x[-2, 0]


def test_times_with_a_zone_are_compared_in_one(csv):
    path = csv(
        "site,when,y",
        "a,2024-01-01T12:00:00+02:00,1.5",
        "a,2024-01-01T10:00:00+00:00,2.5",
        "a,2024-01-02T10:00:00Z,3.5",
    )

    found = read_own(path, OPTIONS).x[:, 0]

    np.testing.assert_allclose(found, np.array([-1, -1, 2]) / np.sqrt(2), rtol=1e-6)


def test_zoned_times_of_a_parquet_file_read_as_in_csv(tmp_path):
    when = pl.Series(["2024-01-01T10:00:00Z", "2024-01-01T10:00:00Z", "2024-01-02T10:00:00Z"]).str.to_datetime()
    frame = pl.DataFrame(
        {"site": list("aab"), "when": when.dt.convert_time_zone("Asia/Tokyo"), "y": [1.5, 2.5, 3.5]}
    )
    frame.write_parquet(tmp_path / "t.parquet")

    np.testing.assert_allclose(inputs(tmp_path / "t.parquet"), np.array([-1, -1, 2]) / np.sqrt(2), rtol=1e-6)


def test_text_that_is_numbers_in_a_parquet_file_is_taken_for_numbers_with_a_note(tmp_path):
    frame = pl.DataFrame({"site": list("aaab"), "size": ["1", "3", "2", "2"], "y": [1.5, 2.5, 3.5, 4.5]})
    frame.write_parquet(tmp_path / "t.parquet")

    federation = read_own(tmp_path / "t.parquet", OPTIONS)

    np.testing.assert_allclose(federation.x[:, 0], SCALED, rtol=1e-6)
    assert federation.notes == ("column 'size' holds numbers or dates as text and is taken for these",)


def test_a_text_column_with_few_numbers_is_a_category(csv):
    path = csv("site,size,y", "a,1,1.5", "a,big,2.5", "a,small,3.5")

    assert inspect_own(path, OPTIONS).feature_names == ("size=1", "size=big", "size=small")


def test_a_cell_may_be_very_long(csv):
    path = csv("site,text,y", "a,short,1.5", f"a,{'x' * 200_000},2.5", "a,short,")

    assert inspect_own(path, OPTIONS).errors == ()


def test_truth_with_another_word_further_down_is_a_category(csv):
    rows = [f"a,{('true', 'false')[row % 2]},{row}.5" for row in range(200)]

    names = inspect_own(csv("site,old,y", *rows, "a,maybe,300.5"), OPTIONS).feature_names

    assert names == ("old=false", "old=maybe", "old=true")


def test_files_of_a_folder_may_order_columns_differently_and_lack_values(csv, tmp_path):
    csv("size,y,spot", "1,1.5,", "3,2.5,", name="a.csv", folder="clients")
    csv("spot,y,size", "4,3.5,2", "6,4.5,2", name="b.csv", folder="clients")

    federation = read_own(tmp_path / "clients", TableOptions(target="y", shares=(1.0, 0.0, 0.0)))

    # size, spot, spot is missing
    np.testing.assert_allclose(federation.x, np.c_[SCALED, [0, 0, -1, 1], [1, 1, 0, 0]], rtol=1e-6)


def test_parquet_files_of_a_folder_may_differ_in_the_width_of_numbers(tmp_path):
    for name, size in (("a", pl.Series([1, 3], dtype=pl.Int8)), ("b", pl.Series([2.0, 2.0], dtype=pl.Float32))):
        pl.DataFrame({"size": size, "y": [1.5, 2.5]}).write_parquet(tmp_path / f"{name}.parquet")

    found = read_own(tmp_path, TableOptions(target="y", shares=(1.0, 0.0, 0.0)))

    np.testing.assert_allclose(found.x[:, 0], SCALED, rtol=1e-6)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pl.Series([1, 2], dtype=pl.Int8), pl.Series([1000, 2000], dtype=pl.Int64)),
        (pl.Series([1, 2], dtype=pl.Int64), pl.Series([2**63, 2**63 + 2**12], dtype=pl.UInt64)),
        (pl.Series([1, 2], dtype=pl.Int64), pl.Series([2**70, 2**71], dtype=pl.Int128)),
    ],
)
def test_whole_numbers_of_parquet_files_join_without_loss(tmp_path, one, other):
    for name, size in (("a", one), ("b", other)):
        pl.DataFrame({"size": size, "y": [1.5, 2.5]}).write_parquet(tmp_path / f"{name}.parquet")
    whole = np.array([*one.to_list(), *other.to_list()], float)

    found = read_own(tmp_path, TableOptions(target="y", shares=(1.0, 0.0, 0.0)))

    np.testing.assert_allclose(found.x[:, 0], (whole - whole.mean()) / whole.std(), rtol=1e-5)


def test_a_parquet_column_without_values_fits_any_type(tmp_path):
    for name, color in (("a", pl.Series([None, None], dtype=pl.Int64)), ("b", pl.Series(["red", "blue"]))):
        pl.DataFrame({"color": color, "y": [1.5, 2.5]}).write_parquet(tmp_path / f"{name}.parquet")

    summary = inspect_own(tmp_path, TableOptions(target="y", shares=(1.0, 0.0, 0.0)))

    assert summary.feature_names == ("color=blue", "color=red", "color (missing)")


def test_files_in_other_time_zones_join(tmp_path):
    when = pl.Series(["2024-01-01T10:00:00Z", "2024-01-03T10:00:00Z"]).str.to_datetime()
    for name, zone in (("a", "Asia/Tokyo"), ("b", "America/Lima")):
        pl.DataFrame({"when": when.dt.convert_time_zone(zone), "y": [1.5, 2.5]}).write_parquet(
            tmp_path / f"{name}.parquet"
        )

    found = read_own(tmp_path, TableOptions(target="y", shares=(1.0, 0.0, 0.0)))

    assert found.x[:, 0].tolist() == [-1.0, 1.0, -1.0, 1.0]


def test_dates_and_moments_of_parquet_files_join(tmp_path):
    days = pl.Series(["2024-01-01", "2024-01-03"]).str.to_date()
    for name, when in (("a", days), ("b", days.cast(pl.Datetime("ms")))):
        pl.DataFrame({"when": when, "y": [1.5, 2.5]}).write_parquet(tmp_path / f"{name}.parquet")

    found = read_own(tmp_path, TableOptions(target="y", shares=(1.0, 0.0, 0.0)))

    assert found.x[:, 0].tolist() == [-1.0, 1.0, -1.0, 1.0]


def test_numbered_files_are_in_the_order_of_numbers(csv, tmp_path):
    for name in ("10", "9"):
        csv("size,y", "1,1.5", "2,2.5", name=f"{name}.CSV", folder="clients")

    federation = read_own(tmp_path / "clients", TableOptions(target="y"))

    assert (federation.names, federation.title) == (("9", "10"), "clients")


def test_other_and_hidden_files_of_a_folder_are_named_in_a_note(csv, tmp_path):
    csv("size,y", "1,1.5", "2,2.5", name="a.csv", folder="clients")
    csv("size,y", "1,1.5", name=".b.csv", folder="clients")
    csv("about", name="readme.txt", folder="clients")
    (tmp_path / "clients" / "old.csv").mkdir()

    notes = inspect_own(tmp_path / "clients", TableOptions(target="y")).notes

    assert notes[0] == "ignored in the folder (hidden, or no CSV, Parquet or NPZ file): .b.csv, old.csv, readme.txt"


def test_rows_that_are_too_short_are_noted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("site,x,z,y\n" + "a,1,2,0\na,3,4,1\n" * 5 + "a,5\nb,6\n" + "b,1,2,0\nb,3,4,1\n" * 5)

    federation = read_own(path, TableOptions(client="site", target="y"))

    assert "t.csv: 2 rows with fewer than 4 values, the first is row 11" in federation.notes


def test_files_with_the_same_bytes_are_noted(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text("x,y\n" + "1,0\n2,1\n" * (5 if name != "c" else 6))

    federation = read_own(tmp_path, TableOptions(target="y"))

    assert "the same bytes stand in a.csv, b.csv" in federation.notes


def test_commas_that_might_part_thousands_are_noted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("site;x;y\n" + "a;1,234;0\na;5,678;1\nb;2,345;0\nb;3,456;1\n" * 4)

    federation = read_own(path, TableOptions(client="site", target="y"))

    assert "t.csv: a comma is read as a decimal point (1,234 is 1.234) in x" in federation.notes


def test_numbers_with_commas_in_quotes_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("site,x,y\n" + 'a,"1,234",0\na,"5,678",1\n' * 5)

    with pytest.raises(BadData, match=r"column 'x' holds numbers with commas such as '1,234' in row 1"):
        read_own(path, TableOptions(client="site", target="y"))


def test_tabs_are_read_from_tsv_files(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("site\tx\ty\n" + "a\t1\t0\nb\t2\t1\n" * 5)

    assert read_own(path, TableOptions(client="site", target="y")).names == ("a", "b")
