"""FedJAX's side of the HypCluster benchmark: reads requests, one line of JSON each, and answers in kind.

    {"do": "load", "world": file}                        versions; what follows is about this world
    {"do": "check", "cohorts": [...], "weights": file}   the clusters that each cohort's clients chose
    {"do": "time", "ids": ..., "scoring": ..., "cohorts": [...]}   seconds, training going on from the last time

FedJAX compiles its assignment anew whenever the ids in a cohort change, because they are keys of a dictionary
that goes through ``jit``. ``ids`` is "own" (what its samplers hand out) or "seat": a client is called by its place
in the cohort, and nothing is compiled anew. ``scoring`` is "batches" or "whole".
"""

from __future__ import annotations

import json
import platform
import sys
import time
import warnings
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from hypcluster_world import BATCH, CLUSTERS, ENGINE_CASE, LAYERS, LEARNING_RATE, World, load

# Importing the engine's peer first gives JAX back a name that FedJAX 0.0.17 needs.
from peer_fedjax import dense_model

import fedjax  # isort: skip
from fedjax.algorithms import hyp_cluster  # isort: skip


class Side:
    """One world, the algorithm on it, and where its training stands for every way of running it."""

    def __init__(self, world: World) -> None:
        self.world = world
        model = dense_model(ENGINE_CASE[world.model], LAYERS[world.model][:-1])
        self.loss = fedjax.model_per_example_loss(model)
        ends = np.cumsum(world.sizes)[:-1]
        parts = zip(np.split(world.x, ends), np.split(world.y, ends), strict=True)
        self.datasets = [fedjax.ClientDataset({"x": x, "y": y}) for x, y in parts]
        self.algorithms: dict[str, Any] = {}
        self.states: dict[tuple[str, str], Any] = {}

    def algorithm(self, scoring: str) -> Any:
        """HypCluster with plain SGD on both sides."""
        if scoring not in self.algorithms:
            self.algorithms[scoring] = hyp_cluster.hyp_cluster(
                self.loss,
                client_optimizer=fedjax.optimizers.sgd(LEARNING_RATE),
                server_optimizer=fedjax.optimizers.sgd(1.0),
                maximization_batch_hparams=self.scoring(scoring),
                expectation_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1),
            )
        return self.algorithms[scoring]

    def scoring(self, name: str) -> Any:
        """Rows scored at a time: a batch, or all that a client has, padded to the next of six sizes."""
        if name == "batches":
            return fedjax.PaddedBatchHParams(batch_size=BATCH)
        return fedjax.PaddedBatchHParams(batch_size=int(self.world.sizes.max()), num_batch_size_buckets=6)

    def start(self) -> list[Any]:
        """The world's start models, as Haiku names their parts."""
        layers = list(zip(self.world.kernels, self.world.biases, strict=True))
        return [
            {
                f"mlp/~/linear_{i}": {"w": jax.numpy.array(w[c]), "b": jax.numpy.array(b[c])}
                for i, (w, b) in enumerate(layers)
            }
            for c in range(CLUSTERS)
        ]

    def state(self, ids: str, scoring: str) -> Any:
        """Where training stands, at first the start."""
        if (ids, scoring) not in self.states:
            self.states[ids, scoring] = self.algorithm(scoring).init(self.start())
        return self.states[ids, scoring]

    def clients(self, cohort: Iterable[int], ids: str, round_: int) -> list[tuple[int, Any, Any]]:
        """A cohort as FedJAX takes it."""
        uids = list(cohort)
        keys = jax.random.split(jax.random.PRNGKey(round_), len(uids))
        return [(seat if ids == "seat" else uid, self.datasets[uid], keys[seat]) for seat, uid in enumerate(uids)]

    def time(self, ids: str, scoring: str, cohorts: list[list[int]]) -> float:
        """Seconds for these rounds; making up the cohorts is not counted."""
        algorithm, state = self.algorithm(scoring), self.state(ids, scoring)
        rounds = jax.block_until_ready([self.clients(cohort, ids, i) for i, cohort in enumerate(cohorts)])
        begin = time.perf_counter()
        for clients in rounds:
            state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.cluster_params)
        seconds = time.perf_counter() - begin
        self.states[ids, scoring] = state
        return seconds

    def check(self, cohorts: list[list[int]], weights: str | None) -> list[list[int]]:
        """The clusters chosen by each cohort: all from the start, or round after round if weights are wanted."""
        algorithm = self.algorithm("batches")
        state, chosen = algorithm.init(self.start()), []
        for i, cohort in enumerate(cohorts):
            after, info = algorithm.apply(state, self.clients(cohort, "own", i))
            chosen.append([int(info[uid]["cluster_id"]) for uid in cohort])
            state = state if weights is None else after
        if weights is not None:
            _save(state.cluster_params, Path(weights))
        return chosen


def _save(models: list[Any], file: Path) -> None:
    layers = range(len(models[0]))
    kernels = {f"kernel_{i}": np.stack([one[f"mlp/~/linear_{i}"]["w"] for one in models]) for i in layers}
    biases = {f"bias_{i}": np.stack([one[f"mlp/~/linear_{i}"]["b"] for one in models]) for i in layers}
    np.savez(file, **kernels, **biases)


def versions() -> dict[str, str]:
    """What this side runs on."""
    found = {name: version(name) for name in ("fedjax", "jax", "jaxlib", "dm-haiku", "numpy")}
    return {"python": platform.python_version(), **found}


def main() -> None:
    """Answer until the requests end."""
    warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
    side: Side | None = None
    for line in sys.stdin:
        request = json.loads(line)
        kind = request.pop("do")
        if kind == "load":
            # What was compiled for another world's cohorts must not speed this one up.
            jax.clear_caches()
            side = Side(load(Path(request["world"])))
            answer: Any = versions()
        else:
            assert side is not None
            answer = {"time": side.time, "check": side.check}[kind](**request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
