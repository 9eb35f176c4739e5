"""A folder with an NPZ file per client: any input shape, splits drawn or given."""

import numpy as np
import pytest

from plures.data.tables import TableOptions, inspect_own, read_own
from plures.errors import BadData, BadFile, BadValue

ALL = TableOptions(shares=(1.0, 0.0, 0.0))
WANTED = "it should hold x and y, or x_train, y_train, x_test and y_test (with x_valid and y_valid if you like)"


def refusal(folder, kind, options=TableOptions()):
    """The message of the error that reading ends with; inspecting must tell the same."""
    with pytest.raises(kind) as caught:
        read_own(folder, options)
    message = str(caught.value)
    assert "\n" not in message
    assert inspect_own(folder, options).errors[0] == message
    return message


def test_vectors_are_standardized_by_seen_training_rows(npz):
    npz("a", x=np.array([[1.0, 10.0], [3.0, 30.0]]), y=np.array([1.5, 2.5]))
    folder = npz("b", x=np.array([[7.0, 20.0], [9.0, 20.0]]), y=np.array([3.5, 4.5]))

    federation = read_own(folder, TableOptions(shares=(1.0, 0.0, 0.0), hold_out=("b",), tails="keep"))

    assert federation.x.tolist() == [[-1, -1], [1, 1], [5, 0], [7, 0]]
    assert federation.x.dtype == np.float32


