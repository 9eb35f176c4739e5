"""Three Approaches for Personalization: densities with known answers, and the grid of writers, seen and unseen.

Mansour, Mohri, Ro, Suresh, arXiv 2002.10619. The paper's numbers stand beside ours and are never ours: its Table 1 lies
above what its printed construction allows, and its Tables 2 and 3 are of EMNIST-62, ours of MNIST's ten digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from papers.common.registry import reproduction
from papers.common.reproduce import Row, at_least, at_most, within
from papers.three_approaches import density
from papers.three_approaches import grid as writers
from plures.aggregate.averaging import Averaging
from plures.data import worlds
from plures.engine import run
from plures.errors import BadFile
from plures.methods.fedavg import fedavg
from plures.personalize.mapper import mapper
from plures.study.statistics import bootstrap
from plures.types import Plan

SEEDS = {"small": {1: 100, 4: 100, 2: 5, 3: 5, 5: 5}, "full": dict.fromkeys((1, 4, 2, 3, 5), 100)}
CURVE = {"small": ((20,), 1), "full": ((5, 10, 20, 50, 100, 200, 1000), 4)}
Tell = Callable[[str], None]


@reproduction(name="three-approaches", title="Three approaches", paper="arXiv:2002.10619")
def three_approaches(*, scale: str, out: Path, tell: Tell) -> list[Row]:
    """Densities against closed forms, joint against separate mixtures, and the grid of writers seen and unseen."""
    rows = [*_densities(scale, out, tell), *_curve(scale, out, tell), *_example(tell), *_writers(scale, out, tell)]
    from papers.three_approaches import figures as approaches

    approaches.pictures(out)
    return rows


def _densities(scale: str, out: Path, tell: Tell) -> list[Row]:
    """HypCluster with q = 1 to 5 clusters, 100 samples per client."""
    lines, rows = [], []
    for number, seeds in sorted(SEEDS[scale].items()):
        text = density.BASE if number == 1 else density.CLUSTERS.format(number)
        found = density.played(density.by_text(text), 100, range(seeds))
        closed, paper = density.CLOSED[number], density.TABLE_1[number]
        spread = {"std": found.mean.std(), "low": found.mean.min(), "high": found.mean.max()}
        lines.append(
            {"q": number, "seeds": seeds, "ours": found.mean.mean(), **spread, "closed": closed, "paper": paper}
        )
        tell(
            f"density, q = {number}: {found.mean.mean():.4f} over {seeds} seeds, closed form {closed:.4f}, paper {paper}"
        )
        rows += _density_rows(number, found, closed, paper)
    pl.DataFrame(lines).write_csv(out / "density.csv")
    return rows


def _density_rows(number: int, found: density.Losses, closed: float, paper: float) -> list[Row]:
    what = f"mean log-loss of q = {number} over {len(found.mean)} seeds; closed form {closed:.4f}"
    if number == 1:
        return [within("density-q1", what, found.mean.mean(), closed, 0.005, published=paper)]
    rows = [Row(f"density-q{number}", what, float(found.mean.mean()), paper)]
    if number == 4:
        near, pure = np.abs(found.mean - closed) <= 0.02, found.purity >= 0.99
        rows.append(at_least("density-q4-near", "share of seeds within 0.02 of the closed form", near.mean(), 0.95))
        rows.append(at_least("density-q4-pure", "share of seeds with purity of 0.99 or more", pure.mean(), 0.95))
    return rows


def _curve(scale: str, out: Path, tell: Tell) -> list[Row]:
    """Loss against samples per client (the paper's Figure 2)."""
    (sizes, seeds), lines = CURVE[scale], []
    for size in sizes:
        for name, text in density.CURVES.items():
            found = density.played(density.by_text(text), size, range(seeds))
            lines.append({"rows": size, "method": name, "loss": found.mean.mean(), "std": found.mean.std()})
        best = min((line for line in lines if line["rows"] == size), key=lambda line: line["loss"])
        tell(f"density, {size} samples per client: best {best['method']} with {best['loss']:.3f}")
    table = pl.DataFrame(lines)
    table.write_csv(out / "curve.csv")
    return [_at(table, size, name) for size in sizes for name in density.CURVES]


def _at(table: pl.DataFrame, size: int, name: str) -> Row:
    loss = table.filter((pl.col("rows") == size) & (pl.col("method") == name))["loss"].item()
    return Row(f"curve-{size}-{name.lower()}", f"log-loss with {size} samples per client, {name}", loss)


def _example(tell: Tell) -> list[Row]:
    """Example 2: an own model of single symbols explains half of the clients; only joint training lets go of them."""
    world = worlds.one_or_any(num_clients=2000)
    base = fedavg(world.model, plan=Plan(batch=None, lr=3.0), averaging=Averaging(momentum=0.9))
    odd = {}
    for name, joint in (("separate", False), ("joint", True)):
        done = run(mapper(base, local="symbol", joint=joint), world.federation, rounds=150)
        odd[name] = float(density.true_losses(done, world.truth)[1::2].mean())
        tell(f"example 2, {name}: odd clients lose {odd[name]:.4f} (log 50 = 3.9120)")
    return [
        at_least("example-2-separate", "odd clients' loss, trained separately", odd["separate"], 4.5),
        at_most("example-2-joint", "odd clients' loss, trained jointly", odd["joint"], 3.95),
    ]


def _writers(scale: str, out: Path, tell: Tell) -> list[Row]:
    """Tables 2 and 3 on MNIST by writer; a seed that was played into the folder already is read."""
    size = writers.SCALES[scale]
    files = [out / f"grid-seed-{seed}.npz" for seed in range(size.seeds)]
    grid = None
    for seed, file in enumerate(files):
        if file.exists():
            tell(f"writers, seed {seed}: read from {file.name}")
            continue
        try:
            grid = grid or writers.build(size)
        except BadFile as error:
            tell(f"writers: {error}")
            return [Row("writers", "mnist-writers is not there", float("nan"), None, "the grid is played", False)]
        writers.save(writers.play(grid, seed, tell), file)
    played = [writers.opened(file, size) for file in files]
    _write_grid(played, out)
    _write_pairs(played, out)
    return _grid_rows(played, held=scale == "full")


def scores(played: Sequence[writers.Played], base: str, way: str, *, seen: bool) -> np.ndarray:
    """(seeds, clients) accuracies in percent of the clients that have test rows."""
    use = (played[0].seen == seen) & (played[0].test_rows > 0)
    return np.array([100 * one.cells[base, way].accuracy[use] for one in played])


def _write_grid(played: Sequence[writers.Played], out: Path) -> None:
    lines: list[dict[str, Any]] = []
    for seen in (True, False):
        for base, way in played[0].cells:
            values = scores(played, base, way, seen=seen)
            mean, gain = bootstrap(values), bootstrap(values - scores(played, base, "initial", seen=seen))
            lines.append(
                {
                    "clients": "seen" if seen else "unseen",
                    "base": base,
                    "personalizer": way,
                    "ours": mean.mean,
                    "low": mean.low,
                    "high": mean.high,
                    "std_over_seeds": values.mean(1).std(),
                    "worst_decile": np.quantile(values.mean(0), 0.1),
                    "worst_client": values.mean(0).min(),
                    "gain": gain.mean,
                    "gain_low": gain.low,
                    "gain_high": gain.high,
                    "hurt": (values.mean(0) < scores(played, base, "initial", seen=seen).mean(0)).mean(),
                    "paper_emnist62": _paper(seen, base, way),
                    "seconds": min(one.cells[base, way].seconds for one in played),
                }
            )
    pl.DataFrame(lines, infer_schema_length=None).write_csv(out / "grid.csv")


def _write_pairs(played: Sequence[writers.Played], out: Path) -> None:
    """Personalizers and bases against each other, over the same clients and seeds, with the verdict in words."""
    ways = [(base, way) for base in writers.BASES for way in writers.PERSONALIZERS]
    lines = []
    for who, seen in (("seen", True), ("unseen", False)):
        for one, other in combinations(ways, 2):
            if one[0] != other[0] and one[1] != other[1]:
                continue
            gap = bootstrap(scores(played, *one, seen=seen) - scores(played, *other, seen=seen))
            words = {"clients": who, "one": " + ".join(one), "other": " + ".join(other)}
            verdict = "clear" if gap.excludes_zero else "within noise"
            lines.append({**words, "points": gap.mean, "low": gap.low, "high": gap.high, "verdict": verdict})
    pl.DataFrame(lines).write_csv(out / "pairs.csv")


def _paper(seen: bool, base: str, way: str) -> float | None:
    if way not in writers.PERSONALIZERS:
        return None
    return writers.PAPER["seen" if seen else "unseen"][base][writers.PERSONALIZERS.index(way)]


def _grid_rows(played: Sequence[writers.Played], *, held: bool) -> list[Row]:
    """Every cell beside the paper's, what is gained over the initial model, and HypCluster against FedAvg."""
    rows = []
    for seen in (True, False):
        who = "seen" if seen else "unseen"
        for base, way in played[0].cells:
            name = f"{who}-{base}-{way}".lower().replace(" ", "-").replace(",", "")
            values = scores(played, base, way, seen=seen)
            what = f"accuracy in %, MNIST, {who}: {base}, {way} (published: EMNIST-62)"
            rows.append(Row(name, what, float(values.mean()), _paper(seen, base, way)))
            if way != "initial":
                rows.append(_gain(f"{name}-gain", values - scores(played, base, "initial", seen=seen), held))
    gap = bootstrap(
        scores(played, "HypCluster", "initial", seen=False) - scores(played, "FedAvg", "initial", seen=False)
    )
    what = f"HypCluster - FedAvg for unseen writers, points [{gap.low:.2f}, {gap.high:.2f}]"
    rows.append(
        at_least("unseen-hypcluster-over-fedavg", what, gap.mean, 0.0)
        if held
        else Row("unseen-hypcluster-over-fedavg", what, gap.mean)
    )
    return rows + (_speed(played) if held else [])


def _gain(name: str, gains: np.ndarray, held: bool) -> Row:
    """What a personalizer gains over its initial model; it may lose no more than noise."""
    found = bootstrap(gains)
    what = f"gain over the initial model, points [{found.low:.2f}, {found.high:.2f}]"
    if not held:
        return Row(name, what, found.mean)
    return Row(name, what, found.mean, None, "not below 0 beyond noise", bool(found.high >= 0))


def _speed(played: Sequence[writers.Played]) -> list[Row]:
    """Seconds of the paper's twelve cells in the fastest seed (the first of a process compiles), and examples per second."""
    times = [
        sum(cell.seconds for (_, way), cell in one.cells.items() if way in writers.PERSONALIZERS) for one in played
    ]
    best = played[int(np.argmin(times))]
    rate = best.examples["FedAvg"] / best.training["FedAvg"]
    what = f"seconds for 3 trainings of 1,000 rounds and 12 evaluations on {best.device}"
    rows = (
        [at_most("grid-seconds", what, min(times), 120.0)]
        if "H200" in best.device
        else [Row("grid-seconds", what, min(times))]
    )
    return [
        *rows,
        Row("grid-examples-per-second", "examples per second in FedAvg's training, evaluation included", rate),
    ]
