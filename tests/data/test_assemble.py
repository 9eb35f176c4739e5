"""Assembling: sound examples in the order of clients and splits, in a copy or in their own memory."""

import tracemalloc

import numpy as np
import pytest

from plures.data.federation import Examples, assemble
from plures.errors import BadData

# Rows of two clients, given in another order than they are stored in.
OWNER, CODES = np.array([1, 0, 1, 0, 0, 1]), np.array([0, 2, 1, 0, 1, 0])


def assembled(columns=2, **options):
    rows = np.arange(6.0)
    return assemble(
        Examples(np.repeat(rows[:, None], columns, axis=1), rows.astype(int), OWNER, CODES),
        names=("a", "b"),
        task="classification",
        **options,
    )


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 40])
def test_examples_are_put_in_the_order_of_clients_and_splits(columns, in_place):
    """Rows of one client and split keep their order: 3 | 4 | 1 of the first client, 0 5 | 2 | of the second."""
    found = assembled(columns, in_place=in_place)

    np.testing.assert_array_equal(found.x, np.repeat([[3.0], [4.0], [1.0], [0.0], [5.0], [2.0]], columns, axis=1))
    assert found.y.tolist() == [3, 4, 1, 0, 5, 2]
    assert (found.count.tolist(), found.start.tolist()) == ([[1, 1, 1], [2, 1, 0]], [[0, 1, 2], [3, 5, 6]])


def test_facts_are_handed_on():
    found = assembled(num_classes=7, title="given", group=np.array([1, 0]), num_groups=2)

    assert (found.num_classes, found.title, found.facts) == (7, "given", {"num_clients": 2, "num_groups": 2})
    assert (found.names, found.uid.tolist()) == (("a", "b"), [0, 1])


@pytest.mark.parametrize("in_place", [False, True])
def test_some_of_the_rows_can_be_picked(in_place):
    """Owners and splits are those of the picked rows; the rows given are left as they are."""
    x = np.arange(8.0)[:, None]

    found = assemble(
        Examples(x, np.arange(8), np.array([1, 0, 0]), np.array([0, 1, 0]), np.array([7, 2, 5])),
        names=("a", "b"),
        in_place=in_place,
        task="classification",
    )

    assert (found.x.ravel().tolist(), found.y.tolist()) == ([5, 2, 7], [5, 2, 7])
    assert x.ravel().tolist() == list(range(8))


def test_in_place_the_given_arrays_are_the_federation_s():
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)

    found = assemble(Examples(x, y, OWNER, CODES), names=("a", "b"), in_place=True, task="classification")

    assert (found.x is x, found.y is y) == (True, True)
    assert y.tolist() == [3, 4, 1, 0, 5, 2]


def test_otherwise_the_given_arrays_stay():
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)

    assemble(Examples(x, y, OWNER, CODES), names=("a", "b"), task="classification")

    assert (x.ravel().tolist(), y.tolist()) == (list(range(12)), list(range(6)))


@pytest.mark.parametrize("kind", ["read-only", "not contiguous"])
def test_arrays_that_cannot_be_put_in_order_are_copied(kind):
    x = (
        np.asfortranarray(np.arange(12.0).reshape(6, 2))
        if kind == "not contiguous"
        else np.arange(12.0).reshape(6, 2)
    )
    x.flags.writeable = kind != "read-only"

    found = assemble(
        Examples(x, np.arange(6), OWNER, CODES), names=("a", "b"), in_place=True, task="classification"
    )

    assert found.x[:, 0].tolist() == [6, 8, 2, 0, 10, 4]
    assert x[:, 0].tolist() == [0, 2, 4, 6, 8, 10]


def peak_of(in_place):
    """Bytes that assembling 10,000 rows of 400 numbers takes at its peak, beside the 32 million of the rows."""
    rows, values = 10_000, np.zeros((10_000, 20, 20))
    examples = Examples(values, np.zeros(rows, int), np.arange(rows)[::-1] // 100, np.zeros(rows, int))
    tracemalloc.start()
    try:
        assemble(examples, names=tuple(map(str, range(100))), in_place=in_place, task="classification")
        return tracemalloc.get_traced_memory()[1] / values.nbytes
    finally:
        tracemalloc.stop()


def test_in_place_little_memory_is_needed_beside_the_data():
    """A sixteenth of the columns at a time, and a few numbers per row: less than a tenth of the data in all."""
    assert peak_of(in_place=True) < 0.1
    assert peak_of(in_place=False) > 1.0


def test_a_client_without_training_rows_is_refused():
    with pytest.raises(BadData) as refusal:
        assemble(
            Examples(np.zeros((3, 1)), np.zeros(3, int), np.array([0, 1, 2]), np.array([0, 1, 2])),
            names=("a", "b", "c"),
            task="classification",
        )

    assert str(refusal.value) == "client 'b' has no training rows; give it some, or leave it out"
