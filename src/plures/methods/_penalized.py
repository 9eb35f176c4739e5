"""What FedCLUP and its relatives share: one objective, and clients that keep a personal model near a shared one.

    min over w_g, w_1 .. w_m   sum_i p_i ( L_i(w_i) + (lam_i / 2) |w_g - w_i|^2 )                         (P)

A client of weight p_i sends a model u_i, and the server goes  w_g <- w_g + pace sum_i p_i (u_i - w_g), weights p_i
lam_i where lam differs from client to client; p_i is then in proportion to 1 / lam_i, or to rows. What lam, the
steps and their number are, is said once, when a client joins; a round then costs one model each way.

``absent`` says what a cohort stands for: "sampled" takes the weighted mean of those who are there; "stale" takes
everybody's last upload, which the server keeps; "unbiased" takes the sum of p_i (u_i - w_g) over those who are there
times clients over those heard, so that it is right on average once the rows of all clients are known.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate import averaging, client_weights
from plures.aggregate.names import Aggregator
from plures.envelope import Bounds
from plures.local import mean_loss
from plures.methods._degree import Facts, blank, statistics
from plures.methods._part import make_part
from plures.methods._pull import SPACING, Descent, How, Steps, refusal, top_lam
from plures.methods.hypcluster_auto import clearly_better
from plures.norms import guarded
from plures.types import Data, Info, Key, Method, Tree, Weights, then

Client: TypeAlias = Callable[[Key, Weights, Weights, Steps, Data], tuple[Weights, Weights, Info]]
"""(key, shared, own, steps, data) -> upload, own, info: what a client does in a round."""


Check: TypeAlias = Callable[[float, Bounds], str | None]
"""(largest lam, curvature) -> why a step diverges, if one does."""


class Server(NamedTuple):
    """The shared models of all G lams, what was found out before, and what the server keeps of clients."""

    shared: Weights  # (G, ...)
    lam: Array  # (G,)
    factor: Array  # (N,) of every client's lam over the usual one
    known: Array  # (N,) whose curvature is within the bounds
    bounds: Bounds
    time: Array  # of a round of the plan's steps, as far as it is known
    noise: Array
    heterogeneity: Array
    alike: Array
    heard: Array  # clients that gave statistics; 0 where none were asked for
    mass: Array  # (N,) weights of clients heard so far
    table: Tree  # (N, G, ...) everybody's last upload, for "stale"
    votes: Tree  # (N, G) losses on valid rows, where there are several lams
    slope: Array  # (G,) |gradient of the envelope|, as far as personal models are exact
    rounds: Array
    key: Key


class Offer(NamedTuple):
    """What a client needs to join and to be served."""

    shared: Weights  # (G, ...)
    steps: Steps  # (G,)
    lane: Array  # the lam that is best for all


class Sent(NamedTuple):
    """What a client trains with: shared models, and where there are several lams the best one so far."""

    shared: Weights
    lane: Tree


class Own(NamedTuple):
    """A client's personal models, how it trains them, whether it has, and which it likes best."""

    weights: Weights  # (G, ...)
    steps: Steps  # (G,)
    trained: Array
    lane: Array


class Upload(NamedTuple):
    """A client's models, and where there are several lams their losses on its valid rows and if it has any."""

    models: Weights  # (G, ...)
    votes: Tree


