"""Studies from TOML: validated before anything starts, all mistakes at once, in exact words."""

import importlib.util
import tomllib

import optax
import pytest

from plures.app import Study, make_study, read_source, read_study
from plures.app.toml import as_toml
from plures.data import load
from plures.errors import BadData, BadFile, BadValue, UnknownChoice, UserError
from plures.registry import METHODS
from plures.study import default_methods
from plures.types import Plan

WORLD = {"name": "mean_estimation", "hold_out": 0, "options": {"num_clients": 6, "rows": 20}}
SPLIT = {"name": "logistic_clusters", "hold_out": 0, "options": {"num_clients": 6, "rows": 20}}
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


def test_a_mistake_in_a_file_names_the_file_and_the_line(tmp_path):
    path = written(tmp_path, "[plan]\nepohcs = 3\n")

    with pytest.raises(BadFile) as refusal:
        read_study(path)

    assert str(refusal.value) == (
        f"{path}, line 2: no setting is called 'epohcs'; did you mean 'epochs'? Known: batch, epochs, lr, optimizer, steps"
    )


def test_a_typo_at_the_top_suggests_a_setting_of_the_top():
    assert refusal_of({"metods": ["fedavg"]}) == (
        "s.toml: no setting is called 'metods'; did you mean 'methods'? Known: attack, channels, checkpoint_every, "
        "cohort, data, eval_every, executor, imports, keep_models, methods, model, norm, patience, plan, references, rounds, "
        "seeds, track, tune"
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

    assert "oracle" in default_methods(with_groups, 60)
    assert "oracle" not in default_methods(without, 60)


def test_clusters_are_compared_by_default_where_there_is_time_for_them():
    many, few = load("digits", num_clients=8), load("mean_estimation", num_clients=3)

    assert "hypcluster_auto" in default_methods(many, 20)
    assert "hypcluster_auto" not in default_methods(many, 19)
    assert "hypcluster_auto" not in default_methods(few, 60)


def complaints(path):
    """The lines of a refused file after the first, once sections and names are checked."""
    source = read_source(path)
    with pytest.raises(BadFile) as refusal:
        make_study(dict(source.values), source=source).check(source)
    first, *others = str(refusal.value).splitlines()
    assert first == f"{path} has {len(others)} mistakes:"
    return [line.split(". Known: ")[0].split("? Known: ")[0] for line in others]


def test_mistakes_of_all_kinds_are_shown_together_with_their_lines(tmp_path):
    path = written(
        tmp_path,
        """# a comment
methods = [
    "fedavg",
    3,
    "fedporx",
    "ditto:lamb=2|finetun",
]
cohort = []
channels = ["clip:norm=0"]

[data]
name = "mean_estimation"
options.num_clients = 6
options.row = 9

[plan]
epoch = 3
lr = -1

[tune]
search.ditto.lam = [2, 1]
search."ditto.lum" = [1, 2]
""",
    )

    assert complaints(path) == [
        "  line 4: methods.1 must be a valid string, got 3",
        "  line 5: no method is called 'fedporx'; did you mean 'fedprox'",
        "  line 6: no option of ditto is called 'lamb'; did you mean 'lam'",
        "  line 6: no personalizer is called 'finetun'; did you mean 'finetune'",
        "  line 8: cohort must be a valid integer or a valid string, got []",
        "  line 9: norm must be a positive number, got 0.0",
        "  line 14: no option of mean_estimation is called 'row'; did you mean 'rows'",
        "  line 17: no setting is called 'epoch'; did you mean 'epochs'",
        "  line 18: plan.lr must be greater than 0, got -1",
        "  line 21: tune.search.ditto.lam must be two positive numbers, the lower one first, got [2, 1]",
        "  line 22: no option to tune is called 'ditto.lum'; did you mean 'ditto.lam'",
    ]


def test_what_does_not_go_together_is_shown_with_its_line(tmp_path):
    path = written(
        tmp_path,
        """methods = ["fedavg", "oracle", "fedavg"]
norm = "local"
executor = "fast"
data.name = "mean_estimation"
data.options.num_clients = 6
data.hold_out = 9
""",
    )

    assert complaints(path) == [
        "  line 1: methods must be a list without repeats, got ['fedavg', 'oracle', 'fedavg']",
        "  line 1: oracle needs num_groups, which these data do not tell; set num_groups=...",
        "  line 2: norm=local needs a model with normalization layers; this one has: no named parts",
        "  line 3: no executor is called 'fast'",
        "  line 6: hold_out must be between 0 and 5 of the 6 clients, got 9",
    ]


def test_a_setting_twice_in_a_file_is_refused_with_the_place(tmp_path):
    path = written(tmp_path, "rounds = 3\nrounds = 4\n")

    with pytest.raises(BadFile, match=rf"^{path} is not valid TOML: Cannot overwrite a value \(at line 2, "):
        read_study(path)


def test_a_mistake_in_a_default_says_so(tmp_path):
    path = written(tmp_path, 'norm = "share"\n[data]\nname = "mean_estimation"\nhold_out = 0\n')
    source = read_source(path)
    study = make_study({**source.values, "methods": ["fedporx"]}, source=source)

    with pytest.raises(BadFile, match=f"^{path}, by default: no method is called 'fedporx'"):
        study.check(source)


def test_a_method_that_needs_more_rounds_is_refused_before_anything_starts():
    study = make_study({"data": WORLD, "methods": ["fedavg", "fedavg|mapper"], "rounds": 1})

    with pytest.raises(UserError, match=r"^fedavg\|mapper: rounds must be more than the"):
        study.check()


def test_all_is_every_method_that_fits_and_a_reason_for_each_other_one():
    study = make_study({"data": WORLD, "methods": "all"})

    prepared = study.prepare()

    assert sorted([*prepared.methods, *prepared.left_out]) == sorted(METHODS)
    assert {"local_only", "fedavg", "ditto"} <= set(prepared.methods)
    assert (
        prepared.left_out["oracle"] == "oracle needs num_groups, which these data do not tell; set num_groups=..."
    )


def test_all_may_stand_beside_other_methods():
    study = make_study({"data": WORLD, "methods": ["fedavg|guard", "fedavg", "all"]})

    names = list(study.prepare().methods)

    assert names[:2] == ["fedavg|guard", "fedavg"]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"methods": ["all"]},
        {
            "methods": ["fedavg", "ditto|guard"],
            "data": SPLIT,
            "model": "softmax",
            "rounds": 24,
            "cohort": 3,
            "attack": "sign-flip:0.2",
            "plan": {"steps": 3, "lr": 1e-5},
            "tune": {"search": {"ditto": {"lam": [0.5, 2]}}},
        },
    ],
    ids=["defaults", "all", "tuned"],
)
def test_a_resolved_study_is_toml_that_comes_to_itself(given):
    study = make_study({"data": WORLD, **given})
    prepared = study.prepare()

    resolved = prepared.resolved
    again = make_study(tomllib.loads(as_toml(resolved)))

    assert again.prepare().resolved == resolved
    assert resolved["methods"] == list(prepared.methods)


