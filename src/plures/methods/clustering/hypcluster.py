"""HypCluster: q models; every client takes the one with the least loss on its training rows.

    min over h_1 .. h_q   sum_k m_k  min_i  L_k(h_i)

A round: the server sends all q models, a client scores them (in evaluation mode), trains the best one and returns
its update with the number it chose. Each cluster has a server optimizer of its own; a cluster that nobody chose
keeps its model and its optimizer. A newcomer is assigned in the same way; without rows it gets the cluster that
most rows chose last.

Models that start alike never part, and those that start at random often collapse into one: ``init`` says how they come
to start apart (see ``starting_centers``).

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization, arXiv 2002.10619, section 4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.errors import BadValue, require_least
from plures.local import losses_of, mean_loss
from plures.method import Method, Report
from plures.methods.clustering.starting_centers import ClusterStart, merge_by_cluster, scout_method, start_apart
from plures.methods.fedavg import Server, fedavg
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights

PATIENCE = 10  # rounds without a client after which a cluster counts as left


class ClusterServer(NamedTuple):
    """The models and optimizers of all clusters, the rows each had last, and for how many rounds it had none.

    ``last`` is the cluster every client chose last, -1 before its first round.
    """

    base: Server  # every leaf (clusters, ...)
    size: Array  # (clusters,)
    idle: Array  # (clusters,)
    last: Array  # (clients,)


class ClusterChoices(NamedTuple):
    """What a client downloads: all models, how many rows chose each last, and what it chose itself."""

    models: Weights
    size: Array
    last: Array


class ClusterUpload(NamedTuple):
    """An update, the cluster it is for, and what training alone would gain on valid rows."""

    update: Weights
    cluster: Array
    gain: Tree  # nothing, unless clusters are seeded anew


@method(
    title="HypCluster",
    paper="arXiv:2002.10619",
    degree="num_clusters",
    limits=[Limit("one cluster: plain FedAvg", {"num_clusters": 1}, same_served_as="fedavg")],
)
def hypcluster(
    model: Model,
    *,
    num_clusters: int = 2,
    plan: Plan = Plan(),
    start: ClusterStart = ClusterStart(),
    reseed_after: int | None = None,
    averaging: Averaging = Averaging(),
) -> Method:
    """One of ``num_clusters`` models for every client, chosen by its training loss.

    ``aggregate`` works inside each cluster; which candidates become centers it does not guard.

    Args:
        num_clusters: How many models there are, at most as many as clients; 1 is plain FedAvg.
        plan: How clients train locally.
        reseed_after: A cluster that nobody chose for so many rounds takes over the model of the client that gains most on
            valid rows by leaving its own; None leaves it empty.
    """
    require_least(1, num_clusters=num_clusters, reseed_after=reseed_after)
    start.check(num_clusters)
    base = fedavg(model, plan=plan, averaging=averaging)
    loop = cluster_loop(base, num_clusters, reseed_after)
    if num_clusters == 1:
        return loop
    scouts = scout_method(base, start.scout_epochs, averaging)
    return start_apart(loop, base, scouts, start, num_clusters)


def cluster_loop(base: Method, num_clusters: int, reseed_after: int | None = None) -> Method:
    """Rounds of choosing, training and averaging, from ``num_clusters`` draws of the model's initialization."""
    model = base.model

    def start(key: Key, num_clients: int) -> ClusterServer:
        if num_clusters > num_clients:
            raise BadValue("num_clusters", num_clusters, f"at most the {num_clients} clients there are")
        # The first cluster starts where FedAvg would.
        keys = [key, *jax.random.split(key, num_clusters)[1:]]
        stacked = tree.stack([base.start(one, num_clients) for one in keys])
        last = jnp.full(num_clients, -1, jnp.int32)
        return ClusterServer(stacked, jnp.zeros(num_clusters), jnp.zeros(num_clusters, jnp.int32), last)

    def send(server: ClusterServer, uid: Array) -> ClusterChoices:
        known = server.last[jnp.minimum(uid, len(server.last) - 1)]
        return ClusterChoices(server.base.weights, server.size, jnp.where(uid < len(server.last), known, -1))

    def train(key: Key, choice: ClusterChoices, private: Tree, data: Data) -> tuple[ClusterUpload, Tree, Info]:
        losses = losses_of(model, choice.models, data)
        cluster = choose_cluster(losses, choice, data)
        first = tree.at(choice.models, cluster)
        update, private, info = base.train(key, first, private, data)
        shares = {f"share_{i}": (cluster == i).astype(jnp.float32) for i in range(num_clusters)}
        switched = ((choice.last >= 0) & (cluster != choice.last)).astype(jnp.float32)
        told = {**info, "margin": margin(losses), "switched": switched, **shares}
        gain = () if reseed_after is None else _gain(model, first, update, data)
        return ClusterUpload(update, cluster, gain), private, told

    def merge(server: ClusterServer, uploads: ClusterUpload, weights: Array, uids: Array) -> ClusterServer:
        after, size = merge_by_cluster(base, server.base, uploads.update, uploads.cluster, weights, uids)
        idle = jnp.where(size > 0, 0, server.idle + 1)
        # What a lost upload says of its cluster is not heard.
        last = server.last.at[uids].set(jnp.where(weights > 0, uploads.cluster, server.last[uids]))
        now = ClusterServer(after, size, idle, last)
        return now if reseed_after is None else _reseed(now, server, uploads, weights, reseed_after)

    def serve(key: Key, choice: ClusterChoices, private: Tree, data: Data) -> Weights:
        return tree.at(choice.models, choose_cluster(losses_of(model, choice.models, data), choice, data))

    def assign(choice: ClusterChoices, private: Tree, data: Data) -> Info:
        losses = losses_of(model, choice.models, data)
        sure = posterior(losses, data.train.count).max()
        return {"cluster": choose_cluster(losses, choice, data), "margin": margin(losses), "confidence": sure}

    def model_after_training(choice: ClusterChoices, private: Tree, upload: ClusterUpload) -> Weights:
        return tree.add(tree.at(choice.models, upload.cluster), upload.update)

    return replace(
        base,
        start=start,
        send=send,
        train=train,
        merge=merge,
        serve=serve,
        views=replace(base.views, trained=model_after_training, common=None, assign=assign, report=report),
        traits=replace(base.traits, num_clusters=num_clusters, tolerates=None),  # a cluster may be small
    )


