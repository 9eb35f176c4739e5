"""PDMM: the corrected algorithm reaches the optimum with any blocks; the printed one does not."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fusing import Hinge

from plures import run
from plures.aggregate import complete_graph
from plures.errors import BadValue
from plures.method import ALONE
from plures.methods.fusion.pdmm import pdmm

HINGE = Hinge(per_group=4, c=0.05, seed=1)
EDGES = complete_graph(12)
ALPHA, RHO = 0.25, 2.0


@pytest.fixture(scope="module")
def least():
    return HINGE.solved(ALPHA, EDGES)[1]


def alone(method, multipliers=0.0):
    """The method's own rounds, without those before: the graph is complete, and everybody starts at 0."""

    def start(key, number):
        server = method.start(key, number)
        fusion = server.penalty._replace(edges=EDGES, alpha=jnp.asarray(ALPHA), threshold=jnp.asarray(0.5))
        began = server.multipliers + multipliers
        return server._replace(heard=jnp.ones(number, bool), penalty=fusion, multipliers=began, ahead=began)

    return replace(method, start=start, phases=ALONE, views=replace(method.views, report=None))


def played(rounds, *, cohort=None, multipliers=0.0, **options):
    method = pdmm(HINGE.model, alpha=ALPHA, rho=RHO, **options)
    settings = {"rounds": rounds, "cohort": cohort, "executor": "vectorized"}
    return method, jax.device_get(run(alone(method, multipliers), HINGE.federation, **settings).state.server)


def excess(found, least):
    return HINGE.objective(found.own, ALPHA, EDGES) / least - 1


@pytest.mark.parametrize(
    ("cohort", "edges", "rounds"),
    [(None, 1.0, 350), pytest.param(3, 1.0, 800, marks=pytest.mark.slow), (3, 0.25, 3000)],
)
def test_any_blocks_reach_the_optimum(least, cohort, edges, rounds):
    _, found = played(rounds, cohort=cohort, edges=edges)

    assert abs(excess(found, least)) < 1e-6


def test_any_multipliers_to_begin_with_reach_the_optimum(least):
    _, found = played(1000, edges=0.5, multipliers=0.2)

    assert abs(excess(found, least)) < 1e-6


def test_the_printed_algorithm_with_all_blocks_reaches_it_too(least):
    """Multipliers that start opposite stay opposite: alpha is the paper's lambda."""
    _, found = played(600, printed=True)

    number = len(EDGES.heads)
    np.testing.assert_allclose(found.multipliers[:number], -found.multipliers[number:], atol=1e-5)
    assert abs(excess(found, least)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("options", "error"), [({"edges": 0.5}, 4e-6), ({"multipliers": 0.2}, 1e-3)])
def test_the_printed_algorithm_ends_elsewhere_once_multipliers_are_not_opposite(least, options, error):
    """At models that obey all constraints and stand still, and are not optimal: (16) leaves out the (j, i) terms."""
    method, found = played(2000, printed=True, **options)

    heads, tails, _ = EDGES
    apart = found.own[heads] - found.own[tails] - found.differences[: len(heads)]
    assert np.abs(apart).max() < 1e-4
    assert float(found.moved) < 1e-5
    assert excess(found, least) > error
    assert "need not be optimal" in method.views.report(found).findings[0]


@pytest.mark.slow
def test_the_summary_has_a_certificate(least):
    method, found = played(350)

    said = method.views.report(found).findings[0]

    assert "t 0.5" in said
    bound = float(said.split("is within ")[1].split(" of its minimum")[0])
    assert HINGE.objective(found.own, ALPHA, EDGES) - least <= bound


@pytest.fixture(scope="module")
def server():
    """After the round of gradients at 0, and one of the method's own."""
    method = replace(
        pdmm(HINGE.model, alpha=ALPHA, warm=0),
        views=replace(pdmm(HINGE.model, alpha=ALPHA, warm=0).views, report=None),
    )
    return run(method, HINGE.federation, rounds=2, executor="vectorized").state.server


def test_a_step_is_the_one_of_the_formulas(server):
    """One round by hand, with what clients make of it taken as given."""
    method = pdmm(HINGE.model, alpha=ALPHA)
    new = np.asarray(server.own) + 0.1
    heads, tails, weights = map(np.asarray, server.penalty.edges)
    rho, old = float(server.rho), np.asarray(server.own)

    after = method.merge(server, jnp.asarray(new - np.asarray(server.aims)), jnp.ones(12), jnp.arange(12))

    inner = old[heads] - old[tails] + np.asarray(server.ahead) / rho
    length = np.linalg.norm(inner, axis=1)
    apart = inner * np.maximum(0, 1 - ALPHA * weights / rho / np.maximum(length, 1e-30))[:, None]
    gap = new[heads] - new[tails] - apart
    multipliers = np.asarray(server.multipliers) + rho * gap / 3  # tau = J / (3 (2 J - J))
    np.testing.assert_allclose(after.differences, apart, atol=1e-5)
    np.testing.assert_allclose(after.multipliers, multipliers, atol=1e-4)
    ahead = multipliers - 2 / 3 * rho * gap
    np.testing.assert_allclose(after.ahead, ahead, atol=1e-4)
    # v_i = [rho sum (x_other + s z) - sum s muhat] / (rho 11)
    total = np.zeros_like(new)
    np.add.at(total, heads, rho * (new[tails] + apart) - ahead)
    np.add.at(total, tails, rho * (new[heads] - apart) + ahead)
    np.testing.assert_allclose(after.aims, total / (11 * rho), atol=1e-4)


@pytest.mark.slow
def test_a_client_whose_upload_is_lost_counts_as_one_that_was_not_asked(server):
    """tau depends on how many take part: six of twelve, whether the others are missing or have weight 0."""
    method = pdmm(HINGE.model, alpha=ALPHA)
    steps = 0.1 * jnp.arange(36.0).reshape(12, 3)

    asked = method.merge(server, steps[:6], jnp.ones(6), jnp.arange(6))
    lost = method.merge(server, steps, 1.0 * (jnp.arange(12) < 6), jnp.arange(12))

    np.testing.assert_allclose(lost.multipliers, asked.multipliers, atol=1e-6)
    np.testing.assert_allclose(lost.aims, asked.aims, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"edges": 0.0}, "edges must be"),
        ({"edges": 1.5}, "edges must be"),
        ({"eta": -1.0}, "eta must be"),
        ({"t": -1.0}, "t must be"),
        ({"warm": -1}, "warm must be"),
        ({"num_offered": 0}, "num_offered must be"),
    ],
)
def test_what_cannot_be_is_refused(options, match):
    with pytest.raises(BadValue, match=match):
        pdmm(HINGE.model, **options)
