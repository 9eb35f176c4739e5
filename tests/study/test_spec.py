"""Methods, models and channels by name: every option converted by its own type, every mistake one line."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.builders import build_channel, build_method, build_model, default_model
from plures.data import from_arrays
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.keys import root
from plures.methods.fedavg import fedavg
from plures.models import linear
from plures.registry import METHODS, PERSONALIZERS, Named, Registry, convert
from plures.types import Data, Plan, Rows, Weights

MODEL = linear.mean((0,), 2)
FULL = Plan(batch=None, lr=0.5)


def federation(x, y, **options):
    return from_arrays(x, y, ["a"] * len(y), **options)


def registered(factory):
    registry = Registry("thing")
    registry.register(title="Thing", name="thing")(factory)
    return registry


def thing(*, count: int = 1, share: float = 0.5, flag: bool = False, label: str = "", widths: tuple[int, ...] = ()):
    """A thing with an option of every kind."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("thing", {}),
        (" thing ", {}),
        ("thing:", {}),
        ("thing:count=3", {"count": 3}),
        ("thing:share=1", {"share": 1.0}),
        ("thing: share = 1e-3 , count=2", {"share": 1e-3, "count": 2}),
        ("thing:flag=yes,label=head", {"flag": True, "label": "head"}),
        ("thing:widths=64x32", {"widths": (64, 32)}),
    ],
)
def test_options_are_converted_by_their_annotation(text, expected):
    assert Named.parse(text, registered(thing)).options == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thing:count", "option of thing must be name=value, got 'count'"),
        ("thing:count=many", "count must be of type int, got 'many'"),
        ("thing:count=1.5", "count must be of type int, got '1.5'"),
        ("thing:flag=maybe", "flag must be of type bool, got 'maybe'"),
        (
            "thing:cuont=1",
            "no option of thing is called 'cuont'; did you mean 'count'? Known: count, flag, label, share, widths",
        ),
        ("thimg", "no thing is called 'thimg'; did you mean 'thing'? Known: thing"),
        ("", "no thing is called ''. Known: thing"),
    ],
)
def test_a_mistake_in_a_name_is_one_clear_line(text, message):
    with pytest.raises((BadValue, UnknownChoice)) as refusal:
        Named.parse(text, registered(thing))

    assert str(refusal.value) == message


def test_an_option_given_twice_is_refused():
    with pytest.raises(BadValue):
        Named.parse("thing:count=1,count=2", registered(thing))


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("none", float | None, None),
        ("None", int | None, None),
        ("0.5", float | None, 0.5),
        ("3", int | str, 3),
        ("all", int | str, "all"),
        ("no", bool, False),
        ("TRUE", bool, True),
        ("", tuple[int, ...], ()),
        ("0.5x2", tuple[float, ...], (0.5, 2.0)),
    ],
)
def test_text_becomes_the_annotated_type(text, kind, expected):
    assert convert("option", text, kind) == expected


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("x", float | None, "float or NoneType"),
        ("none", float, "float"),
        ("1xa", tuple[int, ...], "tuple"),
        ("3", Plan, "Plan"),
    ],
)
def test_text_of_another_type_is_refused(text, kind, wanted):
    with pytest.raises(BadValue, match=rf"^option must be of type {wanted}.*, got '{text}'$"):
        convert("option", text, kind)


def test_a_method_gets_the_plan_and_its_options():
    """One full-batch step of size 1/2 from 0 to the mean: upload mean / 2; the server goes twice as far."""
    method = build_method("fedavg:server_lr=2", MODEL, plan=FULL)
    rows = Rows(jnp.zeros((2, 0)), jnp.array([[1.0, 3.0], [3.0, 5.0]]), 0, 2, 2)
    server = method.start(root(0), 1)

    upload, *_ = method.train(root(0), server.weights, (), Data(rows, rows))
    server = method.merge(server, jax.tree.map(lambda leaf: leaf[None], upload), jnp.ones(1), jnp.zeros(1, int))

    np.testing.assert_allclose(upload.params["point"], [1.0, 2.0])
    np.testing.assert_allclose(server.weights.params["point"], [2.0, 4.0])


