"""HypCluster's rounds in plures and in FedJAX: same clients, cohorts, models and step sizes, timed in turn.

FedJAX has an environment of its own, made on first use, and waits there while plures is timed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bench import environment_python, machine
from hypcluster_world import (
    BATCH,
    CLUSTERS,
    COHORT,
    ENGINE_CASE,
    LAYERS,
    LEARNING_RATE,
    NUM_CLIENTS,
    WIDTH,
    World,
    make_world,
    one_batch_sizes,
    unequal_sizes,
)
from ours import MODELS

from plures import tree
from plures.data import from_arrays
from plures.engine import Runner, Settings, prepare
from plures.engine.round import train_one
from plures.engine.rounds import clients_at, cohort_of, play
from plures.engine.state import State, first_state
from plures.methods.clustering.hypcluster import hypcluster
from plures.types import Key, Model, Plan, Weights

HERE = Path(__file__).resolve().parent
BAR, TOLERANCE = 5.0, 1e-4
COHORTS_CHECKED, ROUNDS_CHECKED = 5, 3

# Ways to run FedJAX: what clients are called, and how their rows are scored (see hypcluster_fedjax.py).
WAYS = {
    "FedJAX": ("own", "batches"),
    "FedJAX, nothing compiled anew": ("seat", "batches"),
    "FedJAX, nothing compiled anew, one batch to score": ("seat", "whole"),
}

Result = dict[str, Any]


class Plures:
    """One world, made ready to play HypCluster's rounds from the world's start models."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runner = _runner(world)
        self.setup = self.runner.setup(self.runner.phases[-1])
        self.state = self.start()

    def start(self) -> State:
        """The state before the first round."""
        state = first_state(self.runner.method, self.runner.key, len(self.world.sizes))
        server = state.server._replace(base=state.server.base._replace(weights=_weights(self.world)))
        return state._replace(server=server)

    def cohort(self, round_: int) -> np.ndarray:
        """Who takes part in a round."""
        return np.asarray(cohort_of(self.setup, self.runner.key, jnp.asarray(round_), self.runner.places))

    def chosen(self, cohort: np.ndarray, state: State) -> list[int]:
        """The cluster that each client of a cohort trains."""
        runner = self.runner
        clients = clients_at(tree.at(runner.places, cohort), (), state.visits[cohort], state.round, runner.key)
        uploads, _, _ = self.setup.executor.run(train_one, self.setup, runner.arrays, state.server, clients)
        return np.asarray(uploads.cluster).tolist()

    def play(self, state: State, rounds: int) -> State:
        """The state after some rounds."""
        runner = self.runner
        return jax.block_until_ready(play(self.setup, runner.arrays, runner.places, runner.key, state, rounds))[0]

    def time(self, rounds: int) -> float:
        """Seconds for so many rounds, training going on from the last time."""
        begin = time.perf_counter()
        self.state = self.play(self.state, rounds)
        return time.perf_counter() - begin


def _runner(world: World) -> Runner:
    case = ENGINE_CASE[world.model]
    federation = from_arrays(
        world.x, world.y, world.owner, shares=(1.0, 0.0, 0.0), num_classes=LAYERS[world.model][-1]
    )
    model = _apart(MODELS[case.model](case))
    method = hypcluster(model, num_clusters=CLUSTERS, plan=Plan(batch=BATCH, lr=LEARNING_RATE), init="random")
    return prepare(method, federation, settings=Settings(rounds=1, cohort=COHORT))


def _apart(model: Model) -> Model:
    """The model with a start that is never twice the same, as random starts ask for; it is replaced anyway."""

    def init(key: Key) -> Weights:
        return jax.tree.map(lambda leaf: leaf + jax.random.normal(key, leaf.shape), model.init(key))

    return replace(model, init=init)


def _weights(world: World) -> Weights:
    """The start models of all clusters, in plures' names and layout."""
    return Weights(_params(world.kernels, world.biases))


def _params(kernels: Any, biases: Any) -> Any:
    names = [*(f"dense_{i}" for i in range(len(kernels) - 1)), "head"]
    return {
        name: {"kernel": jnp.array(kernel.swapaxes(1, 2)), "bias": jnp.array(bias)}
        for name, kernel, bias in zip(names, kernels, biases, strict=True)
    }


