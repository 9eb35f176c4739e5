"""What cannot be read is refused in one line that names the file, the column, the row and what would do."""

import numpy as np
import polars as pl
import pytest

from plures.data.tables import TableOptions, inspect_own, read_own
from plures.errors import BadData, BadFile, BadValue, UnknownChoice

OPTIONS = TableOptions(client="site", target="y")
NEEDS = "give a .csv or .parquet table, or a folder with a .csv, .parquet or .npz file per client"


def refusal(path, kind, options=OPTIONS):
    """The message of the error that reading ends with; inspecting must tell the same."""
    with pytest.raises(kind) as caught:
        read_own(path, options)
    message = str(caught.value)
    assert "\n" not in message
    assert inspect_own(path, options).errors[0] == message
    return message


def test_a_path_that_is_not_there(tmp_path):
    assert refusal(tmp_path / "no.csv", BadFile) == f"there is no file or folder {tmp_path}/no.csv; {NEEDS}"


def test_an_unknown_suffix(csv):
    path = csv("a", name="t.xlsx")

    assert refusal(path, BadFile) == f"{path} has the unknown suffix '.xlsx'; {NEEDS}"


def test_one_npz_file(npz):
    path = npz("a", x=np.ones(3), y=np.ones(3)) / "a.npz"

    assert refusal(path, BadFile) == (
        f"{path} is one NPZ file, which holds one client; give the folder with a file per client"
    )


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_an_empty_file(tmp_path, name):
    (tmp_path / name).touch()

    assert refusal(tmp_path / name, BadFile) == f"{name} is empty (0 bytes)"


def test_a_csv_file_with_only_a_header(csv):
    assert refusal(csv("site,size,y"), BadData) == "table.csv has no rows, only the names of columns"


def test_a_csv_file_with_only_blank_lines(csv):
    assert refusal(csv("", ""), BadFile) == "table.csv is damaged or no CSV file (empty CSV)"


