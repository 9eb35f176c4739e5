"""What a command does can be called from Python: one call leaves the files of the command, with the same summary."""

from pathlib import Path

import pytest
from typed import plures

from plures.advise import WorthOptions, advise, decide_study, estimate_worth, fuse_clients, run_tradeoff
from plures.app import DataPart, PlanPart, Study
from plures.data import load
from plures.errors import BadFile
from plures.solvers import ConvexClustering
from plures.types import Plan

WORLD = "linear_clusters:num_clients=6,num_groups=2,gap=4,rows=24,dim=3"
DATA = ["--data", WORLD, "--hold-out", "0"]
TRAINED = ["--rounds", "4", "--seeds", "1", "--batch", "0", "--lr", "0.3", "--executor", "vectorized"]


def decided(out):
    plan = PlanPart(batch=0, lr=0.3)
    own = {"rounds": 4, "seeds": (0,), "executor": "vectorized", "methods": ("fedavg", "local_only")}
    decide_study(Study(data=DataPart(name=WORLD, hold_out=0), plan=plan, **own), out)


def swept(out, rounds=4):
    settings = {"rounds": rounds, "seeds": (0,), "executor": "vectorized", "eval_every": 2}
    plan = Plan(epochs=2, batch=None, lr=0.3)
    run_tradeoff("ditto", load(WORLD), values=[0.1, 1], plan=plan, out=out, **settings)


CALLS = {
    "advise": (DATA, "advice.json", lambda out: advise(load(WORLD)).save(out)),
    "worth": (
        [WORLD, "--hold-out", "0", "--lams", "3"],
        "summary.json",
        lambda out: estimate_worth(load(WORLD), WorthOptions(num_lams=3)).save(out),
    ),
    "fuse": (
        [WORLD, "--hold-out", "0", "--lams", "4"],
        "summary.json",
        lambda out: fuse_clients(load(WORLD), ConvexClustering(loss="least_squares", ridge=0.01, num_lams=4)).save(
            out
        ),
    ),
    "decide": ([*DATA, *TRAINED, "-m", "fedavg", "-m", "local_only"], "summary.json", decided),
    "tradeoff": ([*DATA, *TRAINED, "-m", "ditto", "--values", "0.1,1", "--eval-every", "2"], "summary.json", swept),
}


LEFT = {
    "advise": {"advice.json", "advice.png", "clients.csv", "study.toml"},
    "worth": {"summary.json", "worth.png", "clients.csv", "path.csv"},
    "fuse": {"summary.json", "path.png", "clusters.png", "bands.png", "clients.csv", "path.csv", "models.npz"},
    "decide": {"study.json", "summary.json", "decisions.png", "decisions.csv", "decisions.parquet"},
    "tradeoff": {"study.json", "summary.json", "degree.png", "front.png", "points.csv", "values.csv"},
}


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


@pytest.mark.parametrize("command", CALLS)
def test_a_call_leaves_the_files_and_the_summary_of_the_command(command):
    words, summary, call = CALLS[command]

    assert plures(command, *words, "--out", "theirs") == 0
    call(Path("mine"))

    assert files_in("mine") == files_in("theirs")
    assert {name for name in files_in("mine") if "/" not in name} >= LEFT[command]
    assert Path("mine", summary).read_text() == Path("theirs", summary).read_text()


def test_the_study_that_is_advised_is_the_one_of_the_command():
    assert plures("advise", *DATA, "--out", "theirs") == 0
    advise(load(WORLD)).save("mine")

    assert Path("mine/study.toml").read_text() == Path("theirs/study.toml").read_text()


def test_data_that_no_text_names_have_no_study_to_run():
    found = advise(load(WORLD).take([True, True, True, True, False, True]))

    assert found.study is None
    assert "study.toml" not in [file.name for file in found.save("mine")]


def test_a_sweep_from_python_is_refused_a_folder_of_other_settings():
    swept("mine")

    with pytest.raises(BadFile, match=r"other settings \(rounds"):
        swept("mine", rounds=6)
