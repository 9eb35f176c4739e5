"""Time plures against its peers on the engine cases and write the tables.

Each peer lives in a virtual environment of its own, made on first use. All of
them run in turn, several passes over, and the best run of each one counts, so
that a busy moment of the machine does not fall on one library alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from cases import CASES

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent / ".envs"
OURS = "plures"

# Installed one line after another, so that torch is there before what needs it.
REQUIREMENTS = {
    "torch": (("torch==2.13.0", "numpy==2.4.6"),),
    "fedjax": (
        ("jax==0.10.2", "jaxlib==0.10.2", "numpy==2.4.6"),
        ("dm-haiku==0.0.17", "optax==0.2.8", "fedjax==0.0.17"),
    ),
    "pfl": (("torch==2.13.0", "numpy==2.4.6"), ("pfl==0.6.0",)),
}

# A second thread can slow small PyTorch models down, above all on a busy
# machine, so the PyTorch peers are timed both ways and the better one counts.
THREADS = {"torch": (2, 1), "pfl": (2, 1)}

Result = dict[str, Any]


def parse_arguments() -> argparse.Namespace:
    """Read which cases and peers to run and how often."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="abc")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", default="torch,fedjax,pfl")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=600, help="seconds per script")
    arguments = parser.parse_args()
    arguments.peers = [peer for peer in arguments.peers.split(",") if peer]
    if unknown := set(arguments.peers) - set(REQUIREMENTS):
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}")
    if unknown := set(arguments.cases) - set(CASES):
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}")
    return arguments


def environment_python(peer: str) -> str:
    """Return the interpreter of a peer's environment, making it if it is missing."""
    root = ENVIRONMENTS / peer
    python = root / "bin" / "python"
    ready = root / "ready"
    if not ready.exists():
        commands = [[sys.executable, "-m", "venv", str(root)]]
        for requirements in REQUIREMENTS[peer]:
            commands.append([str(python), "-m", "pip", "install", "-q", *requirements])
        for command in commands:
            subprocess.run(command, check=True, capture_output=True)
        ready.touch()
    return str(python)


def script_command(who: str, case: str, repeats: int) -> list[list[str]]:
    """Return the commands that time one library on one case."""
    ours = who == OURS
    python = sys.executable if ours else environment_python(who)
    script = HERE / ("ours.py" if ours else f"peer_{who}.py")
    command = [python, str(script), "--case", case, "--repeats", str(repeats)]
    if who not in THREADS:
        return [command]
    return [[*command, "--threads", str(count)] for count in THREADS[who]]


