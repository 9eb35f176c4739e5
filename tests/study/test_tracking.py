"""Trackers: called as a study goes, closed with its result; TensorBoard and MLflow hold the study's own numbers."""

import importlib
import re
import struct
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from plures.contract import worlds
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.methods.fedavg import fedavg
from plures.study import Comparison
from plures.study.disk.layout import run_folder
from plures.study.grid import compare
from plures.study.tracking import MLflow, tracker

SEEN, UNSEEN = worlds.awkward()
METHOD = fedavg(worlds.model(), plan=worlds.PLAN)  # one for all tests: it is compiled once


class Diary:
    """A tracker that writes down what it was called with."""

    def __init__(self):
        self.seen, self.closed = [], []

    def __call__(self, now):
        self.seen.append((now.method, now.seed, now.run.round))

    def close(self, result, about):
        self.closed.append((result, about))


class Broken(Diary):
    """A tracker whose server went away."""

    def __call__(self, now):
        raise OSError("connection refused")


def study(track, **changes):
    settings = {"rounds": 2, "eval_every": 1, "seeds": (0, 1), "executor": "vectorized", "unseen": UNSEEN}
    return compare({"a|b": METHOD}, SEEN, track=track, **{**settings, **changes})


def valid_mean(out, seed, round_, metric):
    """The mean over clients in training of the record that a run left."""
    record = pl.read_parquet(run_folder(out, "a|b", seed) / "record.parquet")
    wanted = {"round": round_, "split": "valid", "kind": "personal", "metric": metric}
    mine = record.filter(*(pl.col(name) == value for name, value in wanted.items()))
    return mine.filter(pl.col("uid") < SEEN.num_clients)["value"].drop_nans().mean()


def test_a_tracker_is_called_as_the_study_goes_and_closed_with_its_result():
    diary = Diary()

    result = study([diary], config={"name": "mine"})

    assert diary.seen == [("a|b", seed, round_) for seed in (0, 1) for round_ in (1, 2)]
    assert diary.closed == [(result, {"rounds": 2, "seeds": [0, 1], "name": "mine"})]


def test_trackers_and_progress_are_told_the_same():
    diaries, told = [Diary(), Diary()], []

    study(diaries, seeds=(0,), progress=told.append)

    assert diaries[0].seen == diaries[1].seen == [("a|b", 0, now.run.round) for now in told]


def test_a_study_that_fails_closes_its_trackers_without_a_result():
    diary = Diary()

    def stop(now):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study([diary], progress=stop)

    assert [result for result, _ in diary.closed] == [None]


def test_a_tracker_that_fails_is_dropped_and_the_study_goes_on():
    diary, broken = Diary(), Broken()

    with pytest.warns(UserWarning, match="Broken no longer follows the study: OSError: connection refused"):
        result = study([broken, diary], seeds=(0,))

    assert len(diary.seen) == 2
    assert broken.closed == []
    assert diary.closed[0][0] is result


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("tensorbord:x", UnknownChoice, "no tracker is called 'tensorbord'; did you mean 'tensorboard'"),
        ("tensorboard", BadValue, "tensorboard:FOLDER, for example tensorboard:runs/tb"),
    ],
)
def test_a_tracker_that_is_not_known_is_refused(text, error, said):
    with pytest.raises(error, match=said):
        tracker(text)


@pytest.mark.parametrize(("text", "extra"), [("tensorboard:x", "tensorboard"), ("mlflow", "mlflow")])
def test_a_missing_package_is_named_with_the_extra_that_has_it(monkeypatch, text, extra):
    def nothing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", nothing)

    with pytest.raises(Unsupported, match=rf"needs a package: pip install 'plures\[{extra}\]'"):
        tracker(text)


def events(folder):
    """{(tag, step): value} of the scalars, and {tag: text}, in the event files of a folder."""
    proto = importlib.import_module("tensorboardX.proto.event_pb2")
    scalars, said = {}, {}
    for file in folder.glob("events.*"):
        content, at = file.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("<Q", content, at)  # length, its checksum, the event, its checksum
            event = proto.Event.FromString(content[at + 12 : at + 12 + size])
            at += 12 + size + 4
            for value in event.summary.value:
                if value.HasField("tensor"):
                    said[value.tag.removesuffix("/text_summary")] = value.tensor.string_val[0].decode()
                else:
                    scalars[value.tag, event.step] = value.simple_value
    return scalars, said


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """(result, the study's folder, TensorBoard's folder)."""
    pytest.importorskip("tensorboardX")
    out, board = tmp_path_factory.mktemp("study"), tmp_path_factory.mktemp("board")
    return study([f"tensorboard:{board}"], out=out), out, board


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_tensorboard_curves_are_those_of_the_record(followed, metric):
    _, out, board = followed

    for seed in (0, 1):
        curves, _ = events(board / "a|b" / f"seed-{seed}")
        for round_ in (1, 2):
            assert curves[f"valid/{metric}", round_] == pytest.approx(
                valid_mean(out, seed, round_, metric), rel=1e-6
            )


