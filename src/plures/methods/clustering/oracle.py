"""The oracle: FedAvg within each planted group, as if the clusters were known.

    w_g  minimizes  sum over clients k of group g of  m_k L_k(w_g)

A reference, not a method to deploy: it reads the planted group. All group models are sent to every client.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.errors import require_least
from plures.method import Method
from plures.methods.clustering.starting_centers import merge_by_cluster
from plures.methods.fedavg import Server, fedavg
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights


class GroupUpdate(NamedTuple):
    """An update and the group it is for."""

    update: Weights
    group: Array


@method(
    title="Oracle groups",
    tags=("oracle", "baseline"),
    limits=[
        Limit("one group: plain FedAvg", {"num_groups": 1}, same_served_as="fedavg", world="one_group"),
        Limit("a group each: training alone", same_served_as="local_only", world="own_groups"),
    ],
)
def oracle(model: Model, *, num_groups: int, plan: Plan = Plan(), averaging: Averaging = Averaging()) -> Method:
    """One FedAvg model per planted group; ``aggregate`` works inside each.

    Args:
        num_groups: How many groups the data have.
        plan: How clients train locally.
    """
    require_least(1, num_groups=num_groups)
    base = fedavg(model, plan=plan, averaging=averaging)

    def start(key: Key, num_clients: int) -> Server:
        one = base.start(key, num_clients)
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * num_groups), one)

    def train(key: Key, models: Weights, private: Tree, data: Data) -> tuple[GroupUpdate, Tree, Info]:
        update, private, info = base.train(key, own_model(models, data), private, data)
        return GroupUpdate(update, jnp.asarray(data.group)), private, info

    def merge(server: Server, uploads: GroupUpdate, weights: Array, uids: Array) -> Server:
        return merge_by_cluster(base, server, uploads.update, uploads.group, weights, uids)[0]

    def assign(models: Weights, private: Tree, data: Data) -> Info:
        return {"cluster": jnp.maximum(jnp.asarray(data.group), 0)}

    def model_after_training(models: Weights, private: Tree, upload: GroupUpdate) -> Weights:
        return tree.add(tree.at(models, jnp.maximum(upload.group, 0)), upload.update)

    return replace(
        base,
        start=start,
        views=replace(base.views, trained=model_after_training, common=None, assign=assign),
        train=train,
        merge=merge,
        serve=lambda key, models, private, data: own_model(models, data),
        # A group may be small.
        traits=replace(base.traits, num_groups=num_groups, num_clusters=num_groups, tolerates=None),
    )


def own_model(models: Weights, data: Data) -> Weights:
    """The model of the client's group; of group 0 where there is none."""
    return tree.at(models, jnp.maximum(jnp.asarray(data.group), 0))
