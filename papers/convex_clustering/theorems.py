"""The published conditions for recovering a partition, in alpha, on the complete graph of unit weights.

Armacki, Bajovic, Jakovetic, Kar: arXiv 2202.00718, Theorems 1 and 2. Both are sufficient and neither is needed: the flow
test is exact. Theorem 1 asks for up to twice the alpha that the flow test does.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import pdist

from plures.errors import Unsupported
from plures.solvers.partition import Partition
from plures.types import Floats


def fused_bound(partition: Partition, w: Floats) -> float:
    """(6): the largest |grad f_i - grad f_j| / n_k within a cluster, at the cluster's model."""
    _check(partition)
    gradient = partition.clients.gradient(w[partition.label])
    groups = (gradient[partition.label == k] for k in range(partition.number))
    return max((float(pdist(own).max()) / len(own) for own in groups if len(own) > 1), default=0.0)


def apart_bound(partition: Partition, w: Floats) -> float:
    """(13): the least |grad g_k - grad g_l| of two clusters' mean losses, over 2 max (N - n_k), at a common model w (dim,).

    Where two clusters meet at w, alpha is at least this much.
    """
    _check(partition)
    if partition.number < 2:
        return 0.0
    everyone = np.broadcast_to(w, (partition.clients.num, partition.clients.dim))
    gradient = partition.clients.gradient(everyone)
    means = np.stack([gradient[partition.label == k].mean(0) for k in range(partition.number)])
    least = int(np.bincount(partition.label).min())
    return float(pdist(means).min()) / (2.0 * (partition.clients.num - least))


def _check(partition: Partition) -> None:
    if not partition.graph.is_uniform or (len(partition.graph) and partition.graph.weight[0] != 1.0):
        raise Unsupported("the published theorems are for the complete graph of unit weights; use the flow test")
