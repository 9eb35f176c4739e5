"""Convex clustering: two penalties on ellipses, intervals of recovery, algorithms round by round, and real clients.

Armacki, Bajovic, Jakovetic, Kar, arXiv 2202.00718. The paper's points are not published, so its accuracies and its
interval stand beside ours and hold nothing; rows are held against algebra and against another program of the same
experiment (CVXPY with Clarabel) with draws of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from papers.common.registry import reproduction
from papers.common.reproduce import Row, at_least, at_most, within
from papers.convex_clustering import ellipses as world
from papers.convex_clustering import real, rounds
from papers.convex_clustering.ellipses import GLOBAL, KINDS, LOCAL, NORMS, ORACLE, SQUARES
from plures.errors import BadFile
from plures.solvers import FACTORS, from_alpha
from plures.solvers.path import change

Tell = Callable[[str], None]


class Scale(NamedTuple):
    """How much is played: draws, strengths of each penalty, alphas in rounds, whether algorithms are tuned, and paths."""

    draws: int
    strengths: int
    looks: int  # alphas at which recovery is looked for
    alphas: tuple[float, ...]
    tuned: bool
    lams: tuple[float, ...]  # for the printed algorithm
    ends: int  # its rounds
    steps: int  # of a path
    real: tuple[real.Real, ...]


SCALES = {
    "small": Scale(2, 13, 13, (0.08,), False, (0.25,), 1_200, 24, real.SETS["small"]),
    "full": Scale(6, 41, 41, (0.08, 0.02), True, (0.25, 0.45), 6_000, 60, real.SETS["full"]),
}
ALPHAS, GAMMAS = (0.01, 0.2), (1e-4, 1.0)
LOOKED = {"complete": (0.03, 0.2), "5 neighbors": (0.02, 15.0)}
ROUNDS_DRAW, PATH_DRAW = (
    3,
    2,
)  # balanced draws: one with three clusters at alpha 0.08, and one whose path is no tree


@reproduction(name="convex-clustering", title="Convex clustering", paper="arXiv:2202.00718")
def convex_clustering(*, scale: str, out: Path, tell: Tell) -> list[Row]:
    """Sums of norms against squares, certified recovery, PDMM corrected and as printed, faster rounds, real clients."""
    rows = [row for section in SECTIONS for row in section(SCALES[scale], out, tell)]
    from papers.convex_clustering import figures as convex

    convex.pictures(out)
    return rows


def _accuracy(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """Figures 1 and 2: accuracy, and the distance within groups, against the strength of both penalties."""
    rows, points, lines = [], [], []
    for kind in KINDS:
        found: list[world.Point] = []
        fixed = []
        for seed in range(scale.draws):
            data = world.draw(kind, seed)
            fixed.append(world.anchors(data))
            found += world.norms(data, np.geomspace(*ALPHAS, scale.strengths))
            found += world.squares(data, np.geomspace(*GAMMAS, scale.strengths))
        lines += [{"kind": kind, "seed": seed, **one} for seed, one in enumerate(fixed)]
        rows += _accuracy_rows(kind, found, {name: [one[name] for one in fixed] for name in fixed[0]}, tell)
        points += found
    pl.DataFrame(points).write_csv(out / "accuracy.csv", float_precision=6)
    pl.DataFrame(lines).write_csv(out / "anchors.csv", float_precision=6)
    return rows


def _accuracy_rows(kind: str, points: list[world.Point], fixed: dict[str, list[float]], tell: Tell) -> list[Row]:
    """The best mean accuracy of every way, held to the other program's, and how near models of a group come."""
    other, rows, best, there = world.REFERENCE[kind], [], {}, {}
    for name in (LOCAL, ORACLE):
        what = f"accuracy, {kind} clients, {name}, mean of {len(fixed[name])} draws"
        rows.append(within(f"{kind}-{name}", what, float(np.mean(fixed[name])), other[name], 0.01))
    # Three lines at 120 degrees cancel: the common model is what noise leaves, anywhere around one half.
    what = f"accuracy, {kind} clients, global, mean of {len(fixed[GLOBAL])} draws (another program's: {other[GLOBAL]:g})"
    rows.append(within(f"{kind}-global", what, float(np.mean(fixed[GLOBAL])), 0.5, 0.12))
    for name in (NORMS, SQUARES):
        mine = [point for point in points if point.method == name]
        strength, best[name] = world.best_of_means(mine)
        sign = "alpha" if name == NORMS else "gamma"
        what = f"accuracy, {kind} clients, {name}, best {sign} {strength:.3g}, mean of {len(fixed[LOCAL])} draws"
        published = world.PUBLISHED[name]
        slug = _slug(f"{kind} {name}")
        rows.append(within(slug, what, best[name], other[name], 0.01, published=published))
        there[name] = [point for point in mine if point.strength == strength]
        spread = float(np.mean([point.apart for point in there[name]]))
        rows.append(Row(f"{slug}-apart", f"mean distance of two models of a group there, {kind}, {name}", spread))
        clusters = [point.clusters for point in there[name]]
        rows.append(Row(f"{slug}-models", f"fewest different models there, {kind}, {name}", min(clusters)))
        said = "proved" if name == NORMS else "solved"
        tell(
            f"accuracy, {kind}, {name}: {best[name]:.4f} at {sign} {strength:.3g}, {min(clusters)} models or more, {said}"
        )
    bar = f"the best mean accuracy of {NORMS} minus that of {SQUARES}, {kind}, paired standard error {_error(there):.4f}"
    rows.append(at_least(f"{kind}-order", bar, best[NORMS] - best[SQUARES], 0.0, published=0.002))
    never = min(point.clusters for point in points if point.method == SQUARES)
    rows.append(
        at_least(f"{kind}-squares-fuse", f"fewest different models by squares, any gamma, {kind}", never, 60)
    )
    exact = np.mean([point.exact for point in points if point.method == NORMS])
    rows.append(at_least(f"{kind}-proved", f"share of alphas and draws with a proof, {kind}", float(exact), 0.95))
    return rows


