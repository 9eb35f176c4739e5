"""All that the report page shows, as plain values: what is drawn and written there is computed here and tested here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from plures.errors import BadFile
from plures.registry import METHODS, PERSONALIZERS, Entry
from plures.study.clusters import recovery
from plures.study.comparison import ALONE, UNSOUND, Comparison, knows_groups
from plures.study.disk.layout import RESOLVED, flat, score_column
from plures.study.disk.results import SavedStudy
from plures.study.fronts import pareto
from plures.study.recommendation import recommend
from plures.study.shortfalls import shortfalls
from plures.study.statistics import over_seeds
from plures.study.tuning.outcomes import read_chosen
from plures.wording import counted
from plures.wrap.norms import norms_said

# Okabe and Ito's palette without black and yellow, which vanish on dark and on light paper, and two of Tol's muted one: told
# apart with any color vision. Training alone is gray; "ink" is the color of the text, on light and on dark paper.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999933", "#AA4466")
ALONE_COLOR, ORACLE_COLOR = "#8C8C8C", "ink"
SYMBOLS = {"circle": "●", "square": "■", "diamond": "◆", "triangle-up": "▲", "cross": "✚", "x": "✖", "star": "★"}
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

FEW_ROWS = 5
"""A client with fewer training rows than that is named."""

FEW_CLIENTS, FEW_SEEDS = 8, 3
"""With fewer, a reader is told so."""

MOST_MAPPED = 400
"""Clients in a collaboration matrix; of more, evenly many are left out."""


def page_of(saved: SavedStudy) -> dict[str, Any]:
    """Everything on the page of a study; times are under "times" and nowhere else."""
    result = saved.result
    found = recommend(result)
    names = result.leaderboard["method"].to_list()
    return {
        "title": _title(saved),
        "subtitle": _subtitle(saved),
        "answer": {"advice": found.advice, "best": found.best, "sentences": list(found.sentences)},
        "metric": result.metric,
        "digits": result.digits,
        "higher_is_better": result.higher_is_better,
        "methods": [method_look(name, result.methods) for name in names],
        "unsound": list(UNSOUND),
        "yardsticks": [{"name": name, "mean": _number(mean)} for name, mean in result.reference_means.items()],
        "leaderboard": [_plain(row) for row in result.leaderboard.drop("seconds").to_dicts()],
        "pairs": [_plain({**vars(pair), "clear": pair.clear}) for pair in result.pairs],
        "clients": _clients(result, names),
        "curves": [_curve(saved.curves, name) for name in names],
        "front": _front(result),
        "groups": bool((result.clients["group"].is_not_null()).any()),
        "clusters": _clusters(result, names),
        "fairness": [{"method": name, "deciles": _deciles(result, name)} for name in names],
        "newcomers": [one for name in names if (one := _newcomers(result, name)) is not None],
        "settings": _settings(saved),
        "command": saved.command,
        "toml": file.read_text() if (file := saved.folder / RESOLVED).exists() else "",
        "about": saved.about,
        "missing": list(saved.missing),
        "notes": _notes(saved),
        "references": _references(names),
        "times": {"seconds": {name: _number(result.seconds.get(name)) for name in names}},
    }


def _title(saved: SavedStudy) -> str:
    part = saved.study.get("data")
    name = (part.get("name") if isinstance(part, Mapping) else part) or saved.data.get("title") or saved.folder.name
    return f"Which personalization for {name}?"


def _subtitle(saved: SavedStudy) -> str:
    result = saved.result
    clients = result.clients.unique("uid")
    seen, unseen = int(clients["seen"].sum()), int((~clients["seen"]).sum())
    parts = [
        counted(seen, "client") + " in training" + (f", {unseen} unseen" if unseen else ""),
        counted(len(result.methods), "method"),
        counted(len(saved.seeds), "seed"),
    ]
    if saved.study.get("rounds"):
        parts.append(counted(int(saved.study["rounds"]), "round"))
    return " · ".join(parts)


def method_look(name: str, methods: Sequence[str]) -> dict[str, Any]:
    """How one of several methods looks everywhere on the page, and what it is."""
    others = [one for one in methods if one != ALONE and not knows_groups(one)]
    place = others.index(name) if name in others else 0
    fixed = ALONE_COLOR if name == ALONE else ORACLE_COLOR if knows_groups(name) else None
    entries = _entries(name)
    symbol = list(SYMBOLS)[methods.index(name) % len(SYMBOLS)]
    return {
        "name": name,
        "color": fixed or COLORS[place % len(COLORS)],
        "symbol": symbol,
        "glyph": SYMBOLS[symbol],
        "dash": DASHES[place // len(COLORS) % len(DASHES)],
        "title": ", ".join(entry.title for entry in entries),
        "summary": " ".join(entry.summary for entry in entries),
        "oracle": knows_groups(name),
    }


def _entries(label: str) -> list[Entry]:
    """The registered parts of a label; a method that was made in Python has none."""
    found = []
    for place, part in enumerate(label.split("|")):
        registry, name = (PERSONALIZERS if place else METHODS), part.partition(":")[0].strip()
        found += [registry[name]] if name in registry else []
    return found


def _clients(result: Comparison, names: Sequence[str]) -> list[dict[str, Any]]:
    """A row per client: who it is, what it has, and its score with every method, averaged over seeds."""
    score = score_column(result.metric)
    wide = (
        result.clients.group_by("uid", "method")
        .agg(pl.col(score).cast(pl.Float64).mean())
        .pivot("method", index="uid", values=score)
    )
    facts = result.clients.unique("uid", keep="first", maintain_order=True).sort("uid").drop(score, strict=False)
    return [
        {
            **{what: row[what] for what in ("uid", "name", "seen", "group", "train_rows", "test_rows")},
            "attacker": bool(row.get("attacker")),
            "small": row["train_rows"] < FEW_ROWS or not row["test_rows"] or not row["valid_rows"],
            "scores": [_number(row.get(name)) for name in names],
        }
        for row in facts.join(wide, on="uid", how="left").sort("uid").iter_rows(named=True)
    ]


def _curve(curves: pl.DataFrame, name: str) -> dict[str, Any]:
    """Valid scores and megabytes by round, averaged over seeds, with two standard errors over clients."""
    mine = curves.filter(pl.col("method") == name)
    table = mine.group_by("round").agg(pl.col("mb", "mean", "error").mean()).sort("round")
    mean, error = table["mean"].to_numpy(), table["error"].fill_null(0.0).to_numpy()
    lines = {"mb": table["mb"].to_numpy(), "mean": mean, "low": mean - 2 * error, "high": mean + 2 * error}
    numbers = {what: _numbers(line) for what, line in lines.items()}
    return {"method": name, "rounds": table["round"].to_list(), **numbers}


def _front(result: Comparison) -> list[str]:
    """Methods that none beats in both megabytes and mean score, cheapest first; those that know the groups do not count."""
    board = result.leaderboard.filter(~pl.col("against_best").is_in(UNSOUND))
    board = board.filter(~pl.col("method").map_elements(knows_groups, pl.Boolean))
    sign = -1.0 if result.higher_is_better else 1.0
    costs, errors = board["mb_per_client"].to_numpy(), sign * board["mean"].to_numpy()
    order = np.argsort(costs, kind="stable")
    on = pareto(costs, errors)
    return [board["method"][int(place)] for place in order if on[place]]


def _clusters(result: Comparison, names: Sequence[str]) -> list[dict[str, Any]]:
    """For every method that told clusters: who is in which, seed by seed, and how well that recovers planted groups."""
    if "cluster" not in result.clients.columns:
        return []
    matched, found = recovery(result.honest), []
    for name in names:
        mine = result.honest.filter(pl.col("method") == name, pl.col("seen"), pl.col("cluster").is_not_null())
        mine = mine.sort("seed", "group", "uid", nulls_last=True)
        if not mine.height:
            continue
        first = mine.filter(pl.col("seed") == mine["seed"][0])
        found_in = first.group_by("cluster", "group").len().sort("cluster", "group")
        step = -(-first.height // MOST_MAPPED)
        rates = matched.filter(pl.col("method") == name)
        found.append(
            {
                "method": name,
                **{f"{what}s": first[what].to_list()[::step] for what in ("uid", "name", "group")},
                "labels": [part["cluster"].cast(pl.Int64).to_list()[::step] for part in mine.partition_by("seed")],
                "counts": [[int(cluster), group, number] for cluster, group, number in found_in.iter_rows()],
                "sampled": step > 1,
                **{rate: _number(rates[rate].mean()) for rate in ("clusters", "adjusted_rand", "purity")},
            }
        )
    return found


def _deciles(result: Comparison, name: str) -> list[float | None]:
    """The least score, nine deciles and the largest, over clients in training."""
    each = over_seeds(result.scores(name))
    known = each[np.isfinite(each)]
    return _numbers(np.percentile(known, np.arange(0, 101, 10))) if len(known) else []


def _newcomers(result: Comparison, name: str) -> dict[str, Any] | None:
    """Mean scores of unseen clients by how many training rows they bring; the last point is all they have.

    Only amounts that at least half of them have are shown: with fewer, the clients would change along the curve.
    """
    score = score_column(result.metric)
    if result.newcomers is None or score not in result.newcomers.columns:
        return None
    mine = result.newcomers.filter(pl.col("method") == name, pl.col(score).is_not_null())
    if not mine.height:
        return None
    part, whole = mine.filter(~pl.col("all")), mine.filter(pl.col("all"))
    most = whole["uid"].n_unique()
    value = pl.col(score).cast(pl.Float64)
    each = part.group_by("rows", "uid").agg(value.mean())
    points = each.group_by("rows").agg(value.mean(), pl.len().alias("clients")).sort("rows")
    points = points.filter(2 * pl.col("clients") >= most)
    return {
        "method": name,
        "rows": points["rows"].to_list(),
        "mean": _numbers(points[score].to_numpy()),
        "clients": points["clients"].to_list(),
        "all_rows": _number(whole["rows"].median()),
        "all_mean": _number(whole.group_by("uid").agg(value.mean())[score].mean()),
        "all_clients": most,
    }


def _settings(saved: SavedStudy) -> list[list[str]]:
    """What was asked for, flat, in the order of the study."""
    known = [(name, value) for name, value in flat(saved.study) if value not in (None, [], "")]
    rows = [[name, ", ".join(map(str, one)) if isinstance(one, list) else str(one)] for name, one in known]
    rows += [[f"tuned: {label}", f"{text}, lr {lr:g}"] for label, (text, lr) in _tuned(saved).items()]
    rows += [
        [f"data: {name.replace('_', ' ')}", str(saved.data[name])]
        for name in ("title", "task", "clients")
        if name in saved.data
    ]
    return rows


def _tuned(saved: SavedStudy) -> dict[str, tuple[str, float]]:
    try:
        return read_chosen(saved.folder)
    except BadFile:
        return {}


def _notes(saved: SavedStudy) -> list[str]:
    """What a reader must know: attacks, policies, what methods told, what was odd about the data."""
    result = saved.result
    found = [result.attackers.said] if result.attackers is not None else []
    found += [norms_said(result.norms)] if result.norms else []
    found += [*result.told, *(one.said for one in shortfalls(result))]
    few = "intervals of so few are wide, and what the luck of a seed does may be more than they say"
    clients = int(np.isfinite(result.scores(result.methods[0])).any(0).sum())
    if clients < FEW_CLIENTS or len(saved.seeds) < FEW_SEEDS:
        found.append(f"{counted(clients, 'client')} and {counted(len(saved.seeds), 'seed')}: {few}")
    found += [str(note) for note in saved.data.get("notes") or ()]
    named = {"without_valid_rows": "without valid rows", "without_test_rows": "without test rows"}
    found += [
        f"clients {said}: {', '.join(map(str, saved.data[key]))}"
        for key, said in named.items()
        if saved.data.get(key)
    ]
    return found


def _references(names: Sequence[str]) -> list[dict[str, str]]:
    """The papers of the methods used, each once, in the order of the leaderboard."""
    entries = {entry.name: entry for name in names for entry in _entries(name)}
    return [
        {"name": entry.name, "title": entry.title, "paper": entry.paper, "url": paper_url(entry.paper)}
        for entry in entries.values()
        if entry.paper
    ]


def paper_url(paper: str) -> str:
    """Where a paper can be read; empty if that does not follow from its name.

    >>> paper_url("arXiv:2012.04221"), paper_url("Kelley 1935")
    ('https://arxiv.org/abs/2012.04221', '')
    """
    found = re.search(r"arXiv:(\d{4}\.\d{4,5})", paper)
    return f"https://arxiv.org/abs/{found[1]}" if found else ""


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _number(value) if isinstance(value, float) else value for name, value in row.items()}


def _numbers(values: Any) -> list[float | None]:
    return [_number(float(value)) for value in values]


def _number(value: Any) -> float | None:
    """Six digits; None for what is no finite number, as JSON has none."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
