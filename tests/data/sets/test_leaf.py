"""LEAF files: merged, split, and every contradiction in them refused in one line."""

import json
from pathlib import Path

import numpy as np
import pytest

from plures import data
from plures.data.files import DataFile
from plures.data.sets.leaf import leaf
from plures.errors import BadData, BadFile, BadValue, Unsupported

FIXTURE = [
    DataFile(
        "leaf_femnist_fixture/train.json",
        "84ed275129f509fdbc758fa5604ef791419b5797c65cef9e18a9227eba01a7f4",
        "",
        "",
    ),
    DataFile(
        "leaf_femnist_fixture/test.json", "2653603427d97d07e34ca226ea34563fd7a029881e591fff2f686a05ad7369ab", "", ""
    ),
]


def contents(**users):
    """The contents of a file; a user's rows are (x, y) pairs."""
    return {
        "users": list(users),
        "num_samples": [len(rows) for rows in users.values()],
        "user_data": {user: {"x": [x for x, _ in rows], "y": [y for _, y in rows]} for user, rows in users.items()},
    }


def rows(*labels, width=2):
    """A row for each label, all of its numbers the label."""
    return [([float(label)] * width, label) for label in labels]


def written(path, stored):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(stored if isinstance(stored, str) else json.dumps(stored))
    return path


def folder(path, train, test):
    written(path / "train.json", train)
    written(path / "test.json", test)
    return str(path)


def labels_of(federation, name, *splits):
    return sorted(label for split in splits for label in federation.rows_of(name, split)[1].tolist())


def test_given_test_rows_are_test_rows(tmp_path):
    path = folder(
        tmp_path, contents(ann=rows(0, 1, 2, 3), bob=rows(4, 5, 6)), contents(ann=rows(7, 8), bob=rows(9))
    )

    federation = leaf(path=path)

    assert federation.names == ("ann", "bob")
    assert (labels_of(federation, "ann", "test"), labels_of(federation, "bob", "test")) == ([7, 8], [9])
    assert labels_of(federation, "ann", "train", "valid") == [0, 1, 2, 3]
    assert labels_of(federation, "bob", "train", "valid") == [4, 5, 6]


def test_a_quarter_of_the_given_training_rows_validates(tmp_path):
    path = folder(tmp_path, contents(ann=rows(*range(8))), contents(ann=rows(0)))

    assert leaf(path=path).count.tolist() == [[6, 2, 1]]


def test_inputs_stay_with_their_labels(tmp_path):
    path = folder(tmp_path, contents(ann=rows(0, 1, 2, 3)), contents(ann=rows(4), bob=rows(5, 6, 7)))

    federation = leaf(path=path)

    assert federation.x.tolist() == [[label, label] for label in federation.y]
    assert (federation.x.dtype, federation.y.dtype, federation.num_classes) == (np.float32, np.int32, 8)


def test_several_files_of_a_split_are_merged(tmp_path):
    written(tmp_path / "train" / "b.json", contents(bob=rows(0, 1)))
    written(tmp_path / "train" / "a.json", contents(ann=rows(1, 1)))
    written(tmp_path / "test" / "all.json", contents(ann=rows(0), bob=rows(1)))

    federation = leaf(path=str(tmp_path))

    assert federation.names == ("ann", "bob")
    assert labels_of(federation, "ann", "train", "valid") == [1, 1]


def test_a_single_file_is_split_in_three(tmp_path):
    path = written(tmp_path / "all.json", contents(ann=rows(*range(10))))

    federation = leaf(path=str(path))

    assert (federation.count.tolist(), federation.held_out, federation.notes) == ([[6, 2, 2]], None, ())


def test_the_seed_moves_the_split(tmp_path):
    path = written(tmp_path / "all.json", contents(ann=rows(*range(50))))

    first, second, again = (labels_of(leaf(path=str(path), seed=seed), "ann", "test") for seed in (0, 1, 0))

    assert first == again != second


def test_users_of_test_files_only_are_unseen_clients(tmp_path):
    path = folder(tmp_path, contents(ann=rows(0, 1, 2, 3)), contents(ann=rows(0), bob=rows(0, 1, 2, 3, 4)))

    federation = leaf(path=path)

    seen, unseen = federation.hold_out()
    assert (seen.names, unseen.names, unseen.count.tolist()) == (("ann",), ("bob",), [[3, 1, 1]])
    assert federation.notes == ("1 users of test files only, held out as unseen: 'bob'",)


def test_users_of_training_files_only_are_noted(tmp_path):
    path = folder(
        tmp_path,
        contents(ann=rows(0, 1), bob=rows(0), cem=rows(0), dan=rows(0), eve=rows(1)),
        contents(ann=rows(0)),
    )

    federation = leaf(path=path)

    assert federation.count[:, 2].tolist() == [1, 0, 0, 0, 0]
    assert federation.notes == ("4 users of training files only, without test rows: 'bob', 'cem', 'dan', ...",)


