"""Split: named parts of the model stay with the client and never travel.

    shared parts   move as in the base (averaged)
    private parts  are trained by their client alone

With the head kept it is FedPer (Arivazhagan et al., arXiv 1912.00818), with the normalization kept FedBN
(Li et al., arXiv 2102.07623). Clients start from one common initialization of the private parts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.errors import UnknownChoice, Unsupported
from plures.personalize._check import needs_weights
from plures.registry import Limit, personalizer
from plures.types import Data, Info, Key, Method, Model, Tree, Weights, stateless


@personalizer(
    title="Split by parts",
    paper="arXiv:1912.00818",
    tags=("parts",),
    limits=[Limit("a single client shares with nobody anyway", same_served_as="fedavg", world="one_client")],
)
def split(base: Method, *, keep: str = "head") -> Method:
    """The base with the named part of the model private to each client."""
    needs_weights("split", base)
    if base.join is not stateless or base.settle is not None:
        raise Unsupported("split needs a base without private state, such as fedavg or fedprox")
    shape = jax.eval_shape(base.model.init, jax.random.key(0))
    sent = jax.eval_shape(lambda: base.send(base.start(jax.random.key(0), 1), jnp.zeros((), jnp.int32)))
    if [leaf.shape for leaf in jax.tree.leaves(sent)] != [leaf.shape for leaf in jax.tree.leaves(shape)]:
        raise Unsupported("split needs a base that sends one model, such as fedavg or fedprox")
    private_leaf = leaves_of_part(base.model, shape, keep)

    def apart(weights: Weights) -> tuple[list[Array], list[Array]]:
        leaves = jax.tree.leaves(weights)
        shared = [leaf for leaf, kept in zip(leaves, private_leaf, strict=True) if not kept]
        return shared, [leaf for leaf, kept in zip(leaves, private_leaf, strict=True) if kept]

    def whole(shared: list[Array], own: list[Array]) -> Weights:
        both = {False: iter(shared), True: iter(own)}
        return jax.tree.unflatten(jax.tree.structure(shape), [next(both[kept]) for kept in private_leaf])

    def offer(server: Tree, uid: Array) -> Weights:
        return base.send(server, uid)

    def send(server: Tree, uid: Array) -> list[Array]:
        return apart(base.send(server, uid))[0]

    def join(key: Key, first: Weights) -> list[Array]:
        return apart(first)[1]

    def train(key: Key, shared: list[Array], own: list[Array], data: Data) -> tuple[Any, Any, Info]:
        update, _, info = base.train(key, whole(shared, own), (), data)
        upload, change = apart(update)
        return upload, tree.add(own, change), info

    def merge(server: Tree, uploads: list[Array], weights: Array, uids: Array) -> Tree:
        still = [jnp.zeros((len(uids), *leaf.shape), leaf.dtype) for leaf in apart(shape)[1]]
        return base.merge(server, whole(uploads, still), weights, uids)

    def serve(key: Key, first: Weights, own: list[Array], data: Data) -> Weights:
        return base.serve(key, whole(apart(first)[0], own), (), data)

    return replace(base, offer=offer, send=send, join=join, train=train, merge=merge, serve=serve, common=None)


def leaves_of_part(model: Model, shape: Weights, part: str) -> list[bool]:
    """For every leaf of the weights, whether it belongs to the part; refuses a part the model lacks."""
    if part not in model.parts:
        raise UnknownChoice("part of this model", part, model.parts)
    found = tree.matches(shape, model.parts[part])
    if not any(found):
        raise UnknownChoice("part of this model", part, [name for name in model.parts if name != part])
    return found
