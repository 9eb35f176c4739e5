"""Checks of views: what a method says about its own state besides running it must be true."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.contract.bench import Bench, served_models
from plures.contract.errors import ContractBroken
from plures.engine.clients import TRAIN, Arrays, view
from plures.engine.evaluate import measure_all
from plures.engine.round import Client, Setup, private_of
from plures.engine.scoring import score_everyone
from plures.keys import Purpose, derive
from plures.registry import PERSONALIZERS
from plures.types import Info, Tree, Weights

CLOSE = 1e-5


class ViewsOfClient(NamedTuple):
    """What the views say of one client."""

    common: Tree
    offer: Tree
    assigned: Info


class TrainedClient(NamedTuple):
    """One client's training, and the next download if it was the only one of its round."""

    model: Weights  # that the view says training ended with
    download: Tree
    private: Tree
    next_download: Tree
    next_private: Tree


def views_tell_the_truth(bench: Bench) -> None:
    """``common`` is one model for all that is offered, ``assign`` agrees with what is served, ``facts`` are numbers that fit both."""
    views = bench.method.views
    if views.common is None and views.assign is None and views.facts is None:
        return
    recorded = bench.base.record.latest("facts", "served")
    facts = {} if recorded is None else recorded.metrics
    seen: ViewsOfClient = _of_everyone(bench, _views_one, with_unseen=True)
    _check_common(seen)
    _check_info("assign", seen.assigned)
    _check_info("facts", facts)
    if views.assign is not None:
        _check_clusters(bench, seen.assigned, facts)


def trained_is_what_training_ended_with(bench: Bench) -> None:
    """A client alone in its round makes the shared model what ``trained`` says; one without rows changes nothing.

    Parts that are not sent must lie in the client's private state.
    """
    if bench.method.views.trained is None:
        return
    seen: TrainedClient = _of_everyone(bench, _trained_one, with_unseen=False)
    rows = np.asarray(bench.base.runner.places.sizes)[:, TRAIN]
    for index in range(len(jax.tree.leaves(seen.model)[0])):
        one: TrainedClient = tree.at(seen, index)
        _check_within(one.model, one.next_download, one.next_private, f"client {index}, alone in its round")
        if rows[index] == 0:
            _check_within(one.model, one.download, one.private, f"client {index}, which has no rows")


def _of_everyone(bench: Bench, one: Any, *, with_unseen: bool) -> Any:
    """What is seen of every client at the end of a run, on the host."""
    run, runner = bench.base, bench.base.runner
    number = runner.everyone.num_clients if with_unseen else runner.num_seen

    def measure(setup: Setup, arrays: Arrays, server: Tree, clients: Client) -> Any:
        return measure_all(one, setup, arrays, server, tree.at(clients, slice(0, number)))

    return score_everyone(runner, run.state, run.store, measure)


def _views_one(setup: Setup, arrays: Arrays, server: Tree, client: Client) -> ViewsOfClient:
    method, views = setup.method, setup.method.views
    offer, private = method.offered(server, client.place.uid), private_of(setup, server, client)
    return ViewsOfClient(
        common=views.common(offer) if views.common else (),
        offer=offer if views.common else (),
        assigned=views.assign(offer, private, view(setup.layout, arrays, client.place)) if views.assign else {},
    )


def _trained_one(setup: Setup, arrays: Arrays, server: Tree, client: Client) -> TrainedClient:
    method, uid = setup.method, client.place.uid
    assert method.views.trained is not None
    key = derive(client.key, Purpose.TRAIN, client.round, uid)
    private, download = private_of(setup, server, client), method.send(server, uid)
    upload, after, _ = method.train(key, download, private, view(setup.layout, arrays, client.place))
    alone = jax.tree.map(lambda leaf: leaf[None], upload)
    weight = jnp.asarray(client.place.sizes[TRAIN], float)
    merged = method.merge(server, alone, weight[None], uid[None])
    model = method.views.trained(download, after, upload)
    return TrainedClient(model, download, private, method.send(merged, uid), after)