def test_users_without_rows_are_left_out_and_noted(tmp_path):
    path = written(tmp_path / "all.json", contents(ann=rows(0, 1), bob=[]))

    federation = leaf(path=str(path))

    assert (federation.names, federation.notes) == (("ann",), ("1 users without rows left out: 'bob'",))


def test_784_numbers_are_an_image(tmp_path):
    path = written(tmp_path / "all.json", contents(ann=rows(0, 1, 2, width=784)))

    assert leaf(path=str(path)).shape == (28, 28)


def test_the_shape_can_be_given(tmp_path):
    path = written(tmp_path / "all.json", contents(ann=rows(0, 1, 2, width=784)))

    assert data.load("leaf", path=str(path), shape=(28, 28, 1)).shape == (28, 28, 1)


def test_inverting_swaps_black_and_white(tmp_path):
    path = written(tmp_path / "all.json", contents(ann=[([0.25, 1.0], 0)]))

    assert leaf(path=str(path), invert=True).x.tolist() == [[0.75, 0.0]]


def test_the_number_of_classes_can_be_given(tmp_path):
    path = written(tmp_path / "all.json", contents(ann=rows(0, 1)))

    assert leaf(path=str(path), num_classes=62).num_classes == 62


def test_text_becomes_next_characters(tmp_path):
    path = written(tmp_path / "all.json", contents(ann=[("bad", "e"), ("ade", "d")]))

    federation = leaf(path=str(path))

    # Alphabet: a b d e. The windows one character later are "ade" and "ded".
    assert (federation.task, federation.num_classes) == ("sequence", 4)
    assert federation.x.tolist() == [[1, 0, 2], [0, 2, 3]]
    assert federation.y.tolist() == [[0, 2, 3], [2, 3, 2]]


def test_later_windows_of_a_text_validate(tmp_path):
    path = folder(tmp_path, contents(ann=[(one, "a") for one in "aaabbbcd"]), contents(ann=[("e", "a")]))

    federation = leaf(path=path)

    assert "".join("abcde"[x] for x in federation.rows_of("ann", "train")[0][:, 0]) == "aaabbb"
    assert "".join("abcde"[x] for x in federation.rows_of("ann", "valid")[0][:, 0]) == "cd"
    assert federation.rows_of("ann", "test")[0].tolist() == [[4]]


def broken(**changes):
    return {**contents(ann=rows(0, 1)), **changes}


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        ("", "is empty (0 bytes); write the LEAF file anew"),
        ('{"users": [', "is damaged: "),
        ('{"users": ["a"], "users": ["a"]}', "is damaged: 'users' is there twice"),
        ("[]", "it should hold the lists 'users' and 'num_samples' and the table 'user_data'"),
        (broken(num_samples=None), "it should hold the lists 'users' and 'num_samples' and the table 'user_data'"),
        (broken(num_samples=[3]), "user 'ann' has 2 inputs, 2 labels and 'num_samples' 3"),
        (broken(num_samples=[2, 2]), "1 users but 2 entries in 'num_samples'"),
        (broken(users=["ann", "ann"], num_samples=[2, 2]), "a user is listed twice in 'users'"),
        (broken(users=["bob"]), "'users' and 'user_data' name different users"),
        (broken(users=[7]), "a user's name is not text"),
        (broken(user_data={"ann": {"x": [[1], [2]]}}), "user 'ann' lacks a list 'x' or 'y'"),
        (broken(user_data={"ann": [1, 2]}), "user 'ann' lacks a list 'x' or 'y'"),
        (
            broken(user_data={"ann": {"x": [[1], [2]], "y": [0]}}),
            "user 'ann' has 2 inputs, 1 labels and 'num_samples' 2",
        ),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path, stored, problem):
    path = written(tmp_path / "all.json", stored)

    with pytest.raises(BadFile) as refusal:
        leaf(path=str(path))

    assert str(refusal.value).startswith(f"{path} is ")
    assert problem in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "all.json"
    path.write_bytes(b"\xff\xfe\xfd")

    with pytest.raises(BadFile, match=r"all\.json is damaged: "):
        leaf(path=str(path))


