"""plures: personalized federated learning.

>>> import plures
>>> federation = plures.data.load("digits", num_clients=8)
>>> model = plures.models.linear.softmax(federation.shape, federation.num_outputs)
>>> run = plures.run(plures.methods.fedavg.fedavg(model), federation, rounds=2)
>>> run.clients.height
8
"""

from __future__ import annotations

from typing import Any

from plures import channel, data, methods, models, personalize
from plures._version import __version__
from plures.engine import run
from plures.types import Method, Model, Plan, Weights, then

__all__ = [
    "Method",
    "Model",
    "Plan",
    "Weights",
    "__version__",
    "channel",
    "compare",
    "data",
    "load_model",
    "methods",
    "models",
    "personalize",
    "run",
    "save_model",
    "then",
]


def __getattr__(name: str) -> Any:
    """``compare``, ``load_model`` and ``save_model``, loaded when asked for: they need polars, which the core does without."""
    if name == "compare":
        from plures.study import compare

        return compare
    if name in ("load_model", "save_model"):
        from plures.study import store

        return getattr(store, name)
    raise AttributeError(f"module 'plures' has no attribute '{name}'")
