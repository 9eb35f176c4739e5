"""The options of averaging as one value: what it refuses, and what it does."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plures.aggregate import Aggregation, Averaging, num_tolerated
from plures.errors import BadValue, UnknownChoice
from plures.methods.fedavg import fedavg
from plures.models.linear import mean
from plures.registry import METHODS, Named

ROWS = jnp.array([1.0, 3.0, 0.0])
UPLOADS = jnp.array([[0.0], [4.0], [jnp.nan]])


@pytest.mark.parametrize(("weighting", "expected"), [("examples", 3.0), ("uniform", 2.0)])
def test_the_mean_counts_clients_by_their_rows_or_alike(weighting, expected):
    aggregation = Aggregation(weighting=weighting)

    assert float(aggregation.aggregator(UPLOADS, ROWS)[0]) == pytest.approx(expected)
    np.testing.assert_array_equal(aggregation.client_weights(ROWS) > 0, [True, True, False])


def test_a_robust_aggregate_takes_the_place_of_the_mean_and_says_what_it_tolerates():
    robust = Aggregation(aggregate="trimmed_mean:share=0.3")

    assert robust.robust
    assert robust.tolerates(10) == num_tolerated("trimmed_mean:share=0.3", 10) == 3
    assert Aggregation().tolerates is None


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"weighting": "rows"}, UnknownChoice, "no weighting is called 'rows'"),
        ({"aggregate": "mode"}, UnknownChoice, "no aggregator is called 'mode'"),
        ({"aggregate": "trimmed_mean:share=0.7"}, BadValue, r"share must be a number in \[0, 0.5\)"),
        ({"server_lr": 0.0}, BadValue, "server_lr must be a positive number"),
        ({"server_lr": float("nan")}, BadValue, "server_lr must be a positive number"),
        ({"momentum": 1.0}, BadValue, r"momentum must be a number in \[0, 1\)"),
    ],
)
def test_what_cannot_be_is_refused_when_the_value_is_made(options, error, said):
    with pytest.raises(error, match=said):
        Averaging(**options)


def test_the_server_steps_along_a_decaying_sum_of_updates():
    """v <- 0.5 v + u, w <- w + 0.1 v, with u = 1 twice: 0.1, then 0.1 + 0.15."""
    optimizer, here = Averaging(server_lr=0.1, momentum=0.5).optimizer, jnp.zeros(())
    state = optimizer.init(here)
    for _ in range(2):
        change, state = optimizer.update(-jnp.ones(()), state, here)
        here = optax.apply_updates(here, change)

    assert float(here) == pytest.approx(0.25)


def test_in_text_and_in_keywords_its_fields_stand_among_the_other_options():
    named = Named.parse("ditto:server_lr=0.5,lam=2", METHODS)
    flat = fedavg(mean((0,), 2), server_lr=0.5, momentum=0.9)
    whole = fedavg(mean((0,), 2), averaging=Averaging(server_lr=0.5, momentum=0.9))

    assert dict(named.options) == {"server_lr": 0.5, "lam": 2.0}
    assert flat.recipe == whole.recipe
