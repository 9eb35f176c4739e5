"""How clients differ: analyses of variance worked out by hand, tables that must give exactly 0 or 1, chance."""

import tracemalloc

import jax
import numpy as np
import pytest

from plures.data import from_arrays, load, measure
from plures.data.measure import NumberReader, feature_shift, label_skew, measure_differences, quantity_skew
from plures.data.measure import share_explained as share_explained_in

ALL_TRAIN = (1.0, 0.0, 0.0)


def federation(x, y, client, **options):
    return from_arrays(np.asarray(x), np.asarray(y), np.asarray(client), **{"shares": ALL_TRAIN, **options})


def column(*values):
    return np.array(values, float)[:, None]


def sized(*sizes):
    client = np.repeat(np.arange(len(sizes)), sizes)
    return federation(np.zeros((len(client), 1)), np.zeros(len(client), int), client)


def share_explained(values, owner, within=None):
    """The share that lies between owners, of values that are at hand."""
    flat = np.asarray(values, float).reshape(len(values), int(np.prod(values.shape[1:])))
    numbers = np.unique(owner, return_inverse=True)[1]
    reader = NumberReader(flat.shape[1], flat.shape[1], lambda places: flat[places].copy())
    return share_explained_in(reader, numbers, np.zeros_like(numbers) if within is None else within)


def normal(seed, *shape):
    return np.asarray(jax.random.normal(jax.random.key(seed), shape))


def test_the_share_is_that_of_an_analysis_of_variance():
    """Means 2 and 6 about 4: SSB = 2 * 4 + 2 * 4 = 16. SSW = 4, MSW = 4 / 2. (16 - 1 * 2) / 20."""
    found = share_explained(column(1, 3, 5, 7), np.array([0, 0, 1, 1]))

    assert found == pytest.approx(14 / 20)


def test_clients_count_by_their_rows():
    """Means 2 (3 rows) and 9 (1 row) about 3.75: SSB = 36.75, SSW = 4 + 0 + 4, MSW = 8 / 2."""
    found = share_explained(column(0, 2, 4, 9), np.array([0, 0, 0, 1]))

    assert found == pytest.approx((36.75 - 4) / 44.75)


def test_sums_of_squares_are_added_over_columns():
    """The first column has SSB 16 and SSW 4; the second has SSB 0 and SSW 4: MSW = 8 / 2, (16 - 4) / 24."""
    values = np.hstack([column(1, 3, 5, 7), column(0, 2, 0, 2)])

    assert share_explained(values, np.array([0, 0, 1, 1])) == pytest.approx(12 / 24)


def test_inside_classes_cells_are_compared_with_their_class():
    """Class 0: SSB 16, SSW 4. Class 1: SSB 0, SSW 4. Four cells in two classes: MSW = 8 / 4, (16 - 2 * 2) / 24."""
    values = column(1, 3, 5, 7, 100, 102, 100, 102)
    owner = np.array([0, 0, 1, 1, 0, 0, 1, 1])

    found = share_explained(values, owner, np.array([0, 0, 0, 0, 1, 1, 1, 1]))

    assert found == pytest.approx(12 / 24)


def test_a_class_that_a_client_lacks_makes_no_cell():
    """Class 1 has one cell only, whose SSW of 2 joins: 3 cells, 2 classes, MSW = 6 / 3, (16 - 1 * 2) / 22."""
    found = share_explained(column(1, 3, 5, 7, 50, 52), np.array([0, 0, 1, 1, 1, 1]), np.array([0, 0, 0, 0, 1, 1]))

    assert found == pytest.approx(14 / 22)


def test_the_order_of_rows_and_the_numbers_of_clients_do_not_matter():
    found = share_explained(column(5, 1, 7, 3), np.array(["b", "a", "b", "a"]))

    assert found == pytest.approx(14 / 20)


def test_a_large_common_offset_does_not_matter():
    found = share_explained(1e9 + column(1, 3, 5, 7), np.array([0, 0, 1, 1]))

    assert found == pytest.approx(14 / 20)


def test_clients_that_are_more_alike_than_chance_get_zero():
    found = share_explained(column(1, 3, 1, 3), np.array([0, 0, 1, 1]))

    assert found == 0.0


def test_clients_whose_rows_are_all_alike_explain_everything():
    found = share_explained(column(0.1, 0.1, 0.1, 0.7, 0.7, 0.7), np.array([0, 0, 0, 1, 1, 1]))

    assert found == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("within", [None, np.array([0, 1] * 6)])
