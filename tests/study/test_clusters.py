"""Cluster recovery: found clusters against planted groups."""

import numpy as np
import polars as pl
import pytest
from studies import client_table

from plures.study.clusters import recovery
from plures.study.disk.runs import stack_tables

GROUPS = [0, 0, 0, 1, 1, 1]


def recovered(clusters, groups=GROUPS, unseen=0):
    number = len(clusters)
    table = client_table(np.full(number, 0.5), groups=groups, clusters=clusters, unseen=unseen)
    return recovery(stack_tables({("m", 0): table})).row(0, named=True)


def test_the_same_partition_under_other_names_is_recovered():
    found = recovered([7, 7, 7, 2, 2, 2])

    assert (found["clusters"], found["adjusted_rand"], found["purity"]) == (2, 1.0, 1.0)


def test_one_cluster_for_all_recovers_nothing():
    found = recovered([0] * 6)

    assert (found["clusters"], found["adjusted_rand"], found["purity"]) == (1, 0.0, 0.5)


def test_a_client_each_is_pure_but_no_recovery():
    found = recovered(list(range(6)))

    assert (found["clusters"], found["adjusted_rand"], found["purity"]) == (6, 0.0, 1.0)


def test_one_client_astray_has_the_index_of_its_table():
    """Tables [3, 0], [1, 2]: 4 pairs agree of 6 and 7 that could; expected 6 * 7 / 15 = 2.8."""
    found = recovered([0, 0, 0, 0, 1, 1])

    assert found["adjusted_rand"] == pytest.approx((4 - 2.8) / ((6 + 7) / 2 - 2.8))
    assert found["purity"] == pytest.approx(5 / 6)


def test_unseen_clients_do_not_count():
    assert recovered([0, 0, 0, 1, 1, 0], unseen=1)["adjusted_rand"] == 1.0


def test_without_planted_groups_only_clusters_are_counted():
    found = recovered([0, 0, 1, 1, 2, 2], groups=None)

    assert (found["clusters"], found["adjusted_rand"], found["purity"]) == (3, None, None)


def test_methods_without_clusters_are_no_rows():
    table = stack_tables({("m", 0): client_table([0.5, 0.5])})

    assert recovery(table).height == 0
    assert recovery(table.with_columns(pl.lit(None).cast(pl.Float64).alias("cluster"))).height == 0
