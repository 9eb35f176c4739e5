"""Next-character models: logits for the character after every position of a text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from plures import registry
from plures.errors import BadValue
from plures.models.build import SEQUENCE, from_functions
from plures.models.linear import dense
from plures.models.mlp import dense_init
from plures.types import Key, Model, Tree


@registry.model(title="Character perceptron", paper="Bengio et al., JMLR 2003")
def char_mlp(
    shape: tuple[int, ...], num_outputs: int, *, context: int = 4, dim: int = 8, hidden: int = 128
) -> Model:
    """A perceptron on the embeddings of the last ``context`` characters, at every position of a text at once.

    Inputs are (rows, length) whole numbers below ``num_outputs``, outputs (rows, length, num_outputs). Positions before
    the start of a text have an embedding of their own.

    Args:
        context: How many characters the prediction of the next one sees, the current one included.
        dim: Numbers in the embedding of a character.
        hidden: Width of the hidden layer.
    """
    _check(shape, context=context, dim=dim, hidden=hidden)

    def init(key: Key) -> Tree:
        key_embed, key_dense, key_head = jax.random.split(key, 3)
        return {
            "embed": {"table": jax.random.normal(key_embed, (num_outputs + 1, dim))},
            "dense_0": dense_init(key_dense, context * dim, hidden),
            "head": dense_init(key_head, hidden, num_outputs),
        }

    def features(params: Tree, x: Array) -> Array:
        rows, length = x.shape
        before = jnp.full((rows, context - 1), num_outputs, x.dtype)
        known = jnp.take(params["embed"]["table"], jnp.concatenate([before, x], axis=1), axis=0)
        seen = jnp.concatenate([known[:, i : i + length] for i in range(context)], axis=2)
        layer = jax.nn.relu(dense(params["dense_0"], seen.reshape(rows * length, context * dim)))
        return layer.reshape(rows, length, hidden)

    def apply(params: Tree, x: Array) -> Array:
        layer = features(params, x)
        outputs = dense(params["head"], layer.reshape(-1, hidden))
        return outputs.reshape(*x.shape, num_outputs)

    return from_functions(
        init=init,
        apply=apply,
        task=SEQUENCE,
        parts={"body": ("embed/*", "dense_*"), "head": ("head/*",)},
        features=features,
    )


@registry.model(title="Character GRU", paper="arXiv:1406.1078")
def char_gru(shape: tuple[int, ...], num_outputs: int, *, dim: int = 8, hidden: int = 64) -> Model:
    """A recurrent network with gates (GRU) that reads a text from its start, with a head at every position.

    Inputs are (rows, length) whole numbers below ``num_outputs``, outputs (rows, length, num_outputs). Each text starts
    from a state of zeros.

    Args:
        dim: Numbers in the embedding of a character.
        hidden: Numbers in the state that is carried from character to character.
    """
    from plures.models import networks

    _check(shape, dim=dim, hidden=hidden)
    return networks.with_head(
        networks.CharacterBody(num_outputs, dim, hidden), shape, num_outputs, SEQUENCE, jnp.int32
    )


def _check(shape: tuple[int, ...], **sizes: int) -> None:
    """Refuse what is no text, and sizes below 1."""
    if len(shape) != 1:
        raise BadValue("shape", shape, "a text (length,)")
    for name, given in sizes.items():
        if given < 1:
            raise BadValue(name, given, "1 or more")
