"""Inputs that every client normalizes by its own rows, as far as these tell how it differs.

A mean or a scale of few rows is mostly chance. So both are shrunk to the common ones by how much clients vary beyond it
(empirical Bayes): where inputs do not differ, little is changed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plures.advise.fold_sums import FoldedRows, Ints
from plures.types import Floats

NORMALIZATIONS = ("centered", "scaled", "by column")
TRACY_WIDOM = 0.98
"""The 95 % point of how the largest eigenvalue of noise is distributed."""


def normalize_inputs(rows: FoldedRows, some: NDArray[np.bool_], kind: str) -> Floats:
    """(n, D) inputs that each client centers, and scales in all or by column, with the statistics of ``some`` rows."""
    x, owner = rows.x[:, :-1], rows.owner
    count = np.bincount(owner[some], minlength=rows.num).astype(float)
    mean = _sums_by(owner[some], x[some], rows.num) / np.maximum(count, 1)[:, None]
    off = x[some] - mean[owner[some]]
    spare = max(np.maximum(count - 1, 0).sum(), 1)
    within = _sums_by(owner[some], np.square(off), rows.num)
    scales = _scales(within, count, within.sum(0) / spare, kind)
    if kind == "by column":
        center = _column_centers(mean, count, np.square(scales) * within.sum(0) / spare)
    else:
        center = _centers(mean, off.T @ off / spare, count)
    moved = x - center[owner]
    moved = moved if kind == "centered" else moved / scales[owner]
    return np.concatenate([moved, np.ones((len(x), 1))], axis=1)


def _sums_by(owner: Ints, values: Floats, num: int) -> Floats:
    """(N, D) sums over the rows of every client; rows come client by client."""
    found = np.zeros((num, values.shape[1]))
    present, first = np.unique(owner, return_index=True)
    if len(present):
        found[present] = np.add.reduceat(values, first, axis=0)
    return found


def _centers(mean: Floats, noise: Floats, count: Floats) -> Floats:
    """(N, D) means of clients as far as they can be told from the common one; ``noise`` is the covariance of rows.

    Where rows are white, means scatter by 1 / n_i in every direction if clients do not differ. Directions with more
    scatter than chance gives to any are kept, with the spread that explains it (Baik, Silverstein 2006); along these
    a mean is shrunk by its client's noise against the spread.
    """
    some = count > 0
    common = (count[:, None] * mean).sum(0) / max(count.sum(), 1)
    values, vectors = np.linalg.eigh(noise)
    root = np.sqrt(np.maximum(values, 1e-3 * max(float(values[-1]), 1e-300)))
    white = (mean - common) @ vectors / root
    freedom = max(int(some.sum()) - 1, 1)
    sizes, axes = np.linalg.eigh((count[:, None] * white).T @ white / freedom)
    spread = _beyond_chance(sizes, freedom) / max(count.sum() / max(some.sum(), 1), 1e-12)
    weight = spread / np.maximum(spread + 1.0 / np.maximum(count, 1e-12)[:, None], 1e-300)
    return np.asarray(common + (white @ axes * weight) @ axes.T * root @ vectors.T)


def _column_centers(mean: Floats, count: Floats, noise: Floats) -> Floats:
    """(N, D) the same, each column by itself, for clients whose rows have variances ``noise`` (N, D) of their own."""
    some = count > 0
    error = noise / np.maximum(count, 1e-12)[:, None]
    common = (count[:, None] * mean).sum(0) / max(count.sum(), 1)
    spread = (np.square(mean - common) - error)[some].sum(0) / max(some.sum() - 1, 1)
    weight = np.maximum(spread, 0.0) / np.maximum(np.maximum(spread, 0.0) + error, 1e-300)
    return np.asarray(common + weight * (mean - common))


def _beyond_chance(sizes: Floats, freedom: int) -> Floats:
    """The part of a covariance's eigenvalues that chance does not explain, where it alone makes them 1 on average.

    Those below the 95 % point of the largest by chance (Johnstone 2001) count as 0. A spread t has the eigenvalue
    (1 + t) (1 + g / t), g = columns / freedom.
    """
    some, more = np.sqrt(max(freedom - 1, 1)), np.sqrt(len(sizes))
    edge = ((some + more) ** 2 + TRACY_WIDOM * (some + more) * np.cbrt(1.0 / some + 1.0 / more)) / freedom
    share = len(sizes) / freedom
    above = sizes > max(edge, (1.0 + np.sqrt(share)) ** 2)
    middle = np.where(above, sizes + 1.0 - share, 2.0)
    turned = np.sqrt(np.maximum(np.square(middle) - 4.0 * np.where(above, sizes, 1.0), 0.0))
    return np.where(above, np.maximum(0.5 * (middle + turned) - 1.0, 0.0), 0.0)


def _scales(within: Floats, count: Floats, noise: Floats, kind: str) -> Floats:
    """(N, D) scales of clients, in units of the common one: one for all columns, or by column and shrunk to that one."""
    varies = noise > 1e-9 * max(float(noise.max(initial=0.0)), 1e-300)
    ratio = np.where(varies, within / np.where(varies, noise, 1.0), 0.0)  # (N, D) sums of squares over common ones
    spare = np.maximum(count - 1, 0)
    one = np.ones(len(count))
    known = (spare > 0) & (ratio.sum(1) > 0)
    one[known] = np.sqrt(ratio[known][:, varies].mean(1) / spare[known])
    one[known] = np.exp(_shrunk(np.log(one[known]), 0.5 / spare[known]))
    found = np.repeat(one[:, None], within.shape[1], axis=1)
    if kind == "by column" and varies.any():
        variance = ratio / np.maximum(spare, 1)[:, None] / np.square(found)  # about 1, but for chance
        some = (variance > 0) & (spare > 1)[:, None]
        beyond = (
            np.log(variance[some]).var() - (2.0 / np.maximum(spare, 1))[:, None].repeat(len(noise), 1)[some].mean()
        )
        prior = np.clip(2.0 / max(float(beyond), 1e-12), 1.0, 1e6) if some.any() else 1e6
        found = np.where(
            varies, found * np.sqrt((spare[:, None] * variance + prior) / (spare[:, None] + prior)), found
        )
    return found


def _shrunk(values: Floats, chance: Floats) -> Floats:
    """The values, moved to their mean as far as chance, of these variances, explains how they scatter."""
    if len(values) < 2:
        return values
    spread = max(float(values.var(ddof=1) - chance.mean()), 0.0)
    return np.asarray(values.mean() + spread / np.maximum(spread + chance, 1e-300) * (values - values.mean()))