def _check_common(seen: ViewsOfClient) -> None:
    """All clients agree, and every model that they agree on is one of those in the offer."""
    for name, values in tree.named(seen.common).items():
        if not np.allclose(values, values[:1], rtol=CLOSE, atol=CLOSE, equal_nan=True):
            raise ContractBroken(f"views.common is not one model for all: '{name}' differs between clients")
    for index in range(len(jax.tree.leaves(seen.common)[0]) if jax.tree.leaves(seen.common) else 0):
        one: ViewsOfClient = tree.at(seen, index)
        for model in jax.tree.leaves(one.common, is_leaf=_is_model):
            if _is_model(model) and not _is_within(model, one.offer, ()):
                raise ContractBroken(f"views.common is not a model of the offer: client {index}")


def _check_info(name: str, info: Mapping[str, Any]) -> None:
    for fact, values in info.items():
        if np.ndim(values) != 1:
            raise ContractBroken(f"views.{name}: '{fact}' is not one number for a client")
        if not np.isfinite(np.asarray(values, float)).all():
            raise ContractBroken(f"views.{name}: '{fact}' is not finite")


def _check_clusters(bench: Bench, assigned: Info, facts: Mapping[str, np.ndarray]) -> None:
    """Clusters have numbers that there are; clients of one cluster are served its model."""
    if "cluster" not in assigned:
        raise ContractBroken("views.assign does not say the 'cluster' of a client")
    cluster, method = np.asarray(assigned["cluster"]), bench.method
    number = method.traits.num_clusters or bench.base.runner.num_seen
    if (cluster != np.round(cluster)).any() or cluster.min() < 0 or cluster.max() >= number:
        raise ContractBroken(f"views.assign: clusters are {sorted(set(cluster.tolist()))}, not in 0..{number - 1}")
    if (np.asarray(facts["cluster"]) != cluster).any():
        raise ContractBroken("views.facts and views.assign say different clusters")
    # With a model for each client, or private state, or a personalizer, more than the cluster's model is served.
    more = bench.subject.entry.name in PERSONALIZERS or jax.tree.leaves(bench.base.state.private)
    if not method.traits.num_clusters or more:
        return
    for name, values in tree.named(served_models(bench.base.runner, bench.base.state)).items():
        for one in set(cluster.tolist()):
            own = np.asarray(values)[cluster == one]
            if not np.allclose(own, own[:1], rtol=CLOSE, atol=CLOSE, equal_nan=True):
                raise ContractBroken(
                    f"views.assign: clients of cluster {one:g} are served different models ('{name}')"
                )


def _check_within(model: Weights, message: Tree, private: Tree, who: str) -> None:
    if not _is_within(model, message, private):
        raise ContractBroken(f"views.trained is not the model that local training ended with: {who}")


def _is_within(model: Weights, message: Tree, private: Tree) -> bool:
    """Whether a model is one of those in a message; parts that are not sent are looked for in the private state."""
    wanted = jax.tree.leaves(model)
    for found in _models_in(message, model):
        kept = [leaf for leaf, sent in zip(wanted, found, strict=True) if sent is None]
        sent = [(leaf, there) for leaf, there in zip(wanted, found, strict=True) if there is not None]
        if all(_close(a, b) for a, b in sent) and all(_stands_in(leaf, private) for leaf in kept):
            return True
    return False


def _is_model(node: Tree) -> bool:
    return isinstance(node, Weights)


def _models_in(message: Tree, like: Weights) -> Iterator[list[Array | None]]:
    """The leaves of every model in a message, alone or stacked; None for those that are not sent."""
    nodes = jax.tree.leaves(message, is_leaf=_is_model)
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(like)]
    for node in nodes:
        leaves = jax.tree.leaves(node, is_leaf=lambda leaf: leaf is None)
        if not _is_model(node) or len(leaves) != len(shapes):
            continue
        there = next(index for index, leaf in enumerate(leaves) if leaf is not None)
        lead = np.shape(leaves[there])[: np.ndim(leaves[there]) - len(shapes[there])]
        for index in np.ndindex(*lead):
            yield [None if leaf is None else leaf[index] for leaf in leaves]


def _stands_in(leaf: Array, private: Tree) -> bool:
    return any(np.shape(one) == np.shape(leaf) and _close(leaf, one) for one in jax.tree.leaves(private))


def _close(a: Array, b: Array) -> bool:
    return bool(np.allclose(a, b, rtol=CLOSE, atol=CLOSE))
