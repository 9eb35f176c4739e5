"""LG-Mix: every client adds a mix of its own update and everyone's, by how fast each model can learn on its rows.

    D_k  =  (w_k after local training) - w_k          D  =  sum_k p_k D_k
    w_k <-  w_k + lam_k D_k + (1 - lam_k) D           u <-  u + D
    lam_k  =  T(w_k) / (T(w_k) + T(u))                T: a trace of the tangent kernel on the client's own rows

Updates are mixed, not weights. lam is a heuristic: nothing is claimed to be optimal about it. T is by default tr Cov of the
features, streamed over the training pass; both models in the same mode, so that lam is 1/2 where they are equal (while the own
one trains its features drift away from those of u, within a round too). A client without rows has lam = 0: it follows u.

Running statistics are mixed as updates like all else, which can lead a variance below 0 where a mean of values could not: one that
would not stay above 0 falls to a tenth instead. Mixing statistics as values, lam (own) + (1 - lam) (everyone's), was tried and is
worse under feature shift: it moves every client's statistics towards those of other clients in each round.

``published=True`` makes the choices of the published code (med-air/HeteroPFL): own features in training mode and those of u in
evaluation mode, and the least eigenvalue left out; the mean of all ratios so far is the default here too. Unlike that code it
trains for all epochs of the plan, and on all rows.

A client that is absent from a round misses D. With ``absent="skip"`` both its models stay where they are. With "apply" it
catches up before it trains again or is served: both take what it missed, with lam = 0. That takes a second download per round.

Jiang, Le, Li, Dou: Heterogeneous Personalized Federated Learning by Local-Global Updates Mixing via Convergence Rate,
ICLR 2024 (OpenReview 7pWRLDBAtc).

A patent application on the method exists: US 2026/0105318 A1 (18/911,457, filed 2024-10-10). Whoever deploys it should know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.averaging import Aggregation
from plures.aggregate.variances import keep_variances_positive
from plures.errors import require_choice
from plures.local import mean_loss
from plures.method import Method, Traits, Views
from plures.methods.lgmix.mixing import (
    Mixing,
    MixingRule,
    check_features,
    first_mixing,
    ratio,
    remember,
    train_and_measure,
)
from plures.methods.lgmix.traces import layer_of, layers_of
from plures.models.norm_layers import check_policy, has_statistics, recalibrated
from plures.models.parts import STATISTICS, Parting, parting
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights

ABSENT = ("skip", "apply")
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


class MixServer(NamedTuple):
    """u, the last D, and how many rounds there were (nothing where nobody asks)."""

    shared: Weights
    update: Weights
    rounds: Tree
    key: Tree = ()


class MixOffer(NamedTuple):
    """u after so many rounds."""

    shared: Weights
    rounds: Tree


class MixState(NamedTuple):
    """A client's model, u as it knows it after so many rounds, its last upload, its lam, and whether it ever had rows."""

    weights: Weights
    shared: Weights
    rounds: Tree
    update: Weights
    mixing: Mixing
    trained: Array


class Layers(NamedTuple):
    """What is mixed how: the names of layers, and the private leaves (all False: none)."""

    names: list[str]
    part: Parting

    def mix(self, own: MixState, everyones: Weights, lam: Array) -> Weights:
        """w + lam D_k + (1 - lam) D; private leaves move by D_k alone."""
        shares = jax.tree.unflatten(jax.tree.structure(own.weights), self._shares(own.weights, lam))
        update = jax.tree.map(lambda share, a, b: share * a + (1 - share) * b, shares, own.update, everyones)
        return apply_update(own.weights, update)

    def _shares(self, weights: Weights, lam: Array) -> list[Array]:
        """lam of every leaf: that of its layer, or the only one; 1 for private leaves."""
        layers = [layer_of(path.partition("/")[2]) for path in tree.paths(weights)]  # without "params/" or "stats/"
        known = {name: lam[i] for i, name in enumerate(self.names)} if len(lam) > 1 else {}
        own = [known.get(name, lam.mean()) for name in layers]
        return [jnp.ones(()) if kept else share for share, kept in zip(own, self.part.private, strict=True)]


