"""How large a ball is: every rule by hand."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from plures.aggregate import (
    Fixed,
    Gap,
    KNearest,
    Quantile,
    SqrtSigmaDelta,
    as_radius,
    radius_notes,
    threshold_clustering,
)
from plures.errors import BadValue, UnknownChoice


def kept(rule, distances):
    counts = jnp.ones(len(distances), bool)
    return rule.keep(jnp.array(distances), counts, jnp.asarray(len(distances)))


@pytest.mark.parametrize(
    ("compat", "distances", "number"),
    [
        ("", [0.0, 1.0, 2.0, 3.0], 2),
        ("below", [0.0, 1.0, 2.0, 3.0], 2),
        ("up_to", [0.0, 1.0, 2.0, 3.0], 3),
        ("shrunk", [0.0, 1.0, 2.0, 3.0], 2),
        ("shrunk", [0.0, 1.99, 2.0, 3.0], 1),  # within 1 % of the cut: dropped
        ("", [0.0, 1.99, 2.0, 3.0], 2),
        ("below", [0.0, 2.0, 2.0, 3.0], 1),  # ties
        ("", [0.0, 2.0, 2.0, 3.0], 2),
    ],
)
def test_three_published_readings_of_a_quantile(compat, distances, number):
    assert int(kept(Quantile(q=0.5, compat=compat), distances)[0].sum()) == number


def test_ties_are_broken_by_the_order_of_points():
    assert kept(KNearest(k=2), [1.0, 0.0, 1.0, 1.0])[0].tolist() == [True, True, False, False]


def test_a_share_is_counted_without_rounding_trouble():
    assert Quantile(q=0.29).count(100) == 29
    assert Quantile(q=0.2, at_least=2).count(5) == 2


def test_the_gap_rule_ends_at_the_first_gap_halfway_between_its_sides():
    inside, radius = kept(Gap(), [1e6, 1.0, 0.0, 16.0, 1.2])

    assert inside.tolist() == [False, True, True, False, True]
    np.testing.assert_allclose(radius, math.sqrt(1.2 * 16.0))


def test_the_gap_rule_keeps_all_where_there_is_no_gap():
    inside, radius = kept(Gap(), [0.0, 1.0, 1.4, 2.0])

    assert inside.all()
    assert radius == jnp.inf


# The border


@pytest.mark.parametrize(
    ("radius", "size", "group", "said"),
    [
        (Quantile(q=0.25), 20, 4, "keeps 5, but the smallest group has 4"),
        (Quantile(q=0.2), 4, None, "this is local training"),
        (KNearest(k=6), 20, 5, "strangers are always let in"),
        (Quantile(q=0.25), 20, 5, ""),
        (Gap(), 20, 5, ""),
    ],
)
def test_a_count_that_admits_strangers_or_nobody_is_named(radius, size, group, said):
    notes = radius_notes(radius, size, group)

    assert bool(notes) == bool(said)
    assert said in "".join(notes)


def test_a_radius_by_name():
    assert as_radius("quantile:q=0.25;at_least=2") == Quantile(q=0.25, at_least=2)
    assert as_radius("sqrt_sigma_delta:sigma=2,delta=8") == SqrtSigmaDelta(sigma=2.0, delta=8.0)
    with pytest.raises(UnknownChoice, match="no radius is called 'quantil'; did you mean 'quantile'"):
        as_radius("quantil")


@pytest.mark.parametrize(
    "build",
    [
        lambda: Fixed(tau=-1.0),
        lambda: Fixed(tau=float("nan")),
        lambda: Quantile(q=1.2),
        lambda: KNearest(k=-1),
        lambda: Gap(factor=1.0),
        lambda: SqrtSigmaDelta(sigma=-1.0, delta=2.0),
        lambda: threshold_clustering(jnp.ones((2, 1)), max_iter=0),
        lambda: threshold_clustering(jnp.ones((2, 1)), tol=-1.0),
        lambda: threshold_clustering(jnp.ones((2, 1)), path="fast"),
        lambda: Quantile(compat="paper"),
    ],
)
def test_impossible_options_are_refused(build):
    with pytest.raises((BadValue, UnknownChoice)):
        build()
