"""Label skew: proportions as the Dirichlet says, so many classes each, shards of sorted labels."""

from collections import Counter

import jax
import numpy as np
import pytest

from plures.data import from_arrays
from plures.data.partition import classes, dirichlet, shards
from plures.data.partition.labels import draw_classes, fit_proportions, hand_out
from plures.errors import BadValue, UnknownChoice

KEY = jax.random.key(0)
TOTALS = np.array([100, 80, 60, 40, 20])


def pool(totals, **options):
    """One client with so many rows of each class; row i holds the number i."""
    labels = np.repeat(np.arange(len(totals)), totals)
    return from_arrays(np.arange(float(len(labels)))[:, None], labels, np.zeros(len(labels), int), **options)


def table_of(federation):
    """(clients, classes): how many rows of each class a client has."""
    owner = np.repeat(np.arange(federation.num_clients), federation.count.sum(1))
    cell = owner * federation.num_classes + federation.y
    return np.bincount(cell, minlength=federation.num_clients * federation.num_classes).reshape(
        federation.num_clients, -1
    )


POOL = pool(TOTALS)


@pytest.mark.parametrize("alpha", [1e7, 1e9])
def test_a_huge_alpha_gives_every_client_the_same_of_every_class(alpha):
    table = table_of(dirichlet(POOL, num_clients=12, alpha=alpha))

    assert (abs(table - TOTALS / 12) <= 1).all()


def test_a_tiny_alpha_gives_every_class_to_one_client():
    """But for the seven or more rows that top up clients without any."""
    dealt_out = dirichlet(POOL, num_clients=12, alpha=1e-9, min_size=1)

    table = table_of(dealt_out)
    poor = int((table.sum(1) == 1).sum())
    assert table.max(0).sum() >= 300 - poor
    assert ((table > 1).sum(0) == 1).all()


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_free_proportions_are_as_unequal_as_the_dirichlet_says(alpha):
    """Of Dir(alpha) over N clients, the expected sum of squares is (alpha + 1) / (N alpha + 1)."""
    table = table_of(dirichlet(pool([100] * 300), num_clients=5, alpha=alpha))

    found = ((table / 100) ** 2).sum(0)
    bound = 4 * found.std() / np.sqrt(300)
    assert abs(found.mean() - (alpha + 1) / (5 * alpha + 1)) < bound + 1e-3


def test_free_sizes_follow_from_the_draw():
    sizes = dirichlet(POOL, num_clients=12, alpha=0.3).count.sum(1)

    assert sizes.max() > 3 * sizes.min()


def test_proportions_at_given_sizes_are_as_unequal_as_the_dirichlet_says():
    """Of Dir(A p) with A = alpha times the classes, E q_c^2 = p_c (A p_c + 1) / (A + 1): p are the data's own."""
    totals, alpha = np.array([4000, 2000, 1000, 1000]), 0.5
    table = table_of(dirichlet(pool(totals), num_clients=400, alpha=alpha, sizes="equal", min_size=1))

    shares, whole = totals / 8000, alpha * 4
    expected = (shares * (whole * shares + 1) / (whole + 1)).sum()
    found = ((table / table.sum(1, keepdims=True)) ** 2).sum(1)
    # Rounding to twenty rows adds about q (1 - q) / 6 n^2 per class, less than 1e-3 in all.
    assert abs(found.mean() - expected) < 4 * found.std() / np.sqrt(400) + 1e-3


def test_a_rare_class_varies_as_its_own_share_says():
    """Its share has variance p (1 - p) / (A + 1), here 0.09 / 11; a draw that knew nothing of p would have half."""
    table = table_of(dirichlet(pool([45000, 5000]), num_clients=250, alpha=5.0, sizes="equal"))

    found = (table[:, 1] / table.sum(1)).var()
    assert abs(found / (0.09 / 11) - 1) < 4 * np.sqrt(2 / 250)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 100.0])
def test_equal_sizes_are_equal_up_to_the_rounding_of_each_class(alpha):
    sizes = dirichlet(POOL, num_clients=12, alpha=alpha, sizes="equal").count.sum(1)

    assert (abs(sizes - 25) <= 5).all()


