"""A first guess of who belongs together, from the clients' gradients at the global model.

Small federations are linked by Ward's rule and cut where the next merger costs much more than those before. Large ones
are clustered by k-means for a few numbers of clusters, and the number is taken by the Calinski-Harabasz score.
A guess is only where the solver starts: what it ends with is proved, or said not to be.
"""

from __future__ import annotations

import numpy as np
from scipy.cluster.hierarchy import ward
from sklearn.cluster import KMeans
from sklearn.metrics import calinski_harabasz_score

from plures.solvers.graph import Ints
from plures.solvers.links import Floats

SMALL, SAMPLE, MOST = 1_500, 3_000, 8


def guessed(features: Floats) -> Ints:
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
    return _cut(tree, len(features) - number)


def _cut(tree: Floats, mergers: int) -> Ints:
    """Labels after the first so many mergers."""
    num = len(tree) + 1
    above = np.arange(num + mergers)
    for place, (one, other) in enumerate(tree[:mergers, :2].astype(int)):
        above[one] = above[other] = num + place
    for node in range(num + mergers - 1, -1, -1):
        above[node] = above[above[node]]
    return np.unique(above[:num], return_inverse=True)[1].astype(np.int64)


def _sampled(features: Floats) -> Ints:
    """k-means on a sample, spread evenly over the clients as they are stored; the rest goes to the nearest center."""
    sample = features[:: max(1, len(features) // SAMPLE)]
    best, means = -np.inf, None
    for number in range(2, MOST + 1):
        found = KMeans(number, n_init=2, random_state=0).fit(sample)
        score = calinski_harabasz_score(sample, found.labels_)
        if score > best:
            best, means = score, found
    assert means is not None
    label: Ints = means.predict(features).astype(np.int64)
    return label
