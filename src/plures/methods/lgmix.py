"""LG-Mix: every client adds a mix of its own update and everyone's, by how fast each model can learn on its rows.

    D_k  =  (w_k after local training) - w_k          D  =  sum_k p_k D_k
    w_k <-  w_k + lam_k D_k + (1 - lam_k) D           u <-  u + D
    lam_k  =  T(w_k) / (T(w_k) + T(u))                T: a trace of the tangent kernel on the client's own rows

Updates are mixed, not weights. lam is a heuristic: nothing is claimed to be optimal about it. T is by default tr Cov of the
features, streamed over the training pass; both models in the same mode, so that lam is 1/2 where they are equal (while the own
one trains its features drift away from those of u, within a round too). A client without rows has lam = 0: it follows u.

Running statistics are mixed as updates like all else, which can lead a variance below 0 where a mean of values could not: one that
would not stay above 0 falls to a tenth instead. Mixing statistics as values, lam (own) + (1 - lam) (everyone's), was tried and is
worse under feature shift: it pulls every client's statistics towards those of other clients in each round.

``published=True`` makes the choices of the published code (med-air/HeteroPFL): own features in training mode and those of u in
evaluation mode, and the least eigenvalue left out; the mean of all ratios so far is the default here too. Unlike that code it
trains for all epochs of the plan, and on the last short batch too.

A client that is absent from a round misses D. With ``absent="skip"`` both its models stay where they are. With "apply" it
catches up before it trains again or is served: both take what it missed, with lam = 0. That takes a second download per round.

Jiang, Le, Li, Dou: Heterogeneous Personalized Federated Learning by Local-Global Updates Mixing via Convergence Rate,
ICLR 2024 (OpenReview 7pWRLDBAtc).

A patent application on the method exists: US 2026/0105318 A1 (18/911,457, filed 2024-10-10). Whoever deploys it should know.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate import averaging, check_weighting, num_tolerated
from plures.errors import UnknownChoice
from plures.local import mean_loss
from plures.methods._mixing import (
    Mixing,
    Rule,
    as_published,
    check_rule,
    first_mixing,
    ratio,
    remembered,
    trained_and_measured,
)
from plures.methods._traces import layer_of, layers_of
from plures.norms import check_policy, guarded, has_statistics, recalibrated
from plures.parting import STATISTICS, Parting, parting
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Method, Model, Plan, Tree, Weights

ABSENT = ("skip", "apply")
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


class Server(NamedTuple):
    """u, the last D, and how many rounds there were (nothing where nobody asks)."""

    shared: Weights
    update: Weights
    rounds: Tree
    key: Tree = ()


class Offer(NamedTuple):
    """u after so many rounds."""

    shared: Weights
    rounds: Tree


class Own(NamedTuple):
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

    def sent(self, update: Weights) -> Weights:
        """What leaves the client, or the server, of an update."""
        return self.part.sent(update)

    def whole(self, update: Weights) -> Weights:
        """An update that was sent, with zeros for what was not."""
        return self.part.unmoved(update)

    def mixed(self, own: Own, everyones: Weights, lam: Array) -> Weights:
        """w + lam D_k + (1 - lam) D; private leaves move by D_k alone."""
        shares = self._shares(own.weights, lam)
        update = [
            share * mine + (1 - share) * theirs
            for share, mine, theirs in zip(
                shares, jax.tree.leaves(own.update), jax.tree.leaves(everyones), strict=True
            )
        ]
        return moved(own.weights, jax.tree.unflatten(jax.tree.structure(own.weights), update))

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
    lam: float | str = "features",
    memory: str = "mean",
    scope: str = "model",
    centered: bool = True,
    mode: str = "train",
    scale: str = "raw",
    decay: float = 0.9,
    probes: int = 1,
    published: bool = False,
    absent: str = "skip",
    norm: str = "share",
    weighting: str = "examples",
    aggregate: str = "mean",
) -> Method:
    """Personal models that move by a mix of their own and everyone's updates.

    ``lam`` is a number in [0, 1] or where it comes from: "features", "head", "ntk", "hutchinson" (with so many ``probes``), or
    "valid": the share among 0, 1/4 .. 1 with the least loss on valid rows. ``memory`` is none, the mean over rounds, or "ema"
    with a ``decay``. ``scope="layer"`` has a lam for every layer, from gradients. ``scale="normalized"`` frees features of their scale.
    ``mode`` is that of the forward passes for features: train, eval, or published (own train, u eval). ``norm`` is a policy
    for normalization layers (see ``plures.norms``).
    """
    rule = Rule(lam, memory, scope, centered, mode, scale, decay, probes)
    rule = as_published(rule) if published else rule
    check_rule(model, rule)
    check_policy(model, norm)
    check_weighting(weighting)
    if absent not in ABSENT:
        raise UnknownChoice("way to be absent", absent, ABSENT)
    average, layers = averaging(aggregate, weighting), _layers(model, norm)

    def start(key: Key, num_clients: int) -> Server:
        shared = model.init(key)
        later = jax.random.fold_in(key, 1) if average.random else ()
        rounds = jnp.zeros((), jnp.int32) if absent == "apply" else ()
        return Server(shared, layers.sent(tree.zeros_like(shared)), rounds, later)

    def join(key: Key, given: Offer) -> Own:
        still, mixing = tree.zeros_like(given.shared), first_mixing(model, rule)
        return Own(given.shared, given.shared, given.rounds, still, mixing, jnp.asarray(False))

    def train(key: Key, sent: Offer, own: Own, data: Data) -> tuple[Weights, Own, Info]:
        own = _caught_up(layers, own, sent) if absent == "apply" else own
        after, mine, theirs, info = trained_and_measured(model, plan, rule, key, own.weights, own.shared, data)
        update = tree.subtract(after, own.weights)
        mixing = own.mixing._replace(own=mine, shared=theirs)
        some = jnp.asarray(data.train.count) > 0
        if rule.lam != "valid":
            found = mixing.lam if rule.fixed else ratio(mine, theirs)
            mixing = remembered(rule, mixing, found, some)
        told = {**info, "lam": mixing.lam.mean(), "trace_own": mine.sum(), "trace_global": theirs.sum()}
        after_all = own._replace(update=update, mixing=mixing, trained=own.trained | some)
        return layers.sent(update), after_all, told

    def merge(server: Server, uploads: Weights, weights: Array, uids: Array) -> Server:
        now, later = jax.random.split(server.key) if average.random else (None, ())
        found = average(uploads, weights, uids, now)
        return Server(moved(server.shared, layers.whole(found)), found, _one_more(server.rounds), later)

    def settle(key: Key, answer: Weights, own: Own, data: Data) -> Own:
        update = layers.whole(answer)
        mixing = own.mixing
        if rule.lam == "valid":
            best = _best_share(model, layers, own, update, data)
            mixing = remembered(rule, mixing, best[None], jnp.asarray(data.valid.count) > 0)
        weights = layers.mixed(own, update, mixing.lam)
        shared = layers.part.filled(moved(own.shared, update), layers.part.own(weights))
        cosine = _cosine(own.update.params, update.params)
        mixing = mixing._replace(cosine=cosine)
        return own._replace(weights=weights, shared=shared, rounds=_one_more(own.rounds), mixing=mixing)

    def serve(key: Key, given: Offer, own: Own, data: Data) -> Weights:
        own = _caught_up(layers, own, given) if absent == "apply" else own
        if norm == "share" or not has_statistics(model):
            return own.weights
        wanted = True if norm == "recalibrate" else ~own.trained
        return recalibrated(model, key, own.weights, data.train, wanted=wanted)

    def facts(given: Offer, own: Own, served: Weights) -> Info:
        mixing = own.mixing
        by_layer = {f"lam_{name}": one for name, one in zip(layers.names, mixing.lam, strict=False)}
        drift = jnp.sqrt(tree.squared_norm(tree.subtract(served.params, given.shared.params)))
        told = {"lam": mixing.lam.mean(), "trace_own": mixing.own.sum(), "trace_global": mixing.shared.sum()}
        return {**told, **(by_layer if len(mixing.lam) > 1 else {}), "cosine": mixing.cosine, "drift": drift}

    return Method(
        model=model,
        start=start,
        offer=lambda server, uid: Offer(server.shared, server.rounds),
        send=lambda server, uid: Offer(server.shared, server.rounds) if absent == "apply" else (),
        answer=lambda server, uid: server.update,
        join=join,
        train=train,
        merge=merge,
        settle=settle,
        serve=serve,
        predict=model.apply,
        plan=plan,
        common=None if any(layers.part.private) else lambda given: given.shared,
        facts=facts,
        tolerates=(lambda number: num_tolerated(aggregate, number)) if average.robust else None,
        norm=norm,
    )


def _one_more(rounds: Tree) -> Tree:
    return jax.tree.map(lambda number: number + 1, rounds)


def moved(weights: Weights, update: Weights) -> Weights:
    """The model after an update, its running variances above 0."""
    return guarded(weights, tree.add(weights, update))


def _layers(model: Model, norm: str) -> Layers:
    shape = jax.eval_shape(model.init, jax.random.key(0))
    part = Parting(shape, (False,) * len(jax.tree.leaves(shape)))
    if norm in ("local", "affine"):
        part = parting(model, "norm" if norm == "local" else STATISTICS)
    return Layers(layers_of(shape.params), part)


def _caught_up(layers: Layers, own: Own, given: Offer) -> Own:
    """The client after all it missed, if anything."""
    current = layers.part.filled(given.shared, layers.part.own(own.weights))
    weights = moved(own.weights, tree.subtract(current, own.shared))
    there = given.rounds != own.rounds
    weights, shared = tree.choose(there, (weights, current), (own.weights, own.shared))
    return own._replace(weights=weights, shared=shared, rounds=given.rounds)


def _best_share(model: Model, layers: Layers, own: Own, update: Weights, data: Data) -> Array:
    """Of a few shares, the one with the least loss on valid rows; the smallest of equals."""
    shares = jnp.asarray(SHARES)

    def risk(share: Array) -> Array:
        return mean_loss(model, model.apply, layers.mixed(own, update, share[None]), data.valid)

    losses = jax.lax.map(risk, shares)
    return shares[jnp.where(jnp.isfinite(losses), losses, jnp.inf).argmin()]


def _cosine(left: Tree, right: Tree) -> Array:
    """The cosine between two updates; 0 where one is 0."""
    lengths = jnp.sqrt(tree.squared_norm(left) * tree.squared_norm(right))
    return jnp.where(lengths > 0, tree.dot(left, right) / jnp.maximum(lengths, 1e-30), 0.0)
