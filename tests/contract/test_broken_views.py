"""A view that does not tell the truth is caught, also where it was true of the method it was inherited from."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from plures import tree
from plures.contract import Bench, ContractBroken, Subject
from plures.contract.views_checks import trained_is_what_training_ended_with, views_tell_the_truth
from plures.local import near, sgd
from plures.method import Views, keep_download
from plures.methods.clustering.oracle import oracle
from plures.methods.fedavg import fedavg
from plures.registry import Entry


def bench_of(factory):
    return Bench(Subject.method(Entry(factory.__name__, factory, "broken")))


def attentive(model, *, plan):
    """FedAMP (Huang et al., arXiv 2007.03797) on FedAvg: a model for each client, whose views are still FedAvg's."""
    base = fedavg(model, plan=plan)

    def start(key, num_clients):
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * num_clients), model.init(key))

    def send(server, uid):
        return tree.at(server, jnp.minimum(uid, len(jax.tree.leaves(server)[0]) - 1))

    def train(key, cloud, own, data):
        own, info = sgd(key, own, data, plan, near(model, cloud, 1.0))
        return own, own, info

    def merge(server, uploads, weights, uids):
        def put(table, new):
            return table.at[uids].set(jnp.where(tree.along(weights > 0, new), new, table[uids]))

        models = jax.tree.map(put, server, uploads)
        flat = jax.vmap(lambda one: jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(one)]))(models)
        nearness = jax.nn.softmax(-jnp.square(flat[:, None] - flat[None]).sum(-1), axis=1)
        return jax.tree.map(lambda leaf: jnp.tensordot(nearness, leaf, 1), models)

    def serve(key, cloud, own, data):
        return own

    return replace(base, start=start, send=send, train=train, merge=merge, serve=serve, join=keep_download)


def test_an_inherited_common_model_that_is_not_one_is_caught():
    with pytest.raises(ContractBroken, match=r"views\.common is not one model for all"):
        views_tell_the_truth(bench_of(attentive))


def test_a_common_model_that_is_not_offered_is_caught():
    """All clients agree on it, but nobody is offered the zero model."""

    def broken(model, *, plan):
        method = fedavg(model, plan=plan)
        zero = replace(method.views, common=lambda shared: jax.tree.map(jnp.zeros_like, shared))
        return replace(method, views=zero)

    with pytest.raises(ContractBroken, match=r"views\.common is not a model of the offer"):
        views_tell_the_truth(bench_of(broken))


def test_an_inherited_model_after_training_that_is_none_is_caught():
    with pytest.raises(ContractBroken, match=r"views\.trained is not the model"):
        trained_is_what_training_ended_with(bench_of(attentive))


def test_the_same_method_passes_with_views_of_its_own():
    def honest(model, *, plan):
        return replace(attentive(model, plan=plan), views=Views())

    bench = bench_of(honest)

    views_tell_the_truth(bench)
    trained_is_what_training_ended_with(bench)


@pytest.mark.parametrize(
    ("views", "said"),
    [
        ({"facts": lambda offer, own, served: {"size": jnp.zeros(2)}}, "'size' is not one number"),
        ({"facts": lambda offer, own, served: {"size": jnp.log(-1.0)}}, "'size' is not finite"),
        ({"assign": lambda offer, own, data: {"margin": jnp.ones(())}}, "does not say the 'cluster'"),
        ({"assign": lambda offer, own, data: {"cluster": jnp.asarray(1)}}, r"clusters are \[1\], not in 0\.\.0"),
        (
            {
                "assign": lambda offer, own, data: {"cluster": jnp.asarray(0)},
                "facts": lambda offer, own, served: {"cluster": jnp.asarray(1)},
            },
            "say different clusters",
        ),
    ],
    ids=["a vector", "no number", "no cluster", "a cluster that there is not", "two clusters at once"],
)
def test_facts_and_clusters_that_cannot_be_are_caught(views, said):
    def broken(model, *, plan):
        return replace(fedavg(model, plan=plan), views=Views(**views))

    with pytest.raises(ContractBroken, match=said):
        views_tell_the_truth(bench_of(broken))


def test_clusters_other_than_those_served_are_caught():
    """The oracle serves by the planted group, and says that all clients are of one."""

    def broken(model, *, plan):
        method = oracle(model, plan=plan, num_groups=2)
        same = {"cluster": jnp.asarray(0)}
        return replace(method, views=replace(method.views, assign=lambda offer, own, data: same))

    with pytest.raises(ContractBroken, match="clients of cluster 0 are served different models"):
        views_tell_the_truth(bench_of(broken))
