"""The reproduction of convex clustering: its parts on small draws, its bars, its tables and pictures."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from papers.common.reproduce import reproduce
from papers.convex_clustering import ellipses as world
from papers.convex_clustering import real, rounds
from papers.convex_clustering import run as cc
from papers.convex_clustering.squared_penalty import held_together
from plures.data import from_arrays
from plures.errors import BadFile
from plures.report.fusion_figures import path_tables
from plures.solvers import as_clients, complete, consensus, convex_clustering, points_as_clients
from plures.solvers.prox import own_best

RESULTS = Path(__file__).parents[1] / "results"
PAGE = Path(__file__).parents[3] / "docs" / "convex-clustering.md"
TINY = cc.Scale(1, 3, 9, (0.08,), False, (0.25,), 60, 6, ())


@pytest.fixture(scope="module")
def data():
    return world.draw("balanced", 2)


@pytest.mark.parametrize("gamma", [0.0, 1e-3, 0.3, 50.0])
def test_squares_pull_points_to_their_mean_by_the_closed_form(gamma):
    """x_i = mean + (a_i - mean) / (1 + 2 N gamma)."""
    points = np.array([[0.0, 1.0], [2.0, 5.0], [7.0, -3.0]])

    found = held_together(points_as_clients(points), gamma)

    mean = points.mean(0)
    np.testing.assert_allclose(found.x, mean + (points - mean) / (1 + 6 * gamma), atol=1e-9)


@pytest.mark.parametrize("gamma", [1e-3, 1.0])
def test_squares_leave_no_slope_on_hinges(data, gamma):
    clients, num = data.clients, data.clients.num

    found = held_together(clients, gamma)

    pull = 2 * num * gamma * (found.x - found.x.mean(0))
    assert np.abs(clients.gradient(found.x) + pull).max() < 1e-8
    assert found.residual < 1e-8


def test_squares_end_at_models_alone_and_at_the_global_model(data):
    alone = own_best(data.clients, np.zeros((60, 3))).x

    np.testing.assert_allclose(held_together(data.clients, 0.0).x, alone, atol=1e-5)
    np.testing.assert_allclose(
        held_together(data.clients, 1e6).x, np.tile(consensus(data.clients).model, (60, 1)), atol=1e-4
    )


def test_accuracy_is_that_of_a_model_on_the_test_set_of_its_group(data):
    truth = np.stack(
        [np.cos(2 * np.pi * data.group / 3), np.sin(2 * np.pi * data.group / 3), 0 * data.group], axis=1
    )

    assert [len(y) for _, y in data.tests] == [4000] * 3
    assert data.accuracy(truth) == pytest.approx(0.8727, abs=0.015)
    assert data.accuracy(-truth) == pytest.approx(1 - data.accuracy(truth))
    assert data.apart(truth) == data.spread(truth) == 0.0


def test_norms_fuse_and_squares_never_do(data):
    norms = world.norms(data, np.array([0.07, 0.2]))
    squares = world.squares(data, np.array([0.1, 1.0]))

    assert [point.clusters for point in norms] == [1, 3]
    assert [point.spread for point in norms] == [0.0, 0.0]
    assert all(point.exact for point in norms)
    assert {point.clusters for point in squares} == {60}
    assert min(point.apart for point in squares) > 1e-3


def test_anchors_are_near_those_of_the_other_program(data):
    found = world.anchors(data)

    assert found["local"] == pytest.approx(0.837, abs=0.02)
    assert found["oracle"] == pytest.approx(0.871, abs=0.01)


def test_recovery_ends_by_a_split_at_both_ends_and_the_theorem_never_holds(data):
    found = {name: world.recovery(data, name, graph, np.array([0.06, 0.2])) for name, graph in world.graphs(data)}

    whole, few = found["complete"], found["5 neighbors"]
    assert (whole.below, whole.above) == ("split", "split")
    assert 0.05 < whole.low < 0.06 < whole.high < 0.1
    assert whole.theorem_6 > 1
    assert whole.theorem_13 == pytest.approx(0.1, abs=0.02)
    assert few.high / few.low > 6.5
    assert np.isnan(few.theorem_6)


def test_a_draw_without_recovery_says_so():
    data = world.draw("balanced", 0)

    found = world.recovery(data, "complete", complete(60), np.array([0.05, 0.08, 0.12]))

    assert not found.found
    assert found.alpha_hat == pytest.approx(0.144, abs=0.005)


def test_thresholds_of_groups_are_below_the_published_condition(data):
    lines = world.bounds(data, np.array([0.06, 0.07]))

    assert len(lines) == 6
    assert all(0 < line.phi < line.alpha < line.theorem_6 for line in lines)


def test_rounds_are_counted_to_every_mark():
    data = world.draw("balanced", 3, num_clients=15)

    found = rounds.best_reached(data, rounds.DR, 0.08, 1.0, tuned=False)
    few = rounds.best_reached(data, rounds.PDMM, 0.08, 0.2, tuned=False, most=30)

    assert list(found.rounds) == sorted(found.rounds)
    assert found.errors[found.rounds[1] - 1] <= 1e-6 < found.errors[found.rounds[1] - 2]
    assert few.rounds[2] is None
    assert len(few.errors) == 30


def test_the_printed_algorithm_is_told_from_the_corrected_one():
    data = world.draw("balanced", 0, num_clients=12)

    wrong = rounds.ended(data, "printed", 0.25, "non-zero dual start", 600)
    right = rounds.ended(data, "corrected", 0.25, "non-zero dual start", 600)

    assert wrong.off > 10 * right.off
    assert cc._printed_row(wrong, 600).bar == "at least 0.001"
    assert cc._printed_row(right, 600).bar == "at most 0.0001"


def few_schools(monkeypatch):
    """Six clients in two groups with lines of opposite gradient."""
    x = np.linspace(-1, 1, 20)[:, None].repeat(6, axis=1).T.reshape(-1, 1)
    client = np.repeat([f"c{k}" for k in range(6)], 20)
    y = np.where(np.repeat(np.arange(6), 20) % 2, 1.0, -1.0) * x[:, 0]
    split = np.tile(np.repeat(["train", "valid", "test"], [12, 4, 4])[np.argsort(np.arange(20) * 7 % 20)], 6)
    federation = from_arrays(x, y, client, task="regression", split=split)
    monkeypatch.setattr(real, "load", lambda name: federation)


def test_real_clients_are_fused_and_the_strength_is_chosen_on_valid_rows(monkeypatch):
    few_schools(monkeypatch)
    one = real.Real("school", "least_squares", "rmse", 1e-4, num_lams=6, least=0.05)

    played = real.play(one)

    assert played.num_clients == 6
    assert {line.clusters for line in played.lines} == {1, 2}
    assert all(line.exact for line in played.lines)
    assert played.everyone[1] > 10 * played.own[1]
    best = real.chosen(played, one)
    assert best.valid == min(line.valid for line in played.lines)
    assert best.clusters == 2
    assert [row.id for row in cc._real_rows(one, played, lambda text: None)][2] == "school-fused"


def test_rows_on_leading_axes_are_white(monkeypatch):
    few_schools(monkeypatch)
    one = real.Real("school", "least_squares", "rmse", 1e-4, axes=1)

    rows = np.concatenate([x for x, _ in real._parts(real.load("school"), one)["train"]])

    np.testing.assert_allclose([rows.mean(), rows.std()], [0.0, 1.0], atol=1e-12)


def test_data_that_are_not_there_are_left_out_with_a_line(monkeypatch, tmp_path):
    def missing(name):
        raise BadFile(f"{name} is not here")

    monkeypatch.setattr(real, "load", missing)
    told = []

    rows = cc._real(cc.SCALES["small"], tmp_path, told.append)

    assert rows == []
    assert told == ["school: left out, school is not here", "har: left out, har is not here"]
    assert not (tmp_path / "real.csv").exists()


@pytest.mark.slow
def test_all_sections_write_tables_and_pictures(monkeypatch, tmp_path):
    few_schools(monkeypatch)
    school = real.Real("school", "least_squares", "rmse", 1e-4, num_lams=4, least=0.05)
    monkeypatch.setitem(cc.SCALES, "small", TINY._replace(real=(school,)))
    monkeypatch.setattr(rounds, "best_reached", partial(rounds.best_reached, most=40))

    rows = reproduce("convex-clustering", out=tmp_path)

    assert len({row.id for row in rows}) == len(rows)
    names = {"accuracy", "distance", "path", "clusters", "bands", "margins", "rounds", "printed", "real"}
    assert {path.stem for path in tmp_path.glob("*.png")} == names
    published = {row.published for row in rows if row.published is not None}
    assert published == {0.868, 0.866, 0.002, 0.0892, 0.0919}


def test_a_path_of_models_of_one_number_has_one_axis():
    fitted = convex_clustering(loss="least_squares", graph="complete", num_lams=4, intercept=False).fit(
        [[[1.0]], [[1.0]]], [[0.0], [1.0]]
    )

    steps, parts = path_tables(fitted.path, fitted.consensus.model, np.zeros(2, int))

    assert steps["second"].to_list() == [0.0] * 8
    assert parts["clusters"].to_list() == [1, 2]


def test_clients_of_one_class_have_finite_models():
    clients = as_clients([[[1.0], [2.0]]], [[1, 1]], loss="squared_hinge", ridge=0.0, intercept_ridge=0.0)

    assert np.isfinite(held_together(clients, 0.0).x).all()


@pytest.mark.skipif(not (RESULTS / "summary.json").exists(), reason="the page has no summary yet")
def test_the_summary_of_the_page_has_every_bar_met_or_named():
    rows = json.loads((RESULTS / "summary.json").read_text())
    page = PAGE.read_text()

    assert [row["id"] for row in rows if row["bar"] and not row["met"] and row["id"] not in page] == []