def test_more_columns_than_fit_a_block_are_all_standardized(npz):
    x = np.linspace(-1, 1, 40)[:, None] * np.arange(1, 38) + np.arange(37)
    folder = npz("a", x=x, y=np.arange(40) + 0.5)

    found = read_own(folder, ALL).x.astype(float)

    np.testing.assert_allclose(found.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(found.std(0), 1, atol=1e-6)


def test_a_single_number_per_row_is_a_vector_of_one(npz):
    folder = npz("a", x=np.array([1, 3]), y=np.array([1.5, 2.5]))

    assert read_own(folder, ALL).x.tolist() == [[-1.0], [1.0]]


def test_bytes_are_divided_by_255(npz):
    images = np.array([0, 51, 102, 255], np.uint8).reshape(2, 2, 1)
    folder = npz("a", x=images, y=np.array(["cat", "dog"]))

    federation = read_own(folder, ALL)

    np.testing.assert_allclose(federation.x.ravel(), [0, 0.2, 0.4, 1], rtol=1e-6)
    assert (federation.shape, federation.x.dtype) == ((2, 1), np.float32)


def test_byte_vectors_are_divided_by_255_too(npz):
    folder = npz("a", x=np.array([[0], [255]], np.uint8), y=np.array([1.5, 2.5]))

    assert read_own(folder, ALL).x.tolist() == [[0.0], [1.0]]


def test_windows_are_left_as_they_are(npz):
    windows = np.arange(12).reshape(2, 3, 2)
    npz("a", x=windows[:1], y=np.array([0]))
    folder = npz("b", x=windows[1:] * 1.0, y=np.array([1]))

    np.testing.assert_array_equal(read_own(folder, ALL).x, windows.astype(np.float32))


@pytest.mark.parametrize(
    ("y", "task", "class_names", "labels"),
    [
        (np.array(["b", "a", "b"]), "classification", ("a", "b"), [1, 0, 1]),
        (np.array(["10", "9", "10"]), "classification", ("9", "10"), [1, 0, 1]),
        (np.array([True, False, True]), "classification", ("false", "true"), [1, 0, 1]),
        (np.array([7, 3, 7], np.uint8), "classification", ("3", "7"), [1, 0, 1]),
        (np.array([[7.0], [3.0], [7.0]]), "classification", ("3", "7"), [1, 0, 1]),
        (np.array([0.5, 3.0, 7.0]), "regression", (), [0.5, 3.0, 7.0]),
    ],
)
def test_labels_may_be_text_truth_or_numbers(npz, y, task, class_names, labels):
    folder = npz("a", x=np.arange(3.0), y=y)

    summary, federation = inspect_own(folder, ALL), read_own(folder, ALL)

    assert (summary.task, summary.class_names, federation.y.tolist()) == (task, class_names, labels)


def test_rows_are_split_by_shares(npz):
    for name in "ab":
        folder = npz(name, x=np.arange(20.0), y=np.arange(20) % 2)

    assert read_own(folder).count.tolist() == [[12, 4, 4]] * 2


def test_given_splits_are_followed(npz):
    parts = {"train": [0.5, 1.5], "valid": [2.5], "test": [3.5, 4.5]}
    arrays = {f"x_{part}": np.array(y) for part, y in parts.items()}
    folder = npz("a", **arrays, **{f"y_{part}": np.array(y) for part, y in parts.items()})

    federation = read_own(folder)

    assert {part: federation.rows_of("a", part)[1].tolist() for part in parts} == parts


def test_without_valid_arrays_a_share_of_train_is_taken(npz):
    train, test = np.arange(8) + 0.5, np.arange(3) + 100.5
    folder = npz("a", x_train=train, y_train=train, x_test=test, y_test=test)

    federation = read_own(folder)

    assert federation.count.tolist() == [[6, 2, 3]]
    assert federation.rows_of("a", "test")[1].tolist() == [100.5, 101.5, 102.5]
    assert federation.notes[0].startswith("no row is marked as valid; a share of 0.25 of each client's train rows")


def test_rows_without_a_target_are_left_out(npz):
    folder = npz("a", x=np.array([1.0, 3.0, 99.0]), y=np.array([1.5, 2.5, np.nan]))

    federation = read_own(folder, ALL)

    assert federation.x.tolist() == [[-1.0], [1.0]]
    assert federation.notes[0] == "1 row without a target left out, of 1 client: a"


@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_images_without_a_target_are_left_out(npz, kind):
    images = np.arange(12).reshape(3, 2, 2).astype(kind)
    folder = npz("a", x=images, y=np.array([1.5, np.nan, 2.5]))

    federation = read_own(folder, ALL)

    np.testing.assert_allclose(federation.x, images[[0, 2]] / (255 if kind == np.uint8 else 1), rtol=1e-6)


def test_arrays_that_are_not_used_are_noted(npz):
    folder = npz("a", x=np.arange(3.0), y=np.arange(3) + 0.5, place=np.zeros(3))

    assert read_own(folder, ALL).notes[0] == "a.npz: arrays that are not used: place"


def test_the_summary_of_vectors(npz):
    npz("10", x=np.zeros((3, 2)), y=np.array([0.5, 1, np.nan]))
    folder = npz("9", x=np.zeros((2, 2)), y=np.array([0.5, 1]))

    summary = inspect_own(folder)

    assert (summary.title, summary.rows, summary.clients) == ("clients", 5, 2)
    assert [(column.name, column.kind, column.missing) for column in summary.columns] == [
        ("x", "number", 0),
        ("y", "target", 1),
    ]
    assert summary.feature_names == ("x0", "x1")
    assert read_own(folder).names == ("9", "10")


def test_images_have_no_feature_names(npz):
    assert inspect_own(npz("a", x=np.zeros((3, 2, 2)), y=np.arange(3) + 0.5)).feature_names == ()


def test_the_target_may_be_called_y(npz):
    folder = npz("a", x=np.arange(3.0), y=np.arange(3) + 0.5)

    assert inspect_own(folder, TableOptions(target="y")).errors == ()


@pytest.mark.parametrize("role", ["target", "client", "split", "time", "recording"])
def test_columns_have_no_meaning(npz, role):
    folder = npz("a", x=np.arange(3.0), y=np.arange(3) + 0.5)

    assert refusal(folder, BadValue, TableOptions(**{role: "age"})) == (
        f"{role} must be left out for NPZ files, whose arrays are x and y, got 'age'"
    )


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones(3)}, f"a.npz lacks y; {WANTED}"),
        ({"z": np.ones(3)}, f"a.npz lacks x_train, y_train, x_test, y_test; {WANTED}"),
        ({"x_train": np.ones(3), "y_train": np.ones(3)}, f"a.npz lacks x_test, y_test; {WANTED}"),
        (
            {"x": np.ones(3), "y": np.ones(3), "x_test": np.ones(3)},
            f"a.npz holds x or y besides x_test; {WANTED}",
        ),
        (
            {"x": np.array([None, {}], object), "y": np.ones(2)},
            f"a.npz is damaged or no NPZ file of plain arrays; {WANTED}",
        ),
    ],
)
def test_files_without_the_right_arrays_are_refused(npz, arrays, message):
    assert refusal(npz("a", **arrays), BadFile) == message


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones(3), "y": np.ones(2)}, "a.npz has 3 rows in x but 2 in y"),
        ({"x": np.ones((0, 2)), "y": np.ones(0)}, "a.npz has no rows"),
        ({"x": np.array(["q", "r"]), "y": np.ones(2)}, "x in a.npz holds <U1; give numbers"),
        ({"x": np.ones(2), "y": np.ones(2, complex)}, "y in a.npz holds complex128; give numbers or text"),
        ({"x": np.ones(2), "y": np.ones((2, 3))}, "y in a.npz has the shape (2, 3); give one label per row"),
        (
            {"x": np.array([1, np.nan]), "y": np.ones(2)},
            "x in a.npz holds NaN or infinity in row 2; give finite numbers",
        ),
        (
            {"x": np.where(np.arange(5000) == 4998, np.inf, 0.0), "y": np.ones(5000)},
            "x in a.npz holds NaN or infinity in row 4999; give finite numbers",
        ),
        ({"x": np.ones(2), "y": np.array([1, np.inf])}, "y holds inf in row 2 of a.npz; give finite numbers"),
        (
            {"x": np.ones(2), "y": np.array([4, 4])},
            "the target 'y' has only the class '4'; there must be two or more",
        ),
        (
            {
                "x_train": np.ones((2, 3)),
                "y_train": np.arange(2),
                "x_test": np.ones((2, 4)),
                "y_test": np.arange(2),
            },
            "a.npz holds inputs of shape (3,) and (4,); all must agree",
        ),
        (
            {"x_train": np.ones(2), "y_train": np.arange(2), "x_test": np.ones(2), "y_test": np.array(["p", "q"])},
            "a.npz holds number inputs with number labels and number inputs with text labels; all must agree",
        ),
        (
            {"x": np.ones((2, 0)), "y": np.arange(2)},
            "x in a.npz has the shape (2, 0); give at least one input per row",
        ),
        (
            {"x_train": np.ones(0), "y_train": np.ones(0), "x_test": np.ones(2), "y_test": np.arange(2)},
            "client 'a' has no training rows; give some, or leave the client out",
        ),
        (
            {"x_train": np.ones(2), "y_train": np.ones(2), "x_test": np.ones(2), "y_test": np.array([1, -np.inf])},
            "y holds -inf in row 2 of test in a.npz; give finite numbers",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(npz, arrays, message):
    assert refusal(npz("a", **arrays), BadData) == message


def test_half_precision_is_fine(npz):
    folder = npz("a", x=np.array([1, 3], np.float16), y=np.array([1.5, 2.5], np.float16))

    assert read_own(folder, ALL).x.tolist() == [[-1.0], [1.0]]


def test_scalars_are_refused(npz):
    assert (
        refusal(npz("a", x=np.float64(3), y=np.ones(1)), BadData)
        == "x in a.npz is a single value; give a row per example"
    )


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones((2, 3)), [1, 2], "a.npz holds inputs of shape (2,) but b.npz inputs of shape (3,)"),
        (
            np.ones((2, 2), np.uint8),
            [1, 2],
            "a.npz holds number inputs with number labels but b.npz uint8 inputs with number labels",
        ),
        (
            np.ones((2, 2)),
            ["x", "y"],
            "a.npz holds number inputs with number labels but b.npz number inputs with text labels",
        ),
    ],
)
def test_clients_that_differ_are_refused(npz, x, y, message):
    npz("a", x=np.ones((2, 2)), y=np.array([1, 2]))
    folder = npz("b", x=x, y=np.array(y))

    assert refusal(folder, BadData) == f"{message}; all clients must agree"


@pytest.mark.parametrize("first", ["a", "b"])
def test_clients_with_and_without_given_splits_are_refused(npz, first):
    other = "b" if first == "a" else "a"
    npz(first, x=np.ones(2), y=np.array([1, 2]))
    folder = npz(other, x_train=np.ones(2), y_train=np.array([1, 2]), x_test=np.ones(2), y_test=np.array([1, 2]))

    assert refusal(folder, BadData) == (
        f"{first}.npz holds x and y but {other}.npz holds x_train and so on; give all the same"
    )


def test_damaged_and_empty_files_are_all_named(npz):
    folder = npz("a", x=np.arange(30.0), y=np.arange(30) + 0.5)
    whole = (folder / "a.npz").read_bytes()
    (folder / "b.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "c.npz").touch()
    np.save(folder / "d.npy", np.ones(3))
    (folder / "d.npy").rename(folder / "d.npz")

    assert inspect_own(folder).errors == (
        f"b.npz is damaged or no NPZ file of plain arrays; {WANTED}",
        "c.npz is empty (0 bytes)",
        f"d.npz is damaged or no NPZ file of plain arrays; {WANTED}",
    )
