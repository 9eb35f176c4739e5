"""The envelope of a penalized loss, the steps that its curvature allows, and the strength lam from statistics.

Plain formulas, for the exact solvers (numpy) and for the methods (jax) alike.

    F_i(w)  =  min_u  L_i(u) + (lam / 2) |w - u|^2

For losses whose curvature lies in [mu, L] that of F_i lies in [mu_g, L_g], with mu_g = lam mu / (lam + mu) and
L_g = lam L / (lam + L). The server's step 1 / L_g = 1 / lam + 1 / L, the client's 1 / (L + lam).

The number K of a client's steps follows from how two errors feed each other, e_t = |w_g - w_g*| and delta_t, the
worst distance of a personal model from its best:

    e'      <=  (1 - gamma mu_g) e      +  gamma lam delta
    delta'  <=  q^K c gamma L_g e       +  q^K (1 + c gamma lam) delta

with q = 1 - (mu + lam) / (L + lam) and c = lam / (lam + mu). K is the least number for which both shrink by the
factor 1 - gamma mu_g / 2 in every round: for a matrix of positive numbers this is an inequality in q^K, which has a
closed form.

Yu, He, Sun, Xue, Li: arXiv 2410.08934 has the algorithm; the rule for K is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Bounds(NamedTuple):
    """The least and the largest curvature: mu and L of losses, mu_g and L_g of their envelopes."""

    least: Any
    most: Any

    @property
    def condition(self) -> Any:
        """The largest curvature over the least."""
        return self.most / self.least


def envelope(loss: Bounds, lam: Any) -> Bounds:
    """mu_g and L_g.

    >>> envelope(Bounds(1.0, 3.0), 3.0)
    Bounds(least=0.75, most=1.5)
    """
    return Bounds(*(lam * one / (lam + one) for one in loss))


def server_step(loss: Bounds, lam: Any) -> Any:
    """gamma = 1 / lam + 1 / L, which is 1 / L_g: the averaging gamma lam = 1, and a bit more where lam is large."""
    return 1.0 / lam + 1.0 / loss.most


def client_step(loss: Bounds, lam: Any) -> Any:
    """alpha = 1 / (L + lam)."""
    return 1.0 / (loss.most + lam)


def num_inner(loss: Bounds, lam: Any, gamma: Any = None, *, xp: Any = np) -> Any:
    """K: the least number of client steps with which rounds lose no more than half of their rate.

    For a server step ``gamma`` up to 2 / (mu_g + L_g); the default is ``server_step``. ``xp`` is numpy or jax.numpy.

    >>> [int(num_inner(Bounds(0.608, 11.86), lam)) for lam in (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)]
    [14, 16, 14, 6, 3, 2]
    """
    mean = envelope(loss, lam)
    gamma = server_step(loss, lam) if gamma is None else gamma
    half, pace, reach = 0.5 * gamma * mean.least, gamma * lam, lam / (lam + loss.least)
    room = half * (1 - half) / (half * (1 + reach * pace) + reach * pace * gamma * mean.most)
    shrink = (loss.most - loss.least) / (loss.most + lam)  # q, without the cancellation
    # A shrink of 0 is solved in one step; a room of 1 or more would need none.
    number = xp.log(xp.clip(room, 1e-30, 1.0)) / xp.log(xp.clip(shrink, 1e-30, 1.0 - 1e-7))
    return xp.maximum(xp.ceil(number), 1.0)


def shrink_factor(ratio: Any, freedom: Any, gammainc: Callable[[Any, Any], Any], *, xp: Any = np) -> Any:
    """The posterior mean of B = s / (s + R2), given the ``ratio`` S2 / s of spread and noise, and its ``freedom`` f.

    S2 / (s + R2) is a chi-square over f. With the prior 2 / (1 + R2 / s)^3 of R2 / s, whose mean is 1, B is the
    mean of a Gamma distribution of shape f / 2 + 2 and rate f S2 / (2 s), cut off at 1. ``gammainc`` is the
    regularized lower incomplete gamma function of numpy's or of jax's world.

    >>> from scipy.special import gammainc
    >>> [round(float(shrink_factor(ratio, 1000.0, gammainc)), 3) for ratio in (0.5, 1.0, 2.0, 4.0)]
    [0.996, 0.966, 0.502, 0.251]
    """
    shape, rate = 0.5 * freedom + 2.0, 0.5 * freedom * ratio
    below, least = gammainc(shape, rate), 1e-290 if xp is np else 1e-30
    # Where nearly all of the Gamma distribution lies above 1, its density there is steep.
    steep = 1.0 - 1.0 / xp.maximum(shape - 1.0 - rate, 1.0 + 1e-6)
    mean = shape / xp.maximum(rate, 1e-30) * gammainc(shape + 1.0, rate) / xp.maximum(below, least)
    return xp.where(below < least, steep, mean)
