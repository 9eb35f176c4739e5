"""The share of the own update in LG-Mix: where it comes from, how it is remembered, what it is measured by."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures.errors import UnknownChoice, Unsupported, require, require_choice, require_least
from plures.local import Loss, objective, sgd, training_loss
from plures.methods.lgmix.traces import (
    FROM_FEATURES,
    FROM_GRADIENTS,
    FeatureMoments,
    feature_width,
    gradient_traces,
    layers_of,
    trace_of,
)
from plures.models.parts import parts_of
from plures.registry import OptionGroup
from plures.types import Batch, Data, Info, Key, Model, Plan, Tree, Weights

RULES = (*FROM_FEATURES, *FROM_GRADIENTS, "valid")
CHOSEN_BY_PUBLISHED = ("memory", "scope", "centered", "mode", "scale")
CHOICES = {
    "memory": ("none", "mean", "ema"),
    "scope": ("model", "layer"),
    "mode": ("train", "eval", "published"),
    "scale": ("raw", "normalized"),
}


@dataclass(frozen=True, kw_only=True)
class MixingRule(OptionGroup):
    """How the share lam of the own update is found and remembered.

    Args:
        lam: Share of the own update, a number in [0, 1] (0 is FedAvg, 1 trains alone), or where it comes from: "features" (the
            variance of the last layer's inputs), "head", "ntk" or "hutchinson" (traces of the tangent kernel), or "valid"
            (the share among 0, 1/4 .. 1 with the least loss on valid rows).
        memory: How ratios of rounds make up lam: "none" (the last one), "mean" (the mean of all) or "ema" (a moving
            average).
        scope: One lam for the whole "model", or one for every "layer"; the latter only from gradients (ntk, hutchinson).
        centered: Whether features are taken about their mean (their covariance), or as they are (second moments).
        mode: How batch norm and dropout behave in the forward passes for features: as in "train" or in "eval", or as
            "published" (own model as in training, everyone's as in evaluation).
        scale: "raw" traces of features, or "normalized" by the mean of |h|^2, free of the features' scale.
        decay: Weight of the past in the moving average, in [0, 1); 0 forgets it.
        probes: Random directions for "hutchinson"; more are more exact and cost more.
        published: Make the choices of the published code: mode "published", memory "mean", and for features the least
            eigenvalue left out.
    """

    lam: float | str = "features"
    memory: str = "mean"
    scope: str = "model"
    centered: bool = True
    mode: str = "train"
    scale: str = "raw"
    decay: float = 0.9
    probes: int = 1
    published: bool = False

    def __post_init__(self) -> None:
        if self.published:
            self._check_published()
        self._check_values()
        if self.scope == "layer" and self.lam not in FROM_GRADIENTS:
            raise Unsupported(
                f"scope=layer needs a lam from gradients ({', '.join(FROM_GRADIENTS)}); given lam={self.lam}"
            )
        if self.scale == "normalized" and not (self.lam == "features" and self.centered):
            raise Unsupported(
                "scale=normalized is for lam=features with centered=true; otherwise it leaves nothing to compare"
            )

    def _check_published(self) -> None:
        """Refuse another choice than those that the published code makes."""
        for one in fields(self):
            given, free = getattr(self, one.name), one.name not in CHOSEN_BY_PUBLISHED
            require(free or given == one.default, one.name, given, "left out with published=true, which chooses it")

    def _check_values(self) -> None:
        if self.fixed:
            require(0 <= float(self.lam) <= 1, "lam", self.lam, f"a number in [0, 1] or one of {', '.join(RULES)}")
        elif self.lam not in RULES:
            raise UnknownChoice("rule for lam", str(self.lam), RULES)
        for name, choices in CHOICES.items():
            require_choice(name, getattr(self, name), choices)
        require(0 <= self.decay < 1, "decay", self.decay, "a number in [0, 1)")
        require_least(1, probes=self.probes)

    @property
    def fixed(self) -> bool:
        """Whether lam is a number."""
        return not isinstance(self.lam, str)

    @property
    def feature_mode(self) -> str:
        """The mode of the forward passes for features."""
        return "published" if self.published else self.mode

    @property
    def drop_smallest(self) -> bool:
        """Whether the least eigenvalue of features is left out."""
        return self.published and self.lam == "features"


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


def check_features(model: Model, rule: MixingRule) -> None:
    """Refuse a model that cannot tell what lam comes from."""
    if rule.lam in FROM_FEATURES and (model.features is None or model.featured is None):
        have = ", ".join(parts_of(model)) or "none"
        raise Unsupported(
            f"lgmix with lam={rule.lam} needs a model that tells its features; this one does not (its named parts: {have}): "
            "use lam=ntk, hutchinson, valid or a number"
        )


def num_shares(model: Model, rule: MixingRule) -> int:
    """How many lam a client has."""
    params = jax.eval_shape(model.init, jax.random.key(0)).params
    return len(layers_of(params)) if rule.scope == "layer" else 1


def first_mixing(model: Model, rule: MixingRule) -> Mixing:
    """Before the first round: the given lam, or 0 as long as there is nothing to measure."""
    nothing = jnp.zeros(num_shares(model, rule))
    lam = nothing + (float(rule.lam) if rule.fixed else 0.0)
    return Mixing(lam, nothing, jnp.zeros(()), nothing, nothing, jnp.zeros(()))


def train_and_measure(
    model: Model, plan: Plan, rule: MixingRule, key: Key, own: Weights, shared: Weights, data: Data
) -> tuple[Weights, Array, Array, Info]:
    """The own model after the plan, the traces of both models (per layer, or one number), what training tells."""
    if rule.lam in FROM_FEATURES:
        return _train_and_stream(model, plan, rule, key, own, shared, data)
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


def _train_and_stream(
    model: Model, plan: Plan, rule: MixingRule, key: Key, own: Weights, shared: Weights, data: Data
) -> tuple[Weights, Array, Array, Info]:
    """Training that sums up the features of its batches; the sums travel with the running statistics."""
    width = feature_width(model, data.train, own)
    none = FeatureMoments.none(width, cross=rule.drop_smallest)
    first, loss = own._replace(stats=(own.stats, none, none)), objective_with_features(model, rule, shared)
    after, info = sgd(key, first, data, plan, loss)
    stats, mine, theirs = after.stats
    return after._replace(stats=stats), _trace(rule, mine), _trace(rule, theirs), info


def objective_with_features(model: Model, rule: MixingRule, shared: Weights) -> Loss:
    """The objective, for weights whose stats are (stats, moments of own features, of those of ``shared``), which grow."""
    assert model.features is not None
    assert model.featured is not None
    features, featured = model.features, model.featured

    def loss(key: Key, weights: Weights, batch: Batch) -> tuple[Array, Tree]:
        before, mine, theirs = weights.stats
        own = weights._replace(stats=before)
        outputs, seen, stats = featured(key, own, batch.x, batch.mask)
        if rule.feature_mode == "eval":
            seen = features(own, batch.x)
        if rule.feature_mode == "train":
            common = featured(key, shared, batch.x, batch.mask)[1]
        else:
            common = features(shared, batch.x)
        seen, common = jax.lax.stop_gradient((seen, common))
        moments = mine.with_rows(seen, batch.mask), theirs.with_rows(common, batch.mask)
        return training_loss(model, own, outputs, batch), (stats, *moments)

    return loss


def _trace(rule: MixingRule, moments: FeatureMoments) -> Array:
    """(1,) the trace that the rule reads from features."""
    if rule.lam == "head":
        return (trace_of(moments, centered=False, normalized=False) + 1.0)[None]
    normalized, drop = rule.scale == "normalized", rule.drop_smallest
    return trace_of(moments, centered=rule.centered, normalized=normalized, drop_smallest=drop)[None]


def ratio(own: Array, shared: Array) -> Array:
    """own / (own + shared), a half where both are 0.

    >>> ratio(jnp.array([3.0, 0.0]), jnp.array([1.0, 0.0])).tolist()
    [0.75, 0.5]
    """
    total = own + shared
    return jnp.where(total > 0, own / jnp.where(total > 0, total, 1.0), 0.5)


def remember(rule: MixingRule, before: Mixing, found: Array, some: Array) -> Mixing:
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
