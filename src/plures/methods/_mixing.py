"""The share of the own update in LG-Mix: where it comes from, how it is remembered, what it is measured by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.local import Loss, objective, sgd, training_loss
from plures.methods._traces import (
    FROM_FEATURES,
    FROM_GRADIENTS,
    Moments,
    feature_width,
    gradient_traces,
    layers_of,
    trace_of,
)
from plures.parting import parts_of
from plures.types import Batch, Data, Info, Key, Model, Plan, Tree, Weights

RULES = (*FROM_FEATURES, *FROM_GRADIENTS, "valid")
CHOICES = {
    "memory": ("none", "mean", "ema"),
    "scope": ("model", "layer"),
    "mode": ("train", "eval", "published"),
    "scale": ("raw", "normalized"),
}


@dataclass(frozen=True)
class Rule:
    """How lam is found and remembered; see ``lgmix``."""

    lam: float | str = "features"
    memory: str = "mean"
    scope: str = "model"
    centered: bool = True
    mode: str = "train"
    scale: str = "raw"
    decay: float = 0.9
    probes: int = 1
    drop_smallest: bool = False

    @property
    def fixed(self) -> bool:
        """Whether lam is a number."""
        return not isinstance(self.lam, str)


class Mixing(NamedTuple):
    """A client's lam, for each layer or one for all, and what it comes from.

    ``memory`` is the sum of the ratios of ``rounds`` rounds, or their moving average. ``own`` and ``shared`` are the last
    traces of the client's model and of everyone's, ``cosine`` that between the last updates.
    """

    lam: Array
    memory: Array
    rounds: Array
    own: Array
    shared: Array
    cosine: Array


def as_published(rule: Rule) -> Rule:
    """The rule with the choices of the published code; refuses another choice that was made."""
    for name in ("memory", "scope", "centered", "mode", "scale"):
        if getattr(rule, name) != getattr(Rule(), name):
            raise BadValue(name, getattr(rule, name), "left out with published=true, which chooses it")
    return replace(rule, mode="published", drop_smallest=rule.lam == "features")


def check_rule(model: Model, rule: Rule) -> None:
    """Refuse what there is not, and what the model cannot tell."""
    if rule.fixed:
        if not 0 <= float(rule.lam) <= 1:
            raise BadValue("lam", rule.lam, f"a number in [0, 1] or one of {', '.join(RULES)}")
    elif rule.lam not in RULES:
        raise UnknownChoice("rule for lam", str(rule.lam), RULES)
    for name, choices in CHOICES.items():
        if getattr(rule, name) not in choices:
            raise UnknownChoice(name, getattr(rule, name), choices)
    if not 0 <= rule.decay < 1:
        raise BadValue("decay", rule.decay, "a number in [0, 1)")
    if rule.probes < 1:
        raise BadValue("probes", rule.probes, "1 or more")
    if rule.lam in FROM_FEATURES and (model.features is None or model.featured is None):
        have = ", ".join(parts_of(model)) or "none"
        raise Unsupported(
            f"lgmix with lam={rule.lam} needs a model that tells its features; this one does not (its named parts: {have}): "
            "use lam=ntk, hutchinson, valid or a number"
        )
    if rule.scope == "layer" and rule.lam not in FROM_GRADIENTS:
        raise Unsupported(
            f"scope=layer needs a lam from gradients ({', '.join(FROM_GRADIENTS)}); given lam={rule.lam}"
        )
    if rule.scale == "normalized" and not (rule.lam == "features" and rule.centered):
        raise Unsupported(
            "scale=normalized is for lam=features with centered=true; otherwise it leaves nothing to compare"
        )


def num_shares(model: Model, rule: Rule) -> int:
    """How many lam a client has."""
    params = jax.eval_shape(model.init, jax.random.key(0)).params
    return len(layers_of(params)) if rule.scope == "layer" else 1


def first_mixing(model: Model, rule: Rule) -> Mixing:
    """Before the first round: the given lam, or 0 as long as there is nothing to measure."""
    nothing = jnp.zeros(num_shares(model, rule))
    lam = nothing + (float(rule.lam) if rule.fixed else 0.0)
    return Mixing(lam, nothing, jnp.zeros(()), nothing, nothing, jnp.zeros(()))


def trained_and_measured(
    model: Model, plan: Plan, rule: Rule, key: Key, own: Weights, shared: Weights, data: Data
) -> tuple[Weights, Array, Array, Info]:
    """The own model after the plan, the traces of both models (per layer, or one number), what training tells."""
    if rule.lam in FROM_FEATURES:
        return _streamed(model, plan, rule, key, own, shared, data)
    after, info = sgd(key, own, data, plan, objective(model))
    if rule.lam not in FROM_GRADIENTS:
        nothing = jnp.zeros(num_shares(model, rule))
        return after, nothing, nothing, info

    def traces(weights: Weights) -> Array:
        # The same probes for both models: equal models have equal traces.
        key_probe = jax.random.fold_in(key, 1)
        found = gradient_traces(model, str(rule.lam), key_probe, weights, data, probes=rule.probes)
        each = jnp.stack(list(found.values()))
        return each if rule.scope == "layer" else each.sum(keepdims=True)

    return after, traces(own), traces(shared), info


def _streamed(
    model: Model, plan: Plan, rule: Rule, key: Key, own: Weights, shared: Weights, data: Data
) -> tuple[Weights, Array, Array, Info]:
    """Training that sums up the features of its batches; the sums travel with the running statistics."""
    width = feature_width(model, data.train, own)
    none = Moments.none(width, cross=rule.drop_smallest)
    after, info = sgd(key, own._replace(stats=(own.stats, none, none)), data, plan, watching(model, rule, shared))
    stats, mine, theirs = after.stats
    return after._replace(stats=stats), _trace(rule, mine), _trace(rule, theirs), info


def watching(model: Model, rule: Rule, shared: Weights) -> Loss:
    """The objective, for weights whose stats are (stats, moments of own features, of those of ``shared``), which grow."""
    assert model.features is not None
    assert model.featured is not None
    features, featured = model.features, model.featured

    def loss(key: Key, weights: Weights, batch: Batch) -> tuple[Array, Tree]:
        before, mine, theirs = weights.stats
        own = weights._replace(stats=before)
        outputs, seen, stats = featured(key, own, batch.x, batch.mask)
        if rule.mode == "eval":
            seen = features(own, batch.x)
        common = (
            features(shared, batch.x) if rule.mode != "train" else featured(key, shared, batch.x, batch.mask)[1]
        )
        value = training_loss(model, own, outputs, batch)
        grown = [
            moments.with_rows(jax.lax.stop_gradient(one), batch.mask)
            for moments, one in ((mine, seen), (theirs, common))
        ]
        return value, (stats, *grown)

    return loss


def _trace(rule: Rule, moments: Moments) -> Array:
    """(1,) the trace that the rule reads from features."""
    if rule.lam == "head":
        return (trace_of(moments, centered=False, normalized=False) + 1.0)[None]
    found = trace_of(
        moments,
        centered=rule.centered,
        normalized=rule.scale == "normalized",
        drop_smallest=rule.drop_smallest,
    )
    return found[None]


def ratio(own: Array, shared: Array) -> Array:
    """own / (own + shared), a half where both are 0.

    >>> ratio(jnp.array([3.0, 0.0]), jnp.array([1.0, 0.0])).tolist()
    [0.75, 0.5]
    """
    total = own + shared
    return jnp.where(total > 0, own / jnp.where(total > 0, total, 1.0), 0.5)


def remembered(rule: Rule, before: Mixing, found: Array, some: Array) -> Mixing:
    """The mixing after a round whose ratio is ``found``; unchanged where there was nothing to measure."""
    rounds = before.rounds + 1
    if rule.memory == "none":
        memory = lam = found
    elif rule.memory == "mean":
        memory = before.memory + found
        lam = memory / rounds
    else:
        memory = lam = jnp.where(before.rounds > 0, rule.decay * before.memory + (1 - rule.decay) * found, found)
    after = before._replace(lam=lam, memory=memory, rounds=rounds)
    return Mixing(*(jnp.where(some, new, old) for new, old in zip(after, before, strict=True)))
