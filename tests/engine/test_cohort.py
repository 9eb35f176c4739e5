"""Cohorts: distinct clients, drawn by uid, with the right chances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from plures.engine import cohort as cohorts
from plures.engine.cohort import Everyone, Uniform, Weighted
from plures.errors import BadValue, UnknownChoice


def draws(cohort, sizes, number):
    keys = jax.random.split(jax.random.key(5), number)
    return np.asarray(jax.jit(jax.vmap(lambda key: cohort.draw(key, sizes)))(keys))


def test_uniform_cohorts_are_distinct_and_sorted():
    found = draws(Uniform(4), jnp.ones(9), 500)

    assert (np.diff(found, axis=1) > 0).all()
    assert found.min() >= 0
    assert found.max() <= 8


def test_every_set_of_clients_is_equally_likely():
    """Ten sets of two out of five."""
    found = draws(Uniform(2), jnp.ones(5), 20_000)

    counts = np.unique(found @ np.array([10, 1]), return_counts=True)[1]
    assert len(counts) == 10
    assert stats.chisquare(counts).pvalue > 1e-3


def test_weighted_cohorts_prefer_large_clients_in_proportion():
    found = draws(Weighted(1), jnp.array([1.0, 2.0, 7.0]), 20_000)

    counts = np.bincount(found[:, 0], minlength=3)
    assert stats.chisquare(counts, 20_000 * np.array([0.1, 0.2, 0.7])).pvalue > 1e-3


def test_everyone_takes_part_in_the_order_of_uids():
    assert Everyone().draw(jax.random.key(0), jnp.ones(3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, Everyone()), ("all", Everyone()), (3, Uniform(3)), ("3", Uniform(3)), ("weighted:3", Weighted(3))],
)
def test_cohorts_go_by_name(given, expected):
    assert cohorts.cohort(given) == expected


def test_a_cohort_cannot_exceed_the_clients():
    with pytest.raises(BadValue, match="cohort must be between 1 and 3, the number of clients, got 4"):
        Uniform(4).size(3)


def test_a_wrong_cohort_is_refused():
    with pytest.raises(BadValue, match="'all', a number of clients"):
        cohorts.cohort("some")
    with pytest.raises(UnknownChoice, match="no cohort is called 'wieghted'"):
        cohorts.cohort("wieghted:3")
