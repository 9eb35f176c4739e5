"""What the registry says, as tables and pages for the terminal."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import jax
from rich.table import Table

from plures.data import worlds
from plures.engine import Settings, prepare
from plures.registry import DATASETS, METHODS, PERSONALIZERS, WORLDS, Entry, Registry
from plures.report.terminal import plain_table
from plures.types import Plan


def methods_table() -> Table:
    """All methods and personalizers with one line each."""
    table = plain_table("Methods and personalizers (compose: fedavg|finetune)")
    for name in ("name", "kind", "what comes out", "paper"):
        table.add_column(name)
    for kind, registry in (("method", METHODS), ("personalizer", PERSONALIZERS)):
        for entry in registry.values():
            table.add_row(entry.name, kind, entry.summary, entry.paper)
    return table


def data_table() -> Table:
    """All data sets and worlds with one line each."""
    table = plain_table("Data sets and worlds")
    for name in ("name", "kind", "what it is", "options"):
        table.add_column(name)
    for kind, registry in (("data set", DATASETS), ("world", WORLDS)):
        for entry in registry.values():
            table.add_row(entry.name, kind, entry.summary, ", ".join(entry.options))
    return table


def entries_table(title: str, registry: Registry) -> Table:
    """The entries of one registry with their options."""
    table = plain_table(title)
    for name in ("name", "what it is", "options"):
        table.add_column(name)
    for entry in registry.values():
        table.add_row(entry.name, entry.summary, ", ".join(entry.options))
    return table


def method_page(entry: Entry) -> list[Any]:
    """Title, formula, options, traffic and limits of one entry."""
    module = sys.modules[entry.factory.__module__]
    options = plain_table("Options")
    options.add_column("name")
    options.add_column("default")
    for name, parameter in entry.options.items():
        needed = parameter.default is inspect.Parameter.empty
        options.add_row(name, "(from the data)" if needed else _said(parameter.default))
    blocks: list[Any] = [f"{entry.title}: {entry.summary}", "", (module.__doc__ or "").strip(), "", options]
    if entry.name in METHODS:
        blocks.append(_traffic(entry))
    blocks += [f"limit: {limit.text} -> {limit.same_served_as}" for limit in entry.limits]
    return blocks


def _traffic(entry: Entry) -> str:
    """Bytes per client in units of the model, measured on a small world."""
    world = worlds.linear_clusters(num_clients=4, num_groups=2)
    options = {name: value for name, value in world.federation.facts.items() if name in entry.options}
    method = entry.factory(world.model, plan=Plan(), **options)
    found = prepare(method, world.federation, settings=Settings(rounds=1)).traffic(method)
    size = sum(leaf.size * 4 for leaf in jax.tree.leaves(jax.eval_shape(world.model.init, jax.random.key(0))))
    parts = {
        "join": found.join,
        "down": found.down,
        "up": found.up,
        "answer": found.answer,
        "serve": found.serve,
    }
    said = ", ".join(f"{name} {value / size:.2f}" for name, value in parts.items())
    return f"traffic per client, in model sizes: {said}"


def _said(value: Any) -> str:
    if isinstance(value, Plan):
        return f"epochs {value.epochs}, batch {value.batch}, lr {value.lr}, {value.optimizer.__name__}"
    return str(value)
