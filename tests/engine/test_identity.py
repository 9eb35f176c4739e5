"""What a run is known by: whatever can change a number changes its identity, and nothing else does."""

import re
import typing
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plures import tree
from plures._version import __version__
from plures.attacks.label_flip import label_flip
from plures.channel.clip import clip
from plures.contract import subjects, worlds
from plures.contract.bench import FACTS, quiet
from plures.engine import Settings, prepare, run
from plures.engine.attackers import bind_attacks
from plures.engine.identity import Identity, identify
from plures.errors import BadFile, UserError
from plures.method import Report
from plures.methods.fedavg import fedavg
from plures.methods.fedprox import fedprox
from plures.models.linear import density, softmax
from plures.personalize.mapper import mapper
from plures.registry import CHANNELS, MODELS
from plures.types import Plan

SEEN, UNSEEN = worlds.awkward()
MODEL = worlds.model()
SETTINGS = Settings(rounds=2, cohort=4)


def parts(method, settings=SETTINGS, federation=SEEN):
    return identify(method, federation, settings).parts


# ------------------------------------------------------------------ every option, one at a time

NUMBERS = (0.25, 0.4, 0.75, 1.5, 2, 3, 7, 0, 1, 12, 60)
TEXTS = ("median", "head", "norm", "knn:k=3", "0.3", "2", "-inf")


def other_values(default, hint):
    """Values of an option's type that are not its default, the likely ones first."""
    kinds = typing.get_args(hint) or (hint,)
    found = []
    if bool in kinds or isinstance(default, bool):
        found += [not default]
    if {int, float} & set(kinds):
        found += [kind(number) for number in NUMBERS for kind in kinds if kind in (int, float)]
    if str in kinds:
        found += list(TEXTS)
    if isinstance(default, tuple) or typing.get_origin(hint) is tuple:
        found += [(5,), (3, 4), (2, 3, 4, 5, 6), (0.5,), (0.1, 0.2), ("head",), ("params/*",)]
    if type(None) in kinds:
        found += [None]
    if hint is typing.Any:
        found += [3]
    if isinstance(default, Plan) or Plan in kinds:
        found += [Plan(lr=0.3)]
    return [value for value in found if value != default]


def first_that_works(make, values):
    """What is made of the first value that is not refused; a refusal of a text names texts that would do."""
    tried, waiting = set(), list(values)
    while waiting:
        value = waiting.pop(0)
        tried.add(value)
        try:
            return make(value)
        except (TypeError, ValueError):
            continue
        except UserError as error:
            words = re.findall(r"[\w.:=-]+", str(error)) if isinstance(value, str) else []
            waiting += [word for word in dict.fromkeys(words) if word not in tried and word not in waiting]
    return None


NEEDED = {
    ("lgmix", "scope"): {"lam": "ntk"},
    ("dapper", "source"): {"allow_raw_sharing": True, "example": SEEN.example},
    ("mapper", "warm"): {"joint": True},
}
"""Options that are refused without another one."""


def _changed(make, entry, options, name):
    """The thing with another value of one option; its default is refused."""
    if options[name] == entry.options[name].default:
        raise TypeError(name)
    return make(options)


def unchanged(entry, make, text_of):
    """The options of an entry that do not change a text, and those of which no other value was taken."""
    for name, parameter in entry.options.items():
        if name in FACTS:
            continue
        needed = NEEDED.get((entry.name, name), {})
        before = text_of(make(needed))
        values = other_values(parameter.default, entry.hints.get(name))
        other = first_that_works(
            lambda value, name=name, needed=needed: _changed(make, entry, {**needed, name: value}, name), values
        )
        if other is None:
            yield f"{entry.name}: no other value of {name}"
        elif not _refused(text_of, other) and text_of(other) == before:
            yield f"{entry.name}: {name}"


def _refused(text_of, other):
    """Whether a run refuses it, as it does an attack made for another number of clients than it has."""
    try:
        text_of(other)
    except UserError:
        return True
    return False


def test_every_option_of_every_method_and_personalizer_counts():
    missed = []
    for subject in subjects():
        make = partial(subject.build, subject.model, worlds.PLAN)
        missed += unchanged(subject.entry, make, lambda method: parts(method)["method"])

    # Another local model than "tuned" is for densities over symbols alone.
    assert missed == ["mapper: no other value of local"]


SHAPES = (
    ((3,), 3),
    ((8, 8), 10),
    ((28, 28), 10),
    ((32, 32, 3), 10),
    ((3, 32, 32), 10),
    ((561,), 6),
    ((20,), 90),
    ((3,), 1),
    ((), 1),
)


