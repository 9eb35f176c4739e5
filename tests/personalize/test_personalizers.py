"""Personalizers: what is chosen on valid rows, what stays private."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run
from plures.contract import worlds
from plures.data.worlds import mean_estimation
from plures.engine.clients import layout_of, on_device, rows
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.methods.local_only import local_only
from plures.methods.scaffold import scaffold
from plures.models.mlp import mlp
from plures.personalize.finetune import finetune
from plures.personalize.guard import guard
from plures.personalize.split import split
from plures.types import Data, Plan, Weights

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
    ("valid", "epochs", "expected"),
    [
        ([1.0], 3, 0.875),  # every epoch helps: 0 -> 0.5 -> 0.75 -> 0.875
        ([0.5], 3, 0.5),  # the first epoch is best
        ([-1.0], 3, 0.0),  # tuning hurts: epoch 0 is a candidate
        ([], 2, 0.75),  # nothing to choose by: the last epoch
    ],
)
def test_finetune_stops_after_the_epoch_that_valid_rows_prefer(valid, epochs, expected):
    method = finetune(fedavg(MODEL), plan=HALF, epochs=epochs)

    assert served_point(method, 0.0, data_of([1.0], valid)) == pytest.approx(expected)


def test_finetune_without_selection_makes_all_epochs():
    method = finetune(fedavg(MODEL), plan=HALF, epochs=3, select=False)

    assert served_point(method, 0.0, data_of([1.0], [-1.0])) == pytest.approx(0.875)


def test_finetune_trains_as_its_base_unless_told_otherwise():
    method = finetune(fedavg(MODEL, plan=HALF), epochs=1)

    assert served_point(method, 0.0, data_of([1.0], [1.0])) == pytest.approx(0.5)


def test_finetune_has_its_own_step_size():
    method = finetune(fedavg(MODEL), plan=HALF, epochs=1, lr=0.25)

    assert served_point(method, 0.0, data_of([1.0], [1.0])) == pytest.approx(0.25)


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
