"""Private parts: what is sent, what is kept, what newcomers get; for methods that send several models too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import tree
from plures.contract import worlds
from plures.engine import run
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.methods.clustering.hypcluster import hypcluster
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.methods.parts.fedbabu import fedbabu
from plures.methods.parts.fedper import fedper
from plures.methods.parts.fedrep import fedrep
from plures.methods.parts.lg_fedavg import lg_fedavg
from plures.methods.scaffold import scaffold
from plures.models.parts import leaves_of_part, parting
from plures.personalize.finetune import finetune
from plures.types import Data, Plan, Rows, Weights
from plures.wrap.private_parts import parted

MODEL = worlds.model(parts=True)
NORMED = worlds.model(norm=True)
WEIGHTS = MODEL.init(jax.random.key(0))
ONES = jax.tree.map(jnp.ones_like, WEIGHTS)
STEP = Plan(steps=1, batch=None, lr=0.2)


def client(rows=6):
    x = jax.random.normal(jax.random.key(3), (rows, worlds.DIM))
    y = jnp.where(x[:, 0] > 0, 1, 0)
    own = Rows(x=x, y=y, start=0, count=rows, capacity=rows)
    return Data(train=own, valid=own)


def heads(weights):
    return weights.params["head"]


def test_what_is_sent_has_no_private_leaf_and_comes_back_whole():
    part = parting(MODEL, "head")

    sent = part.sent({"model": WEIGHTS, "number": jnp.ones(())})

    assert set(tree.paths(sent)) == {"model/params/dense_0/bias", "model/params/dense_0/kernel", "number"}
    back = part.filled(sent, part.own(WEIGHTS))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, back["model"], WEIGHTS))
    still = part.unmoved(sent)["model"]
    assert not any(leaf.any() for leaf in jax.tree.leaves(heads(still)))


def test_several_models_in_a_message_all_get_the_own_part():
    part = parting(MODEL, "head")
    three = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), WEIGHTS)

    filled = part.filled(part.sent(three), part.own(ONES))

    assert jax.tree.all(jax.tree.map(lambda leaf: bool((leaf == 1).all()), heads(filled)))
    np.testing.assert_array_equal(filled.params["dense_0"]["kernel"], three.params["dense_0"]["kernel"])
    assert jax.tree.leaves(heads(filled))[0].shape[0] == 3


def test_a_part_is_refused_with_what_the_model_has():
    with pytest.raises(UnknownChoice, match=r"no part of this model is called 'norm'. Known: body, head"):
        parting(MODEL, "norm")
    with pytest.raises(UnknownChoice, match="no part of this model is called 'statistics'"):
        parting(MODEL, "statistics")
    with pytest.raises(Unsupported, match="all of this model is its head"):
        parting(worlds.model(), "head")
    shape = jax.eval_shape(NORMED.init, jax.random.key(0))
    assert sum(leaves_of_part(NORMED, shape, "statistics")) == 2


def test_a_method_whose_messages_do_not_tell_the_model_is_refused():
    with pytest.raises(Unsupported, match="a private head needs a base that averages updates of models"):
        parted(scaffold(MODEL), "head")


def test_a_private_part_must_not_leave_before_the_methods_own_rounds():
    with pytest.raises(Unsupported, match="a private head would leave its client in the rounds before"):
        parted(hypcluster(MODEL, num_clusters=2), "head")


def test_a_model_all_of_whose_parts_are_private_is_refused():
    method = parted(parted(fedavg(MODEL), "head"), "body")

    with pytest.raises(Unsupported, match="all of this model is private"):
        method.send(method.start(jax.random.key(0), 2), jnp.zeros((), jnp.int32))


@pytest.mark.parametrize("keep", ["head", "body"])
def test_statistics_of_what_is_held_stay(keep):
    """A newcomer fits its head: the body's running statistics are the shared ones. Its body: they move."""
    data, weights = client(), NORMED.init(jax.random.key(0))
    method = fedper(NORMED, plan=STEP, keep=keep)
    served = method.serve(jax.random.key(1), weights, method.join(jax.random.key(0), weights), data)

    same = jax.tree.all(jax.tree.map(jnp.array_equal, served.stats, weights.stats))
    assert same == (keep == "head")


@pytest.mark.parametrize(
    "make", [fedavg, ditto, lambda model, plan: hypcluster(model, plan=plan, num_clusters=2, init="random")]
)
def test_private_parts_of_any_method_stay_apart_and_the_rest_is_shared(make):
    seen, _ = worlds.awkward()
    method = parted(make(MODEL, plan=worlds.PLAN), "head")

    state = run(method, seen, rounds=2, executor="vectorized").state

    own = state.private.own[0]
    trained = np.asarray(state.private.trained)
    assert len({leaf.tobytes() for leaf in np.asarray(own)[trained]}) == trained.sum()
    sent = jax.eval_shape(lambda: method.send(state.server, jnp.zeros((), jnp.int32)))
    assert not any("head" in path for path in tree.paths(sent))