def test_personalizers_are_applied_from_left_to_right(monkeypatch):
    """Each stand-in wraps what is served: the last name is the outermost."""

    def outer(base, *, tag: str):
        return replace(base, serve=lambda *given: (tag, base.serve(*given)))

    registry = Registry("personalizer")
    registry.register(title="Wrap", name="wrap")(outer)
    monkeypatch.setattr("plures.builders.PERSONALIZERS", registry)
    served = Weights({"point": jnp.zeros(2)})

    method = build_method("fedavg | wrap:tag=first | wrap:tag=second", MODEL, plan=FULL)

    assert method.serve(None, served, (), None) == ("second", ("first", served))


def test_facts_of_the_federation_fill_required_options():
    method = build_method("oracle", MODEL, plan=FULL, facts={"num_groups": 3})

    assert method.start(root(0), 5).weights.params["point"].shape == (3, 2)


def test_options_win_over_facts():
    method = build_method("oracle:num_groups=2", MODEL, plan=FULL, facts={"num_groups": 3})

    assert method.start(root(0), 5).weights.params["point"].shape == (2, 2)


def test_a_required_option_that_nobody_tells_is_refused():
    with pytest.raises(Unsupported) as refusal:
        build_method("oracle", MODEL, plan=FULL)

    assert str(refusal.value) == "oracle needs num_groups, which these data do not tell; set num_groups=..."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedavgg", "no method is called 'fedavgg'; did you mean 'fedavg'? Known: "),
        ("fedavg|ditto", "no personalizer is called 'ditto'"),
        ("fedavg|fintune", "no personalizer is called 'fintune'; did you mean 'finetune'? Known: "),
        ("ditto:lam=-1", "lam must be 0 or more, got -1.0"),
    ],
)
def test_a_method_that_cannot_be_built_is_refused(text, message):
    with pytest.raises((BadValue, UnknownChoice)) as refusal:
        build_method(text, MODEL, plan=FULL)

    assert str(refusal.value).startswith(message)


def test_registered_names_include_the_first_methods():
    assert {"fedavg", "local_only", "ditto"} <= set(METHODS)
    assert {"finetune", "split", "guard"} <= set(PERSONALIZERS)
    assert METHODS["fedavg"].factory is fedavg


def test_a_model_has_the_shape_of_the_federation():
    model = build_model("softmax:ridge=0.5", federation(np.zeros((3, 2, 2)), [0, 1, 2]))
    params = model.init(root(0)).params

    assert params["head"]["kernel"].shape == (3, 4)
    assert float(model.penalty({"w": jnp.array(2.0)})) == 1.0


@pytest.mark.parametrize(
    ("text", "y", "task"),
    [
        ("logistic", [0, 1, 2], "classification"),
        ("squared_hinge", [0, 1, 2], "classification"),
        ("least_squares", [0, 1, 2], "classification"),
        ("softmax", [0.5, 1.0, 2.0], "regression"),
    ],
)
def test_a_model_that_does_not_fit_the_task_is_refused(text, y, task):
    with pytest.raises(Unsupported):
        build_model(text, federation(np.zeros((3, 2)), y, task=task))


def test_a_channel_is_built_by_name():
    clip = build_channel("clip:norm=2.5")

    uploads, _ = clip(root(0), jnp.array([[3.0, 4.0], [0.3, 0.4]]), jnp.ones(2), jnp.arange(2))

    np.testing.assert_allclose(uploads, [[1.5, 2.0], [0.3, 0.4]], rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "y", "task", "expected"),
    [
        (np.zeros((3, 2)), [0, 1, 2], "classification", "mlp:hidden=64"),
        (np.zeros((3, 2)), [0.5, 1.0, 2.0], "regression", "least_squares"),
        (np.zeros((3, 0)), [0.5, 1.0, 2.0], "regression", "mean"),
        (np.zeros((3, 0)), [0, 1, 2], "density", "density"),
        pytest.param(
            np.zeros(3),
            [0.5, 1.0, 2.0],
            "regression",
            "least_squares",
        ),
    ],
)
def test_every_task_has_a_default_model(x, y, task, expected):
    assert default_model(federation(x, y, task=task)) == expected


def test_a_sequence_task_has_a_default_model():
    assert default_model(federation(np.zeros((3, 2), int), np.zeros((3, 2), int), task="sequence")) == "char_mlp"
