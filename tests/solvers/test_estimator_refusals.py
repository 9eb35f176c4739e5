"""What fitting refuses, and what it says then."""

import numpy as np
import pytest
from ellipses_world import ellipses

from plures.errors import BadData, BadValue, UnknownChoice, Unsupported
from plures.solvers import ConvexClustering, complete, convex_clustering


@pytest.fixture(scope="module")
def world():
    return ellipses(0, per=5)


def how(**options):
    return convex_clustering(**{"loss": "squared_hinge", "ridge": 1e-2, "graph": "complete"} | options)


@pytest.mark.parametrize("lam", [0, 0.0, -1.0, np.nan, np.inf])
def test_lam_must_be_positive(lam):
    with pytest.raises(BadValue, match='lam must be "auto" or a positive number; 0 is every client by itself'):
        convex_clustering(lam=lam)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lam": "Auto"}, 'lam must be "auto"'),
        ({"select": "aic"}, "no selector is called 'aic'"),
        ({"scaling": "beta"}, "no scaling is called 'beta'"),
        ({"graph": "nearest"}, "no graph is called 'nearest'. Known: complete, knn, mixture"),
        ({"weighting": "rows"}, "no weighting is called 'rows'. Known: clients, examples"),
        ({"refit": "all"}, "no refit is called 'all'. Known: cluster, none"),
    ],
)
def test_unknown_names_are_refused_at_once(options, says):
    with pytest.raises((BadValue, UnknownChoice), match=says):
        convex_clustering(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"loss": "hinge"}, "no loss is called 'hinge'"),
        ({"num_lams": 1}, "num_lams must be 2 or more, got 1"),
        ({"least": 1.0}, "least must be a number between 0 and 1"),
        ({"ridge": -1.0}, "ridge must be 0 or more"),
        ({"graph": "knn", "num_neighbors": 0}, "num_neighbors must be 1 or more"),
        ({"graph": "mixture", "theta": 2.0}, r"theta must be a number in \[0, 1\]"),
        ({"graph": "knn", "sketch": 0}, "sketch must be 1 or more"),
    ],
)
def test_bad_values_are_refused_when_fitting(world, options, says):
    with pytest.raises((BadValue, UnknownChoice), match=says):
        how(**options).fit(world.x, world.y)


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(TypeError, match="lambda_"):
        convex_clustering(lambda_=1.0)


def test_a_graph_of_other_clients_is_refused(world):
    with pytest.raises(BadData, match="the graph is for 4 clients, there are 15"):
        how(graph=complete(4)).fit(world.x, world.y)


def test_a_graph_in_parts_is_refused(world):
    whole = complete(15)
    parts = whole.among((whole.head < 6) == (whole.tail < 6))

    with pytest.raises(Unsupported):
        how(graph=parts, lam=1.5).fit(world.x, world.y)


@pytest.mark.parametrize("graph", ["complete", "mixture"])
def test_too_dense_a_graph_is_refused_before_it_is_made(graph):
    """40,000 clients have 799,980,000 pairs."""
    with pytest.raises(Unsupported, match=r"need \d+ GB, more than the 8 GB allowed.*graph='knn'"):
        how(graph=graph).fit(np.zeros((40_000, 1, 5)), np.zeros((40_000, 1)))


def test_wrong_targets_are_refused(world):
    with pytest.raises(BadData, match="the targets of squared_hinge must be 0 or 1; got 1 to 2"):
        how().fit(world.x, [one + 1 for one in world.y])


def test_options_are_the_fields():
    assert convex_clustering(lam=0.5) == ConvexClustering(lam=0.5)
