"""Attacks on uploads: what each one sends to the server or to one receiver among others."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run
from plures.attacks.attackers import attacker_uids
from plures.attacks.upload_attacks import alie, alie_z, edge, ipm, large_noise, mimic, not_a_number, sign_flip
from plures.data.worlds import mean_estimation
from plures.errors import BadValue, UnknownChoice
from plures.method import Attack
from plures.methods.fedavg import fedavg
from plures.registry import CHANNELS
from plures.types import Plan

KEY = jax.random.key(4)
NUMBER, SHARE = 10, 0.3
UIDS = jnp.arange(NUMBER)
WHO = {"share": SHARE, "seed": 2, "num_clients": NUMBER}
BAD = attacker_uids(NUMBER, share=SHARE, seed=2)
GOOD = np.setdiff1d(np.arange(NUMBER), BAD)
UPLOADS = {
    "w": jax.random.normal(jax.random.key(1), (NUMBER, 4)) + 3.0,
    "b": jax.random.normal(jax.random.key(2), (NUMBER, 2, 3)),
    "cluster": jnp.arange(NUMBER),
}
ATTACKS = [large_noise, sign_flip, alie, ipm, mimic, edge, not_a_number]

# Messages to two receivers: one honest client of each half gets those of its half, which has attackers too.
ATTACKER = int(BAD[0])
FIRST = np.array(sorted([ATTACKER, *GOOD[:3]]))  # whose messages are for the first receiver
OTHERS = np.setdiff1d(np.arange(NUMBER), FIRST)
TO = np.where(np.isin(np.arange(NUMBER), FIRST), GOOD[1], GOOD[-1])
PEERS, FAR = np.intersect1d(FIRST, GOOD), np.intersect1d(OTHERS, GOOD)


def flat(uploads):
    return np.concatenate([uploads["w"], np.asarray(uploads["b"]).reshape(len(uploads["b"]), -1)], axis=1)


HONEST = flat(UPLOADS)


def sent(build, uploads=UPLOADS, *, key=KEY, weights=None, uids=UIDS, to=None, **options):
    """What arrives of the uploads, a row per client."""
    weights = jnp.ones(NUMBER) if weights is None else jnp.asarray(weights, float)
    to = None if to is None else jnp.asarray(to)
    return flat(build(**{**WHO, **options})(key, uploads, weights, uids, to)[0])


def test_bound_to_a_number_of_clients_an_attack_is_by_exactly_its_share():
    loose = sign_flip(share=SHARE, seed=2)

    assert np.flatnonzero(loose.bound(NUMBER).members(UIDS)).tolist() == BAD.tolist()
    assert loose.bound(NUMBER) is loose.bound(NUMBER)  # so that nothing is compiled twice


def test_an_attack_made_for_another_number_of_clients_is_refused():
    with pytest.raises(BadValue, match="num_clients must be 12, the number of training clients, got 10"):
        sign_flip(**WHO).bound(12)


def test_all_attacks_are_registered_as_such():
    found = {name for name, entry in CHANNELS.items() if "attack" in entry.tags}

    assert found == {"large_noise", "sign_flip", "alie", "ipm", "mimic", "edge", "nan", "label_flip"}
    for name in found:
        attack = CHANNELS[name].factory(share=0.25)
        assert isinstance(attack, Attack)
        assert (attack.name, attack.share) == (name, 0.25)


# What all have in common


@pytest.mark.parametrize("to", [None, TO], ids=["server", "receivers"])
@pytest.mark.parametrize("build", ATTACKS)
def test_honest_uploads_weights_and_whole_numbers_are_left_alone(build, to):
    weights = jnp.arange(1, NUMBER + 1) / 3.0

    found, after = build(**WHO)(KEY, UPLOADS, weights, UIDS, None if to is None else jnp.asarray(to))

    assert (flat(found)[GOOD] == HONEST[GOOD]).all()
    assert not np.isclose(flat(found)[BAD], HONEST[BAD]).all(axis=1).any()
    assert jnp.array_equal(found["cluster"], UPLOADS["cluster"])
    assert jnp.array_equal(after, weights)


@pytest.mark.parametrize("collude", [True, False])
@pytest.mark.parametrize("build", ATTACKS[:-1])
def test_what_is_sent_goes_by_uid_and_not_by_position(build, collude):
    order = np.asarray(jax.random.permutation(jax.random.key(9), NUMBER))
    turned = jax.tree.map(lambda leaf: leaf[order], UPLOADS)

    found = sent(build, collude=collude, to=TO)
    again = sent(build, turned, uids=jnp.asarray(order), collude=collude, to=TO[order])

    np.testing.assert_allclose(again, found[order], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("build", ATTACKS[:-1])
def test_those_that_collude_send_the_same_and_the_others_do_not(build):
    together, apart = (sent(build, collude=collude)[BAD] for collude in (True, False))

    np.testing.assert_allclose(together, np.tile(together[0], (len(BAD), 1)), rtol=1e-6)
    assert len(np.unique(apart.round(4), axis=0)) > 1


@pytest.mark.parametrize("build", ATTACKS[:-1])
def test_a_cohort_with_nobody_honest_sends_numbers(build):
    weights = np.isin(np.arange(NUMBER), BAD)

    assert np.isfinite(sent(build, weights=weights)).all()


@pytest.mark.parametrize("build", [sign_flip, alie, ipm, mimic, edge])
def test_honest_uploads_that_are_lost_or_no_numbers_are_as_if_they_were_not_there(build):
    """Of weight 0, or full of NaN: both leave the same honest clients to know."""
    lost = np.isin(np.arange(NUMBER), GOOD[:2])
    broken = {**UPLOADS, "w": UPLOADS["w"].at[GOOD[:2]].set(jnp.nan)}

    absent, unfit = sent(build, weights=~lost, collude=True), sent(build, broken, collude=True)

    np.testing.assert_allclose(absent[BAD], unfit[BAD], rtol=1e-5, atol=1e-5)
    assert not np.allclose(absent[BAD], sent(build, collude=True)[BAD]) or build in (mimic, sign_flip)


# To receivers


def test_all_messages_to_one_receiver_know_what_the_server_would_know():
    for build in (alie, ipm):
        np.testing.assert_allclose(
            sent(build, to=np.full(NUMBER, GOOD[0]))[BAD], sent(build)[BAD], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("collude", [True, False])
@pytest.mark.parametrize("build", [large_noise, edge])
def test_each_receiver_is_told_another_thing(build, collude):
    first, second = (sent(build, to=np.full(NUMBER, uid), collude=collude)[BAD] for uid in GOOD[:2])

    assert not np.isclose(first, second, rtol=1e-9).any(axis=1).all()


def test_those_that_collude_tell_one_receiver_the_same():
    found = sent(large_noise, to=np.full(NUMBER, GOOD[0]), collude=True)[BAD]
    split = sent(large_noise, to=TO, collude=True)

    assert (found == found[0]).all()
    assert not (split[ATTACKER] == split[BAD[1]]).all()


@pytest.mark.parametrize(("build", "factor"), [(mimic, 1.0), (partial(sign_flip, factor=2.0), -2.0)])
def test_the_victim_is_the_receiver_where_it_is_honest(build, factor):
    found = sent(build, to=TO, collude=True)

    np.testing.assert_allclose(found[ATTACKER], factor * HONEST[GOOD[1]], rtol=1e-6)
    for other in BAD[1:]:
        np.testing.assert_allclose(found[other], factor * HONEST[GOOD[-1]], rtol=1e-6)


@pytest.mark.parametrize("receiver", [ATTACKER, 99], ids=["an attacker", "not in the cohort"])
def test_else_the_victim_is_an_honest_client_that_sends_to_the_same_receiver(receiver):
    to = np.where(np.isin(np.arange(NUMBER), FIRST), receiver, 77)

    found = sent(mimic, to=to)

    assert any((found[ATTACKER] == HONEST[one]).all() for one in PEERS)
    assert any((found[BAD[1]] == HONEST[one]).all() for one in FAR)


def test_who_knows_nobody_honest_says_what_it_has_itself():
    lonely = BAD[-1]
    to = np.where(np.arange(NUMBER) == lonely, lonely, GOOD[0])

    np.testing.assert_array_equal(sent(mimic, to=to)[lonely], HONEST[lonely])


def test_means_and_deviations_are_of_messages_to_the_same_receiver():
    near, far = HONEST[PEERS], HONEST[FAR]

    lies, turned = sent(alie, z=1.5, to=TO), sent(ipm, epsilon=0.3, to=TO)

    np.testing.assert_allclose(lies[ATTACKER], near.mean(0) - 1.5 * near.std(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(lies[BAD[1]], far.mean(0) - 1.5 * far.std(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(turned[ATTACKER], -0.3 * near.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(turned[BAD[1]], -0.3 * far.mean(0), rtol=1e-4, atol=1e-6)


def test_how_many_deviations_are_enough_is_counted_per_receiver():
    near, far = HONEST[PEERS], HONEST[FAR]

    found = sent(alie, to=TO)

    for attacker, known, number in ((ATTACKER, near, 1), (BAD[1], far, 2)):
        z = float(alie_z(jnp.asarray(len(known)), jnp.asarray(number)))
        np.testing.assert_allclose(found[attacker], known.mean(0) - z * known.std(0), rtol=1e-4, atol=1e-5)


def test_the_edge_is_that_of_the_messages_to_the_same_receiver():
    found = sent(edge, to=TO)

    for attacker, known in ((ATTACKER, HONEST[PEERS]), (BAD[1], HONEST[FAR])):
        widest = np.linalg.norm(known - known.mean(0), axis=1).max()
        assert np.linalg.norm(found[attacker] - known.mean(0)) == pytest.approx(0.9 * widest, rel=1e-4)


def test_messages_side_by_side_are_forged_as_one_by_one():
    """As the engine does: a stack of messages per client, each for its own receiver."""
    to = jnp.stack([jnp.asarray(TO), jnp.full(NUMBER, 3), jnp.full(NUMBER, -1)], 1)
    messages = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, leaf + 1], 1), UPLOADS)

    @jax.jit
    def forge(one, who):
        return ipm(**WHO, collude=False).forge(KEY, one, jnp.ones(NUMBER), UIDS, who)["w"]

    found = jax.jit(jax.vmap(forge, 1, 1))(messages, to)

    for place in range(3):
        one = forge(jax.tree.map(lambda leaf, at=place: leaf[:, at], messages), to[:, place])
        np.testing.assert_allclose(found[:, place], one, rtol=1e-5, atol=1e-5)


# Each by its formula


def test_large_noise_lies_around_its_offset():
    """The mean of 30 draws of deviation 200 around 1e6, within 5 standard errors."""
    found = sent(large_noise)[BAD]

    assert abs(found.mean() - 1e6) < 5 * 200 / np.sqrt(found.size)
    assert 100 < found.std() < 300


def test_noise_is_new_in_every_round():
    now, later = (sent(large_noise, key=jax.random.key(seed))[BAD] for seed in (4, 5))

    assert not np.allclose(now, later, atol=1.0)


def test_a_flipped_sign():
    found, together = sent(sign_flip, factor=2.0), sent(sign_flip, collude=True)

    np.testing.assert_allclose(found[BAD], -2.0 * HONEST[BAD], rtol=1e-6)
    assert any(np.allclose(together[ATTACKER], -HONEST[one]) for one in GOOD)


def test_a_little_is_enough_is_a_few_deviations_from_the_honest_mean():
    honest = HONEST[GOOD]

    found, apart = sent(alie, z=1.5), sent(alie, z=1.5, collude=False)

    np.testing.assert_allclose(found[ATTACKER], honest.mean(0) - 1.5 * honest.std(0), rtol=1e-4, atol=1e-5)
    away = np.abs(apart[BAD] - honest.mean(0))
    np.testing.assert_allclose(away, np.tile(1.5 * honest.std(0), (len(BAD), 1)), rtol=1e-3, atol=1e-5)


def test_how_many_deviations_are_enough():
    """50 clients, 10 attackers: 26 - 10 = 16 supporters needed, Phi(z) = (40 - 16) / 40 = 0.6."""
    np.testing.assert_allclose(alie_z(jnp.asarray(40), jnp.asarray(10)), 0.2533, atol=1e-4)
    assert alie_z(jnp.asarray(0), jnp.asarray(5)) >= 0.0


def test_attackers_whose_uploads_are_lost_are_not_counted_on():
    """One attacker among 8 lacks 5 - 1 = 4 supporters of 7 honest ones: more than half, so it stays at the mean."""
    weights = ~np.isin(np.arange(NUMBER), BAD[1:])
    middle = HONEST[GOOD].mean(0)

    np.testing.assert_allclose(sent(alie, weights=weights)[ATTACKER], middle, rtol=1e-4, atol=1e-5)
    assert not np.allclose(sent(alie)[ATTACKER], middle, atol=1e-2)


def test_the_inner_product_with_the_honest_mean_is_negative():
    honest = HONEST[GOOD].mean(0)

    found, apart = sent(ipm, epsilon=0.3)[BAD], sent(ipm, epsilon=0.3, collude=False)[BAD]

    np.testing.assert_allclose(found, np.tile(-0.3 * honest, (len(BAD), 1)), rtol=1e-4, atol=1e-6)
    assert all(any(np.allclose(one, -0.3 * HONEST[other]) for other in GOOD) for one in apart)


def test_a_mimic_copies_one_honest_client_round_after_round():
    first, later = (sent(mimic, key=jax.random.key(seed)) for seed in (4, 77))

    copied = [one for one in GOOD if (first[BAD] == HONEST[one]).all()]
    assert len(copied) == 1
    assert (later[BAD] == HONEST[copied[0]]).all()


def test_a_lost_or_broken_upload_is_nobodys_victim():
    weights = ~np.isin(np.arange(NUMBER), GOOD[:3])
    uploads = {**UPLOADS, "w": UPLOADS["w"].at[GOOD[3:6]].set(jnp.nan)}

    assert (sent(mimic, uploads, weights=weights)[BAD] == HONEST[GOOD[6]]).all()


def test_the_edge_is_a_share_of_the_radius_from_the_honest_mean():
    honest = HONEST[GOOD]
    widest = np.linalg.norm(honest - honest.mean(0), axis=1).max()

    found = sent(edge)[BAD]

    np.testing.assert_allclose(np.linalg.norm(found - honest.mean(0), axis=1), 0.9 * widest, rtol=1e-4)


def test_with_a_radius_the_edge_is_that_of_the_victims_cluster():
    """Two clusters 40 apart: 0.9 radius from the honest mean of the victim's, far from the other."""
    group = np.arange(NUMBER) % 2
    uploads = {**UPLOADS, "w": UPLOADS["w"] + 20.0 * group[:, None]}
    points, victim = flat(uploads), int(GOOD[0])

    found = sent(edge, uploads, radius=10.0, to=np.full(NUMBER, victim))[ATTACKER]

    means = [points[GOOD[group[GOOD] == one]].mean(0) for one in (group[victim], 1 - group[victim])]
    near, far = (float(np.linalg.norm(found - mean)) for mean in means)
    assert near == pytest.approx(0.9 * 10.0, rel=1e-4)
    assert far > 25.0


