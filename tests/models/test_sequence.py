"""The character models: their forward pass by hand, no look ahead, their parts, what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import data, tree
from plures.builders import build_model, default_model
from plures.engine import run
from plures.errors import BadValue
from plures.keys import root
from plures.methods.fedavg import fedavg
from plures.models.sequence import char_gru, char_mlp
from plures.types import Plan, Weights

TEXT = jnp.array([[0, 1, 1, 0], [1, 1, 0, 1]], jnp.int32)


def test_forward_pass_is_embed_concatenate_dense_relu_dense():
    model = char_mlp((3,), 2, context=2, dim=1, hidden=2)
    params = {
        "embed": {"table": jnp.array([[1.0], [10.0], [100.0]])},  # the last one is before the start
        "dense_0": {"kernel": jnp.array([[1.0, 2.0], [-1.0, 0.0]]), "bias": jnp.array([0.0, 5.0])},
        "head": {"kernel": jnp.array([[1.0, 0.0], [1.0, 1.0]]), "bias": jnp.array([0.0, 0.5])},
    }

    x = jnp.array([[0, 1, 0]])
    # (before, now): (100, 1), (1, 10), (10, 1); relu of (b + 2 n, 5 - b).
    hidden = [[[102.0, 0.0], [21.0, 4.0], [12.0, 0.0]]]
    np.testing.assert_allclose(model.features(Weights(params), x), hidden)
    np.testing.assert_allclose(model.apply(Weights(params), x), [[[102.0, 102.5], [21.0, 25.5], [12.0, 12.5]]])


@pytest.mark.slow
@pytest.mark.parametrize("make", [char_mlp, char_gru])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_comes_later_does_not_matter(place, make):
    model = make((4,), 2)
    weights = model.init(root(0))

    other = TEXT.at[:, place + 1 :].set(1 - TEXT[:, place + 1 :])

    before, after = (model.apply(weights, x)[:, : place + 1] for x in (TEXT, other))
    np.testing.assert_array_equal(before, after)


def test_the_character_itself_matters():
    model = char_mlp((4,), 2)
    weights = model.init(root(0))

    changed = model.apply(weights, 1 - TEXT) != model.apply(weights, TEXT)

    assert changed.any(-1).all()


def test_only_the_context_matters():
    model = char_mlp((4,), 2, context=2)
    weights = model.init(root(0))

    other = TEXT.at[:, 0].set(1 - TEXT[:, 0])

    same = (model.apply(weights, TEXT) == model.apply(weights, other)).all((0, 2))
    assert same.tolist() == [False, False, True, True]


def test_layers_have_the_widths_asked_for():
    model = char_mlp((80,), 83, context=3, dim=5, hidden=7)

    shapes = jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(model.init, root(0)).params)

    assert shapes == {
        "embed": {"table": (84, 5)},
        "dense_0": {"kernel": (7, 15), "bias": (7,)},
        "head": {"kernel": (83, 7), "bias": (83,)},
    }


def test_body_and_head_are_all_of_the_model_and_share_nothing():
    model = char_mlp((4,), 2)
    shape = jax.eval_shape(model.init, root(0))

    body, head = (tree.matches(shape, model.parts[name]) for name in ("body", "head"))

    assert [a != b for a, b in zip(body, head, strict=True)] == [True] * 5
    assert sum(head) == 2


def test_layers_start_from_different_keys():
    params = char_mlp((4,), 8, context=1, dim=8, hidden=8).init(root(0)).params

    first = params["dense_0"]["kernel"]
    assert (first != params["head"]["kernel"]).all()
    assert (first != params["embed"]["table"][:8] * 0.5).all()


@pytest.fixture(scope="module")
def alternating():
    """Texts in which 0 and 1 take turns."""
    turns = np.arange(6 * 5).reshape(6, 5).astype(np.int32) % 2
    return data.from_arrays(turns, 1 - turns, np.repeat(["a", "b"], 3), task="sequence", num_classes=2)


def test_it_is_the_default_model_of_a_sequence_task(alternating):
    model = build_model(default_model(alternating), alternating)

    assert (model.task, default_model(alternating)) == ("sequence", "char_mlp")


def test_training_learns_that_characters_take_turns(alternating):
    method = fedavg(char_mlp(alternating.shape, 2, hidden=8), plan=Plan(epochs=30, batch=None, lr=0.5))

    found = run(method, alternating, rounds=3).clients

    assert found["personal_test_accuracy"].to_list() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "context must be 1 or more, got 0"),
        ({"dim": 0}, "dim must be 1 or more, got 0"),
        ({"hidden": 0}, "hidden must be 1 or more, got 0"),
        ({"shape": (8, 8)}, "shape must be a text (length,), got (8, 8)"),
    ],
)
def test_what_makes_no_model_is_refused(options, message):
    with pytest.raises(BadValue) as refusal:
        char_mlp(**{"shape": (4,), "num_outputs": 2, **options})

    assert str(refusal.value) == message


GRU = char_gru((4,), 2, dim=3, hidden=5)


def test_gru_features_are_the_states_of_gated_steps():
    """h <- (1 - z) n + z h, with n = tanh(W x + r (U h)); Cho et al. 2014, the reset gate after U as in cuDNN."""
    weights = GRU.init(root(0))
    table, cell = weights.params["body"]["Embed_0"]["embedding"], weights.params["body"]["GRUCell_0"]

    def of(name, value):
        return value @ cell[name]["kernel"] + cell[name].get("bias", 0.0)

    state, states = jnp.zeros((2, 5)), []
    for place in range(4):
        x = table[TEXT[:, place]]
        reset, keep = (jax.nn.sigmoid(of("i" + gate, x) + of("h" + gate, state)) for gate in "rz")
        state = (1 - keep) * jnp.tanh(of("in", x) + reset * of("hn", state)) + keep * state
        states.append(state)

    np.testing.assert_allclose(GRU.features(weights, TEXT), jnp.stack(states, axis=1), atol=1e-5)


def test_the_gru_remembers_the_start_of_a_text():
    weights = GRU.init(root(0))

    changed = GRU.apply(weights, TEXT.at[:, 0].set(1 - TEXT[:, 0])) != GRU.apply(weights, TEXT)

    assert changed.any(-1).all()


def test_the_gru_has_a_body_and_a_head_that_reads_its_features():
    weights = GRU.init(root(0))
    body, head = (np.array(tree.matches(weights, GRU.parts[name])) for name in ("body", "head"))

    outputs, features, _ = GRU.featured(root(1), weights, TEXT, jnp.ones(2, bool))

    layer = weights.params["head"]
    assert ((body != head).all(), head.sum(), features.shape) == (True, 2, (2, 4, 5))
    np.testing.assert_allclose(features @ layer["kernel"] + layer["bias"], outputs, atol=1e-5)
    np.testing.assert_allclose(outputs, GRU.apply(weights, TEXT), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim must be 1 or more, got 0"),
        ({"hidden": 0}, "hidden must be 1 or more, got 0"),
        ({"shape": (8, 8)}, "shape must be a text (length,), got (8, 8)"),
    ],
)
def test_what_makes_no_gru_is_refused(options, message):
    with pytest.raises(BadValue) as refusal:
        char_gru(**{"shape": (4,), "num_outputs": 2, **options})

    assert str(refusal.value) == message