def build_model(entry, shape, options):
    model = entry.factory(*shape, **options)
    jax.eval_shape(model.init, jax.random.key(0))
    return model


def test_the_local_model_of_mapper_counts():
    made = [mapper(fedavg(density((), 5)), local=local) for local in ("tuned", "counts")]

    assert made[0].recipe.text != made[1].recipe.text


def test_every_option_of_every_model_counts():
    missed = []
    for entry in MODELS.values():
        fitting = [one for one in SHAPES if first_that_works(partial(build_model, entry, options={}), [one])]
        missed += unchanged(entry, partial(build_model, entry, fitting[0]), lambda model: model.recipe.text)

    assert not missed


def test_every_option_of_every_channel_and_attack_counts():
    def text_of(channel):
        return parts(fedavg(MODEL), replace(SETTINGS, channels=(channel,)))["channels"]

    missed = []
    for entry in CHANNELS.values():
        missed += unchanged(entry, lambda options, entry=entry: entry.factory(**options), text_of)

    assert not missed


@pytest.mark.parametrize(
    "plan",
    [
        Plan(epochs=2),
        Plan(steps=3),
        Plan(batch=7),
        Plan(batch=None),
        Plan(lr=0.05),
        Plan(optimizer=optax.adam),
        Plan(optimizer=partial(optax.sgd, momentum=0.9)),
        Plan(optimizer=lambda lr: optax.sgd(lr, momentum=0.9)),
    ],
    ids=lambda plan: f"{plan.epochs} {plan.steps} {plan.batch} {plan.lr}",
)
def test_every_part_of_a_plan_counts(plan):
    assert parts(fedavg(MODEL, plan=plan)) != parts(fedavg(MODEL, plan=Plan()))


@pytest.mark.parametrize(
    "setting",
    [{"rounds": 3}, {"seed": 1}, {"cohort": 3}, {"cohort": "weighted:4"}, {"channels": (clip(norm=1.0),)}],
    ids=lambda setting: next(iter(setting)),
)
def test_settings_that_change_numbers_count(setting):
    assert parts(fedavg(MODEL), replace(SETTINGS, **setting)) != parts(fedavg(MODEL))


@pytest.mark.parametrize(
    "setting", [{"executor": "one_by_one"}, {"executor": "chunked:2"}, {"eval_every": 1}, {"store": "a folder"}]
)
def test_settings_that_change_no_number_do_not_count(setting):
    assert parts(fedavg(MODEL), replace(SETTINGS, **setting)) == parts(fedavg(MODEL))


@pytest.mark.parametrize("field", ["x", "y", "group", "domain"])
def test_the_data_count(field):
    values = np.array(getattr(SEEN, field))
    other = replace(SEEN, **{field: values[::-1].copy()})

    assert parts(fedavg(MODEL), federation=other) != parts(fedavg(MODEL))


def test_unseen_clients_count():
    alone = prepare(fedavg(MODEL), SEEN, settings=SETTINGS).identity
    both = prepare(fedavg(MODEL), SEEN, unseen=UNSEEN, settings=SETTINGS).identity

    assert alone.parts["data"] != both.parts["data"]


# ------------------------------------------------------------------ made by hand


def by_hand(scale, table=None):
    """FedAvg with another merge, as one writes it in a notebook."""
    base = fedavg(MODEL)

    def merge(server, uploads, weights, uids):
        extra = 0.0 if table is None else jnp.asarray(table).sum()
        return base.merge(server, jax.tree.map(lambda leaf: scale * leaf + extra, uploads), weights, uids)

    return replace(base, merge=merge)


def test_what_was_made_by_hand_is_known_by_what_it_computes():
    assert parts(by_hand(0.5)) == parts(by_hand(0.5))
    assert parts(by_hand(0.5)) != parts(by_hand(0.6))


def test_constants_inside_of_a_program_count():
    assert parts(by_hand(1.0, np.arange(4.0))) == parts(by_hand(1.0, np.arange(4.0)))
    assert parts(by_hand(1.0, np.arange(4.0))) != parts(by_hand(1.0, np.arange(4.0) + 1))


def test_a_recipe_does_not_speak_for_a_changed_copy():
    base = fedavg(MODEL)
    changed = replace(
        base,
        serve=lambda key, offer, private, data: jax.tree.map(jnp.zeros_like, base.serve(key, offer, private, data)),
    )

    assert parts(changed) != parts(base)


