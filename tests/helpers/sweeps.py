"""Sweeps made by hand, for tests of what follows from them."""

import numpy as np

from plures.advise.tradeoff import Tradeoff, ValueCurve
from plures.study.fronts import Budget
from plures.study.sweep import Sweep, SweptValue, find_swept_option

NUM_CLIENTS = 30


def curve(said, losses, *, mb=None, kind="value", rounds=None, noise=0.0, num_clients=NUM_CLIENTS, **more):
    """A curve of one seed with these mean valid losses; test losses are the last ones."""
    losses = np.asarray(losses, float)
    spread = np.linspace(-0.01, 0.01, num_clients) if num_clients > 1 else np.zeros(1)
    wiggle = spread + noise * np.where(np.arange(num_clients) % 2, 1, -1)
    number = float(said) if kind == "value" else None
    label = said if kind == "end" else f"ditto:lam={said}"
    valid = losses[None, :, None] + wiggle
    return ValueCurve(
        SweptValue(label, said, kind, number),
        np.arange(1, len(losses) + 1) if rounds is None else np.asarray(rounds),
        np.asarray([mb if mb is not None else np.arange(1.0, len(losses) + 1)]),
        more.pop("gradients", None),
        valid,
        1 - valid,
        valid[:, -1],
        1 - valid[:, -1],
        **more,
    )


def made(*curves, mb=None, rounds=None, left_out=(), asked=""):
    """A result with these curves under a budget."""
    sweep = Sweep(
        degree=find_swept_option("ditto"),
        settings=tuple(one.setting for one in curves),
        built={},
        federation=None,
        rounds=int(curves[0].rounds[-1]),
        seeds=(0,),
        budget=Budget(mb, rounds),
        running={},
        costs={},
        left_out=tuple(left_out),
        asked=asked,
    )
    return Tradeoff(sweep, tuple(curves), "accuracy", True)
