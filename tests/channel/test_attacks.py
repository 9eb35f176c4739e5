"""Attacks: who is Byzantine, and what each one sends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run
from plures.aggregate import byzantine_uids, is_byzantine
from plures.channel.attacks import alie, alie_z, edge, ipm, large_noise, mimic, not_a_number, sign_flip
from plures.data.digits import digits
from plures.data.label_flip import label_flip
from plures.data.worlds import mean_estimation
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.methods.fedavg import fedavg
from plures.registry import CHANNELS
from plures.types import Plan

KEY = jax.random.key(4)
NUMBER, SHARE = 10, 0.3
WHO = {"share": SHARE, "seed": 2, "num_clients": NUMBER}
BAD = byzantine_uids(NUMBER, share=SHARE, seed=2)
GOOD = np.setdiff1d(np.arange(NUMBER), BAD)
UPLOADS = {
    "w": jax.random.normal(jax.random.key(1), (NUMBER, 4)) + 3.0,
    "b": jax.random.normal(jax.random.key(2), (NUMBER, 2, 3)),
    "cluster": jnp.arange(NUMBER),
}
ATTACKS = [large_noise, sign_flip, alie, ipm, mimic, edge, not_a_number]


def flat(uploads):
    return np.concatenate([uploads["w"], uploads["b"].reshape(len(uploads["b"]), -1)], axis=1)


def sent(build, uploads=UPLOADS, *, key=KEY, weights=None, uids=None, receiver=None, **options):
    """What arrives of the uploads."""
    weights = jnp.ones(NUMBER) if weights is None else weights
    uids = jnp.arange(NUMBER) if uids is None else uids
    return build(**{**WHO, **options})(key, uploads, weights, uids, receiver)[0]


# Who


@pytest.mark.parametrize(("share", "number"), [(0.0, 0), (0.2, 10), (0.21, 11), (0.9, 45)])
def test_exactly_the_share_is_byzantine(share, number):
    assert len(np.unique(byzantine_uids(50, share=share))) == number


def test_who_is_byzantine_depends_on_seed_and_uid_only():
    uids = jnp.array([7, 3, 40, 0, 12])

    one = is_byzantine(uids, share=0.4, seed=3, num_clients=50)
    turned = is_byzantine(uids[::-1], share=0.4, seed=3, num_clients=50)

    assert turned[::-1].tolist() == one.tolist() == np.isin(uids, byzantine_uids(50, share=0.4, seed=3)).tolist()
    assert byzantine_uids(50, share=0.4, seed=3).tolist() != byzantine_uids(50, share=0.4, seed=4).tolist()


def test_a_larger_share_keeps_those_that_were_byzantine():
    assert set(byzantine_uids(40, share=0.1)) < set(byzantine_uids(40, share=0.3))


def test_clients_that_were_not_trained_with_are_honest():
    assert not is_byzantine(jnp.arange(50, 90), share=0.9, num_clients=50).any()


def test_without_the_number_of_clients_each_is_byzantine_by_chance():
    found = is_byzantine(jnp.arange(2000), share=0.3, seed=1)

    assert 0.25 < float(found.mean()) < 0.35


# What all have in common


@pytest.mark.parametrize("build", ATTACKS)
def test_honest_uploads_weights_and_whole_numbers_are_left_alone(build):
    weights = jnp.arange(NUMBER) / 3.0

    found, after = build(**WHO)(KEY, UPLOADS, weights, jnp.arange(NUMBER))

    assert (flat(found)[GOOD] == flat(UPLOADS)[GOOD]).all()
    assert not np.isclose(flat(found)[BAD], flat(UPLOADS)[BAD]).any(axis=1).all()
    assert jnp.array_equal(found["cluster"], UPLOADS["cluster"])
    assert jnp.array_equal(after, weights)


@pytest.mark.parametrize("collude", [True, False])
@pytest.mark.parametrize("build", ATTACKS[:-1])
def test_what_is_sent_goes_by_uid_and_not_by_position(build, collude):
    order = jax.random.permutation(jax.random.key(9), NUMBER)

    found = sent(build, collude=collude)
    turned = sent(build, jax.tree.map(lambda leaf: leaf[order], UPLOADS), uids=order, collude=collude)

    np.testing.assert_allclose(flat(turned), flat(found)[order], atol=1e-5)


@pytest.mark.parametrize("build", [large_noise, sign_flip, alie, ipm, mimic, edge])
def test_those_that_collude_send_the_same_and_the_others_do_not(build):
    together, apart = (flat(sent(build, collude=collude))[BAD] for collude in (True, False))

    np.testing.assert_allclose(together, np.tile(together[0], (len(BAD), 1)), rtol=1e-6)
    assert len(np.unique(apart.round(4), axis=0)) > 1


@pytest.mark.parametrize("build", [alie, ipm, edge])
def test_a_cohort_with_nobody_honest_sends_numbers(build):
    weights = jnp.zeros(NUMBER).at[BAD].set(1.0)

    assert np.isfinite(flat(sent(build, weights=weights))).all()


def test_a_share_of_0_attacks_nobody():
    assert (flat(sent(sign_flip, share=0.0)) == flat(UPLOADS)).all()


@pytest.mark.parametrize("build", [large_noise, mimic, edge])
def test_each_receiver_may_be_sent_something_else(build):
    """With an honest receiver as the victim where there is one."""
    first, second = (flat(sent(build, receiver=jnp.asarray(uid), collude=True))[BAD[0]] for uid in GOOD[:2])

    assert not np.allclose(first, second)


# Each by its formula


def test_large_noise_lies_around_its_offset():
    """The mean of 30 draws of deviation 200 around 1e6, within 5 standard errors."""
    found = flat(sent(large_noise))[BAD]

    assert abs(found.mean() - 1e6) < 5 * 200 / np.sqrt(found.size)
    assert 100 < found.std() < 300


def test_noise_is_new_in_every_round():
    now, later = (flat(sent(large_noise, key=jax.random.key(seed)))[BAD] for seed in (4, 5))

    assert not np.allclose(now, later, atol=1.0)


def test_a_flipped_sign():
    found = flat(sent(sign_flip, factor=2.0))
    together = flat(sent(sign_flip, collude=True))

    np.testing.assert_allclose(found[BAD], -2.0 * flat(UPLOADS)[BAD], rtol=1e-6)
    assert any(np.allclose(together[BAD[0]], -flat(UPLOADS)[one]) for one in GOOD)


def test_a_little_is_enough_is_a_few_deviations_from_the_honest_mean():
    honest = flat(UPLOADS)[GOOD]

    found = flat(sent(alie, z=1.5))[BAD[0]]

    np.testing.assert_allclose(found, honest.mean(0) - 1.5 * honest.std(0), rtol=1e-4, atol=1e-5)


def test_how_many_deviations_are_enough():
    """50 clients, 10 Byzantine: 26 - 10 = 16 supporters needed, Phi(z) = (40 - 16) / 40 = 0.6."""
    np.testing.assert_allclose(alie_z(jnp.asarray(40), jnp.asarray(10)), 0.2533, atol=1e-4)
    assert alie_z(jnp.asarray(0), jnp.asarray(5)) >= 0.0


def test_the_inner_product_with_the_honest_mean_is_negative():
    honest = flat(UPLOADS)[GOOD].mean(0)

    found = flat(sent(ipm, epsilon=0.3))[BAD]

    np.testing.assert_allclose(found, np.tile(-0.3 * honest, (len(BAD), 1)), rtol=1e-4, atol=1e-6)


def test_a_mimic_copies_one_honest_client_round_after_round():
    first, later = (flat(sent(mimic, key=jax.random.key(seed))) for seed in (4, 77))

    copied = [one for one in GOOD if (first[BAD] == flat(UPLOADS)[one]).all()]
    assert len(copied) == 1
    assert (later[BAD] == flat(UPLOADS)[copied[0]]).all()


def test_a_lost_or_broken_upload_is_nobodys_victim():
    weights = jnp.ones(NUMBER).at[GOOD[:3]].set(0.0)
    uploads = {**UPLOADS, "w": UPLOADS["w"].at[GOOD[3:6]].set(jnp.nan)}

    found = flat(sent(mimic, uploads, weights=weights))

    assert (found[BAD] == flat(UPLOADS)[GOOD[6]]).all()


def test_the_edge_is_a_share_of_the_radius_from_the_honest_mean():
    honest = flat(UPLOADS)[GOOD]
    widest = np.linalg.norm(honest - honest.mean(0), axis=1).max()

    found = flat(sent(edge))[BAD]

    np.testing.assert_allclose(np.linalg.norm(found - honest.mean(0), axis=1), 0.9 * widest, rtol=1e-4)


def test_with_a_radius_the_edge_is_that_of_the_victims_cluster():
    """Two clusters 20 apart: 0.9 radius from the honest mean of one of them, inside its ball and far from the other."""
    noise = jax.random.normal(jax.random.key(3), (NUMBER, 8)) / 8**0.5
    group = np.arange(NUMBER) % 2
    points = noise + 20.0 * group[:, None] * jnp.eye(8)[0]

    found, _ = edge(radius=4.0, **WHO)(KEY, points, jnp.ones(NUMBER), jnp.arange(NUMBER))

    means = [np.asarray(points)[GOOD[group[GOOD] == one]].mean(0) for one in (0, 1)]
    near, far = sorted(float(np.linalg.norm(found[BAD[0]] - mean)) for mean in means)
    assert near == pytest.approx(0.9 * 4.0, rel=1e-4)
    assert far > 15.0


@pytest.mark.parametrize(("value", "check"), [("nan", np.isnan), ("inf", np.isposinf), ("-inf", np.isneginf)])
def test_numbers_that_are_none(value, check):
    found = sent(not_a_number, value=value)

    assert check(flat(found)[BAD]).all()


# Inside a run


def test_sign_flips_turn_the_mean_and_not_the_median():
    """All move alike; with 4 of 10 turned twice over the mean is -0.2 of that, and the median all of it."""
    world = mean_estimation(num_clients=10, dim=2, radius=0.0, sigma=0.01, seed=1)
    plan = Plan(batch=None, lr=1.0)
    channel = sign_flip(share=0.4, factor=2.0, num_clients=10)

    def end(aggregate, channels):
        method = fedavg(world.model, plan=plan, weighting="uniform", aggregate=aggregate)
        return run(method, world.federation, rounds=1, channels=channels).state.server.weights.params["point"]

    honest = end("mean", ())
    np.testing.assert_allclose(end("mean", (channel,)), -0.2 * honest, atol=0.05)
    np.testing.assert_allclose(end("median", (channel,)), honest, atol=0.05)


def test_all_attacks_are_registered_as_such():
    found = {name for name, entry in CHANNELS.items() if "attack" in entry.tags}

    assert found == {"large_noise", "sign_flip", "alie", "ipm", "mimic", "edge", "nan"}


# Labels


def test_flipped_labels_are_mirrored_in_train_and_valid_rows_of_byzantine_clients():
    federation = digits()
    bad = byzantine_uids(federation.num_clients, share=0.3, seed=1)

    flipped = label_flip(federation, share=0.3, seed=1)

    for uid, name in zip(federation.uid, federation.names, strict=True):
        for split in ("train", "valid", "test"):
            before, after = (one.rows_of(name, split)[1] for one in (federation, flipped))
            wrong = uid in bad and split != "test"
            assert (after == (9 - before if wrong else before)).all()
    assert f"{len(bad)} of {federation.num_clients} clients" in flipped.notes[-1]


def test_labels_flip_for_the_same_clients_in_any_order():
    federation = digits()
    turned = federation.take(np.arange(federation.num_clients)[::-1])

    one, other = (label_flip(each, share=0.3) for each in (federation, turned))

    for name in federation.names:
        assert (one.rows_of(name, "train")[1] == other.rows_of(name, "train")[1]).all()


def test_only_classes_can_be_flipped():
    with pytest.raises(Unsupported, match="label_flip is for classification"):
        label_flip(mean_estimation(num_clients=2, dim=2).federation)


# The border


@pytest.mark.parametrize(
    "build",
    [
        lambda: sign_flip(share=1.0),
        lambda: sign_flip(share=-0.1),
        lambda: sign_flip(factor=0.0),
        lambda: large_noise(scale=-1.0),
        lambda: ipm(epsilon=0.0),
        lambda: edge(radius=0.0),
        lambda: edge(factor=-1.0),
        lambda: mimic(num_clients=-1),
        lambda: not_a_number(value="zero"),
    ],
)
def test_impossible_options_are_refused(build):
    with pytest.raises((BadValue, UnknownChoice)):
        build()
