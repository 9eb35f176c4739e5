"""Heavy tails: values far from the mean are drawn in by a logarithm, so that no single row decides a gradient.

    tame(z) = z                                            for |z| <= knee
              sign(z) (knee + log(1 + |z| - knee))         beyond

Increasing, smooth to the first derivative, and so invertible: no two values become one. z is standardized by the training
rows of seen clients; beyond that nothing is learned.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plures.errors import UnknownChoice
from plures.wording import counted

TAILS = ("tame", "keep")
KNEE = 5.0


def tame(z: NDArray[Any], knee: float) -> NDArray[Any]:
    """Standardized values with their tails drawn in; NaN stays NaN.

    >>> tame(np.array([-1.0, 4.0, 4.0 + np.e - 1, -20.0]), 4.0).round(3)
    array([-1.   ,  4.   ,  5.   , -6.833])
    """
    if knee == np.inf:
        return z
    beyond = np.maximum(np.abs(z) - knee, 0.0)
    return np.where(beyond > 0, np.sign(z) * (knee + np.log1p(beyond)), z)


def knee_of(tails: str) -> float:
    """From where on values are drawn in: 5 deviations for "tame", nowhere for "keep"."""
    if tails not in TAILS:
        raise UnknownChoice("way with tails", tails, TAILS)
    return KNEE if tails == "tame" else np.inf


def tamed_note(what: str, z: NDArray[Any], knee: float) -> tuple[str, ...]:
    """A note on how many standardized training values were drawn in, and how far the farthest lay; nothing for none."""
    far = np.abs(z)
    number = int((far > knee).sum())
    if not number:
        return ()
    values = counted(number, "training value")
    return (
        f"{what}: {values} beyond {knee:g} deviations, the farthest at {np.nanmax(far):.3g}, drawn in by a logarithm "
        "(tails=keep leaves them)",
    )