@method(
    title="LG-Mix",
    paper="OpenReview:7pWRLDBAtc",
    tags=("norm",),
    degree="lam",
    limits=[
        Limit("no share for the own update: FedAvg", {"lam": 0.0}, same_served_as="fedavg"),
        Limit("the own update alone: training alone", {"lam": 1.0}, same_served_as="local_only"),
        Limit("a single client's update is everyone's", same_served_as="fedavg", world="one_client"),
    ],
)
def lgmix(
    model: Model,
    *,
    plan: Plan = Plan(),
    rule: MixingRule = MixingRule(),
    absent: str = "skip",
    norm: str = "share",
    aggregation: Aggregation = Aggregation(),
) -> Method:
    """Personal models that move by a mix of their own and everyone's updates.

    Args:
        plan: How clients train locally.
        absent: What becomes of a client that misses rounds: "skip" leaves its models where they are, "apply" lets it catch up
            with everyone's updates before it trains again or is served, for a second download per round.
        norm: What is done with normalization layers: "share" (mixed like all else), "local" (private), "affine" (private
            statistics, shared scales and shifts) or "recalibrate" (statistics of the client's own rows when served).
    """
    check_features(model, rule)
    check_policy(model, norm)
    require_choice("way to be absent", absent, ABSENT)
    return LgMix(model, plan, rule, absent, norm, aggregation, _layers(model, norm)).build()


@dataclass(frozen=True, eq=False)
class LgMix:
    """The settings of LG-Mix, and what server and clients do."""

    model: Model
    plan: Plan
    rule: MixingRule
    absent: str
    norm: str
    aggregation: Aggregation
    layers: Layers

    def start(self, key: Key, num_clients: int) -> MixServer:
        """u as drawn, and no update yet."""
        shared = self.model.init(key)
        later = jax.random.fold_in(key, 1) if self.aggregation.aggregator.random else ()
        rounds = jnp.zeros((), jnp.int32) if self.absent == "apply" else ()
        return MixServer(shared, self.layers.part.sent(tree.zeros_like(shared)), rounds, later)

    def offer(self, server: MixServer, uid: Array) -> MixOffer:
        """u, for a client that joins or is served."""
        return MixOffer(server.shared, server.rounds)

    def send(self, server: MixServer, uid: Array) -> Tree:
        """Nothing: a client knows u from the updates; with "apply" it may have missed some."""
        return self.offer(server, uid) if self.absent == "apply" else ()

    def join(self, key: Key, offer: MixOffer) -> MixState:
        """The own model starts as u."""
        still, mixing = tree.zeros_like(offer.shared), first_mixing(self.model, self.rule)
        return MixState(offer.shared, offer.shared, offer.rounds, still, mixing, jnp.asarray(False))

    def train(self, key: Key, download: MixOffer, own: MixState, data: Data) -> tuple[Weights, MixState, Info]:
        """D_k, and lam by the traces of both models on the way."""
        own = self._catch_up(own, download)
        settings = self.model, self.plan, self.rule
        after, mine, theirs, info = train_and_measure(*settings, key, own.weights, own.shared, data)
        update = tree.subtract(after, own.weights)
        mixing = own.mixing._replace(own=mine, shared=theirs)
        some = jnp.asarray(data.train.count) > 0
        if self.rule.lam != "valid":
            mixing = remember(self.rule, mixing, mixing.lam if self.rule.fixed else ratio(mine, theirs), some)
        info = {**info, "lam": mixing.lam.mean(), "trace_own": mine.sum(), "trace_global": theirs.sum()}
        own = own._replace(update=update, mixing=mixing, trained=own.trained | some)
        return self.layers.part.sent(update), own, info

    def merge(self, server: MixServer, uploads: Weights, weights: Array, uids: Array) -> MixServer:
        """u moves by D."""
        average = self.aggregation.aggregator
        now, later = jax.random.split(server.key) if average.random else (None, ())
        update = average(uploads, weights, uids, now)
        shared = apply_update(server.shared, self.layers.part.unmoved(update))
        return MixServer(shared, update, _one_more(server.rounds), later)

    def settle(self, key: Key, answer: Weights, own: MixState, data: Data) -> MixState:
        """The own model moves by the mix of D_k and D, and the client's u by D."""
        update, mixing = self.layers.part.unmoved(answer), own.mixing
        if self.rule.lam == "valid":
            best = _best_share(self.model, self.layers, own, update, data)
            mixing = remember(self.rule, mixing, best[None], jnp.asarray(data.valid.count) > 0)
        weights = self.layers.mix(own, update, mixing.lam)
        shared = self.layers.part.filled(apply_update(own.shared, update), self.layers.part.own(weights))
        mixing = mixing._replace(cosine=_cosine(own.update.params, update.params))
        return own._replace(weights=weights, shared=shared, rounds=_one_more(own.rounds), mixing=mixing)

    def serve(self, key: Key, offer: MixOffer, own: MixState, data: Data) -> Weights:
        """The own model, its statistics made anew where the policy for normalization layers says so."""
        own = self._catch_up(own, offer)
        if self.norm == "share" or not has_statistics(self.model):
            return own.weights
        wanted = True if self.norm == "recalibrate" else ~own.trained
        return recalibrated(self.model, key, own.weights, data.train, wanted=wanted)

    def facts(self, offer: MixOffer, own: MixState, served: Weights) -> Info:
        """lam, for each layer too where they differ, the traces it comes from, and how far the model is from u."""
        mixing = own.mixing
        by_layer = {f"lam_{name}": one for name, one in zip(self.layers.names, mixing.lam, strict=False)}
        drift = jnp.sqrt(tree.squared_norm(tree.subtract(served.params, offer.shared.params)))
        traces = {"lam": mixing.lam.mean(), "trace_own": mixing.own.sum(), "trace_global": mixing.shared.sum()}
        return {**traces, **(by_layer if len(mixing.lam) > 1 else {}), "cosine": mixing.cosine, "drift": drift}

    def _catch_up(self, own: MixState, offer: MixOffer) -> MixState:
        """The client after all it missed, if anything; with "skip" it stays where it is."""
        if self.absent == "skip":
            return own
        part = self.layers.part
        current = part.filled(offer.shared, part.own(own.weights))
        weights = apply_update(own.weights, tree.subtract(current, own.shared))
        there = offer.rounds != own.rounds
        weights, shared = tree.choose(there, (weights, current), (own.weights, own.shared))
        return own._replace(weights=weights, shared=shared, rounds=offer.rounds)

    def build(self) -> Method:
        """The method of these settings."""
        private = any(self.layers.part.private)
        return Method(
            model=self.model,
            start=self.start,
            offer=self.offer,
            send=self.send,
            answer=lambda server, uid: server.update,
            join=self.join,
            train=self.train,
            merge=self.merge,
            settle=self.settle,
            serve=self.serve,
            predict=self.model.apply,
            plan=self.plan,
            views=Views(common=None if private else lambda offer: offer.shared, facts=self.facts),
            traits=Traits(tolerates=self.aggregation.tolerates, norm=self.norm),
        )


