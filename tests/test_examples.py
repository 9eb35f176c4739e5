"""Every example runs from the command line and prints what it promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plures.app import make_variants, read_source

EXAMPLES = Path(__file__).parent.parent / "examples"


def output_of(folder: Path, *words: object) -> str:
    """What a Python program prints, run on its own with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, words)],
        cwd=folder,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested_here():
    tested = {"compare_digits.py", "new_method.py", "own_data.py", "several.toml", "study.toml"}

    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == tested


@pytest.mark.slow
def test_compare_digits_ranks_the_oracle_first(tmp_path):
    printed = output_of(tmp_path, EXAMPLES / "compare_digits.py")

    ranked = re.findall(r"^(\S+) +0\.\d+ +0\.\d+ ", printed, re.MULTILINE)
    assert ranked[0] == "oracle"
    assert set(ranked) == {"local_only", "fedavg", "ditto:lam=0.5", "oracle"}
    assert "32 clients in training, 8 held out" in printed


@pytest.mark.slow
def test_own_data_tells_hospitals_apart(tmp_path):
    printed = output_of(tmp_path, EXAMPLES / "own_data.py")

    risks = dict(re.findall(r"^(\w+) +ill with probability (0\.\d\d)$", printed, re.MULTILINE))
    assert float(risks["hill"]) > float(risks["north"]) > float(risks["river"])


@pytest.mark.slow
def test_new_method_beats_both_of_its_parts(tmp_path):
    printed = output_of(tmp_path, EXAMPLES / "new_method.py")

    means = dict(re.findall(r"^(\w+) +mean (\d\.\d+)", printed, re.MULTILINE))
    assert float(means["own_mix"]) < min(float(means["fedavg"]), float(means["local_only"]))


def test_several_studies_are_sound():
    found = make_variants(read_source(EXAMPLES / "several.toml"))

    assert [one.label for one in found] == [
        f"plan.lr={lr}, logistic_clusters:num_groups={groups}" for lr in (0.05, 0.5) for groups in (2, 1)
    ]


@pytest.mark.slow
def test_study_runs_and_is_not_run_twice(tmp_path):
    first = output_of(tmp_path, "-m", "plures", "run", EXAMPLES / "study.toml", "--out", "study")
    finished = sorted((tmp_path / "study").rglob("done.json"))
    stamps = [path.stat().st_mtime_ns for path in finished]

    second = output_of(tmp_path, "-m", "plures", "resume", "study")

    assert re.search(r"^ ditto:lam=0\.01 +0\.\d+", first, re.MULTILINE)
    assert second == "10 finished runs are kept from before in study\n" + first
    assert len(finished) == 10
    assert [path.stat().st_mtime_ns for path in finished] == stamps
