"""Personalizers: what is chosen on valid rows, what stays private."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run
from plures.contract import worlds
from plures.data.worlds import density as worlds_of_symbols
from plures.data.worlds import mean_estimation
from plures.engine.clients import layout_of, on_device, rows
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.local import objective
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.methods.local_only import local_only
from plures.methods.scaffold import scaffold
from plures.models.linear import density
from plures.models.mlp import mlp
from plures.personalize.finetune import finetune
from plures.personalize.guard import guard
from plures.personalize.split import split
from plures.types import Data, Plan, Rows, Weights
from plures.wrap.fold_tuning import epochs_by_folds

MODEL = mean_estimation(num_clients=2, dim=1).model


def data_of(train, valid):
    """One client whose targets are the numbers given, for the model that predicts a single point."""
    y = np.array([*train, *valid], np.float32)
    federation = replace(
        mean_estimation(num_clients=2, dim=1).federation,
        x=np.zeros((len(y), 0), np.float32),
        y=y,
        start=np.array([[0, len(train), len(y)]]),
        count=np.array([[len(train), len(valid), 0]]),
        uid=np.array([0]),
        names=("one",),
    )
    arrays, places = on_device(federation)
    layout = layout_of(federation)
    place = jax.tree.map(lambda leaf: leaf[0], places)
    return Data(rows(layout, arrays, place, 0), rows(layout, arrays, place, 1))


def served_point(method, shared, data):
    start = Weights({"point": jnp.array([shared])})
    return float(method.serve(jax.random.key(0), start, (), data).params["point"][0])


HALF = Plan(batch=None, lr=0.5)


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ([1.0, 1.0], 0.875),  # each row gains by every epoch on the other one: 0 -> 0.5 -> 0.75 -> 0.875
        ([1.0, 0.5], 0.5625),  # gains of the rows after 1, 2, 3 epochs: 0.344, 0.399, 0.397
        ([1.0, -1.0], 0.0),  # tuning hurts: epoch 0 is a candidate
        ([2.0, 0.45, -0.05], 0.0),  # the best gain, 0.026, is within a quarter of its standard error, 0.125
        ([2.0, 0.5, 0.0], 5 / 12),  # the best gain, 0.057, is not: its standard error is 0.131
        ([1.0], 0.0),  # a single row has nothing to be held against
    ],
)
@pytest.mark.parametrize("valid", [[], [-9.0]], ids=["no valid rows", "valid rows that are not asked"])
def test_finetune_makes_as_many_epochs_as_folds_of_the_training_rows_prefer(train, valid, expected):
    method = finetune(fedavg(MODEL), plan=HALF, epochs=3, lr=0.5)

    assert served_point(method, 0.0, data_of(train, valid)) == pytest.approx(expected)


def test_finetune_leaves_a_client_without_training_rows_the_model_served():
    method = finetune(fedavg(MODEL), plan=HALF, epochs=3, lr=0.5)

    assert served_point(method, 0.0, data_of([], [1.0])) == 0.0


def test_epochs_are_chosen_on_rows_that_were_not_trained_on():
    """Eight rows, each with a symbol of its own: those learned by heart gain by every epoch, others lose."""
    symbols = jnp.arange(8)
    rows = Rows(jnp.zeros((8, 0)), symbols, 0, 8, 8)
    model = density((0,), 8)
    first, plan = Weights({"logits": jnp.zeros(8)}), Plan(batch=None, lr=4.0)

    number = epochs_by_folds(jax.random.key(0), model, first, rows, plan, 5, 4, objective(model))

    assert int(number) == 0


def test_finetune_without_selection_makes_all_epochs():
    method = finetune(fedavg(MODEL), plan=HALF, epochs=3, lr=0.5, select=False)

    assert served_point(method, 0.0, data_of([1.0], [-1.0])) == pytest.approx(0.875)


def test_finetune_steps_are_half_of_its_bases():
    method = finetune(fedavg(MODEL, plan=HALF), epochs=1)

    assert served_point(method, 0.0, data_of([1.0, 1.0], [])) == pytest.approx(0.25)


def test_finetune_has_its_own_step_size():
    method = finetune(fedavg(MODEL), plan=HALF, epochs=1, lr=0.125)

    assert served_point(method, 0.0, data_of([1.0, 1.0], [])) == pytest.approx(0.125)


def test_fine_tuning_by_folds_beats_choosing_by_valid_rows_on_densities():
    """100 clients with 10 symbols each, from the pooled distribution: 2.292 by folds and 2.421 by 3 valid rows in a study
    of 4 draws with 60 steps of 3; here 2 draws."""
    plan = Plan(batch=None, lr=3.0)

    found = np.mean([expected_loss(seed, plan, epochs=60) for seed in (0, 1)])

    assert found < 2.32


def expected_loss(seed, plan, *, epochs):
    """The mean over clients of the expected log-loss under their true distributions, after tuning."""
    world = worlds_of_symbols(num_clients=100, rows=10, seed=seed)
    y = jnp.asarray(world.federation.y.reshape(100, 10))
    pooled = np.log(np.bincount(world.federation.y, minlength=50) + 0.5)
    method = finetune(fedavg(world.model), plan=plan, epochs=epochs, lr=plan.lr)

    @jax.jit
    @jax.vmap
    def serve(key, y):
        rows = Rows(jnp.zeros((10, 0)), y, 0, 10, 10)
        start = Weights({"logits": jnp.asarray(pooled, jnp.float32)})
        return jax.nn.log_softmax(method.serve(key, start, (), Data(rows, rows)).params["logits"])

    logs = serve(jax.random.split(jax.random.key(seed), 100), y)
    return float(-(world.truth * np.asarray(logs)).sum(1).mean())


@pytest.mark.parametrize(("rows", "steps"), [([2.0, 2.0], 3), ([], 0)], ids=["two rows", "no rows"])
def test_ditto_makes_a_newcomer_a_model_by_its_own_rule(rows, steps):
    """From the shared point 0, descent on (v - 2)^2 / 2 + (lam / 2) v^2 by steps of lr / (1 + lr lam) = 0.4."""
    method = ditto(MODEL, plan=HALF, lam=0.5, newcomer_epochs=3)
    expected = 0.0
    for _ in range(steps):
        expected -= 0.4 * ((expected - 2.0) + 0.5 * expected)

    shared, data = Weights({"point": jnp.array([0.0])}), data_of(rows, [9.0])
    found = method.serve(jax.random.key(0), shared, method.join(jax.random.key(0), shared), data)

    assert float(found.params["point"][0]) == pytest.approx(expected)


def test_ditto_serves_a_client_that_trained_what_it_has():
    method = ditto(MODEL, plan=HALF, lam=0.5)
    shared, data = Weights({"point": jnp.array([0.0])}), data_of([2.0], [])

    _, own, _ = method.train(jax.random.key(0), shared, method.join(jax.random.key(0), shared), data)
    found = method.serve(jax.random.key(0), shared, own, data)

    assert float(found.params["point"][0]) == pytest.approx(0.4 * 2.0)


@pytest.mark.parametrize(
    ("valid", "expected"), [([2.0], 2.0), ([0.0], 0.0), ([], 0.0)], ids=["personal", "common", "no evidence"]
)
def test_guard_serves_whichever_wins_on_valid_rows(valid, expected):
    def personal(key, shared, private, data):
        return Weights({"point": jnp.array([2.0])})

    method = guard(replace(fedavg(MODEL), serve=personal))

    assert served_point(method, 0.0, data_of([1.0], valid)) == pytest.approx(expected)


@pytest.mark.slow
def test_guard_never_loses_to_the_common_model_on_valid_rows():
    seen, unseen = worlds.awkward()

    table = run(guard(ditto(worlds.model(), plan=worlds.PLAN)), seen, unseen=unseen, rounds=3).clients

    assert (table["personal_valid_loss"] <= table["global_valid_loss"] + 1e-6).all()


def test_a_split_upload_holds_no_private_leaf():
    """Marks in the head never reach the upload: it holds the body's leaves and nothing else."""
    model = mlp((3,), 3, hidden=(4,))
    seen, _ = worlds.awkward()
    arrays, places = on_device(seen)
    layout, place = layout_of(seen), jax.tree.map(lambda leaf: leaf[0], places)
    data = Data(rows(layout, arrays, place, 0), rows(layout, arrays, place, 1))
    method = split(fedavg(model, plan=worlds.PLAN), keep="head")
    server = method.start(jax.random.key(0), 6)
    private = method.join(jax.random.key(1), method.offered(server, jnp.asarray(0)))

    upload, kept, _ = method.train(jax.random.key(2), method.send(server, jnp.asarray(0)), private, data)

    assert [leaf.shape for leaf in jax.tree.leaves(upload)] == [(4,), (4, 3)]
    assert [leaf.shape for leaf in kept.own] == [(3,), (3, 4)]
    assert all((new != old).any() for new, old in zip(kept.own, private.own, strict=True))