def run_command(command: list[str], timeout: int) -> Result:
    """Run one script and return the JSON of its last line."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RuntimeError(lines[-1])
    return json.loads(done.stdout.strip().splitlines()[-1])


def time_once(who: str, case: str, arguments: argparse.Namespace) -> list[Result]:
    """Time one library on one case; a failure becomes a result with an error."""
    if who == OURS and not (HERE / "ours.py").exists():
        return [{"error": "ours.py is missing"}]
    try:
        commands = script_command(who, case, arguments.repeats)
    except subprocess.CalledProcessError:
        return [{"error": "installing its environment failed"}]
    results = []
    for command in commands:
        try:
            results.append(run_command(command, arguments.timeout))
        except subprocess.TimeoutExpired:
            results.append({"error": f"took longer than {arguments.timeout} s"})
        except (RuntimeError, ValueError, IndexError) as error:
            results.append({"error": str(error)})
    return results


def best_result(results: list[Result]) -> Result:
    """Return the result with the fastest run, or the first error if none worked."""
    good = [result for result in results if "seconds" in result]
    if not good:
        return results[0]
    return min(good, key=lambda result: min(result["seconds"]))


def time_case(case: str, arguments: argparse.Namespace) -> list[Result]:
    """Time all libraries on one case in turn and return one row for each."""
    everyone = [OURS, *arguments.peers]
    results: dict[str, list[Result]] = {who: [] for who in everyone}
    for _ in range(arguments.passes):
        for who in everyone:
            print(f"case {case}: {who} ...", file=sys.stderr, flush=True)
            results[who] += time_once(who, case, arguments)
    rows = [make_row(case, who, results[who]) for who in everyone]
    ours = rows[0].get("best")
    for row in rows:
        if ours and "best" in row:
            row["ratio"] = row["best"] / ours
    return rows


def make_row(case: str, who: str, results: list[Result]) -> Result:
    """Condense all results of one library on one case into one row."""
    best = best_result(results)
    row: Result = {"case": case, "who": who, "runs": results}
    if "seconds" not in best:
        return row | {"error": best["error"]}
    row["best"] = min(best["seconds"])
    row["rate"] = best["examples"] / row["best"]
    row["versions"] = best["versions"]
    row["threads"] = best.get("threads")
    return row


def row_cells(row: Result) -> list[str]:
    """Format a row for either table."""
    if "error" in row:
        message = " ".join(row["error"].split()).replace("|", "/")
        return [row["case"], row["who"], "failed", "", "", message]
    threads = row["threads"]
    note = f"; {threads} thread{'s' * (threads != 1)}" if threads else ""
    versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
    ratio = f"{row['ratio']:.2f}" if "ratio" in row else ""
    best, rate = f"{row['best']:.3f}", f"{row['rate']:,.0f}"
    return [row["case"], row["who"], best, rate, ratio, versions + note]


# How many times as fast as whom plures has to be; "fastest" is the fastest peer that ran.
BARS = {"a": ("fastest", 5.0), "b": ("torch", 2.5), "c": ("torch", 0.9)}


def verdicts(rows: list[Result]) -> list[tuple[str, bool]]:
    """Return a line for each bar and whether it is met; without a time of ours it is not."""
    found = []
    for case, (whom, bar) in BARS.items():
        mine = [row for row in rows if row["case"] == case]
        if not mine:
            continue
        rivals = [row["ratio"] for row in mine if "ratio" in row and row["who"] != OURS]
        named = [row["ratio"] for row in mine if "ratio" in row and row["who"] == whom]
        ratio = min(rivals, default=0.0) if whom == "fastest" else min(named, default=0.0)
        who = "the fastest peer" if whom == "fastest" else f"the {whom} loop"
        word = "met" if ratio >= bar else "NOT met"
        found.append((f"- {case}: {ratio:.2f}x {who}; bar {bar:g}x: {word}", ratio >= bar))
    return found


HEADER = ["case", "who", "best seconds", "examples/s", "time / plures", "versions"]


def plain_table(rows: list[Result]) -> str:
    """Lay the rows out in aligned columns."""
    cells = [HEADER, *map(row_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)


def markdown_table(rows: list[Result]) -> str:
    """Lay the rows out as a markdown table."""
    cells = [HEADER, ["---"] * len(HEADER), *map(row_cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def machine() -> dict[str, Any]:
    """Return the CPU model, the number of cores and how busy the machine is."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = [line.split(":", 1) for line in lines if ":" in line]
    models = [value.strip() for key, value in fields if key.strip() == "model name"]
    return {
        "cpu": models[0] if models else "unknown",
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def describe_cases(names: str) -> str:
    """Say in one line per case what is being timed."""
    lines = []
    for case in (CASES[name] for name in names):
        lines.append(
            f"- {case.name}: {case.model}, {case.clients} clients x "
            f"{case.examples_per_client} examples, {case.cohort} per round, "
            f"batch {case.batch}, {case.rounds} round(s) per timed run"
        )
    return "\n".join(lines)


def markdown_page(rows: list[Result], about: dict[str, Any], names: str) -> str:
    """Return the page with the table and everything needed to repeat it."""
    return f"""# Engine benchmark

Federated averaging, one local epoch of SGD, float32, synthetic data.

{describe_cases(names)}

{markdown_table(rows)}

{chr(10).join(line for line, _ in verdicts(rows))}

The ratio is a library's best time over the best time of plures: above 1 means
that plures is faster. PyTorch peers are timed with two threads and with one,
and the better of the two is shown. pfl goes through its clients in turn, with
the sampler that its documentation recommends.

- CPU: {about["cpu"]}, {about["cores"]} cores
- Load average when the run began: {about["load"]:.2f}
- Date: {about["date"]}
- Command: `{about["command"]}`
"""


def main() -> None:
    """Run everything and write both files."""
    arguments = parse_arguments()
    command = shlex.join(["python", "benchmarks/engine/bench.py", *sys.argv[1:]])
    date = datetime.date.today().isoformat()
    about = {**machine(), "date": date, "command": command}
    rows = [row for case in arguments.cases for row in time_case(case, arguments)]
    print(plain_table(rows))
    page = markdown_page(rows, about, arguments.cases)
    (HERE.parent / "engine.md").write_text(page)
    record = json.dumps({**about, "rows": rows}, indent=2)
    (HERE.parent / "engine.json").write_text(record + "\n")
    if not all(met for _, met in verdicts(rows)):
        sys.exit("a bar is not met, see benchmarks/engine.md")


if __name__ == "__main__":
    main()