def test_a_changed_model_counts_under_every_method():
    heavier = replace(MODEL, loss=lambda outputs, y: 2.0 * MODEL.loss(outputs, y))

    assert parts(fedavg(heavier)) != parts(fedavg(MODEL))


@pytest.mark.parametrize("field", ["metrics", "init", "apply"])
def test_every_function_of_a_model_made_by_hand_counts(field):
    hand = replace(MODEL, penalty=None)
    changes = {
        "metrics": {**hand.metrics, "loss": lambda outputs, y, mask: 2.0 * hand.metrics["loss"](outputs, y, mask)},
        "init": lambda key: jax.tree.map(lambda leaf: leaf + 1.0, hand.init(key)),
        "apply": lambda weights, x: 2.0 * hand.apply(weights, x),
    }

    assert parts(fedavg(replace(hand, **{field: changes[field]}))) != parts(fedavg(hand))


def test_a_channel_made_by_hand_counts():
    def scaled(factor):
        def apply(key, uploads, weights, uids):
            return jax.tree.map(lambda leaf: factor * leaf, uploads), weights

        return replace(SETTINGS, channels=(apply,))

    assert parts(fedavg(MODEL), scaled(0.5)) == parts(fedavg(MODEL), scaled(0.5))
    assert parts(fedavg(MODEL), scaled(0.5)) != parts(fedavg(MODEL), scaled(0.6))


def test_every_registered_method_can_be_known_by_what_it_computes():
    """The programs of all of them can be traced, and are the same when it is built again."""
    for subject in subjects():
        first, again = (quiet(subject.build(subject.model, worlds.PLAN, {})) for _ in range(2))

        assert parts(first)["programs"] == parts(again)["programs"], subject.name


# ------------------------------------------------------------------ checkpoints


def last_scores(method, folder, **settings):
    done = run(method, SEEN, rounds=2, checkpoint=folder, **settings)
    return done.clients["personal_test_loss"].to_list()


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        (fedprox(MODEL, lam=100.0), {}, "fedprox"),
        (fedavg(MODEL, plan=Plan(optimizer=optax.adam)), {}, "optimizer"),
        (fedavg(softmax((3,), 3, ridge=0.5)), {}, "ridge"),
        (by_hand(0.5), {}, "made by hand"),
        (fedavg(MODEL), {"channels": (clip(norm=1e-3),)}, "channels"),
        (fedavg(MODEL), {"channels": (label_flip(share=0.34),)}, "channels"),
        (fedavg(MODEL), {"seed": 1}, "seed 0, not 1"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, method, settings, said):
    last_scores(fedavg(MODEL), tmp_path)

    with pytest.raises(BadFile, match="belongs to a run with") as refusal:
        last_scores(method, tmp_path, **settings)
    assert said in str(refusal.value)


def test_a_checkpoint_of_the_same_run_is_taken_whatever_the_executor(tmp_path):
    first = last_scores(fedavg(MODEL), tmp_path)

    assert last_scores(fedavg(MODEL), tmp_path, executor="one_by_one") == first


def test_a_checkpoint_of_version_0_1_says_too_little(tmp_path):
    folder = tmp_path / "round-00000002"
    folder.mkdir()
    (folder / "about.json").write_text('{"version": 1, "round": 2, "seed": 0}')

    with pytest.raises(BadFile, match=r"version 0\.1, which did not note method and model"):
        last_scores(fedavg(MODEL), tmp_path)


def test_a_difference_is_said_from_where_it_begins():
    now = Identity({"method": "ditto(plan=Plan(epochs=1, steps=null, batch=20, lr=0.1), lam=0.5)"})
    before = {"method": "ditto(plan=Plan(epochs=1, steps=null, batch=20, lr=0.1), lam=2.0)"}

    assert now.difference(before) == "method ...lam=2.0), not ...lam=0.5)"


# ------------------------------------------------------------------ corners in which old numbers could come back


def test_planted_groups_of_unseen_clients_count():
    other = replace(UNSEEN, group=1 - UNSEEN.group)

    assert identify(fedavg(MODEL), SEEN, SETTINGS, unseen=UNSEEN) != identify(
        fedavg(MODEL), SEEN, SETTINGS, unseen=other
    )


def test_data_changed_in_place_count():
    federation = replace(SEEN, y=SEEN.y.copy())
    before = parts(fedavg(MODEL), federation=federation)

    federation.y[:] = 0

    assert parts(fedavg(MODEL), federation=federation) != before


