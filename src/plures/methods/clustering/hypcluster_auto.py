"""HypCluster for several numbers of clusters at once; held-out rows choose among them.

All q = 1 .. ``up_to`` are trained side by side on the same cohorts, from one warm start and nested centers (the first q
centers of farthest-first are those of q clusters). In a closing round every client says how well each q serves its valid
rows, assigned by its training rows. The q for all is the smallest whose mean loss is within one standard error of the least,
among those before the first that puts no further cluster to use. With ``per_client`` a client leaves it for whichever
model, of any q, does best on its valid rows, but only if the gain there exceeds one standard error of the gain.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization, arXiv 2002.10619, section 4. The standard errors are ours: with few
rows the least of several losses is often luck, and a client would choose among up_to (up_to + 1) / 2 models. That is why
``per_client`` is not the default: where clients form no groups it cost 1 to 2 % of accuracy, and valid rows that chose
cannot judge what they chose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.errors import require, require_least
from plures.local import clearly_better, mean_loss
from plures.method import Method, Report
from plures.methods.clustering.hypcluster import ClusterChoices, ClusterServer, cluster_loop, report
from plures.methods.clustering.starting_centers import (
    CandidateCenters,
    judge_round,
    scout_and_judge,
    scout_method,
    scout_round,
)
from plures.methods.fedavg import fedavg
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights
from plures.wrap.closing import Survey, cluster_of, surveyed

Sets: TypeAlias = tuple[ClusterServer, ...]
Choices: TypeAlias = tuple[ClusterChoices, ...]


class Opinion(NamedTuple):
    """How well each q serves a client's valid rows, whether there are any, and the cluster it takes in each."""

    loss: Array  # (numbers,)
    some: Array
    cluster: Array  # (numbers,)


class Vote(NamedTuple):
    """Which number of clusters was chosen, counted from 0, and how many clients had valid rows to choose by."""

    best: Array
    voters: Array


@method(
    title="HypCluster, any number of clusters",
    paper="arXiv:2002.10619",
    limits=[Limit("only one cluster allowed: plain FedAvg", {"up_to": 1}, same_served_as="fedavg")],
)
def hypcluster_auto(
    model: Model,
    *,
    up_to: int = 4,
    per_client: bool = False,
    plan: Plan = Plan(),
    warm: int = 5,
    num_candidates: int = 16,
    scout_epochs: int = 5,
    averaging: Averaging = Averaging(),
) -> Method:
    """HypCluster with 1 to ``up_to`` clusters, the number chosen on valid rows.

    ``aggregate`` works inside each cluster; the choice of centers and of the number it does not guard.

    Args:
        up_to: The largest number of clusters that is tried; 1 is plain FedAvg.
        per_client: Whether a client may leave the number chosen for all, where its valid rows clearly say so.
        plan: How clients train locally.
        warm: Rounds of FedAvg before candidates for centers are trained.
        num_candidates: How many clients' models are candidates for centers, at least ``up_to``.
        scout_epochs: Epochs for which candidates are trained from the warm model.
    """
    require_least(1, up_to=up_to, warm=warm, scout_epochs=scout_epochs)
    require(num_candidates >= up_to, "num_candidates", num_candidates, f"at least up_to ({up_to})")
    base = fedavg(model, plan=plan, averaging=averaging)
    loops = tuple(cluster_loop(base, number) for number in range(1, up_to + 1))
    trained = _side_by_side(base, loops)
    if up_to > 1:
        judge_base = judge_round(
            base, num_clusters=up_to, num_starts=1, num_candidates=num_candidates, rule="farthest"
        )
        scouts = scout_round(scout_method(base, scout_epochs, averaging), num_candidates)
        trained = scout_and_judge(base, warm, scouts, judge_base, trained, _from_centers)
    return _choose_number(trained, loops, per_client=per_client)


def _side_by_side(base: Method, loops: tuple[Method, ...]) -> Method:
    """All numbers of clusters, each trained by itself; until one is chosen the largest is served."""

    def start(key: Key, num_clients: int) -> Sets:
        require(len(loops) <= num_clients, "up_to", len(loops), f"at most the {num_clients} clients there are")
        return tuple(loop.start(key, num_clients) for loop in loops)

    def send(sets: Sets, uid: Array) -> Choices:
        return tuple(loop.send(one, uid) for loop, one in zip(loops, sets, strict=True))

    def train(key: Key, choices: Choices, private: Tree, data: Data) -> tuple[Tree, Tree, Info]:
        results = [loop.train(key, one, (), data) for loop, one in zip(loops, choices, strict=True)]
        losses = {f"loss_{number}": info["loss"] for number, (_, _, info) in enumerate(results, 1)}
        told = {
            "loss": results[-1][2]["loss"],
            "steps": jnp.sum(jnp.stack([info["steps"] for _, _, info in results])),
        }
        return tuple(upload for upload, _, _ in results), private, {**told, **losses}

    def merge(sets: Sets, uploads: Tree, weights: Array, uids: Array) -> Sets:
        return tuple(
            loop.merge(one, upload, weights, uids) for loop, one, upload in zip(loops, sets, uploads, strict=True)
        )

    def serve(key: Key, choices: Choices, private: Tree, data: Data) -> Weights:
        return loops[-1].serve(key, choices[-1], (), data)

    return replace(
        base,
        start=start,
        send=send,
        train=train,
        merge=merge,
        serve=serve,
        views=replace(base.views, common=None, trained=None),
        # A lane for each number; a cluster may be small.
        traits=replace(base.traits, lanes=len(loops), tolerates=None),
    )


