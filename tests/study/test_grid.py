"""Comparisons: leaderboard, verdicts, what is refused, what is not run twice."""

import numpy as np
import polars as pl
import pytest

from plures import compare
from plures.contract import worlds
from plures.data import load
from plures.errors import BadData, BadFile, BadValue
from plures.methods.fedavg import fedavg
from plures.study import Comparison
from plures.study.disk.layout import run_folder


def table(scores, *, loss=0.5):
    """A comparison from {method: scores of the clients}, one seed."""
    rows = [
        {
            "method": method,
            "seed": 0,
            "uid": uid,
            "seen": True,
            "test_rows": 5,
            "bytes_down": 1_000_000,
            "bytes_up": 0,
            "personal_test_accuracy": value,
            "personal_test_loss": loss if method != "lost" else None,
        }
        for method, values in scores.items()
        for uid, value in enumerate(values)
    ]
    return Comparison(pl.DataFrame(rows), "accuracy", True, {})


ALONE = np.linspace(0.4, 0.9, 30)
WIGGLE = np.where(np.arange(30) % 2, 0.05, -0.05)


def verdicts(result):
    board = result.leaderboard
    return dict(zip(board["method"], board["against_best"], strict=True))


def test_a_clear_gap_is_behind_and_a_small_one_is_within_noise():
    result = table({"local_only": ALONE, "better": ALONE + 0.1, "same": ALONE + 0.1 + WIGGLE})

    assert verdicts(result)["local_only"] == "behind"
    assert sorted([verdicts(result)["better"], verdicts(result)["same"]]) == ["best", "within noise"]


def test_the_share_worse_than_alone_counts_clients():
    board = table({"local_only": ALONE, "mixed": ALONE + np.where(np.arange(30) < 6, -0.1, 0.1)}).leaderboard

    assert board.filter(pl.col("method") == "mixed")["worse_than_alone"].item() == pytest.approx(0.2)


def test_a_method_that_diverged_is_never_the_best():
    assert verdicts(table({"local_only": ALONE, "lost": ALONE + 0.05})) == {
        "local_only": "best",
        "lost": "diverged",
    }


def test_who_knows_the_groups_is_a_ceiling_and_the_best_is_the_best_of_the_others():
    result = table({"oracle": ALONE + 0.2, "better": ALONE + 0.1, "local_only": ALONE})

    assert verdicts(result) == {"oracle": "knows the groups", "better": "best", "local_only": "behind"}


def test_a_pair_is_the_same_from_both_sides():
    result = table({"one": ALONE + WIGGLE, "other": ALONE})

    here, there = result.pair("one", "other"), result.pair("other", "one")

    assert (there.mean, there.low, there.high, there.p) == (-here.mean, -here.high, -here.low, here.p)
    assert there.low <= there.high


def test_traffic_is_megabytes_per_client():
    assert table({"local_only": ALONE}).leaderboard["mb_per_client"].item() == pytest.approx(1.0)


def test_methods_may_be_given_as_objects():
    seen, unseen = worlds.awkward()
    method = fedavg(worlds.model(), plan=worlds.PLAN)

    result = compare({"mine": method}, seen, unseen=unseen, rounds=1, seeds=(0,), executor="vectorized")

    assert result.leaderboard["method"].to_list() == ["mine"]


@pytest.mark.parametrize(
    ("methods", "seeds", "said"),
    [
        ([], (0,), "methods must be a list with at least one entry"),
        (["fedavg"], (), "seeds must be a list with at least one entry"),
        (["fedavg", "fedavg"], (0,), "methods must be a list without repeats"),
        (["fedavg"], (0, 0), "seeds must be a list without repeats"),
    ],
)
def test_what_leaves_nothing_to_compare_is_refused(methods, seeds, said):
    with pytest.raises(BadValue, match=said):
        compare(methods, load("digits", num_clients=8), rounds=1, seeds=seeds)


def test_a_federation_without_test_rows_is_refused():
    with pytest.raises(BadData, match="no client has test rows"):
        compare(["fedavg"], load("mean_estimation", num_clients=4), rounds=1)


def test_labels_never_share_a_folder(tmp_path):
    labels = ["a", "é", "ü", "a|b", "a:b", "a/b", "..", "."]

    folders = [run_folder(tmp_path, label, 0) for label in labels]

    assert len({str(folder) for folder in folders}) == len(labels)
    assert all(folder.resolve().parent.parent == (tmp_path / "runs").resolve() for folder in folders)


def test_a_kept_run_with_other_settings_is_refused(tmp_path):
    seen, _ = worlds.awkward()
    mine = {"mine": fedavg(worlds.model(), plan=worlds.PLAN)}
    compare(mine, seen, rounds=1, seeds=(0,), executor="vectorized", out=tmp_path)

    with pytest.raises(BadFile, match="holds a run with other settings"):
        compare(mine, seen, rounds=2, seeds=(0,), executor="vectorized", out=tmp_path)