def penalized(
    descent: Descent,
    name: str,
    act: Client,
    *,
    speed: Callable[[Server], Array] | None = None,
    check: Check | None = None,
) -> Method:
    """A method of the family, from how personal models go down and what a client does.

    ``speed(server)`` is the server's pace (G,) where it is not that of ``how``; ``check`` says why a step of the
    method's own diverges.
    """
    model, plan, how = descent.model, descent.plan, descent.how
    average = averaging(how.aggregate, how.weighting)
    several = how.lanes > 1
    paced = partial(pace, how, descent.exact)

    def paced_for_all(server: Server) -> Array:
        return paced(server, server.factor, jnp.ones_like(server.factor))

    def start(key: Key, num_clients: int) -> Server:
        facts = blank(model.init(key), num_clients)
        lam = 1.0 if isinstance(how.lam, str) else how.lam
        return begun(how, num_clients, facts._replace(lam=jnp.asarray(lam, jnp.float32)), key)

    def steps_of(server: Server, uid: Array) -> Steps:
        size = len(server.factor)
        seen, place = uid < size, jnp.minimum(uid, size - 1)
        factor = jnp.where(seen, server.factor[place], 1.0)
        return descent.steps(server.bounds, server.lam * factor, seen & server.known[place])

    def offer(server: Server, uid: Array) -> Offer:
        return Offer(server.shared, steps_of(server, uid), _best(server))

    def send(server: Server, uid: Array) -> Sent:
        return Sent(server.shared, _best(server) if several else ())

    def join(key: Key, given: Offer) -> Own:
        return Own(given.shared, given.steps, jnp.asarray(False), given.lane)

    def train(key: Key, sent: Sent, own: Own, data: Data) -> tuple[Upload, Own, Info]:
        def lane(shared: Weights, mine: Weights, steps: Steps) -> tuple[Weights, Weights, Info]:
            return act(key, shared, mine, steps, data)

        upload, after, info = jax.vmap(lane)(sent.shared, own.weights, own.steps)
        info = {name: values.mean() for name, values in info.items()}
        if not several:
            return Upload(upload, ()), own._replace(weights=after, trained=has_rows(data)), info
        choice = clearly_better(model, after, sent.lane, data.valid)
        losses = jax.vmap(lambda one: mean_loss(model, model.apply, one, data.valid))(after)
        some = jnp.asarray(data.valid.count) > 0
        return Upload(upload, (losses, some)), Own(after, own.steps, has_rows(data), choice), info

    def merge(server: Server, uploads: Upload, weights: Array, uids: Array) -> Server:
        now, later = jax.random.split(server.key)
        mass = masses(how, server, weights, uids)
        known, update = _update(how, average, server, uploads.models, mass, weights, uids, now)
        paces = paced(known, server.factor[uids], mass) if speed is None else speed(known)
        moved = jax.tree.map(lambda w, u: w + tree.along(paces, u) * u, server.shared.params, update.params)
        shared = guarded(server.shared, Weights(moved, tree.add(server.shared.stats, update.stats)))
        slope = known.lam * jax.vmap(lambda one: jnp.sqrt(tree.squared_norm(one)))(update.params)
        if several:
            known = known._replace(votes=_voted(server.votes, uploads.votes, weights, uids))
        return known._replace(shared=shared, slope=slope, rounds=server.rounds + 1, key=later)

    def serve(key: Key, given: Offer, own: Own, data: Data) -> Weights:
        lane = jnp.where(own.trained, own.lane, given.lane) if how.lam == "valid-own" else given.lane
        shared, steps = tree.at(given.shared, lane), tree.at(given.steps, lane)
        first = tree.choose(own.trained, tree.at(own.weights, lane), shared)
        return descent.fresh(key, first, shared, steps, data, own.trained)

    def facts(given: Offer, own: Own, served: Weights) -> Info:
        lane = own.lane if how.lam == "valid-own" else given.lane
        return {"lam": own.steps.lam[lane]}

    main = Method(
        model=model,
        start=start,
        send=send,
        offer=offer,
        join=join,
        train=train,
        merge=merge,
        serve=serve,
        predict=model.apply,
        plan=plan,
        common=lambda given: tree.at(given.shared, given.lane),
        facts=facts,
        notes=lambda server: noted(descent, name, server),
        tells=lambda server: told(descent, server, speed or paced_for_all),
        lanes=how.lanes,
    )
    return _asked(main, descent, name, check)


