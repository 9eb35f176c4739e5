"""Sweeps of the degree of collaboration: what is swept, and what a run really cost."""

import json
import math
import shutil

import polars as pl
import pytest

from plures.advise import run_sweep, run_tradeoff
from plures.advise.tradeoff_wording import points_table, values_table
from plures.data import load
from plures.engine import run
from plures.errors import BadData, BadFile, BadValue, UnknownChoice, Unsupported
from plures.registry import METHODS, PERSONALIZERS, Registry
from plures.study.fronts import Budget
from plures.study.sweep import find_swept_option, plan_sweep
from plures.types import Plan

INF, NAN = math.inf, math.nan
WORLD = load("logistic_clusters", num_clients=6, num_groups=2, rows=20)
RUNNING = {"rounds": 4, "seeds": (0,), "model": "logistic", "executor": "vectorized", "cohort": 3, "eval_every": 2}
PLAN = Plan(epochs=2, batch=None, lr=0.3)


@pytest.mark.slow
def test_rounds_that_report_no_steps_are_counted_as_silent(swept, tmp_path):
    """Without the reports of its first two rounds Ditto's count begins with the third; without any it is unknown."""
    sweep, _, out = swept
    folder = tmp_path / "out"
    shutil.copytree(out, folder)
    info = pl.read_parquet(out / "runs" / "ditto%3Alam=0.1" / "seed-0" / "info.parquet")
    info.filter(pl.col("round") > 2).write_parquet(folder / "runs" / "ditto%3Alam=0.1" / "seed-0" / "info.parquet")
    info.filter(pl.col("name") == "loss").write_parquet(
        folder / "runs" / "ditto%3Alam=10" / "seed-0" / "info.parquet"
    )

    whole, part, none = run_sweep(sweep, out=folder).curves[:3]

    assert (whole.silent, part.silent, none.silent) == (0, 2, 4)
    assert part.gradients.tolist() == [[0.0, 4.0]]
    assert none.gradients is None


@pytest.mark.parametrize(
    "entry", [one for one in [*METHODS.values(), *PERSONALIZERS.values()] if one.degree], ids=lambda one: one.name
)
def test_every_declared_degree_is_an_option_that_takes_numbers(entry):
    text = entry.name if entry.name in METHODS else f"fedavg|{entry.name}"

    assert find_swept_option(text, entry.degree).option == find_swept_option(text).option == entry.degree


def test_a_degree_that_is_no_option_is_refused_when_it_is_declared():
    with pytest.raises(UnknownChoice, match="no option of f is called 'lam'"):
        Registry("example").register(title="F", name="f", degree="lam")(lambda *, num: num)


@pytest.mark.parametrize(
    ("text", "option", "place", "name"),
    [
        ("ditto", None, 0, "lam"),
        ("ditto|mapper", None, 1, "lam"),
        ("ditto|mapper", "lam", 1, "lam"),
        ("ditto|mapper", "ditto.lam", 0, "lam"),
        ("ditto|mapper", "server_lr", 0, "server_lr"),
        ("ditto|guard", None, 0, "lam"),
        ("hypcluster|finetune", None, 1, "epochs"),
    ],
)
def test_the_last_part_that_has_the_option_is_swept(text, option, place, name):
    found = find_swept_option(text, option)

    assert (found.index, found.option) == (place, name)


@pytest.mark.parametrize(
    ("text", "option", "error", "said"),
    [
        ("ditto", "lamb", UnknownChoice, "no option of ditto is called 'lamb'; did you mean 'lam'?"),
        (
            "ditto|mapper",
            "dito.lam",
            UnknownChoice,
            "no part of ditto.mapper is called 'dito'; did you mean 'ditto'?",
        ),
        (
            "ditto",
            "aggregate",
            BadValue,
            "option must be one that takes a number: lam, momentum, newcomer_epochs, server_lr, got 'agg",
        ),
        (
            "fedavg",
            None,
            Unsupported,
            r"with --option \(momentum, server_lr\), or take one that does: .*ditto \(lam\)",
        ),
    ],
)
def test_an_option_that_cannot_be_swept_is_refused(text, option, error, said):
    with pytest.raises(error, match=said):
        find_swept_option(text, option)


