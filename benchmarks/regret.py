"""How good the recommendation is: its regret on federations of every kind, and how often equal methods are called different.

    make bench-regret                                   all federations and draws; writes benchmarks/regret.md and .json
    .venv/bin/python benchmarks/regret.py --only level --workers 1 --no-null      a part, printed only

On every federation ``plures.compare`` runs a portfolio with its defaults (steps found from the data, 60 rounds, three seeds).
What is recommended from the methods of the default study is scored on test rows, which chose nothing: by how much it is below the
best of the whole portfolio in hindsight, and below the better of training alone and one model for all, in percent of the score's range (1 for accuracy;
the trivial predictor's error for RMSE and losses). Generated tables have 300 fresh test rows a client. What the rule and the
defaults were chosen by is the first half, in the order of a hash of the names; reported is the other one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

ONE_CORE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ.setdefault("XLA_FLAGS", ONE_CORE)

import numpy as np  # noqa: E402  (after the flags of XLA)

HERE = Path(__file__).parent
PORTFOLIO = (
    "local_only",
    "fedavg",
    "fedavg|finetune",
    "ditto",
    "hypcluster_auto",
    "convex_clustering",
    "fedclup",
    "apfl",
)
"""What is best in hindsight is the best of these; the default study, whose recommendation is scored, compares some of them."""

FRESH, BARS = 300, {"mean": 0.5, "worst": 2.0}
NULL_DRAWS, NULL_CLIENTS, NULL_METHODS = 1000, 40, (8, 30)


# ---- federations


def table(kind: str, *, classes: bool, seed: int, clients: int = 24, rows: int = 60, dim: int = 8) -> Any:
    """A made-up table of one kind, read as a user's own file: rows to train and to validate with, and fresh test rows."""
    import polars as pl

    from plures.data.loading import DataSpec

    draw = np.random.default_rng(zlib.crc32(f"{kind} {classes} {seed}".encode()))
    clients = {"few": 4}.get(kind, clients)
    sizes = np.full(clients, rows)
    if kind == "sizes":
        sizes = np.clip(np.exp(draw.normal(np.log(rows), 1.0, clients)), 8, 600).astype(int)
    common = draw.normal(size=dim) / np.sqrt(dim) * 2
    weights = common + np.zeros((clients, dim))
    level, noise = np.zeros(clients), np.full(clients, 0.5)
    if kind == "level":
        level = draw.normal(0, 3, clients)
    elif kind in ("slopes", "few"):
        weights = weights + draw.normal(0, 0.35, (clients, dim))
    elif kind == "far":
        weights = draw.normal(0, 1.2, (clients, dim))
    elif kind.startswith("groups"):
        number = int(kind[-1])
        weights = draw.normal(0, 1.0, (number, dim))[draw.integers(0, number, clients)]
    elif kind == "outlier":
        weights[draw.integers(clients)] = -2 * common
    elif kind == "noises":
        noise = np.exp(draw.uniform(np.log(0.1), np.log(3), clients))
        weights = weights + draw.normal(0, 0.15, (clients, dim))
    parts = []
    for client in range(clients):
        number = sizes[client] + FRESH
        x = draw.standard_t(2.5, (number, dim)) if kind == "tails" else draw.normal(size=(number, dim))
        signal = x @ weights[client] + level[client]
        if kind == "curved":
            signal = signal + 2 * np.abs(x[:, 0]) * np.sign(x[:, 1]) + x[:, 2] ** 2
        split = np.full(number, "test", object)
        split[: sizes[client]] = np.where(np.arange(sizes[client]) % 4 == 3, "valid", "train")
        if classes:
            shift = 3.5 if kind == "imbalance" else 0.0
            y = np.where(draw.random(number) < 1 / (1 + np.exp(-(2 * signal - shift))), "yes", "no")
        else:
            unit, offset = (60.0, 1000.0) if kind == "offset" else (1.0, 0.0)
            y = unit * (signal + noise[client] * draw.normal(size=number)) + offset
        columns = {f"x{j}": x[:, j] for j in range(dim)}
        if kind == "id":
            columns["number"] = np.arange(number) + 1000.0 * client
        parts.append(
            pl.DataFrame({"site": [f"{'ab'[client % 2]}_{client}"] * number, **columns, "y": y, "split": split})
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        pl.concat(parts).write_csv(path)
        return DataSpec(
            text=str(path), options={"target": "y", "client": "site", "split": "split"}, hold_out=0
        ).load()


def named(text: str, hold_out: Any = None) -> Any:
    """Data by name, with the clients held out that are by default."""
    from plures.data.loading import DataSpec

    return DataSpec(text=text, options={}, hold_out=hold_out).load()


BOTH = ("alike", "level", "slopes", "far", "groups2", "groups3", "outlier", "sizes", "tails", "id", "few", "curved")
KINDS = [(kind, classes) for kind in BOTH for classes in (False, True)]
KINDS += [("noises", False), ("offset", False), ("imbalance", True)]
NAMED = {
    "linear_clusters": "linear_clusters:num_clients=24,num_groups=3",
    "linear_clusters, 2 groups": "linear_clusters:num_clients=20,num_groups=2,rows=40",
    "logistic_clusters": "logistic_clusters:num_clients=24,num_groups=3",
    "linear_offsets, none": "linear_offsets:radius=0",
    "linear_offsets, few": "linear_offsets:radius=0.3",
    "linear_offsets, some": "linear_offsets:radius=1",
    "linear_offsets, far": "linear_offsets:radius=4",
    "logistic_offsets, few": "logistic_offsets:radius=0.3",
    "logistic_offsets, far": "logistic_offsets:radius=3",
    "ellipses": "ellipses",
    "digits": "digits",
    "digits, one group": "digits:num_groups=1",
    "digits, two groups": "digits:num_groups=2,num_clients=20",
    "digits, Dirichlet 0.1": "digits:num_groups=1|dirichlet:alpha=0.1",
    "digits, Dirichlet 1": "digits:num_groups=1|dirichlet:alpha=1",
    "digits, labels permuted": "digits:num_groups=1|label_permutation_groups",
    "digits, sizes": "digits:num_groups=1|lognormal",
    "digits, shift": "digits:num_groups=1|feature_shift",
}
FILES = {"school": "school", "heart": "heart"}
"""Real data sets, where PLURES_DATA says that their files are there."""


def federations() -> dict[str, Callable[[], Any]]:
    """What makes (seen, unseen) clients, by name."""
    found: dict[str, Callable[[], Any]] = {}
    for seed in (0, 1):
        for kind, classes in KINDS:
            name = f"{kind}, {'classes' if classes else 'numbers'}, draw {seed}"
            found[name] = partial(table, kind, classes=classes, seed=seed)
    found |= {name: partial(named, text) for name, text in NAMED.items()}
    if os.environ.get("PLURES_DATA"):
        found |= {name: partial(named, text) for name, text in FILES.items()}
    return found


def half_of(name: str) -> str:
    """Which half a federation is in: the rule was made with "first" ones."""
    return ("first", "second")[zlib.crc32(name.encode()) % 2]


# ---- regret


def judge(
    name: str,
    portfolio: Sequence[str] = PORTFOLIO,
    rounds: int = 60,
    seeds: Sequence[int] = (0, 1, 2),
    references: bool = True,
) -> dict[str, Any]:
    """What is recommended on a federation, and what every method gets on its test rows."""
    import jax

    import plures
    from plures.advise.family_advice import try_advise
    from plures.builders import build_model, default_model
    from plures.study.grid import default_methods
    from plures.study.recommendation import Choice, recommend
    from plures.study.references import references_of
    from plures.study.shortfalls import shortfalls

    began = time.process_time()
    seen, unseen = federations()[name]()
    model = build_model(default_model(seen), seen)
    fit, refused = [], {}
    for text in portfolio:
        try:
            plures.build(text, model, federation=seen)
            fit.append(text)
        except plures.errors.UserError as error:
            refused[text] = str(error)
    result = plures.compare(fit, seen, unseen=unseen, rounds=rounds, seeds=list(seeds), eval_every=10, patience=3)
    if references:
        result = replace(result, references=references_of(seen, unseen, model, seconds=10.0))
    usual = result.clients["method"].is_in(default_methods(seen, rounds))
    found, of_all = recommend(replace(result, clients=result.clients.filter(usual))), recommend(result)
    told = try_advise(seen) if references else None
    rows = {row["method"]: row for row in result.leaderboard.iter_rows(named=True)}
    jax.clear_caches()  # a worker would keep the programs of all federations
    return {
        "name": name,
        "half": half_of(name),
        "metric": result.metric,
        "higher": result.higher_is_better,
        "span": Choice(result).span if found.advice else None,
        "advice": found.advice,
        "advice_of_all": of_all.advice,
        "text": found.text,
        "advised": None if told is None else told.first,
        "means": {text: row["mean"] for text, row in rows.items()},
        "valid": {text: row["valid_mean"] for text, row in rows.items()},
        "words": {text: row["against_best"] for text, row in rows.items()},
        "references": dict(result.reference_means),
        "refused": refused,
        "shortfalls": {one.method: one.said for one in shortfalls(result)},
        "seconds": time.process_time() - began,
    }


def regrets(row: Mapping[str, Any], taken: str) -> dict[str, float]:
    """In percent of the score's range: how far a method is below the best, and below the better end."""
    sign = 1.0 if row["higher"] else -1.0
    means = {
        name: sign * mean
        for name, mean in row["means"].items()
        if mean is not None and row["words"][name] != "diverged"
    }
    if taken not in means:
        return {"best": float("nan"), "ends": float("nan")}
    ends = [means[name] for name in ("local_only", "fedavg") if name in means]
    percent = 100 / row["span"]
    return {
        "best": percent * (max(means.values()) - means[taken]),
        "ends": percent * (max(ends, default=means[taken]) - means[taken]),
    }


# ---- equal methods


def false_clear(num_methods: int, draws: range = range(NULL_DRAWS), clients: int = NULL_CLIENTS) -> int:
    """In how many draws of equal methods some method is called behind."""
    from plures.study.pairs import all_pairs

    wrong = 0
    for seed in draws:
        draw = np.random.default_rng(seed)
        of_client, of_seed = draw.normal(size=clients), draw.normal(size=(3, 1)) / 4
        scores = {f"m{m}": of_client + of_seed + 0.5 * draw.normal(size=(3, clients)) for m in range(num_methods)}
        wrong += bool(all_pairs(scores).behind(higher_is_better=True))
    return wrong


# ---- the page


def lines(
    rows: Sequence[Mapping[str, Any]], null: Mapping[int, float], methods: Sequence[str], num_seeds: int
) -> Iterator[str]:
    """The page."""
    yield "# Regret of the recommendation"
    yield ""
    yield f"Written by `make bench-regret` ([regret.py](regret.py)): {len(rows)} federations, {platform.machine()}, {os.cpu_count()} cores."
    yield "Percent of the score's range (1 for accuracy, the trivial predictor's error for RMSE and losses), on test rows that chose nothing."
    yield f"Seeds: {num_seeds}. What is best in hindsight is the best of {', '.join(f'`{one}`' for one in methods)}."
    yield ""
    yield "| half | federations | taken by | mean regret | worst | below the better end, worst |"
    yield "|---|---|---|---|---|---|"
    for half in ("first", "second"):
        mine = [row for row in rows if row["half"] == half]
        said = {"the default study": "advice", "a study of all these": "advice_of_all", "advise alone": "advised"}
        ways = {way: [regrets(row, row[what]) for row in mine if row[what]] for way, what in said.items()}
        for end in ("fedavg", "local_only"):
            ways[f"always {end}"] = [regrets(row, end) for row in mine]
        for way, found in ways.items():
            best, ends = ([one[what] for one in found if np.isfinite(one[what])] for what in ("best", "ends"))
            if best:
                yield f"| {half} | {len(best)} | {way} | {np.mean(best):.2f} | {max(best):.2f} | {max(ends):.2f} |"
    yield ""
    yield f"Bars: mean {BARS['mean']}, worst {BARS['worst']}, and never below the better end beyond noise. The first half is what the rule was chosen by."
    if null:
        yield ""
        yield "| equal methods | called different |"
        yield "|---|---|"
        for number, share in null.items():
            yield f"| {number}, of {NULL_CLIENTS} clients and 3 seeds | {100 * share:.1f} % of {NULL_DRAWS:,} draws (bar: 5 %) |"
    yield ""
    yield "| federation | half | recommended | regret | best in hindsight | best of alone and fedavg | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        sign = 1 if row["higher"] else -1
        known = {name: sign * mean for name, mean in row["means"].items() if mean is not None}
        best = max(known, key=known.__getitem__, default="")
        mine = regrets(row, row["advice"])
        yield f"| {row['name']} | {row['half']} | {row['advice'] or 'none'} | {mine['best']:.2f} | {best} | {-mine['ends']:+.2f} | {row['seconds']:.0f} |"


def main() -> None:
    """Run the federations side by side and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="federations with this in their name; nothing is written then")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--half", choices=("first", "second"), help="federations of one half only")
    parser.add_argument("--methods", nargs="*", default=PORTFOLIO)
    parser.add_argument("--seeds", type=int, nargs="*", default=(0, 1, 2))
    parser.add_argument(
        "--no-null", action="store_true", help="no draws of equal methods; what is known of them is kept"
    )
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--minutes", type=float, default=1e4, help="what has not ended by then is left out")
    given = parser.parse_args()
    names = [name for name in federations() if given.only in name and given.half in (None, half_of(name))]
    rows, began = dict[str, Any](), time.monotonic()
    pool = ProcessPoolExecutor(given.workers, mp_context=get_context("spawn"))
    numbers = () if given.no_null or given.only else NULL_METHODS
    parts = [range(first, first + NULL_DRAWS // 8) for first in range(0, NULL_DRAWS, NULL_DRAWS // 8)]
    nulls = {number: [pool.submit(false_clear, number, part) for part in parts] for number in numbers}
    # What is reported comes first.
    jobs = {
        pool.submit(judge, name, tuple(given.methods)): name for name in sorted(names, key=half_of, reverse=True)
    }
    try:
        for job in as_completed(jobs, timeout=60 * given.minutes):
            try:
                rows[jobs[job]] = job.result()
                one = rows[jobs[job]]
                print(
                    f"{time.monotonic() - began:6.0f} s  {one['name']}: {one['advice']}  {regrets(one, one['advice'])}",
                    flush=True,
                )
            except Exception as error:
                print(f"{jobs[job]} failed: {type(error).__name__}: {error}", flush=True)
    except TimeoutError:
        print(f"left out for time: {len(jobs) - len(rows)}", flush=True)
    kept = given.out / "regret.json"
    null = {number: sum(one.result() for one in found) / NULL_DRAWS for number, found in nulls.items()}
    if not null and kept.exists():
        null = json.loads(kept.read_text())["false_clear"]
    done = [rows[name] for name in names if name in rows]
    text = "\n".join(lines(done, null, given.methods, len(given.seeds))) + "\n"
    print(text)
    if not given.only:
        kept.write_text(json.dumps({"federations": done, "false_clear": null}, indent=1))
        (given.out / "regret.md").write_text(text)
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in active_children():
        worker.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