def test_a_damaged_parquet_file(frame, tmp_path):
    frame.write_parquet(tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[: len(whole) // 2])

    assert refusal(tmp_path / "t.parquet", BadFile).startswith("t.parquet is damaged or no Parquet file (parquet: ")


def test_a_csv_file_with_an_open_quote(csv):
    message = refusal(csv("site,size,y", 'a,"1,1.5', "a,2,2.5"), BadFile)

    assert message.startswith("table.csv is damaged or no CSV file (")


def test_a_csv_row_with_too_many_values(csv):
    path = csv("site,size,y", "a,1,1.5", "", "a,2,2.5,9")

    assert refusal(path, BadFile) == "table.csv has 4 values in row 3, but 3 columns"


def test_a_row_with_too_many_values_below_blank_lines(csv):
    assert (
        refusal(csv("", "", "site,size,y", "a,1,1.5,9"), BadFile)
        == "table.csv has 4 values in row 1, but 3 columns"
    )


def test_a_csv_file_in_another_encoding(csv):
    path = csv("site,größe,y", "a,1,1.5", encoding="latin-1")

    assert refusal(path, BadFile) == "table.csv is not UTF-8 text; save it as CSV in UTF-8"


def test_a_csv_file_with_other_bytes_further_down(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"site,size,y\n" + b"a,1,1.5\n" * 5000 + b"\xff\xfe,1,1\n")

    assert refusal(tmp_path / "t.csv", BadFile).startswith("t.csv is damaged or no CSV file (")


def test_two_columns_of_one_name(csv):
    path = csv("site,size, size,y", "a,1,1,1.5")

    assert refusal(path, BadData) == "table.csv has two columns called 'size'; give each its own name"


def test_an_empty_folder(tmp_path):
    (tmp_path / ".hidden.csv").touch()

    assert refusal(tmp_path, BadFile) == f"the folder {tmp_path} holds no CSV, Parquet or NPZ file; {NEEDS}"


def test_two_files_of_one_client(frame, tmp_path):
    frame.write_csv(tmp_path / "a.csv")
    frame.write_parquet(tmp_path / "a.parquet")

    assert refusal(tmp_path, BadData) == "a.csv and a.parquet are both the client 'a'; keep one of them"


def test_files_of_two_kinds(frame, tmp_path):
    frame.write_csv(tmp_path / "a.csv")
    frame.write_parquet(tmp_path / "b.parquet")

    assert refusal(tmp_path, BadData) == "a.csv and b.parquet are of two kinds; a folder holds files of one kind"


def test_files_with_other_columns(csv, tmp_path):
    csv("size,weight,y", "1,2,1.5", name="a.csv", folder="clients")
    csv("size,color,y", "1,red,1.5", name="b.csv", folder="clients")

    assert refusal(tmp_path / "clients", BadData, TableOptions(target="y")) == (
        "a.csv and b.csv have different columns (only in a.csv: weight; only in b.csv: color); give all files the same"
    )


def test_a_file_that_lacks_a_column(csv, tmp_path):
    csv("size,weight,y", "1,2,1.5", name="a.csv", folder="clients")
    csv("size,y", "1,1.5", name="b.csv", folder="clients")

    assert refusal(tmp_path / "clients", BadData, TableOptions(target="y")) == (
        "a.csv and b.csv have different columns (only in a.csv: weight); give all files the same"
    )


def test_files_with_other_types(tmp_path):
    for name, size in (("a", [1, 2]), ("b", [3, 4]), ("c", ["x", "y"])):
        pl.DataFrame({"size": size, "y": [1.5, 2.5]}).write_parquet(tmp_path / f"{name}.parquet")

    assert refusal(tmp_path, BadData, TableOptions(target="y")) == (
        "column 'size' is Int64 in b.parquet but String in c.parquet; give it one type"
    )


def test_a_client_column_for_a_folder(csv, tmp_path):
    csv("site,size,y", "1,1,1.5", name="a.csv", folder="clients")

    assert refusal(tmp_path / "clients", BadData) == (
        "client='site' is for one table; in a folder each file is a client, so leave it out"
    )


@pytest.mark.parametrize("role", ["client", "target"])
def test_a_role_that_is_not_given(csv, role):
    options = TableOptions(**{"client": "site", "target": "y", role: None})

    assert refusal(csv("site,size,y", "a,1,1.5"), BadData, options) == (
        f"the {role} column is not given; name it with --{role}. Columns: site, size, y"
    )


@pytest.mark.parametrize("role", ["client", "target", "split", "time", "recording", "ignore", "categories"])
def test_an_unknown_column(csv, role):
    given = ("siez",) if role in ("ignore", "categories") else "siez"
    options = TableOptions(**{"client": "site", "target": "y", role: given})

    assert refusal(csv("site,size,y", "a,1,1.5"), UnknownChoice, options) == (
        "no column is called 'siez'; did you mean 'size'? Known: site, size, y"
    )


def test_no_input_column(csv):
    path = csv("site,id,y", "a,1,1.5", "a,2,2.5")

    assert refusal(path, BadData, TableOptions(client="site", target="y", ignore=("id",))) == (
        "no input column is left; besides client, target and ignored ones there must be another"
    )


def test_no_input_with_a_value(csv):
    path = csv("site,size,y", "a,,1.5", "a,,2.5")

    assert refusal(path, BadData) == (
        "no input column has a value in training rows of seen clients; give at least one that has"
    )


def test_a_row_without_a_client(csv):
    path = csv("site,size,y", "a,1,1.5", ",2,2.5", "NA,3,3.5")

    assert refusal(path, BadData) == (
        "no client is given (column 'site') in row 2 and 1 more row; every row needs one"
    )


@pytest.mark.parametrize("role", ["split", "time", "recording"])
def test_a_row_without_split_time_or_recording(csv, role):
    path = csv("site,size,mark,y", "a,1,1,1.5", "a,2,1,2.5", "a,3,,3.5")
    options = TableOptions(client="site", target="y", **{role: "mark"})

    assert refusal(path, BadData, options) == f"no {role} is given (column 'mark') in row 3; every row needs one"


def test_an_unknown_word_in_the_split_column(csv):
    path = csv("site,size,part,y", "a,1,train,1.5", "a,2,Dev,2.5", "a,3,dev,3.5", "a,4,dev,4.5")

    assert refusal(path, BadData, TableOptions(client="site", target="y", split="part")) == (
        "the split column 'part' holds 'Dev' in row 2 and 2 more rows; "
        "known are train, valid (or validation, val) and test"
    )


@pytest.mark.parametrize(
    ("moments", "odd", "row"),
    [
        (["1", "2", "late"], "late", 3),
        (["2024-01-01", "2024-02-30", "2024-02-01"], "2024-02-30", 2),
        (["first", "second", "third"], "first", 1),
    ],
)
def test_a_time_column_without_an_order(csv, moments, odd, row):
    path = csv("site,size,when,y", *(f"a,{number},{moment},{number}.5" for number, moment in enumerate(moments)))

    assert refusal(path, BadData, TableOptions(client="site", target="y", time="when")) == (
        f"the time column 'when' holds '{odd}' in row {row}; give numbers, or dates such as 2024-01-31"
    )


def test_a_time_column_of_truth(frame, tmp_path):
    frame.write_parquet(tmp_path / "t.parquet")

    assert refusal(tmp_path / "t.parquet", BadData, TableOptions(client="site", target="label", time="old")) == (
        "the time column 'old' holds Boolean; give numbers or dates"
    )


def test_text_in_a_number_column(csv):
    path = csv("site,size,y", "a,1,1.5", "a,2,2.5", "a,3;5,3.5", "a,4,4.5")

    assert refusal(path, BadData) == (
        "column 'size' holds numbers, but '3;5' in row 3; mend it, or name the column as a category (--category)"
    )


def test_text_in_half_of_a_number_column(csv):
    path = csv("site,size,y", "a,1,1.5", "a,x,2.5")

    assert refusal(path, BadData) == (
        "column 'size' holds numbers, but 'x' in row 2; mend it, or name the column as a category (--category)"
    )


def test_text_among_numbers_is_fine_for_a_category(csv):
    path = csv("site,size,y", "a,1,1.5", "a,x,2.5")
    options = TableOptions(client="site", target="y", categories=("size",), shares=(1.0, 0.0, 0.0))

    assert read_own(path, options).x.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_text_in_a_number_column_of_one_file_of_a_folder(csv, tmp_path):
    csv("size,y", "1,1.5", "2,2.5", name="a.csv", folder="clients")
    csv("size,y", "3,1.5", "oops,2.5", name="b.csv", folder="clients")

    assert refusal(tmp_path / "clients", BadData, TableOptions(target="y")) == (
        "column 'size' holds numbers, but 'oops' in row 2 of b.csv; mend it, or name the column as a category (--category)"
    )


def test_the_first_row_of_a_file_is_the_files_own(csv, tmp_path):
    csv("size,y", "1,1.5", "2,2.5", name="a.csv", folder="clients")
    csv("size,y", "oops,1.5", "3,2.5", name="b.csv", folder="clients")

    assert refusal(tmp_path / "clients", BadData, TableOptions(target="y")).startswith(
        "column 'size' holds numbers, but 'oops' in row 1 of b.csv;"
    )


def test_a_long_value_with_line_breaks_is_shown_in_one_line(csv):
    path = csv("site,size,y", "a,1,1.5", 'a,"not', "a number", f'{"x" * 99}",2.5', "a,3,3.5")

    assert refusal(path, BadData) == (
        f"column 'size' holds numbers, but 'not a number {'x' * 27}...' in row 2; "
        "mend it, or name the column as a category (--category)"
    )


def test_text_in_a_date_column(csv):
    path = csv("site,born,y", "a,2024-01-01,1.5", "a,2024-02-30,2.5", "a,2024-01-02,3.5")

    assert refusal(path, BadData) == (
        "column 'born' holds dates, but '2024-02-30' in row 2; mend it, or name the column as a category (--category)"
    )


@pytest.mark.parametrize("word", ["inf", "-inf", "1e39"])
def test_infinity_in_an_input(csv, word):
    path = csv("site,size,y", "a,1,1.5", f"a,{word},2.5", "a,3,3.5", f"a,{word},4.5")

    assert refusal(path, BadData) == (
        f"column 'size' holds {float(word)} in row 2 and 1 more row; give a finite number, or leave it empty"
    )


def test_infinity_in_an_input_of_a_parquet_file(tmp_path):
    pl.DataFrame({"size": [1.0, np.inf], "y": [1.5, 2.5]}).write_parquet(tmp_path / "a.parquet")

    assert refusal(tmp_path, BadData, TableOptions(target="y")) == (
        "column 'size' holds inf in row 2 of a.parquet; give a finite number, or leave it empty"
    )


def test_infinity_in_the_target(csv):
    path = csv("site,size,y", "a,1,1.5", "a,2,inf")

    assert refusal(path, BadData) == "the target 'y' holds inf in row 2; give a finite number, or leave it empty"


def test_a_time_that_is_infinite(csv):
    path = csv("site,size,when,y", "a,1,1,1.5", "a,2,inf,2.5")

    assert refusal(path, BadData, TableOptions(client="site", target="y", time="when")) == (
        "column 'when' holds inf in row 2; give a finite number, or leave it empty"
    )


@pytest.mark.parametrize("value", ["x", "7", "true"])
def test_a_single_class(csv, value):
    path = csv("site,size,y", f"a,1,{value}", f"a,2,{value}")

    assert refusal(path, BadData) == f"the target 'y' has only the class '{value}'; there must be two or more"


def test_no_target_at_all(csv):
    assert refusal(csv("site,size,y", "a,1,", "a,2,NA"), BadData) == "no row has a target (column 'y')"


def test_text_in_a_number_target(csv):
    path = csv("site,size,y", "a,1,1.5", "a,2,2.5", "a,3,low")

    assert refusal(path, BadData) == (
        "the target 'y' holds 'low' in row 3, which is no number; mend it, or choose the task classification"
    )


def test_text_as_the_target_of_a_regression(csv):
    path = csv("site,size,y", "a,1,low", "a,2,high", "a,3,low")

    assert refusal(path, BadData, TableOptions(client="site", target="y", task="regression")) == (
        "the target 'y' holds 'low' in row 1, which is no number; mend it, or choose the task classification"
    )


def test_truth_as_the_target_of_a_regression(csv):
    path = csv("site,size,y", "a,1,true", "a,2,false")

    assert refusal(path, BadData, TableOptions(client="site", target="y", task="regression")) == (
        "the target 'y' is text such as 'false'; regression needs numbers"
    )


def test_real_numbers_as_classes(csv):
    path = csv("site,size,y", "a,1,1", "a,2,2.5")

    assert refusal(path, BadData, TableOptions(client="site", target="y", task="classification")) == (
        "the target 'y' holds 2.5 in row 2; classes are whole numbers or text, else choose the task regression"
    )


def test_a_date_as_the_target(frame, tmp_path):
    frame.write_parquet(tmp_path / "t.parquet")

    assert refusal(tmp_path / "t.parquet", BadData, TableOptions(client="site", target="day")) == (
        "the target 'day' holds Date; give numbers or the names of classes"
    )


@pytest.mark.parametrize("column", ["site", "size"])
def test_lists_in_a_column(tmp_path, column):
    values = {"site": ["a", "b"], "size": [1, 2], "y": [1.5, 2.5]} | {column: [[1], [2]]}
    pl.DataFrame(values).write_parquet(tmp_path / "t.parquet")

    assert refusal(tmp_path / "t.parquet", BadData) == (
        f"column '{column}' holds List(Int64); give numbers, text or dates, or ignore it"
    )


def test_lists_in_an_ignored_column_do_not_matter(tmp_path):
    frame = pl.DataFrame({"site": ["a", "a"], "size": [1, 2], "y": [1.5, 2.5], "more": [[1], [2]]})
    frame.write_parquet(tmp_path / "t.parquet")

    assert (
        inspect_own(tmp_path / "t.parquet", TableOptions(client="site", target="y", ignore=("more",))).errors == ()
    )


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"task": "ranking"}, UnknownChoice, "no task is called 'ranking'. Known: classification, regression"),
        (
            {"split": "size", "time": "size2"},
            BadValue,
            "the way to split must be at most one of split, time and recording, got ['split', 'time']",
        ),
        ({"ignore": ("y",)}, BadValue, "column 'y' must be used as one of these, got ['target', 'ignore']"),
        (
            {"shares": (0.5, 0.2, 0.2)},
            BadValue,
            "shares must be three numbers >= 0 that add up to 1, the first above 0, got (0.5, 0.2, 0.2)",
        ),
        ({"seed": -1}, BadValue, "seed must be a whole number from 0 to 4294967295, got -1"),
        ({"hold_out": ("z",)}, UnknownChoice, "no client is called 'z'. Known: a, b"),
        ({"hold_out": 2}, BadValue, "hold_out must be between 0 and 1 of the 2 clients, got 2"),
    ],
)
def test_options_that_contradict_each_other(csv, given, kind, message):
    path = csv("site,size,size2,y", "a,1,1,1.5", "b,2,1,2.5", "a,1,1,1.5", "b,2,1,2.5")

    assert refusal(path, kind, TableOptions(**{"client": "site", "target": "y", **given})) == message


