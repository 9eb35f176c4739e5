"""Robust clustering: the synthetic regression, the number of inner rounds, blobs, and digits with and without attackers.

Werner, He, Jordan, Jaggi, Karimireddy, arXiv 2306.08393. What is called published is read off the paper's figures.
Several of its curves come from defects of the published code, so a row is held against algebra, against the known
clusters on the same data, or against another program of the same experiment (with draws of its own), not against a
figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from papers.common.cells import save_cells
from papers.common.registry import reproduction
from papers.common.reproduce import Row, at_least, at_most, within
from papers.robust_clustering import blobs, mnist, synthetic
from papers.robust_clustering import cells as tables
from plures.errors import BadFile

Tell = Callable[[str], None]


class Scale(NamedTuple):
    """How much is played: draws of the regression and rounds, which inner rounds, and draws of all else.

    ``common``: everybody starts at one model. ``shared``: two groups have the same truth. ``digits``: the parts on
    MNIST; their cells are kept in the file ``kept``. ``held``: to bars on attacks, for which small runs are too short.
    """

    draws: int
    rounds: int
    inner: tuple[int, ...]
    common: int
    shared: int
    blobs: int
    digits: Mapping[str, mnist.Part] = {}
    kept: str = "cells.jsonl"
    held: bool = False


SCALES = {
    "small": Scale(
        draws=1,
        rounds=800,
        inner=(10, 80),
        common=0,
        shared=0,
        blobs=40,
        digits=mnist.PARTS["small"],
        kept="cells-small.jsonl",
    ),
    "full": Scale(
        draws=5,
        rounds=800,
        inner=synthetic.INNER,
        common=3,
        shared=1,
        blobs=400,
        digits=mnist.PARTS["full"],
        held=True,
    ),
}
KNOWN, FOUND, ALONE, CHOSEN, ALL = synthetic.NAMES
ENOUGH = 80  # inner rounds after which nothing of the own gradient is left: (1 - 1/16)^80 < 0.6 %
BY_INNER = ("k4-n4", "k16-n4")


@reproduction(name="robust-clustering", title="Robust clustering", paper="arXiv:2306.08393")
def robust_clustering(*, scale: str, out: Path, tell: Tell) -> list[Row]:
    """Federated-Clustering against known clusters, inner rounds on blobs, and attacks against defences on digits."""
    rows = [row for section in SECTIONS for row in section(SCALES[scale], out, tell)]
    from papers.robust_clustering import figures as robust

    robust.pictures(out)
    return rows


def _regression(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """Figure 3: the error over rounds of five ways to train, and of Federated-Clustering by its inner rounds."""
    rows, curves, ends = [], [], []
    for panel in synthetic.PANELS:
        arms = synthetic.arms(panel)
        if panel.name in BY_INNER:
            arms.update({_inner(number): synthetic.clustering(panel, number) for number in scale.inner})
        arms.pop(_inner(10), None)  # a line of the panel already
        found = {name: _drawn(arm, panel, scale, tell, name) for name, arm in arms.items()}
        ends_of = {name: values[:, -1] for name, values in found.items()}
        rows += _panel_rows(panel, ends_of)
        if _inner(ENOUGH) in arms and panel.num_groups > 4:
            rows += _enough_rows(panel, ends_of, _strangers(arms[_inner(ENOUGH)], panel, scale))
        curves += _lines(panel, {name: found[name] for name in synthetic.NAMES})
        if panel.name in BY_INNER:
            ends += _by_inner(panel, scale, found)
    pl.DataFrame(curves).write_csv(out / "regression.csv")
    pl.DataFrame(ends).write_csv(out / "inner.csv")
    return rows


def _inner(number: int) -> str:
    return f"{FOUND}, {number} inner rounds"


def _drawn(arm: synthetic.Arm, panel: synthetic.Panel, scale: Scale, tell: Tell, name: str) -> np.ndarray:
    """(draws, points) errors on one draw of the data each."""
    found = []
    for seed in synthetic.draws(panel, scale.draws):
        world = synthetic.world_of(panel, seed)
        found.append(synthetic.errors(arm, world, synthetic.near_truth(world, seed), seed, scale.rounds))
    ends = np.array(found)[:, -1]
    tell(f"regression, {panel.title}, {name}: {ends.mean():.3g} [{ends.min():.3g}, {ends.max():.3g}]")
    return np.array(found)


def _lines(panel: synthetic.Panel, found: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """A line per method and point in time: mean and range over draws, and the figure's last value."""
    lines = []
    for name, values in found.items():
        for place, column in enumerate(values.T):
            spread = {"error": column.mean(), "low": column.min(), "high": column.max()}
            line = {"panel": panel.name, "title": panel.title, "method": name, "round": place * synthetic.STEP}
            lines.append({**line, **spread, "figure": panel.figure[name], "other": panel.other[name]})
    return lines


