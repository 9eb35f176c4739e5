"""All real data sets: seeds and missing files; and facts of writers, schools and CIFAR-10."""

import re
from pathlib import Path

import numpy as np
import pytest

from plures import data
from plures.data.files import read_npz
from plures.data.sets import cifar10, mnist_writers
from plures.errors import BadFile

NAMES = ["mnist-writers", "har", "heart", "school", "shakespeare", "digit-domains", "cifar10"]


def codes_of(federation):
    """(client, split) of every row."""
    owner = np.repeat(np.arange(federation.num_clients), federation.count.sum(1))
    return owner, np.repeat(np.tile([0, 1, 2], federation.num_clients), federation.count.ravel())


def seen_training_rows(federation):
    owner, codes = codes_of(federation)
    return federation.x[(codes == 0) & ~federation.held_out[owner]]


@pytest.mark.parametrize("name", NAMES)
def test_without_the_file_the_message_names_it(name, sources, tmp_path, monkeypatch):
    monkeypatch.delenv("PLURES_DATA", raising=False)

    with pytest.raises(BadFile, match=rf"^there is no {sources[name][0].file} in {tmp_path}; get "):
        data.load(name, data_dir=str(tmp_path))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_federation(loaded, name):
    first = loaded(name)

    again = data.load(name, seed=0)

    assert (again.names, again.count.tolist()) == (first.names, first.count.tolist())
    np.testing.assert_array_equal(again.x, first.x)


@pytest.mark.parametrize("name", ["mnist-writers", "heart", "school", "digit-domains", "cifar10"])
def test_another_seed_gives_another_split(loaded, name):
    first = loaded(name)

    other = data.load(name, seed=1)

    assert other.x.shape != first.x.shape or (other.x != first.x).any()


@pytest.mark.parametrize("name", ["mnist-writers", "digit-domains", "cifar10"])
def test_images_are_numbers_between_0_and_1(loaded, name):
    x = loaded(name).x

    assert (x.dtype, float(x.min()), float(x.max())) == (np.float32, 0.0, 1.0)


def test_539_writers_train_and_297_are_unseen(loaded):
    seen, unseen = loaded("mnist-writers").hold_out()

    assert (seen.num_clients, unseen.num_clients) == (539, 297)
    assert set(seen.names).isdisjoint(unseen.names)


def test_writers_have_the_sizes_of_the_file(loaded):
    sizes = [part.count.sum(1) for part in loaded("mnist-writers").hold_out()]

    assert [(own.min(), np.median(own), own.max(), own.sum()) for own in sizes] == [
        (19, 116, 131, 60000),
        (8, 21, 130, 10000),
    ]


def test_writers_are_employees_or_students(loaded):
    groups = [np.bincount(part.group).tolist() for part in loaded("mnist-writers").hold_out()]

    assert groups == [[289, 250], [48, 249]]


def test_a_writer_has_the_digits_of_the_file(loaded, needs):
    federation = loaded("mnist-writers")
    stored = read_npz(needs(mnist_writers.SOURCE), mnist_writers.KEYS)

    row = federation.names.index("writer-0012")
    first = federation.start[row, 0]
    own = slice(first, first + federation.count[row].sum())
    mine = stored["writer_train"] == 12
    assert sorted(federation.y[own].tolist()) == sorted(stored["y_train"][mine].tolist())
    np.testing.assert_allclose(federation.x[own].sum(), stored["x_train"][mine].sum() / 255, rtol=1e-4)


def test_the_splits_of_writers_have_equal_shares_of_each_digit(loaded):
    federation = loaded("mnist-writers")
    owner, codes = codes_of(federation)

    table = np.zeros((federation.num_clients, 3, 10))
    np.add.at(table, (owner, codes, federation.y), 1)
    off = np.abs(table[:, 2] - 0.2 * table.sum(1))
    assert off.max() <= 1.5


def test_139_schools_of_15362_pupils(loaded):
    federation = loaded("school")

    sizes = federation.count.sum(1)
    assert (federation.num_clients, sizes.sum(), sizes.min(), sizes.max()) == (139, 15362, 22, 251)
    assert (federation.task, federation.y.min(), federation.y.max()) == ("regression", 1, 70)


def test_schools_set_apart_do_not_count_in_the_scale(loaded):
    federation = loaded("school", hold_out=0.25)

    x = seen_training_rows(federation).astype(float)
    assert federation.held_out.sum() == 35
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-6)
    # The last column is 1 for everybody.
    np.testing.assert_allclose(x.std(0), [1] * 27 + [0], atol=1e-6)


def test_the_splits_of_schools_have_like_scores(loaded):
    federation = loaded("school")
    owner, codes = codes_of(federation)

    sums, sizes = np.zeros((139, 3)), federation.count
    np.add.at(sums, (owner, codes), federation.y)
    means = sums / sizes
    # Drawn at random, 66 rows to train and 22 to test with 12 points of spread would differ by
    # sqrt(2 / pi) * 12 * sqrt(1 / 66 + 1 / 22) = 2.4 points.
    assert np.abs(means[:, 2] - means[:, 0]).mean() < 1.5


def test_the_images_are_dealt_over_twenty_clients(loaded, needs):
    stored = read_npz(needs(cifar10.SOURCE), cifar10.KEYS)
    federation = loaded("cifar10")

    dealt = sorted(hash(image.tobytes()) for image in np.rint(federation.x * 255).astype(np.uint8))
    pooled = sorted(hash(image.tobytes()) for part in ("train", "test") for image in stored[f"x_{part}"])
    assert (federation.num_clients, federation.shape, dealt == pooled) == (20, (32, 32, 3), True)
    assert np.bincount(federation.y).tolist() == [500] * 10


def test_small_alpha_gives_few_classes_each(loaded):
    def largest_share(federation):
        owner, _ = codes_of(federation)
        table = np.zeros((federation.num_clients, 10))
        np.add.at(table, (owner, federation.y), 1)
        return (table.max(1) / table.sum(1)).mean()

    skewed, even = (loaded("cifar10", num_clients=10, alpha=alpha) for alpha in (0.1, 100.0))

    assert largest_share(even) < 0.2 < 0.4 < largest_share(skewed)


def test_the_page_lists_every_file_with_its_hash(sources):
    page = (Path(__file__).parents[3] / "docs" / "data-sets.md").read_text()

    listed = re.findall(r"^([0-9a-f]{64})  (\S+)$", page, re.MULTILINE)

    assert set(listed) == {(source.sha256, source.file) for files in sources.values() for source in files}