@pytest.mark.slow
def test_split_averages_the_body_and_keeps_heads_apart():
    model = mlp((3,), 3, hidden=(4,))
    seen, _ = worlds.awkward()

    result = run(split(fedavg(model, plan=worlds.PLAN), keep="head"), seen, rounds=2)

    served = [result.model_for(uid).weights.params for uid in (0, 1)]
    np.testing.assert_array_equal(served[0]["dense_0"]["kernel"], served[1]["dense_0"]["kernel"])
    assert (served[0]["head"]["kernel"] != served[1]["head"]["kernel"]).any()


def test_a_base_served_head_equals_fedavg_when_body_is_kept_by_nobody():
    """Keeping the body private shares the head alone."""
    model = mlp((3,), 3, hidden=(4,))
    seen, _ = worlds.awkward()

    result = run(split(fedavg(model, plan=worlds.PLAN), keep="body"), seen, rounds=1)

    heads = [result.model_for(uid).weights.params["head"]["bias"] for uid in (0, 1)]
    np.testing.assert_array_equal(heads[0], heads[1])


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda: finetune(fedavg(MODEL), epochs=-1), BadValue, "epochs must be 0 or more"),
        (lambda: guard(local_only(MODEL)), Unsupported, "guard needs a base with a model common"),
        (lambda: split(scaffold(MODEL)), Unsupported, "a private head needs a base that averages updates"),
        (lambda: split(fedavg(MODEL), keep="norm"), UnknownChoice, "no part of this model is called 'norm'"),
        (
            lambda: finetune(replace(fedavg(MODEL), predict=lambda served, x: x)),
            Unsupported,
            "finetune needs a base that serves a plain model",
        ),
    ],
)
def test_a_base_that_does_not_fit_is_refused(build, error, said):
    with pytest.raises(error, match=said):
        build()
