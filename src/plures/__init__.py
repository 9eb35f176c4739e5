"""plures: personalized federated learning.

>>> import plures
>>> federation = plures.data.load("digits", num_clients=8)
>>> model = plures.models.linear.softmax(federation.shape, federation.num_outputs)
>>> run = plures.run(plures.build("fedavg", model), federation, rounds=2)
>>> run.clients.height
8
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from plures._version import __version__

if TYPE_CHECKING:
    from plures import advise, attacks, channel, data, methods, models, personalize
    from plures.app.folder import open_study
    from plures.app.running import compare
    from plures.app.several import run_variants
    from plures.app.study import Study
    from plures.builders import build
    from plures.data import Federation
    from plures.engine import run
    from plures.method import Method, then
    from plures.registry import Limit
    from plures.study.disk.models import load_model, save_model
    from plures.study.variants import open_variants
    from plures.types import Data, Model, Plan, Weights

PACKAGES = ("advise", "attacks", "channel", "data", "methods", "models", "personalize")
HOMES = {
    "Data": "types",
    "Federation": "data",
    "Limit": "registry",
    "Method": "method",
    "Model": "types",
    "Plan": "types",
    "Weights": "types",
    "build": "builders",
    "Study": "app.study",
    "compare": "app.running",
    "open_study": "app.folder",
    "open_variants": "study.variants",
    "run_variants": "app.several",
    "load_model": "study.disk.models",
    "run": "engine",
    "save_model": "study.disk.models",
    "then": "method",
}
"""Where the names of the public face live; each is imported when it is asked for, so that a command starts at once."""

__all__ = [
    "Data",
    "Federation",
    "Limit",
    "Method",
    "Model",
    "Plan",
    "Study",
    "Weights",
    "__version__",
    "advise",
    "attacks",
    "build",
    "channel",
    "compare",
    "data",
    "load_model",
    "methods",
    "models",
    "open_study",
    "open_variants",
    "personalize",
    "run",
    "run_variants",
    "save_model",
    "then",
]


def __getattr__(name: str) -> Any:
    """A name of the public face, imported now."""
    if name in PACKAGES:
        return import_module(f"plures.{name}")
    if name in HOMES:
        return getattr(import_module(f"plures.{HOMES[name]}"), name)
    raise AttributeError(f"module 'plures' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
