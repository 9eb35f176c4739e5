"""What must not change an answer does not: units, constants, names, orders, useless columns, a table written twice."""

import numpy as np
import polars as pl
import pytest
from ordinary_tables import ordinary_table

from plures import Plan
from plures.advise import advise, estimate_worth, guide
from plures.advise.preparation import distinct_rows
from plures.data import from_arrays

SPLIT = np.where(np.arange(4000) % 5 < 3, 0, np.where(np.arange(4000) % 5 == 3, 1, 2))


def read(table, *, split=None):
    """The table as a federation; a row's split goes by its place in the first table, so that it moves with the row."""
    x = table.select(pl.exclude("site", "target")).to_numpy()
    codes = SPLIT[: table.height] if split is None else split
    return from_arrays(x, table["target"].to_numpy(), table["site"].to_numpy(), task="regression", split=codes)


def with_constant(table):
    return read(table.with_columns(pl.col("target") + 1000.0))


def in_other_units(table):
    return read(table.with_columns(pl.col("target") * 2.54, pl.col("x0") * 1000.0 + 32.0))


def with_grouped_names(table):
    """Names are in the order of the first coefficient, so that alike clients lie together."""
    order = np.argsort([np.linalg.lstsq(*rows_of(part), rcond=None)[0][0] for part in table.partition_by("site")])
    names = {f"site{old:03d}": f"a{new:03d}" for new, old in enumerate(order)}
    return read(table.with_columns(pl.col("site").replace(names)))


def rows_of(table):
    return table.select(pl.exclude("site", "target")).to_numpy(), table["target"].to_numpy()


def in_reverse(table):
    return read(table.reverse(), split=SPLIT[: table.height][::-1])


def with_useless_column(table):
    return read(table.with_columns(pl.Series("useless", np.random.default_rng(9).normal(size=table.height))))


def written_twice(table):
    twice = pl.concat([table, table])
    return read(twice, split=np.concatenate([SPLIT[: table.height]] * 2))


EXACT = {
    "a constant in the target": with_constant,
    "other units": in_other_units,
    "rows in reverse": in_reverse,
    "written twice": written_twice,
}
LOOSE = {"names in groups": with_grouped_names, "a useless column": with_useless_column}
CHANGES = {**EXACT, **LOOSE}


@pytest.fixture(scope="module")
def plain():
    """Tables, and what is said of them as they are."""
    found = {}

    def of(name, ask):
        if (name, ask) not in found:
            found[name, ask] = ask(read(ordinary_table(name)))
        return found[name, ask]

    return of


@pytest.mark.parametrize("name", ["moderate", "apart", "groups", "alike"])
@pytest.mark.parametrize("change", CHANGES)
def test_worth_is_the_same(plain, name, change):
    before, after = plain(name, estimate_worth), estimate_worth(CHANGES[change](ordinary_table(name)))

    assert after.verdict == before.verdict
    if change != "a useless column":
        size = 2.54**2 if change == "other units" else 1.0
        for way in ("alone", "global", "auto"):
            np.testing.assert_allclose(np.sort(after.test[way]), np.sort(size * before.test[way]), rtol=2e-3)


@pytest.mark.parametrize("name", ["moderate", "apart", "groups", "alike"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_family_is_the_same(plain, name, change):
    before, after = plain(name, advise), advise(CHANGES[change](ordinary_table(name)))

    assert (after.family, after.pays) == (before.family, before.pays)
    if change in ("a constant in the target", "other units"):
        for family, error in before.means.items():
            assert after.means[family] == pytest.approx(error, rel=2e-3)


def decided(federation):
    plan = Plan(epochs=2, batch=None, lr=0.1)
    return guide(["fedavg", "local_only"], federation, rounds=10, plan=plan, model="least_squares")


@pytest.mark.parametrize(
    "change", ["a constant in the target", "names in groups", "rows in reverse", "written twice"]
)
def test_most_clients_decide_for_the_same(plain, change):
    before, after = plain("groups", decided), decided(CHANGES[change](ordinary_table("groups")))

    assert after.counts == before.counts
    assert after.evidence["mean"].to_list() == pytest.approx(before.evidence["mean"].to_list(), abs=2e-3)


def test_the_unit_of_the_target_decides_nothing(plain):
    table = ordinary_table("groups").with_columns(pl.col("target") * 2.54)

    assert decided(read(table)).counts == plain("groups", decided).counts


def test_a_table_written_twice_counts_once_and_says_so():
    table = ordinary_table("intercepts")
    split = np.random.default_rng(0).integers(0, 3, 2 * table.height)

    found = distinct_rows(read(pl.concat([table, table]), split=split))

    assert found.count.sum() == table.height
    assert (found.count.sum(1) == 25).all()
    rows = np.concatenate([found.rows_of("site003", part)[1] for part in ("train", "valid", "test")])
    np.testing.assert_allclose(
        np.sort(rows), np.sort(table.filter(pl.col("site") == "site003")["target"]), rtol=1e-6
    )
    assert found.notes == ("every row of every client is there 2 times; it counts once",)


def test_rows_that_are_alike_by_chance_all_count():
    x, owner = np.array([[0.0], [0.0], [1.0], [1.0], [1.0]]), list("aabbb")
    federation = from_arrays(x, np.zeros(5), owner, task="regression")

    assert distinct_rows(federation) is federation