def test_a_private_part_moves_by_its_clients_training_alone():
    """One full-batch step of both parts: the head of FedPer is that of training alone."""
    data, method = client(), fedper(MODEL, plan=STEP)
    kept = method.join(jax.random.key(0), WEIGHTS)

    upload, after, _ = method.train(jax.random.key(1), parting(MODEL, "head").sent(WEIGHTS), kept, data)

    update, _, _ = fedavg(MODEL, plan=STEP).train(jax.random.key(1), WEIGHTS, (), data)
    wanted = parting(MODEL, "head").own(tree.add(WEIGHTS, update))
    for one, other in zip(after.own, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(upload.params["dense_0"]["kernel"], update.params["dense_0"]["kernel"])
    assert bool(after.trained)


def test_a_newcomer_fits_its_own_part_and_a_trained_client_is_served_as_it_is():
    data, method = client(), fedper(MODEL, plan=STEP, newcomer_epochs=3)
    kept = method.join(jax.random.key(0), WEIGHTS)

    new = method.serve(jax.random.key(1), WEIGHTS, kept, data)
    known = method.serve(jax.random.key(1), WEIGHTS, kept._replace(trained=jnp.asarray(True)), data)

    assert jax.tree.all(jax.tree.map(jnp.array_equal, known, WEIGHTS))
    np.testing.assert_array_equal(new.params["dense_0"]["kernel"], WEIGHTS.params["dense_0"]["kernel"])
    assert float(jnp.abs(new.params["head"]["kernel"] - WEIGHTS.params["head"]["kernel"]).max()) > 1e-3


@pytest.mark.slow
def test_fedrep_moves_the_head_first_and_then_the_body_under_it():
    """Written out: one step of the head at the shared body, then one step of the body at the new head."""
    data, method = client(), fedrep(MODEL, plan=STEP, head_epochs=1)
    kept = method.join(jax.random.key(0), WEIGHTS)

    upload, after, info = method.train(jax.random.key(1), parting(MODEL, "head").sent(WEIGHTS), kept, data)

    batch = data.train.all()

    def slope(weights):
        def risk(params):
            return MODEL.loss(MODEL.apply(Weights(params), batch.x), batch.y).mean()

        return jax.grad(risk)(weights.params)

    body, head = WEIGHTS.params["dense_0"], WEIGHTS.params["head"]
    head = tree.step(head, -STEP.lr, slope(WEIGHTS)["head"])
    move = tree.scale(-STEP.lr, slope(Weights({"dense_0": body, "head": head}))["dense_0"])
    for name in ("kernel", "bias"):
        np.testing.assert_allclose(upload.params["dense_0"][name], move[name], atol=1e-6)
    np.testing.assert_allclose(after.own[1], head["kernel"], atol=1e-6)
    assert float(info["steps"]) == 2


def test_fedbabu_never_trains_the_head_and_tunes_what_it_is_told_to():
    data = client()
    for tune, moved in (("all", True), ("head", False)):
        method = fedbabu(MODEL, plan=STEP, tune=tune, epochs=2, select=False)
        kept = method.join(jax.random.key(0), WEIGHTS)
        _, after, _ = method.train(jax.random.key(1), parting(MODEL, "head").sent(WEIGHTS), kept, data)
        served = method.serve(jax.random.key(2), WEIGHTS, after, data)

        np.testing.assert_array_equal(after.own[1], WEIGHTS.params["head"]["kernel"])
        assert bool((served.params["dense_0"]["kernel"] != WEIGHTS.params["dense_0"]["kernel"]).any()) == moved
        assert bool((served.params["head"]["kernel"] != WEIGHTS.params["head"]["kernel"]).any())


@pytest.mark.parametrize("select", [True, False])
def test_fedbabu_is_fine_tuned_as_any_base_is(select):
    data, key = client(rows=12), jax.random.key(2)
    method = fedbabu(MODEL, plan=STEP, epochs=3, select=select)
    body = fedbabu(MODEL, plan=STEP, epochs=0)
    kept = body.join(jax.random.key(0), WEIGHTS)

    served = method.serve(jax.random.split(key)[1], WEIGHTS, kept, data)

    wanted = finetune(body, epochs=3, select=select).serve(key, WEIGHTS, kept, data)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), served, wanted)
    assert bool((served.params["head"]["kernel"] != WEIGHTS.params["head"]["kernel"]).any())


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (
            lambda: fedper(worlds.model(), keep="body"),
            UnknownChoice,
            "no part of this model is called 'body'. Known: head",
        ),
        (lambda: fedrep(MODEL, head_epochs=-1), BadValue, "head_epochs"),
        (lambda: fedper(MODEL, newcomer_epochs=-1), BadValue, "newcomer_epochs"),
        (lambda: fedbabu(MODEL, epochs=-1), BadValue, "epochs"),
        (lambda: fedbabu(MODEL, tune="body"), UnknownChoice, "part to tune"),
        (lambda: lg_fedavg(worlds.model()), UnknownChoice, "no part of this model is called 'body'. Known: head"),
    ],
)
def test_what_is_refused(build, error, text):
    with pytest.raises(error, match=text):
        build()