class Peer:
    """FedJAX in its own environment: a request goes in, an answer comes out."""

    def __init__(self, process: subprocess.Popen, folder: Path) -> None:
        self.process = process
        self.folder = folder

    def ask(self, do: str, **request: Any) -> Any:
        """One request's answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("FedJAX's side ended; its error stands above")
        return json.loads(answer)

    def load(self, world: World) -> dict[str, str]:
        """Hand a world over; returns the versions of that side."""
        file = self.folder / "world.npz"
        world.save(file)
        return self.ask("load", world=str(file))


@contextmanager
def fedjax_peer() -> Iterator[Peer]:
    """FedJAX's side, ended when it is no longer needed."""
    command = [environment_python("fedjax"), str(HERE / "hypcluster_fedjax.py")]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        yield Peer(process, Path(folder))


def check_weights(peer: Peer, model: str) -> float:
    """The largest difference of any weight after rounds in which every client makes one step on all its rows."""
    world = make_world(model, one_batch_sizes())
    ours, everyone = Plures(world), np.arange(COHORT)
    peer.load(world)
    file = peer.folder / "weights.npz"
    theirs = peer.ask("check", cohorts=[everyone.tolist()] * ROUNDS_CHECKED, weights=str(file))
    state = ours.start()
    for round_, wanted in enumerate(theirs):
        _agree(ours.chosen(everyone, state), wanted, f"{model}, one batch per client, round {round_}")
        state = ours.play(state, 1)
    with np.load(file) as found:
        layers = range(len(LAYERS[model]))
        wanted = _params([found[f"kernel_{i}"] for i in layers], [found[f"bias_{i}"] for i in layers])
    gaps = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), state.server.base.weights.params, wanted)
    gap = max(jax.tree.leaves(gaps))
    if not gap < TOLERANCE:
        raise SystemExit(f"{model}: weights differ by {gap:.2g}, more than {TOLERANCE:g}")
    return gap


def check_clusters(peer: Peer, ours: Plures) -> int:
    """How many choices on the timed world, all from the start models, were compared and found the same."""
    cohorts = [ours.cohort(round_) for round_ in range(COHORTS_CHECKED)]
    theirs = peer.ask("check", cohorts=[one.tolist() for one in cohorts], weights=None)
    seen = set()
    for cohort, wanted in zip(cohorts, theirs, strict=True):
        _agree(ours.chosen(cohort, ours.start()), wanted, f"{ours.world.model}, timed clients")
        seen |= set(wanted)
    if len(seen) < 2:
        raise SystemExit(f"{ours.world.model}: all clients chose one cluster, so agreement says nothing")
    return sum(map(len, theirs))


def _agree(ours: list[int], theirs: list[int], where: str) -> None:
    if ours != theirs:
        raise SystemExit(f"{where}: plures chose the clusters {ours}, FedJAX {theirs}")


def measure(peer: Peer, model: str, *, rounds: int, passes: int) -> Result:
    """Check that both sides do the same, then time them in turn; the first pass warms up and does not count."""
    gap = check_weights(peer, model)
    world = make_world(model, unequal_sizes())
    ours = Plures(world)
    versions = peer.load(world)
    compared = check_clusters(peer, ours)
    seconds: dict[str, list[float]] = {"plures": [], **{way: [] for way in WAYS}}
    for number in range(passes + 1):
        cohorts = [ours.cohort(number * rounds + i).tolist() for i in range(rounds)]
        seconds["plures"].append(ours.time(rounds))
        for way, (ids, scoring) in WAYS.items():
            seconds[way].append(peer.ask("time", ids=ids, scoring=scoring, cohorts=cohorts))
        print(
            model,
            number,
            {who: round(1e3 * all_[-1] / rounds, 2) for who, all_ in seconds.items()},
            file=sys.stderr,
        )
    return {
        "model": model,
        "rows": [int(world.sizes.min()), int(np.median(world.sizes)), int(world.sizes.max())],
        "chunk": ours.setup.executor.size,
        "largest_weight_difference": gap,
        "choices_compared": compared,
        "ms": {who: [1e3 * one / rounds for one in all_[1:]] for who, all_ in seconds.items()},
        "fedjax_versions": versions,
    }


