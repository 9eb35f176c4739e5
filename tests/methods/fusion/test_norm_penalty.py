"""The sum of norms on a graph: its strength, its graph, clusters for newcomers, certificates."""

import jax.numpy as jnp
import numpy as np
import pytest

from plures.aggregate import complete_graph
from plures.errors import BadValue
from plures.methods.fusion.norm_penalty import (
    DualEvidence,
    NormPenalty,
    PenaltyState,
    certificate,
    find_graph,
    new_penalty,
    offer_clusters,
)
from plures.methods.penalized.vector import make_part
from plures.models.linear import least_squares

PART = make_part(least_squares((1,)), None, 0.5)


def state(labels, **fields):
    number = len(labels)
    blank = new_penalty(PART, NormPenalty(graph="complete"), number)
    return blank._replace(edges=complete_graph(number), labels=jnp.asarray(labels), **fields)


def test_the_strength_is_a_share_of_the_threshold_unless_it_is_given():
    assert float(NormPenalty(t=0.25).strength(jnp.asarray(8.0))) == 2.0
    assert float(NormPenalty(t=0.25, alpha=3.0).strength(jnp.asarray(8.0))) == 3.0


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"t": -1.0}, {"graph": "knn", "num_neighbors": 0}])
def test_a_penalty_that_cannot_be_is_refused(options):
    with pytest.raises(BadValue, match="must be"):
        NormPenalty(**options)


def test_one_model_is_the_answer_from_half_the_difference_of_two_gradients_on():
    """u_12 = (g_2 - g_1) / 2 balances both gradients, and must be no longer than alpha."""
    gradients = jnp.zeros((2, PART.size)).at[:, 0].set(jnp.array([-3.0, 5.0]))

    found = find_graph(PART, NormPenalty(graph="complete"), "whole", gradients, jnp.ones(2, bool))

    assert float(found.threshold) == pytest.approx(4.0, rel=1e-3)


def test_who_was_not_heard_has_the_mean_gradient():
    gradients = jnp.zeros((3, PART.size)).at[:, 0].set(jnp.array([-3.0, 5.0, 1e9]))
    heard = jnp.array([True, True, False])

    found = find_graph(PART, NormPenalty(graph="complete"), "whole", gradients, heard)

    assert float(found.threshold) < 10


def test_newcomers_are_offered_the_means_of_the_largest_clusters_first():
    own = jnp.array([[1.0], [5.0], [7.0], [9.0]])

    offer = offer_clusters(own, state([0, 1, 1, 1], alpha=jnp.asarray(2.0)), jnp.asarray(9), 8)

    assert offer.models[:2, 0].tolist() == [7.0, 1.0]
    assert offer.sizes.tolist() == [3, 1, 0, 0]
    assert offer.labels[:2].tolist() == [1, 0]


def test_at_the_optimum_the_certificate_is_zero_and_elsewhere_it_is_not():
    """Two clients: u balances the gradients, and points along the difference of the models."""
    models = jnp.zeros((2, PART.size)).at[0, 0].set(2.0)
    duals = jnp.zeros((1, PART.size)).at[0, 0].set(0.5)
    gradients = jnp.concatenate([-duals, duals])
    fused: PenaltyState = state([0, 1], alpha=jnp.asarray(0.5))

    def gap(gradients):
        return certificate(PART, "whole", fused, DualEvidence(models, gradients, duals, jnp.ones(2, bool)))

    assert gap(gradients) == pytest.approx(0.0, abs=1e-6)
    # An excess of 1 in the gradient of both, over twice the strong convexity.
    assert gap(gradients.at[:, 0].add(1.0)) == pytest.approx(2 / (2 * PART.least_curvature()), rel=1e-5)
    np.testing.assert_array_less(0.0, PART.least_curvature())
