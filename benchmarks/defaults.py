"""What every method reaches with its default options, on a standard set of federations, against the better of two ends.

    make bench-defaults                                 every method and personalizer; writes benchmarks/defaults.md and .json
    .venv/bin/python benchmarks/defaults.py --only digits --methods apfl fedper --workers 1      a part, printed only

The ends are ``fedavg`` and ``local_only``, trained until valid rows stop improving. All methods share the step size that a
study finds, the rounds and the seeds. A gap is in percent of the score's range (1 for accuracy; the trivial predictor's
error for RMSE and losses), on test rows that chose nothing; a method may be 2 below where its family fits, and 5 elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import regret

HERE = Path(__file__).parent
ENDS = ("local_only", "fedavg")
MERGED = ("means", "words", "refused", "shortfalls")
"""What the parts of a federation's methods are put together from."""
PARTS, FITS, ELSEWHERE = 2, 2.0, 5.0

ONE_MODEL = ("agnostic:num_domains=1", "fedprox", "scaffold")
CLUSTERS = (
    "hypcluster",
    "hypcluster_auto",
    "ifca",
    "federated_clustering",
    "momentum_clustering",
    "convex_clustering",
    "pdmm",
)
PERSONAL = (
    "fedavg|finetune",
    "ditto",
    "ditto|guard",
    "fedclup",
    "mr_mtl",
    "pfedme",
    "l2gd",
    "squared_penalty",
    "apfl",
    "per_fedavg",
    "fedala",
    "lgmix",
    "fedavg|dapper",
    "fedavg|mapper",
    "fedavg|mapper:joint=true",
    "fedavg|knn_per",
)
PARTED = ("fedper", "lg_fedavg", "fedrep", "fedbabu", "fedavg|split:keep=head")
METHODS = (*ONE_MODEL, *CLUSTERS, *PERSONAL, *PARTED)

STANDARD: Mapping[str, tuple[str, ...]] = {
    "alike, numbers, draw 0": (*ONE_MODEL, *PERSONAL),
    "alike, classes, draw 0": (*ONE_MODEL, *PERSONAL),
    "slopes, numbers, draw 0": PERSONAL,
    "slopes, classes, draw 0": PERSONAL,
    "level, numbers, draw 0": PERSONAL,
    "far, classes, draw 0": PERSONAL,
    "groups2, numbers, draw 0": CLUSTERS,
    "groups3, classes, draw 0": CLUSTERS,
    "sizes, classes, draw 0": (*ONE_MODEL, *PERSONAL),
    "curved, numbers, draw 0": (*ONE_MODEL, *PERSONAL),
    "linear_clusters": CLUSTERS,
    "logistic_clusters": CLUSTERS,
    "linear_offsets, some": PERSONAL,
    "digits": CLUSTERS,
    "digits, one group": (*ONE_MODEL, *PERSONAL),
    "digits, Dirichlet 0.1": (*PERSONAL, *PARTED),
    "digits, labels permuted": CLUSTERS,
}
"""The standard set, and the methods whose family fits each of them."""


def gaps(rows: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """By federation and method: how far below the better end, in percent of the score's range; infinite if useless."""
    found: dict[tuple[str, str], float] = {}
    for name, row in rows.items():
        sign = 1.0 if row["higher"] else -1.0
        end = max(sign * row["means"][one] for one in ENDS)
        for method, mean in row["means"].items():
            sound = mean is not None and row["words"][method] not in ("diverged", "useless", "no scores")
            found[name, method] = 100 / row["span"] * (end - sign * mean) if sound else float("inf")
    return found


def allowed(name: str, method: str) -> float:
    """How far below the better end a method may be on a federation."""
    return FITS if method in STANDARD[name] else ELSEWHERE


def lines(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The page."""
    found = gaps(rows)
    missed = {key for key, gap in found.items() if gap > allowed(*key)}
    methods = [one for one in METHODS if any((name, one) in found for name in rows)]
    yield "# Every method with its defaults"
    yield ""
    yield f"Written by `make bench-defaults` ([defaults.py](defaults.py)): {len(rows)} federations, {platform.machine()}, {os.cpu_count()} cores."
    yield "Percent of the score's range by which a method is below the better of `fedavg` and `local_only`; negative is better than both."
    yield (
        f"**Bold** is more than {FITS:g} where the method's family fits (marked \\*), more than {ELSEWHERE:g} elsewhere; - was refused; "
        "! says in a line of the study why it falls short and what to set."
    )
    yield ""
    yield f"| method | missed | worst | {' | '.join(rows)} |"
    yield f"|---|---|---|{'---|' * len(rows)}"
    for method in methods:
        cells, known = [], {name: found[name, method] for name in rows if (name, method) in found}
        for name in rows:
            gap = known.get(name)
            told = "!" if method in rows[name].get("shortfalls", {}) else ""
            text = "-" if gap is None else f"{gap:.1f}{'*' if method in STANDARD[name] else ''}{told}"
            cells.append(f"**{text}**" if (name, method) in missed else text)
        number = sum((name, method) in missed for name in rows)
        yield f"| {method.replace('|', chr(92) + '|')} | {number} of {len(known)} | {max(known.values()):.1f} | {' | '.join(cells)} |"
    silent = [key for key in missed if key[1] not in rows[key[0]].get("shortfalls", {})]
    yield ""
    yield f"Missed: {len(missed)} of {len(found)}; in {len(silent)} of these the study says nothing of it."


def main() -> None:
    """Play every part of the standard set side by side and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="federations with this in their name; nothing is written then")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--seeds", type=int, nargs="*", default=(0, 1, 2))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=1e4, help="what has not ended by then is left out")
    parser.add_argument("--out", type=Path, default=HERE)
    given = parser.parse_args()
    names = [name for name in STANDARD if given.only in name]
    parts = [tuple(given.methods[first::PARTS]) for first in range(PARTS)]
    pool = ProcessPoolExecutor(given.workers, mp_context=get_context("spawn"))
    jobs = {
        pool.submit(regret.judge, name, (*ENDS, *part), seeds=tuple(given.seeds), references=False): name
        for part in parts
        for name in names
        if part
    }
    rows: dict[str, dict[str, Any]] = {}
    began = time.monotonic()
    try:
        for job in as_completed(jobs, timeout=60 * given.minutes):
            name = jobs[job]
            try:
                one = job.result()
            except Exception as error:
                print(f"{name} failed: {type(error).__name__}: {error}", flush=True)
                continue
            row = rows.setdefault(name, {**one, **{what: {} for what in MERGED}})
            for what in MERGED:
                row[what] |= one[what]
            below = {
                method: round(gap, 1)
                for (_, method), gap in gaps({name: one}).items()
                if gap > allowed(name, method)
            }
            print(f"{time.monotonic() - began:6.0f} s  {name}: {one['seconds']:.0f} s, missed {below}", flush=True)
    except TimeoutError:
        print("some were left out for time", flush=True)
    text = "\n".join(lines({name: rows[name] for name in names if name in rows})) + "\n"
    print(text)
    if not given.only:
        (given.out / "defaults.json").write_text(json.dumps(rows, indent=1))
        (given.out / "defaults.md").write_text(text)
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in active_children():
        worker.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
