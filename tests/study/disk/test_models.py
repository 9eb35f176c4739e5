"""Personal models on disk: what is written loads without study or data, and predicts the same bits."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

import plures
from plures.contract import subjects, worlds
from plures.engine import Run, Settings, prepare
from plures.engine.phases import least_rounds
from plures.engine.record import Record
from plures.engine.state import first_state, next_state
from plures.errors import BadFile, BadValue, UnknownChoice
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.study import build_method, build_model
from plures.study.disk import states as keeping
from plures.study.disk.layout import run_folder
from plures.study.disk.states import MOST_BYTES, open_run, state_bytes, which_keep
from plures.study.grid import compare

SEEN, UNSEEN = worlds.awkward()
LINEAR, PARTS, NORM = "softmax:ridge=0.01", "mlp:hidden=4", "mlp_norm:hidden=4"
X = np.linspace(-2, 2, 8 * worlds.DIM, dtype=np.float32).reshape(8, worlds.DIM)
NUM_PARAMS = worlds.DIM * worlds.CLASSES + worlds.CLASSES


def begun(method, unseen=UNSEEN):
    """A run that has come to its last phase without a round played: nothing needs to be compiled for training."""
    settings = Settings(rounds=least_rounds(method), executor="vectorized")
    quiet = replace(
        method,
        views=replace(method.views, report=None, forecast=None),
    )
    runner = prepare(quiet, SEEN, unseen=unseen, settings=settings)
    state = first_state(runner.phases[0].method, runner.key, runner.num_seen)
    for phase in runner.phases[1:]:
        state = next_state(phase, runner.key, state)
    return Run(runner, state, None, Record(), 0.0)


def built(text, model=LINEAR):
    return build_method(text, build_model(model, SEEN), plan=worlds.PLAN, facts=SEEN.known)


def saved(folder, text="fedavg", model=LINEAR, client=1):
    """A run, and the folder with one client's model of it."""
    run = begun(built(text, model))
    plures.save_model(run, client, folder, method=text, model=model)
    return run


def same_bits(ours, theirs):
    return np.array_equal(np.asarray(ours), np.asarray(theirs), equal_nan=True)


@pytest.mark.parametrize(
    ("text", "model", "client"),
    [
        ("fedavg", PARTS, 7),  # never seen in training
        ("ditto", PARTS, "client-3"),
        ("hypcluster:num_clusters=2", PARTS, 1),
        ("fedavg|mapper", LINEAR, 1),
        ("fedavg|knn_per", PARTS, 1),
        ("fedbn", NORM, 1),
    ],
)
def test_a_stored_model_predicts_the_same_bits(tmp_path, text, model, client):
    run = saved(tmp_path, text, model, client)

    loaded = plures.load_model(tmp_path)

    assert same_bits(loaded.predict(X), run.model_for(client).predict(X))


def model_for(entry):
    """A model that a registered method or personalizer takes."""
    return NORM if "norm" in entry.tags else PARTS


@pytest.mark.slow
@pytest.mark.parametrize("subject", subjects(), ids=lambda one: one.name)
def test_every_registered_method_loads_back(tmp_path, subject):
    run = saved(tmp_path, subject.name, model_for(subject.entry))

    assert same_bits(plures.load_model(tmp_path).predict(X), run.model_for(1).predict(X))


def test_the_file_beside_the_weights_says_what_they_are(tmp_path):
    lineage = {"study": "demo", "run": "runs/fedavg/seed-0", "mark": "rounds 1"}
    run = begun(built("fedavg"))

    plures.save_model(run, "client-2", tmp_path, method="fedavg", model=LINEAR, lineage=lineage)

    about = json.loads((tmp_path / "model.json").read_text())
    content = (tmp_path / "model.safetensors").read_bytes()
    assert (about["uid"], about["name"], about["seen"]) == (2, "client-2", True)
    assert (about["method"], about["model"], about["norm"]) == ("fedavg", LINEAR, "share")
    assert about["input"] == {"shape": [worlds.DIM], "dtype": "float32"}
    assert (about["task"], about["num_outputs"]) == ("classification", worlds.CLASSES)
    assert about["facts"] == {"num_clients": 6, "num_groups": 2, "num_domains": 2}
    assert about["parameters"] == NUM_PARAMS
    assert about["bytes"] == len(content)
    assert about["sha256"] == hashlib.sha256(content).hexdigest()
    assert about["data"] == {"title": "awkward", "fingerprint": SEEN.fingerprint}
    assert about["versions"]["plures"] == plures.__version__
    assert about["lineage"] == lineage


