"""How much to collaborate, from one round: local estimates, how noisy they are, and how the losses curve.

A client finds its own best model w_i and sends it with some numbers: the estimated squared error s_i of w_i, the pull
h s_i, and the least and largest curvature of its loss. With the Hessian H of its objective at w_i, that of its loss alone
H0 and the covariance S of its rows' gradients there, over n rows,

    s_i  =  tr(H^-1 S H^-1) / n          h s_i  =  tr(H^-1 S) / n

so for linear regression s_i = sigma^2 tr(A_i^-1) / n and h s_i = sigma^2 d / n. The server finds the heterogeneity R2 as
the part of the spread of all w_i that noise does not explain, with weights (DerSimonian, Laird: Meta-analysis in
clinical trials, 1986), which for equal s_i is sum_i |w_i - mean|^2 / (m - 1) - s. Then

    lam  =  mean_i h s_i / R2          lam_i  =  h s_i / R2          for one, and for each

Where the Hessian is too large, or the loss not convex, s_i is a quarter of the squared distance of two models, each
trained on a random half of the rows, and h the mean curvature between the first model and w_i. A fifth number then is
the time T of a round, step size times steps: personal models cannot follow a pull of more than 1 / T, so lam ends there.

R2 may come out negative by chance, so it goes by the posterior mean of s / (s + R2) (``envelope.shrink_factor``). Weak spot:
where clients differ by much less than their noise, lam is too small by chance; with 20 clients the error is then 15 to 30
percent above the best, and still far below training alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.points import cleaned, usable
from plures.envelope import Bounds, shrink_factor
from plures.local import num_steps, objective, per_example_gradients, sgd
from plures.methods._part import NEWTON_MOST, Part, newton
from plures.types import Batch, Data, Info, Key, Method, Plan, Rows, Tree, Weights

FLATTEST = 1e-4  # of the largest curvature: what the least one is at least taken to be
STEEPEST = 1e3  # times the largest curvature: what lam is at most


class Said(NamedTuple):
    """What a client sends: its own best model, and six numbers."""

    own: Array  # (d,)
    noise: Array
    pull: Array
    square: Array  # tr(V^2) of the covariance V whose trace is the noise
    least: Array
    most: Array
    time: Array  # of a round of the plan's steps; 0 for steps from curvature


class Facts(NamedTuple):
    """What is known after the round; a pull is that of one client over the mean of all."""

    shared: Weights
    lam: Array
    factor: Array  # (N,)
    noise: Array
    heterogeneity: Array
    alike: Array  # whether noise explains all of the spread
    bounds: Bounds
    time: Array
    heard: Array  # how many were


def statistics(part: Part, plan: Plan, *, exact: bool, by_plan: bool = False) -> Method:
    """One round in which everyone says how noisy and how curved its loss is; ``by_plan``: and how long a round is."""

    def start(key: Key, num_clients: int) -> Facts:
        return blank(part.model.init(key), num_clients)

    def train(key: Key, shared: Weights, private: Tree, data: Data) -> tuple[Said, Tree, Info]:
        said = _by_curvature(part, key, shared, data) if exact else _by_halves(part, plan, key, shared, data)
        time = plan.lr * jnp.asarray(num_steps(data.train, plan), jnp.float32) if by_plan else jnp.zeros(())
        return said._replace(time=time), private, {}

    def merge(server: Facts, uploads: Said, weights: Array, uids: Array) -> Facts:
        counts = usable(uploads, weights)
        return concluded(part, server, cleaned(uploads, counts), counts, uids)

    return Method(
        model=part.model,
        start=start,
        send=lambda server, uid: server.shared,
        train=train,
        merge=merge,
        serve=lambda key, shared, private, data: shared,
        predict=part.model.apply,
        plan=plan,
    )


def is_exact(part: Part) -> bool:
    """Whether clients can be asked for Hessians: the loss is convex and the model small."""
    return part.convex and part.size <= NEWTON_MOST


def blank(shared: Weights, num_clients: int) -> Facts:
    """Nothing known yet."""
    zero, one = jnp.zeros(()), jnp.ones(())
    return Facts(shared, one, jnp.ones(num_clients), zero, zero, zero > 0, Bounds(one, one), zero, zero)


def concluded(part: Part, server: Facts, said: Said, counts: Array, uids: Array) -> Facts:
    """The degree that the clients which were heard speak for; they start from the mean of their models."""
    number = counts.sum()
    spread, left, alike = heterogeneity(said, counts)
    most = jnp.where(counts, said.most, 0.0).max()
    most = jnp.where(most > 0, most, 1.0)
    least = jnp.where(counts, said.least, jnp.inf).min()
    bounds = Bounds(jnp.clip(least, FLATTEST * most, most), most)
    pull = _mean(said.pull, counts)
    lam = jnp.where(spread > 0, pull / jnp.maximum(left, 1e-30), most)
    time = _mean(said.time, counts)
    lam = jnp.clip(lam, 1e-6 * most, jnp.where(time > 0, 1 / jnp.maximum(time, 1e-30), STEEPEST * most))
    factor = jnp.where(counts, said.pull / jnp.maximum(pull, 1e-30), 1.0)
    factors = server.factor.at[uids].set(jnp.clip(factor, 1e-3, 1e3))
    middle = part.vector(server.shared)
    middle = jnp.where(number > 0, tree.weighted_mean(said.own, counts.astype(jnp.float32)), middle)
    shared = part.put(middle, part.rest(server.shared))
    noise = _mean(said.noise, counts)
    return Facts(shared, lam, factors, noise, left, alike, bounds, time, number.astype(jnp.float32))


def heterogeneity(said: Said, counts: Array) -> tuple[Array, Array, Array]:
    """The spread of models, the part R2 of it that their noise does not explain, and whether noise explains it all."""
    noise = said.noise
    usual = jnp.nanmedian(jnp.where(counts, noise, jnp.nan))
    usual = jnp.where(jnp.isnan(usual), 0.0, usual) + 1e-30
    weight = jnp.where(counts, usual / (0.5 * (noise + usual)), 0.0)
    total = jnp.maximum(weight.sum(), 1e-30)
    share = weight / total
    apart = weight @ jnp.square(said.own - share @ said.own).sum(1)
    chance = jnp.maximum((weight * noise * (1 - share)).sum(), 1e-30)
    free = jnp.maximum(total - (weight * share).sum(), 1e-30)
    square = jnp.maximum(jnp.where(counts, said.square, 0.0).sum(), 1e-30)
    freedom = jnp.maximum((counts.sum() - 1) * jnp.where(counts, noise**2, 0.0).sum() / square, 1.0)
    shrink = shrink_factor(apart / chance, freedom, jax.scipy.special.gammainc, xp=jnp)
    left = jnp.where(apart > 1e3 * chance, apart - chance, chance * (1 - shrink) / shrink) / free
    several = counts.sum() > 1
    return jnp.where(several, apart / free, 0.0), left, several & (apart <= chance)


def _mean(values: Array, counts: Array) -> Array:
    return jnp.where(counts, values, 0.0).sum() / jnp.maximum(counts.sum(), 1)


def _by_curvature(part: Part, key: Key, shared: Weights, data: Data) -> Said:
    """Newton's method for the own model, and Hessians there; the largest curvature also at the first model."""
    batch, rest, here = data.train.all(), part.rest(shared), part.vector(shared)
    risk = part.risk(key, rest, batch)
    curvature = jax.hessian(risk)
    first = jnp.linalg.eigvalsh(curvature(here))
    # A hair of the usual curvature keeps directions that a few rows do not show from running away.
    hair = 1e-3 * jnp.maximum(first.mean(), 1e-30)
    own = newton(lambda x: risk(x) + 0.5 * hair * jnp.square(x - here).sum(), here)
    bent = curvature(own) + hair * jnp.eye(part.size)
    values, vectors = jnp.linalg.eigh(bent)
    values = jnp.maximum(values, 0.1 * hair)
    slopes = _slopes(part, key, part.put(own, rest), batch) @ vectors  # (rows, d)
    rows = jnp.asarray(data.train.count, jnp.float32)
    # Rows that shaped the model lie too near it: the covariance is over as many fewer.
    used = jnp.clip((1 - hair / values).sum(), 0.0, 0.9 * rows)
    spread = slopes.T @ slopes / (jnp.maximum(rows - used, 1.0) * jnp.maximum(rows, 1.0))  # S / n
    cover, pull = spread / jnp.outer(values, values), (jnp.diagonal(spread) / values).sum()
    most = jnp.maximum(first[-1], values[-1] - hair)
    return Said(own, jnp.trace(cover), pull, jnp.square(cover).sum(), values[0] - hair, most, jnp.zeros(()))


