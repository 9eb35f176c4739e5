"""FedCLUP: what the strength of a proximal penalty buys and costs, exactly, and on MNIST, schools and hospitals.

Yu, He, Sun, Xue, Li, arXiv 2410.08934. No numbers are published with its code, and its synthetic data do not depend on what
they should: rows are held to algebra, and to another program of the same problems with draws of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import polars as pl

from papers.common.registry import reproduction
from papers.common.reproduce import Row, at_least, at_most, within
from papers.fedclup import cells, exact, mnist, real, rounds
from papers.fedclup.exact import Ends, Point
from papers.fedclup.logistic import logistic_path
from papers.fedclup.published import RADII, defects
from papers.fedclup.theory import World, expected_error, linear_draw, logistic_draw, logistic_hessians
from plures.moreau import envelope, num_inner

Tell = Callable[[str], None]


class Scale(NamedTuple):
    """How much is played: draws of every part, strengths, instances, steps of local training, MNIST and real clients."""

    means: int
    linear: int
    logistic: int
    strengths: int
    instances: int
    paths: int  # draws that are followed round by round
    looks: int  # rounds at which they are looked at
    steps: tuple[int, int]
    mnist: mnist.Scale
    real: tuple[real.Real, ...]


FEW = ("alone", "FedAvg", "FedCLUP, lam 1.5", "FedCLUP, lam auto", "Ditto")
SCALES = {
    "small": Scale(
        500,
        40,
        5,
        13,
        25,
        2,
        9,
        (1_500, 15_000),
        mnist.Scale(("softmax",), (2, 6, 10), (0,), FEW),
        real.SETS["small"],
    ),
    "full": Scale(
        4_000,
        40,
        20,
        25,
        25,
        10,
        16,
        (7_500, 75_000),
        mnist.Scale(("softmax", "cnn"), tuple(range(2, 11)), (0, 1, 2)),
        real.SETS["full"],
    ),
}
LINEAR, LOGISTIC = World(rows=50), World(rows=200)
STRETCHED = World(rows=50, least=0.5, most=4.0)
RADIUS = 0.5  # of what is followed round by round
LISTED = {
    0.05: (0.1111, 0.0072, 0.0071, 0.0079),
    0.2: (0.1109, 0.0448, 0.0340, 0.0354),
    0.5: (0.1152, 0.2576, 0.0799, 0.0804),
    1.0: (0.1121, 1.0118, 0.1004, 0.1007),
    2.0: (0.1097, 4.0246, 0.1070, 0.1071),
}
"""By radius, of another program: alone, one model for all, the best strength of its grid, the plug-in strength."""


@reproduction(name="fedclup", title="FedCLUP", paper="arXiv:2410.08934")
def fedclup(*, scale: str, out: Path, tell: Tell) -> list[Row]:
    """Mean estimation, rounds and gradients, the plug-in strength, the trade-off, the published data, and real clients."""
    rows = [row for section in SECTIONS for row in section(SCALES[scale], out, tell)]
    from papers.fedclup import figures as report

    report.pictures(out)
    return rows


def _write(found: Sequence[Any], file: Path) -> None:
    pl.DataFrame(found).write_csv(file, float_precision=6)


def _slug(text: str) -> str:
    """A name of small letters, digits, points and dashes."""
    return "-".join(re.findall(r"[a-z0-9.]+", text.lower()))


def _mean(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """Mean estimation: the risk over draws against the formula, at the best strength, at both ends, and between."""
    rows, lines = [], []
    for radius in exact.RADII:
        best, listed = exact.best_mean(radius), exact.LISTED[radius]
        lams = np.unique(np.concatenate([[0.0, best, np.inf], np.geomspace(1e-2, 1e3, scale.strengths)]))
        found = exact.means(radius, lams, scale.means)
        lines += found
        rows.append(
            within(
                f"mean-{radius:g}-lam",
                f"best lambda, mean estimation, R = {radius:g}",
                best,
                listed[0],
                0.005 * listed[0],
            )
        )
        for name, lam, other in (
            ("best", best, listed[1]),
            ("local", 0.0, listed[2]),
            ("global", np.inf, listed[3]),
        ):
            one = next(line for line in found if line.lam == lam)
            what = f"risk over {scale.means} draws, mean estimation, R = {radius:g}, {name} (formula {one.formula:.5g}, other program: {other:g})"
            # Four standard errors of 500 draws are some 3 percent, at a small radius 10.
            rows.append(within(f"mean-{radius:g}-{name}", what, one.drawn, one.formula, 4 * one.error))
        tell(f"mean estimation, R = {radius:g}: best lambda {best:.4g}, risk {rows[-3].ours:.5f}")
    _write(lines, out / "mean.csv")
    return rows


def _rounds(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """Rounds and gradients to a relative error of 1e-8 at six strengths, on curvatures of exactly [0.608, 11.86]."""
    problems = [rounds.instance(seed) for seed in range(scale.instances)]
    one, rows, found = rounds.nearest(problems), [], []
    for lam in rounds.LISTED:
        found.append(rounds.counted(problems, one, lam))
        rows += _rounds_rows(found[-1])
        line = found[-1]
        tell(
            f"rounds, lambda {lam:g}: {line.exact:g} exact, {line.averaging:g} averaging, {line.auto:g} with K = {line.inner}"
        )
    _write(found, out / "rounds.csv")
    growth = [line.averaging for line in found[-2:]]
    what = "rounds of plain averaging at lambda 1000 over those at 100 (they grow without bound)"
    rows.append(within("rounds-averaging-growth", what, growth[1] / growth[0], 10.0, 0.5))
    what = "rounds at lambda 1000 over those at 100, gamma = 1 / L_g (they end at those of one global model)"
    rows.append(at_most("rounds-saturate", what, found[-1].exact / found[-2].exact, 1.15))
    most, least = max(line.gradients for line in found), min(line.gradients for line in found)
    rows.append(
        at_most("gradients-range", "most over fewest gradients over five decades of lambda", most / least, 2.5)
    )
    what = "distance at which FedAvg of 5 local steps rests from the pooled minimizer, over its length"
    rows.append(at_least("fedavg-rests", what, rounds.resting_place(one, 5), 1e-3))
    what = "the same with 1 local step, which is gradient descent"
    rows.append(at_most("descent-rests", what, rounds.resting_place(one, 1), 1e-9))
    return rows


def _rounds_rows(line: rounds.Counted) -> list[Row]:
    lam = line.lam
    curvatures = envelope(rounds.CURVATURE, lam)
    rows = [
        within(
            f"kappa-{lam:g}",
            f"kappa_g at lambda {lam:g}",
            float(curvatures.condition),
            rounds.LISTED_KAPPA[lam],
            0.01,
        ),
        within(
            f"inner-{lam:g}",
            f"automatic K at lambda {lam:g}",
            float(num_inner(rounds.CURVATURE, lam)),
            rounds.LISTED_INNER[lam],
            0.0,
        ),
    ]
    what = f"rounds with the automatic K at lambda {lam:g} (other program: {line.listed}; all draws: {line.least_auto:g} to {line.most_auto:g})"
    rows.append(at_most(f"rounds-{lam:g}", what, line.auto, 1.1 * line.listed))
    what = f"rounds with exact inner solutions at lambda {lam:g} (other program: {rounds.LISTED_EXACT[lam]})"
    rows.append(Row(f"rounds-{lam:g}-exact", what, line.exact))
    rows.append(Row(f"rounds-{lam:g}-averaging", f"rounds of plain averaging at lambda {lam:g}", line.averaging))
    what = f"gradients of a client at lambda {lam:g} (other program: {line.listed_gradients})"
    rows.append(Row(f"gradients-{lam:g}", what, line.gradients))
    return rows


def _errors(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """The distance from the truth along the path, linear and logistic, and the plug-in strength beside the best."""
    points: list[Point] = []
    found: list[Ends] = []
    rows: list[Row] = []
    for radius in LISTED:
        draw = linear_draw(jax.random.key(0), LINEAR, radius, scale.linear)
        line, ends = exact.linear_path(draw, radius, np.geomspace(1e-3, 1e3, scale.strengths))
        points += line
        found.append(ends)
        rows += _ends_rows(ends, scale.linear)
        rows.append(_theory_row(line, f"linear-{radius:g}", 0.05))
        stretched = linear_draw(jax.random.key(1), STRETCHED, radius, scale.linear)
        _, wide = exact.linear_path(stretched, radius, np.geomspace(1e-3, 1e3, scale.strengths))
        rows.append(_plug_in_row(wide, "stretched", "linear regression, covariance 0.5 to 4"))
    for radius in (0.1, 0.3, 0.5, 1.0, 2.0):
        logistic = logistic_draw(jax.random.key(0), LOGISTIC, radius, scale.logistic)
        line, ends = logistic_path(logistic, radius, np.geomspace(1e-4, 1e2, scale.strengths))
        points += line
        found.append(ends)
        rows.append(_plug_in_row(ends, "logistic", "logistic regression"))
    for ends in found:
        rows += _shape_rows(ends)
        tell(
            f"errors, {ends.model}, R = {ends.radius:g}: alone {ends.local:.4f}, all alike {ends.all_alike:.4f}, plug-in {ends.plug_in:.4f}"
        )
    _write(points, out / "error.csv")
    _write(found, out / "ends.csv")
    return rows


def _ends_rows(ends: Ends, draws: int) -> list[Row]:
    """The table of the plug-in strength: ours beside another program's, of other draws."""
    rows = []
    values = (ends.local, ends.all_alike, ends.best)
    for name, value, other in zip(
        ("alone", "one model for all", "best lambda"), values, LISTED[ends.radius], strict=False
    ):
        what = f"squared error, linear regression, R = {ends.radius:g}, {name}, {draws} draws (other program: {other:g})"
        rows.append(within(_slug(f"linear {ends.radius:g} {name}"), what, value, other, 0.08 * other))
    rows.append(_plug_in_row(ends, "linear", "linear regression"))
    what = f"the same with the true noise and heterogeneity, over the best lambda, R = {ends.radius:g}"
    rows.append(at_most(f"oracle-{ends.radius:g}", what, ends.oracle / ends.best, 1.01))
    return rows