def test_weights_are_plain_arrays_by_name(tmp_path):
    run = saved(tmp_path, "fedavg", PARTS)

    arrays = load_file(tmp_path / "model.safetensors")

    own = run.model_for(1).weights.params
    layers = ("dense_0", "head")
    assert set(arrays) == {f"params/{layer}/{part}" for layer in layers for part in ("bias", "kernel")}
    for layer in layers:
        assert np.asarray(own[layer]["kernel"]).any()
        assert same_bits(arrays[f"params/{layer}/kernel"], own[layer]["kernel"])


def test_a_method_without_a_text_is_given_to_load(tmp_path):
    method = ditto(worlds.model(parts=True), plan=worlds.PLAN)
    run = begun(method)
    plures.save_model(run, 1, tmp_path)

    with pytest.raises(BadFile, match="does not say how its method is built; give it: load_model"):
        plures.load_model(tmp_path)
    assert same_bits(plures.load_model(tmp_path, method=method).predict(X), run.model_for(1).predict(X))


def test_a_text_of_another_method_is_refused(tmp_path):
    method = built("fedavg")
    run = begun(replace(method, predict=lambda served, x: method.predict(served, x) + 1))

    with pytest.raises(BadValue, match="method and model must be the texts of what was run"):
        plures.save_model(run, 1, tmp_path, method="fedavg", model=LINEAR)
    assert not (tmp_path / "model.json").exists()


def test_weights_of_another_model_are_refused(tmp_path):
    saved(tmp_path)

    with pytest.raises(BadFile, match="holds the weights of another method or model"):
        plures.load_model(tmp_path, method=built("fedavg", PARTS))


def test_damaged_weights_are_refused(tmp_path):
    saved(tmp_path)
    file = tmp_path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))

    with pytest.raises(BadFile, match=r"is damaged: its sha256 is not the one in model\.json"):
        plures.load_model(tmp_path)


def test_a_newer_format_is_refused(tmp_path):
    saved(tmp_path)
    file = tmp_path / "model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 2}))

    with pytest.raises(BadFile, match="has format 2, of a newer release; this one reads up to 1"):
        plures.load_model(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is damaged"), ("[]", "has no format number"), ('{"format": 1}', "has no 'method'")],
)
def test_a_damaged_description_is_refused(tmp_path, text, said):
    (tmp_path / "model.json").write_text(text)

    with pytest.raises(BadFile, match=said):
        plures.load_model(tmp_path)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(BadFile, match=r"holds no model \(there is no model.json in it\)"):
        plures.load_model(tmp_path / "nothing")


def test_a_method_that_is_not_registered_is_named(tmp_path):
    saved(tmp_path)
    file = tmp_path / "model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "method": "fedmine"}))

    with pytest.raises(BadFile, match=r"'fedmine' with .* cannot be built again: no method is called 'fedmine'"):
        plures.load_model(tmp_path)


@pytest.mark.parametrize("shape", [(2, 4), (3,), ()])
def test_inputs_of_another_shape_are_refused_with_the_one_wanted(tmp_path, shape):
    saved(tmp_path)

    with pytest.raises(BadValue, match=r"x must be an array of shape \(rows, 3\)"):
        plures.load_model(tmp_path).predict(np.zeros(shape))


def test_an_unknown_client_is_refused(tmp_path):
    with pytest.raises(UnknownChoice, match="no client is called 'client-99'"):
        saved(tmp_path, client="client-99")


def test_another_model_is_not_written_over(tmp_path):
    saved(tmp_path, "fedavg", PARTS)

    saved(tmp_path, "fedavg", PARTS)
    with pytest.raises(BadFile, match=r"holds another model \(fedavg, seed 0, client 'client-1'\)"):
        saved(tmp_path, "fedavg", LINEAR)


# The last state of a study's runs


def test_the_size_of_a_state_follows_from_shapes():
    """Ditto: the server has one model, and so has each of six clients; a number takes four bytes, whether it trained one."""
    numbers = (1 + SEEN.num_clients) * NUM_PARAMS
    assert state_bytes(built("ditto"), SEEN.num_clients, 2) == numbers * 4 + SEEN.num_clients