def test_tensorboard_has_the_megabytes_of_all_clients(followed):
    result, _, board = followed
    mine = result.clients.filter(pl.col("seed") == 0)

    curves, _ = events(board / "a|b" / "seed-0")

    assert curves["megabytes", 2] == pytest.approx((mine["bytes_down"] + mine["bytes_up"]).sum() / 1e6, rel=1e-6)
    assert curves["rounds_per_second", 2] > 0


def test_tensorboard_ends_with_the_test_scores_and_the_leaderboard(followed):
    result, _, board = followed

    for row, seed in enumerate((0, 1)):
        final, _ = events(board / "a|b" / f"seed-{seed}")
        assert final["test/accuracy", 2] == pytest.approx(np.nanmean(result.scores("a|b")[row]), rel=1e-6)
        unseen = result.scores("a|b", seen=False)[row]
        assert final["unseen_test/accuracy", 2] == pytest.approx(np.nanmean(unseen), rel=1e-6)
    summary, _ = events(board / "a|b")
    assert summary["leaderboard/mean", 2] == pytest.approx(result.leaderboard["mean"].item(), rel=1e-6)
    _, said = events(board)
    assert '"rounds": 2' in said["settings"]
    assert "| a|b" in said["leaderboard"]


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_has_a_run_for_the_study_and_one_for_each_of_its_runs(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    where = f"sqlite:///{tmp_path / 'x.db'}"

    result = study([f"mlflow:{where}"], out=tmp_path / "out", config={"plan": {"lr": 0.2}})

    client = mlflow.tracking.MlflowClient(tracking_uri=where)
    runs = {
        one.info.run_name: one
        for one in client.search_runs([client.get_experiment_by_name("plures").experiment_id])
    }
    assert set(runs) == {"study", "a|b seed 0", "a|b seed 1"}
    assert {one.info.status for one in runs.values()} == {"FINISHED"}
    assert runs["study"].data.params["plan.lr"] == "0.2"
    assert runs["study"].data.metrics["a_b/mean"] == pytest.approx(result.leaderboard["mean"].item())
    one = runs["a|b seed 1"]
    assert one.data.params == {"method": "a|b", "seed": "1"}
    assert one.data.tags["mlflow.parentRunId"] == runs["study"].info.run_id
    curve = client.get_metric_history(one.info.run_id, "valid/accuracy")
    wanted = [valid_mean(tmp_path / "out", 1, round_, "accuracy") for round_ in (1, 2)]
    assert [point.value for point in curve] == pytest.approx(wanted)


def test_trackers_that_were_opened_are_closed_if_a_later_one_cannot_be():
    diary = Diary()

    with pytest.raises(UnknownChoice, match="no tracker is called 'nothing'"):
        study([diary, "nothing"])

    assert [result for result, _ in diary.closed] == [None]


class Store:
    """What MLflow's client does, with its rule for names, written down in order."""

    def __init__(self):
        self.calls = []

    def create_run(self, experiment, run_name, tags=None):
        return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

    def log_param(self, run, name, value):
        if not re.fullmatch(r"[/\w.\- ]{1,250}", name) or value == "refused":
            raise RuntimeError("invalid")
        self.calls.append(("param", run, name))

    def log_metric(self, run, name, value, step):
        if not re.fullmatch(r"[/\w.\- ]{1,250}", name):
            raise RuntimeError("invalid")
        self.calls.append(("metric", run, name))

    def set_terminated(self, run, status):
        self.calls.append(("end", run, status))


def outcome():
    """A result of one run, made by hand."""
    rows = {"method": ["a:b=1|c"], "seed": [0], "uid": [0], "name": ["x"], "seen": [True], "group": [None]}
    numbers = {name: [4] for name in ("train_rows", "valid_rows", "test_rows", "bytes_down", "bytes_up")}
    scores = {"personal_test_accuracy": [0.5], "personal_test_loss": [0.7]}
    clients = pl.DataFrame({**rows, **numbers, **scores}, schema_overrides={"group": pl.Int64})
    return Comparison(clients, "accuracy", True, {"a:b=1|c": 1.0})


def test_mlflow_gets_plain_names_and_its_runs_end_before_the_settings():
    store = Store()

    MLflow(store, "0", "study").close(outcome(), {"rounds": 2, "tuned": {"fedavg|finetune": ("fedavg", 0.1)}})

    kinds = [kind for kind, run, _ in store.calls if run == "study"]
    assert ("param", "study", "tuned.fedavg_finetune") in store.calls
    assert ("metric", "study", "a_b_1_c/mean") in store.calls
    assert kinds.index("end") < kinds.index("param")
    assert "metric" not in kinds[kinds.index("end") :]


def test_a_setting_that_mlflow_refuses_costs_no_other():
    store = Store()

    with pytest.warns(UserWarning, match="MLflow did not take model"):
        MLflow(store, "0", "study").close(None, {"model": "refused", "rounds": 2})

    assert store.calls == [("end", "study", "FAILED"), ("param", "study", "rounds")]