def test_equal_sizes_keep_small_alphas_uneven_in_class():
    """Without skew a client would have every class; at a small alpha few of them make up most of its rows."""
    table = table_of(dirichlet(POOL, num_clients=12, alpha=0.05, sizes="equal"))

    assert np.median(table.max(1) / table.sum(1)) > 0.6


def test_zipf_sizes_are_those_of_the_law_up_to_the_rounding_of_each_class():
    """Above the smallest size of 3, the rest goes as 1/rank^spread: 264 rows among twelve."""
    sizes = dirichlet(POOL, num_clients=12, alpha=1.0, sizes="zipf", spread=0.7).count.sum(1)

    amounts = np.arange(1.0, 13) ** -0.7
    assert (abs(np.sort(sizes)[::-1] - (3 + 264 * amounts / amounts.sum())) <= 6).all()


def test_lognormal_sizes_of_no_spread_are_equal():
    sizes = dirichlet(POOL, num_clients=12, sizes="lognormal", spread=0.0).count.sum(1)

    assert (abs(sizes - 25) <= 5).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"alpha": 0.0}, BadValue, "alpha must be a number from 1e-9 to 1e9, got 0.0"),
        ({"alpha": -1.0}, BadValue, "alpha must be a number from 1e-9 to 1e9, got -1.0"),
        ({"alpha": float("nan")}, BadValue, "alpha must be a number from 1e-9 to 1e9, got nan"),
        ({"alpha": 1e10}, BadValue, "alpha must be a number from 1e-9 to 1e9, got 10000000000.0"),
        (
            {"sizes": "eqal"},
            UnknownChoice,
            "no kind of sizes is called 'eqal'; did you mean 'equal'? Known: equal, free, lognormal, zipf",
        ),
        ({"sizes": "zipf", "spread": 10.0}, BadValue, "spread must be a number in [0, 10), got 10.0"),
        ({"min_size": 0}, BadValue, "min_size must be between 1 and the 300 rows there are, got 0"),
    ],
)
def test_a_dirichlet_that_cannot_be_is_refused(options, error, message):
    with pytest.raises(error) as refusal:
        dirichlet(POOL, num_clients=12, **options)

    assert str(refusal.value) == message


# Fitting: rows to sizes, columns to totals, odds as they were drawn.
DRAW = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.4, 0.4, 0.2]])
WANTED, THERE = np.array([10.0, 20.0, 30.0]), np.array([24.0, 18.0, 18.0])


def test_a_fitted_table_has_the_wanted_rows_and_columns():
    table = fit_proportions(DRAW, WANTED, THERE)

    np.testing.assert_allclose(table.sum(1), WANTED, rtol=1e-8)
    np.testing.assert_allclose(table.sum(0), THERE, rtol=1e-12)


def test_fitting_keeps_the_odds_of_the_draw():
    """Rows and columns are only scaled, so every 2 x 2 odds ratio stays."""
    table = fit_proportions(DRAW, WANTED, THERE)

    def odds(values):
        return values[:-1, :-1] * values[1:, 1:] / (values[:-1, 1:] * values[1:, :-1])

    np.testing.assert_allclose(odds(table), odds(DRAW), rtol=1e-9)


def test_a_draw_that_fits_already_stays():
    draw = np.array([[0.5, 0.5], [0.25, 0.75]])

    np.testing.assert_allclose(fit_proportions(draw, np.array([4.0, 8.0]), np.array([4.0, 8.0])), [[2, 2], [2, 6]])


def test_a_client_whose_class_runs_out_takes_another():
    """Both drew the first class alone, of which there is half as much as they want."""
    draw = np.array([[1.0, 0.0], [1.0, 0.0]])

    np.testing.assert_allclose(
        fit_proportions(draw, np.array([10.0, 10.0]), np.array([10.0, 10.0])), np.full((2, 2), 5.0)
    )


