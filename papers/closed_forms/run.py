"""The worlds against their closed forms: what training reaches where algebra says what it must."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from papers.common.registry import reproduction
from papers.common.reproduce import Row, within
from plures.data import worlds
from plures.engine import run
from plures.methods.fedavg import fedavg
from plures.methods.local_only import local_only
from plures.types import Plan

DENSITY = (
    ("literal", 3.166304598772, 2.468689363974),
    ("disjoint", 3.249082164977, 2.541146738991),
)


@reproduction(name="closed-forms", title="Closed forms")
def reproduce_closed_forms(*, scale: str, out: Path) -> list[Row]:
    """Density entropies, and the risk of local and global means by simulation against the formula."""
    rows = _density() + _mean_estimation(repeats=20 if scale == "small" else 400)
    pl.DataFrame([{"id": row.id, "ours": row.ours, "bar": row.bar} for row in rows]).write_csv(out / "rows.csv")
    return rows


def _density() -> list[Row]:
    rows = []
    for variant, whole, natural in DENSITY:
        truth = worlds.density_truth(variant=variant)
        groups = [list(range(i, 100, 4)) for i in range(4)]
        one = worlds.partition_loss(truth, [list(range(100))])
        four = worlds.partition_loss(truth, groups)
        rows.append(within(f"density-{variant}-q1", "entropy of the whole mixture (nats)", one, whole, 1e-10))
        rows.append(within(f"density-{variant}-q4", "entropy within natural clusters", four, natural, 1e-10))
    return rows


def _mean_estimation(*, repeats: int) -> list[Row]:
    """Full-batch steps of size 1 reach the exact means in one round."""
    plan = Plan(batch=None, lr=1.0)
    risks: dict[str, list[float]] = {"local": [], "global": []}
    for seed in range(repeats):
        world = worlds.mean_estimation(seed=seed)
        for name, method in (("local", local_only), ("global", fedavg)):
            result = run(method(world.model, plan=plan), world.federation, rounds=1, seed=seed)
            points = [result.model_for(uid).weights.params["point"] for uid in range(world.federation.num_clients)]
            risks[name].append(float(np.square(np.stack(points) - world.truth).sum(1).mean()))
    facts = world.facts
    return [_risk(name, values, facts[f"{name}_risk"]) for name, values in risks.items()]


def _risk(name: str, values: list[float], expected: float) -> Row:
    error = 4 * float(np.std(values) / np.sqrt(len(values)))
    what = f"mean estimation, average risk of {name} means over {len(values)} draws (4 standard errors)"
    return within(f"mean-{name}", what, float(np.mean(values)), expected, error)
