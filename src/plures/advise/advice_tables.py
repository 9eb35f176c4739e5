"""Tables of advice for the terminal, each with what its columns mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from plures.advise import fusion
from plures.advise.advice import Advice
from plures.advise.decisions import Decisions
from plures.advise.families import ENDS
from plures.advise.family_advice import FamilyAdvice
from plures.advise.family_wording import signs_of
from plures.advise.fusion import FusedModels
from plures.advise.tradeoff import Tradeoff
from plures.advise.worth import Worth
from plures.advise.worth_wording import strength_of
from plures.report.terminal import FOLDED, NUMBER, WHOLE, number, percent, plain_table
from plures.study.fronts import TOLERANCE
from plures.wording import counted, unit_of


def advice_tables(advice: Advice) -> list[Table | str]:
    """The tables of any advice, and what their columns mean."""
    drawn: dict[type[Advice], Callable[[Any], list[Table | str]]] = {
        FamilyAdvice: lambda found: [signs_table(found), SIGNS_LEGEND],
        Worth: lambda found: [worth_table(found), WORTH_LEGEND, worth_clients_table(found)],
        Decisions: lambda found: [decisions_table(found), DECISIONS_LEGEND],
        FusedModels: lambda found: [fusion_table(found)],
        Tradeoff: lambda found: [tradeoff_table(found), TRADEOFF_LEGEND],
    }
    return drawn[type(advice)](advice)


def signs_table(advice: FamilyAdvice) -> Table:
    """What was measured, and what it means."""
    heads = {"sign": WHOLE, "value": WHOLE, "meaning": {}}
    return plain_table("What training and valid rows say", heads, signs_of(advice))


SIGNS_LEGEND = (
    "skew and shift: 0 none, 1 all that varies; percent: the share of the error of one model for all that is saved on "
    "rows held out (95 % interval); noise, differences: what noise costs models alone, and differences one model for "
    "all, as shares of the target's variance; clusters: Rand index between folds and all rows"
)


def decisions_table(result: Decisions) -> Table:
    """How many clients decide for each option, and what that gains them over the global model."""
    seen = result.honest["seen"].sum()
    unseen = result.honest.height - seen
    honest = "" if result.attackers is None else "honest "
    title = f"Decisions of {seen} {honest}clients in training" + (f" and {unseen} unseen ones" if unseen else "")
    rows = [
        (
            row["family"],
            Text(row["method"]),
            str(row["clients"]),
            str(row["unseen"]) if unseen else "-",
            number(row["valid_gain"]),
            number(row["test_gain"]),
            percent(row["hurt"]),
        )
        for row in result.by_method.iter_rows(named=True)
    ]
    heads = ("clients", "unseen", "gain on\nvalid rows", "gain on\ntest rows", "hurt")
    return plain_table(title, {"decision": WHOLE, "method": FOLDED, **dict.fromkeys(heads, NUMBER)}, rows)


DECISIONS_LEGEND = (
    "gain: how much lower the loss is than with the global model, mean over these clients; clients decide by valid rows "
    "alone; hurt: clients whose test loss rises"
)


def fusion_table(found: FusedModels) -> Table:
    """What fusing gives on test rows beside one model for all and a model each: mean, and clients better off."""
    higher = found.metric == "accuracy"
    fused, rows = found.scores["fused"].to_numpy(), []
    for way in fusion.WAYS:
        own = found.scores[way].to_numpy()
        better = float(((fused - own if higher else own - fused) > 1e-9).mean())
        worst = np.quantile(own, 0.1 if higher else 0.9)
        rows.append((way, number(own.mean()), number(worst), "" if way == "fused" else percent(better)))
    title = f"Test {found.metric} of {len(found.rows.names)} clients"
    heads = ("mean", "worst\n10 %", "better\nfused")
    return plain_table(title, {"model": {}, **dict.fromkeys(heads, NUMBER)}, rows)


def worth_table(worth: Worth) -> Table:
    """Every way to train: its strength, predicted and measured losses, and how it stands against the better end."""
    digits, rows = 3 if worth.test[worth.rival].mean() < 10 else 2, []
    for way in worth.ways:
        gap, other, ahead = worth.against(way), way != worth.rival, worth.predicted_means.get(way)
        rows.append(
            (
                way,
                _lams(worth.lams[way]),
                "" if ahead is None else f"{ahead:.3g}",
                number(worth.test[way].mean(), digits),
                number(worth.scores[way].mean()),
                f"{gap.mean:+.{digits}f}" if other else "",
                f"{gap.low:+.{digits}f} {gap.high:+.{digits}f}" if other else "",
            )
        )
    title = f"Alone, together, or in between: {len(worth.rows.names)} clients"
    heads = (
        "lam",
        "predicted\nexcess",
        "test\nloss",
        f"test\n{worth.metric}",
        f"against\n{worth.rival}",
        "95 %\ninterval",
    )
    return plain_table(title, {"model": {**WHOLE, "min_width": 10}, **dict.fromkeys(heads, NUMBER)}, rows)


WORTH_LEGEND = (
    "predicted excess: loss above that of the best model a client could have; against: difference of test losses, mean over "
    "clients, to the better of alone and global by valid rows, with its bootstrap interval over clients; auto comes from "
    "training rows, valid from valid rows; each: a lam for every client, by its rows and its noise"
)


def worth_clients_table(worth: Worth, most: int = 4) -> Table:
    """Who gains most and least from lam, in test loss and as predicted."""
    title = f"Who gains with {strength_of(worth)}, in loss (above 0: better off)"
    order = worth.clients_table.sort("gain_over_alone", descending=True)
    gains = [f"{kind}gain_over_{end}" for end in ENDS for kind in ("", "predicted_")]
    rows: list[Sequence[Any]] = [
        (Text(row["client"]), str(row["rows"]), *(f"{row[name]:+.3g}" for name in gains))
        for row in order.iter_rows(named=True)
    ]
    if len(rows) > 2 * most + 1:
        rows = [*rows[:most], (f"... {len(rows) - 2 * most} more",), *rows[-most:]]
    heads = [f"over {end}\n{what}" for end in ENDS for what in ("test", "predicted")]
    return plain_table(title, {"client": FOLDED, **dict.fromkeys(("rows", *heads), NUMBER)}, rows)


def _lams(lams: Any) -> str:
    """One strength, or the range of several; a wide range needs few digits."""
    low, high = float(lams.min()), float(lams.max())
    if low == high:
        return f"{low:.3g}"
    return f"{low:.1g}..{high:.1g}" if high > 100 * low else f"{low:.2g}..{high:.2g}"


def tradeoff_table(result: Tradeoff) -> Table:
    """A row per value: what it buys on test and valid rows, and what it costs."""
    rows = result.tables["values"].to_dicts()
    unit, per_mb = unit_of(max((row["mb_needed"] or 0.0 for row in rows), default=0.0))
    # Under a budget test rows are read later than the other columns are about.
    when = "test\n{}\nat end" if result.ends_early else "test\n{}"
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        when.format("loss"): lambda row: _number(row["test_loss"]),
        "±": lambda row: _number((row["test_loss_high"] - row["test_loss_low"]) / 2),
        **({} if result.metric == "loss" else {when.format(result.metric): lambda row: _number(row["test_score"])}),
        "valid\nloss": lambda row: _number(row["valid_loss"]),
        "rounds\nneeded": lambda row: _count(row["rounds_needed"]),
        f"{unit} per\nclient": lambda row: _number(row["mb_needed"] and row["mb_needed"] * per_mb),
        "grad-\nients": lambda row: _count(row["gradients_needed"], more=row["rounds_without_gradients"] > 0),
    }
    title = Text(f"{result.sweep.degree.text}: {result.option} swept, {counted(result.sweep.rounds, 'round')}")
    heads = {result.option: WHOLE, **dict.fromkeys(columns, NUMBER), "mark": {**WHOLE, "min_width": 10}}
    table = plain_table(title, heads)
    for row, after in zip(rows, [*rows[1:], rows[-1]], strict=True):
        # Marks are short enough for a terminal.
        mark = row["mark"].replace("within noise", "near").replace(",", "")
        cells = [cell(row) for cell in columns.values()]
        table.add_row(Text(row["value"]), *cells, mark, end_section=after["kind"] != row["kind"])
    return table


TRADEOFF_LEGEND = (
    "test: after the last round, mean over clients and seeds, ± half of its 95 % interval; valid: after the last round too, or "
    "the last one that the budget allows; rounds needed: the first evaluated round whose valid loss is above the value's least "
    f"one by at most {TOLERANCE:.0%} of the range of all losses of the sweep; traffic and gradients of training per client, up "
    "to there; a plus: some rounds report no gradients; near: within noise of the best; front: with the rounds needed, no "
    "other value is both cheaper and better at any round; under a budget all but test is about rounds that it allows"
)


def _number(value: float | None) -> str:
    """Three digits or so, however small or large.

    >>> [_number(value) for value in (0.5, 12.345, 12345.6, 1.84e29, 1.2e-7)]
    ['0.500', '12.3', '12346', '1.8e29', '1.2e-7']
    """
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    if value == 0 or 0.01 <= size < 10:
        return f"{value:.3f}"
    if 0.001 <= size < 1e5:
        return f"{value:.3g}" if size < 999 else f"{value:.0f}"
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits}e{int(power)}"


def _count(value: float | None, *, more: bool = False) -> str:
    if value is None:
        return "-"
    return f"{f'{value:,.0f}' if value < 1e6 else _number(value)}{'+' if more else ''}"
