"""The strength lam from a few rounds of statistics: how far clients' models scatter, and how noisy they are.

Models are taken to scatter around a common one c with variance tau^2 in every direction, and rows to have the
dispersion phi. Then lam_i = phi / (n_i tau^2) is best for a client of n_i rows. With the gradient u and the
curvatures h of its loss at c, in the directions of its Hessian, u_k has the variance (phi / n) h_k (1 + h_k /
lam_i), so a client says how well each lam of a grid explains it, by two numbers:

    A(lam)  =  sum_k log(1 + h_k / lam_i)          B(lam)  =  n sum_k u_k^2 / (h_k (1 + h_k / lam_i))

The server adds these up: - (A + B / phi) / 2 is the logarithm of the likelihood, B times m / (m - 1) as c is found
from the same m clients. The share lam / (lam + e), e the mean curvature, becomes its posterior mean under the prior
2 / (1 + e / lam)^3. Directions in which a client's loss has no curvature count for nothing, so it may have fewer rows than
numbers. phi is 1 for likelihoods, and for squared errors what is left of clients with rows to spare. c is the mean
of the clients' models after some rounds under a weak proximal term.

Where Hessians are too large, or the loss is not convex, one round has to do: the noise s_i of a local model is a
quarter of the squared distance of two models, each trained on a random half of the rows; R2 is the part of the
spread of local models that noise does not explain (DerSimonian, Laird: Meta-analysis in clinical trials, 1986), by
``moreau.shrink_factor``; lam = mean_i h_i s_i / R2 with h_i the mean curvature between the first model and the
local one. In a time T, step size times steps, a model cannot follow a proximal term much stronger than 1 / T: lam ends at a
quarter of that.

Weak spot: where clients differ by much less than their noise, lam is too small by chance; with 20 clients the error
is then 15 to 30 percent above the best, and still far below training alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.aggregate.points import counted
from plures.local import masked_mean, num_steps, objective, per_example_gradients, sgd
from plures.method import Method, then
from plures.methods.penalized.vector import NEWTON_MOST, PartVector, newton
from plures.models.build import cross_entropy, half_squared_error, logistic_loss
from plures.models.units import plain_loss
from plures.moreau import Bounds, shrink_factor
from plures.types import Data, Info, Key, Plan, Rows, Tree, Weights

FLATTEST = 1e-3  # of the largest curvature: what the least one is at least taken to be
STEEPEST = 1e3  # times the largest curvature: what lam is at most
FOLLOWED = 0.25  # lam times the time of a round, at most
CENTERING = 3  # rounds for the common model
WEAK = 0.01  # of a client's mean curvature: the proximal term of these rounds
GRID = np.geomspace(1e-4, 1e4, 49)  # lam over the mean curvature
FINE = 2001
LIKELIHOODS = (cross_entropy, logistic_loss)


class PenaltyFacts(NamedTuple):
    """What is known: the common model, lam, every client's lam over the usual one, and what they come from."""

    shared: Any  # Weights; nothing once the method has them
    lam: Array
    factor: Array  # (N,)
    known: Array  # (N,) whose curvature is within the bounds
    noise: Array
    heterogeneity: Array
    alike: Array  # whether noise explains nearly all differences
    bounds: Bounds
    curvature: Array
    usual: Array  # the mean of 1 / n
    time: Array
    spare: Array  # rows beyond the numbers they determine, of all clients
    heard: Array  # how many were


def blank(shared: Weights, num_clients: int) -> PenaltyFacts:
    """Nothing known yet."""
    zero, one = jnp.zeros(()), jnp.ones(())
    nobody = jnp.zeros(num_clients, bool)
    bounds = Bounds(one, one)
    return PenaltyFacts(
        shared, one, jnp.ones(num_clients), nobody, zero, zero, zero > 0, bounds, one, one, zero, one, zero
    )


def is_exact(part: PartVector) -> bool:
    """Whether clients can be asked for Hessians: the loss is convex and the model small."""
    return part.convex and part.size <= NEWTON_MOST