def test_values_that_do_not_vary_are_explained_by_no_one(within):
    """Also where rounding keeps the mean of twelve or six tenths from being a tenth."""
    values = np.full((12, 3), 0.1) + (0.0 if within is None else within[:, None])

    assert share_explained(values, np.arange(12) // 6, within) == 0.0


@pytest.mark.parametrize(
    ("owner", "within"), [([0, 1, 2, 3], None), ([0, 0, 1, 1], [0, 1, 0, 1]), ([], None)], ids=str
)
def test_cells_of_one_row_tell_nothing(owner, within):
    values = np.arange(float(len(owner)))[:, None]

    found = share_explained(values, np.array(owner, int), None if within is None else np.array(within))

    assert np.isnan(found)


@pytest.mark.parametrize("classes", [1, 3])
def test_chance_alone_explains_nothing_on_average(classes):
    """Under equal clients SSB / MSW is chi squared with df * d degrees, so the share has a deviation of
    sqrt(2 df d) / (n d); of its positive part, the mean is at most that of half a normal: 0.4 deviations."""
    clients, rows, columns, seeds = 20, 300, 5, 30
    owner, within = np.arange(rows) % clients, np.arange(rows) // clients % classes
    deviation = np.sqrt(2 * (clients - 1) * classes * columns) / (rows * columns)

    found = [share_explained(normal(seed, rows, columns), owner, within) for seed in range(seeds)]

    assert np.mean(found) < (0.4 + 3 * 0.6 / np.sqrt(seeds)) * deviation
    assert max(found) > 0


@pytest.mark.parametrize("block", [8, 100, 1000])
def test_blocks_of_rows_do_not_change_the_share(block, monkeypatch):
    values, owner = normal(0, 200, 3) + np.arange(200)[:, None] % 7, np.arange(200) % 7
    within = np.arange(200) // 90
    whole = share_explained(values, owner, within)
    monkeypatch.setattr(measure, "BLOCK_BYTES", block)

    assert share_explained(values, owner, within) == pytest.approx(whole, rel=1e-12)


def test_one_class_per_client_is_all_the_label_skew_there_is():
    found = label_skew(federation(np.zeros((9, 1)), np.repeat([0, 1, 2], 3), np.repeat([0, 1, 2], 3)))

    assert found == pytest.approx(1.0, abs=1e-12)


def test_equal_tables_of_labels_have_no_skew():
    found = label_skew(federation(np.zeros((12, 1)), [0, 0, 1, 2] * 3, np.repeat([0, 1, 2], 4)))

    assert found == 0.0


def test_label_skew_is_the_share_on_one_hot_labels():
    """One-hot of two classes are two mirrored columns, so the share is that of the labels 0 and 1 themselves:
    client means 1/4 and 3/4 about 1/2, SSB = 8 / 16 = 1/2, SSW = 2 * (4 * 3 / 16) = 3/2, MSW = 3/2 / 6."""
    found = label_skew(federation(np.zeros((8, 1)), [0, 0, 0, 1, 0, 1, 1, 1], np.repeat([0, 1], 4)))

    assert found == pytest.approx((1 / 2 - 1 / 4) / 2)


def test_label_skew_of_a_regression_is_the_share_on_its_targets():
    found = label_skew(federation(np.zeros((4, 1)), [1.0, 3.0, 5.0, 7.0], [0, 0, 1, 1], task="regression"))

    assert found == pytest.approx(14 / 20)


def test_labels_of_a_row_of_a_sequence_are_averaged():
    """Rows hold the symbols 0 and 1 in shares (1, 0), (1/2, 1/2) at client a and (1/2, 1/2), (0, 1) at client b.
    Per column: means 3/4 and 1/4 about 1/2, SSB = 4 / 16, SSW = 4 / 16, MSW = 1/8; (1/4 - 1/8) / (1/2)."""
    y = [[0, 0], [0, 1], [1, 0], [1, 1]]

    found = label_skew(federation(np.zeros((4, 1)), y, ["a", "a", "b", "b"], task="sequence"))

    assert found == pytest.approx(1 / 4)


SPLIT = ["train", "train", "valid", "valid", "test", "test"] * 2
ALIKE_IN_TRAINING = np.array([0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1])


def test_only_labels_of_training_rows_count():
    found = federation(np.zeros((12, 1)), ALIKE_IN_TRAINING, np.repeat([0, 1], 6), split=SPLIT)

    assert label_skew(found) == 0.0


def test_only_inputs_of_training_rows_count():
    found = federation(column(*ALIKE_IN_TRAINING), np.zeros(12, int), np.repeat([0, 1], 6), split=SPLIT)

    assert feature_shift(found) == 0.0


def test_a_part_of_a_federation_is_measured_by_its_own_rows():
    whole = federation(column(0, 0, 1, 3, 5, 7), [0.0] * 6, [0, 0, 1, 1, 2, 2], task="regression")

    assert feature_shift(whole.take([2, 1])) == pytest.approx(14 / 20)


def test_inputs_moved_by_client_are_all_shift():
    found = feature_shift(federation(column(0, 0, 0, 5, 5, 5), [0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1]))

    assert found == pytest.approx(1.0, abs=1e-12)


def test_label_skew_alone_is_no_feature_shift():
    """Class 0 has the inputs -1 and 1, class 1 has 9 and 11, at every client; the clients' classes differ."""
    x = column(*[-1, 1] * 3, *[9, 11], *[-1, 1], *[9, 11] * 3)
    y = [0] * 6 + [1] * 2 + [0] * 2 + [1] * 6
    found = federation(x, y, np.repeat([0, 1], 8))

    assert feature_shift(found) == 0.0
    assert share_explained(x, np.repeat([0, 1], 8)) > 0.1


def test_without_classes_inputs_are_compared_plainly():
    found = federation(column(1, 3, 5, 7), [0.0, 1.0, 2.0, 3.0], [0, 0, 1, 1], task="regression")

    assert feature_shift(found) == pytest.approx(14 / 20)


def test_wide_inputs_are_seen_along_random_directions():
    """Clients' offsets and the noise have no preferred direction, so 64 of 400 give the same share but for chance."""
    owner = np.arange(600) % 30
    x = normal(0, 600, 20, 20) + normal(1, 30, 20, 20)[owner]
    exact = share_explained(x, owner)

    found = feature_shift(federation(x, np.zeros(600), owner, task="regression"))

    assert found == pytest.approx(exact, abs=0.03)
    assert found != exact


def test_tokens_count_by_how_often_they_occur():
    x = np.array([[0, 1, 1], [0, 1, 1], [1, 1, 0], [1, 0, 1]])

    found = federation(x, [0, 0, 0, 0], [0, 0, 1, 1])

    assert feature_shift(found) == 0.0


@pytest.mark.parametrize("number", [1000, -1])
def test_whole_numbers_beyond_any_alphabet_are_numbers(number):
    x = np.array([[0, number], [0, number], [number, 0], [number, 0]])

    found = federation(x, [0, 0, 0, 0], [0, 0, 1, 1])

    assert feature_shift(found) == pytest.approx(1.0, abs=1e-12)


def test_images_of_whole_numbers_are_numbers():
    x = np.array([[[0, 1]], [[0, 1]], [[1, 0]], [[1, 0]]], np.uint8)

    assert feature_shift(federation(x, [0, 0, 0, 0], [0, 0, 1, 1])) == pytest.approx(1.0, abs=1e-12)


def test_inputs_without_columns_have_no_shift_to_measure():
    assert feature_shift(load("density", num_clients=8)) is None


def test_memory_stays_small_where_most_cells_are_empty():
    """4,000 clients x 1,000 classes x 20 columns would be 640 MB of cells; 16,000 rows of 20 numbers are 2.6 MB."""
    rows = np.arange(16_000)
    found = federation((rows[:, None] % np.arange(7, 27)) * 1.0, rows // 16 % 1000, rows // 4)
    tracemalloc.start()

    feature_shift(found)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6


def test_memory_stays_small_where_inputs_are_wide():
    """1,000 rows of 20,000 numbers are 160 MB as float64; a block is at most 34 MB and is copied once or twice."""
    found = federation(
        np.zeros((1_000, 20_000), np.float32), np.zeros(1_000), np.arange(1_000) // 10, task="regression"
    )
    tracemalloc.start()

    feature_shift(found)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 120e6


def test_quantity_skew_counts_training_rows():
    split = ["train", "train"] + ["train"] * 2 + ["test"] * 4
    found = federation(np.zeros((8, 1)), np.zeros(8, int), [0, 0] + [1] * 6, split=split)

    assert quantity_skew(found) == 0.0


@pytest.mark.parametrize(
    ("sizes", "gini"),
    [
        ((5, 5, 5), 0.0),
        ((1, 3), 1 / 4),  # differences over all pairs have mean 1; half of it over the mean size 2
        ((3, 1, 1, 3), 1 / 4),
        ((7,), 0.0),
    ],
)
def test_quantity_skew_is_the_gini_coefficient(sizes, gini):
    assert quantity_skew(sized(*sizes)) == pytest.approx(gini)


def test_quantity_skew_when_one_client_has_nearly_all():
    """With a share s at one of K clients and the rest spread evenly the coefficient is s - 1/K."""
    assert quantity_skew(sized(1, 1, 1, 9_997)) == pytest.approx(0.9997 - 1 / 4)


def test_quantity_skew_when_one_client_has_all():
    own, none = sized(8).count, np.zeros((3, 3), int)
    found = load("digits", num_clients=4)

    alone = measure.quantity_skew(type(found)(**{**vars(found), "count": np.vstack([none, own])}))

    assert alone == 3 / 4


def test_all_numbers_come_by_name():
    found = measure_differences(
        federation(column(1, 3, 5, 7), [1.0, 3.0, 5.0, 7.0], [0, 0, 1, 1], task="regression")
    )

    assert found == pytest.approx({"label_skew": 14 / 20, "feature_shift": 14 / 20, "quantity_skew": 0.0})


def test_what_cannot_be_measured_is_none():
    assert measure_differences(sized(1, 1, 1)) == {"label_skew": None, "feature_shift": None, "quantity_skew": 0.0}


def test_turned_digits_shift_inputs_but_not_labels():
    found = measure_differences(load("digits"))

    assert found["feature_shift"] > 0.1 > found["label_skew"]