def _slopes(part: Part, key: Key, weights: Weights, batch: Batch) -> Array:
    """(rows, d) the gradients of single rows, less their mean; 0 for rows that do not count."""
    found = per_example_gradients(part.model, key, weights, batch)
    flat = jax.vmap(lambda one: part.vector(Weights(one, weights.stats)))(found)
    mean = flat.sum(0) / jnp.maximum(batch.mask.sum(), 1)
    return jnp.where(batch.mask[:, None], flat - mean, 0.0)


def _by_halves(part: Part, plan: Plan, key: Key, shared: Weights, data: Data) -> Said:
    """Models trained on all rows and on two halves of them, by the plan."""
    loss, here = objective(part.model), part.vector(shared)
    key_half, key_train = jax.random.split(key)
    size = max(data.train.capacity, 1)
    half = jax.vmap(lambda row: jax.random.bernoulli(jax.random.fold_in(key_half, row)))(jnp.arange(size))

    def trained(rows: Rows) -> Array:
        after, _ = sgd(key_train, shared, replace(data, train=rows), plan, loss)
        return part.vector(after)

    def weighted(weight: Array) -> Rows:
        return replace(data.train, weight=2.0 * weight)

    own, one, other = trained(data.train), trained(weighted(half)), trained(weighted(~half))
    noise = jnp.square(one - other).sum() / 4
    moved = jnp.square(own - here).sum()
    turned = part.slope(key, part.put(own, part.rest(shared)), data) - part.slope(key, shared, data)
    curvature = jnp.maximum((turned * (own - here)).sum(), 0.0) / jnp.maximum(moved, 1e-30)
    most = part.steepness(key, shared, data)
    pull, nothing = curvature * noise, jnp.zeros(())
    # Nothing is known of its directions: as if all noise lay in one.
    return Said(own, noise, pull, jnp.square(noise), nothing, jnp.maximum(most, curvature), nothing)
