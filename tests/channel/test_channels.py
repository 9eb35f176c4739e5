"""Channels: clipping and lost uploads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run
from plures.channel.clip import clip
from plures.channel.drop_out import drop_out
from plures.data.worlds import mean_estimation
from plures.errors import BadValue
from plures.methods.fedavg import fedavg
from plures.types import Plan

UPLOADS = {"a": jnp.array([[3.0], [0.3]]), "b": jnp.array([[4.0], [0.4]])}


def test_clip_leaves_a_method_alone_that_sends_nothing():
    sent, weights = clip(norm=1.0)(jax.random.key(0), (), jnp.ones(2), jnp.arange(2))

    assert sent == ()
    assert weights.tolist() == [1, 1]


def test_clip_scales_long_uploads_to_the_bound_and_leaves_short_ones():
    clipped, weights = clip(norm=1.0)(jax.random.key(0), UPLOADS, jnp.ones(2), jnp.arange(2))

    np.testing.assert_allclose(clipped["a"][:, 0], [0.6, 0.3], atol=1e-6)
    np.testing.assert_allclose(clipped["b"][:, 0], [0.8, 0.4], atol=1e-6)
    assert weights.tolist() == [1.0, 1.0]


def test_a_dropped_upload_loses_its_weight_by_uid_not_by_position():
    channel, key = drop_out(share=0.5), jax.random.key(3)
    uids = jnp.arange(200)

    _, weights = channel(key, UPLOADS, jnp.ones(200), uids)
    _, backwards = channel(key, UPLOADS, jnp.ones(200), uids[::-1])

    assert weights.tolist() == backwards[::-1].tolist()
    assert 60 < float(weights.sum()) < 140


def test_channels_act_between_client_and_server_in_order():
    """Every update clipped to norm 0.1 before the mean; the largest possible mean update is 0.1 long."""
    world = mean_estimation(num_clients=2, dim=2, radius=5.0)
    method = fedavg(world.model, plan=Plan(batch=None, lr=1.0))

    result = run(method, world.federation, rounds=1, channels=(clip(norm=0.1),))

    assert float(jnp.linalg.norm(result.state.server.weights.params["point"])) <= 0.1 + 1e-6


@pytest.mark.parametrize("build", [lambda: clip(norm=0.0), lambda: drop_out(share=1.0)])
def test_impossible_options_are_refused(build):
    with pytest.raises(BadValue):
        build()


def test_clip_leaves_whole_numbers_alone():
    uploads = {"update": jnp.array([[30.0, 40.0]]), "cluster": jnp.array([3])}

    clipped, _ = clip(norm=1.0)(jax.random.key(0), uploads, jnp.ones(1), jnp.arange(1))

    assert clipped["cluster"].tolist() == [3]
    np.testing.assert_allclose(clipped["update"], [[0.6, 0.8]], atol=1e-6)