def _by_inner(panel: synthetic.Panel, scale: Scale, found: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    lines = []
    for number in scale.inner:
        ends, known = found[FOUND if number == 10 else _inner(number)][:, -1], found[KNOWN][:, -1]
        line = {"panel": panel.name, "title": panel.title, "inner": number}
        other = synthetic.OTHER_INNER[panel.name].get(number)
        lines += [
            {**line, "seed": seed, "error": end, "known": best, "other": other}
            for seed, end, best in zip(synthetic.draws(panel, scale.draws), ends, known, strict=True)
        ]
    return lines


def _panel_rows(panel: synthetic.Panel, ends: dict[str, np.ndarray]) -> list[Row]:
    """Every line's last error, and what must hold of them."""
    rows = []
    for name, values in ends.items():
        spread = f"mean of {len(values)} draws [{values.min():.3g}, {values.max():.3g}]"
        what = f"mean distance from the truth, {panel.title}, {name}: {spread}"
        if panel.other.get(name) is not None:
            what += f"; another program's draw {panel.other[name]:g}"
        rows.append(Row(f"{panel.name}-{_slug(name)}", what, float(values.mean()), panel.figure.get(name)))
    held = [_near(panel, ALONE, ends), _near(panel, ALL, ends)]
    return [*rows, *held, *(_slow_rows(panel, ends) if panel.name == "k16-n4" else _fast_rows(panel, ends))]


def _slow_rows(panel: synthetic.Panel, ends: dict[str, np.ndarray]) -> list[Row]:
    """Sixteen groups: ten inner rounds are not enough."""
    ten = ends[FOUND] / ends[KNOWN]
    return [
        _near(panel, KNOWN, ends),
        _near(panel, FOUND, ends),
        at_least("k16-n4-ten", "least ratio to known clusters, 10 inner rounds (other draw: 1.95)", ten.min(), 1.5),
    ]


def _strangers(arm: synthetic.Arm, panel: synthetic.Panel, scale: Scale) -> np.ndarray:
    """(draws,) in how many early rounds someone kept a client of another group."""
    found = []
    for seed in synthetic.draws(panel, scale.draws):
        world = synthetic.world_of(panel, seed)
        found.append(synthetic.strangers(arm, world, synthetic.near_truth(world, seed), seed))
    return np.array(found)


def _enough_rows(panel: synthetic.Panel, ends: dict[str, np.ndarray], strangers: np.ndarray) -> list[Row]:
    """With enough inner rounds the clusters might as well be known; single draws differ where strangers are kept."""
    found, known = ends[_inner(ENOUGH)], ends[KNOWN]
    mean = float(np.abs(found.mean() / known.mean() - 1))
    what = f"to known clusters, {ENOUGH} inner rounds"
    rows = [at_most(f"{panel.name}-enough", f"gap of the mean of {len(found)} draws {what}", mean, 0.02)]
    for name, those in (("pure", strangers == 0), ("strangers", strangers > 0)):
        said = "without strangers" if name == "pure" else "in which clients kept strangers early"
        if those.any():
            gap = float(np.abs(found[those] / known[those] - 1).max())
            rows.append(Row(f"{panel.name}-enough-{name}", f"largest gap {what}, {those.sum()} draws {said}", gap))
    return rows


def _fast_rows(panel: synthetic.Panel, ends: dict[str, np.ndarray]) -> list[Row]:
    """Four groups: rounding is all that is left with clusters, known or found."""
    return [
        at_most(f"{panel.name}-{_slug(name)}-floor", f"{name}, largest of all draws", ends[name].max(), 2e-4)
        for name in (KNOWN, FOUND)
    ]


def _near(panel: synthetic.Panel, name: str, ends: dict[str, np.ndarray]) -> Row:
    """A mean over draws that may differ from another program's single draw by a factor of two."""
    mean, other = float(ends[name].mean()), panel.other[name]
    assert other is not None
    bar, met = f"within a factor of 2 of {other:g}", 0.5 <= mean / other <= 2
    return Row(f"{panel.name}-{_slug(name)}-near", "the same against another program's draw", mean, None, bar, met)


def _slug(name: str) -> str:
    return name.lower().replace(",", "").replace(" ", "-")


def _common_start(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """Federated-Clustering when everybody starts at one random model: not always safe."""
    panel = synthetic.PANELS[1]
    arm, rows = synthetic.clustering(panel, 10), []
    for seed in synthetic.draws(panel, scale.common):
        world = synthetic.world_of(panel, seed)
        error = synthetic.errors(arm, world, synthetic.anywhere(world, seed), seed, scale.rounds)[-1]
        tell(f"regression, {panel.title}, {FOUND} from one random start, draw {seed}: {error:.3g}")
        what = (
            f"mean distance from the truth, {panel.title}, one random start for all (other draws: 3e-5, 3e-5, 3.2)"
        )
        rows.append(Row(f"common-start-{seed}", what, error))
    return rows


def _shared_corner(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """Two of sixteen groups with the same truth: their gradients meet, so the planted clusters are not found."""
    panel, rows = synthetic.PANELS[2], []
    arms = {KNOWN: synthetic.arms(panel)[KNOWN], _inner(ENOUGH): synthetic.clustering(panel, ENOUGH)}
    for seed in synthetic.draws(panel, scale.shared, apart=False):
        world = synthetic.world_of(panel, seed)
        starts = synthetic.near_truth(world, seed)
        ends = {name: synthetic.errors(arm, world, starts, seed, scale.rounds)[-1] for name, arm in arms.items()}
        ratio = ends[_inner(ENOUGH)] / ends[KNOWN]
        tell(f"regression, {panel.title}, two with the same truth: {ratio:.3f} times the error of known clusters")
        rows.append(
            Row("shared-corner", f"ratio to known clusters where two groups share a truth (draw {seed})", ratio)
        )
    return rows


def _blobs(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """Figure 7: how near a center is to its blob after every inner round."""
    rows, lines = [], []
    for deviation in blobs.DEVIATIONS:
        path = blobs.paths(deviation, scale.blobs)
        start, end = blobs.FIGURE[deviation]
        marks = {1: start, blobs.ROUNDS: end}
        lines += [
            {"deviation": deviation, "round": i + 1, "distance": value, "figure": marks.get(i + 1)}
            for i, value in enumerate(path)
        ]
        tell(f"blobs, deviation {deviation:g}: {path[0]:.2f} -> {path[-1]:.2f}, published {start:g} -> {end:g}")
        for place, number in enumerate(blobs.LOOKED_AT):
            what = f"distance to members, deviation {deviation:g}, inner round {number}, {scale.blobs} draws"
            target = blobs.REFERENCE[deviation][place]
            at = path[number - 1]
            rows.append(
                within(
                    f"blobs-{deviation:g}-{number}", what, at, target, 0.04 * target, published=marks.get(number)
                )
            )
    pl.DataFrame(lines).write_csv(out / "blobs.csv")
    return rows


def _digits(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """Groups of digits (Table 1), attackers round by round (Figure 6), and attacks against defences.

    A cell that was played into the folder already is read.
    """
    if not scale.digits:
        return []
    file = out / scale.kept
    known = {cell.name for cell in mnist.loaded(file)}
    if known:
        tell(f"digits: {len(known)} cells read from {file.name}")

    def keep(cell: mnist.Cell) -> None:
        save_cells(file, [cell])
        what = f"digits, {cell.part}, {cell.method}, attack {cell.attack}, seed {cell.seed}"
        tell(f"{what}: {100 * cell.mean:.1f} % ({cell.seconds:.0f} s)")

    try:
        for name, part in scale.digits.items():
            mnist.play_part(name, part.scale, methods=part.methods, attacks=part.attacks, known=known, tell=keep)
    except BadFile as error:
        tell(f"digits: {error}")
        return [Row("digits", "mnist-writers is not there", float("nan"), None, "the digits are played", False)]
    rounds = scale.digits["attackers"].scale.rounds
    return tables.write_tables(mnist.loaded(file), out, rounds=rounds, held=scale.held)


# A section is a function of (scale, out, tell) that writes its tables and returns its rows.
SECTIONS = (_regression, _common_start, _shared_corner, _blobs, _digits)