def statistics(part: PartVector, plan: Plan, *, by_plan: bool) -> Method:
    """The rounds, the last of them one, in which everyone says how its loss curves and its model scatters.

    ``by_plan``: clients will train by the plan's steps.
    """
    if not is_exact(part):
        return _halves_round(part, plan)
    return then(_centering_rounds(part, plan), CENTERING, _likelihood_round(part, plan, by_plan), everyone=True)


class CommonModel(NamedTuple):
    """What a client is asked about: a common model, the mean curvature and the mean of all 1 / n."""

    shared: Weights
    curvature: Array
    usual: Array


class CenteringReply(NamedTuple):
    """A client's model under a weak proximal term, and the mean and the largest curvature of its loss."""

    own: Array
    curvature: Array
    most: Array


def _centering_rounds(part: PartVector, plan: Plan) -> Method:
    """Rounds for the common model: the mean of models under a weak proximal term."""

    def train(key: Key, facts: CommonModel, private: Tree, data: Data) -> tuple[CenteringReply, Tree, Info]:
        here = part.vector(facts.shared)
        risk = part.risk(key, part.rest(facts.shared), data.train.all())
        curvature = jax.hessian(risk)(here)
        mean = jnp.maximum(jnp.trace(curvature) / part.size, 1e-30)
        own, steps = newton(lambda x: risk(x) + 0.5 * WEAK * mean * jnp.square(x - here).sum(), here)
        return CenteringReply(own, mean, jnp.linalg.eigvalsh(curvature)[-1]), private, {"steps": steps}

    def merge(server: PenaltyFacts, uploads: CenteringReply, weights: Array, uids: Array) -> PenaltyFacts:
        counts, sent = counted(uploads, weights)
        middle = tree.weighted_mean(sent.own, counts.astype(jnp.float32))
        middle = jnp.where(counts.any(), middle, part.vector(server.shared))
        most = jnp.maximum(jnp.where(server.heard > 0, server.bounds.most, 0.0), sent.most.max())
        return server._replace(
            shared=part.put(middle, part.rest(server.shared)),
            bounds=Bounds(most, most),
            curvature=jnp.where(counts.any(), _mean(sent.curvature, counts), 1.0),
            usual=jnp.where(counts.any(), _mean(1 / jnp.maximum(weights, 1.0), counts), 1.0),
            heard=jnp.maximum(server.heard, counts.sum()),
        )

    return _statistics_round(part, plan, train, merge)


class LikelihoodReply(NamedTuple):
    """What a client says of the grid, and of its rows."""

    volume: Array  # (G,) A
    misfit: Array  # (G,) B
    left: Array  # n times twice the least loss, or what stands for the dispersion times ``spare``
    spare: Array
    inverse: Array  # tr(H^-1) / n
    least: Array
    most: Array
    time: Array


def _likelihood_round(part: PartVector, plan: Plan, by_plan: bool) -> Method:
    """The round in which clients weigh the grid."""
    ridge = part.least_curvature()

    def train(key: Key, facts: CommonModel, private: Tree, data: Data) -> tuple[LikelihoodReply, Tree, Info]:
        told = weigh_grid(part, ridge, key, facts, data)
        time = plan.lr * jnp.asarray(num_steps(data.train, plan), jnp.float32) if by_plan else jnp.zeros(())
        return told._replace(time=time), private, {}

    def merge(server: PenaltyFacts, uploads: LikelihoodReply, weights: Array, uids: Array) -> PenaltyFacts:
        counts, told = counted(uploads, weights)
        return conclude(part, server, told, counts, weights, uids)

    return _statistics_round(part, plan, train, merge)


