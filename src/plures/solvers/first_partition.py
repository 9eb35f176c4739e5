"""A first guess of who belongs together, from the clients' gradients at the global model.

Federations are linked by Ward's rule and cut where the next merger costs much more than those before; of large ones a
random sample is, and the others go to the nearest mean (three rounds of k-means). A guess is only where the solver starts: what it ends with is proved, or said not to be.
"""

from __future__ import annotations

import jax
import numpy as np
from scipy.cluster.hierarchy import cut_tree, ward
from scipy.cluster.vq import kmeans2

from plures.solvers.graph import Ints, means_by
from plures.types import Floats

SMALL, MOST, ROUNDS = 1_500, 8, 3


def guess_partition(features: Floats) -> Ints:
    """Labels of clusters that the (N, d) features show; one cluster where they show none."""
    if len(features) < 4 or not np.ptp(features, axis=0).any():
        return np.zeros(len(features), np.int64)
    return _linked(features) if len(features) <= SMALL else _sampled(features)


def _linked(features: Floats) -> Ints:
    tree = ward(features)
    height = tree[:, 2]
    most = min(MOST, len(height))
    # Heights of the last mergers, the last one first: cut below the one that stands out most from the next.
    last = np.maximum(height[::-1][: most + 1], 1e-300)
    number = 2 + int(np.argmax(last[:-1] / last[1:]))
    return cut_tree(tree, number)[:, 0].astype(np.int64)


def _sampled(features: Floats) -> Ints:
    """Labels of a random sample, and for the rest the label whose mean is nearest."""
    drawn = np.asarray(jax.random.permutation(jax.random.key(0), len(features)))[:SMALL]
    label = _linked(features[drawn])
    return kmeans2(features, means_by(label, features[drawn]), iter=ROUNDS, minit="matrix")[1].astype(np.int64)
