"""HypCluster for several numbers of clusters at once; held-out rows choose among them.

All q = 1 .. ``up_to`` are trained side by side on the same cohorts, from one warm start and nested centers (the first q
centers of farthest-first are those of q clusters). In a closing round every client says how well each q serves its valid
rows, assigned by its training rows. The q for all is the one of the least mean loss, among those before the first
that puts no further cluster to use. With ``per_client`` a client leaves it for whichever model, of any q, does best on its
valid rows, but only if the gain there exceeds one standard error of the gain.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization, arXiv 2002.10619, section 4. The standard error is ours:
the choice is among up_to (up_to + 1) / 2 models, too many for few rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.errors import BadValue
from plures.local import masked_mean, mean_loss, outputs_of
from plures.methods._centers import Judged, judges_of, judging, scouting, scouts_of
from plures.methods.fedavg import fedavg
from plures.methods.hypcluster import Choice, Clusters, clustering, notes_of
from plures.registry import Limit, method
from plures.survey import Survey, surveyed
from plures.types import Data, Info, Key, Method, Model, Plan, Rows, Tree, Weights, then

Sets: TypeAlias = tuple[Clusters, ...]
Choices: TypeAlias = tuple[Choice, ...]


class Opinion(NamedTuple):
    """How well each q serves a client's valid rows, whether there are any, and the cluster it takes in each."""

    loss: Array  # (numbers,)
    some: Array
    cluster: Array  # (numbers,)


class Vote(NamedTuple):
    """The place of the number of clusters that was chosen, and how many clients had valid rows to choose by."""

    place: Array
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
    per_client: bool = True,
    plan: Plan = Plan(),
    server_lr: float = 1.0,
    momentum: float = 0.0,
    weighting: str = "examples",
    warm: int = 5,
    num_candidates: int = 16,
    scout_epochs: int = 5,
    aggregate: str = "mean",
) -> Method:
    """HypCluster with 1 to ``up_to`` clusters, the number chosen on valid rows.

    ``aggregate`` works inside each cluster; the choice of centers and of the number it does not guard.
    """
    for name, number in (("up_to", up_to), ("warm", warm), ("scout_epochs", scout_epochs)):
        if number < 1:
            raise BadValue(name, number, "1 or more")
    if num_candidates < up_to:
        raise BadValue("num_candidates", num_candidates, f"at least up_to ({up_to})")
    base = fedavg(
        model, plan=plan, server_lr=server_lr, momentum=momentum, weighting=weighting, aggregate=aggregate
    )
    loops = tuple(clustering(base, number) for number in range(1, up_to + 1))
    trained = _side_by_side(base, loops)
    if up_to > 1:
        judge = judging(base, num_clusters=up_to, num_starts=1, num_candidates=num_candidates, rule="farthest")
        scouts = fedavg(model, plan=replace(plan, epochs=scout_epochs, steps=None), weighting=weighting)
        judged = then(judge, 1, trained, hand_over=_from_centers)
        scouted = then(scouting(scouts, num_candidates), 1, judged, hand_over=judges_of)
        trained = then(base, warm, scouted, hand_over=scouts_of)
    return _choosing(trained, loops, per_client=per_client)


def _side_by_side(base: Method, loops: tuple[Method, ...]) -> Method:
    """All numbers of clusters, each trained by itself; until one is chosen the largest is served."""

    def start(key: Key, num_clients: int) -> Sets:
        if len(loops) > num_clients:
            raise BadValue("up_to", len(loops), f"at most the {num_clients} clients there are")
        return tuple(loop.start(key, num_clients) for loop in loops)

    def send(sets: Sets, uid: Array) -> Choices:
        return tuple(loop.send(one, uid) for loop, one in zip(loops, sets, strict=True))

    def train(key: Key, choices: Choices, private: Tree, data: Data) -> tuple[Tree, Tree, Info]:
        results = [loop.train(key, one, (), data) for loop, one in zip(loops, choices, strict=True)]
        losses = {f"loss_{number}": info["loss"] for number, (_, _, info) in enumerate(results, 1)}
        return tuple(upload for upload, _, _ in results), private, {"loss": results[-1][2]["loss"], **losses}

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
        common=None,
        lanes=len(loops),
        trained=None,  # one for each number of clusters
        tolerates=None,  # a cluster may be small
    )


