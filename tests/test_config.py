"""Studies from TOML: validated before anything starts, all mistakes at once, in exact words."""

import optax
import pytest

from plures.config import Study, make_study, read_study
from plures.data import load
from plures.errors import BadFile, BadValue, UnknownChoice, UserError
from plures.study import default_methods
from plures.types import Plan

WORLD = {"name": "mean_estimation", "hold_out": 0, "options": {"num_clients": 6, "rows": 20}}
WHOLE = """
methods = ["fedavg", "ditto:lam=0.5|guard"]
seeds = [3, 4]
rounds = 7
cohort = 5
channels = ["clip:norm=2"]
model = "softmax"

[data]
name = "linear_clusters"
hold_out = 2
options = { num_clients = 6, gap = 1.5 }

[plan]
epochs = 3
batch = 0
lr = 0.25
"""


def written(tmp_path, text):
    path = tmp_path / "study.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal_of(found):
    with pytest.raises(BadFile) as refusal:
        make_study(found, where="s.toml")
    return str(refusal.value)


def test_a_file_becomes_a_study(tmp_path):
    study = read_study(written(tmp_path, WHOLE))

    assert study.model_dump(exclude_defaults=True) == {
        "methods": ("fedavg", "ditto:lam=0.5|guard"),
        "seeds": (3, 4),
        "rounds": 7,
        "cohort": 5,
        "channels": ("clip:norm=2",),
        "model": "softmax",
        "data": {"name": "linear_clusters", "hold_out": 2, "options": {"num_clients": 6, "gap": 1.5}},
        "plan": {"epochs": 3, "batch": 0, "lr": 0.25},
    }


def test_an_empty_file_is_the_default_study(tmp_path):
    study = read_study(written(tmp_path, ""))

    assert study == Study()
    assert (study.methods, study.seeds, study.rounds, study.data.name) == (None, (0, 1, 2), 60, "digits")


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, Plan(epochs=2, batch=10, lr=0.1, optimizer=optax.sgd)),
        ({"batch": 0, "steps": 4}, Plan(epochs=2, steps=4, batch=None, lr=0.1, optimizer=optax.sgd)),
        ({"optimizer": "adam", "lr": 0.01}, Plan(epochs=2, batch=10, lr=0.01, optimizer=optax.adam)),
    ],
)
def test_the_plan_section_builds_a_plan(section, expected):
    assert make_study({"plan": section}).plan.build() == expected


def test_momentum_is_heavy_ball_at_nine_tenths():
    """Constant gradient 1: steps of 1 and then 1.9 times the step size."""
    optimizer = make_study({"plan": {"optimizer": "momentum"}}).plan.build().optimizer(0.5)

    first, memory = optimizer.update(1.0, optimizer.init(0.0))
    second, _ = optimizer.update(1.0, memory)

    assert (float(first), float(second)) == pytest.approx((-0.5, -0.95))


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "none.toml"

    with pytest.raises(BadFile) as refusal:
        read_study(path)

    assert str(refusal.value) == f"there is no file {path}; give the path of a study in TOML"


def test_what_is_not_toml_is_refused_with_the_place(tmp_path):
    path = written(tmp_path, "rounds = 3\nseeds 1\n")

    with pytest.raises(BadFile) as refusal:
        read_study(path)

    assert str(refusal.value) == (
        f"{path} is not valid TOML: Expected '=' after a key in a key/value pair (at line 2, column 7)"
    )


def test_a_folder_cannot_be_read(tmp_path):
    with pytest.raises(BadFile) as refusal:
        read_study(tmp_path)

    assert str(refusal.value) == f"{tmp_path} cannot be read: [Errno 21] Is a directory: '{tmp_path}'"


def test_bytes_that_are_no_text_cannot_be_read(tmp_path):
    path = written(tmp_path, b"model = '\xff'")

    with pytest.raises(BadFile, match=rf"^{path} cannot be read: 'utf-8' codec can't decode byte 0xff"):
        read_study(path)


def test_a_mistake_in_a_file_names_the_file(tmp_path):
    path = written(tmp_path, "[plan]\nepohcs = 3\n")

    with pytest.raises(BadFile) as refusal:
        read_study(path)

    assert str(refusal.value) == (
        f"{path}: no setting is called 'epohcs'; did you mean 'epochs'? Known: batch, epochs, lr, optimizer, steps"
    )


def test_a_typo_at_the_top_suggests_a_setting_of_the_top():
    assert refusal_of({"metods": ["fedavg"]}) == (
        "s.toml: no setting is called 'metods'; did you mean 'methods'? Known: attack, channels, checkpoint_every, "
        "cohort, data, eval_every, executor, methods, model, norm, plan, rounds, seeds"
    )