def _error(there: dict[str, list[world.Point]]) -> float:
    """The standard error over draws of the difference between the two penalties."""
    more = [one.accuracy - other.accuracy for one, other in zip(there[NORMS], there[SQUARES], strict=True)]
    return float(np.std(more, ddof=1) / np.sqrt(len(more))) if len(more) > 1 else float("nan")


def _recovery(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """The alphas for which the planted groups are exactly the clusters, by graph, beside the published theorems."""
    found = []
    for kind in KINDS:
        for seed in range(scale.draws):
            data = world.draw(kind, seed)
            for name, graph in world.graphs(data):
                alphas = np.geomspace(*LOOKED[name], scale.looks)
                found.append(world.recovery(data, name, graph, alphas))
    pl.DataFrame(found).write_csv(out / "recovery.csv", float_precision=6)
    rows = [
        row for name in LOOKED for row in _recovery_rows(name, [one for one in found if one.graph == name], tell)
    ]
    whole = [one for one in found if one.graph == "complete"]
    six = min(one.theorem_6 for one in whole)
    rows.append(at_least("theorem-6", "least multiple of alpha that (6) asks for, all draws and alphas", six, 1.0))
    rows.append(
        Row("theorem-13", "(13) holds up to alpha, mean", float(np.mean([one.theorem_13 for one in whole])))
    )
    low, high = world.PAPER_INTERVAL
    holds = [one.low <= low and high <= one.high for one in whole if one.found]
    rows.append(
        Row("paper-interval", f"draws (of {len(whole)}) whose interval holds ({low}, {high})", float(sum(holds)))
    )
    return rows + _scaling_rows([one for one in whole if one.found])


def _recovery_rows(name: str, found: list[world.Recovery], tell: Tell) -> list[Row]:
    """In how many draws there is an interval, and how wide it is."""
    slug = _slug(name)
    there = [one for one in found if one.found]
    ratios = [one.high / one.low for one in there]
    ends = {end: sum(one.above == end for one in there) for end in ("merge", "split")}
    tell(
        f"recovery, {name}: {len(there)} of {len(found)} draws, upper end over lower end "
        f"{min(ratios, default=np.nan):.3g} to {max(ratios, default=np.nan):.3g}, "
        f"above: {ends['merge']} merge, {ends['split']} split"
    )
    what = f"share of {len(found)} draws with exact recovery for some alpha, {name}"
    share = len(there) / len(found)
    rows = [
        Row(f"recovery-{slug}", what, share) if name == "complete" else at_least(f"recovery-{slug}", what, share, 1)
    ]
    rows.append(
        Row(f"recovery-{slug}-ratio", f"median upper end over lower end, {name}", float(np.median(ratios or [1])))
    )
    rows += [
        Row(f"recovery-{slug}-{end}", f"draws whose interval ends above by a {end}, {name}", float(number))
        for end, number in ends.items()
    ]
    if name != "complete":
        rows.append(at_least(f"recovery-{slug}-least", f"least upper end over lower end, {name}", min(ratios), 6.5))
    return rows


def _scaling_rows(found: list[world.Recovery]) -> list[Row]:
    """The widest interval on the complete graph, in every unit of the paper, beside its own."""
    if not found:
        return []
    one = max(found, key=lambda one: one.high / one.low)
    rows = []
    for name in FACTORS:
        ends = [from_alpha(end, name, 60) for end in (one.low, one.high)]
        for place, (end, published) in enumerate(zip(ends, world.PAPER_INTERVAL, strict=True)):
            what = f"{('lower', 'upper')[place]} end of recovery, {one.kind} draw {one.seed}, in the unit {name}"
            rows.append(Row(_slug(f"interval {name} {('low', 'high')[place]}"), what, end, published))
    return rows


def _slug(text: str) -> str:
    """A name of small letters, digits, points and dashes."""
    return "-".join(re.findall(r"[a-z0-9.]+", text.lower()))


def _algorithm_as_printed(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """Algorithm 1 as printed, with the missing terms, and corrected: what each ends at with twelve clients."""
    data, rows, lines, curves = world.draw("balanced", 0, num_clients=12), [], [], []
    for variant in rounds.VARIANTS:
        for lam in scale.lams:
            for case in rounds.CASES:
                if variant == "corrected" and case == rounds.CASES[1]:
                    continue  # it updates all duals: they lie on the server
                one = rounds.ended(data, variant, lam, case, scale.ends)
                lines.append({"variant": variant, "lam": lam, "case": case, "off": one.off, "gap": one.gap})
                curves += [
                    {"variant": variant, "lam": lam, "case": case, "round": at, "error": error}
                    for at, error in one.errors
                ]
                rows.append(_printed_row(one, scale.ends))
    tell("printed: " + "; ".join(f"{row.what} {row.ours:.1e}" for row in rows[:3]))
    pl.DataFrame(lines).write_csv(out / "printed.csv")
    pl.DataFrame(curves).write_csv(out / "printed-curves.csv")
    return rows


def _printed_row(one: rounds.Ended, number: int) -> Row:
    wrong = one.variant == "printed" and one.case in rounds.CASES[1:3]
    slug = _slug(f"{one.variant} {one.case} {one.lam:g}")
    what = f"largest error of a model after {number} rounds, {one.variant}, {one.case}, lambda {one.lam:g}"
    if wrong:
        return at_least(slug, f"{what} (it ends elsewhere)", one.off, 1e-3)
    return at_most(slug, what, one.off, 1e-4)


def _rounds(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """Rounds to three relative errors, with all clients and with a fifth, beside another program's."""
    data, rows, lines, curves = world.draw("balanced", ROUNDS_DRAW), [], [], []
    for alpha in scale.alphas:
        needed: dict[tuple[str, float], int | None] = {}
        for method, at, share in rounds.OTHER:
            if at != alpha:
                continue
            one = rounds.best_reached(data, method, alpha, share, tuned=scale.tuned)
            other = rounds.OTHER[method, at, share]
            needed[method, share] = one.rounds[1]
            line = {"method": method, "alpha": alpha, "share": share, "option": one.option}
            marks = {f"{mark:g}": met for mark, met in zip(rounds.MARKS, one.rounds, strict=True)}
            lines.append({**line, **marks, "other": other[1]})
            kept = np.unique(np.geomspace(1, len(one.errors), 80).astype(int))
            curves += [{**line, "round": int(count), "error": one.errors[count - 1]} for count in kept]
            rows.append(_reached_row(one, other[1]))
            tell(f"rounds, alpha {alpha:g}, {method}, {share:.0%} of clients: {one.rounds}")
        cold, warm = rounds.fused(data, alpha)
        rows.append(
            Row(
                f"rounds-{alpha:g}-split",
                f"rounds of fusing and splitting from the global model, alpha {alpha:g}",
                cold,
            )
        )
        what = f"the same from the solution at an alpha 5 % larger, alpha {alpha:g} (exact, with proof)"
        rows.append(at_most(f"rounds-{alpha:g}-split-warm", what, warm, 10))
        for share in (1.0, rounds.SHARE):
            ratio = (needed[rounds.PDMM, share] or np.inf) / (needed[rounds.DR, share] or np.nan)
            what = f"rounds of PDMM over those of Douglas-Rachford to 1e-6, alpha {alpha:g}, {share:.0%} of clients"
            rows.append(at_least(f"rounds-{alpha:g}-{share:g}-ratio", what, ratio, 2.0))
    pl.DataFrame(lines).write_csv(out / "rounds.csv")
    pl.DataFrame(curves).write_csv(out / "rounds-curves.csv")
    return rows


def _reached_row(one: rounds.Reached, other: int | None) -> Row:
    slug = _slug(f"rounds {one.alpha:g} {one.share:g} {one.method}")
    met = ", ".join("more" if mark is None else str(mark) for mark in one.rounds)
    what = f"rounds to 1e-6, alpha {one.alpha:g}, {one.share:.0%} of clients, {one.method} (to 1e-3, 1e-6, 1e-9: {met})"
    ours = float("nan") if one.rounds[1] is None else float(one.rounds[1])
    assert other is not None
    return Row(slug, what, ours, None, f"within a factor of 2 of {other}", bool(0.5 <= ours / other <= 2))


def _paths(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """A path that is no tree, on both graphs, and what holds the planted groups together."""
    from plures.report.fusion_figures import path_tables

    data, rows, tables = world.draw("balanced", PATH_DRAW), [], []
    for name, graph in world.graphs(data):
        slug = _slug(name)
        path, center = world.path(data, graph, scale.steps, 0.1 if name == "complete" else 0.002)
        tables.append(path_tables(path, center, data.group, name))
        steps = [change(above.label, below.label) for above, below in pairwise(path.solutions)]
        wider = [what for what in steps if what not in ("", "split")]
        tell(f"path, {name}: {'no tree' if wider else 'a tree'}, clusters {path.num_clusters.tolist()}")
        what = f"steps of the path at which clusters fuse as alpha falls, {name}"
        rows.append(
            at_least(f"path-{slug}", what, len(wider), 1)
            if name == "complete"
            else Row(f"path-{slug}", what, len(wider))
        )
        share = np.mean([one.certificate.exact for one in path.solutions])
        rows.append(at_least(f"path-{slug}-proved", f"share of steps with a proof, {name}", float(share), 0.9))
    for file, parts in zip(("path", "partitions"), zip(*tables, strict=True), strict=True):
        pl.concat(parts).write_csv(out / f"{file}.csv", float_precision=6)
    bounds = world.bounds(data, np.geomspace(0.03, 0.16, scale.steps))
    pl.DataFrame(bounds).write_csv(out / "margins.csv", float_precision=6)
    return rows


def _real(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """Schools and people: the path, and its best alpha by valid rows against one model for all and models alone."""
    rows, lines = [], []
    for one in scale.real:
        try:
            played = real.play(one)
        except BadFile as error:
            tell(f"{one.name}: left out, {error}")
            continue
        base = {"set": one.name, "metric": one.metric, "clients": played.num_clients}
        anchors = {"global": played.everyone[1], "local": played.own[1]}
        lines += [{**base, **line._asdict(), **anchors} for line in played.lines]
        rows += _real_rows(one, played, tell)
    if lines:
        pl.DataFrame(lines).write_csv(out / "real.csv", float_precision=6)
    return rows


def _real_rows(one: real.Real, played: real.Played, tell: Tell) -> list[Row]:
    best = real.chosen(played, one)
    what = f"{one.metric} on test rows, {one.name} ({played.num_clients} clients)"
    tell(
        f"{what}: global {played.everyone[1]:.4g}, alone {played.own[1]:.4g}, fused {best.test:.4g} (K={best.clusters})"
    )
    bar = f"{what}, fused, t {best.t:.3g} by valid rows, {best.clusters} models"
    held = (
        at_most(f"{one.name}-fused", bar, best.test, min(played.everyone[1], played.own[1]))
        if one.metric == "rmse"
        else at_least(f"{one.name}-fused", bar, best.test, max(played.everyone[1], played.own[1]))
    )
    exact = float(np.mean([line.exact for line in played.lines]))
    grouped = [line for line in played.lines if 1 < line.clusters < played.num_clients]
    several = max((line.largest for line in grouped), default=0)
    return [
        Row(f"{one.name}-global", f"{what}, one model for all", played.everyone[1]),
        Row(f"{one.name}-alone", f"{what}, everyone alone", played.own[1]),
        held,
        Row(f"{one.name}-refit", f"{what}, the same clusters trained by themselves", best.refit_test),
        Row(f"{one.name}-largest", f"clients in the largest cluster of {len(grouped)} partial partitions", several),
        at_least(f"{one.name}-proved", f"share of {len(played.lines)} alphas with a proof, {one.name}", exact, 0.9),
    ]


# A section is a function of (scale, out, tell) that writes its tables and returns its rows.
SECTIONS = (_accuracy, _recovery, _algorithm_as_printed, _rounds, _paths, _real)
