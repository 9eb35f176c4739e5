"""Where personalization can help at all: pooled, alone, FedAvg and FedAvg | finetune on every real data set.

Pooled is one model trained on all clients' training rows in one place, which a federation forbids: it shows what
one model for all can reach. All four get the same model, the same passes over the data and the same search over
step sizes on valid rows; test rows are read once, with the step size chosen.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge

import plures
from plures.data import Federation, from_arrays, load, partition
from plures.data.federation import Examples, assemble
from plures.data.partition.redistribution import pool_of
from plures.study import build_model
from plures.study.grid import compare
from plures.study.statistics import worst_decile
from plures.types import Plan

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
FEDERATED = ("local_only", "fedavg", "fedavg|finetune")
RATES = (0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Job:
    """A data set, the model for it and the local work of a round."""

    text: str
    model: str
    rounds: int = 50
    batch: int = 10
    rates: tuple[float, ...] = RATES


JOBS = (
    Job("digits", "softmax"),
    Job("mnist-writers", "softmax", rounds=40),
    Job("har", "softmax"),
    Job("heart", "softmax"),
    Job("school", "least_squares", rates=(0.0003, 0.001, 0.003, 0.01, 0.03)),
    Job("shakespeare:min_characters=20000", "char_mlp", rounds=20, rates=(0.1, 0.3, 1.0)),
    Job("digit-domains", "mlp:hidden=128", rounds=40, batch=20),
    Job("cifar10", "mlp:hidden=128", rounds=40, batch=20, rates=(0.003, 0.01, 0.03, 0.1)),
)


def merged(federation: Federation) -> Federation:
    """All clients' rows as those of one client, each in the split it has."""
    pool = pool_of(federation)
    codes = np.concatenate([np.repeat(np.arange(3), counts) for counts in federation.count])
    examples = Examples(federation.x, federation.y, np.zeros(len(codes), np.int64), codes, pool.rows)
    return assemble(examples, names=("all",), task=federation.task, num_classes=federation.num_classes)


def pooled(job: Job, federation: Federation, seed: int, rate: float) -> dict[str, np.ndarray]:
    """The score of one model trained on everybody's rows, for every client and split."""
    model = build_model(job.model, federation)
    whole = merged(federation)
    method = plures.methods.local_only.local_only(model, plan=Plan(batch=job.batch, lr=rate))
    run = plures.run(method, whole, rounds=job.rounds, seed=seed, eval_every=job.rounds)
    served, found = run.model_for(0), {}
    for split in ("valid", "test"):
        scores = []
        for name in federation.names:
            x, y = federation.rows_of(name, split)
            outputs = served.predict(x) if len(x) else None
            scores.append(
                np.nan if outputs is None else model.metrics[model.score](outputs, y, np.ones(len(y), bool))
            )
        found[split] = np.array(scores, float)
    return found


def federated(job: Job, name: str, federation: Federation, seed: int, rate: float) -> dict[str, np.ndarray]:
    """The personal score of every client under a method, for both splits."""
    result = compare(
        [name],
        federation,
        rounds=job.rounds,
        model=job.model,
        plan=Plan(batch=job.batch, lr=rate),
        seeds=[seed],
        eval_every=job.rounds,
    )
    columns = {split: result.clients[f"personal_{split}_{result.metric}"] for split in ("valid", "test")}
    return {split: values.cast(float).fill_null(np.nan).to_numpy() for split, values in columns.items()}


def scores(job: Job, name: str, federation: Federation, seed: int, rate: float) -> dict[str, np.ndarray]:
    if name == "pooled":
        return pooled(job, federation, seed, rate)
    return federated(job, name, federation, seed, rate)


def with_seed(job: Job, seed: int) -> Federation:
    """The data set, split anew by the seed where the split is drawn."""
    return load(job.text, seed=seed)


def measure(job: Job) -> dict:
    """Mean and worst decile of all four, over three seeds; the step size is chosen on valid rows of the first."""
    federations = [with_seed(job, seed) for seed in SEEDS]
    model = build_model(job.model, federations[0])
    sign = 1 if model.higher_is_better else -1
    rows = {}
    for name in ("pooled", *FEDERATED):
        start = time.perf_counter()
        tried = {rate: sign * np.nanmean(scores(job, name, federations[0], 0, rate)["valid"]) for rate in job.rates}
        best = max(job.rates, key=lambda rate: tried[rate] if np.isfinite(tried[rate]) else -np.inf)
        found = [scores(job, name, federations[seed], seed, best)["test"] for seed in SEEDS]
        per_client = np.stack(found)
        rows[name] = {
            "rate": best,
            "mean": float(np.nanmean(per_client)),
            "by_seed": [float(np.nanmean(values)) for values in per_client],
            "worst_decile": worst_decile(np.nanmean(per_client, 0), higher_is_better=model.higher_is_better),
            "seconds": time.perf_counter() - start,
        }
        print(job.text, name, rows[name], file=sys.stderr, flush=True)
    size = federations[0].count.sum()
    about = {"clients": federations[0].num_clients, "rows": int(size), "metric": model.score, "model": job.model}
    return {"name": job.text, **about, "notes": list(federations[0].notes), "methods": rows}


