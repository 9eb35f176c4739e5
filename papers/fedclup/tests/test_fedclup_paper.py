"""The reproduction of FedCLUP: its parts on small draws, its bars, its tables and pictures."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import jax
import numpy as np
import polars as pl
import pytest

from papers.common.cells import save_cells
from papers.fedclup import cells, exact, mnist, real, rounds
from papers.fedclup import figures as report
from papers.fedclup import run as fc
from papers.fedclup.logistic import logistic_path
from papers.fedclup.published import defects
from papers.fedclup.theory import World, expected_error, linear_draw, logistic_draw, logistic_hessians
from plures.advise.worth import WorthOptions
from plures.data import from_arrays
from plures.errors import BadFile
from plures.moreau import num_inner
from plures.solvers.quadratic import Quadratics

RESULTS = Path(__file__).parents[1] / "results"
PAGE = Path(__file__).parents[3] / "docs" / "fedclup.md"
SMALL = World(clients=6, rows=30, dim=3, least=0.5, most=2.0)
NOTHING = mnist.Scale((), (), ())
TINY = fc.Scale(60, 3, 2, 3, 2, 1, 3, (40, 400), NOTHING, ())


@pytest.fixture(scope="module")
def draw():
    return linear_draw(jax.random.key(0), SMALL, 0.4, 4)


def quiet(text):
    """Hears and says nothing."""


@pytest.mark.parametrize(
    ("radius", "best_lam", "best_risk", "global_risk"),
    [(0.5, 0.608, 0.1025, 0.258), (0.2, 3.8, 0.0397, 0.048), (0.05, 60.8, 0.01046, 0.0105)],
)
def test_mean_estimation_risk_has_the_reference_values(radius, best_lam, best_risk, global_risk):
    """fedclup.md 5.3: the least risk, and both ends (lam = 0 is local, lam to infinity global)."""

    def risk(lam):
        return exact.mean_estimation_risk(lam, num_clients=20, noise=0.16, radius=radius)  # 4 * 1 / 25

    assert risk(best_lam) == pytest.approx(best_risk, abs=5e-5)
    assert risk(best_lam) < min(risk(0.99 * best_lam), risk(1.01 * best_lam))
    assert risk(0.0) == pytest.approx(0.16)
    assert risk(1e12) == pytest.approx(global_risk, abs=1e-9)


@pytest.mark.parametrize("lam", [1e-3, 0.5, 40.0])
def test_the_expected_error_is_the_mean_over_noise_given_the_inputs(draw, lam):
    """2,000 draws of noise on the same inputs and truths, within four standard errors."""
    one = type(draw)(draw.x[:1], draw.y[:1], draw.truth[:1])
    noise = np.asarray(jax.random.normal(jax.random.key(7), (2000, *one.y.shape[1:])), float)
    signal = np.einsum("...ri,...i->...r", one.x, one.truth)
    problem = Quadratics.from_rows(np.broadcast_to(one.x, (2000, *one.x.shape[1:])), signal + noise)

    errors = one.error(problem.path([lam]).own[0])

    expected = expected_error(one.hessians, one.truth, 1 / SMALL.rows, lam)[0]
    assert errors.mean() == pytest.approx(expected, abs=4 * errors.std() / np.sqrt(2000))


def test_the_expected_error_ends_at_that_of_training_alone_and_of_one_model(draw):
    """tr(A^-1) / n for everyone alone; without noise one model is as far as the truths from their pooled mean."""
    curvatures = draw.hessians
    alone = np.trace(np.linalg.inv(curvatures), axis1=-2, axis2=-1).mean(-1) / SMALL.rows
    pooled = np.linalg.solve(curvatures.sum(1), np.einsum("rcij,rcj->ri", curvatures, draw.truth)[..., None])[
        ..., 0
    ]

    np.testing.assert_allclose(expected_error(curvatures, draw.truth, 1 / SMALL.rows, 1e-9), alone, rtol=1e-6)
    np.testing.assert_allclose(
        expected_error(curvatures, draw.truth, 0.0, 1e7), draw.error(pooled[:, None]), rtol=1e-5
    )


def test_draws_differ_by_exactly_the_radius_and_labels_are_drawn():
    found = logistic_draw(jax.random.key(0), SMALL, 0.7, 2)

    off = found.truth - found.truth.mean(1, keepdims=True)
    np.testing.assert_allclose(np.linalg.norm(off, axis=-1), 0.7)
    assert set(np.unique(found.y)) == {0.0, 1.0}
    assert (np.linalg.eigvalsh(logistic_hessians(found)) <= np.linalg.eigvalsh(found.hessians) / 4 + 1e-12).all()


def test_risks_of_mean_estimation_are_those_of_the_formula():
    lams = np.array([0.0, exact.best_mean(0.5), np.inf])

    found = exact.means(0.5, lams, 400)

    assert [line.formula for line in found] == pytest.approx([0.16, 0.1025274, 0.258], rel=1e-5)
    assert all(abs(line.drawn - line.formula) <= 4 * line.error for line in found)
    assert found[1].drawn < min(found[0].drawn, found[2].drawn)


def test_rows_of_mean_estimation_can_fail(monkeypatch, tmp_path):
    """A formula that leaves out the average's own noise, s / m, is told from the right one."""
    wrong = lambda lam, radius: 0.258 - 0.008 if lam == np.inf else 0.16 - 0.008  # noqa: E731
    right = {row.id: row.met for row in fc._mean(TINY, tmp_path, quiet)}
    monkeypatch.setattr(exact, "_formula", wrong)

    rows = {row.id: row.met for row in fc._mean(TINY, tmp_path, quiet)}

    assert all(right.values())
    assert not rows["mean-0.5-global"]