def ratio(result: Result) -> float:
    """The best time of the fastest way to run FedJAX over the best time of plures."""
    return min(min(result["ms"][way]) for way in WAYS) / min(result["ms"]["plures"])


def rows_of(result: Result) -> list[str]:
    """A line of the table for everyone timed."""
    mine = min(result["ms"]["plures"])
    lines = []
    for who, all_ in result["ms"].items():
        best, spread = min(all_), f"{np.median(all_):.2f}"
        lines.append(f"| {result['model']} | {who} | {best:.2f} | {spread} | {best / mine:.1f} |")
    return lines


def verdict(result: Result) -> str:
    """One line on the bar."""
    word = "met" if ratio(result) >= BAR else "NOT met"
    return f"- {result['model']}: {ratio(result):.1f}x the fastest way to run FedJAX; bar {BAR:g}x: {word}"


def page(results: list[Result], about: Result) -> str:
    """The page with the table and everything needed to repeat it."""
    low, middle, high = results[0]["rows"]
    table = "\n".join(line for result in results for line in rows_of(result))
    verdicts = "\n".join(map(verdict, results))
    ours = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    theirs = ", ".join(f"{name} {number}" for name, number in results[0]["fedjax_versions"].items())
    gaps = ", ".join(f"{result['largest_weight_difference']:.1g} ({result['model']})" for result in results)
    return f"""# HypCluster's rounds

{CLUSTERS} clusters, {COHORT} of {NUM_CLIENTS} clients per round, batch {BATCH}, one epoch of SGD with step size {LEARNING_RATE:g}, server step 1, float32, synthetic data.
Clients have {low} to {high} rows (median {middle}; lognormal, 20 to 1 between the 95th and the 5th percentile).
Models: logistic is softmax regression {WIDTH} -> 10, mlp is {WIDTH} -> 128 -> 62.
Only rounds of the main loop are timed: scoring all {CLUSTERS} models on the training rows, training the best one, averaging per cluster. Both sides start from the same models and see the same cohorts.

| model | who | best ms per round | median ms per round | time / plures |
|---|---|---|---|---|
{table}

{verdicts}

Times are of {about["passes"]} passes of {about["rounds"]} rounds each, after one to warm up; passes of all of them alternate in one run.
FedJAX hands a dictionary with client ids as keys to a compiled function, so that every new cohort is compiled anew. Below the first line of FedJAX clients are called by their place in the cohort, which avoids that; below the second one a client's rows are also scored in one batch, padded to the next of six sizes, instead of in batches of {BATCH}. The bar is held against the fastest of the three. Making up FedJAX's cohorts is not timed; drawing those of plures is.

Checked before timing: both sides choose the same clusters ({", ".join(str(result["choices_compared"]) for result in results)} choices on the timed clients, from the start models). On {COHORT} clients with one batch each, choices agree in {ROUNDS_CHECKED} rounds and the weights after them differ by at most {gaps}; {TOLERANCE:g} is allowed. With several batches the orders differ, and FedJAX fills the last batch up with repeats where plures spreads the rows evenly.

- CPU: {about["cpu"]}, {about["cores"]} cores; load average when the run began {about["load"]:.2f}
- plures' side: {ours}
- FedJAX's side: {theirs}
- Date: {about["date"]}; made by `make bench-hypcluster`
"""


def main() -> None:
    """Run everything and write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(LAYERS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--passes", type=int, default=5)
    arguments = parser.parse_args()
    packages = {name: version(name) for name in ("plures", "jax", "jaxlib", "numpy")}
    about = {
        **machine(),
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), **packages},
        "rounds": arguments.rounds,
        "passes": arguments.passes,
    }
    with fedjax_peer() as peer:
        results = [
            measure(peer, model, rounds=arguments.rounds, passes=arguments.passes)
            for model in arguments.models.split(",")
        ]
    (HERE / "hypcluster.json").write_text(json.dumps({**about, "results": results}, indent=1) + "\n")
    (HERE / "hypcluster.md").write_text(page(results, about))
    print("\n".join([*(line for result in results for line in rows_of(result)), *map(verdict, results)]))
    if min(map(ratio, results)) < BAR:
        sys.exit("a bar is not met, see benchmarks/hypcluster.md")


if __name__ == "__main__":
    main()
