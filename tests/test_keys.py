"""Keys: one per purpose, round and client; and a shuffle that is a permutation whatever the padding."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from plures.keys import Purpose, derive, permute, root

COUNTS = (1, 2, 3, 4, 5, 7, 8, 13, 31, 64, 97)
LONGEST = max(COUNTS)


@pytest.fixture(scope="module")
def permutations():
    """(keys, counts, positions): three keys, counts traced under vmap, all padded to the longest."""
    index = jnp.arange(LONGEST)
    by_count = jax.vmap(lambda key, count: permute(key, index, count), (None, 0))
    by_key = jax.jit(jax.vmap(by_count, (0, None)))
    return np.asarray(by_key(jax.random.split(root(0), 3), jnp.array(COUNTS)))


@pytest.mark.parametrize("place", range(len(COUNTS)), ids=[str(count) for count in COUNTS])
def test_shuffled_is_a_permutation_for_traced_counts(permutations, place):
    count = COUNTS[place]

    own = np.sort(permutations[:, place, :count], axis=1)

    np.testing.assert_array_equal(own, np.tile(np.arange(count), (3, 1)))


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_shuffled_is_a_permutation_for_static_counts(count):
    found = permute(root(3), jnp.arange(count), count)

    assert sorted(found.tolist()) == list(range(count))


def test_static_and_traced_counts_give_the_same_permutation(permutations):
    key = jax.random.split(root(0), 3)[0]

    static = permute(key, jnp.arange(LONGEST), 13)

    np.testing.assert_array_equal(static, permutations[0, COUNTS.index(13)])


def test_padding_does_not_change_the_permutation(permutations):
    key = jax.random.split(root(0), 3)[0]

    short = permute(key, jnp.arange(7), 7)

    np.testing.assert_array_equal(short, permutations[0, COUNTS.index(7), :7])


def test_positions_past_the_end_stay_among_the_own_rows(permutations):
    assert (permutations < np.array(COUNTS)[None, :, None]).all()


def test_no_rows_at_all_is_harmless():
    assert permute(root(0), jnp.arange(3), 0).tolist() == [0, 0, 0]


def test_shuffled_keeps_the_index_type():
    assert permute(root(0), jnp.arange(3, dtype=jnp.int32), 3).dtype == jnp.int32


def test_another_key_gives_another_permutation(permutations):
    longest = permutations[:, COUNTS.index(LONGEST)]

    assert len({tuple(one) for one in longest.tolist()}) == 3


def test_every_permutation_of_four_is_equally_likely():
    """Chi-square over the 24 permutations; 12,000 draws expect 500 of each."""
    draws = jax.random.split(root(1), 12_000)
    found = np.asarray(jax.jit(jax.vmap(lambda key: permute(key, jnp.arange(4), 4)))(draws))

    _, seen = np.unique(found @ [64, 16, 4, 1], return_counts=True)

    assert len(seen) == math.factorial(4)
    assert chisquare(seen).pvalue > 1e-3


def test_a_key_per_purpose_round_and_client():
    rounds = clients = 6
    grid = jax.vmap(
        jax.vmap(lambda purpose, r, u: derive(root(0), purpose, r, u), (None, None, 0)), (None, 0, None)
    )
    keys = [grid(purpose, jnp.arange(rounds), jnp.arange(clients)) for purpose in Purpose]

    words = np.concatenate([np.asarray(jax.random.key_data(key)).reshape(-1, 2) for key in keys])

    assert len(np.unique(words, axis=0)) == len(Purpose) * rounds * clients


def test_traced_numbers_give_the_key_of_plain_ones():
    plain = derive(root(0), Purpose.TRAIN, 3, 5)

    traced = jax.jit(lambda r, u: derive(root(0), Purpose.TRAIN, r, u))(3, 5)

    assert jax.random.key_data(traced).tolist() == jax.random.key_data(plain).tolist()


def test_another_seed_gives_another_root():
    assert jax.random.key_data(root(0)).tolist() != jax.random.key_data(root(1)).tolist()


def test_purposes_keep_their_numbers():
    """A number that moved would silently change every seeded result."""
    order = [
        "START",
        "COHORT",
        "JOIN",
        "TRAIN",
        "CHANNEL",
        "SETTLE",
        "SERVE",
        "HAND_OVER",
        "DATA",
        "SPLIT",
        "HOLD_OUT",
        "PARTITION",
        "TUNE",
    ]

    assert {purpose.name: int(purpose) for purpose in Purpose} == {name: i for i, name in enumerate(order)}