def test_a_resolved_study_says_how_it_is_tuned():
    study = make_study({"data": SPLIT, "methods": ["ditto"], "seeds": [4, 5], "tune": {}})

    assert study.prepare().resolved["tune"] == {
        "trials": 8,
        "strategy": "halving",
        "seed": 0,
        "seeds": [4],
        "search": {},
    }


def test_ranges_may_be_named_with_or_without_quotes():
    quoted, plain = ('"ditto.lam" = [0.1, 1]', "ditto.lam = [0.1, 1]")

    studies = [make_study(tomllib.loads(f"[tune.search]\n{line}")) for line in (quoted, plain)]

    assert studies[0] == studies[1]
    assert studies[0].tune.search == {"ditto.lam": (0.1, 1.0)}


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"trials": 0}, "tune.trials must be greater than or equal to 1, got 0"),
        ({"strategy": "grid"}, "tune.strategy must be 'halving' or 'random', got 'grid'"),
        (
            {"search": {"lr": [0, 1]}},
            "tune.search.lr must be two positive numbers, the lower one first, got [0, 1]",
        ),
        (
            {"trails": 3},
            "no setting is called 'trails'; did you mean 'trials'? Known: search, seed, seeds, strategy, trials",
        ),
    ],
)
def test_a_mistake_in_how_to_tune_says_what_it_must_be(tune, message):
    assert refusal_of({"tune": tune}) == f"s.toml: {message}"


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        (
            {"strategy": "halving", "trials": 3},
            "strategy must be random, or 4 trials or more and 20 rounds or more, got 'halving with 3 trials and 60 rounds'",
        ),
        (
            {"search": {"lam": [1, 2]}},
            "no option to tune is called 'lam'. Known: fedavg.momentum, fedavg.server_lr, lr",
        ),
    ],
)
def test_the_check_refuses_what_cannot_be_tuned(tune, message):
    with pytest.raises(UserError) as refusal:
        make_study({"data": SPLIT, "methods": ["fedavg"], "tune": tune}).check()

    assert str(refusal.value) == message