def _asked(main: Method, descent: Descent, name: str, check: Check | None) -> Method:
    """The method after a round of statistics, if it needs any."""
    how, part = descent.how, make_part(descent.model, None, 0.0)
    if not isinstance(how.lam, str) and not descent.exact:
        return main

    def hand_over(key: Key, fresh: Server, before: Facts) -> Server:
        lam = jnp.where(before.spare < 1, before.curvature, before.lam)
        lam = lam if isinstance(how.lam, str) else fresh.lam[0]
        factor = before.factor if how.lam == "own" else jnp.ones_like(before.factor)
        return begun(how, len(before.factor), before._replace(lam=lam, factor=factor), key)

    def refuse(before: Facts) -> str | None:
        found = refusal(how, name, descent.exact, before)
        return found if found is not None or check is None else check(top_lam(how, before), before.bounds)

    asked = statistics(part, descent.plan, by_plan=not descent.exact)
    return then(asked, 1, main, hand_over=hand_over, everyone=True, refuse=refuse)


def begun(how: How, num_clients: int, facts: Facts, key: Key) -> Server:
    """The server before its first round: all shared models are the same."""
    number = how.lanes
    lams = facts.lam * SPACING ** (jnp.arange(number) - (number - 1) / 2) if number > 1 else facts.lam[None]
    shared = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (number, *leaf.shape)), facts.shared)
    everyone = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_clients, *leaf.shape)), shared)
    unknown = (jnp.zeros((num_clients, number)), jnp.zeros(num_clients, bool))
    return Server(
        shared=shared,
        lam=lams,
        factor=facts.factor,
        known=facts.known,
        bounds=facts.bounds,
        time=facts.time,
        noise=facts.noise,
        heterogeneity=facts.heterogeneity,
        alike=facts.alike,
        heard=facts.heard,
        mass=jnp.zeros(num_clients),
        table=everyone if how.absent == "stale" else (),
        votes=unknown if number > 1 else (),
        slope=jnp.zeros(number),
        rounds=jnp.zeros((), jnp.int32),
        key=jax.random.fold_in(key, 1),
    )


def pace(how: How, exact: bool, server: Server, factor: Array, mass: Array) -> Array:
    """(G,) gamma times the mean lam of clients with weights ``mass`` = p_i lam_i: 1 is plain averaging.

    Steps of the plan, T long in all, leave a model that moves with speed g at (1 - exp(-lam T)) / lam g, for it is held
    by where the shared one was: the pace makes up for that.
    """
    if how.gamma == "mean":
        return jnp.ones_like(server.lam)
    share = mass / jnp.maximum(mass.sum(), 1e-30)
    most = server.bounds.most
    lams = jnp.maximum(server.lam[:, None] * factor, 1e-6 * most)  # (G, clients)
    if not isinstance(how.gamma, str):
        return how.gamma / (share / lams).sum(1)
    if not exact:
        held = jnp.clip(server.lam * server.time, 1e-6, 1.0)
        return held / -jnp.expm1(-held)
    bent = (share * most / (lams + most)).sum(1)  # the envelope's curvature over the mean lam
    return jnp.where((server.heard > 0) & (mass.sum() > 0), 1 / jnp.maximum(bent, 1e-30), 1.0)


def masses(how: How, server: Server, weights: Array, uids: Array) -> Array:
    """p_i lam_i of a cohort: with p_i in proportion to rows, or else to 1 / lam_i, so that the noisy do not lead."""
    own = server.factor[uids] if how.weighting == "examples" else 1.0
    return client_weights(weights, how.weighting) * own


def _update(
    how: How,
    average: Aggregator,
    server: Server,
    models: Weights,
    mass: Array,
    weights: Array,
    uids: Array,
    key: Key,
) -> tuple[Server, Weights]:
    """The server with what it keeps of clients, and the mean of u_i - w_g as ``absent`` says."""
    heard = weights > 0
    kept = server._replace(mass=server.mass.at[uids].set(jnp.where(heard, mass, server.mass[uids])))
    if how.absent == "stale":
        old = tree.at(server.table, uids)
        new = jax.tree.map(lambda a, b: jnp.where(tree.along(heard, a), a, b), models, old)
        kept = kept._replace(table=tree.put(server.table, uids, new))
        return kept, tree.weighted_mean(_apart(kept.table, server.shared), kept.mass)
    apart = _apart(models, server.shared)
    if average.robust:
        return kept, average(apart, weights, uids, key)
    found = tree.weighted_mean(apart, mass)
    if how.absent == "unbiased":
        known = kept.mass > 0
        usual = kept.mass.sum() / jnp.maximum(known.sum(), 1)
        found = tree.scale(mass.sum() / jnp.maximum(usual * heard.sum(), 1e-30), found)
    return kept, found