def _one_more(rounds: Tree) -> Tree:
    return jax.tree.map(lambda number: number + 1, rounds)


def apply_update(weights: Weights, update: Weights) -> Weights:
    """The model after an update, its running variances above 0."""
    return keep_variances_positive(weights, tree.add(weights, update))


def _layers(model: Model, norm: str) -> Layers:
    shape = jax.eval_shape(model.init, jax.random.key(0))
    part = Parting(shape, (False,) * len(jax.tree.leaves(shape)))
    if norm in ("local", "affine"):
        part = parting(model, "norm" if norm == "local" else STATISTICS)
    return Layers(layers_of(shape.params), part)


def _best_share(model: Model, layers: Layers, own: MixState, update: Weights, data: Data) -> Array:
    """Of a few shares, the one with the least loss on valid rows; the smallest of equals."""
    shares = jnp.asarray(SHARES)

    def risk(share: Array) -> Array:
        return mean_loss(model, model.apply, layers.mix(own, update, share[None]), data.valid)

    losses = jax.lax.map(risk, shares)
    return shares[jnp.where(jnp.isfinite(losses), losses, jnp.inf).argmin()]


def _cosine(left: Tree, right: Tree) -> Array:
    """The cosine between two updates; 0 where one is 0."""
    lengths = jnp.sqrt(tree.squared_norm(left) * tree.squared_norm(right))
    return jnp.where(lengths > 0, tree.dot(left, right) / jnp.maximum(lengths, 1e-30), 0.0)
