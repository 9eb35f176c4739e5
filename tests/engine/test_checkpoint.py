"""Checkpoints: atomic, complete, never pickled, and clear when they do not fit."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from plures import run, then
from plures.contract import worlds
from plures.contract.watched_runs import outcome
from plures.engine import checkpoint
from plures.errors import BadFile, BadValue
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg

PLAIN = {"executor": "vectorized", "cohort": 4, "eval_every": 1}
SETTINGS = {**PLAIN, "checkpoint_every": 1}


@pytest.fixture(scope="module")
def method():
    return ditto(worlds.model(), plan=worlds.PLAN)


@pytest.fixture(scope="module")
def seen():
    return worlds.awkward()[0]


def test_only_the_latest_checkpoint_is_kept(method, seen, tmp_path):
    run(method, seen, rounds=3, checkpoint=tmp_path, **SETTINGS)

    assert [path.name for path in tmp_path.iterdir()] == ["round-00000003"]


def test_a_resumed_record_is_whole(method, seen, tmp_path):
    whole = run(method, seen, rounds=3, **PLAIN)

    run(method, seen, rounds=2, checkpoint=tmp_path, **SETTINGS)
    resumed = run(method, seen, rounds=3, checkpoint=tmp_path, **SETTINGS)

    valid = resumed.record.table().filter(split="valid")
    assert valid.equals(whole.record.table().filter(split="valid"), null_equal=True)
    assert resumed.record.info == whole.record.info
    assert resumed.num_bytes == whole.num_bytes


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint_intact(method, seen, tmp_path, monkeypatch):
    run(method, seen, rounds=1, checkpoint=tmp_path, **SETTINGS)
    before = checkpoint.load(tmp_path / "round-00000001", run(method, seen, rounds=1, **PLAIN).state)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        run(method, seen, rounds=2, checkpoint=tmp_path, **SETTINGS)

    assert [path.name for path in tmp_path.iterdir()] == ["round-00000001"]
    after, _ = checkpoint.load(tmp_path / "round-00000001", before[0])
    np.testing.assert_array_equal(after.visits, before[0].visits)


def test_a_kill_in_mid_write_leaves_the_last_checkpoint_intact(tmp_path):
    """A process that dies while the second checkpoint is being written."""
    script = textwrap.dedent(
        f"""
        import os, pathlib
        from plures import run
        from plures.contract import worlds
        from plures.engine import checkpoint
        from plures.methods.fedavg import fedavg
        write = checkpoint._write_record
        def dying(folder, record):
            write(folder, record)
            if len(record.scores) > 2:
                os._exit(9)
        checkpoint._write_record = dying
        run(fedavg(worlds.model(), plan=worlds.PLAN), worlds.awkward()[0], rounds=3,
            checkpoint=pathlib.Path({str(tmp_path)!r}), **{SETTINGS!r})
        """
    )

    died = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)

    assert died.returncode == 9, died.stderr.decode()
    assert checkpoint.latest(tmp_path).name == "round-00000001"
    assert checkpoint.latest(tmp_path).is_dir()
    resumed = run(
        fedavg(worlds.model(), plan=worlds.PLAN), worlds.awkward()[0], rounds=3, checkpoint=tmp_path, **SETTINGS
    )
    assert int(resumed.state.round) == 3


def test_another_methods_checkpoint_is_refused(method, seen, tmp_path):
    run(fedavg(worlds.model(), plan=worlds.PLAN), seen, rounds=1, checkpoint=tmp_path, **SETTINGS)

    with pytest.raises(BadFile, match="belongs to a run with method fedavg"):
        run(method, seen, rounds=2, checkpoint=tmp_path, **SETTINGS)


def test_a_damaged_checkpoint_is_named(method, seen, tmp_path):
    run(method, seen, rounds=1, checkpoint=tmp_path, **SETTINGS)
    (tmp_path / "round-00000001" / "state.safetensors").write_bytes(b"not tensors")

    with pytest.raises(BadFile, match="is damaged"):
        run(method, seen, rounds=2, checkpoint=tmp_path, **SETTINGS)


def test_a_checkpoint_of_another_version_is_named(method, seen, tmp_path):
    run(method, seen, rounds=1, checkpoint=tmp_path, **SETTINGS)
    (tmp_path / "round-00000001" / "about.json").write_text(json.dumps({"version": 99, "round": 1}))

    with pytest.raises(BadFile, match="checkpoint version 99"):
        run(method, seen, rounds=2, checkpoint=tmp_path, **SETTINGS)


def test_another_runs_checkpoint_is_refused(method, seen, tmp_path):
    run(method, seen, rounds=1, checkpoint=tmp_path, **SETTINGS)

    with pytest.raises(BadFile, match="belongs to a run with seed 0, not 5"):
        run(method, seen, rounds=2, seed=5, checkpoint=tmp_path, **SETTINGS)


@pytest.mark.parametrize("stopped", [1, 2, 3])
def test_a_run_with_a_prelude_resumes_in_any_phase(stopped, seen, tmp_path):
    method = then(fedavg(worlds.model(), plan=worlds.PLAN), 2, ditto(worlds.model(), plan=worlds.PLAN))
    whole = run(method, seen, rounds=4, **PLAIN)

    with pytest.raises(KeyboardInterrupt):
        run(method, seen, rounds=4, checkpoint=tmp_path, progress=stopping_at(stopped + 1), **SETTINGS)
    assert checkpoint.latest(tmp_path).name == f"round-0000000{stopped}"
    resumed = run(method, seen, rounds=4, checkpoint=tmp_path, **SETTINGS)

    expected, found = outcome(whole), outcome(resumed)
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(values, found[name])
    assert resumed.num_bytes == whole.num_bytes


def stopping_at(round_):
    def progress(now):
        if now.round == round_:
            raise KeyboardInterrupt

    return progress


def test_a_finished_run_called_again_keeps_its_checkpoint(method, seen, tmp_path):
    first = run(method, seen, rounds=2, checkpoint=tmp_path, **SETTINGS)
    (tmp_path / "writing-left-over").mkdir()

    again = run(method, seen, rounds=2, checkpoint=tmp_path, **SETTINGS)

    assert [path.name for path in tmp_path.iterdir()] == ["round-00000002"]
    assert again.clients.equals(first.clients, null_equal=True)


def test_private_rows_cannot_move_between_memory_and_disk(method, seen, tmp_path):
    run(method, seen, rounds=1, checkpoint=tmp_path / "kept", **SETTINGS)

    with pytest.raises(BadFile, match="belongs to a run with store memory, not disk"):
        run(method, seen, rounds=2, checkpoint=tmp_path / "kept", store=tmp_path / "rows", **SETTINGS)


@pytest.mark.parametrize("file", ["scores.parquet", "past.json"])
def test_a_damaged_record_is_named(file, method, seen, tmp_path):
    run(method, seen, rounds=1, checkpoint=tmp_path, **SETTINGS)
    (tmp_path / "round-00000001" / file).write_bytes(b"{")

    with pytest.raises(BadFile, match="is damaged"):
        run(method, seen, rounds=2, checkpoint=tmp_path, **SETTINGS)


def test_fewer_rounds_than_done_are_refused(method, seen, tmp_path):
    run(method, seen, rounds=2, checkpoint=tmp_path, **SETTINGS)

    with pytest.raises(BadValue, match="at least 2, which the checkpoint has done"):
        run(method, seen, rounds=1, checkpoint=tmp_path, **SETTINGS)


def test_nothing_is_pickled():
    for path in Path(checkpoint.__file__).parents[1].rglob("*.py"):
        assert "import pickle" not in path.read_text(), path
