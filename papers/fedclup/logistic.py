"""FedCLUP's exact solutions for logistic regression with drawn labels, along the whole path of strengths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from papers.fedclup.exact import Ends, Point, clients_of, curve, harmonic, plugged, spread_of
from papers.fedclup.theory import Draw, expected_error, logistic_hessians
from plures.solvers.penalized import Penalized

Floats = NDArray[np.float64]
LOSS = "logistic"


def logistic_path(draw: Draw, radius: float, lams: Floats) -> tuple[list[Point], Ends]:
    """Errors at all ``lams``, at both ends, and at the strengths of the plug-in and the oracle rule."""
    rows = draw.x.shape[2]
    wanted = np.concatenate([lams, [0.0, np.inf]])
    drawn = zip(draw.x, draw.y, strict=True)
    own = np.stack([Penalized(clients_of(x, y, LOSS)).solve(wanted).own for x, y in drawn], axis=1)
    errors = draw.error(own)  # (strengths, repeats)
    truth = logistic_hessians(draw)
    theory = [float(expected_error(truth, draw.truth, 1 / rows, lam).mean()) for lam in lams]
    rule = plugged(draw, LOSS)
    values = np.asarray(np.linalg.eigvalsh(truth), float)
    noise = (1 / values).sum(-1).mean(-1) / rows
    oracle = harmonic(values) * noise / spread_of(draw.truth)
    by_rule, by_oracle = (draw.error(at_own(draw, one)).mean() for one in (rule, oracle))
    best = int(errors[:-2].mean(1).argmin())
    chosen = (float(lams[best]), float(errors[best].mean()))
    rules = (float(np.median(rule)), float(by_rule), float(np.median(oracle)), float(by_oracle))
    ends = Ends("logistic", radius, float(errors[-2].mean()), float(errors[-1].mean()), *chosen, *rules)
    return curve("logistic", radius, lams, errors[:-2], theory), ends


def at_own(draw: Draw, lams: Floats) -> Floats:
    """(repeats, clients, dim) models with a strength of its own for each repeat."""
    return np.stack(
        [
            Penalized(clients_of(x, y, LOSS)).solve([lam]).own[0]
            for x, y, lam in zip(draw.x, draw.y, lams, strict=True)
        ]
    )