def test_large_states_are_not_kept_unless_asked_for():
    many = MOST_BYTES // (NUM_PARAMS * 4) + 1
    methods = {"ditto": built("ditto"), "fedavg": built("fedavg")}

    size = ((1 + many) * NUM_PARAMS * 4 + many) / 1e6

    keeps, notes = which_keep(methods, many, 2, None)

    assert keeps == {"ditto": False, "fedavg": True}
    assert notes["ditto"] == [
        f"models are not kept, they take {size:.0f} MB per run; --keep-models (keep_models = true) keeps them"
    ]
    assert which_keep(methods, many, 2, True)[0] == {"ditto": True, "fedavg": True}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A method, and the folder of a study of it with one run."""
    out, method = tmp_path_factory.mktemp("study"), fedavg(worlds.model(), plan=worlds.PLAN)
    compare({"mine": method}, SEEN, rounds=1, seeds=(3,), executor="vectorized", out=out)
    return method, run_folder(out, "mine", 3)


SETTINGS = Settings(rounds=1, seed=3, executor="vectorized")


def test_a_kept_run_serves_what_the_run_itself_does(study):
    method, folder = study
    before = plures.run(method, SEEN, rounds=1, seed=3, executor="vectorized")

    again = open_run(folder, method, SEEN, settings=SETTINGS)

    assert same_bits(again.model_for(4).predict(X), before.model_for(4).predict(X))


def test_a_kept_run_with_other_data_is_refused(study):
    method, folder = study
    other = replace(SEEN, x=SEEN.x + 1)

    with pytest.raises(BadFile, match="the data changed since the run"):
        open_run(folder, method, other, settings=SETTINGS)


def test_a_run_that_kept_no_models_says_how_it_would(tmp_path, study):
    method, _ = study
    settings = {"rounds": 1, "seeds": (3,), "executor": "vectorized"}
    compare({"mine": method}, SEEN, out=tmp_path, keep_models=False, **settings)

    with pytest.raises(BadFile, match="kept no models; run the study again with --keep-models"):
        open_run(run_folder(tmp_path, "mine", 3), method, SEEN, settings=SETTINGS)


def test_a_study_says_which_models_were_too_large_to_keep(tmp_path, study, monkeypatch):
    method, _ = study
    monkeypatch.setattr(keeping, "MOST_BYTES", 0)

    result = compare({"mine": method}, SEEN, rounds=1, seeds=(3,), executor="vectorized", out=tmp_path)

    assert any(line.startswith("mine: models are not kept") for line in result.told)
    assert not (run_folder(tmp_path, "mine", 3) / "checkpoint").exists()


def test_a_run_that_is_not_finished_is_refused(tmp_path):
    with pytest.raises(BadFile, match="holds no finished run"):
        open_run(tmp_path, built("fedavg"), SEEN, settings=SETTINGS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": True}, "has no format number"),
        ({"format": 0}, "has no format number"),
        ({"method": 3}, "its 'method' is 3"),
        ({"plan": []}, r"its 'plan' is \[\]"),
        ({"input": {"shape": "x", "dtype": "float32"}}, "its 'input' is"),
        ({"num_outputs": "three"}, "its 'num_outputs' is 'three'"),
        ({"plan": {"lr": "x"}}, "lr must be a positive number"),
        ({"facts": {"num_clients": "many"}}, "is damaged, or of another release"),
        ({"num_outputs": 7}, "their shapes do not fit"),
    ],
)
def test_a_description_with_wrong_values_is_refused(tmp_path, changes, said):
    saved(tmp_path)
    file = tmp_path / "model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    with pytest.raises(BadFile, match=said):
        plures.load_model(tmp_path)


@pytest.mark.parametrize("keep", [False, None])
def test_checkpoints_are_dropped_at_the_end_where_models_are_not_kept(tmp_path, study, monkeypatch, keep):
    method, _ = study
    monkeypatch.setattr(keeping, "MOST_BYTES", 0)
    settings = {"rounds": 1, "seeds": (3,), "executor": "vectorized", "checkpoint_every": 1}

    compare({"mine": method}, SEEN, out=tmp_path, keep_models=keep, **settings)

    folder = run_folder(tmp_path, "mine", 3)
    assert (folder / "done.json").exists()
    assert not (folder / "checkpoint").exists()


def test_a_run_of_another_choice_of_tuning_is_refused(study):
    method, folder = study
    other = fedavg(method.model, plan=replace(method.plan, lr=2 * method.plan.lr))

    with pytest.raises(BadFile, match=r"holds a run with other settings .* a client's model is made from"):
        open_run(folder, other, SEEN, settings=SETTINGS)