def test_inspecting_collects_all_errors(csv):
    path = csv("site,size,part,kind,y", "a,1,train,1,1", ",x,dev,2,1", "b,3,test,inf,1")
    options = TableOptions(
        client="site", target="y", split="part", ignore=("sise",), shares=(1, 1, 1), hold_out=5, task="ranking"
    )

    errors = inspect_own(path, options).errors

    assert [error.split(";")[0].split(". Known")[0] for error in errors] == [
        "no task is called 'ranking'",
        "shares must be three numbers >= 0 that add up to 1, the first above 0, got (1, 1, 1)",
        "no column is called 'sise'",
        "no client is given (column 'site') in row 2",
        "column 'size' holds numbers, but 'x' in row 2",
        "the split column 'part' holds 'dev' in row 2",
        "column 'kind' holds inf in row 3",
        "the target 'y' has only the class '1'",
        "hold_out must be between 0 and 1 of the 2 clients, got 5",
    ]


def test_inspecting_a_folder_names_every_damaged_file(csv, tmp_path):
    csv("size,y", name="a.csv", folder="clients")
    csv("size,y", "1,2,3", name="b.csv", folder="clients")
    csv("size,y", "1,1.5", name="c.csv", folder="clients")

    assert inspect_own(tmp_path / "clients", TableOptions(target="y")).errors == (
        "a.csv has no rows, only the names of columns",
        "b.csv has 3 values in row 1, but 2 columns",
    )


def test_inspecting_with_errors_still_tells_the_columns(csv):
    path = csv("site,size,day,y", "a,1,2024-01-01,1.5", "a,inf,2024-01-02,2.5")

    summary = inspect_own(path, TableOptions(client="site", target="y"))

    assert (summary.rows, summary.clients, summary.task) == (2, 1, "regression")
    assert [column.kind for column in summary.columns] == ["client", "category", "number", "target"]
    assert len(summary.errors) == 1
