"""Who the attackers are."""

import jax.numpy as jnp
import numpy as np
import pytest

from plures.attacks.attackers import attacker_uids, is_attacker


@pytest.mark.parametrize(("share", "number"), [(0.0, 0), (0.2, 10), (0.21, 11), (0.9, 45)])
def test_exactly_the_share_attacks(share, number):
    assert len(np.unique(attacker_uids(50, share=share))) == number


def test_who_attacks_depends_on_seed_and_uid_only():
    uids = jnp.array([7, 3, 40, 0, 12])

    one = is_attacker(uids, share=0.4, seed=3, num_clients=50)
    turned = is_attacker(uids[::-1], share=0.4, seed=3, num_clients=50)

    assert turned[::-1].tolist() == one.tolist() == np.isin(uids, attacker_uids(50, share=0.4, seed=3)).tolist()
    assert attacker_uids(50, share=0.4, seed=3).tolist() != attacker_uids(50, share=0.4, seed=4).tolist()


def test_a_larger_share_keeps_those_that_attacked():
    assert set(attacker_uids(50, share=0.1)) < set(attacker_uids(50, share=0.3))


def test_clients_that_were_not_trained_with_are_honest():
    assert not is_attacker(jnp.arange(50, 90), share=0.9, num_clients=50).any()


def test_without_the_number_of_clients_each_attacks_by_chance():
    found = is_attacker(jnp.arange(2000), share=0.3, seed=1)

    assert 0.25 < float(found.mean()) < 0.35