def weigh_grid(part: PartVector, ridge: float, key: Key, facts: CommonModel, data: Data) -> LikelihoodReply:
    """A client's evidence for every lam of the grid, which for n rows is lam / n over the mean of all 1 / n."""
    batch, rest, here = data.train.all(), part.rest(facts.shared), part.vector(facts.shared)
    risk = part.risk(key, rest, batch)
    values, vectors = jnp.linalg.eigh(jax.hessian(risk)(here))
    gradient = jax.grad(risk)(here) @ vectors
    rows = jnp.asarray(data.train.count, jnp.float32)
    # Curvature that comes from a ridge alone says nothing of rows.
    on = values > jnp.maximum(2 * ridge, 1e-5 * values[-1])
    safe = jnp.where(on, values, 1.0)
    own = 1 / jnp.maximum(rows * facts.usual, 1e-30)
    lams = jnp.clip(own, 1e-3, 1e3) * facts.curvature * jnp.asarray(GRID, jnp.float32)[:, None]
    under = 1 + jnp.where(on, values, 0.0) / lams  # (G, d)
    misfit = rows * jnp.where(on, gradient**2 / (safe * under), 0.0).sum(1)
    known = on.sum().astype(jnp.float32)
    spare = jnp.maximum(rows - known, 0.0)
    left = _dispersion(
        part, key, facts.shared, data, jnp.where(on, gradient**2 / safe, 0.0).sum(), vectors, on, safe
    )
    inverse = jnp.where(on, 1 / safe, 0.0).sum() / jnp.maximum(rows, 1)
    return LikelihoodReply(
        jnp.log(under).sum(1), misfit, left * spare, spare, inverse, values[0], values[-1], jnp.zeros(())
    )


def _dispersion(
    part: PartVector, key: Key, shared: Weights, data: Data, fall: Array, vectors: Array, on: Array, safe: Array
) -> Array:
    """A client's dispersion: 1 for likelihoods, sigma^2 for squared errors, what its rows' gradients say for others."""
    model, batch = part.model, data.train.all()
    if model.loss in LIKELIHOODS:
        return jnp.ones(())
    rows = jnp.asarray(data.train.count, jnp.float32)
    spare = jnp.maximum(rows - on.sum(), 1.0)
    if plain_loss(model) is half_squared_error:
        outputs, _ = model.forward(key, shared, batch.x, batch.mask)
        least = jnp.maximum(2 * masked_mean(model.loss(outputs, batch.y), batch.mask) - fall, 0.0)
        return rows * least / spare
    found = per_example_gradients(model, key, shared, batch)
    gradients = jax.vmap(lambda one: part.vector(Weights(one, shared.stats)))(found) @ vectors
    return jnp.where(on, jnp.square(gradients) / safe, 0.0).sum() / jnp.maximum(rows * on.sum(), 1.0)


def conclude(
    part: PartVector, server: PenaltyFacts, told: LikelihoodReply, counts: Array, weights: Array, uids: Array
) -> PenaltyFacts:
    """lam and what belongs to it, from what the clients that were heard say."""
    number = counts.sum()
    spare = jnp.where(counts, told.spare, 0.0).sum()
    likely = part.model.loss in LIKELIHOODS
    size = jnp.ones(()) if likely else jnp.where(counts, told.left, 0.0).sum() / jnp.maximum(spare, 1.0)
    size = jnp.maximum(size, 1e-30)
    volume, misfit = (jnp.where(counts[:, None], one, 0.0).sum(0) for one in (told.volume, told.misfit))
    misfit = misfit / size * number / jnp.maximum(number - 1, 1)
    share, flat = posterior(-0.5 * (volume + misfit))
    most = jnp.maximum(server.bounds.most, jnp.where(counts, told.most, 0.0).max())
    least = jnp.where(counts, told.least, jnp.inf).min()
    time = _mean(told.time, counts)
    lam = server.curvature * jnp.where(number > 1, share / jnp.maximum(1 - share, 1e-6), 1.0)
    lam = _within(lam, 1e-6 * most, jnp.where(time > 0, FOLLOWED / jnp.maximum(time, 1e-30), STEEPEST * most))
    factor = jnp.where(counts, 1 / jnp.maximum(weights * server.usual, 1e-30), 1.0)
    noise = size * _mean(told.inverse, counts)
    return server._replace(
        lam=lam,
        factor=server.factor.at[uids].set(jnp.clip(factor, 1e-3, 1e3)),
        known=server.known.at[uids].set(counts),
        noise=to_a_percent(noise),
        heterogeneity=to_a_percent(part.size * size * server.usual / lam),
        alike=(number > 1) & flat,
        bounds=Bounds(jnp.clip(least, FLATTEST * most, most), most),
        time=time,
        spare=jnp.where(likely, 1.0, spare),
        heard=number.astype(jnp.float32),
    )