def test_an_instance_has_exactly_the_curvatures_that_are_listed():
    found = rounds.instance(3)

    np.testing.assert_allclose(tuple(found.bounds), rounds.CURVATURE, rtol=1e-9)
    assert found.b.shape == (10, 5)


@pytest.mark.parametrize("lam", [0.1, 10.0])
def test_rounds_with_the_automatic_count_are_few_and_averaging_needs_more(lam):
    problems = [rounds.instance(seed) for seed in range(3)]

    found = rounds.counted(problems, rounds.nearest(problems), lam)

    assert found.inner == num_inner(rounds.CURVATURE, lam) == rounds.LISTED_INNER[lam]
    assert found.least_auto <= found.auto <= found.most_auto
    assert found.exact <= found.averaging
    assert found.exact <= found.predicted
    assert found.gradients == found.auto * found.inner
    assert all(row.met for row in fc._rounds_rows(found) if row.id.startswith(("kappa", "inner")))


def test_a_row_of_rounds_fails_where_a_tenth_more_are_needed():
    line = rounds.Counted(10.0, 9.47, 6, 41.0, 78.0, 49.0, 294.0, 83.0, 40.0, 60.0, 43, 258)

    assert not _named(fc._rounds_rows(line._replace(auto=48.0)), "rounds-10").met
    assert _named(fc._rounds_rows(line._replace(auto=47.0)), "rounds-10").met


def _named(rows, name):
    return next(row for row in rows if row.id == name)


def test_averaging_after_several_local_steps_rests_elsewhere_than_gradient_descent():
    problem = rounds.instance(0)

    assert rounds.resting_place(problem, 1) < 1e-9
    assert rounds.resting_place(problem, 5) > 1e-3


def test_the_best_strength_beats_both_ends_and_the_rules_come_near(draw):
    points, ends = exact.linear_path(draw, 0.4, np.geomspace(1e-2, 1e2, 9))

    assert len(points) == 9
    assert ends.best < min(ends.local, ends.all_alike)
    assert ends.oracle < 1.1 * ends.best
    assert ends.plug_in < 1.3 * ends.best
    assert _named(fc._shape_rows(ends), "shape-linear-0.4").met
    assert not _named(fc._shape_rows(ends._replace(best=2 * ends.local)), "shape-linear-0.4").met


def test_strengths_have_the_unit_of_curvature(draw):
    """Inputs three times as large, coefficients a third: lam is nine times as large."""
    scaled = type(draw)(3 * draw.x, draw.y, draw.truth / 3)

    np.testing.assert_allclose(exact.oracle_lams(scaled), 9 * exact.oracle_lams(draw))
    np.testing.assert_allclose(exact.plugged(scaled, "least_squares"), 9 * exact.plugged(draw, "least_squares"))


def test_a_plug_in_that_ignores_noise_misses_its_bar(draw):
    _, ends = exact.linear_path(draw, 0.4, np.geomspace(1e-2, 1e2, 9))

    at_zero = ends._replace(plug_in=ends.local)

    assert not fc._plug_in_row(at_zero, "stretched", "linear").met
    assert fc._plug_in_row(ends._replace(plug_in=1.04 * ends.best), "stretched", "linear").met


def test_draws_off_their_theory_miss_its_bar(draw):
    points, _ = exact.linear_path(draw, 0.4, np.geomspace(1e-2, 1e2, 3))

    off = [one._replace(drawn=1.2 * one.theory) for one in points]

    assert not fc._theory_row(off, "linear", 0.05).met
    assert fc._theory_row([one._replace(drawn=one.theory) for one in points], "linear", 0.05).met