def changed_attack(**changes):
    return replace(SETTINGS, channels=(replace(label_flip(share=0.34), **changes),))


def test_a_changed_attack_counts_and_is_the_one_that_runs():
    def spoil(federation):
        return replace(federation, y=federation.y * 0)

    def members(uids):
        return uids == 3

    found = [
        parts(fedavg(MODEL), settings)
        for settings in (changed_attack(), changed_attack(spoil=spoil), changed_attack(members=members))
    ]

    assert len({str(one) for one in found}) == 3
    bound = bind_attacks(changed_attack(spoil=spoil).channels, 6)[0]
    assert bound.spoil is spoil


def test_a_callable_value_of_ones_own_is_known_by_what_it_computes():
    @dataclass(frozen=True)
    class Optimizer:
        factor: float

        def __call__(self, lr):
            return optax.sgd(self.factor * lr)

    class Slower(Optimizer):
        def __call__(self, lr):
            return optax.sgd(0.5 * self.factor * lr)

    Slower.__qualname__ = Slower.__name__ = Optimizer.__name__
    first, other = (fedavg(MODEL, plan=Plan(optimizer=kind(1.0))) for kind in (Optimizer, Slower))

    assert parts(first) != parts(other)


def test_what_a_callback_closes_over_counts():
    def calling_back(factor):
        def apply(key, uploads, weights, uids):
            scale = jax.pure_callback(lambda: factor.sum(), jax.ShapeDtypeStruct((), np.float32))
            return jax.tree.map(lambda leaf: scale * leaf, uploads), weights

        return parts(fedavg(MODEL), replace(SETTINGS, channels=(apply,)))

    assert calling_back(np.ones(2, np.float32)) == calling_back(np.ones(2, np.float32))
    assert calling_back(np.ones(2, np.float32)) != calling_back(np.zeros(2, np.float32))


def calling(function):
    """The parts of a run with a channel that calls back."""

    def apply(key, uploads, weights, uids):
        def scaled(leaf):
            return jax.pure_callback(function, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), leaf)

        return jax.tree.map(scaled, uploads), weights

    return parts(fedavg(MODEL), replace(SETTINGS, channels=(apply,)))


class Times:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, leaf):
        return np.float32(self.factor) * leaf

    def scaled(self, leaf):
        return self(leaf)


def with_default(factor):
    def scaled(leaf, factor=factor):
        return np.float32(factor) * leaf

    return scaled


def of_source(text):
    """A function from source, with a module of its own."""
    inside = {"np": np}
    exec(text, inside)
    return inside["scaled"]


GLOBAL = "FACTOR = {}\ndef scaled(leaf):\n    return np.float32(FACTOR) * leaf"
NESTED = "def scaled(leaf):\n    def inner(one):\n        return np.{}(one)\n    return inner(leaf)"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.sin, np.cos),
        (lambda leaf: np.sin(leaf), lambda leaf: np.cos(leaf)),
        (Times(1), Times(2)),
        (Times(1).scaled, Times(2).scaled),
        (with_default(1), with_default(2)),
        (partial(np.add, 1), partial(np.add, 2)),
        (of_source(GLOBAL.format(1)), of_source(GLOBAL.format(2))),
        (of_source(NESTED.format("sin")), of_source(NESTED.format("cos"))),
    ],
    ids=["library", "name", "object", "bound", "default", "partial", "global", "nested"],
)
def test_all_that_a_callback_uses_counts(one, other):
    assert calling(one) == calling(one)
    assert calling(one) != calling(other)


def test_a_merge_that_branches_on_how_many_take_part_counts():
    def made(factor):
        base = fedavg(MODEL)

        def merge(server, uploads, weights, uids):
            merged = base.merge(server, uploads, weights, uids)
            return merged._replace(weights=tree.scale(factor if len(weights) == 2 else 1.0, merged.weights))

        return parts(replace(base, merge=merge), replace(SETTINGS, cohort=2))

    assert made(1.0) != made(0.5)


def test_the_findings_of_a_method_made_by_hand_count():
    def finding(text):
        base = by_hand(0.5)
        return replace(base, views=replace(base.views, report=lambda server: Report(findings=[text])))

    assert parts(finding("one")) != parts(finding("two"))


def test_a_whole_number_is_the_same_as_a_float():
    assert parts(fedprox(MODEL, lam=1)) == parts(fedprox(MODEL, lam=1.0))


def test_the_code_that_computes_counts():
    assert parts(fedavg(MODEL))["code"].startswith(__version__)