def _within(lam: Array, least: Array, most: Array) -> Array:
    """lam to a percent, no smaller than ``least`` and no larger than ``most``, which is not rounded."""
    return jnp.where(lam < most, jnp.clip(to_a_percent(lam), least, most), most)


def to_a_percent(value: Array) -> Array:
    """A positive number rounded to a percent, far finer than estimates are: rounding errors then do not show."""
    return jnp.exp(0.01 * jnp.round(100 * jnp.log(jnp.maximum(value, 1e-30))))


def posterior(likely: Array) -> tuple[Array, Array]:
    """The posterior mean of lam / (lam + e), and whether the likelihood still grows at the largest lam.

    >>> share, alike = posterior(-0.5 * 400.0 * jnp.log(jnp.asarray(GRID) / 2.0) ** 2)  # sharp, at twice the curvature
    >>> round(float(share), 2), bool(alike)
    (0.68, False)
    """
    coarse, fine = np.log(GRID), np.linspace(np.log(GRID[0]), np.log(GRID[-1]), FINE)
    t = jnp.asarray(np.exp(-fine), jnp.float32)
    mass = jnp.interp(jnp.asarray(fine), jnp.asarray(coarse), likely) + jnp.log(t) - 3 * jnp.log1p(t)
    weight = jax.nn.softmax(mass)
    return (weight / (1 + t)).sum(), likely.argmax() == len(GRID) - 1


class HalvesReply(NamedTuple):
    """What a client says that cannot send Hessians: its local model, and some numbers."""

    own: Array  # (d,)
    noise: Array
    curved_noise: Array  # curvature times noise, h_i s_i
    most: Array
    time: Array


def _halves_round(part: PartVector, plan: Plan) -> Method:
    """One round of local models, trained on all rows and on two halves of them."""

    def train(key: Key, facts: CommonModel, private: Tree, data: Data) -> tuple[HalvesReply, Tree, Info]:
        steps = 3 * num_steps(data.train, plan)
        return (
            train_halves(part, plan, key, facts.shared, data),
            private,
            {"steps": jnp.asarray(steps, jnp.float32)},
        )

    def merge(server: PenaltyFacts, uploads: HalvesReply, weights: Array, uids: Array) -> PenaltyFacts:
        counts, said = counted(uploads, weights)
        return _conclude_from_spread(part, server, said, counts, uids)

    return _statistics_round(part, plan, train, merge)


def train_halves(part: PartVector, plan: Plan, key: Key, shared: Weights, data: Data) -> HalvesReply:
    """Models trained on all rows and on two halves of them, by the plan."""
    loss, here = objective(part.model), part.vector(shared)
    key_half, key_train = jax.random.split(key)
    size = max(data.train.capacity, 1)
    half = jax.vmap(lambda row: jax.random.bernoulli(jax.random.fold_in(key_half, row)))(jnp.arange(size))

    def train(rows: Rows) -> Array:
        after, _ = sgd(key_train, shared, replace(data, train=rows), plan, loss)
        return part.vector(after)

    def with_weight(weight: Array) -> Rows:
        return replace(data.train, weight=2.0 * weight)

    own, one, other = train(data.train), train(with_weight(half)), train(with_weight(~half))
    noise = jnp.square(one - other).sum() / 4
    moved = jnp.square(own - here).sum()
    turned = part.gradient(key, part.put(own, part.rest(shared)), data) - part.gradient(key, shared, data)
    curvature = jnp.maximum((turned * (own - here)).sum(), 0.0) / jnp.maximum(moved, 1e-30)
    most = jnp.maximum(part.largest_curvature(key, shared, data), curvature)
    return HalvesReply(
        own, noise, curvature * noise, most, plan.lr * jnp.asarray(num_steps(data.train, plan), jnp.float32)
    )


