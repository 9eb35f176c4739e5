"""Sweeps made by hand, for tests of what follows from them."""

import numpy as np

from plures.study.fronts import Budget
from plures.study.sweep import Setting, Sweep, find_degree
from plures.study.tradeoff import Curve, Tradeoff

NUM_CLIENTS = 30
SPREAD = np.linspace(-0.01, 0.01, NUM_CLIENTS)


def curve(said, losses, *, mb=None, kind="value", rounds=None, noise=0.0, **more):
    """A curve of one seed with these mean valid losses; test losses are the last ones."""
    losses = np.asarray(losses, float)
    wiggle = SPREAD + noise * np.where(np.arange(NUM_CLIENTS) % 2, 1, -1)
    number = float(said) if kind == "value" else None
    label = said if kind == "end" else f"ditto:lam={said}"
    valid = losses[None, :, None] + wiggle
    return Curve(
        Setting(label, said, kind, number),
        np.arange(1, len(losses) + 1) if rounds is None else np.asarray(rounds),
        np.asarray([mb if mb is not None else np.arange(1.0, len(losses) + 1)]),
        more.pop("gradients", None),
        valid,
        1 - valid,
        valid[:, -1],
        1 - valid[:, -1],
        **more,
    )


def made(*curves, mb=None, rounds=None, left_out=()):
    """A result with these curves under a budget."""
    sweep = Sweep(
        degree=find_degree("ditto"),
        settings=tuple(one.setting for one in curves),
        built={},
        federation=None,
        rounds=int(curves[0].rounds[-1]),
        seeds=(0,),
        budget=Budget(mb, rounds),
        running={},
        costs={},
        left_out=tuple(left_out),
    )
    return Tradeoff(sweep, tuple(curves), "accuracy", True)
