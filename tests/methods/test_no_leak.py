"""Test rows are for scores alone: with their labels in disorder every client has the same cluster and the same model."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run, tree
from plures.data.worlds import linear_clusters
from plures.engine.evaluate import predictions
from plures.methods.clustering.hypcluster import hypcluster
from plures.methods.clustering.hypcluster_auto import hypcluster_auto
from plures.personalize.dapper import dapper
from plures.personalize.mapper import mapper
from plures.types import Plan

WORLD = linear_clusters(num_clients=8, num_groups=2, dim=2, rows=30, gap=3.0, sigma=0.5, seed=1)
BASE = hypcluster(WORLD.model, plan=Plan(batch=None, lr=0.2), warm=1, num_candidates=8, scout_epochs=3)
METHODS = {
    "hypcluster": BASE,
    "hypcluster|dapper": dapper(BASE, source="statistics", lams=(0.0, 0.5, 1.0), folds=2),
    "hypcluster|mapper": mapper(BASE, epochs=2, folds=2),
    "hypcluster|dapper, raw": dapper(
        BASE,
        source="raw",
        allow_raw_sharing=True,
        example=WORLD.federation.example,
        lams=(0.0, 1.0),
        folds=2,
    ),
    "hypcluster_auto": hypcluster_auto(BASE.model, up_to=2, plan=BASE.plan, warm=2, num_candidates=8),
}


def with_split(federation, split, change):
    """The federation with the labels of one split of every client changed."""
    y = federation.y.copy()
    for start, count in zip(federation.start[:, split], federation.count[:, split], strict=True):
        y[start : start + count] = change(y[start : start + count])
    return replace(federation, y=y)


def shuffled_tests(federation):
    rng = np.random.default_rng(0)
    return with_split(federation, 2, lambda y: rng.permutation(y) + 5)


def predicted(result):
    """What every client predicts for three inputs that tell all linear models apart."""
    runner, state = result.runner, result.state
    probes = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    clients = runner.clients(state)
    return predictions(runner.setup(runner.phases[-1]), runner.arrays, state.server, clients, probes)


@pytest.mark.parametrize("name", METHODS)
def test_labels_of_test_rows_change_no_cluster_and_no_model(name):
    runs = [
        run(METHODS[name], one, rounds=8, executor="vectorized")
        for one in (WORLD.federation, shuffled_tests(WORLD.federation))
    ]

    assert runs[0].clients["cluster"].to_list() == runs[1].clients["cluster"].to_list()
    assert (runs[0].clients["personal_test_loss"] != runs[1].clients["personal_test_loss"]).all()
    first, second = (jax.tree.leaves((one.state.server, predicted(one))) for one in runs)
    for one, other in zip(first, second, strict=True):
        if not tree.is_key(one):
            np.testing.assert_array_equal(one, other)