def test_logistic_paths_have_their_ends_and_their_theory():
    found = logistic_draw(jax.random.key(1), World(clients=6, rows=150, dim=3), 0.5, 2)

    points, ends = logistic_path(found, 0.5, np.geomspace(1e-4, 1e2, 5))

    assert points[0].drawn == pytest.approx(ends.local, rel=0.02)
    assert points[-1].drawn == pytest.approx(ends.all_alike, rel=0.02)
    assert points[2].theory == pytest.approx(points[2].drawn, rel=0.4)


@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_rounds_are_followed_to_the_solution_and_the_ends(model):
    made = {"linear": linear_draw, "logistic": logistic_draw}[model]
    one = made(jax.random.key(2), World(clients=4, rows=60, dim=2), 0.5, 1)

    found = rounds.followed(model, one, 0.3, (1, 60))

    last = {step.method: step.error for step in found}
    (problem,) = rounds.problems_of(model, one)
    goal = {
        name: one.error(rounds.solved(problem, [lam]))[0]
        for name, lam in (("LocalTrain", 0.0), (rounds.MIDDLE, 0.3), ("GlobalTrain", np.inf))
    }
    for name, error in goal.items():
        assert last[name] == pytest.approx(error, rel=1e-3), name
    assert set(last) == {
        "LocalTrain",
        "FedCLUP, lambda / 10",
        rounds.MIDDLE,
        "FedCLUP, 10 lambda",
        "GlobalTrain",
        "pFedMe, 5 local steps",
        "L2GD",
        "Ditto",
    }


def test_published_labels_do_not_depend_on_the_radius_and_have_no_best_model():
    found = defects((60, 600))

    assert found.changed == 0.0
    assert found.drawn_changed > 0.05
    assert found.separable == 1.0
    lengths = {(one.labels, one.steps): one.norm for one in found.stopped}
    assert lengths["published", 600] > 1.3 * lengths["published", 60]


def some_pictures():
    """As many as ten clients with two digits need, all of them noise."""
    key_x, key_y, key_test = jax.random.split(jax.random.key(0), 3)
    y = np.asarray(jax.random.randint(key_y, (60_000,), 0, 10), np.int32)
    test_y = np.tile(np.arange(10, dtype=np.int32), 110)
    x, test_x = (
        np.asarray(jax.random.uniform(key, (size, 1, 1))) for key, size in ((key_x, 60_000), (key_test, 1100))
    )
    return mnist.Pictures(x, y, test_x, test_y)


@pytest.mark.slow
@pytest.mark.parametrize("digits", [3, 10])
def test_clients_have_their_digits_in_every_split_and_no_row_twice(digits):
    source = some_pictures()

    federation = mnist.dealt(digits, 0, source)

    assert federation.count.tolist() == [list(mnist.ROWS)] * 10
    rows = []
    for name in federation.names:
        (x, train), (more, valid), (_, test) = (
            federation.rows_of(name, split) for split in ("train", "valid", "test")
        )
        held, number = np.unique(train, return_counts=True)
        assert len(held) == digits
        assert number.max() - number.min() <= 1
        for part in (valid, test):
            found, each = np.unique(part, return_counts=True)
            assert found.tolist() == held.tolist()
            assert each.max() - each.min() <= 1
        rows += [x, more]
    drawn = np.concatenate(rows).ravel()
    assert len(np.unique(drawn)) > 0.999 * len(drawn)  # pixels of noise hardly ever agree


def test_the_network_has_the_published_number_of_parameters():
    model = mnist.cnn()
    weights = jax.eval_shape(model.init, jax.random.key(0))

    assert sum(leaf.size for leaf in jax.tree.leaves(weights)) == 421_642
    assert jax.eval_shape(model.apply, weights, jax.ShapeDtypeStruct((3, 28, 28), np.float32)).shape == (3, 10)


def test_every_way_of_the_comparison_is_built():
    names = {way.method for way in mnist.ways("softmax").values()}

    assert {"local_only", "fedavg", "fedclup", "mr_mtl", "pfedme", "l2gd", "ditto"} <= names
    assert mnist.built("softmax", mnist.ways("softmax")["FedCLUP, lam 1.5"]).plan.lr == 0.01


CELL = mnist.Cell("softmax", "alone", 4, 0, 0.9, 0.8, 0.9, 1.0, 2.0)