def _from_centers(key: Key, fresh: Sets, before: CandidateCenters) -> Sets:
    """One cluster starts at the warm model, more of them at the first centers."""
    centers = tree.at(before.centers, 0)

    def begun(one: ClusterServer) -> ClusterServer:
        number = len(one.size)
        models = tree.at(centers, slice(0, number))
        if number == 1:
            models = jax.tree.map(lambda leaf: leaf[None], before.scouts.start)
        return one._replace(base=one.base._replace(weights=models))

    return tuple(begun(one) for one in fresh)


def _choose_number(trained: Method, loops: tuple[Method, ...], *, per_client: bool) -> Method:
    """``trained`` closed by a round that chooses the number of clusters."""
    model = trained.model
    first_of = [number * (number - 1) // 2 for number in range(1, len(loops) + 1)]  # where each q's models begin

    def choose_clusters(choices: Choices, data: Data) -> Array:
        """(numbers,) which of its models a client takes, for every number of clusters."""
        return jnp.stack([cluster_of(loop, one, data) for loop, one in zip(loops, choices, strict=True)])

    def ask(key: Key, choices: Choices, data: Data) -> tuple[Opinion, Info]:
        cluster = choose_clusters(choices, data)
        served = [tree.at(one.models, cluster[index]) for index, one in enumerate(choices)]
        losses = jnp.stack([mean_loss(model, model.apply, one, data.valid) for one in served])
        return Opinion(losses, jnp.asarray(data.valid.count) > 0, cluster), {}

    def model_of(offer: Survey, data: Data) -> Array:
        """The model a client is served, counted through all numbers of clusters."""
        index = offer.found.best
        usual = jnp.asarray(first_of)[index] + choose_clusters(offer.base, data)[index]
        return clearly_better(model, _all_models(offer.base), usual, data.valid) if per_client else usual

    def serve(key: Key, offer: Survey, private: Tree, data: Data) -> Weights:
        return tree.at(_all_models(offer.base), model_of(offer, data))

    def assign(offer: Survey, private: Tree, data: Data) -> Info:
        index = model_of(offer, data)
        return {"cluster": index, "num_clusters": (index >= jnp.asarray(first_of)).sum()}

    asked = surveyed(
        trained,
        blank=lambda key, num_clients: Vote(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)),
        ask=ask,
        gather=lambda found, answers, weights, uids: best_number(answers, weights > 0),
    )
    return replace(
        asked,
        serve=serve,
        views=replace(asked.views, assign=assign, report=_report),
        traits=replace(asked.traits, num_clusters=first_of[-1] + len(loops)),
    )


def _report(server: Survey) -> Report:
    """A warning where nobody could vote, and what the chosen number of clusters has to say."""
    if not server.found.voters:
        return Report(["no client has valid rows to choose the number of clusters by, so there is one for all"])
    return report(server.base[int(server.found.best)])


def best_number(answers: Opinion, heard: Array) -> Vote:
    """The index of the smallest number of clusters about as good as the best, of those that put more clusters to use."""
    counts = answers.some & heard
    voters = jnp.maximum(counts.sum(), 1)
    mean = jnp.where(counts[:, None], answers.loss, 0.0).sum(0) / voters
    number = answers.loss.shape[1]
    hits = jax.nn.one_hot(answers.cluster, number) * heard[:, None, None]  # (clients, numbers, clusters)
    used = (hits.sum(0) > 0).sum(1)
    grows = jnp.concatenate([jnp.ones(1, bool), used[1:] > used[:-1]])
    fine = (jnp.cumprod(grows) > 0) & ~jnp.isnan(mean)  # NaN would be the least of all
    best = jnp.where(fine, mean, jnp.inf).argmin()
    lost = answers.loss - answers.loss[:, best, None]
    spread = jnp.where(counts[:, None], (lost - (mean - mean[best])) ** 2, 0.0).sum(0) / voters
    near = fine & (mean - mean[best] <= jnp.sqrt(spread / jnp.maximum(voters - 1, 1)))
    return Vote(jnp.where(near.any(), near.argmax(), best).astype(jnp.int32), counts.sum())


def _all_models(choices: Choices) -> Weights:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(one.models for one in choices))
