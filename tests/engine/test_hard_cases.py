"""The hard cases the contract was made for, each as a small method that needs it."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run, then, tree
from plures.contract import worlds
from plures.data.worlds import mean_estimation
from plures.errors import BadValue
from plures.local import mean_loss, objective, sgd
from plures.method import Method, Traits, keep_download
from plures.methods.fedavg import fedavg
from plures.models.mlp import mlp
from plures.types import Plan, Weights

WORLD = mean_estimation(num_clients=4, dim=2, rows=6, radius=1.0, sigma=0.1)
MEANS = np.stack([WORLD.federation.rows_of(name, "train")[1].mean(0) for name in WORLD.federation.names])
EXACT = Plan(batch=None, lr=1.0)


def points(result):
    return np.stack([result.model_for(uid).weights.params["point"] for uid in range(4)])


class Mixing(NamedTuple):
    """What a client of ``mixing`` keeps."""

    own: Weights
    update: Weights


def mixing(model, *, plan, share):
    """Every client adds ``share`` of its own update and the rest of the mean update, within the round."""
    base = fedavg(model, plan=plan)

    def train(key, download, private, data):
        moved, info = sgd(key, private.own, data, plan, objective(model))
        update = tree.subtract(moved, private.own)
        return update, Mixing(private.own, update), info

    def settle(key, mean_update, private, data):
        mixed = tree.add(tree.scale(share, private.update), tree.scale(1 - share, mean_update))
        return private._replace(own=tree.add(private.own, mixed))

    return replace(
        base,
        start=lambda key, num: (model.init(key), tree.zeros_like(model.init(key))),
        offer=lambda server, uid: server[0],
        send=lambda server, uid: (),
        answer=lambda server, uid: server[1],
        join=lambda key, first: Mixing(first, tree.zeros_like(first)),
        train=train,
        merge=lambda server, uploads, weights, uids: (server[0], tree.weighted_mean(uploads, weights)),
        settle=settle,
        serve=lambda key, first, private, data: private.own,
        views=replace(base.views, common=None),
    )


@pytest.mark.parametrize(("share", "expected"), [(1.0, MEANS), (0.0, np.tile(MEANS.mean(0), (4, 1)))])
def test_the_servers_answer_is_used_within_the_same_round(share, expected):
    result = run(mixing(WORLD.model, plan=EXACT, share=share), WORLD.federation, rounds=1)

    np.testing.assert_allclose(points(result), expected, atol=1e-5)


def test_the_answer_is_the_only_download_of_a_round_and_joining_is_counted_once():
    result = run(mixing(WORLD.model, plan=EXACT, share=0.5), WORLD.federation, rounds=3)

    model_size = 2 * 4
    assert result.clients["bytes_down"].to_list() == [model_size + 3 * model_size] * 4
    assert result.clients["bytes_up"].to_list() == [3 * model_size] * 4


class Everyones(NamedTuple):
    """All clients' models, and which block of them the next turn is about."""

    models: Weights
    turn: jax.Array


def everyones_models(model, *, num_clients, block, lr):
    """Each client's own model moves by the mean gradient that ALL clients take at it, ``block`` models a turn."""
    turns = num_clients // block

    def start(key, num):
        one = model.init(key)
        return Everyones(jax.tree.map(lambda leaf: jnp.stack([leaf] * num), one), jnp.zeros((), jnp.int32))

    def send(server, uid):
        first = server.turn * block
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, block), server.models)

    def train(key, some, private, data):
        batch = data.train.all()

        def slope(weights):
            return jax.grad(lambda w: objective(model)(key, w, batch)[0])(weights)

        return jax.vmap(slope)(some), private, {}

    def merge(server, uploads, weights, uids):
        step = tree.scale(-lr, tree.weighted_mean(uploads, weights))
        moved = tree.add(send(server, 0), step)
        first = server.turn * block
        models = jax.tree.map(
            lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new, first, 0), server.models, moved
        )
        return Everyones(models, (server.turn + 1) % turns)

    return Method(
        model=model,
        start=start,
        send=send,
        offer=lambda server, uid: tree.at(server.models, jnp.minimum(uid, num_clients - 1)),
        train=train,
        merge=merge,
        serve=lambda key, own, private, data: own,
        predict=model.apply,
        traits=Traits(exchanges=turns),
    )


@pytest.mark.parametrize("executor", ["vectorized", "one_by_one"])
def test_n_models_reach_every_client_in_blocks_within_one_round(executor):
    method = everyones_models(WORLD.model, num_clients=4, block=2, lr=1.0)

    result = run(method, WORLD.federation, rounds=1, executor=executor)

    np.testing.assert_allclose(points(result), np.tile(MEANS.mean(0), (4, 1)), atol=1e-5)
    assert result.clients["bytes_down"][0] == 4 * 8 + 8  # four models in two turns, and its own to join


def test_a_prelude_starts_the_main_method_and_its_bytes_count():
    """Exact local means first; FedAvg then starts from their mean and, without steps, stays there."""
    still = fedavg(WORLD.model, plan=Plan(epochs=0))
    method = then(fedavg(WORLD.model, plan=EXACT), 1, still)

    result = run(method, WORLD.federation, rounds=3)

    np.testing.assert_allclose(points(result), np.tile(MEANS.mean(0), (4, 1)), atol=1e-5)
    assert result.num_bytes == 3 * 4 * (8 + 8)