def test_cells_are_kept_and_not_played_again(tmp_path):
    file = tmp_path / "cells.jsonl"
    save_cells(file, [CELL, replace(CELL, method="FedAvg"), replace(CELL, mean=0.91)])

    assert [one.mean for one in mnist.loaded(file)] == [0.91, 0.9]
    scale = mnist.Scale(("softmax",), (4,), (0,), ("alone", "FedAvg"))
    rows = cells.play_cells(scale, tmp_path, quiet)
    assert [row.id for row in rows] == ["mnist-softmax-alone", "mnist-softmax-fedavg"]
    assert pl.read_csv(tmp_path / "mnist.csv")["accuracy"].to_list() == pytest.approx([90.0, 91.0])


def test_a_line_that_is_no_cell_is_named(tmp_path):
    file = tmp_path / "cells.jsonl"
    file.write_text(json.dumps(asdict(CELL)) + "\n{}\n")

    with pytest.raises(BadFile, match="line 2"):
        mnist.loaded(file)


@pytest.mark.parametrize(("ours", "met"), [(0.9, True), (0.87, False)])
def test_the_automatic_fedclup_is_held_to_the_better_end(ours, met):
    known = [CELL, replace(CELL, method="FedAvg", mean=0.85), replace(CELL, method="FedCLUP, lam auto", mean=ours)]

    found = cells.rows("softmax", known)

    assert _named(found, "mnist-softmax-4").met is met


def few_schools():
    """Eight clients with lines whose slopes lie around 1, and few noisy rows each."""
    key_x, key_noise, key_slope = jax.random.split(jax.random.key(4), 3)
    x = np.asarray(jax.random.normal(key_x, (8, 24, 1)), float)
    slope = 1 + 0.2 * np.asarray(jax.random.normal(key_slope, (8, 1)), float)
    y = slope * x[..., 0] + np.asarray(jax.random.normal(key_noise, (8, 24)), float)
    client = np.repeat([f"c{k}" for k in range(8)], 24)
    return from_arrays(x.reshape(-1, 1), y.ravel(), client, task="regression", title="few schools")


def test_real_clients_are_held_to_the_better_end_and_listed(monkeypatch, tmp_path):
    monkeypatch.setattr(real, "load", lambda name: few_schools())
    told = []

    rows = real.play_sets((real.Real("school", WorthOptions(num_lams=3)),), tmp_path, told.append)

    assert _named(rows, "school-auto-against-better-end").bar == "at most 0"
    assert pl.read_csv(tmp_path / "school.csv").height == 8
    assert (tmp_path / "school.png").stat().st_size > 1000
    assert any("lam" in line for line in told)


def test_data_that_are_not_there_are_left_out_with_a_line(monkeypatch, tmp_path):
    def missing(*_, **__):
        raise BadFile("it is not here")

    monkeypatch.setattr(real, "load", missing)
    monkeypatch.setattr(mnist, "play_all", missing)
    told = []

    rows = real.play_sets(real.SETS["small"], tmp_path, told.append)
    rows += cells.play_cells(fc.SCALES["small"].mnist, tmp_path, told.append)

    assert rows == []
    assert told == [f"{name}: left out, it is not here" for name in ("school", "heart", "MNIST")]


@pytest.mark.slow
def test_every_section_writes_what_its_picture_needs(monkeypatch, tmp_path):
    monkeypatch.setattr(fc, "LISTED", {0.5: fc.LISTED[0.5]})
    monkeypatch.setattr(fc, "LOGISTIC", World(clients=4, rows=80, dim=2))
    monkeypatch.setattr(fc, "STRETCHED", World(clients=4, rows=30, dim=2))
    monkeypatch.setattr(rounds, "LISTED", {lam: rounds.LISTED[lam] for lam in (1.0, 10.0)})

    rows = [row for section in fc.SECTIONS for row in section(TINY, tmp_path, quiet)]
    pl.DataFrame(
        [
            {"model": "cnn", "digits": d, "method": m, "accuracy": 90.0 + d}
            for d in (2, 4)
            for m in ("alone", "FedCLUP, lam 0.5")
        ]
    ).write_csv(tmp_path / "mnist.csv")
    report.pictures(tmp_path)

    assert len({row.id for row in rows}) == len(rows)
    assert {path.stem for path in tmp_path.glob("*.png")} == {
        "mean",
        "error",
        "rounds",
        "tradeoff",
        "costs",
        "mnist",
    }


@pytest.mark.skipif(not (RESULTS / "summary.json").exists(), reason="the page has no summary yet")
def test_the_summary_of_the_page_has_every_bar_met_or_named():
    rows = json.loads((RESULTS / "summary.json").read_text())
    page = PAGE.read_text()

    assert [row["id"] for row in rows if row["bar"] and not row["met"] and row["id"] not in page] == []
