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


def test_a_least_count_holds_for_the_published_readings_too():
    assert int(kept(Quantile(q=0.1, at_least=2, compat="below"), [0.0, 1.0, 2.0, 3.0])[0].sum()) == 2
    assert Quantile(q=0.25, compat="up_to").count(20) == 6


def test_fixed_radii_keep_the_edge():
    assert kept(Fixed(tau=2.0), [0.0, 2.0, 2.1])[0].tolist() == [True, True, False]
    inside, radius = kept(SqrtSigmaDelta(sigma=1.0, delta=4.0), [0.0, 2.0, 2.1])
    assert inside.tolist() == [True, True, False]
    assert radius == 2.0


def test_a_point_that_does_not_count_is_never_kept():
    """The point in the center is out; N counts it, so half of six is three."""
    counts = jnp.array([False, True, True, True, True, True])
    distances = jnp.array([0.0, 1.0, 1.1, 1.2, 9.0, 9.5])

    for rule in (Fixed(tau=2.0), KNearest(k=3), Quantile(q=0.5), Quantile(q=0.5, compat="below"), Gap()):
        found, radius = rule.keep(distances, counts, jnp.asarray(6))
        assert found.tolist() == [False, True, True, True, False, False], rule
        assert jnp.isfinite(radius)
    assert KNearest(k=9).keep(distances, counts, jnp.asarray(6))[0].tolist() == counts.tolist()


GAPS = [0.0, 1.0, 1.5, 1.6, 8.0, 8.5, 9.0, 1e6]


def test_the_gap_rule_ends_at_the_largest_gap_of_the_nearer_half():
    """Not at 1 to 1.5, the first above the factor, nor at the outlier, the largest of all."""
    order = np.array([7, 2, 0, 5, 1, 3, 6, 4])

    inside, radius = kept(Gap(factor=1.3, at_least=2), np.array(GAPS)[order])

    assert inside.tolist() == (order < 4).tolist()
    np.testing.assert_allclose(radius, math.sqrt(1.6 * 8.0), rtol=1e-6)


def test_the_gap_rule_looks_at_the_farther_half_only_if_the_nearer_has_no_gap():
    assert int(kept(Gap(), [0.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1e6])[0].sum()) == 7
    assert int(kept(Gap(at_least=5), GAPS)[0].sum()) == 7


def test_the_gap_rule_keeps_all_where_there_is_no_gap():
    inside, radius = kept(Gap(), [0.0, 1.0, 1.2, 1.5])

    assert inside.all()
    assert radius == jnp.inf
    assert kept(Gap(), [0.0])[0].all()


def test_the_gap_rule_tells_points_in_one_place_from_others():
    inside, _ = kept(Gap(), [0.0, 0.0, 0.0, 2.0, 2.1, 2.2])

    assert inside.tolist() == [True, True, True, False, False, False]


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
