"""What does not matter does not change a comparison: units, offsets, names, order, columns that say nothing.

Held up to rounding, client by client. Where draws are involved they hang on the order of the clients' names, as the last tests say.
"""

import numpy as np
import polars as pl
import pytest

import plures
from plures.channel.clip import clip
from plures.data import TableOptions, read_own
from plures.types import Plan

CLIENTS, ROWS, DIM = 6, 30, 3
METHODS = ["local_only", "fedavg", "ditto:lam=0.3"]
OFFSET, UNIT = 1000.0, 60.0


def table(seed=0):
    """Six clients with slopes and a level of their own; t-distributed inputs, targets of mean 5 or so."""
    draw = np.random.default_rng(seed)
    x = draw.standard_t(3, (CLIENTS, ROWS, DIM))
    slopes = [1.0, -0.5, 0.3] + 0.3 * draw.normal(size=(CLIENTS, DIM))
    y = (
        5
        + np.einsum("krd,kd->kr", x, slopes)
        + draw.normal(size=(CLIENTS, 1))
        + 0.3 * draw.normal(size=(CLIENTS, ROWS))
    )
    columns = {f"x{d}": x[..., d].ravel() for d in range(DIM)}
    names = np.repeat([f"c{k}" for k in range(CLIENTS)], ROWS)
    parts = np.tile(np.array(["train", "train", "valid", "train", "test"])[np.arange(ROWS) % 5], CLIENTS)
    return pl.DataFrame({"site": names, "part": parts, **columns, "y": y.ravel()})


@pytest.fixture
def scores(tmp_path):
    """A function from a table to the test rmse per method and client."""

    def of(frame, *, plan=Plan(epochs=2, batch=7, lr=0.05), channels=(), **options):
        path = tmp_path / "t.parquet"
        frame.write_parquet(path)
        federation = read_own(path, TableOptions(client="site", target="y", **{"split": "part", **options}))
        result = plures.compare(METHODS, federation, rounds=2, seeds=(0,), plan=plan, channels=channels)
        found = result.clients.select("method", "name", "personal_test_rmse")
        return {tuple(row[:2]): row[2] for row in found.iter_rows()}

    return of


def assert_close(found, expected, *, unit=1.0, rtol=2e-4):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(unit * value, rel=rtol), key


COLUMN_CHANGES = {
    "a column in another unit": [pl.col("x0") * 1000],
    "a column with an offset": [pl.col("x1") + 500],
    "a column turned around": [-pl.col("x2")],
    "a constant column more": [pl.lit(3.5).alias("constant")],
}


@pytest.mark.parametrize("change", COLUMN_CHANGES.values(), ids=COLUMN_CHANGES.keys())
def test_changes_of_columns_do_not_change_scores(scores, change):
    assert_close(scores(table().with_columns(change)), scores(table()))


def test_a_target_with_an_offset_gives_the_same_scores(scores):
    assert_close(scores(table().with_columns(pl.col("y") + OFFSET)), scores(table()), rtol=1e-3)


@pytest.mark.parametrize("channels", [(), (clip(norm=0.2),)], ids=["plain", "clipped"])
def test_a_target_in_another_unit_gives_scores_in_that_unit(scores, channels):
    """Plain descent on squares from zero scales with the target by itself; a bound on uploads does not."""
    changed = table().with_columns(pl.col("y") * UNIT)

    assert_close(scores(changed, channels=channels), scores(table(), channels=channels), unit=UNIT)


def test_drawn_splits_do_not_hang_on_the_targets_unit(scores):
    changed = table().with_columns(pl.col("y") * UNIT + OFFSET)

    assert_close(
        scores(changed, split=None, ignore=("part",)), scores(table(), split=None, ignore=("part",)), unit=UNIT
    )


def test_columns_may_be_renamed_and_reordered(scores):
    renamed = table().rename({"x0": "income", "x1": "age", "x2": "a"})

    assert_close(scores(renamed.select("y", "a", "income", "part", "age", "site")), scores(table()))


def test_rows_may_come_in_any_order_of_clients(scores):
    frame = table()
    blocks = [frame.filter(pl.col("site") == f"c{k}") for k in (3, 0, 5, 2, 4, 1)]

    found = scores(pl.concat(blocks), split=None, ignore=("part",))

    assert found == scores(frame, split=None, ignore=("part",))


def test_names_that_keep_their_order_change_nothing(scores):
    """Grouped names (a_1, a_2, b_1, ...) in the order of the old ones: not a bit differs, splits are drawn alike."""
    names = dict(zip((f"c{k}" for k in range(CLIENTS)), ("a_1", "a_2", "b_1", "b_2", "b_3", "c_1"), strict=True))
    plain = scores(table(), split=None, ignore=("part",))

    found = scores(table().with_columns(pl.col("site").replace_strict(names)), split=None, ignore=("part",))

    assert found == {(method, names[name]): score for (method, name), score in plain.items()}


def test_names_in_another_order_change_draws_alone(scores):
    """Clients are numbered by the order of their names, so that the order of rows means nothing; draws hang on the numbers.

    So batches and splits are drawn anew where names sort otherwise. With given splits and full batches nothing is drawn, and
    scores agree up to rounding.
    """
    names = dict(zip((f"c{k}" for k in range(CLIENTS)), ("b_2", "a_1", "c_1", "a_2", "b_1", "a_3"), strict=True))
    full = Plan(epochs=2, batch=None, lr=0.05)
    renamed = table().with_columns(pl.col("site").replace_strict(names))

    found = scores(renamed, plan=full)

    assert_close(
        found, {(method, names[name]): score for (method, name), score in scores(table(), plan=full).items()}
    )
    assert scores(renamed) != {(method, names[name]): score for (method, name), score in scores(table()).items()}


def test_a_column_of_random_numbers_costs_little_and_changes_no_order(scores):
    """Here nothing can be exact: an input more is one more slope to be wrong about, a fifth of a score at 18 training rows."""
    ids = np.random.default_rng(1).permutation(CLIENTS * ROWS) + 10_000
    found, plain = scores(table().with_columns(pl.Series("id", ids))), scores(table())

    means = [
        {method: np.mean([score for (m, _), score in one.items() if m == method]) for method in METHODS}
        for one in (found, plain)
    ]
    assert sorted(METHODS, key=means[0].get) == sorted(METHODS, key=means[1].get)
    for method in METHODS:
        assert means[0][method] == pytest.approx(means[1][method], rel=0.1)
