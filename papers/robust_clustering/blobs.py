"""How many inner rounds Threshold-Clustering needs: ten blobs, and the path of a center that starts at a member."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures.aggregate import KNearest, threshold_clustering
from plures.keys import Purpose, derive, root
from plures.types import Key

NUM_BLOBS, SIZE, DIM, ROUNDS = 10, 9, 10, 50
DEVIATIONS = (0.5, 1.0, 2.0, 4.0)

# Figure 7 of the paper, read off its first and last round; ten draws.
FIGURE = {0.5: (2.0, 1.5), 1.0: (4.0, 3.0), 2.0: (8.0, 5.9), 4.0: (16.0, 13.3)}
# Another program of the same, over 40 draws of its own: after 1, 10, 20 and 50 rounds.
LOOKED_AT = (1, 10, 20, 50)
REFERENCE = {
    0.5: (1.97, 1.56, 1.49, 1.48),
    1.0: (3.94, 3.12, 2.98, 2.95),
    2.0: (7.88, 6.26, 5.96, 5.91),
    4.0: (15.9, 13.3, 12.7, 12.6),
}


def ideal(deviation: float) -> float:
    """The root mean square distance of a blob's members from their own mean."""
    return float(deviation * np.sqrt(DIM * (SIZE - 1) / SIZE))


def paths(deviation: float, draws: int) -> np.ndarray:
    """(rounds,) the root mean square distance from the center to the members of its blob, after every round."""
    keys = jax.random.split(derive(root(0), Purpose.DATA), draws)
    # A draw at a time inside one loop: it compiles once, and 400 draws do not add up in memory.
    squares = jax.lax.map(lambda key: _squares(key, deviation), keys, batch_size=min(draws, 40))
    return np.sqrt(np.asarray(squares.mean(0), float))


def _squares(key: Key, deviation: float) -> Array:
    """(rounds,) mean squared distances of one draw; centers of blobs are uniform in a cube of side 20."""
    key_means, key_noise, key_start = jax.random.split(key, 3)
    means = jax.random.uniform(key_means, (NUM_BLOBS, DIM), minval=-10.0, maxval=10.0)
    noise = jax.random.normal(key_noise, (NUM_BLOBS, SIZE, DIM))
    points = means[:, None] + deviation * noise
    first = jax.random.randint(key_start, (), 0, NUM_BLOBS * SIZE)
    flat, members = points.reshape(-1, DIM), points[first // SIZE]

    def step(center: Array, _: None) -> tuple[Array, Array]:
        found = threshold_clustering(flat, center[None], radius=KNearest(k=SIZE), max_iter=1, tol=0.0)
        after = found.centers[0]
        return after, jnp.square(members - after).sum(1).mean()

    return jax.lax.scan(step, flat[first], None, length=ROUNDS)[1]