def test_all_mistakes_are_listed_at_once():
    message = refusal_of({"rounds": 0, "metods": [], "plan": {"lr": -1, "epohcs": 1}, "data": {"hold_out": -1}})

    assert [word in message for word in ("rounds", "'metods'", "plan.lr", "'epohcs'", "data.hold_out")] == [
        True
    ] * 5
    assert "\n" not in message


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"rounds": 0}, "rounds must be greater than or equal to 1, got 0"),
        ({"plan": {"lr": 0.0}}, "plan.lr must be greater than 0, got 0.0"),
        ({"plan": {"optimizer": "sdg"}}, "plan.optimizer must be 'sgd', 'adam' or 'momentum', got 'sdg'"),
        ({"eval_every": None}, "eval_every must be a valid integer, got None"),
        ({"methods": "fedavg"}, "methods must be a list, got 'fedavg'"),
    ],
)
def test_a_value_out_of_range_says_what_it_must_be(found, message):
    assert refusal_of(found) == f"s.toml: {message}"


@pytest.mark.parametrize(
    "found", [{"rounds": 0}, {"plan": {"lr": 0.0}}, {"seeds": ["x"]}, {"data": 3}, {"cohort": []}]
)
def test_a_value_out_of_range_is_refused_in_one_line(found):
    message = refusal_of(found)

    place = next(iter(found))
    assert message.startswith(f"s.toml: {place}")
    assert "\n" not in message


def test_a_sound_study_passes_the_check():
    study = make_study({"data": WORLD, "methods": ["fedavg", "ditto|guard"], "channels": ["clip"]})

    seen, unseen = study.check()

    assert (seen.num_clients, unseen) == (6, None)


def test_the_check_lists_every_method_and_channel_that_fails():
    study = make_study(
        {"data": WORLD, "methods": ["fedavg:momentum=2", "fedavg", "oracle"], "channels": ["clip:norm=0"]}
    )

    with pytest.raises(UserError) as refusal:
        study.check()

    assert str(refusal.value) == (
        "momentum must be a number in [0, 1), got 2.0; "
        "oracle needs num_groups, which these data do not tell; set num_groups=...; "
        "norm must be a positive number, got 0.0"
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"data": {"name": "digit"}},
            "no data set, file or folder is called 'digit'; did you mean 'digits'? Known: ",
        ),
        ({"model": "mene"}, "no model is called 'mene'; did you mean 'mean'? Known: "),
        (
            {"data": {**WORLD, "options": {"row": 2}}},
            "no option of mean_estimation is called 'row'; did you mean 'rows'",
        ),
    ],
)
def test_the_check_refuses_unknown_names(changed, message):
    with pytest.raises(UnknownChoice) as refusal:
        make_study({"data": WORLD, **changed}).check()

    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize("hold_out", [6, 7])
def test_the_check_refuses_to_hold_out_everybody(hold_out):
    with pytest.raises(BadValue) as refusal:
        make_study({"data": {**WORLD, "hold_out": hold_out}}).check()

    assert str(refusal.value) == f"hold_out must be between 0 and 5 of the 6 clients, got {hold_out}"


def test_the_check_lists_mistakes_in_the_model_and_the_methods_together():
    with pytest.raises(UserError, match=r"'mene'.*'fedavgg'"):
        make_study({"data": WORLD, "model": "mene", "methods": ["fedavgg"]}).check()


def test_the_check_refuses_a_data_option_of_another_type():
    with pytest.raises(UserError):
        make_study({"data": {**WORLD, "options": {"num_clients": "six"}}}).check()


@pytest.mark.parametrize(
    "changed", [{"cohort": "evrybody"}, {"executor": "vectorised"}, {"seeds": []}, {"methods": []}]
)
def test_the_check_refuses_what_no_run_can_do(changed):
    with pytest.raises(UserError):
        make_study({"data": WORLD, "methods": ["fedavg"], **changed}).check()


def test_no_hold_out_leaves_nobody_unseen():
    seen, unseen = make_study({"data": WORLD}).federations()

    assert (seen.num_clients, unseen) == (6, None)


def test_held_out_clients_are_unseen():
    seen, unseen = make_study({"data": {**WORLD, "hold_out": 2}}).federations()

    assert (seen.num_clients, unseen.num_clients) == (4, 2)


def test_the_oracle_is_compared_by_default_only_where_groups_are_planted():
    with_groups, without = load("digits", num_clients=8), load("mean_estimation", num_clients=4)

    assert "oracle" in default_methods(with_groups)
    assert "oracle" not in default_methods(without)