def _from_centers(key: Key, fresh: Sets, before: Judged) -> Sets:
    """One cluster starts at the warm model, more of them at the first centers."""
    centers = tree.at(before.centers, 0)

    def begun(one: Clusters) -> Clusters:
        number = len(one.size)
        models = tree.at(centers, slice(0, number))
        if number == 1:
            models = jax.tree.map(lambda leaf: leaf[None], before.scouts.start)
        return one._replace(base=one.base._replace(weights=models))

    return tuple(begun(one) for one in fresh)


def _choosing(trained: Method, loops: tuple[Method, ...], *, per_client: bool) -> Method:
    """``trained`` closed by a round that chooses the number of clusters."""
    model = trained.model
    first_of = [number * (number - 1) // 2 for number in range(1, len(loops) + 1)]  # where each q's models begin

    def taken(choices: Choices, data: Data) -> Array:
        """(numbers,) which of its models a client takes, for every number of clusters."""
        found = [_cluster(loop, one, data) for loop, one in zip(loops, choices, strict=True)]
        return jnp.stack(found)

    def ask(key: Key, choices: Choices, data: Data) -> tuple[Opinion, Info]:
        cluster = taken(choices, data)
        served = [tree.at(one.models, cluster[place]) for place, one in enumerate(choices)]
        losses = jnp.stack([mean_loss(model, model.apply, one, data.valid) for one in served])
        return Opinion(losses, jnp.asarray(data.valid.count) > 0, cluster), {}

    def gather(found: Vote, answers: Opinion, weights: Array, uids: Array) -> Vote:
        return best_number(answers, weights > 0)

    def model_of(offer: Survey, data: Data) -> Array:
        """The model a client is served, counted through all numbers of clusters."""
        place = offer.found.place
        usual = jnp.asarray(first_of)[place] + taken(offer.base, data)[place]
        return clearly_better(model, _all_models(offer.base), usual, data.valid) if per_client else usual

    def serve(key: Key, offer: Survey, private: Tree, data: Data) -> Weights:
        return tree.at(_all_models(offer.base), model_of(offer, data))

    def assign(offer: Survey, private: Tree, data: Data) -> Info:
        place = model_of(offer, data)
        return {"cluster": place, "num_clusters": (place >= jnp.asarray(first_of)).sum()}

    def blank(key: Key, num_clients: int) -> Vote:
        return Vote(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    asked = surveyed(trained, blank=blank, ask=ask, gather=gather)
    return replace(asked, serve=serve, assign=assign, notes=_notes, num_clusters=first_of[-1] + len(loops))


def _notes(server: Survey) -> list[str]:
    """A warning where nobody could vote, and what the chosen number of clusters has to say."""
    if not server.found.voters:
        return ["no client has valid rows to choose the number of clusters by, so there is one for all"]
    return notes_of(server.base[int(server.found.place)])


def best_number(answers: Opinion, heard: Array) -> Vote:
    """The place of the number of clusters with the least mean loss, among those that put more clusters to use."""
    counts = answers.some & heard
    mean = jnp.where(counts[:, None], answers.loss, 0.0).sum(0) / jnp.maximum(counts.sum(), 1)
    number = answers.loss.shape[1]
    hits = jax.nn.one_hot(answers.cluster, number) * heard[:, None, None]  # (clients, numbers, clusters)
    used = (hits.sum(0) > 0).sum(1)
    grows = jnp.concatenate([jnp.ones(1, bool), used[1:] > used[:-1]])
    fine = (jnp.cumprod(grows) > 0) & ~jnp.isnan(mean)  # NaN would be the least of all
    return Vote(jnp.where(fine, mean, jnp.inf).argmin().astype(jnp.int32), counts.sum())


def clearly_better(model: Model, models: Weights, usual: Array, rows: Rows) -> Array:
    """The model that does best on the rows, if it beats the usual one by more than a standard error of the gain."""
    batch = rows.all()
    losses = jax.vmap(lambda one: model.loss(outputs_of(model.apply, one, rows), batch.y))(models)  # (models, rows)
    gains = losses[usual] - losses
    mean = jax.vmap(lambda gain: masked_mean(gain, batch.mask))(gains)
    number = jnp.asarray(rows.count)
    spread = jax.vmap(lambda gain, middle: masked_mean((gain - middle) ** 2, batch.mask))(gains, mean)
    error = jnp.sqrt(spread / jnp.maximum(number - 1, 1))
    best = jnp.where(jnp.isnan(mean), -jnp.inf, mean).argmax()
    return jnp.where((mean[best] > error[best]) & (number > 1), best, usual)


def _all_models(choices: Choices) -> Weights:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(one.models for one in choices))


def _cluster(loop: Method, choice: Choice, data: Data) -> Array:
    assert loop.assign is not None
    return loop.assign(choice, (), data)["cluster"]
