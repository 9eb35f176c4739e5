"""Federated-Clustering: a model for every client, moved by the slopes of those who see it as the client does.

    z_ij  =  slope of client j at the model x_i of client i            (the same minibatches for all models)
    v_i   =  Threshold-Clustering of z_i1 .. z_iN, from z_ii           (plures.aggregate.threshold_clustering)
    x_i  <-  x_i - lr b_i,     b_i <- momentum b_i + v_i

All slopes of a comparison are taken at one model, so clients of other clusters lie apart even where everybody is near
an own optimum. Number and sizes of clusters need not be known. A point outside the ball has no influence: robust
against clients who send anything at all.

A slope is (x - x after the plan) / lr, the gradient where the plan is one step. Models travel in blocks, one block a
turn, so that memory is N models and a block of slopes and not N x N of them; equal models travel once. Bytes are
counted in whole blocks (``block=1`` counts to the model). A lost upload counts as nobody, and the model of who is absent
stays; slopes are asked for at all models, whoever takes part.

    groups    clients are divided at random, anew in each round: N^2 / groups slopes a round
    every     models are compared in every so many rounds. In between a client sends one slope, at its own model, and
              moves by the last collaboration weights ("cached") or by itself ("local"). Cached rounds trust whoever was
              kept last: against liars compare in every round
    unite     every so many rounds the models of a cluster (who keep mostly the same clients) become their median

It needs N^2 slopes a round and shows every model to every client, and the server sees single slopes: no secure
aggregation. It is no help without clusters, where the gap between them is below about three deviations of a slope, or
where clients have very different numbers of rows.

Werner, He, Jordan, Jaggi, Karimireddy: Provably Personalized and Robust Federated Learning, arXiv 2306.08393.
``look``, ``unite``, cached rounds, and the choice of newcomers are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate import Radius, as_radius, check_weighting, client_weights, threshold_clustering
from plures.aggregate.points import cleaned, combine, usable
from plures.errors import BadValue
from plures.methods._centers import losses_of
from plures.methods._rounds import Near, View, Views, check, distinct, divided, group_of, mixed, united
from plures.methods._views import (
    Slopes,
    aggregated,
    as_bits,
    as_float,
    clusters_of,
    doubts,
    in_order,
    inside_clusters,
    largest,
    no_longer,
    noise_at,
    radius_warnings,
    seen_as,
    sizes_told,
    slope_at,
    surroundings,
    with_stats,
)
from plures.norms import guarded
from plures.registry import Limit, method
from plures.types import Data, Forecast, Info, Key, Method, Model, Plan, Tree, Weights

MESSAGE = {"cpu": 2**19}  # bytes of models that travel in one turn, unless said otherwise
LARGE_MESSAGE = 2**24  # an accelerator is idle with less


class Offer(NamedTuple):
    """A client's own model; for newcomers, one of each of the largest clusters."""

    own: Weights
    known: Array
    label: Array
    collaborators: Array
    own_weight: Array
    others: Weights  # (candidates, ...)
    labels: Array  # (candidates,)


