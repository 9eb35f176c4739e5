"""Steps after one another: dealing inside groups, and groups planted on what was dealt."""

import jax
import numpy as np

from plures.data import from_arrays
from plures.data.partition import dirichlet, iid, rotation_groups

# Ten clients of twelve images each, none of them symmetric.
IMAGES = np.array(jax.random.uniform(jax.random.key(1), (120, 5, 5)))
DATA = from_arrays(IMAGES, np.arange(120) % 6, np.repeat([f"c{k}" for k in range(10)], 12))


def groups_of_rows(federation):
    return np.repeat(federation.group, federation.count.sum(1))


def turned_back(federation):
    turns = groups_of_rows(federation)
    return np.stack([np.rot90(image, -turn) for image, turn in zip(federation.x, turns, strict=True)])


def as_set(images):
    return sorted(map(tuple, images.reshape(len(images), -1).tolist()))


def test_dealing_inside_rotation_groups_keeps_every_image_once():
    made = dirichlet(rotation_groups(DATA, num_groups=4), num_clients=8, alpha=0.5, min_size=1)

    assert made.num_groups == 4
    assert made.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert as_set(turned_back(made)) == as_set(DATA.x)


def test_rotation_groups_of_dealt_clients_keep_every_image_once():
    made = rotation_groups(dirichlet(DATA, num_clients=8, alpha=0.5, min_size=1), num_groups=4)

    assert as_set(turned_back(made)) == as_set(DATA.x)


def test_label_skew_is_there_inside_each_group():
    """At a tiny alpha each class of a group is one client's, but for a row that may top up the other."""
    made = dirichlet(rotation_groups(DATA, num_groups=4), num_clients=8, alpha=1e-6, min_size=1)

    for g in range(4):
        tables = []
        for row in np.flatnonzero(made.group == g):
            own = slice(made.start[row, 0], made.start[row, 0] + made.count[row].sum())
            tables.append(np.bincount(made.y[own], minlength=6))
        assert np.min(tables, axis=0).sum() <= 1


def test_dealing_alike_inside_each_group_gives_no_skew_between_groups():
    made = iid(rotation_groups(DATA, num_groups=2), num_clients=4)

    assert np.bincount(groups_of_rows(made)).tolist() == [60, 60]