def test_fitting_goes_on_until_the_sizes_are_met():
    """Thirteen clients of 90 rows drew the first class, seven the second, of which they lack 30 rows in 630.

    So little is wrong that their share of the first class grows slowly from nothing to 30 / 7 rows each.
    """
    draw = np.repeat([[1.0, 0.0], [0.0, 1.0]], [13, 7], axis=0)

    table = fit_proportions(draw, np.full(20, 90.0), np.array([1200.0, 600.0]))

    expected = np.repeat([[90.0, 0.0], [30 / 7, 600 / 7]], [13, 7], axis=0)
    np.testing.assert_allclose(table, expected, atol=0.01)


# Handing out: (clients, classes) tables of what everyone shall get.
CODES = np.asarray(jax.random.permutation(KEY, np.repeat([0, 1, 2], [12, 6, 3])))


def given_out(table, key=KEY):
    owner = hand_out(key, CODES, np.array(table))
    return np.bincount(owner * 3 + CODES, minlength=3 * len(table)).reshape(-1, 3)


def test_whole_numbers_are_handed_out_exactly():
    table = [[7, 0, 1], [0, 4, 1], [5, 2, 1]]

    assert given_out(table).tolist() == table


@pytest.mark.parametrize("seed", range(5))
def test_fractions_are_handed_out_up_to_one_and_nothing_is_lost(seed):
    table = np.array([[2.4, 0.9, 0.0], [4.2, 2.7, 1.5], [5.4, 2.4, 1.5]])

    found = given_out(table, jax.random.key(seed))

    assert (abs(found - table) < 1).all()
    assert found.sum(0).tolist() == [12, 6, 3]


def test_a_fraction_is_rounded_up_as_often_as_it_says():
    """A third of a row each for the first two of the last class: over keys, each gets a row a third of the time."""
    table = np.array([[4, 2, 1 / 3], [4, 2, 1 / 3], [4, 2, 7 / 3]])

    first = np.array([given_out(table, jax.random.key(k))[:2, 2] for k in range(90)])

    assert (abs(first.mean(0) - 1 / 3) < 4 * np.sqrt(2 / 9 / 90)).all()


def test_which_rows_of_a_class_are_handed_out_is_drawn():
    """The mean place of the rows that the first of two clients gets is that of all rows of the class."""
    table, whole = np.array([[6, 3, 1], [6, 3, 2]]), np.flatnonzero(CODES == 0)
    places = [np.flatnonzero((hand_out(jax.random.key(k), CODES, table) == 0) & (CODES == 0)) for k in range(40)]

    assert abs(np.mean(places) - whole.mean()) < 4 * whole.std() / np.sqrt(40 * 6)


GRID = [(1, 1, 1), (5, 5, 1), (10, 4, 2), (7, 10, 3), (20, 10, 2), (9, 6, 4), (30, 7, 7), (13, 12, 8), (4, 10, 10)]


@pytest.mark.parametrize(("num_clients", "num_classes", "per_client"), GRID)
def test_everyone_holds_so_many_classes_and_every_class_equally_often(num_clients, num_classes, per_client):
    held = draw_classes(KEY, num_clients, num_classes, per_client)

    assert held.shape == (num_clients, num_classes)
    assert set(np.unique(held)) <= {0.0, 1.0}
    assert (held.sum(1) == per_client).all()
    assert held.sum(0).max() - held.sum(0).min() <= 1


def test_packs_are_shuffled_anew():
    """Of ten classes, five clients use up a pack in pairs; the next five get other pairs."""
    held = draw_classes(KEY, 20, 10, 2)

    assert len({tuple(row) for row in held.tolist()}) > 10