def _plug_in_row(ends: Ends, slug: str, words: str) -> Row:
    """How much worse the plug-in strength is than the best one; where clients differ by far less than noise, up to 1.3."""
    ratio, bar = ends.plug_in / ends.best, 1.05 if ends.radius >= 0.2 else 1.3
    listed = LISTED[ends.radius][3] / LISTED[ends.radius][2] if slug == "linear" else None
    told = "" if listed is None else f" (other program: {listed:.3f})"
    what = f"error with the plug-in lambda over the best of the grid, {words}, R = {ends.radius:g}{told}"
    return at_most(f"plug-in-{slug}-{ends.radius:g}", what, ratio, bar)


def _theory_row(line: Sequence[Point], slug: str, most: float) -> Row:
    worst = max(abs(one.drawn / one.theory - 1) for one in line)
    what = f"largest relative distance of draws from the expected error, {slug}, any lambda"
    return at_most(f"theory-{slug}", what, worst, most)


def _shape_rows(ends: Ends) -> list[Row]:
    """The error falls and rises again: the best strength is better than both ends."""
    less = ends.best / min(ends.local, ends.all_alike)
    what = f"best error over that of the better end, {ends.model} regression, R = {ends.radius:g}"
    return [at_most(f"shape-{ends.model}-{ends.radius:g}", what, less, 1.0)]