def _apart(models: Weights, shared: Weights) -> Weights:
    return jax.tree.map(lambda own, common: own - common, models, shared)


def _best(server: Server) -> Array:
    """The lam with the least mean loss on valid rows of those who said; the middle one before."""
    if isinstance(server.votes, tuple) and not server.votes:
        return jnp.zeros((), jnp.int32)
    losses, known = server.votes
    mean = jnp.where(known[:, None], losses, 0.0).sum(0) / jnp.maximum(known.sum(), 1)
    least = jnp.where(jnp.isnan(mean), jnp.inf, mean).argmin()
    return jnp.where(known.any(), least, losses.shape[1] // 2).astype(jnp.int32)


def _voted(before: Tree, votes: Tree, weights: Array, uids: Array) -> Tree:
    losses, some = votes
    counts = some & (weights > 0)
    losses = jnp.where(jnp.isfinite(losses), losses, 1e30)  # a model that blew up loses, and its client still votes
    table = before[0].at[uids].set(jnp.where(counts[:, None], losses, before[0][uids]))
    return table, before[1].at[uids].max(counts)


def has_rows(data: Data) -> Array:
    """Whether a client can train at all."""
    return jnp.asarray(data.train.count) > 0


def noted(descent: Descent, name: str, server: Any) -> list[str]:
    """A warning where the shared model is no longer a number."""
    if bool(jnp.isfinite(jnp.asarray(server.slope)).all()):
        return []
    lam, most = float(jnp.max(jnp.asarray(server.lam))), float(server.bounds.most)
    wanted = f"; {1 / (most + lam):.2g} would do" if server.heard > 0 else "; try a tenth of it"
    step = "alpha or gamma" if descent.exact else f"lr = {descent.plan.lr:g}"
    return [f"{name}: training diverged, {step} is too long a step{wanted}"]


def told(descent: Descent, server: Any, pace: Callable[[Server], Array] | None) -> list[str]:
    """The degree and where it comes from, the steps, and how far the run is from its optimum."""
    lane = int(_best(server))
    lam, rounds = float(server.lam[lane]), int(server.rounds)
    lines = [f"lam {lam:.3g}{_origin(descent.how, server)}"]
    if descent.exact and pace is not None:
        steps = descent.steps(server.bounds, jnp.asarray(server.lam), jnp.asarray(True))
        lines[0] += (
            f"; {int(steps.inner[lane])} client steps of {float(steps.alpha[lane]):.3g} a round, server pace "
            f"{float(pace(server)[lane]):.3g} (curvature {float(server.bounds.least):.3g} to {float(server.bounds.most):.3g})"
        )
    slope = float(server.slope[lane])
    if lam > 0:
        lines.append(
            f"after {rounds} rounds |w_g - mean w_i| = {slope / lam:.2g}, so the envelope's gradient is {slope:.2g}"
        )
    return lines


def _origin(how: How, server: Any) -> str:
    if not isinstance(how.lam, str):
        return ""
    if float(server.heard) < 2:
        return " (one client was heard: there is nothing to share)"
    noise, left = float(server.noise), float(server.heterogeneity)
    words = {
        "auto": "",
        "own": ", times a factor for each client",
        "valid": f", the best of {how.num_lams} on valid rows",
        "valid-own": f", the best of {how.num_lams} on valid rows; clients may choose another",
    }
    cut = ", for noise explains all differences of local models" if bool(server.alike) else ""
    return f"{words[how.lam]} (local noise {noise:.3g}, heterogeneity R2 {left:.3g}{cut})"