def reference(name: str, splits: int = 10) -> dict[str, float]:
    """Pooled and alone by scikit-learn, a mean over several draws of the split."""
    found = [reference_of(load(name, seed=seed)) for seed in range(splits)]
    return {one: float(np.mean([values[one] for values in found])) for one in ("pooled", "alone")}


def reference_of(federation: Federation) -> dict[str, float]:
    """Pooled and alone by scikit-learn, trained to the optimum: train and valid rows against test rows."""
    regression = federation.task == "regression"

    def fitted(x: np.ndarray, y: np.ndarray):
        maker = Ridge(alpha=10.0) if regression else LogisticRegression(max_iter=1000)
        return maker.fit(x, y)

    def score(model, x: np.ndarray, y: np.ndarray) -> float:
        predicted = model.predict(x)
        return float(np.sqrt(np.mean((predicted - y) ** 2)) if regression else (predicted == y).mean())

    parts = {
        split: [federation.rows_of(who, split) for who in federation.names] for split in ("train", "valid", "test")
    }
    learn = [
        tuple(np.concatenate(both) for both in zip(*pair, strict=True))
        for pair in zip(parts["train"], parts["valid"], strict=True)
    ]
    whole = fitted(*(np.concatenate(both) for both in zip(*learn, strict=True)))
    together = [score(whole, *test) for test in parts["test"]]
    alone = [score(fitted(*own), *test) for own, test in zip(learn, parts["test"], strict=True)]
    sizes = np.array([len(test[1]) for test in parts["test"]])
    if regression:  # one error over all rows, as the root of the weighted mean square
        return {
            one: float(np.sqrt(np.average(np.square(values), weights=sizes)))
            for one, values in (("pooled", together), ("alone", alone))
        }
    return {
        one: float(np.average(values, weights=sizes)) for one, values in (("pooled", together), ("alone", alone))
    }


ROWS, CLIENTS, WIDTH = 1_000_000, 100_000, 100


def partitioned(name: str, in_place: bool) -> dict[str, float]:
    """Seconds, and the most memory in units of the data, of dealing a million rows, in a process of its own."""
    x = np.asarray(jax.random.normal(jax.random.key(0), (ROWS, WIDTH)), np.float32).copy()
    pool = from_arrays(x, np.arange(ROWS, dtype=np.int32) % 10, np.zeros(ROWS, np.int8))
    del x
    data = pool.x.nbytes + pool.y.nbytes
    getattr(partition, name)(load("digits", num_clients=1, num_groups=1))  # loads what is loaded on first use
    before, _ = _memory(), Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    made = getattr(partition, name)(pool, num_clients=CLIENTS, in_place=in_place)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "extra": (_memory("VmHWM") - before) / data,
        "total": (_memory("VmHWM") - before + data) / data,
        "smallest": int(made.count.sum(1).min()),
        "largest": int(made.count.sum(1).max()),
    }


