"""What FedCLUP and its relatives share: one objective, and clients that keep a personal model near a shared one.

    min over w_g, w_1 .. w_m   sum_i p_i ( L_i(w_i) + (lam_i / 2) |w_g - w_i|^2 )                         (P)

A client of weight p_i sends a model u_i, and the server goes  w_g <- w_g + pace sum_i p_i (u_i - w_g), weights p_i
lam_i where lam differs from client to client; p_i is then in proportion to 1 / lam_i, or to rows. A client learns
lam, the steps and their number once, when it joins; a round then costs one model each way.

Several lams are trained side by side as G lanes, where valid rows are to choose; else G is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.variances import keep_variances_positive
from plures.local import clearly_better, mean_loss
from plures.method import Method, Report, Traits, Views, then
from plures.methods.penalized.descent import SPACING, PenaltySettings, PersonalDescent, Steps, largest_lam, refusal
from plures.methods.penalized.statistics import PenaltyFacts, blank, statistics
from plures.moreau import Bounds
from plures.types import Data, Info, Key, Tree, Weights

ClientRound: TypeAlias = Callable[[Key, Weights, Weights, Steps, Data], tuple[Weights, Weights, Info]]
"""(key, shared, own, steps, data) -> upload, own, info: what a client does in a round."""


Check: TypeAlias = Callable[[float, Bounds], str | None]
"""(largest lam, curvature) -> why a step diverges, if one does."""


class PenaltyServer(NamedTuple):
    """The shared models of all G lams, the statistics from before, and what the server keeps of clients."""

    shared: Weights  # (G, ...)
    lam: Array  # (G,)
    facts: PenaltyFacts  # without the common model
    mass: Array  # (N,) weights of clients heard so far
    table: Tree  # (N, G, ...) everybody's last upload, for "stale"
    votes: Tree  # (N, G) losses on valid rows, where there are several lams
    gradient: Array  # (G,) |gradient of the envelope|, as far as personal models are exact
    rounds: Array
    key: Key


class PenaltyOffer(NamedTuple):
    """What a client needs to join and to be served."""

    shared: Weights  # (G, ...)
    steps: Steps  # (G,)
    lane: Array  # the lam that is best for all


class PenaltyDownload(NamedTuple):
    """What a client trains with: shared models, and where there are several lams the best one so far."""

    shared: Weights
    lane: Tree


class PersonalModels(NamedTuple):
    """A client's personal models, how it trains them, whether it has, and which it likes best."""

    weights: Weights  # (G, ...)
    steps: Steps  # (G,)
    trained: Array
    lane: Array


class PenaltyUpload(NamedTuple):
    """A client's models, and where there are several lams their losses on its valid rows and if it has any."""

    models: Weights  # (G, ...)
    votes: Tree