def test_the_value_replaces_the_one_given_and_leaves_all_else():
    found = find_swept_option("ditto:server_lr=0.5, lam=2 |mapper:epochs=2", "ditto.lam")

    assert found.value_at(0.25).label == "ditto:server_lr=0.5,lam=0.25|mapper:epochs=2"
    assert found.label(None) == "ditto:server_lr=0.5|mapper:epochs=2"


@pytest.mark.parametrize(
    ("text", "first", "last", "number"),
    [
        ("ditto", 0.00039, 26.0, 9),  # 0.1 times 4^-4 .. 4^4
        ("ditto:lam=1", 0.0039, 260.0, 9),
        ("ditto:lam=0", 0.001, 100.0, 11),
        ("fedavg|mapper", 0.001, 100.0, 11),  # by default it chooses for itself
        ("hypcluster", 1, 16, 5),
        ("fedavg|finetune", 1, 40, 6),
    ],
)
def test_the_grid_lies_around_where_the_option_stands(text, first, last, number):
    grid = find_swept_option(text).grid

    assert (grid[0], grid[-1], len(grid)) == (first, last, number)
    assert grid == sorted(set(grid))


def test_what_chooses_for_itself_is_one_more_point():
    assert find_swept_option("ditto").auto is None
    assert find_swept_option("fedavg|mapper").auto.label == "fedavg|mapper"
    assert find_swept_option("fedavg|mapper:lam=0.5").auto.label == "fedavg|mapper:lam=auto"
    assert find_swept_option("fedavg|mapper:lam=shrunk").auto.label == "fedavg|mapper:lam=shrunk"


def test_values_of_the_grid_that_are_refused_are_left_out_and_given_ones_are_not():
    """Mapper's lam is a share, and "auto" is no word of its."""
    sweep = plan_sweep("fedavg|mapper:lam=0.5", WORLD, plan=PLAN, **RUNNING)

    assert [one.text for one in sweep.settings] == [
        "0.002",
        "0.0078",
        "0.031",
        "0.12",
        "0.5",
        "local_only",
        "fedavg",
    ]
    assert sweep.left_out == ("2", "8", "32", "130")
    with pytest.raises(BadValue, match="lam must be"):
        plan_sweep("fedavg|mapper", WORLD, values=[0.2, 0.5, 2], plan=PLAN, **RUNNING)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"values": []}, "values must be a list with at least one number"),
        ({"values": [0.1, "much"]}, "values must be finite numbers, such as 0.01,0.1,1, got 'much'"),
        ({"values": [0.1, NAN]}, "values must be finite numbers, such as 0.01,0.1,1, got nan"),
        ({"values": [0.1, 0.10]}, "values must be a list without repeats"),
        ({"values": [-1.0]}, "lam must be 0 or more, got -1.0"),
        ({"seeds": ()}, "seeds must be a list with at least one entry"),
        ({"rounds": 0}, "rounds must be 1 or more, got 0"),
        ({"eval_every": 0}, "eval_every must be 1 or more, got 0"),
        (
            {"budget": Budget(rounds=1)},
            "budget_rounds must be at least 2, the first round that is evaluated, got 1",
        ),
        ({"epochs": 3}, "no setting of a run is called 'epochs'"),
    ],
)
def test_a_mistake_is_found_before_anything_runs(more, said):
    with pytest.raises((BadValue, UnknownChoice), match=said):
        plan_sweep("ditto", WORLD, **{"plan": PLAN, **RUNNING, **more})


def test_clients_without_valid_rows_leave_nothing_to_choose_by():
    world = load("linear_clusters", num_clients=4)
    count = world.count.copy()
    count[:, 1] = 0

    with pytest.raises(BadData, match="no client has valid rows, by which values are chosen"):
        plan_sweep("ditto", type(world)(**{**vars(world), "count": count}), rounds=1)


def test_the_last_round_is_evaluated_too():
    sweep = plan_sweep("ditto", WORLD, values=[0.1], plan=PLAN, **{**RUNNING, "eval_every": 3})

    assert sweep.costs["ditto:lam=0.1"].evaluated.tolist() == [3, 4]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """(sweep, result, folder) of three values with half of the clients in a round."""
    out = tmp_path_factory.mktemp("sweep")
    sweep = plan_sweep("ditto", WORLD, values=[10, 0.1, 0], plan=PLAN, budget=Budget(mb=1.0), **RUNNING)
    return sweep, run_sweep(sweep, out=out), out


