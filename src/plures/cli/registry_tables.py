"""What the registry says, as tables and pages for the terminal."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from plures.errors import UnknownChoice
from plures.report.terminal import WHOLE, plain_table
from plures.wording import counted

if TYPE_CHECKING:
    from plures.data import Federation
    from plures.data.tables import TableSummary
    from plures.registry import Entry, Registry


def methods_table() -> Table:
    """All methods and personalizers with one line each."""
    from plures.registry import METHODS, PERSONALIZERS

    rows = [
        (entry.name, kind, entry.summary, entry.paper)
        for kind, registry in (("method", METHODS), ("personalizer", PERSONALIZERS))
        for entry in registry.values()
    ]
    heads = ("name", "kind", "what comes out", "paper")
    return plain_table("Methods and personalizers (compose: fedavg|finetune)", heads, rows)


def data_pages(name: str) -> list[Any]:
    """All that a name of data stands for: a data set, a world, a partitioner."""
    from plures.registry import DATASETS, PARTITIONERS, WORLDS

    registries = (DATASETS, WORLDS, PARTITIONERS)
    found = [registry[name] for registry in registries if name in registry]
    if not found:
        raise UnknownChoice("data set, world or partitioner", name, [one for some in registries for one in some])
    return [block for entry in found for block in entry_page(entry)]


def data_tables() -> list[Table]:
    """All data sets, worlds and partitioners with one line each."""
    from plures.registry import DATASETS, PARTITIONERS, WORLDS

    compose = "Partitioners (compose: 'cifar10|dirichlet:alpha=0.3|rotation_groups')"
    kinds = {"Data sets": DATASETS, "Worlds": WORLDS, compose: PARTITIONERS}
    return [entries_table(title, registry) for title, registry in kinds.items()]


def columns_table(found: TableSummary) -> Table:
    """What every column of an own table was taken for."""
    rows = [
        (Text(one.name), one.kind, str(one.missing or ""), Text(_some(one.levels)) if one.levels else "")
        for one in found.columns
    ]
    title = Text(f"{found.title}: {counted(found.rows, 'row')}, {counted(found.clients, 'client')}")
    table = plain_table(title, {"column": {}, "taken for": {}, "missing": {"justify": "right"}, "levels": {}}, rows)
    if found.class_names:
        table.caption = Text(f"classes: {_some(found.class_names)}")
    return table


def facts_table(federation: Federation, measured: Mapping[str, float | None]) -> Table:
    """How many clients, of what sizes, and how they differ."""
    facts = federation.describe()
    rows = facts["train_rows_per_client"]
    held_out = 0 if federation.held_out is None else int(federation.held_out.sum())
    kept = f" ({held_out} of them kept out of training)" if held_out else ""
    lines: list[tuple[str, str | None]] = [
        ("clients", f"{federation.num_clients}{kept}"),
        ("rows", ", ".join(f"{split} {number:,}" for split, number in facts["examples"].items())),
        ("training rows per client", f"{rows['p5']:.0f} | {rows['median']:.0f} | {rows['p95']:.0f} (5, 50, 95 %)"),
        ("inputs", " x ".join(map(str, federation.shape)) or "none"),
        ("classes", _classes(federation)),
        ("planted groups", str(facts["groups"]) if facts["groups"] else None),
        ("domains", str(facts["domains"]) if facts["domains"] else None),
    ]
    lines += [(name.replace("_", " "), None if x is None else f"{x:.3f}") for name, x in measured.items()]
    lines += [(what, _some(facts[key])) for what, key in WITHOUT.items() if facts[key]]
    known = ((what, Text(said)) for what, said in lines if said is not None)
    return plain_table(Text(f"{federation.title}: {federation.task}"), {"what": WHOLE, "how much": {}}, known)


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
    from plures.report.options import NOT_TYPED

    rows = [
        (entry.name, entry.summary, ", ".join(name for name in entry.options if name not in NOT_TYPED))
        for entry in registry.values()
    ]
    return plain_table(title, ("name", "what it is", "options"), rows)


def entry_page(entry: Entry) -> list[Any]:
    """Title, what it is, paper and options of one entry."""
    from plures.report.options import more_of

    more = more_of(entry)
    blocks: list[Any] = [Prose(f"{entry.title}: {entry.summary}"), ""]
    blocks += [Prose(more), ""] if more else []
    blocks += [f"paper: {entry.paper}", ""] if entry.paper else []
    return [*blocks, options_table(entry)]


def options_table(entry: Entry) -> Table | str:
    """The options of an entry: type, default, and what each means."""
    from plures.report.options import option_rows

    rows = option_rows(entry)
    if not rows:
        return "It has no options."
    cells = ((one.name, one.kind, Text(one.default), Text(one.sentence.replace("``", ""))) for one in rows)
    return plain_table("Options", {"name": {}, "type": {}, "default": {}, "meaning": {"ratio": 1}}, cells)


def method_page(entry: Entry) -> list[Any]:
    """Title, formula, options, traffic and limits of one entry."""
    from plures.report.options import formula_of, more_of

    more = more_of(entry)
    blocks: list[Any] = [Prose(f"{entry.title}: {entry.summary}"), "", Prose(formula_of(entry)), ""]
    blocks += [options_table(entry), *([Prose(more), ""] if more else [])]
    blocks.append(_traffic(entry))
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
    from plures.report.options import line_kind

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


def _traffic(entry: Entry) -> str:
    """Bytes per client in units of the model."""
    from plures.report.entries import build_entry, small_digits

    built = build_entry(entry, small_digits())
    around = f", around {built.base}" if built.base else ""
    training = next(phase for phase in built.runner.phases if phase.main)
    said = ", ".join(f"{name} {value:.2f}" for name, value in built.sizes(training.method).items())
    return f"traffic per client, in model sizes{around}: {said}"
