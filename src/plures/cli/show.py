"""What the registry says, as tables and pages for the terminal."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from plures.data import Federation
from plures.data.own.summary import Summary
from plures.registry import DATASETS, METHODS, PARTITIONERS, PERSONALIZERS, WORLDS, Entry, Registry
from plures.report.entries import Card, card_of, formula_of, line_kind, more_of, option_rows, small_digits
from plures.report.terminal import plain_table
from plures.study.fronts import counted


def methods_table() -> Table:
    """All methods and personalizers with one line each."""
    table = plain_table("Methods and personalizers (compose: fedavg|finetune)")
    for name in ("name", "kind", "what comes out", "paper"):
        table.add_column(name)
    for kind, registry in (("method", METHODS), ("personalizer", PERSONALIZERS)):
        for entry in registry.values():
            table.add_row(entry.name, kind, entry.summary, entry.paper)
    return table


def data_tables() -> list[Table]:
    """All data sets, worlds and partitioners with one line each."""
    compose = "Partitioners (compose: 'cifar10|dirichlet:alpha=0.3|rotation_groups')"
    kinds = {"Data sets": DATASETS, "Worlds": WORLDS, compose: PARTITIONERS}
    return [entries_table(title, registry) for title, registry in kinds.items()]


def columns_table(found: Summary) -> Table:
    """What every column of an own table was taken for."""
    table = plain_table(Text(f"{found.title}: {counted(found.rows, 'row')}, {counted(found.clients, 'client')}"))
    for name in ("column", "taken for", "missing", "levels"):
        table.add_column(name, justify="right" if name == "missing" else "left")
    for column in found.columns:
        missing = str(column.missing) if column.missing else ""
        table.add_row(Text(column.name), column.kind, missing, Text(_some(column.levels)) if column.levels else "")
    if found.class_names:
        table.caption = Text(f"classes: {_some(found.class_names)}")
    return table


def facts_table(federation: Federation, measured: Mapping[str, float | None]) -> Table:
    """How many clients, of what sizes, and how they differ."""
    table = plain_table(Text(f"{federation.title}: {federation.task}"))
    table.add_column("what", no_wrap=True)
    table.add_column("how much")
    facts = federation.describe()
    rows = facts["train_rows_per_client"]
    apart = 0 if federation.apart is None else int(federation.apart.sum())
    lines: list[tuple[str, str | None]] = [
        ("clients", f"{federation.num_clients}" + (f" ({apart} of them kept out of training)" if apart else "")),
        ("rows", ", ".join(f"{split} {number:,}" for split, number in facts["examples"].items())),
        ("training rows per client", f"{rows['p5']:.0f} | {rows['median']:.0f} | {rows['p95']:.0f} (5, 50, 95 %)"),
        ("inputs", " x ".join(map(str, federation.shape)) or "none"),
        ("classes", _classes(federation)),
        ("planted groups", str(facts["groups"]) if facts["groups"] else None),
        ("domains", str(facts["domains"]) if facts["domains"] else None),
    ]
    lines += [(name.replace("_", " "), None if x is None else f"{x:.3f}") for name, x in measured.items()]
    lines += [(what, _some(facts[key])) for what, key in WITHOUT.items() if facts[key]]
    for what, said in lines:
        if said is not None:
            table.add_row(what, Text(said))
    return table


WITHOUT = {"clients without valid rows": "without_valid_rows", "clients without test rows": "without_test_rows"}


def _classes(federation: Federation) -> str | None:
    if not federation.num_classes:
        return None
    return _some(federation.class_names) if federation.class_names else str(federation.num_classes)


def _some(names: Sequence[str]) -> str:
    """How many names, and the first few of them."""
    return f"{len(names)}: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"


def entries_table(title: str, registry: Registry) -> Table:
    """The entries of one registry with their options."""
    table = plain_table(title)
    for name in ("name", "what it is", "options"):
        table.add_column(name)
    for entry in registry.values():
        # Memory reuse is for whoever owns the data, not for a text.
        options = [name for name in entry.options if name != "in_place"]
        table.add_row(entry.name, entry.summary, ", ".join(options))
    return table


def method_page(entry: Entry) -> list[Any]:
    """Title, formula, options, traffic and limits of one entry."""
    options = plain_table("Options")
    options.add_column("name")
    options.add_column("default")
    for name, _, default in option_rows(entry):
        options.add_row(name, default)
    more = more_of(entry)
    blocks: list[Any] = [Prose(f"{entry.title}: {entry.summary}"), "", Prose(formula_of(entry)), "", options]
    blocks += [Prose(more), ""] if more else []
    blocks.append(_traffic(card_of(entry, small_digits())))
    if entry.degree:
        blocks.append(f"degree of collaboration: {entry.degree} (plures tradeoff sweeps it)")
    blocks += [f"limit: {limit.text} -> {limit.same_served_as}" for limit in entry.limits]
    return blocks


@dataclass(frozen=True)
class Prose:
    """A docstring for the terminal: sentences fill its width, formulas stay as they are where they fit."""

    text: str

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from map(Text, laid_out(self.text.replace("``", ""), options.max_width))


def laid_out(text: str, width: int) -> list[str]:
    """The lines of a docstring in a width; a line that is indented or has wide gaps is a formula.

    >>> laid_out("Some words\\nand more.\\n\\n    x  =  a + b", 20)
    ['Some words and more.', '', '    x  =  a + b']
    """
    found = list[str]()
    for kind, some in groupby(inspect.cleandoc(text).splitlines(), line_kind):
        lines = list(some)
        if kind == "words":
            found += textwrap.wrap(" ".join(lines), width, break_on_hyphens=False)
        else:
            found += [part for line in lines for part in _folded(line, width)]
    return found


def _folded(line: str, width: int) -> list[str]:
    """A long formula broken at its gaps, or else between words; what follows stands under its second column."""
    start = re.match(r"\s*\S+(?: \S+)*?\s{2,}", line)
    hang = start.end() if start and start.end() <= width // 2 else len(line) - len(line.lstrip()) + 4
    found = list[str]()
    while len(line) > width:
        gaps = [gap.start() for gap in re.finditer(r"\s{2,}", line) if width // 2 < gap.start() <= width]
        cut = gaps[-1] if gaps else line.rfind(" ", 0, width + 1)
        if cut <= hang:
            break
        found.append(line[:cut].rstrip())
        line = " " * hang + line[cut:].lstrip()
    return [*found, line]


def _traffic(card: Card) -> str:
    """Bytes per client in units of the model."""
    around = f", around {card.base}" if card.base else ""
    said = ", ".join(f"{name} {value:.2f}" for name, value in card.training.sizes.items())
    return f"traffic per client, in model sizes{around}: {said}"