@pytest.mark.parametrize(("value", "check"), [("nan", np.isnan), ("inf", np.isposinf), ("-inf", np.isneginf)])
def test_numbers_that_are_none(value, check):
    assert check(sent(not_a_number, value=value)[BAD]).all()


# Inside a run


def test_sign_flips_turn_the_mean_and_not_the_median():
    """All move alike; with 4 of 10 turned twice over the mean is -0.2 of that, and the median all of it."""
    world = mean_estimation(num_clients=10, dim=2, radius=0.0, sigma=0.01, seed=1)
    channel = sign_flip(share=0.4, factor=2.0)

    def end(aggregate, channels):
        method = fedavg(world.model, plan=Plan(batch=None, lr=1.0), weighting="uniform", aggregate=aggregate)
        return run(method, world.federation, rounds=1, channels=channels).state.server.weights.params["point"]

    honest = end("mean", ())
    np.testing.assert_allclose(end("mean", (channel,)), -0.2 * honest, atol=0.05)
    np.testing.assert_allclose(end("median", (channel,)), honest, atol=0.05)


# The border


@pytest.mark.parametrize(
    "build",
    [
        lambda: sign_flip(share=1.0),
        lambda: sign_flip(share=0.0),
        lambda: sign_flip(share=-0.1),
        lambda: sign_flip(share=float("nan")),
        lambda: sign_flip(seed=-1),
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