def report(server: ClusterServer) -> Report:
    """A warning where clusters were left by everybody."""
    left = [str(number) for number, idle in enumerate(server.idle) if idle >= PATIENCE]
    if not left:
        return Report()
    which = f"cluster {left[0]} was" if len(left) == 1 else f"clusters {', '.join(left)} were"
    longest = int(max(server.idle))
    said = (
        f"{which} chosen by nobody for up to {longest} rounds: {len(server.idle) - len(left)} of "
        f"{len(server.idle)} clusters are in use; try fewer, more num_starts, or reseed_after={PATIENCE}"
    )
    return Report(warnings=[said])


def choose_cluster(losses: Array, choice: ClusterChoices, data: Data) -> Array:
    """The cluster with the least training loss; without training rows the one that most rows chose."""
    return jnp.where(jnp.asarray(data.train.count) > 0, losses.argmin(), choice.size.argmax())


def margin(losses: Array) -> Array:
    """How much worse the second-best model is: near 0 the choice is a toss-up."""
    ordered = jnp.sort(losses)
    return ordered[min(1, len(losses) - 1)] - ordered[0]


def posterior(losses: Array, num_rows: Array | int) -> Array:
    """The probability of each cluster if log-losses are log-likelihoods: softmax(-m L_i)."""
    return jax.nn.softmax(-num_rows * losses)


def _gain(model: Model, first: Weights, update: Weights, data: Data) -> Array:
    """How much lower the loss on valid rows is after training alone."""
    before, after = (mean_loss(model, model.apply, one, data.valid) for one in (first, tree.add(first, update)))
    return before - after


def _reseed(
    now: ClusterServer, before: ClusterServer, uploads: ClusterUpload, weights: Array, patience: int
) -> ClusterServer:
    """The first cluster that was idle for too long starts anew from the client that gains most by leaving."""
    who = jnp.where(weights > 0, uploads.gain, -jnp.inf).argmax()
    seed = tree.add(tree.at(before.base.weights, uploads.cluster[who]), tree.at(uploads.update, who))
    late = now.idle >= patience
    here = (jnp.arange(len(late)) == late.argmax()) & late & (weights > 0).any()
    planted = tree.choose_rows(here, jax.tree.map(lambda leaf: leaf[None], seed), now.base.weights)
    return now._replace(base=now.base._replace(weights=planted), idle=jnp.where(here, 0, now.idle))