def test_values_come_in_order_with_both_ends_beside_them(swept):
    table = values_table(swept[1])

    assert table["value"].to_list() == ["0", "0.1", "10", "local_only", "fedavg"]
    assert table["kind"].to_list() == ["value"] * 3 + ["end"] * 2


def test_the_bytes_of_a_point_are_those_of_a_run_that_stops_there(swept):
    sweep, result, _ = swept
    for one in result.curves[1], result.curves[-1]:
        for place, rounds in enumerate((2, 4)):
            alone = run(
                sweep.built[one.setting.label], WORLD, rounds=rounds, cohort=3, executor="vectorized", eval_every=2
            )
            assert one.cost[place] == pytest.approx(alone.num_bytes / 6 / 1e6)


def test_the_least_cost_said_before_is_that_of_the_first_point(swept):
    sweep, result, _ = swept

    for one in result.swept:
        assert one.cost[0] == pytest.approx(sweep.costs[one.setting.label].least_mb)


def test_gradients_are_the_steps_of_those_who_took_part(swept):
    """Two full-batch epochs are two steps; Ditto makes them twice; half of the clients are in a round."""
    _, result, _ = swept

    assert result.curves[0].gradients.tolist() == [[2 * 4 / 2, 4 * 4 / 2]]
    assert result.ends[1].gradients.tolist() == [[2 * 2 / 2, 4 * 2 / 2]]


def test_errors_are_the_mean_losses_of_the_record_and_test_rows_are_read_at_the_end(swept):
    _, result, out = swept
    record = pl.read_parquet(next(out.glob("runs/ditto%3Alam=0.1/seed-0/record.parquet")))
    mean = (
        record.filter(kind="personal", split="valid", metric="loss").group_by("round").agg(pl.col("value").mean())
    )

    points = points_table(result).filter(pl.col("value") == "0.1")

    assert result.curves[1].errors == pytest.approx(mean.sort("round")["value"].to_numpy(), abs=1e-6)
    assert points["round"].to_list() == [2, 4]
    assert points["test_loss"].is_null().to_list() == [True, False]
    assert record.filter(split="test")["round"].unique().to_list() == [4]


def test_finished_runs_are_not_run_again(swept):
    sweep, result, out = swept
    told = []

    again = run_sweep(sweep, out=out, progress=told.append)

    assert not told
    assert values_table(again).equals(values_table(result))
    assert points_table(again).equals(points_table(result))


def test_the_files_say_what_the_result_says(swept, tmp_path):
    _, result, _ = swept
    points, values, summary, *_ = result.save(tmp_path)
    found = json.loads(summary.read_text())

    assert pl.read_csv(points).height == 5 * 2
    assert pl.read_csv(values)["value"].to_list()[:3] == ["0", "0.1", "10"]
    assert found["best"]["value"] == result.best.setting.text
    assert found["budget"] == {"mb": 1.0, "rounds": None}
    assert found["said"] == result.sentences


def test_runs_that_were_evaluated_at_other_rounds_are_refused(swept):
    other = plan_sweep("ditto", WORLD, values=[0], plan=PLAN, **{**RUNNING, "eval_every": 4})

    with pytest.raises(BadFile, match="holds a run that was evaluated at other rounds; use another folder"):
        run_sweep(other, out=swept[2])


def test_runs_whose_bytes_were_not_kept_are_refused(swept, tmp_path):
    sweep, _, out = swept
    for file in out.rglob("*"):
        if file.is_file() and file.name != "bytes.csv":
            copy = tmp_path / file.relative_to(out)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())

    with pytest.raises(BadFile, match="holds a run without its bytes by round"):
        run_sweep(sweep, out=tmp_path)


def test_a_budget_below_the_first_point_says_the_least_that_would_do(swept):
    least = swept[0].costs["ditto:lam=0.1"].least_mb
    given = {"values": [0.1], "plan": PLAN, **RUNNING}

    with pytest.raises(BadValue, match="budget_mb must be at least") as refusal:
        run_tradeoff("ditto", WORLD, budget_mb=0.9 * least, **given)

    enough = float(str(refusal.value).split("at least ")[1].split(",")[0])
    assert least <= enough < 1.02 * least
    assert plan_sweep("ditto", WORLD, budget=Budget(mb=enough), **given)
