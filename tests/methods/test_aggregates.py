"""Robust aggregators inside methods: one client that uploads garbage ruins the mean and not the median."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run, tree
from plures.aggregate import num_tolerated
from plures.data.worlds import linear_clusters, mean_estimation
from plures.errors import BadValue, UnknownChoice
from plures.methods.clustering.hypcluster import hypcluster
from plures.methods.clustering.hypcluster_auto import hypcluster_auto
from plures.methods.clustering.ifca import ifca
from plures.methods.clustering.oracle import oracle
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.methods.fedprox import fedprox
from plures.methods.scaffold import scaffold
from plures.types import Plan

WORLD = linear_clusters(num_clients=10, num_groups=2, dim=2, rows=40, gap=6.0, sigma=0.1, seed=1)
FIRST_GROUP = [f"client-{k}" for k in (0, 2, 4, 6, 8)]
PLAN = Plan(batch=None, lr=0.3)

ONE_MODEL = {"fedavg": fedavg, "fedprox": fedprox, "scaffold": scaffold, "ditto": ditto}
CLUSTERED = {
    "oracle": lambda model, **options: oracle(model, num_groups=2, **options),
    "hypcluster": lambda model, **options: hypcluster(model, warm=1, num_candidates=10, **options),
    "hypcluster_auto": lambda model, **options: hypcluster_auto(model, up_to=2, warm=1, **options),
    "ifca": lambda model, **options: ifca(model, warm=2, **options),
}
METHODS = ONE_MODEL | CLUSTERED
TRAINED = [*sorted(METHODS.keys() - {"hypcluster_auto"}), pytest.param("hypcluster_auto", marks=pytest.mark.slow)]


def garbage(key, uploads, weights, uids):
    """Client 0 uploads numbers of size 1e6."""

    def one(leaf):
        noise = 1e6 * (1.0 + jax.random.uniform(key, leaf.shape[1:]))
        return jnp.where(tree.along(uids == 0, leaf), noise, leaf) if tree.is_float(leaf) else leaf

    return jax.tree.map(one, uploads), weights


def errors(name, rule, channels=(garbage,)):
    """The distance of the model that each client but the first is served from its true coefficients.

    A method with one model is given the clients of one group.
    """
    federation = WORLD.federation if name in CLUSTERED else WORLD.federation.subset(FIRST_GROUP)
    truth = WORLD.truth if name in CLUSTERED else WORLD.truth[::2]
    result = run(METHODS[name](WORLD.model, plan=PLAN, aggregate=rule), federation, rounds=25, channels=channels)
    found = [result.model_for(uid).weights.params["head"]["kernel"] for uid in range(1, len(truth))]
    return np.linalg.norm(np.stack(found) - truth[1:], axis=1)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.slow
def test_one_liar_ruins_the_mean_and_not_the_median(name):
    """Groups lie about 6 apart; SCAFFOLD's controls, sums of medians, are off by 0.2, all others by below 0.1."""
    assert errors(name, "median").max() < 0.3
    assert not errors(name, "mean").max() < 100.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("fedavg", "trimmed_mean:share=0.2"),
        ("fedprox", "geometric_median"),
        ("ditto", "centered_clip"),
        ("scaffold", "multi_krum:num_byzantine=1"),
        ("oracle", "krum:num_byzantine=1"),
        ("ifca", "median"),
    ],
)
def test_honest_clients_lose_little_by_a_robust_rule(name, rule):
    """Least squares on the 24 rows of one client, with noise 0.1, errs by about 0.1 sqrt(2 / 24) = 0.03."""
    assert errors(name, rule, channels=()).max() < 0.1


@pytest.mark.parametrize("name", ["scaffold", "oracle", pytest.param("hypcluster", marks=pytest.mark.slow)])
def test_an_aggregator_that_draws_works_wherever_the_mean_does(name):
    """Its key is kept for every cluster."""
    assert errors(name, "bucketing:size=1;inner=krum").max() < 0.1


def test_the_median_inside_fedavg_is_the_median_of_what_clients_found():
    """One full-batch step of size 1 takes every client to the mean of its own rows."""
    world = mean_estimation(num_clients=5, dim=3, radius=5.0)
    method = fedavg(world.model, plan=Plan(batch=None, lr=1.0), aggregate="median")

    state = run(method, world.federation, rounds=1).state

    own = [world.federation.rows_of(name, "train")[1].mean(0) for name in world.federation.names]
    np.testing.assert_allclose(state.server.weights.params["point"], np.median(own, axis=0), atol=1e-5)


def test_scaffolds_controls_go_through_the_aggregator_too():
    """From 0, one step of size 1 to the own mean m_k: the control is -m_k, and everyone's its median."""
    world = mean_estimation(num_clients=5, dim=3, radius=5.0)
    method = scaffold(world.model, plan=Plan(batch=None, lr=1.0), aggregate="median")

    state = run(method, world.federation, rounds=1).state

    own = [world.federation.rows_of(name, "train")[1].mean(0) for name in world.federation.names]
    np.testing.assert_allclose(state.server.control["point"], -np.median(own, axis=0), atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_promises_what_its_aggregator_does_and_nothing_inside_clusters(name):
    made = METHODS[name](WORLD.model, aggregate="trimmed_mean:share=0.3")

    assert METHODS[name](WORLD.model).traits.tolerates is None
    if name in CLUSTERED:
        assert made.traits.tolerates is None
    else:
        assert made.traits.tolerates(10) == num_tolerated("trimmed_mean:share=0.3", 10) == 3


@pytest.mark.parametrize("name", METHODS)
def test_a_mistake_in_the_aggregator_is_refused_when_the_method_is_made(name):
    with pytest.raises(UnknownChoice, match="no aggregator is called 'medain'"):
        METHODS[name](WORLD.model, aggregate="medain")
    with pytest.raises(BadValue, match="share must be"):
        METHODS[name](WORLD.model, aggregate="trimmed_mean:share=0.5")
