"""What a client fits alone for Mapper: a tuned copy of the common model, counts, or a single symbol."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures.errors import Unsupported, require_choice
from plures.local import begin, descend, num_steps, objective
from plures.types import Key, Model, Plan, Rows, Tree, Weights

LOCALS = ("tuned", "counts", "smoothed", "symbol")


class LocalModel(NamedTuple):
    """A model of the client's own, of any class.

    ``fit(key, common, rows)`` is what it learns from some rows, given the common model's weights;
    ``outputs(fitted, x)`` are its predictions, in the form of the common model's.
    """

    fit: Callable[[Key, Weights, Rows], Tree]
    outputs: Callable[[Tree, Array], Array]


def local_model(name: str | LocalModel, model: Model, plan: Plan) -> LocalModel:
    """A local model by its name; one that is given is taken as it is."""
    if isinstance(name, LocalModel):
        return name
    require_choice("local model", name, LOCALS)
    if name == "tuned":
        return tuned_copy(model, plan)
    if model.task != "density":
        raise Unsupported(f"local={name} is for densities over symbols; use local=tuned")
    return {"counts": counts(), "smoothed": counts(0.5), "symbol": symbol()}[name]


def tuned_copy(model: Model, plan: Plan) -> LocalModel:
    """The common model trained on by the client alone."""

    def fit(key: Key, common: Weights, rows: Rows) -> Weights:
        steps = num_steps(rows, plan)
        return descend(key, begin(common, plan), rows, plan, objective(model), stop=steps).weights

    return LocalModel(fit, model.apply)


def counts(smooth: float = 0.0) -> LocalModel:
    """How often each symbol occurred; 1/2 added to each count is the estimate of Krichevsky and Trofimov."""

    def fit(key: Key, common: Weights, rows: Rows) -> Array:
        total = _tally(common, rows) + smooth
        # Nothing counted says nothing: then it is the common model.
        shares = jnp.log(total / jnp.maximum(total.sum(), 1e-30))
        return jnp.where(total.sum() > 0, shares, common.params["logits"])

    return LocalModel(fit, _for_all)


def symbol() -> LocalModel:
    """All mass on the symbol that occurred most often (the first of them on ties)."""

    def fit(key: Key, common: Weights, rows: Rows) -> Array:
        tally = _tally(common, rows)
        mass = jnp.where(jnp.arange(len(tally)) == tally.argmax(), 0.0, -jnp.inf)
        return jnp.where(tally.sum() > 0, mass, common.params["logits"])

    return LocalModel(fit, _for_all)


def _tally(common: Weights, rows: Rows) -> Array:
    batch, number = rows.all(), common.params["logits"].shape[0]
    return jnp.where(batch.mask[:, None], jax.nn.one_hot(batch.y, number), 0.0).sum(0)


def _for_all(log_probs: Array, x: Array) -> Array:
    return jnp.broadcast_to(log_probs, (x.shape[0], *log_probs.shape))