def _tradeoff(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """The total error round by round, and what every strength buys and costs."""
    rows, steps, paid = [], [], []
    looks = np.unique(np.geomspace(1, 150, scale.looks).astype(int)).tolist()
    for model in ("linear", "logistic"):
        key = jax.random.key(2)
        if model == "linear":
            draw = linear_draw(key, STRETCHED, RADIUS, scale.paths)
            curvatures, variance, middle, lams = draw.hessians, 1 / STRETCHED.rows, 0.38, np.geomspace(1e-2, 1e2, 9)
        else:
            draw = logistic_draw(key, LOGISTIC, RADIUS, scale.paths)
            curvatures, variance, middle, lams = (
                logistic_hessians(draw),
                1 / LOGISTIC.rows,
                0.095,
                np.geomspace(3e-3, 30, 9),
            )
        mine = rounds.followed(model, draw, middle, looks)
        theory = [float(expected_error(curvatures, draw.truth, variance, lam).mean()) for lam in lams]
        cost = rounds.costs(model, draw, lams, theory)
        steps += mine
        paid += cost
        rows += _tradeoff_rows(model, mine, cost, middle)
        tell(f"trade-off, {model}: " + "; ".join(f"{row.what} {row.ours:.4g}" for row in rows[-4:]))
    _write(steps, out / "tradeoff.csv")
    _write(paid, out / "costs.csv")
    return rows


def _tradeoff_rows(
    model: str, steps: Sequence[rounds.Step], cost: Sequence[rounds.Cost], middle: float
) -> list[Row]:
    """FedCLUP's end against both ends and the others, and how rounds grow with the strength."""
    last = {step.method: step for step in steps}
    mine = last[rounds.MIDDLE]
    rows = []
    for name, step in last.items():
        if not name.startswith("FedCLUP"):
            what = f"last error of {name} over FedCLUP's at lambda {middle:.2g}, {model} regression"
            ratio = step.error / mine.error
            slug = _slug(f"tradeoff {model} {name}")
            rows.append(
                at_least(slug, what, ratio, 1.1)
                if name in ("LocalTrain", "GlobalTrain")
                else Row(slug, what, ratio)
            )
    needed = [one.rounds for one in cost]
    more = max(one - after for one, after in pairwise(needed))
    # With few inner steps a weak pull may need a round or two more than the next.
    rows.append(
        at_most(
            f"tradeoff-{model}-monotone",
            f"largest fall of rounds from one lambda to the next, {model} regression",
            more,
            3.0,
        )
    )
    work = [one.gradients for one in cost]
    what = f"most over fewest gradients over four decades of lambda, {model} regression"
    rows.append(Row(f"tradeoff-{model}-gradients", what, max(work) / min(work)))
    return rows


def _published(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """What is wrong with the published synthetic data."""
    found = defects(scale.steps)
    _write(found.stopped, out / "published.csv")
    near, far = RADII
    rows = [
        at_most(
            "published-labels",
            f"share of published labels that change from R = {near:g} to {far:g}",
            found.changed,
            0.0,
        ),
        at_least(
            "drawn-labels",
            f"share of drawn labels that change from R = {near:g} to {far:g}",
            found.drawn_changed,
            0.05,
        ),
        at_least(
            "published-separable",
            "share of clients whose published labels a linear model separates",
            found.separable,
            1.0,
        ),
    ]
    for labels, bar in (("published", at_least), ("drawn", at_most)):
        short, long = (one for one in found.stopped if one.labels == labels)
        what = f"length of coefficients after {long.steps} steps over that after {short.steps}, {labels} labels"
        rows.append(bar(f"{labels}-grow", what, long.norm / short.norm, 1.3 if labels == "published" else 1.001))
        rows.append(
            Row(
                f"{labels}-distance",
                f"distance from the truth after {long.steps} steps, {labels} labels",
                long.distance,
            )
        )
    tell(f"published data: labels change {found.changed:.0%}, drawn ones {found.drawn_changed:.0%}")
    return rows


def _mnist(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """Personal accuracy with 2 to 10 digits per client; cells that are in the folder are not played again."""
    return cells.play_cells(scale.mnist, out, tell)


def _real(scale: Scale, out: Path, tell: Tell) -> list[Row]:
    """Schools and hospitals: is the automatic degree as good as the better end, and who gains."""
    return real.play_sets(scale.real, out, tell)


SECTIONS = (_mean, _rounds, _errors, _tradeoff, _published, _mnist, _real)
