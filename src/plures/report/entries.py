"""Registered methods and personalizers, built for a small federation to see what they send.

Nothing here knows an entry by name. Whoever shows entries, in the terminal or on a page, reads it from here.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

import jax

from plures.builders import build_model
from plures.data import Federation, load
from plures.engine import Runner, Settings, prepare
from plures.engine.phases import least_rounds
from plures.method import Method
from plures.registry import METHODS, PERSONALIZERS, Entry
from plures.report.options import needed
from plures.types import Plan


class BuiltEntry(NamedTuple):
    """An entry built for a federation and the model of that text, around ``base`` if it is a personalizer; it never runs."""

    base: str
    model: str
    runner: Runner

    def sizes(self, method: Method) -> dict[str, float]:
        """The bytes of each message of one of its phases in units of the model."""
        shapes = jax.tree.leaves(jax.eval_shape(self.runner.method.model.init, jax.random.key(0)))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in shapes)
        return {name: value / size for name, value in asdict(self.runner.traffic(method)).items()}


def small_digits() -> Federation:
    """The clients for which entries are built."""
    return load("digits", num_clients=8)


def build_entry(entry: Entry, federation: Federation) -> BuiltEntry:
    """An entry with the options that a federation tells it; what it does not tell, and must be told, is 1."""
    text, base = "mlp_norm" if "norm" in entry.tags else "mlp:hidden=64", base_of(entry)
    model = build_model(text, federation)
    inner = METHODS[base].factory(model, **_fill_options(METHODS[base], federation)) if base else model
    method: Method = entry.factory(inner, **_fill_options(entry, federation))
    return BuiltEntry(base, text, prepare(method, federation, settings=Settings(rounds=least_rounds(method))))


def base_of(entry: Entry) -> str:
    """The method that a personalizer is shown around; nothing for a method."""
    return (entry.base or "fedavg") if entry.name in PERSONALIZERS and PERSONALIZERS[entry.name] is entry else ""


def _fill_options(entry: Entry, federation: Federation) -> dict[str, Any]:
    known = {"plan": Plan(), **federation.facts}
    given = {name: value for name, value in known.items() if name in entry.options}
    return {**dict.fromkeys(needed(entry), 1), **given}