@pytest.mark.parametrize("per_client", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_client_sees_exactly_so_many_classes(per_client, seed):
    table = table_of(classes(POOL, num_clients=12, per_client=per_client, seed=seed))

    assert ((table > 0).sum(1) == per_client).all()


@pytest.mark.parametrize("per_client", [1, 2, 3, 5])
def test_a_class_is_shared_equally_among_those_that_see_it(per_client):
    table = table_of(classes(POOL, num_clients=12, per_client=per_client))

    for column in table.T:
        assert np.ptp(column[column > 0]) <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_client": 0}, "per_client must be between 1 and the 5 classes there are, got 0"),
        ({"per_client": 6}, "per_client must be between 1 and the 5 classes there are, got 6"),
        (
            {"num_clients": 2},
            "num_clients must be at least 3 in each group and domain, so that every class is seen, got 2",
        ),
        (
            {"num_clients": 100},
            "num_clients must be fewer: a class of 20 rows is too small for the 40 that see it, got 100",
        ),
    ],
)
def test_classes_that_cannot_be_are_refused(options, message):
    with pytest.raises(BadValue) as refusal:
        classes(POOL, **options)

    assert str(refusal.value) == message


@pytest.mark.parametrize(("num_clients", "per_client"), [(3, 2), (5, 1), (1, 5)])
def test_just_enough_clients_see_every_class(num_clients, per_client):
    table = table_of(classes(POOL, num_clients=num_clients, per_client=per_client))

    assert (table.sum(0) == TOTALS).all()


def test_a_class_of_as_many_rows_as_clients_that_see_it_is_seen_by_all_of_them():
    """Ten clients with one of two classes: five for each, and five rows of the second."""
    table = table_of(classes(pool([20, 5]), num_clients=10, per_client=1))

    assert sorted(map(tuple, table.tolist())) == [(0, 1)] * 5 + [(4, 0)] * 5


# Four classes of 30 rows: 24 shards of five rows lie inside classes.
EVEN = pool([30] * 4)


@pytest.mark.parametrize("per_client", [1, 2, 6])
def test_a_client_has_at_most_as_many_classes_as_shards(per_client):
    table = table_of(shards(EVEN, num_clients=24 // per_client, per_client=per_client))

    assert ((table > 0).sum(1) <= per_client).all()
    assert (table % 5 == 0).all()
    assert (table.sum(1) == 5 * per_client).all()


def test_shards_may_straddle_classes_and_differ_by_one_row():
    """Seven clients of two shards: fourteen shards of 300 / 14 rows, so 21 or 22 each."""
    sizes = shards(POOL, num_clients=7, per_client=2).count.sum(1)

    assert set(sizes) <= {42, 43, 44}


def test_the_shards_of_a_client_are_drawn():
    """One shard per client in order would give the same table for every seed."""
    drawn = {table_of(shards(EVEN, num_clients=12, seed=seed)).tobytes() for seed in range(5)}

    assert len(drawn) == 5


def test_some_clients_have_shards_of_two_classes():
    """Were a client's shards neighbors, all would lie in one class."""
    table = table_of(shards(EVEN, num_clients=12))

    assert Counter((table > 0).sum(1).tolist())[2] > 4


def test_which_rows_of_a_class_make_a_shard_is_drawn():
    """In the order of the rows, a client of one shard would have five neighbors."""
    dealt_out = shards(EVEN, num_clients=24, per_client=1)

    spans = [np.ptp(dealt_out.x[5 * row : 5 * row + 5, 0]) for row in range(24)]
    assert min(spans) > 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_client": 0}, "per_client must be 1 or more, got 0"),
        ({"num_clients": 10, "per_client": 13}, "per_client must be at most 12: a shard needs an example, got 13"),
    ],
)
def test_shards_that_cannot_be_are_refused(options, message):
    with pytest.raises(BadValue) as refusal:
        shards(EVEN, **options)

    assert str(refusal.value) == message


def test_as_many_shards_as_examples_is_the_most():
    assert (shards(EVEN, num_clients=10, per_client=12).count.sum(1) == 12).all()


def test_labels_need_not_be_all_there():
    """Classes 0 and 2 of five known ones."""
    given = from_arrays(np.zeros((40, 1)), np.repeat([0, 2], 20), np.zeros(40, int), num_classes=5)

    table = table_of(classes(given, num_clients=4, per_client=1))

    assert sorted(map(tuple, table.tolist())) == [(0, 0, 10, 0, 0)] * 2 + [(10, 0, 0, 0, 0)] * 2
