"""Tables and rows from the cells that were played on MNIST: nothing is trained here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from papers.common.reproduce import Row, at_most
from papers.robust_clustering.mnist import ALONE, ATTACKS, KINDS, Cell

PERSONAL = (
    "Federated-Clustering, mean",
    "Federated-Clustering, robust",
    "Momentum-Clustering, mean",
    "Momentum-Clustering, robust",
    "Momentum-Clustering, K = 5",
    "HypCluster, mean",
    "HypCluster, robust",
    "Ditto, mean",
    "Ditto, robust",
)
HELD = ("large_noise", "sign_flip", "ipm", "alie")
MOST = 1.0  # points that the best personalized method may lose to an attack
# The last accuracies in Figure 6 of the paper: 250 clients, 1,000 steps, and a loss that learns slowly.
FIGURE = {
    ("Federated-Clustering", "large_noise"): 55.0,
    ("Federated-Clustering", "sign_flip"): 55.0,
    ("FedAvg", "large_noise"): 10.0,
    ("FedAvg", "sign_flip"): 24.0,
}
FIRST = {"method": pl.String, "attack": pl.String, "seeds": pl.Int64}
NUMBERS = ("accuracy", "loss", "worst_decile", "worst_loss", "recovery", "megabytes")

Seeds: TypeAlias = Mapping[int, Cell]


def write_tables(cells: Sequence[Cell], out: Path, *, rounds: int, held: bool) -> list[Row]:
    """The rows of all parts that were played, ``held`` to bars; their tables are written.

    ``rounds`` is how long the runs of the part "attackers" are.
    """
    kinds = [cell for cell in cells if cell.part in KINDS]
    attackers = [cell for cell in cells if cell.part == "attackers"]
    table = [cell for cell in cells if cell.part == "table"]
    rows: list[Row] = []
    if kinds:
        group_table(kinds).write_csv(out / "groups.csv")
        rows += [row for kind in KINDS for row in group_rows([cell for cell in kinds if cell.part == kind])]
    if attackers:
        attacker_table(attackers, rounds).write_csv(out / "attackers.csv")
        rows += attacker_rows(attackers)
    if table:
        attack_table(table).write_csv(out / "attacks.csv")
        rows += attack_rows(table, held=held)
    return rows


def by_name(cells: Iterable[Cell]) -> dict[tuple[str, str], dict[int, Cell]]:
    """The cells of one part by method and attack, and there by seed."""
    found: dict[tuple[str, str], dict[int, Cell]] = {}
    for cell in cells:
        found.setdefault((cell.method, cell.attack), {})[cell.seed] = cell
    return found


def attack_table(cells: Sequence[Cell]) -> pl.DataFrame:
    """A line per method and attack: means over seeds, and what is lost against the run without attackers.

    Losses are over the seeds that both have. Who trains alone uploads nothing: its line without attackers is the only one.
    """
    named = by_name(cells)
    lines = [
        _line(method, attack, named[method, attack], named.get((method, "none"), {}))
        for method in sorted({method for method, _ in named}, key=_place)
        for attack in ATTACKS
        if (method, attack) in named and (method != ALONE or attack == "none")
    ]
    return _table(lines)


def _place(method: str) -> tuple[int, bool, str]:
    """Personalized methods first, then known groups, training alone, and one model for all; plain means first."""
    robust = not method.endswith(", mean")
    if method in PERSONAL:
        return PERSONAL.index(method), robust, method
    rest = ("known groups", ALONE, "FedAvg")
    where = next((place for place, name in enumerate(rest) if method.startswith(name)), len(rest))
    return len(PERSONAL) + where, robust, method


def _line(method: str, attack: str, cells: Seeds, free: Seeds) -> dict[str, Any]:
    values = list(cells.values())
    return {
        "method": method,
        "attack": attack,
        "seeds": len(values),
        "accuracy": 100 * np.mean([cell.mean for cell in values]),
        "loss": lost(cells, free),
        "worst_decile": 100 * np.mean([cell.worst_decile for cell in values]),
        "worst_loss": lost(cells, free, "worst_decile"),
        "recovery": _mean_or_none([cell.recovery for cell in values]),
        "megabytes": np.mean([cell.megabytes for cell in values]),
    }


def _table(lines: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(lines, schema={**FIRST, **dict.fromkeys(NUMBERS, pl.Float64)})


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def lost(cells: Seeds, free: Seeds, what: str = "mean") -> float | None:
    """Points below the run without attackers, over the seeds that both have; nothing if they have none."""
    both = sorted(set(cells) & set(free))
    if not both:
        return None
    return 100 * float(np.mean([getattr(free[seed], what) - getattr(cells[seed], what) for seed in both]))


def attack_rows(cells: Sequence[Cell], *, held: bool) -> list[Row]:
    """The best personalized method under each of four attacks, and the one that loses least to its worst of them.

    Methods with fewer seeds than others have under an attack do not compete: means over other seeds do not compare.
    """
    named = by_name(cells)
    attacks = [attack for attack in HELD if held or _competing(named, attack)]
    rows = [_best_row(named, attack, held) for attack in attacks]
    return [*rows, _overall_row(named, attacks, held)] if attacks else rows


def _competing(named: Mapping[tuple[str, str], Seeds], attack: str) -> list[str]:
    """The personalized methods with the most seeds, with and without the attack."""
    pairs = {
        method: len(set(named.get((method, attack), {})) & set(named.get((method, "none"), {})))
        for method in PERSONAL
    }
    most = max(pairs.values())
    return [method for method, number in pairs.items() if number == most > 0]


def _best_row(named: Mapping[tuple[str, str], Seeds], attack: str, held: bool) -> Row:
    what, value = f"points lost to {attack} by the best personalized method", float("nan")
    competing = _competing(named, attack)
    if competing:
        best = max(competing, key=lambda method: _mean(named[method, attack]))
        cells, free = named[best, attack], named[best, "none"]
        value = lost(cells, free) or 0.0
        both = f"{_mean(cells):.1f} % against {_mean(free):.1f} % without attackers, seeds: {len(cells)}"
        what += f", {best}: {both}"
    return _row(f"attack-{attack.replace('_', '-')}", what, value, held)


def _overall_row(named: Mapping[tuple[str, str], Seeds], attacks: Sequence[str], held: bool) -> Row:
    what = f"points lost to the worst of {', '.join(attacks)} by the single best personalized method"
    losses = {}
    for method in set.intersection(*(set(_competing(named, attack)) for attack in attacks)):
        free = named[method, "none"]
        losses[method] = max((lost(named[method, attack], free) or 0.0, attack) for attack in attacks)
    if not losses:
        return _row("attack-all", what, float("nan"), held)
    best = min(losses, key=lambda method: losses[method])
    value, attack = losses[best]
    return _row("attack-all", f"{what}, {best} under {attack}", value, held)


def _row(name: str, what: str, value: float, held: bool) -> Row:
    return at_most(name, what, value, MOST) if held else Row(name, what, value)


def _mean(cells: Seeds) -> float:
    return 100 * float(np.mean([cell.mean for cell in cells.values()]))


def group_table(cells: Sequence[Cell]) -> pl.DataFrame:
    """A line per kind of groups and method, without attackers."""
    lines = []
    for kind in KINDS:
        for (method, attack), seeds in by_name(cell for cell in cells if cell.part == kind).items():
            lines.append({"groups": kind, **_line(method, attack, seeds, {})})
    schema = {"groups": pl.String, **FIRST, **dict.fromkeys(NUMBERS, pl.Float64)}
    return pl.DataFrame(lines, schema=schema).drop("attack", "loss", "worst_loss")


def group_rows(cells: Sequence[Cell]) -> list[Row]:
    """A row per method, without a bar."""
    rows = []
    for (method, _), seeds in by_name(cells).items():
        one = next(iter(seeds.values()))
        found = _mean_or_none([cell.recovery for cell in seeds.values()])
        clusters = "" if found is None else f", adjusted Rand index {found:.2f}"
        what = f"accuracy in %, MNIST, {one.part}, {method}: seeds: {len(seeds)}{clusters}"
        rows.append(Row(slug(f"{one.part} {method}"), what, _mean(seeds)))
    return rows


def attacker_table(cells: Sequence[Cell], rounds: int) -> pl.DataFrame:
    """A line per method, attack and point in time, in equal steps: mean and range over seeds, on valid rows."""
    lines = []
    for (method, attack), seeds in by_name(cells).items():
        curves = 100 * np.array([cell.curve for cell in seeds.values()])
        for place, column in enumerate(curves.T):
            spread = {"accuracy": column.mean(), "low": column.min(), "high": column.max()}
            when = {"round": rounds * (place + 1) / len(curves.T)}
            lines.append({"method": method, "attack": attack, **when, **spread})
    numbers = dict.fromkeys(("round", "accuracy", "low", "high"), pl.Float64)
    return pl.DataFrame(lines, schema={"method": pl.String, "attack": pl.String, **numbers})


def attacker_rows(cells: Sequence[Cell]) -> list[Row]:
    """The last accuracy of every line, beside the figure's."""
    return [
        Row(
            slug(f"attackers {attack} {method}"),
            f"accuracy in %, MNIST, a fifth lies ({attack}), {method} (published: other data and loss)",
            _mean(seeds),
            FIGURE.get((method, attack)),
        )
        for (method, attack), seeds in by_name(cells).items()
    ]


def slug(name: str) -> str:
    """A name for a row.

    >>> slug("Federated-Clustering, M = 3, groups")
    'federated-clustering-m-3-groups'
    """
    return "-".join(name.lower().replace(",", " ").replace("=", " ").replace("_", " ").split())