@pytest.mark.parametrize(
    ("users", "problem"),
    [
        ({"ann": [([1, 2], 0), ([1], 0)]}, "x of user 'ann' in PATH must be numbers, equally many in every row"),
        ({"ann": [([["a"], ["b"]], 0)]}, "x of user 'ann' in PATH must be numbers, equally many in every row"),
        ({"ann": [([1, 2], "word")]}, "y of user 'ann' in PATH must be numbers, equally many in every row"),
        ({"ann": [([1, 2], [1, 0])]}, "y of user 'ann' in PATH must be one whole number per row"),
        (
            {"ann": rows(0), "bob": rows(0, width=3)},
            "the inputs of user 'bob' in PATH are (3,) where those of user 'ann' in PATH are (2,); all must be alike",
        ),
        (
            {"ann": rows(0), "bob": [("abc", "d")]},
            "user 'bob' in PATH has text where others have numbers, or the reverse",
        ),
        (
            {"ann": [("abc", "d")], "bob": [("ab", "d")]},
            "user 'bob' in PATH must have windows of 3 characters and one character after each",
        ),
        (
            {"ann": [("image.jpg", 1)]},
            "user 'ann' in PATH must have windows of 9 characters and one character after each",
        ),
        ({"ann": []}, "no user has training rows; give at least one that has"),
        ({"ann": [([0.5], 0.5)]}, "y of user 'ann' in PATH must be one whole number per row"),
        ({"ann": [([0.5], float("nan"))]}, "y of user 'ann' in PATH must be one whole number per row"),
        ({"ann": [([float("nan")], 0)]}, "x holds NaN or infinity in row 0"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(tmp_path, users, problem):
    path = written(tmp_path / "all.json", contents(**users))

    with pytest.raises(BadData) as refusal:
        leaf(path=str(path))

    assert str(refusal.value) == problem.replace("PATH", str(path))


def test_a_user_of_two_files_is_refused(tmp_path):
    for name in ("a", "b"):
        written(tmp_path / "train" / f"{name}.json", contents(ann=rows(0)))
    written(tmp_path / "test" / "a.json", contents(ann=rows(0)))

    with pytest.raises(BadData) as refusal:
        leaf(path=str(tmp_path))

    train = tmp_path / "train"
    assert str(refusal.value) == (
        f"user 'ann' in {train / 'b.json'} is also user 'ann' in {train / 'a.json'}; "
        "give a user's rows of a split in one file"
    )


def test_a_folder_without_test_files_is_refused(tmp_path):
    written(tmp_path / "train.json", contents(ann=rows(0)))

    with pytest.raises(
        BadFile, match=r"has no test\.json and no test/\*\.json; path should be a LEAF file, or a folder"
    ):
        leaf(path=str(tmp_path))


def test_a_path_to_nothing_is_refused(tmp_path):
    with pytest.raises(BadFile, match=r"^there is no file or folder .*nothing; path should be a LEAF file"):
        leaf(path=str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"path": ""}, BadValue, "path must be a LEAF file, or a folder with train.json and test.json or with"),
        ({"shape": (3,)}, BadValue, "shape must be sizes whose product is the 2 numbers of an input, got (3,)"),
        (
            {"shape": (-1, -2)},
            BadValue,
            "shape must be sizes whose product is the 2 numbers of an input, got (-1, -2)",
        ),
        ({"num_classes": 1}, BadData, "labels must lie in 0..0, found 1"),
        ({"num_classes": 0}, BadValue, "num_classes must be 1 or more, got 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, options, error, message):
    path = written(tmp_path / "all.json", contents(ann=rows(0, 1)))

    with pytest.raises(error) as refusal:
        leaf(**{"path": str(path), **options})

    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"shape": (3, 1)},
            Unsupported,
            "shape and invert are for numbers, but these inputs are text; leave them out",
        ),
        (
            {"invert": True},
            Unsupported,
            "shape and invert are for numbers, but these inputs are text; leave them out",
        ),
        ({"num_classes": 3}, BadValue, "num_classes must be at least 4, the characters of the text, got 3"),
    ],
)
def test_options_that_do_not_fit_text_are_refused(tmp_path, options, error, message):
    path = written(tmp_path / "all.json", contents(ann=[("bad", "e")]))

    with pytest.raises(error) as refusal:
        leaf(path=str(path), **options)

    assert str(refusal.value) == message


@pytest.fixture(scope="module")
def femnist(needs):
    """The folder of a real FEMNIST sample."""
    return Path(*{needs(source).parent for source in FIXTURE})


def test_a_femnist_file_has_five_writers_and_62_classes(femnist):
    federation = leaf(path=str(femnist))

    assert (federation.num_clients, federation.shape, federation.num_classes) == (5, (28, 28), 62)
    assert federation.count.sum(0).tolist()[2] == 89
    assert federation.count[:, :2].sum() == 78
    assert (federation.notes, federation.held_out) == ((), None)


def test_femnist_has_a_white_background(femnist):
    assert np.median(leaf(path=str(femnist)).x) == 1.0
    assert np.median(leaf(path=str(femnist), invert=True).x) == 0.0
