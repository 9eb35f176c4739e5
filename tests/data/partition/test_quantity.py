"""Sizes: equal, lognormal, by Zipf's law; and the data's own clients, all or some of them."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from plures.data import from_arrays
from plures.data.partition import draw_clients, iid, lognormal, natural, zipf
from plures.data.partition.quantity import KINDS, sizes_of_kind
from plures.errors import BadValue, UnknownChoice

KEY = jax.random.key(0)
POOL = from_arrays(np.arange(300.0)[:, None], np.repeat([0, 1, 2], 100), np.zeros(300, int))


def law(exponent, num_clients, total, smallest):
    """Sizes by rank: what is above the smallest size goes as rank^(-exponent)."""
    amounts = np.arange(1.0, num_clients + 1) ** -exponent
    return smallest + (total - smallest * num_clients) * amounts / amounts.sum()


@pytest.mark.parametrize("num_clients", [1, 7, 12, 299, 300])
def test_independent_clients_are_equally_large_up_to_one(num_clients):
    sizes = iid(POOL, num_clients=num_clients).count.sum(1)

    assert np.ptp(sizes) == (300 % num_clients > 0)


def test_independent_clients_are_dealt_at_random():
    """Rows of a client come from everywhere: their mean number is the middle one, up to chance."""
    dealt_out = iid(POOL, num_clients=12)

    means = dealt_out.x[:, 0].reshape(12, 25).mean(1)
    assert (abs(means - 149.5) < 4 * np.sqrt((300**2 - 1) / 12 / 25)).all()
    assert np.ptp(means) > 0


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_zipf_sizes_go_as_a_power_of_the_rank(exponent):
    sizes = zipf(POOL, num_clients=12, exponent=exponent, min_size=4).count.sum(1)

    assert (abs(np.sort(sizes)[::-1] - law(exponent, 12, 300, 4)) <= 1).all()


def test_which_client_has_which_rank_is_drawn():
    drawn = [sizes_of_kind("zipf", jax.random.key(k), 1000, 6, spread=1.0, smallest=1) for k in range(40)]
    largest = {int(np.argmax(sizes)) for sizes in drawn}

    assert largest == set(range(6))


def test_an_exponent_of_0_gives_equal_sizes():
    assert zipf(POOL, num_clients=12, exponent=0.0).count.sum(1).tolist() == [25] * 12


def test_no_spread_gives_equal_sizes():
    assert lognormal(POOL, num_clients=12, spread=0.0).count.sum(1).tolist() == [25] * 12


@pytest.mark.parametrize("spread", [0.5, 1.5])
def test_the_logarithms_of_lognormal_sizes_have_the_stated_deviation(spread):
    """Over 1000 clients above the smallest size; the deviation of a deviation is about 1 / sqrt(2000)."""
    sizes = sizes_of_kind("lognormal", KEY, 10**9, 1000, spread=spread, smallest=50)

    logs = np.log(sizes - 50.0)
    assert abs(logs.std() / spread - 1) < 4 / np.sqrt(2000)
    # Normal: as many above the mean as below, and no more than one in ten beyond two deviations.
    assert abs((logs > logs.mean()).mean() - 0.5) < 4 * 0.5 / np.sqrt(1000)
    assert 0.02 < (abs(logs - logs.mean()) > 2 * spread).mean() < 0.08


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("total", "num_clients", "smallest"), [(100, 7, 3), (21, 7, 3), (20, 1, 3), (50, 7, 0)])
def test_sizes_add_up_and_none_is_below_the_smallest(kind, total, num_clients, smallest):
    sizes = sizes_of_kind(kind, KEY, total, num_clients, spread=1.5, smallest=smallest)

    assert (len(sizes), sizes.sum()) == (num_clients, total)
    assert sizes.min() >= smallest


def test_an_unknown_kind_of_sizes_is_refused():
    with pytest.raises(UnknownChoice) as refusal:
        sizes_of_kind("zip", KEY, 10, 2, spread=1.0, smallest=1)

    assert (
        str(refusal.value) == "no kind of sizes is called 'zip'; did you mean 'zipf'? Known: equal, lognormal, zipf"
    )


@pytest.mark.parametrize("value", [-0.1, 10.0, float("nan")])
@pytest.mark.parametrize(("dealer", "option"), [(lognormal, "spread"), (zipf, "exponent")])
def test_a_spread_outside_its_range_is_refused_by_the_name_of_its_option(dealer, option, value):
    with pytest.raises(BadValue) as refusal:
        dealer(POOL, **{option: value})

    assert str(refusal.value) == f"{option} must be a number in [0, 10), got {value}"


@pytest.mark.parametrize("dealer", [lognormal, zipf])
def test_sizes_never_need_topping_up(dealer):
    dealt_out = dealer(POOL, num_clients=60, min_size=5)

    assert (dealt_out.count.sum(1).tolist(), dealt_out.notes) == ([5] * 60, ())


# Clients a to e with one to five rows.
SIZES = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
OWN = from_arrays(np.zeros((15, 1)), np.zeros(15, int), np.repeat(list(SIZES), list(SIZES.values())))


@pytest.mark.parametrize("min_rows", [-1, 0, 1])
def test_the_data_s_own_clients_stay_as_they_are(min_rows):
    assert natural(OWN, min_rows=min_rows) is OWN


def test_small_clients_are_left_out_with_a_note():
    kept = natural(OWN.noted("first"), min_rows=3)

    assert (kept.names, kept.uid.tolist()) == (("c", "d", "e"), [0, 1, 2])
    assert kept.notes == ("first", "2 clients with fewer than 3 rows are left out")


def test_leaving_out_every_client_is_refused():
    with pytest.raises(BadValue) as refusal:
        natural(OWN, min_rows=6)

    assert str(refusal.value) == "min_rows must be at most 5, the largest client's rows, got 6"


def test_as_many_rows_as_the_largest_has_leaves_that_one():
    assert natural(OWN, min_rows=5).names == ("e",)


def test_drawn_clients_keep_their_rows_and_get_new_numbers():
    drawn = draw_clients(OWN, num_clients=3)

    assert len(set(drawn.names)) == 3
    assert drawn.uid.tolist() == [0, 1, 2]
    assert drawn.count.sum(1).tolist() == [SIZES[name] for name in drawn.names]


def test_the_seed_decides_who_is_drawn():
    drawn = [draw_clients(OWN, num_clients=2, seed=seed).names for seed in (0, 0, 1, 2, 3)]

    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_everyone_is_drawn_equally_often():
    names = [name for seed in range(100) for name in draw_clients(OWN, num_clients=2, seed=seed).names]

    found = np.array([names.count(name) for name in SIZES])
    assert (abs(found - 40) < 4 * np.sqrt(100 * 0.4 * 0.6)).all()


def test_the_order_of_rows_does_not_decide_who_is_drawn():
    shuffled = OWN.take([3, 0, 4, 2, 1])

    assert set(draw_clients(shuffled, num_clients=2).names) == set(draw_clients(OWN, num_clients=2).names)


@pytest.mark.parametrize(("num_clients", "unseen"), [(5, 2), (4, 2), (3, 1), (2, 1), (1, 0)])
def test_clients_set_apart_keep_their_share(num_clients, unseen):
    """Two of five, rounded, and never all."""
    given = replace(OWN, held_out=np.array([True, False, True, False, False]))

    for seed in range(5):
        drawn = draw_clients(given, num_clients=num_clients, seed=seed)
        found = 0 if drawn.held_out is None else int(drawn.held_out.sum())
        assert (drawn.num_clients, found) == (num_clients, unseen)


@pytest.mark.parametrize(("num_clients", "unseen"), [(1, 0), (2, 1), (4, 3)])
def test_someone_seen_is_always_drawn(num_clients, unseen):
    """Four of five are held out: of two clients both would be, by rounding."""
    drawn = draw_clients(replace(OWN, held_out=np.arange(5) > 0), num_clients=num_clients)

    assert drawn.num_clients == num_clients
    assert (0 if drawn.held_out is None else drawn.held_out.sum()) == unseen


def test_who_of_those_set_apart_is_drawn_hangs_on_the_seed():
    given = replace(OWN, held_out=np.array([True, False, True, False, False]))

    drawn = {draw_clients(given, num_clients=2, seed=seed).names for seed in range(20)}

    assert {name for names in drawn for name in names} == set(SIZES)


def test_drawing_all_clients_changes_nothing():
    assert draw_clients(OWN, num_clients=5).names == OWN.names


@pytest.mark.parametrize("number", [0, 6])
def test_drawing_more_clients_than_there_are_is_refused(number):
    with pytest.raises(BadValue) as refusal:
        draw_clients(OWN, num_clients=number)

    assert str(refusal.value) == f"num_clients must be between 1 and 5, got {number}"