def _conclude_from_spread(
    part: PartVector, server: PenaltyFacts, said: HalvesReply, counts: Array, uids: Array
) -> PenaltyFacts:
    number = counts.sum()
    left, alike = heterogeneity(said, counts)
    most = jnp.where(counts, said.most, 0.0).max()
    most = jnp.where(most > 0, most, 1.0)
    curved, time = _mean(said.curved_noise, counts), jnp.maximum(_mean(said.time, counts), 1e-30)
    lam = jnp.where(number > 1, curved / jnp.maximum(left, 1e-30), most)
    factor = jnp.where(counts, said.curved_noise / jnp.maximum(curved, 1e-30), 1.0)
    middle = tree.weighted_mean(said.own, counts.astype(jnp.float32))
    middle = jnp.where(number > 0, middle, part.vector(server.shared))
    return server._replace(
        shared=part.put(middle, part.rest(server.shared)),
        lam=_within(lam, 1e-6 * most, FOLLOWED / time),
        factor=server.factor.at[uids].set(jnp.clip(factor, 1e-3, 1e3)),
        known=server.known.at[uids].set(counts),
        noise=_mean(said.noise, counts),
        heterogeneity=left,
        alike=alike,
        bounds=Bounds(FLATTEST * most, most),
        time=time,
        heard=number.astype(jnp.float32),
    )


def heterogeneity(said: HalvesReply, counts: Array) -> tuple[Array, Array]:
    """R2, the part of the spread of models that their noise does not explain, and whether noise explains it all."""
    noise = said.noise
    usual = jnp.nanmedian(jnp.where(counts, noise, jnp.nan))
    usual = jnp.where(jnp.isnan(usual), 0.0, usual) + 1e-30
    weight = jnp.where(counts, usual / (0.5 * (noise + usual)), 0.0)
    total = jnp.maximum(weight.sum(), 1e-30)
    share = weight / total
    apart = weight @ jnp.square(said.own - share @ said.own).sum(1)
    chance = jnp.maximum((weight * noise * (1 - share)).sum(), 1e-30)
    free = jnp.maximum(total - (weight * share).sum(), 1e-30)
    # Nothing is known of the directions of noise: as if all lay in one.
    freedom = jnp.maximum(counts.sum() - 1.0, 1.0)
    shrink = jnp.clip(shrink_factor(apart / chance, freedom, jax.scipy.special.gammainc, xp=jnp), 1e-6, 1 - 1e-6)
    left = jnp.where(apart > 1e3 * chance, apart - chance, chance * (1 - shrink) / shrink) / free
    return left, (counts.sum() > 1) & (apart <= chance)


def _mean(values: Array, counts: Array) -> Array:
    return jnp.where(counts, values, 0.0).sum() / jnp.maximum(counts.sum(), 1)


def _statistics_round(part: PartVector, plan: Plan, train: object, merge: object) -> Method:
    """A warm-up whose state is what is known so far."""

    def start(key: Key, num_clients: int) -> PenaltyFacts:
        return blank(part.model.init(key), num_clients)

    def send(server: PenaltyFacts, uid: Array) -> CommonModel:
        return CommonModel(server.shared, server.curvature, server.usual)

    return Method(
        model=part.model,
        start=start,
        send=send,
        train=train,  # type: ignore[arg-type]
        merge=merge,  # type: ignore[arg-type]
        serve=lambda key, facts, private, data: facts.shared,
        predict=part.model.apply,
        plan=plan,
    )
