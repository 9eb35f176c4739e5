"""Label flip: attackers learn from mirrored labels, their uploads and their test rows stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.attacks.attackers import attacker_uids
from plures.attacks.label_flip import label_flip
from plures.data.sets.digits import digits
from plures.data.worlds import mean_estimation
from plures.errors import Unsupported


def test_labels_are_mirrored_in_train_and_valid_rows_of_attackers():
    federation = digits()
    bad = attacker_uids(federation.num_clients, share=0.3, seed=1)

    flipped = label_flip(share=0.3, seed=1).bound(federation.num_clients).spoil(federation)

    for uid, name in zip(federation.uid, federation.names, strict=True):
        for split in ("train", "valid", "test"):
            before, after = (one.rows_of(name, split)[1] for one in (federation, flipped))
            wrong = uid in bad and split != "test"
            assert (after == (9 - before if wrong else before)).all()
    assert len(bad) == round(0.3 * federation.num_clients)


def test_labels_flip_for_the_same_clients_in_any_order():
    federation = digits()
    turned = federation.take(np.arange(federation.num_clients)[::-1])
    attack = label_flip(share=0.3, num_clients=federation.num_clients)

    one, other = (attack.spoil(each) for each in (federation, turned))

    for name in federation.names:
        assert (one.rows_of(name, "train")[1] == other.rows_of(name, "train")[1]).all()


def test_uploads_are_left_alone():
    uploads = {"w": jnp.arange(6.0)}

    found, weights = label_flip(share=0.5, num_clients=6)(jax.random.key(0), uploads, jnp.ones(6), jnp.arange(6))

    assert found is uploads
    assert weights.tolist() == [1.0] * 6


def test_only_classes_can_be_flipped():
    with pytest.raises(Unsupported, match="label_flip is for classification"):
        label_flip(share=0.5, num_clients=2).spoil(mean_estimation(num_clients=2, dim=2).federation)
