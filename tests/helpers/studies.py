"""Study folders written by hand, without any training: what tests of reports read back."""

import json
from pathlib import Path

import numpy as np
import polars as pl

from plures.study.disk.layout import run_folder


def client_table(scores, *, groups=None, unseen=0, metric="accuracy", clusters=None, names=None):
    """A run's table of clients from their test scores; the last ``unseen`` were held out of training."""
    number = len(scores)
    columns = {
        "uid": np.arange(number),
        "name": list(names) if names is not None else [f"client-{uid:03d}" for uid in range(number)],
        "seen": np.arange(number) < number - unseen,
        "group": [None] * number if groups is None else list(groups),
        "train_rows": 10 + np.arange(number),
        "valid_rows": np.full(number, 4),
        "test_rows": 5 + np.arange(number) % 3,
        "rounds": np.full(number, 6),
        "bytes_down": np.full(number, 600_000),
        "bytes_up": np.full(number, 400_000),
        f"personal_valid_{metric}": np.asarray(scores, float),
        f"personal_test_{metric}": np.asarray(scores, float),
        "personal_test_loss": np.full(number, 0.5),
    }
    if clusters is not None:
        columns["cluster"] = np.asarray(clusters, float)
    return pl.DataFrame(columns, schema_overrides={"group": pl.Int64}).fill_nan(None)


def record_table(scores, metric="accuracy", rounds=(2, 4, 6)):
    """A run's record: valid scores that rise to the given ones."""
    parts = [
        pl.DataFrame(
            {"uid": np.arange(len(scores)), "value": np.asarray(scores, float) * turn / rounds[-1]}
        ).select(
            pl.lit(turn).alias("round"),
            "uid",
            pl.lit("valid").alias("split"),
            pl.lit("personal").alias("kind"),
            pl.lit(metric).alias("metric"),
            "value",
        )
        for turn in rounds
    ]
    kinds = {"round": pl.Int32, "uid": pl.Int32, "value": pl.Float32}
    return pl.concat(parts).cast(kinds)


def info_table(rounds=(2, 4, 6), mb=1.0):
    """A run's diagnostics: the megabytes so far."""
    rows = [(turn, "mb_per_client", mb * turn / rounds[-1]) for turn in rounds]
    return pl.DataFrame(rows, schema={"round": pl.Int32, "name": pl.String, "value": pl.Float64}, orient="row")


def write_run(
    out, method, seed, clients, *, metric="accuracy", higher=True, version=None, newcomers=None, done=True
):
    """One run of a study in its folder."""
    from plures._version import __version__

    folder = run_folder(Path(out), method, seed)
    folder.mkdir(parents=True)
    about = {
        "method": method,
        "seed": seed,
        "metric": metric,
        "higher_is_better": higher,
        "norm": None,
        "config": {},
        "versions": {"plures": version or __version__, "python": "3.11", "jax": "0.10"},
        "platform": "linux",
        "device": "cpu:cpu",
    }
    marks = {"plures": json.dumps(about)}
    scores = clients[f"personal_test_{metric}"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    record_table(scores, metric).write_parquet(folder / "record.parquet", metadata=marks)
    info_table().write_parquet(folder / "info.parquet", metadata=marks)
    clients.write_parquet(folder / "clients.parquet", metadata=marks)
    if newcomers is not None:
        newcomers.write_parquet(folder / "newcomers.parquet", metadata=marks)
    if done:
        text = json.dumps({"seconds": 1.5, "bytes": 1, "told": [], "mark": "by hand"})
        (folder / "done.json").write_text(text)
    return folder


def newcomer_table(clients, metric="accuracy"):
    """What unseen clients get: nothing without rows, half of their score with two, all with all."""
    rows = []
    for one in clients.filter(~pl.col("seen")).iter_rows(named=True):
        for amount, share in ((0, 0.0), (2, 0.5), (one["train_rows"], 1.0)):
            score = share * one[f"personal_test_{metric}"]
            rows.append((one["uid"], amount, amount == one["train_rows"], score))
    return pl.DataFrame(rows, schema=["uid", "rows", "all", f"personal_test_{metric}"], orient="row")


def write_study(
    out, scores, *, seeds=(0, 1), groups=None, unseen=0, clusters=None, metric="accuracy", higher=True, names=None
):
    """A whole study from {method: (clients,) scores}; seeds differ by a little, the same for every method."""
    out = Path(out)
    for method, values in scores.items():
        for seed in seeds:
            own = np.asarray(values, float) + 0.01 * seed
            found = (clusters or {}).get(method)
            clients = client_table(own, groups=groups, unseen=unseen, metric=metric, clusters=found, names=names)
            brought = newcomer_table(clients, metric) if unseen else None
            write_run(out, method, seed, clients, metric=metric, higher=higher, newcomers=brought)
    study = {"data": {"name": "by-hand"}, "methods": list(scores), "seeds": list(seeds), "rounds": 6}
    (out / "study.json").write_text(json.dumps(study))
    (out / "data.json").write_text(json.dumps({"title": "by hand", "clients": len(next(iter(scores.values())))}))
    return out