@dataclass(frozen=True, eq=False, kw_only=True)
class PenalizedMethod:
    """A method of the family, from how personal models descend and what a client does in a round.

    Without ``act`` a client goes on from its own last model and sends it. ``speed(server)`` is the server's pace (G,) where it is not that of the settings; ``check`` says why a step of the
    method's own diverges.
    """

    descent: PersonalDescent
    name: str
    act: ClientRound | None = None
    speed: Callable[[PenaltyServer], Array] | None = None
    check: Check | None = None

    @property
    def settings(self) -> PenaltySettings:
        """All options."""
        return self.descent.settings

    @property
    def several(self) -> bool:
        """Whether there are several lams to choose from."""
        return self.settings.lanes > 1

    def start(self, key: Key, num_clients: int) -> PenaltyServer:
        """The server where nothing is known."""
        facts = blank(self.descent.model.init(key), num_clients)
        lam = 1.0 if isinstance(self.settings.lam, str) else self.settings.lam
        return first_server(self.settings, num_clients, facts._replace(lam=jnp.asarray(lam, jnp.float32)), key)

    def offer(self, server: PenaltyServer, uid: Array) -> PenaltyOffer:
        """All shared models, and the steps that fit the client."""
        size = len(server.facts.factor)
        seen, index = uid < size, jnp.minimum(uid, size - 1)
        lam = server.lam * jnp.where(seen, server.facts.factor[index], 1.0)
        steps = self.descent.steps(server.facts.bounds, lam, seen & server.facts.known[index])
        return PenaltyOffer(server.shared, steps, _best_lane(server))

    def send(self, server: PenaltyServer, uid: Array) -> PenaltyDownload:
        """The shared models."""
        return PenaltyDownload(server.shared, _best_lane(server) if self.several else ())

    def join(self, key: Key, offer: PenaltyOffer) -> PersonalModels:
        """Personal models start at the shared ones."""
        return PersonalModels(offer.shared, offer.steps, jnp.asarray(False), offer.lane)

    def train(
        self, key: Key, download: PenaltyDownload, own: PersonalModels, data: Data
    ) -> tuple[PenaltyUpload, PersonalModels, Info]:
        """What the client does in a round, for every lam; with several of them it votes."""

        def lane(shared: Weights, mine: Weights, steps: Steps) -> tuple[Weights, Weights, Info]:
            if self.act is not None:
                return self.act(key, shared, mine, steps, data)
            after, info = self.descent.train(key, mine, shared, steps, data)
            return after, after, info

        upload, after, info = jax.vmap(lane)(download.shared, own.weights, own.steps)
        info = {name: values.mean() for name, values in info.items()}
        if not self.several:
            return PenaltyUpload(upload, ()), own._replace(weights=after, trained=has_rows(data)), info
        model = self.descent.model
        choice = clearly_better(model, after, download.lane, data.valid)
        losses = jax.vmap(lambda one: mean_loss(model, model.apply, one, data.valid))(after)
        votes = (losses, jnp.asarray(data.valid.count) > 0)
        return PenaltyUpload(upload, votes), PersonalModels(after, own.steps, has_rows(data), choice), info

    def merge(self, server: PenaltyServer, uploads: PenaltyUpload, weights: Array, uids: Array) -> PenaltyServer:
        """The shared models after a step along the mean of u_i - w_g."""
        now, later = jax.random.split(server.key)
        # p_i lam_i, with p_i in proportion to rows, or else to 1 / lam_i, so that the noisy do not lead
        own = server.facts.factor[uids] if self.settings.aggregation.weighting == "examples" else 1.0
        mass = self.settings.aggregation.client_weights(weights) * own
        known, update = self._mean_update(server, uploads.models, mass, weights, uids, now)
        paces = self.pace(known, server.facts.factor[uids], mass)
        params = tree.add(server.shared.params, tree.scale_rows(paces, update.params))
        moved = Weights(params, tree.add(server.shared.stats, update.stats))
        gradient = known.lam * jax.vmap(lambda one: jnp.sqrt(tree.squared_norm(one)))(update.params)
        if self.several:
            known = known._replace(votes=_count_votes(server.votes, uploads.votes, weights, uids))
        shared = keep_variances_positive(server.shared, moved)
        return known._replace(shared=shared, gradient=gradient, rounds=server.rounds + 1, key=later)

    def _mean_update(
        self, server: PenaltyServer, models: Weights, mass: Array, weights: Array, uids: Array, key: Key
    ) -> tuple[PenaltyServer, Weights]:
        """The server with what it keeps of clients, and the mean of u_i - w_g as ``absent`` says."""
        heard, absent, aggregation = weights > 0, self.settings.penalty.absent, self.settings.aggregation
        kept = server._replace(mass=server.mass.at[uids].set(jnp.where(heard, mass, server.mass[uids])))
        if absent == "stale":
            old = tree.at(server.table, uids)
            kept = kept._replace(table=tree.put(server.table, uids, tree.choose_rows(heard, models, old)))
            return kept, tree.weighted_mean(tree.subtract(kept.table, server.shared), kept.mass)
        differences = tree.subtract(models, server.shared)
        if aggregation.robust:
            return kept, aggregation.aggregator(differences, weights, uids, key)
        update = tree.weighted_mean(differences, mass)
        if absent == "unbiased":
            known = kept.mass > 0
            usual = kept.mass.sum() / jnp.maximum(known.sum(), 1)
            update = tree.scale(mass.sum() / jnp.maximum(usual * heard.sum(), 1e-30), update)
        return kept, update

    def pace(self, server: PenaltyServer, factor: Array, mass: Array) -> Array:
        """(G,) how far the server goes along the mean."""
        if self.speed is not None:
            return self.speed(server)
        return pace(self.settings, self.descent.exact, server, factor, mass)

    def serve(self, key: Key, offer: PenaltyOffer, own: PersonalModels, data: Data) -> Weights:
        """The personal model of the best lam; a newcomer trains one from the shared model."""
        lane = self._lane(jnp.where(own.trained, own.lane, offer.lane), offer)
        shared, steps = tree.at(offer.shared, lane), tree.at(offer.steps, lane)
        first = tree.choose(own.trained, tree.at(own.weights, lane), shared)
        return self.descent.train_newcomer(key, first, shared, steps, data, own.trained)

    def facts(self, offer: PenaltyOffer, own: PersonalModels, served: Weights) -> Info:
        """The client's lam."""
        return {"lam": own.steps.lam[self._lane(own.lane, offer)]}

    def _lane(self, own: Array, offer: PenaltyOffer) -> Array:
        """Which lam counts for a client: its own choice where it has one, else that of all."""
        return own if self.settings.lam == "valid-own" else offer.lane

    def report(self, server: Any) -> Report:
        """A warning of divergence; lam and where it comes from, the steps, and how far the run is from its optimum."""
        factor = server.facts.factor
        paces = self.pace(server, factor, jnp.ones_like(factor)) if self.descent.exact else None
        warnings = warn_of_divergence(self.descent, self.name, server)
        return Report(warnings, findings_of(self.descent, server, paces))

    def build(self) -> Method:
        """The method, after a few rounds of statistics where it needs any."""
        descent = self.descent
        main = Method(
            model=descent.model,
            start=self.start,
            send=self.send,
            offer=self.offer,
            join=self.join,
            train=self.train,
            merge=self.merge,
            serve=self.serve,
            predict=descent.model.apply,
            plan=descent.plan,
            views=Views(
                common=lambda offer: tree.at(offer.shared, offer.lane), facts=self.facts, report=self.report
            ),
            traits=Traits(lanes=self.settings.lanes),
        )
        if not isinstance(self.settings.lam, str) and not descent.exact:
            return main
        asked = statistics(descent.part, descent.plan, by_plan=not descent.exact)
        return then(asked, 1, main, hand_over=self._hand_over, everyone=True, refuse=self._refuse)

    def _hand_over(self, key: Key, fresh: PenaltyServer, before: PenaltyFacts) -> PenaltyServer:
        """The server with what the statistics say, as far as it is asked for."""
        lam = jnp.where(before.spare < 1, before.curvature, before.lam)
        lam = lam if isinstance(self.settings.lam, str) else fresh.lam[0]
        factor = before.factor if self.settings.lam == "own" else jnp.ones_like(before.factor)
        return first_server(self.settings, len(factor), before._replace(lam=lam, factor=factor), key)

    def _refuse(self, before: PenaltyFacts) -> str | None:
        why = refusal(self.descent, self.name, before)
        if why is not None or self.check is None:
            return why
        return self.check(largest_lam(self.settings, before), before.bounds)