def test_preludes_chain_and_each_hands_over_to_the_next():
    """The first leaves the mean; the second adds nothing; handing over doubles it each time."""

    def doubled(key, fresh, before):
        weights = tree.scale(2.0, before.weights)
        return fresh._replace(weights=weights)

    still = fedavg(WORLD.model, plan=Plan(epochs=0))
    second = then(still, 1, still, hand_over=doubled)
    method = then(fedavg(WORLD.model, plan=EXACT), 1, second, hand_over=doubled)

    result = run(method, WORLD.federation, rounds=3)

    np.testing.assert_allclose(points(result), np.tile(4 * MEANS.mean(0), (4, 1)), atol=1e-4)


def test_a_prelude_may_ask_for_everyone_whatever_the_cohort():
    method = then(fedavg(WORLD.model, plan=EXACT), 1, fedavg(WORLD.model, plan=Plan(epochs=0)), everyone=True)

    result = run(method, WORLD.federation, rounds=2, cohort=1)

    np.testing.assert_allclose(points(result), np.tile(MEANS.mean(0), (4, 1)), atol=1e-5)
    assert sorted(result.clients["rounds"].to_list()) == [1, 1, 1, 2]


def test_rounds_must_exceed_those_of_the_prelude():
    method = then(fedavg(WORLD.model), 2, fedavg(WORLD.model))

    with pytest.raises(BadValue, match="more than the 2 before and after"):
        run(method, WORLD.federation, rounds=2)


class Table(NamedTuple):
    """A model per training client and the mean of them all, for newcomers."""

    rows: Weights
    known: jax.Array
    mean: Weights


def tabled(model, *, plan):
    """The server keeps each client's model; a client never seen gets the mean of those it has."""

    def start(key, num):
        one = model.init(key)
        rows = jax.tree.map(lambda leaf: jnp.stack([leaf] * num), one)
        return Table(rows, jnp.zeros(num), one)

    def send(server, uid):
        num = len(server.known)
        mine = tree.at(server.rows, jnp.minimum(uid, num - 1))
        return tree.choose(uid < num, mine, server.mean)

    def train(key, mine, private, data):
        moved, info = sgd(key, mine, data, plan, objective(model))
        return moved, private, info

    def merge(server, uploads, weights, uids):
        rows = tree.put(server.rows, uids, uploads)
        known = server.known.at[uids].set(1.0)
        return Table(rows, known, tree.weighted_mean(rows, known))

    return Method(
        model=model,
        start=start,
        send=send,
        train=train,
        merge=merge,
        serve=lambda key, mine, private, data: mine,
        predict=model.apply,
    )


def test_server_tables_are_indexed_by_uid_and_newcomers_have_no_row():
    world = mean_estimation(num_clients=5, dim=2, rows=6)
    seen, unseen = world.federation.hold_out(clients=["client-2"])
    means = np.stack([seen.rows_of(name, "train")[1].mean(0) for name in seen.names])

    result = run(tabled(world.model, plan=EXACT), seen, unseen=unseen, rounds=1)

    np.testing.assert_allclose(points(result), means, atol=1e-5)
    newcomer = result.model_for(4).weights.params["point"]
    np.testing.assert_allclose(newcomer, means.mean(0), atol=1e-5)


def test_selection_on_valid_rows_happens_inside_serve():
    """Serve the better of two constants by the client's valid rows: each client gets its own."""
    seen, _ = worlds.awkward()
    model = worlds.model()

    def better(key, shared, private, data):
        other = tree.scale(-1.0, shared)
        losses = [mean_loss(model, model.apply, one, data.valid) for one in (shared, other)]
        return tree.choose(losses[0] <= losses[1], shared, other)

    method = replace(fedavg(model, plan=worlds.PLAN), serve=better, join=keep_download)
    result = run(method, seen, rounds=2)

    table = result.clients
    assert (table["personal_valid_loss"] <= table["global_valid_loss"] + 1e-6).all()
    assert (table["personal_valid_loss"] < table["global_valid_loss"]).any()


def test_one_array_may_stand_in_two_places_of_the_server_state():
    base = fedavg(WORLD.model, plan=EXACT)

    def start(key, num):
        server = base.start(key, num)
        return server, server.weights

    doubled = replace(
        base,
        start=start,
        send=lambda server, uid: server[0].weights,
        merge=lambda server, *rest: (base.merge(server[0], *rest), server[1]),
    )

    result = run(doubled, WORLD.federation, rounds=2)

    np.testing.assert_array_equal(result.state.server[1].params["point"], np.zeros(2))


@pytest.mark.slow
def test_phases_draw_from_keys_of_their_own():
    """A main method started anew after a prelude of the same kind has another start."""
    model = mlp((3,), 3, hidden=(4,))
    seen, _ = worlds.awkward()
    still = fedavg(model, plan=Plan(epochs=0))
    fresh = then(still, 1, still, hand_over=lambda key, fresh, before: fresh)

    alone, after = (run(one, seen, rounds=2).state.server.weights.params for one in (still, fresh))

    assert (alone["head"]["kernel"] != after["head"]["kernel"]).all()


def test_traffic_follows_the_state_that_was_handed_over():
    def wider(key, fresh, before):
        return jnp.zeros(1000)

    base = fedavg(WORLD.model, plan=EXACT)
    main = replace(
        base,
        start=lambda key, num: jnp.zeros(1),
        send=lambda server, uid: server,
        train=lambda key, download, private, data: (download, private, {}),
        merge=lambda server, *rest: server,
        serve=lambda key, download, private, data: base.model.init(key),
        views=replace(base.views, common=None),
    )

    result = run(then(base, 1, main, hand_over=wider), WORLD.federation, rounds=2)

    assert result.clients["bytes_down"][0] == 8 + 4000
