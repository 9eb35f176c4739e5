"""A table becomes a federation: exact inputs, learned from the training rows of seen clients alone."""

import numpy as np
import polars as pl
import pytest

from plures.data.tables import TableOptions, inspect_own, read_own

OPTIONS = TableOptions(client="site", target="label", hold_out=2, seed=3)


def seen_train(federation):
    """The inputs of all training rows of seen clients."""
    seen = federation.hold_out()[0] if federation.held_out is not None else federation
    return np.concatenate([seen.rows_of(name, "train")[0] for name in seen.names])


def by_target(federation):
    """Each row's inputs by its target, for tables whose targets all differ."""
    return dict(zip(federation.y.tolist(), federation.x.tolist(), strict=True))


def saved(frame, path):
    frame.write_parquet(path)
    return path


def assert_same(one, other):
    """The two federations agree in every array and name."""
    assert one.names == other.names
    for field in ("x", "y", "start", "count"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
    assert (one.task, one.num_classes, one.notes) == (other.task, other.num_classes, other.notes)


def test_numbers_and_dates_have_mean_zero_and_deviation_one_in_seen_training_rows(frame, tmp_path):
    path = saved(frame.select("site", "size", "day", "label"), tmp_path / "t.parquet")

    learned = seen_train(read_own(path, OPTIONS)).astype(float)

    np.testing.assert_allclose(learned.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(learned.std(0), 1, atol=1e-6)


def test_a_date_is_its_day_standardized(csv):
    path = csv("site,when,y,part", "a,2024-03-01,1.5,train", "a,2024-03-03,2.5,train", "a,2024-03-12,3.5,test")
    options = TableOptions(client="site", target="y", split="part", shares=(0.8, 0.0, 0.2), tails="keep")

    found = by_target(read_own(path, options))

    assert found == {1.5: [-1.0], 2.5: [1.0], 3.5: [10.0]}  # mean 2 March, deviation 1 day


def test_a_time_of_day_and_a_moment_count_in_parts_of_a_day(csv):
    lines = [
        "a,06:00,2024-03-01 00:00,1.5,train",
        "a,18:00,2024-03-01T12:00,2.5,train",
        "a,12:00,2024-03-02 00:00,3.5,test",
    ]
    path = csv("site,clock,moment,y,part", *lines)

    found = by_target(read_own(path, TableOptions(client="site", target="y", split="part", shares=(0.8, 0.0, 0.2))))

    assert found == {1.5: [-1.0, -1.0], 2.5: [1.0, 1.0], 3.5: [0.0, 3.0]}


@pytest.mark.parametrize("where", ["test", "unseen"])
def test_values_outside_seen_training_rows_change_no_other_rows_inputs(frame, tmp_path, where):
    frame = frame.with_columns(label=pl.int_range(120) + 0.5)
    before = read_own(saved(frame, tmp_path / "t.parquet"), OPTIONS)
    client = before.names[int(np.flatnonzero(before.held_out == (where == "unseen"))[0])]
    target = before.rows_of(client, "test" if where == "test" else "train")[1][0]
    odd = pl.col("label") == float(target)
    changed = frame.with_columns(
        size=pl.when(odd).then(1e6).otherwise("size"),
        color=pl.when(odd).then(pl.lit("mauve")).otherwise("color"),
        hole=pl.when(odd).then(None).otherwise("hole"),
    )

    after = read_own(saved(changed, tmp_path / "t.parquet"), OPTIONS)

    was, now = by_target(before), by_target(after)
    assert [row for row in was if was[row] != now[row]] == [target]


def test_a_missing_number_is_zero_and_marked(frame, tmp_path):
    frame = frame.select("site", "hole", label=pl.int_range(120) + 0.5)

    found = by_target(read_own(saved(frame, tmp_path / "t.parquet"), OPTIONS))

    assert {tuple(found[row + 0.5]) for row in range(0, 120, 5)} == {(0.0, 1.0)}
    assert {found[row + 0.5][1] for row in range(120) if row % 5} == {0.0}


def test_a_number_missing_in_test_rows_alone_is_zero_without_a_mark(csv):
    path = csv("site,size,y,part", "a,1,1.5,train", "a,3,2.5,train", "a,,3.5,test")
    options = TableOptions(client="site", target="y", split="part", shares=(0.8, 0.0, 0.2))

    federation = read_own(path, options)

    assert by_target(federation)[3.5] == [0.0]
    assert federation.notes[-1] == (
        "column 'size': 1 missing value (0 in training rows of seen clients) set to 0 (the mean)"
    )


def test_truth_is_zero_or_one_and_its_holes_are_marked(csv):
    path = csv("site,old,y,part", "a,True,1.5,train", "a,false,2.5,train", "a,,3.5,train", "a,TRUE,4.5,test")
    options = TableOptions(client="site", target="y", split="part", shares=(0.8, 0.0, 0.2))

    found = by_target(read_own(path, options))

    assert found == {1.5: [1.0, 0.0], 2.5: [0.0, 0.0], 3.5: [0.0, 1.0], 4.5: [1.0, 0.0]}


def test_a_category_has_an_input_per_level_in_order(csv):
    path = csv("site,color,y,part", "a,red,1.5,train", "a,blue,2.5,train", "a,,3.5,train", "a,teal,4.5,test")
    options = TableOptions(client="site", target="y", split="part", shares=(0.8, 0.0, 0.2))

    summary, found = inspect_own(path, options), by_target(read_own(path, options))

    assert summary.feature_names == ("color=blue", "color=red", "color (missing)")
    assert found == {1.5: [0.0, 1.0, 0.0], 2.5: [1.0, 0.0, 0.0], 3.5: [0.0, 0.0, 1.0], 4.5: [0.0, 0.0, 0.0]}
    assert summary.notes[-2:] == (
        "column 'color': 1 missing value (1 in training rows of seen clients) taken for a level of its own",
        "column 'color': 1 row with a level unknown in training rows of seen clients, such as 'teal'; zeros",
    )


def test_a_category_missing_in_test_rows_alone_is_all_zeros(csv):
    path = csv("site,color,y,part", "a,red,1.5,train", "a,blue,2.5,train", "a,,3.5,test")
    options = TableOptions(client="site", target="y", split="part", shares=(0.8, 0.0, 0.2))

    assert by_target(read_own(path, options))[3.5] == [0.0, 0.0]


def test_the_rarest_of_more_than_thirty_levels_share_one_input(csv):
    levels = [f"v{number:02d}" for number in range(33)]
    often = [f"a,{level},{number + 0.5},train" for number, level in enumerate(levels * 2) if level != "v05"]
    once = ["a,v05,200.5,train", "a,v06,201.5,train", "a,v05,202.5,test"]
    options = TableOptions(client="site", target="y", split="part", shares=(0.8, 0.0, 0.2))
    path = csv("site,level,y,part", *often, *once)

    summary, found = inspect_own(path, options), by_target(read_own(path, options))

    # v05 occurs once in training, v06 three times, the others twice: v05 and the last two share the last input.
    kept = [level for level in levels if level not in ("v05", "v31", "v32")]
    assert summary.feature_names == (*(f"level={level}" for level in kept), "level (other)")
    assert found[202.5] == [0.0] * 30 + [1.0]
    assert found[201.5] == [float(level == "v06") for level in kept] + [0.0]
    assert summary.notes[-1] == (
        "column 'level' has 33 levels in training rows of seen clients; the 3 rarest share one input"
    )


def test_missing_values_and_rare_levels_have_an_input_each(csv):
    rows = [f"a,v{number:02d},{number}.5,train" for number in range(31)]
    options = TableOptions(client="site", target="y", split="part", shares=(0.8, 0.0, 0.2))
    path = csv("site,level,y,part", *rows, "a,,100.5,train")

    summary, found = inspect_own(path, options), by_target(read_own(path, options))

    assert summary.feature_names[-2:] == ("level (other)", "level (missing)")
    assert found[30.5] == [0.0] * 30 + [1.0, 0.0]
    assert found[100.5] == [0.0] * 31 + [1.0]


def test_thirty_levels_need_no_other(csv):
    path = csv("site,level,y", *(f"a,v{number % 30},{number}.5" for number in range(300)))

    names = inspect_own(path, TableOptions(client="site", target="y", shares=(1.0, 0.0, 0.0))).feature_names

    assert names == tuple(f"level={level}" for level in sorted(f"v{number}" for number in range(30)))


def test_number_columns_named_as_categories_keep_what_is_written(csv):
    path = csv("site,zip,y", "a,0710,1.5", "a,10,2.5", "a,0710,3.5", "a,9,4.5", "a,9,5.5")
    options = TableOptions(client="site", target="y", categories=("zip",), shares=(1.0, 0.0, 0.0))

    summary = inspect_own(path, options)

    assert summary.feature_names == ("zip=9", "zip=10", "zip=0710")


def test_a_column_without_values_in_seen_training_rows_is_left_out_with_a_note(csv):
    path = csv("site,size,late,word,y,part", "a,1,,,1.5,train", "a,3,,,2.5,train", "a,1,7,x,3.5,test")
    options = TableOptions(client="site", target="y", split="part", shares=(0.8, 0.0, 0.2))

    summary = inspect_own(path, options)

    assert summary.feature_names == ("size",)
    assert summary.notes[-2:] == (
        "column 'late' has no value in training rows of seen clients and is left out",
        "column 'word' has no value in training rows of seen clients and is left out",
    )


def test_a_constant_column_is_zero_in_training_and_noted(csv):
    path = csv("site,size,flat,y,part", "a,1,7,1.5,train", "a,3,7,2.5,train", "a,1,9,3.5,test")
    options = TableOptions(client="site", target="y", split="part", shares=(0.8, 0.0, 0.2))

    federation = read_own(path, options)

    assert [row[1] for row in by_target(federation).values()] == [0.0, 0.0, 2.0]
    assert federation.notes[-1] == "column 'flat' has the same value in all training rows of seen clients"


def test_classes_are_numbered_in_the_order_of_their_names(csv):
    path = csv("site,size,kind", "a,1,wren", "a,2,auk", "a,3,wren", "a,4,owl")

    federation = read_own(path, TableOptions(client="site", target="kind", shares=(1.0, 0.0, 0.0)))

    assert federation.y.tolist() == [2, 0, 2, 1]
    assert federation.num_classes == 3


def test_whole_numbers_as_classes_are_in_the_order_of_numbers(csv):
    path = csv("site,size,kind", "a,1,10", "a,2,9.0", "a,3,10", "a,4,-2")
    options = TableOptions(client="site", target="kind", task="classification", shares=(1.0, 0.0, 0.0))

    assert inspect_own(path, options).class_names == ("-2", "9", "10")
    assert read_own(path, options).y.tolist() == [2, 1, 2, 0]


@pytest.mark.parametrize("values", ["xy", "wxyz"])
def test_there_are_as_many_classes_as_names(csv, values):
    path = csv("site,size,kind", *(f"a,{row},{value}" for row, value in enumerate(values * 2)))

    assert read_own(path, TableOptions(client="site", target="kind")).num_classes == len(values)


def test_a_class_of_unseen_clients_alone_counts_and_is_noted(csv):
    path = csv("site,size,kind", "a,1,x", "a,2,y", "b,1,x", "b,2,y", "c,1,x", "c,2,z")
    options = TableOptions(client="site", target="kind", hold_out=("c",), shares=(1.0, 0.0, 0.0))

    federation = read_own(path, options)

    assert federation.num_classes == 3
    assert federation.notes == ("no training row of a seen client has the class: z",)


def test_real_targets_keep_their_unit(csv):
    path = csv("site,size,y", "a,1,1000.5", "a,2,-3", "b,1,7.25")

    federation = read_own(path, TableOptions(client="site", target="y", shares=(1.0, 0.0, 0.0)))

    assert (federation.task, federation.y.tolist()) == ("regression", [1000.5, -3.0, 7.25])


@pytest.mark.parametrize(
    ("values", "task", "why"),
    [
        (["x", "y", "z"] * 10, "classification", "the target is text"),
        (["true", "false"] * 15, "classification", "the target is text"),
        ([3, 8] * 2, "classification", "the target holds 2 different whole numbers in 4 rows"),
        ([1.0, 2.0, 3.0] * 21, "classification", "the target holds 3 different whole numbers in 63 rows"),
        (list(range(11)) * 20, "regression", "the target holds 11 different whole numbers in 220 rows"),
        (list(range(10)) * 2, "classification", "the target holds 10 different whole numbers in 20 rows"),
        (list(range(20)) * 21, "classification", "the target holds 20 different whole numbers in 420 rows"),
        (list(range(21)) * 22, "regression", "the target holds 21 different whole numbers in 462 rows"),
        ([0.5, 1] * 15, "regression", "the target holds numbers that are not whole"),
    ],
)
def test_the_task_is_inferred_and_the_reason_is_told(csv, values, task, why):
    path = csv("site,size,y", *(f"a,{number},{value}" for number, value in enumerate(values)))

    summary = inspect_own(path, TableOptions(client="site", target="y"))

    assert (summary.task, summary.why, summary.errors) == (task, why, ())


def test_a_given_task_beats_the_inferred_one(csv):
    path = csv("site,size,y", *(f"a,{number},{number % 2}" for number in range(10)))

    summary = inspect_own(path, TableOptions(client="site", target="y", task="regression"))

    assert (summary.task, summary.why) == ("regression", "given")


def test_csv_and_parquet_agree(frame, tmp_path):
    frame.write_csv(tmp_path / "t.csv")
    saved(frame, tmp_path / "t.parquet")

    assert_same(read_own(tmp_path / "t.csv", OPTIONS), read_own(tmp_path / "t.parquet", OPTIONS))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_and_a_folder_of_its_clients_agree(frame, tmp_path, suffix):
    (tmp_path / "t").mkdir()
    for (site,), rows in frame.group_by("site"):
        rows = rows.drop("site")
        rows.write_csv(tmp_path / "t" / f"{site}.csv") if suffix == "csv" else rows.write_parquet(
            tmp_path / "t" / f"{site}.parquet"
        )
    table = saved(frame, tmp_path / "t.parquet")

    folder = read_own(tmp_path / "t", TableOptions(target="label", hold_out=2, seed=3))

    assert_same(folder, read_own(table, OPTIONS))
    assert folder.held_out.tolist() == read_own(table, OPTIONS).held_out.tolist()


def test_numbered_clients_are_in_the_order_of_numbers(csv):
    path = csv("site,size,y", "10,1,x", "9,2,y", "010,3,x", "0,4,y", "10,5,x")

    assert read_own(path, TableOptions(client="site", target="y")).names == ("0", "9", "010", "10")


def test_named_clients_are_in_the_order_of_text(csv):
    path = csv("site,size,y", "10,1,x", "9,2,y", "b,3,x", "9,4,y")

    assert read_own(path, TableOptions(client="site", target="y")).names == ("10", "9", "b")


def test_the_title_is_the_stem(frame, tmp_path):
    assert read_own(str(saved(frame, tmp_path / "my.birds.parquet")), OPTIONS).title == "my.birds"


def test_unseen_clients_are_set_apart_by_name(frame, tmp_path):
    path = saved(frame, tmp_path / "t.parquet")

    seen, unseen = read_own(path, TableOptions(client="site", target="label", hold_out=("s4", "s1"))).hold_out()

    assert (seen.names, unseen.names) == (("s0", "s2", "s3", "s5"), ("s1", "s4"))


def test_without_unseen_clients_nobody_is_apart(frame, tmp_path):
    federation = read_own(saved(frame, tmp_path / "t.parquet"), TableOptions(client="site", target="label"))

    assert federation.held_out is None


def test_rows_without_a_target_are_left_out_and_counted(csv):
    path = csv("site,size,y", "a,1,x", "a,2,", "b,3,y", "c,4,NA", "b,5,?", "a,6,x", "b,7,y")

    federation = read_own(path, TableOptions(client="site", target="y", shares=(1.0, 0.0, 0.0)))

    assert (federation.names, len(federation.y)) == (("a", "b"), 4)
    assert federation.notes == (
        "3 rows without a target left out, of 3 clients: a, b, c",
        "1 client left out, as no row has a target: c",
    )


def test_ignored_columns_are_no_inputs(csv):
    path = csv("site,size,id,y", "a,1,5,x", "a,2,6,y", "b,3,7,x")

    summary = inspect_own(path, TableOptions(client="site", target="y", ignore=("id",)))

    assert summary.feature_names == ("size",)
    assert [column.kind for column in summary.columns] == ["client", "number", "ignored", "target"]


def test_inputs_are_float32_and_labels_int32(frame, tmp_path):
    federation = read_own(saved(frame, tmp_path / "t.parquet"), OPTIONS)

    assert (federation.x.dtype, federation.y.dtype) == (np.float32, np.int32)


@pytest.mark.parametrize(
    "values",
    [
        pl.Series("size", ["1", "3", "2", "2"], pl.Categorical),
        pl.Series("size", ["1.00", "3.00", "2.00", "2.00"]).cast(pl.Decimal(10, 2)),
        pl.Series("size", ["1", "3", "2", "2"], pl.Enum(["3", "1", "2"])),
        pl.Series("size", [1, 3, 2, 2], pl.UInt8),
        pl.Series("size", [1, 3, 2, 2], pl.Int128),
        pl.Series("size", [1, 3, 2, 2], pl.Float32),
    ],
    ids=lambda values: str(values.dtype),
)
def test_every_type_of_number_reads_the_same(tmp_path, values):
    frame = pl.DataFrame({"site": list("aaaa"), "y": [1.5, 2.5, 3.5, 4.5]}).with_columns(values)

    options = TableOptions(client="site", target="y", shares=(1.0, 0.0, 0.0))
    found = read_own(saved(frame, tmp_path / "t.parquet"), options).x[:, 0]

    np.testing.assert_allclose(found, np.array([-1, 1, 0, 0]) * np.sqrt(2), rtol=1e-6)


def test_nan_in_a_parquet_file_is_missing(tmp_path):
    frame = pl.DataFrame({"site": list("aaa"), "size": [1.0, float("nan"), 3.0], "y": [1.5, 2.5, float("nan")]})

    summary = inspect_own(saved(frame, tmp_path / "t.parquet"), TableOptions(client="site", target="y"))

    assert [column.missing for column in summary.columns] == [0, 1, 1]


@pytest.mark.parametrize(
    "twice", [lambda frame: pl.concat([frame, frame]), lambda frame: frame[np.arange(2 * len(frame)) // 2]]
)
def test_a_table_that_is_written_twice_is_the_same_table(frame, tmp_path, twice):
    """No copy of a training row is a test row."""
    once = read_own(saved(frame, tmp_path / "t.parquet"), OPTIONS)

    again = read_own(saved(twice(frame), tmp_path / "t.parquet"), OPTIONS)

    assert "every row is there 2 times; it counts once" in again.notes
    for field in ("x", "y", "start", "count"):
        np.testing.assert_array_equal(getattr(once, field), getattr(again, field))


def test_rows_that_are_alike_by_chance_stay(frame, tmp_path):
    some = pl.concat([frame, frame[:5]])

    assert read_own(saved(some, tmp_path / "t.parquet"), OPTIONS).count.sum() == len(some)