def first_server(settings: PenaltySettings, num_clients: int, facts: PenaltyFacts, key: Key) -> PenaltyServer:
    """The server before its first round: all shared models are the same."""
    number = settings.lanes
    lams = facts.lam * SPACING ** (jnp.arange(number) - (number - 1) / 2) if number > 1 else facts.lam[None]
    shared = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (number, *leaf.shape)), facts.shared)
    everyone = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_clients, *leaf.shape)), shared)
    unknown = (jnp.zeros((num_clients, number)), jnp.zeros(num_clients, bool))
    return PenaltyServer(
        shared=shared,
        lam=lams,
        facts=facts._replace(shared=()),
        mass=jnp.zeros(num_clients),
        table=everyone if settings.penalty.absent == "stale" else (),
        votes=unknown if number > 1 else (),
        gradient=jnp.zeros(number),
        rounds=jnp.zeros((), jnp.int32),
        key=jax.random.fold_in(key, 1),
    )


def pace(settings: PenaltySettings, exact: bool, server: PenaltyServer, factor: Array, mass: Array) -> Array:
    """(G,) gamma times the mean lam of clients with weights ``mass`` = p_i lam_i: 1 is plain averaging.

    Steps of the plan, T long in all, leave a model that moves with speed g at (1 - exp(-lam T)) / lam g, for it is held
    by where the shared one was: the pace makes up for that.
    """
    if settings.gamma == "mean":
        return jnp.ones_like(server.lam)
    share = mass / jnp.maximum(mass.sum(), 1e-30)
    most = server.facts.bounds.most
    lams = jnp.maximum(server.lam[:, None] * factor, 1e-6 * most)  # (G, clients)
    if not isinstance(settings.gamma, str):
        return settings.gamma / (share / lams).sum(1)
    if not exact:
        held = jnp.clip(server.lam * server.facts.time, 1e-6, 1.0)
        return held / -jnp.expm1(-held)
    curvature = (share * most / (lams + most)).sum(1)  # the envelope's, over the mean lam
    return jnp.where((server.facts.heard > 0) & (mass.sum() > 0), 1 / jnp.maximum(curvature, 1e-30), 1.0)


