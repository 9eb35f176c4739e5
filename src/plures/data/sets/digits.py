"""scikit-learn's bundled digits as a federation: rotation groups, clients of unequal size, no download."""

from __future__ import annotations

import jax
import numpy as np

from plures import registry
from plures.data.federation import Federation, from_arrays
from plures.data.partition.images import rotate_each
from plures.data.partition.quantity import sizes_of_kind
from plures.data.partition.redistribution import names_of
from plures.errors import BadValue
from plures.keys import Purpose, derive, root

SMALLEST = 15


@registry.dataset(title="Digits, rotated by group", paper="scikit-learn load_digits (UCI optical recognition)")
def digits(*, num_clients: int = 40, num_groups: int = 4, spread: float = 0.5, seed: int = 0) -> Federation:
    """1,797 images of 8x8 pixels; group g sees them turned by g quarter turns.

    Sizes are lognormal, at least 15 images per client.

    Args:
        num_clients: How many clients, from ``num_groups`` to 119.
        num_groups: How many groups of clients, 1 to 4: group g sees images turned by g quarter turns; at 1 nothing is
            turned and no group is known.
        spread: How unequal sizes are: sigma of their logarithm; 0 gives equal sizes.
        seed: Seed of who gets which images, of the sizes and of the splits.
    """
    from sklearn.datasets import load_digits

    if not 1 <= num_groups <= 4:
        raise BadValue("num_groups", num_groups, "1 to 4 (quarter turns)")
    raw = load_digits()
    total = len(raw.target)
    if not num_groups <= num_clients <= total // SMALLEST:
        raise BadValue("num_clients", num_clients, f"between num_groups and {total // SMALLEST}")
    key_order, key_sizes = jax.random.split(derive(root(seed), Purpose.DATA))
    order = np.asarray(jax.random.permutation(key_order, total))
    sizes = sizes_of_kind("lognormal", key_sizes, total, num_clients, spread=spread, smallest=SMALLEST)
    owner = np.repeat(np.arange(num_clients), sizes)
    images = (raw.images[order] / 16.0).astype(np.float32)
    names = np.array(names_of(num_clients))
    group = np.arange(num_clients) % num_groups
    return from_arrays(
        rotate_each(images, 90.0 * group[owner]),
        raw.target[order].astype(np.int32),
        names[owner],
        group=dict(zip(names, group.tolist(), strict=True)) if num_groups > 1 else None,
        num_classes=10,
        title="digits",
        seed=seed,
    )