@method(
    title="Federated-Clustering",
    paper="arXiv:2306.08393",
    degree="radius",
    limits=[
        Limit("the nearest alone is the client itself", {"radius": "k_nearest:k=1"}, same_served_as="local_only"),
        Limit("a ball for all: plain FedAvg", {"radius": "fixed"}, "fedavg", {"weighting": "uniform"}),
    ],
)
def federated_clustering(
    model: Model,
    *,
    plan: Plan = Plan(),
    radius: Radius | float | str = "quantile:q=0.2;at_least=2",
    max_iter: int = 100,
    tol: float = 1e-6,
    momentum: float = 0.0,
    dampened: bool = False,
    weighting: str = "uniform",
    aggregate: str = "center",
    look: str = "euclidean",
    groups: int = 1,
    every: int = 1,
    between: str = "cached",
    unite: int = 0,
    num_offered: int = 8,
    block: int | None = None,
) -> Method:
    """A model for every client, trained with the clients whose slopes at it are near its own.

    ``radius`` is a rule or a number (``plures.aggregate.as_radius``); options of a rule are set off by semicolons.
    ``max_iter`` inner rounds at most, fewer where all weights move by ``tol`` or less. ``dampened`` momentum is a
    running mean. ``aggregate`` puts an aggregator of the kept slopes, such as "median", in the place of the center
    (options set off by semicolons). ``look`` is how slopes are compared: "euclidean", "cosine", or "layers", all layers alike.
    ``num_offered`` models are offered to newcomers, who take the best on their training rows.
    """
    rule = as_radius(radius)
    check(
        momentum, look, between, {"groups": groups, "every": every, "num_offered": num_offered, "block": block or 1}
    )
    check_weighting(weighting)
    average = inside_clusters(aggregate)
    if unite < 0:
        raise BadValue("unite", unite, "0 (never) or a number of rounds")
    size = tree.num_bytes(jax.eval_shape(model.init, jax.random.key(0)))
    cluster = partial(threshold_clustering, radius=rule, max_iter=max_iter, tol=tol, path="gram")
    # One round on the side, so that what cannot be is refused now.
    jax.eval_shape(partial(cluster, weights=jnp.ones(2)), jnp.zeros((2, 1)))

    def width_of(places: int) -> int:
        """How many models travel in a turn."""
        most = MESSAGE.get(jax.default_backend(), LARGE_MESSAGE)
        return min(block or max(1, min(64, most // max(size, 1))), places)

    def start(key: Key, num_clients: int) -> Views:
        if groups > num_clients:
            raise BadValue("groups", groups, f"at most the {num_clients} clients there are")
        one = model.init(key)
        models = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_clients), one)
        places = -(-num_clients // groups)
        own = jnp.arange(num_clients, dtype=jnp.int32)
        table = jnp.zeros((groups, places), jnp.int32)
        nothing = jnp.zeros(num_clients)
        first = Views(
            models,
            tree.zeros_like(models.params) if momentum else (),
            jnp.zeros(num_clients, jnp.int32),
            jnp.eye(num_clients),
            jnp.eye(num_clients, dtype=bool),
            own,
            nothing,
            nothing,
            nothing,
            table,
            own,
            table,
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.int32),
            jax.random.fold_in(key, 1),
        )
        return divided(first)

    def comparing(server: Views) -> Array:
        return server.round % every == 0

    def turns(server: Views) -> Array:
        width = width_of(server.slots.shape[1])
        number = (distinct(server) + width - 1) // width
        return jnp.where(comparing(server), number.max(), 1)

    def asked(server: Views, uid: Array) -> Array:
        """(block,) whose models this client is sent in this turn."""
        group = group_of(server)[uid]
        places = server.turn * width_of(server.slots.shape[1]) + jnp.arange(width_of(server.slots.shape[1]))
        whose = server.slots[group, jnp.minimum(places, server.slots.shape[1] - 1)]
        return jnp.where(comparing(server), whose, uid)

    def send(server: Views, uid: Array) -> Weights:
        return tree.at(server.models, asked(server, uid))

    def train(key: Key, models: Weights, private: Tree, data: Data) -> tuple[Slopes, Tree, Info]:
        slopes, info = jax.vmap(lambda one: slope_at(model, plan, key, one, data))(models)
        noise = noise_at(model, plan, key, tree.at(models, 0), data)
        told = {name: values.mean() for name, values in info.items()}
        number = jax.tree.leaves(models)[0].shape[0]
        return Slopes(slopes, jnp.broadcast_to(as_bits(noise), (number,))), private, told

    def merge(server: Views, uploads: Slopes, weights: Array, uids: Array) -> Views:
        number = len(server.label)
        sent = in_order(uploads, uids, number)
        there = jnp.zeros(number).at[uids].set(client_weights(weights, weighting))
        server = server._replace(noise=jnp.where(there > 0, as_float(sent.noise[:, 0]), server.noise))
        if every == 1:
            server = compared(server, sent, there)
        else:
            server = jax.lax.cond(comparing(server), compared, in_between, server, sent, there)
        done = server.turn + 1 >= turns(server)
        return jax.lax.cond(done, ended, lambda one: one._replace(turn=one.turn + 1), server)

    def skips() -> bool:
        """Whether models come one by one and centers that nobody asks for are left out: mostly one client has a model."""
        return groups == 1 and jax.default_backend() == "cpu"

    def compared(server: Views, sent: Slopes, weights: Array) -> Views:
        """After a turn: the clients whose models it was about have made their step."""
        width, last = width_of(server.slots.shape[1]), server.slots.shape[1] - 1

        def slopes_at(place: int | Array) -> Weights:
            return jax.tree.map(lambda leaf: leaf[:, place], sent.slope)

        def look_at(place: Array) -> View:
            slot = server.turn * width + place
            whose = jnp.where(slot < distinct(server), server.slots[:, jnp.minimum(slot, last)], -1)
            if groups == 1:
                only = view(server, slopes_at(place), weights, server.members[0], whose[0])
                return jax.tree.map(lambda leaf: leaf[None], only)
            return jax.vmap(partial(view, server, slopes_at(place), weights))(server.members, whose)

        # Who goes with whom is found for the whole block at once, the steps model by model: those need more memory.
        found = jax.lax.map(look_at, jnp.arange(width)) if skips() else jax.vmap(look_at)(jnp.arange(width))

        def one(place: int | Array, server: Views) -> Views:
            return stepped(server, tree.at(found, place), slopes_at(place), weights)

        return jax.lax.fori_loop(0, width, one, server)

    def view(server: Views, slopes: Weights, weights: Array, members: Array, whose: Array) -> View:
        """What the members of one group find at the model of one of them."""
        number = len(weights)
        inside, place = members < number, jnp.minimum(members, number - 1)
        own = jnp.where(inside, weights[place], 0.0)
        fine = usable(tree.at(slopes, place), own)  # statistics count here too
        params = jax.tree.map(
            lambda leaf: jnp.where(tree.along(fine, leaf[place]), leaf[place], jnp.nan), slopes.params
        )
        shown = seen_as(look, params)
        mine = fine & (server.alike[place] == whose)

        def every_center() -> Near:
            found = cluster(shown, weights=own)
            around = surroundings(shown, own, found.weights, found.kept)
            return Near(found.weights, found.kept, around.gap, around.spread(jnp.arange(len(own))))

        def one_center() -> Near:
            row = mine.argmax()
            found = cluster(shown, jax.tree.map(lambda leaf: leaf[row][None], shown), weights=own)
            mix = found.weights.at[0, row].add(found.rest[0])
            around = surroundings(shown, own, mix, found.kept)
            one = Near(mix, found.kept, around.gap, around.spread(row[None]))
            return jax.tree.map(
                lambda leaf: jnp.zeros((len(own), *leaf.shape[1:]), leaf.dtype).at[row].set(leaf[0]), one
            )

        near = jax.lax.cond(mine.sum() <= 1, one_center, every_center) if skips() else every_center()
        mix = jnp.where(mine[:, None], near.mix, 0.0)
        return View(jnp.where(mine, members, number), place, mix, near.kept & inside, near.gap, near.spread)

    def steps_of(server: Views, slopes: Weights, weights: Array, found: View) -> Weights:
        """(members, ...) the steps of those of one group that share the model."""
        number = len(weights)
        points, own = tree.at(slopes, found.place), weights[found.place]
        clean = cleaned(points, usable(points, own))
        if look == "cosine":  # directions say nothing of lengths, so a liar could send a huge slope
            clean = no_longer(clean, own)
        key = jax.random.fold_in(server.key, found.who.min())
        robust, fine = aggregated(average, clean, own, found.kept, found.who < number, found.place, key)
        plain = mixed(found.mix, clean)
        steps = jax.tree.map(lambda new, old: jnp.where(tree.along(fine, old), new, old), robust, plain)
        return with_stats(clean, own, found.kept, found.who < number, steps)

    def stepped(server: Views, found: View, slopes: Weights, weights: Array) -> Views:
        """The server after the steps of those who were found; ``found`` is stacked over groups."""
        number = len(server.label)
        if groups == 1:  # not mapped, so that what is not asked for is not computed
            flat, steps = tree.at(found, 0), steps_of(server, slopes, weights, tree.at(found, 0))
        else:
            steps = jax.vmap(partial(steps_of, server, slopes, weights))(found)
            flat, steps = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (found, steps))
        who, here = flat.who, jnp.arange(len(flat.who))[:, None]
        places = jnp.broadcast_to(found.place[:, None], found.mix.shape).reshape(len(who), -1)
        row = jnp.zeros((len(who), number))
        mixes = row.at[here, places].add(flat.mix)
        kept = row.at[here, places].max(flat.kept.astype(jnp.float32)) > 0
        whole = jax.tree.map(
            lambda leaf: jnp.zeros((number, *leaf.shape[1:]), leaf.dtype).at[who].set(leaf, mode="drop"), steps
        )
        moved = jnp.zeros(number, bool).at[who].set(True, mode="drop")
        return moved_by(server, whole, moved)._replace(
            collaboration=server.collaboration.at[who].set(mixes, mode="drop"),
            kept=server.kept.at[who].set(kept, mode="drop"),
            gap=server.gap.at[who].set(flat.gap, mode="drop"),
            spread=server.spread.at[who].set(flat.spread, mode="drop"),
        )

    def moved_by(server: Views, steps: Weights, moved: Array, raw: bool = False) -> Views:
        """The models of those who ``moved`` after a step; a ``raw`` one leaves momentum out, but feeds it."""
        memory, way = (), steps.params
        if momentum:
            fresh = (server.steps == 0) | (not dampened)
            share = jnp.where(fresh, 1.0, 1.0 - momentum)
            memory = jax.tree.map(
                lambda old, new: momentum * old + tree.along(share, new) * new, server.memory, steps.params
            )
            if not raw:
                way = memory
        after = jax.tree.map(lambda old, by: old - plan.lr * by, server.models, Weights(way, steps.stats))
        after = guarded(server.models, after)

        def chosen(new: Tree, old: Tree) -> Tree:
            return jax.tree.map(lambda a, b: jnp.where(tree.along(moved, a), a, b), new, old)

        return server._replace(
            models=chosen(after, server.models),
            memory=chosen(memory, server.memory),
            steps=server.steps + moved,
        )

    def in_between(server: Views, sent: Slopes, weights: Array) -> Views:
        """After a round in which everybody sent the slope at its own model."""
        own = jax.tree.map(lambda leaf: leaf[:, 0], sent.slope)
        there = (weights > 0) & jax.vmap(tree.all_finite)(own)
        clean = jax.tree.map(lambda leaf: jnp.where(tree.along(there, leaf), leaf, 0), own)
        if between == "local":
            return moved_by(server, clean, there, raw=True)
        mix = server.collaboration * there
        mix = mix / jnp.maximum(mix.sum(1, keepdims=True), 1e-30)
        return moved_by(server, combine(mix, clean), there)

    def ended(server: Views) -> Views:
        """The server after the last turn of a round."""
        server = server._replace(
            label=clusters_of(server.kept), round=server.round + 1, turn=jnp.zeros_like(server.turn)
        )
        if unite:
            late = server.round % unite == 0
            server = jax.lax.cond(late, united, lambda one: one, server)
        return divided(server)

    def offer(server: Views, uid: Array) -> Offer:
        number = len(server.label)
        place = jnp.minimum(uid, number - 1)
        first = largest(server.label, num_offered)
        return Offer(
            tree.at(server.models, place),
            (uid < number) & (server.steps[place] > 0),
            server.label[place],
            server.kept[place].sum(),
            server.collaboration[place, place],
            tree.at(server.models, first),
            server.label[first],
        )

    def best(offer: Offer, data: Data) -> Array:
        return losses_of(model, offer.others, data).argmin()

    def serve(key: Key, offer: Offer, private: Tree, data: Data) -> Weights:
        return tree.choose(offer.known, offer.own, tree.at(offer.others, best(offer, data)))

    def assign(offer: Offer, private: Tree, data: Data) -> Info:
        label = jnp.where(offer.known, offer.label, offer.labels[best(offer, data)])
        return {
            "cluster": label,
            "collaborators": jnp.where(offer.known, offer.collaborators, 0),
            "own_weight": jnp.where(offer.known, offer.own_weight, 0.0),
        }

    def forecast(num_clients: int, group_sizes: Sequence[int]) -> Forecast:
        places = -(-num_clients // groups)
        need = (1 + bool(momentum) + 2 * width_of(places)) * num_clients * size
        whole = num_clients * places * size
        spared = f" ({sizes_told(whole)} if all slopes were kept at once)" if whole > need else ""
        said = f"N={num_clients} clients need {sizes_told(need)} for models and slopes{spared} and "
        return Forecast(
            f"{said}{num_clients * places:,} slopes per round", radius_warnings(rule, places, group_sizes, groups)
        )

    return Method(
        model=model,
        start=start,
        send=send,
        offer=offer,
        train=train,
        merge=merge,
        serve=serve,
        predict=model.apply,
        plan=plan,
        assign=assign,
        # Noise is measured in slopes as they are: nothing to hold against distances seen otherwise.
        notes=(lambda server: doubts(server.noise, server.gap, server.spread)) if look == "euclidean" else None,
        forecast=forecast,
        # In between all messages are for the server: for nobody in particular.
        receivers=lambda server, uid: jnp.where(comparing(server), asked(server, uid), len(server.label)),
        turns=turns,
        num_clusters=0,
    )
