"""The bound of clusters and the advice to join, with the numbers of their formulas."""

import math

import jax
import numpy as np
import pytest

from plures.data.worlds import density_truth
from plures.errors import BadValue, Unsupported
from plures.study.bounds import Bound, Discrepancy, discrepancy_categorical, hypcluster_bound, worth_joining

NAN = float("nan")
HYPCLUSTER = {"num_clients": 100, "num_rows": 10_000, "dim": 49, "num_clusters": 4}


def normal(seed, *shape):
    return np.asarray(jax.random.normal(jax.random.key(seed), shape), float)


@pytest.mark.parametrize(
    ("given", "assignment", "models", "total", "sharp"),
    [
        ({"num_clusters": 1}, 0.384, 0.176, 0.560, 0.014),
        ({"num_clusters": 4}, 0.451, 0.352, 0.802, 0.084),
        ({"num_clusters": 100}, 0.576, 1.760, 2.336, 0.152),
        ({"num_rows": 1_000_000}, 0.045, 0.046, 0.091, 0.008),
    ],
)
def test_hypcluster_terms_are_those_of_corollary_2(given, assignment, models, total, sharp):
    bound = hypcluster_bound(**HYPCLUSTER | given)

    assert bound.terms == pytest.approx({"assignment": assignment, "models": models}, abs=5e-4)
    assert bound.total == pytest.approx(total, abs=5e-4)
    assert bound.sharp == pytest.approx({"assignment": sharp}, abs=5e-4)


def test_the_assignment_terms_do_not_depend_on_the_model():
    """The writers of EMNIST-62: 2500 clients, 494,000 rows, two clusters."""
    bound = hypcluster_bound(num_clients=2500, num_rows=494_000, dim=1, num_clusters=2)

    assert bound.terms["assignment"] == pytest.approx(0.298, abs=5e-4)
    assert bound.sharp["assignment"] == pytest.approx(0.042, abs=5e-4)


@pytest.mark.parametrize(
    ("total", "verdict"), [(0.25, "0.250"), (1.0, "vacuous"), (math.inf, "vacuous"), (0.75, "0.750")]
)
def test_a_bound_of_one_or_more_is_vacuous(total, verdict):
    bound = Bound("test", {"a": total - 0.25, "b": 0.25})

    assert bound.verdict == verdict
    assert str(bound).startswith(f"test: {verdict} (a ")


def test_the_line_of_a_vacuous_bound_says_so():
    assert "vacuous" in str(hypcluster_bound(**HYPCLUSTER | {"num_clusters": 100}))
    assert "vacuous" not in str(hypcluster_bound(**HYPCLUSTER))


def test_hypcluster_refuses_fewer_rows_per_cluster_than_dimensions():
    """The CNN of EMNIST-62; the formula alone would print a second term of 0.72."""
    with pytest.raises(Unsupported, match="num_rows 494000, num_clusters 2, dim 1206590"):
        hypcluster_bound(num_clients=2500, num_rows=494_000, dim=1_206_590, num_clusters=2)


def test_hypcluster_counts_rows_per_cluster():
    """Enough rows for one cluster are too few for two; as many rows per cluster as dimensions will do."""
    assert hypcluster_bound(**HYPCLUSTER | {"num_rows": 98, "num_clusters": 2}).verdict == "vacuous"
    with pytest.raises(Unsupported):
        hypcluster_bound(**HYPCLUSTER | {"num_rows": 97, "num_clusters": 2})


@pytest.mark.parametrize("name", list(HYPCLUSTER))
@pytest.mark.parametrize("value", [0, -1, NAN, math.inf])
def test_hypcluster_refuses_sizes_that_are_none(name, value):
    with pytest.raises(BadValue, match=name):
        hypcluster_bound(**HYPCLUSTER | {name: value})


def test_a_small_client_joins_and_a_large_one_stays_alone():
    """sqrt(4/16) = 0.5 and sqrt(4/1600) = 0.05 alone; sqrt(4/40000) + 0.3 = 0.31 together."""
    small, large = (worth_joining(dim=4, own_rows=m, all_rows=40_000, discrepancy=0.3) for m in (16, 1600))

    assert (small.alone, large.alone) == pytest.approx((0.5, 0.05))
    assert (small.together, large.together) == pytest.approx((0.31, 0.31))
    assert str(small) == "join: together 0.310 < alone 0.500 (a relative guide)"
    assert str(large) == "stay alone: together 0.310 >= alone 0.050 (a relative guide)"


def test_a_client_that_is_everyone_gains_nothing():
    assert not worth_joining(dim=4, own_rows=16, all_rows=16, discrepancy=Discrepancy(0.0, exact=True)).worth


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"dim": 0}, "dim"),
        ({"own_rows": 0}, "own_rows"),
        ({"all_rows": 15}, "all_rows"),
        ({"discrepancy": -1}, "disc"),
    ],
)
def test_joining_refuses_what_cannot_be(given, name):
    with pytest.raises(BadValue, match=name):
        worth_joining(**{"dim": 4, "own_rows": 16, "all_rows": 400, "discrepancy": 0.1} | given)


def test_categorical_discrepancies_of_the_synthetic_world():
    truth = density_truth()
    groups = [truth[i::4].mean(0) for i in range(4)]

    to_all = np.array([float(discrepancy_categorical(law, truth.mean(0))) for law in truth])
    to_group = np.array([float(discrepancy_categorical(law, groups[k % 4])) for k, law in enumerate(truth)])

    assert (to_all.mean(), to_all.min(), to_all.max()) == pytest.approx((0.3875, 0.3675, 0.6175), abs=1e-9)
    assert (to_group.mean(), to_group.min(), to_group.max()) == pytest.approx((0.2384, 0.23, 0.24), abs=5e-5)


def test_the_categorical_discrepancy_is_attained_by_a_point_mass():
    """loss 1 - h(y), so L1 - L2 = sum_y h(y) (D2(y) - D1(y)): random h come close and never above."""
    one, other = (np.asarray(jax.nn.softmax(normal(seed, 6))) for seed in (0, 1))
    predictors = np.asarray(jax.nn.softmax(30 * normal(2, 5000, 6), axis=-1))
    brute = np.abs(predictors @ (other - one)).max()

    found = discrepancy_categorical(one, other)

    assert found.exact
    assert brute <= found.value + 1e-9
    assert found.value == pytest.approx(brute, abs=1e-4)


@pytest.mark.parametrize("other", [[0.5, 0.5], [0.5, 0.6, 0.1], [1.5, -0.5, 0.0], [[1.0, 0.0, 0.0]]])
def test_a_law_over_other_symbols_is_refused(other):
    with pytest.raises(BadValue, match="other"):
        discrepancy_categorical([0.2, 0.3, 0.5], other)
