"""A Model from plain functions or from a flax.linen module, for each kind of task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from plures import tree
from plures.errors import UnknownChoice, Unsupported
from plures.models import metrics as m
from plures.types import Key, Metric, Model, Summary, Tree, Weights


@dataclass(frozen=True)
class Task:
    """A per-example loss and the metrics that go with it; ``score`` is the headline one."""

    name: str
    loss: Callable[[Array, Array], Array]
    metrics: Mapping[str, Metric]
    score: str
    higher_is_better: bool

    @property
    def of_model(self) -> dict[str, Any]:
        """What a model takes from its task."""
        names = ("loss", "metrics", "score", "higher_is_better")
        return {"task": self.name, **{name: getattr(self, name) for name in names}}


def cross_entropy(outputs: Array, y: Array) -> Array:
    """-log softmax(outputs)[y], averaged over any further axes (sequences)."""
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, y.astype(jnp.int32))
    return losses.reshape(losses.shape[0], -1).mean(-1)


def logistic_loss(outputs: Array, y: Array) -> Array:
    """log(1 + exp(-s f)) with s = +1 for label 1 and -1 for label 0."""
    return jax.nn.softplus(jnp.where(y > 0, -outputs, outputs))


def squared_hinge_loss(outputs: Array, y: Array) -> Array:
    """max(0, 1 - s f)^2 with s = +1 for label 1 and -1 for label 0."""
    return jnp.square(jax.nn.relu(1.0 - jnp.where(y > 0, outputs, -outputs)))


def half_squared_error(outputs: Array, y: Array) -> Array:
    """|f - y|^2 / 2, summed over the coordinates of y."""
    squares = jnp.square(outputs - y)
    return 0.5 * squares.reshape(squares.shape[0], -1).sum(-1)


def _twice(outputs: Array, y: Array) -> Array:
    return 2.0 * half_squared_error(outputs, y)


def _binary(loss: Callable[[Array, Array], Array]) -> Task:
    found = {"accuracy": m.mean_of(m.sign_hits), "loss": m.mean_of(loss), "auc": m.auc}
    return Task("binary", loss, found, "accuracy", True)


_LOSS = {"loss": m.mean_of(cross_entropy)}
_ACCURACY = {"accuracy": m.mean_of(m.hits)} | _LOSS
_PERPLEXITY = {"perplexity": m.mean_of(cross_entropy, then=jnp.exp)}
_ERRORS = {"rmse": m.mean_of(_twice, then=jnp.sqrt), "loss": m.mean_of(half_squared_error)}

CLASSIFICATION = Task("classification", cross_entropy, _ACCURACY, "accuracy", True)
SEQUENCE = Task("sequence", cross_entropy, _ACCURACY | _PERPLEXITY, "accuracy", True)
BINARY, MARGIN = _binary(logistic_loss), _binary(squared_hinge_loss)
REGRESSION = Task("regression", half_squared_error, _ERRORS, "rmse", False)
DENSITY = Task("density", cross_entropy, _LOSS | _PERPLEXITY, "loss", False)


def from_functions(
    *,
    init: Callable[[Key], Tree],
    apply: Callable[[Tree, Array], Array],
    task: Task,
    forward: Callable[[Key, Tree, Array], Array] | None = None,
    parts: Mapping[str, tuple[str, ...]] | None = None,
    features: Callable[[Tree, Array], Array] | None = None,
    train_features: Callable[[Key, Tree, Array], Array] | None = None,
    penalty: Callable[[Tree], Array] | None = None,
    summary: Summary | None = None,
) -> Model:
    """A model without running statistics, from functions of its params.

    ``forward(key, params, x)`` is the training pass where it differs from ``apply`` (dropout), ``train_features`` the
    features in it. ``parts`` are patterns of paths within params ("head/*").
    """

    def train_pass(key: Key, weights: Weights, x: Array, mask: Array) -> tuple[Array, Tree]:
        outputs = apply(weights.params, x) if forward is None else forward(key, weights.params, x)
        return outputs, weights.stats

    def featured(key: Key, weights: Weights, x: Array, mask: Array) -> tuple[Array, Array, Tree]:
        # Compiled together, what the outputs and the features have in common is computed once.
        outputs, stats = train_pass(key, weights, x, mask)
        assert features is not None
        found = features(weights.params, x) if train_features is None else train_features(key, weights.params, x)
        return outputs, found, stats

    return Model(
        init=lambda key: Weights(init(key)),
        apply=lambda weights, x: apply(weights.params, x),
        forward=train_pass,
        **task.of_model,
        parts={name: tuple(f"params/{p}" for p in patterns) for name, patterns in (parts or {}).items()},
        features=None if features is None else lambda weights, x: features(weights.params, x),
        featured=None if features is None else featured,
        penalty=penalty,
        summary=summary,
    )


def from_flax(
    module: Any,
    *,
    shape: tuple[int, ...],
    task: Task,
    parts: Mapping[str, tuple[str, ...]] | None = None,
    features: str | None = None,
    dtype: Any = jnp.float32,
) -> Model:
    """A model from a flax.linen module called as ``module(x, train=...)``.

    Batch norm lives in ``stats``; dropout draws from the training key. A module that also takes ``mask`` is
    told which rows count, so that short batches do not spoil batch statistics. ``parts`` are patterns of paths
    within the variables ("params/Dense_1/*", "stats/*"); "norm" is found by itself. ``dtype`` is that of
    the inputs (integers for embeddings). ``features`` names a module method that returns penultimate activations, and
    which the module calls to predict.
    """
    if features is not None and not hasattr(module, features):
        raise UnknownChoice("method of the module", features, _methods_of(module))
    takes_mask = "mask" in inspect.signature(type(module).__call__).parameters

    def init(key: Key) -> Weights:
        variables = module.init(key, jnp.zeros((1, *shape), dtype), train=False)
        return Weights(variables["params"], variables.get("batch_stats", {}))

    def call(weights: Weights, x: Array, **options: Any) -> Any:
        return module.apply({"params": weights.params, "batch_stats": weights.stats}, x, **options)

    def train(key: Key, weights: Weights, x: Array, mask: Array, **options: Any) -> tuple[Array, Tree]:
        extra = {"mask": mask} if takes_mask else {}
        return call(weights, x, train=True, rngs={"dropout": key}, **options, **extra)

    def forward(key: Key, weights: Weights, x: Array, mask: Array) -> tuple[Array, Tree]:
        outputs, changed = train(key, weights, x, mask, mutable=["batch_stats"])
        return outputs, changed.get("batch_stats", weights.stats)

    def featured(key: Key, weights: Weights, x: Array, mask: Array) -> tuple[Array, Array, Tree]:
        kept: Any = {
            "mutable": ["batch_stats", "intermediates"],
            "capture_intermediates": lambda layer, name: layer.path == () and name == features,
        }
        outputs, changed = train(key, weights, x, mask, **kept)
        if features not in changed["intermediates"]:
            raise Unsupported(f"the module does not call its method {features}, which is to return its features")
        return outputs, changed["intermediates"][features][0], changed.get("batch_stats", weights.stats)

    if not takes_mask and jax.tree.leaves(jax.eval_shape(init, jax.random.key(0)).stats):
        raise Unsupported(
            "a module with batch norm must take `mask` and pass it on (nn.BatchNorm(...)(x, mask=mask)), "
            "so that repeated rows of short batches do not count"
        )
    return Model(
        init=init,
        apply=lambda weights, x: call(weights, x, train=False),
        forward=forward,
        **task.of_model,
        parts={"norm": _norm_patterns(init), **(parts or {})},
        features=None if features is None else lambda weights, x: call(weights, x, method=features, train=False),
        featured=None if features is None else featured,
    )


def _norm_patterns(init: Callable[[Key], Weights]) -> tuple[str, ...]:
    """Patterns of all normalization layers: those named so, and those that keep running statistics."""
    stats = jax.eval_shape(init, jax.random.key(0)).stats
    layers = {path.rpartition("/")[0] for path in tree.paths(stats)}
    return ("params/*Norm*", "stats/*", *(f"params/{layer}/*" for layer in sorted(layers)))


def _methods_of(module: Any) -> list[str]:
    return [name for name, value in vars(type(module)).items() if callable(value) and not name.startswith("_")]