def _best_lane(server: PenaltyServer) -> Array:
    """The lam with the least mean loss on valid rows of those who said; the middle one before."""
    if isinstance(server.votes, tuple) and not server.votes:
        return jnp.zeros((), jnp.int32)
    losses, known = server.votes
    mean = jnp.where(known[:, None], losses, 0.0).sum(0) / jnp.maximum(known.sum(), 1)
    least = jnp.where(jnp.isnan(mean), jnp.inf, mean).argmin()
    return jnp.where(known.any(), least, losses.shape[1] // 2).astype(jnp.int32)


def _count_votes(before: Tree, votes: Tree, weights: Array, uids: Array) -> Tree:
    losses, some = votes
    counts = some & (weights > 0)
    losses = jnp.where(jnp.isfinite(losses), losses, 1e30)  # a model that blew up loses, and its client still votes
    table = before[0].at[uids].set(jnp.where(counts[:, None], losses, before[0][uids]))
    return table, before[1].at[uids].max(counts)


def has_rows(data: Data) -> Array:
    """Whether a client can train at all."""
    return jnp.asarray(data.train.count) > 0


def warn_of_divergence(descent: PersonalDescent, name: str, server: Any) -> list[str]:
    """A warning where the shared model is no longer a number."""
    if bool(jnp.isfinite(jnp.asarray(server.gradient)).all()):
        return []
    lam, most = float(jnp.max(jnp.asarray(server.lam))), float(server.facts.bounds.most)
    wanted = f"; {1 / (most + lam):.2g} would do" if server.facts.heard > 0 else "; try a tenth of it"
    step = "alpha or gamma" if descent.exact else f"lr = {descent.plan.lr:g}"
    return [f"{name}: training diverged, {step} is too long a step{wanted}"]


def findings_of(descent: PersonalDescent, server: Any, paces: Array | None) -> list[str]:
    """lam and where it comes from, the steps with the server's ``paces`` (G,), and how far the run is from its optimum."""
    lane, bounds = int(_best_lane(server)), server.facts.bounds
    lam, rounds = float(server.lam[lane]), int(server.rounds)
    lines = [f"lam {lam:.3g}{_origin(descent.settings, server.facts)}"]
    if paces is not None:
        steps = descent.steps(bounds, jnp.asarray(server.lam), jnp.asarray(True))
        lines[0] += (
            f"; {int(steps.inner[lane])} client steps of {float(steps.alpha[lane]):.3g} a round, server pace "
            f"{float(paces[lane]):.3g} (curvature {float(bounds.least):.3g} to {float(bounds.most):.3g})"
        )
    gradient = float(server.gradient[lane])
    if lam > 0:
        lines.append(
            f"after {rounds} rounds |w_g - mean w_i| = {gradient / lam:.2g}, so the envelope's gradient is {gradient:.2g}"
        )
    return lines


def _origin(settings: PenaltySettings, facts: Any) -> str:
    if not isinstance(settings.lam, str):
        return ""
    if float(facts.heard) < 2:
        return " (one client was heard: there is nothing to share)"
    words = {
        "auto": "",
        "own": ", times a factor for each client",
        "valid": f", the best of {settings.num_lams} on valid rows",
        "valid-own": f", the best of {settings.num_lams} on valid rows; clients may choose another",
    }
    numbers = f"local noise {float(facts.noise):.3g}, heterogeneity R2 {float(facts.heterogeneity):.3g}"
    cut = ", for noise explains all differences of local models" if bool(facts.alike) else ""
    return f"{words[settings.lam]} ({numbers}{cut})"
