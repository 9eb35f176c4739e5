"""The contract suite is able to fail: each check catches a method (or an engine) broken on purpose."""

import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from contract_of_ours import traffic_is_as_committed

from plures import tree
from plures.contract import Bench, ContractBroken, Subject, checks
from plures.engine import checkpoint
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.methods.fedprox import fedprox
from plures.methods.local_only import local_only
from plures.registry import Entry, Limit


def bench_of(factory, **facts):
    entry = Entry(factory.__name__, factory, "broken", **facts)
    return Bench(Subject.method(entry))


def shifted(amount_of):
    """FedAvg whose upload is shifted by something it should not know."""

    def broken(model, *, plan):
        base = fedavg(model, plan=plan)

        def train(key, shared, private, data):
            upload, private, info = base.train(key, shared, private, data)
            amount = amount_of(data)
            return jax.tree.map(lambda leaf: leaf + amount, upload), private, info

        return replace(base, train=train)

    return broken


def reading_everybodys_rows(data):
    return 0.01 * jnp.nan_to_num(data.train.x).sum()


def reading_where_it_is_stored(data):
    return 0.01 * jnp.asarray(data.train.start, float)


def reading_padding(data):
    return data.train.all().x.sum() * 0.01


def reading_the_planted_group(data):
    return 0.01 * data.group


@pytest.mark.parametrize(
    ("peek", "check"),
    [
        (reading_everybodys_rows, checks.executors_agree),
        (reading_where_it_is_stored, checks.storage_order_is_not_identity),
        (reading_padding, checks.padding_does_not_matter),
        (reading_the_planted_group, checks.planted_groups_stay_hidden),
    ],
)
def test_a_method_that_knows_too_much_is_caught(peek, check):
    with pytest.raises(ContractBroken):
        check(bench_of(shifted(peek)))


def test_a_method_that_divides_by_its_rows_is_caught():
    def broken(model, *, plan):
        base = local_only(model, plan=plan)

        def train(key, download, own, data):
            upload, own, info = base.train(key, download, own, data)
            share = 1.0 / jnp.asarray(data.train.count, float)
            return upload, own._replace(weights=tree.scale(share, own.weights)), info

        return replace(base, train=train)

    with pytest.raises(ContractBroken, match="not finite"):
        checks.numbers_stay_finite(bench_of(broken))


def test_a_method_whose_work_is_not_counted_is_caught():
    def broken(model, *, plan):
        base = fedavg(model, plan=plan)

        def train(key, *rest):
            upload, private, info = base.train(key, *rest)
            return upload, private, {"loss": info["loss"]}

        return replace(base, train=train)

    with pytest.raises(ContractBroken, match="no 'steps'"):
        checks.work_is_counted(bench_of(broken))


def test_randomness_drawn_while_building_is_caught():
    def broken(model, *, plan):
        luck = (time.time_ns() % 1000) / 1000
        return shifted(lambda data: luck)(model, plan=plan)

    with pytest.raises(ContractBroken, match="vectorized against"):
        checks.executors_agree(bench_of(broken))


def test_a_method_that_ignores_its_key_is_caught():
    def broken(model, *, plan):
        base = fedavg(model, plan=plan)

        def train(key, *rest):
            return base.train(jax.random.key(0), *rest)

        return replace(base, train=train)

    with pytest.raises(ContractBroken, match="another seed"):
        checks.seeds_rule(bench_of(broken))


def test_a_state_that_changes_its_type_is_caught():
    def broken(model, *, plan):
        base = fedavg(model, plan=plan)
        return replace(
            base,
            start=lambda key, num: (base.start(key, num), 0),
            send=lambda server, uid: base.send(server[0], uid),
            merge=lambda server, *rest: (base.merge(server[0], *rest), server[1] + 1),
        )

    with pytest.raises(ContractBroken, match="compiled again"):
        checks.second_round_does_not_compile(bench_of(broken))


def test_a_merge_that_ignores_weights_is_caught():
    def broken(model, *, plan):
        base = fedavg(model, plan=plan)

        def merge(server, uploads, weights, uids):
            return base.merge(server, uploads, jnp.ones_like(weights), uids)

        return replace(base, merge=merge)

    with pytest.raises(ContractBroken, match="lost upload"):
        checks.lost_uploads_do_not_count(bench_of(broken))


def test_a_merge_that_counts_what_was_lost_is_caught():
    def broken(model, *, plan):
        base = fedavg(model, plan=plan)

        def merge(server, uploads, weights, uids):
            return base.merge(server, jax.tree.map(jnp.nan_to_num, uploads), jnp.ones_like(weights), uids)

        return replace(base, merge=merge)

    with pytest.raises(ContractBroken, match="lost upload with other content"):
        checks.lost_uploads_do_not_count(bench_of(broken))


def test_a_method_that_cannot_serve_newcomers_is_caught():
    def broken(model, *, plan):
        base = local_only(model, plan=plan)

        def serve(key, first, own, data):
            blank = jax.tree.map(lambda leaf: leaf * jnp.nan, own.weights)
            return tree.choose(own.trained, own.weights, blank)

        return replace(base, serve=serve)

    with pytest.raises(ContractBroken, match="unseen"):
        checks.unseen_clients_are_served(bench_of(broken))


def test_a_limit_that_does_not_hold_is_caught():
    wrong = Limit("a strong pull: plain FedAvg, which is not so", {"lam": 5.0}, same_served_as="fedavg")

    with pytest.raises(ContractBroken, match="a strong pull"):
        checks.limits_hold(bench_of(fedprox, limits=(wrong,)))


def test_an_upload_that_grows_is_caught():
    def broken(model, *, plan):
        base = fedavg(model, plan=plan)

        def train(key, shared, private, data):
            upload, private, info = base.train(key, shared, private, data)
            return (upload, jnp.zeros(7)), private, info

        return replace(
            base, train=train, merge=lambda server, uploads, *rest: base.merge(server, uploads[0], *rest)
        )

    bench = bench_of(broken)
    honest = checks.traffic_row(Bench(Subject.method(Entry("fedavg", fedavg, ""))))

    with pytest.raises(ContractBroken, match="traffic is"):
        traffic_is_as_committed(bench, {"broken": honest})
    with pytest.raises(ContractBroken, match="make traffic"):
        traffic_is_as_committed(bench, {})


def test_an_engine_that_touches_idle_clients_is_caught(monkeypatch):
    def changed(leaf):
        return ~leaf if leaf.dtype == bool else leaf + 1

    monkeypatch.setattr(tree, "put", lambda stacked, index, new: jax.tree.map(changed, stacked))

    with pytest.raises(ContractBroken, match="outside the cohort"):
        checks.idle_clients_keep_their_rows(bench_of(ditto))


def test_a_checkpoint_that_forgets_is_caught(monkeypatch):
    whole = checkpoint._arrays

    def forgetful(state):
        return whole(state._replace(server=tree.zeros_like(state.server)))

    monkeypatch.setattr(checkpoint, "_arrays", forgetful)

    with pytest.raises(ContractBroken, match="resumed"):
        checks.resumed_equals_uninterrupted(bench_of(fedavg))