def _memory(field: str = "VmRSS") -> float:
    """Bytes resident now, or at most since the mark was cleared."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(field))


DEALERS = ("iid", "dirichlet", "classes", "shards", "lognormal", "zipf")


def in_own_process(*arguments: str) -> dict:
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def page(results: list[dict], references: dict, parts: dict) -> str:
    """The table as Markdown."""
    lines = [
        "# Where personalization can help",
        "",
        f"Made by `make bench-data` with plures {plures.__version__}, jax {jax.__version__}, "
        f"Python {platform.python_version()}, {os.cpu_count()} CPU cores.",
        "",
        "One model and one number of passes over the data per set. *Pooled*: trained on all clients' rows in one place. "
        f"*Alone*: `local_only`. Every column searches the step size among the same values on the valid rows of seed 0; "
        f"test rows are read once. Figures are means over clients and the {len(SEEDS)} seeds 0, 1, 2 (a seed draws the "
        "split too, where the split is drawn), ± half the range of the seeds' means; in brackets the worst decile: nine "
        "in ten clients do better. The step size chosen stands behind @.",
        "",
        "| data set | clients | rows | model | score | pooled | alone | FedAvg | FedAvg, finetune |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in results:
        cells = [_cell(one["methods"][name]) for name in ("pooled", *FEDERATED)]
        head = [f"`{one['name']}`", str(one["clients"]), f"{one['rows']:,}", f"`{one['model']}`", one["metric"]]
        lines.append("| " + " | ".join(head + cells) + " |")
    lines += ["", *reading(results)]
    lines += ["", "## Against scikit-learn", "", *_reference_lines(references), "", "## Dealing a million rows", ""]
    lines += [
        f"{ROWS:,} rows of {WIDTH} numbers (float32) into {CLIENTS:,} clients, each rule in its own process. Memory is "
        "the most that was resident, in units of the data: the source, the new federation and all scratch together; "
        "*in place* reuses the source's memory, as `plures compare --data 'a|b'` does.",
        "",
        "| dealer | seconds | memory | seconds in place | memory in place | smallest client | largest |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (plain, reused) in parts.items():
        lines.append(
            f"| `{name}` | {plain['seconds']:.1f} | {plain['total']:.2f} | {reused['seconds']:.1f} | "
            f"{reused['total']:.2f} | {plain['smallest']} | {plain['largest']} |"
        )
    return "\n".join(lines) + "\n"


def reading(results: list[dict]) -> list[str]:
    """Where fine-tuning wins or loses against one model for all, in every seed; the rest is undecided."""
    verdicts: dict[str, list[str]] = {"wins": [], "loses": [], "neither": []}
    for one in results:
        found, sign = one["methods"], -1 if one["metric"] == "rmse" else 1
        tuned = np.array(found["fedavg|finetune"]["by_seed"])
        best = np.array([found[name]["by_seed"] for name in ("pooled", "fedavg")])
        gaps = sign * (tuned - best)  # (2, seeds)
        word = "wins" if (gaps > 0).all() else "loses" if (gaps < 0).any(0).all() else "neither"
        verdicts[word].append(f"`{one['name']}`")
    said = {word: ", ".join(names) or "none" for word, names in verdicts.items()}
    return [
        f"FedAvg with fine-tuning beats both the pooled model and FedAvg in each of the three seeds on: {said['wins']}. In each "
        f"seed one of the two beats it on: {said['loses']}. Neither holds on: {said['neither']}. A step size at the end of its "
        "range is shown as it was found; the ranges are in `benchmarks/data.py`.",
    ]


def _cell(found: dict) -> str:
    digits = 3 if abs(found["mean"]) < 2 else 2
    half = (max(found["by_seed"]) - min(found["by_seed"])) / 2
    return f"{found['mean']:.{digits}f} ± {half:.{digits}f} ({found['worst_decile']:.{digits}f}) @{found['rate']:g}"


def _reference_lines(references: dict) -> list[str]:
    lines = [
        "Linear models trained to their optimum by scikit-learn on train and valid rows, scored over all test rows together "
        "(`LogisticRegression` with its default penalty; `Ridge(alpha=10)`, the mean over ten draws of the split), "
        "beside the reference figures that came with the data.",
        "",
        "| data set | pooled | reference | alone | reference |",
        "|---|---|---|---|---|",
    ]
    for name, given in (("har", (0.962, 0.962)), ("school", (10.31, 10.46))):
        if name in references:
            found = references[name]
            lines.append(f"| `{name}` | {found['pooled']:.3f} | {given[0]} | {found['alone']:.3f} | {given[1]} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dealer", help="time this dealer and print JSON")
    parser.add_argument("--in-place", action="store_true")
    parser.add_argument("--one-set", help="measure this set and print JSON")
    parser.add_argument("--only", help="measure only the sets whose name starts so; the others are kept")
    arguments = parser.parse_args()
    if arguments.dealer:
        print(json.dumps(partitioned(arguments.dealer, arguments.in_place)))
        return
    if arguments.one_set:
        print(json.dumps(measure(next(job for job in JOBS if job.text == arguments.one_set))))
        return
    file = HERE / "data.json"
    kept = json.loads(file.read_text()) if file.exists() and arguments.only else {}
    results = {one["name"]: one for one in kept.get("sets", [])}
    for job in JOBS:
        if arguments.only is None or job.text.startswith(arguments.only):
            # A process each: what hundreds of compiled programs take is given back.
            results[job.text] = in_own_process("--one-set", job.text)
            file.write_text(json.dumps({**kept, "sets": list(results.values())}, indent=1) + "\n")
    # har has one split, by recording.
    references = {"har": reference("har", splits=1), "school": reference("school")}
    ways = ((), ("--in-place",))
    parts = kept.get("dealers") or {
        name: [in_own_process("--dealer", name, *way) for way in ways] for name in DEALERS
    }
    ordered = [results[job.text] for job in JOBS if job.text in results]
    file.write_text(json.dumps({"sets": ordered, "references": references, "dealers": parts}, indent=1) + "\n")
    (HERE / "data.md").write_text(page(ordered, references, parts))


if __name__ == "__main__":
    main()