def test_the_check_refuses_to_tune_without_valid_rows():
    with pytest.raises(BadData, match="no client has valid rows, by which settings are chosen"):
        make_study({"data": WORLD, "methods": ["fedavg"], "tune": {}}).check()


def said_of(path):
    """All mistakes of a file in one text."""
    source = read_source(path)
    with pytest.raises(BadFile) as refusal:
        make_study(dict(source.values), source=source).check(source)
    return str(refusal.value)


SMALL = 'methods = ["fedavg"]\ndata.name = "logistic_clusters"\ndata.options.num_clients = 4\ndata.hold_out = 0\n'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('track = "tensorbord:x"', "line 5: no tracker is called 'tensorbord'; did you mean 'tensorboard'"),
        ('track = ["tensorboard"]', "line 5: tracker must be tensorboard:FOLDER"),
        ("tune.seeds = [1, 1]", "line 5: tune.seeds must be a list without repeats, got [1, 1]"),
        ("plan.lr = inf", 'line 5: plan.lr must be a positive number or "auto", got inf'),
        ("data.hold_out_seed = -1", "line 5: data.hold_out_seed must be greater than or equal to 0, got -1"),
        ("int = 3", "line 5: no setting is called 'int'. Known: attack"),
        ("tune.search.int = 3", "line 5: tune.search.int must be two positive numbers"),
        ("seeds = [true]", "line 5: seeds.0 must be a valid integer, got True"),
        ("seeds = [1.0]", "line 5: seeds.0 must be a valid integer, got 1.0"),
        ("cohort = 2.0", "line 5: cohort must be a valid integer or a valid string, got 2.0"),
        ("plan = 3", "line 5: plan must be a section, got 3"),
        ('tune.search = { "fedavg.momentum" = [0.1, 0.2], fedavg = { momentum = [0.1, 0.3] } }', "is given once"),
        (
            'tune.search = { momentum = [0.1, 0.2], "fedavg.momentum" = [0.1, 0.3] }',
            "momentum must be given once, but fedavg.momentum is the same option of fedavg",
        ),
    ],
)
def test_a_mistake_is_shown_with_its_line_before_anything_starts(tmp_path, line, said):
    assert said in said_of(written(tmp_path, SMALL + line))


def test_a_tracker_without_its_package_is_refused_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    said = said_of(written(tmp_path, SMALL + 'track = ["mlflow"]'))

    assert "line 5: tracking with mlflow needs a package: pip install 'plures[mlflow]'" in said


def test_all_options_of_the_data_that_are_wrong_are_shown_at_once(tmp_path):
    path = written(tmp_path, SMALL + "data.options.row = 3\ndata.options.gapp = 2\ndata.options.dim = 'x'\n")

    assert complaints(path) == [
        "  line 5: no option of logistic_clusters is called 'row'; did you mean 'rows'",
        "  line 6: no option of logistic_clusters is called 'gapp'; did you mean 'gap'",
        "  line 7: dim must be of type int, got 'x'",
    ]


def test_all_unknown_options_of_a_table_are_shown_at_once(tmp_path):
    (tmp_path / "t.csv").write_text("client,x,y\na,1,0\n")
    path = written(
        tmp_path, f"data.name = '{tmp_path / 't.csv'}'\ndata.options.targe = 'y'\ndata.options.clien = 'x'\n"
    )

    assert complaints(path) == [
        "  line 2: no option of a table is called 'targe'; did you mean 'target'",
        "  line 3: no option of a table is called 'clien'; did you mean 'client'",
    ]


def test_the_same_mistake_in_two_places_is_shown_in_both(tmp_path):
    path = (
        written(tmp_path, SMALL + 'channels = ["clip:norm=0"]\n')
        .read_text()
        .replace('["fedavg"]', '[\n"fedporx",\n"fedporx|guard"]')
    )

    assert [line.split(":")[0] for line in complaints(written(tmp_path, path))] == [
        "  line 2",
        "  line 3",
        "  line 7",
    ]


def test_an_unknown_partitioner_is_shown_on_the_line_of_the_data(tmp_path):
    text = SMALL.replace('"logistic_clusters"', '"digits|dirichlt"')

    said = said_of(written(tmp_path, text))

    assert "line 2: no partitioner is called 'dirichlt'; did you mean 'dirichlet'" in said
    assert "line 3" not in said


def test_a_setting_of_an_earlier_version_that_changed_no_result_is_ignored_with_a_line(tmp_path, capsys):
    study = read_study(written(tmp_path, "together = true\n" + SMALL))

    assert study == read_study(written(tmp_path, SMALL))
    assert capsys.readouterr().err == "together is no longer a setting and is ignored\n"
