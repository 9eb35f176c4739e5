"""The reproduction of robust clustering: its recursions against algebra, its bars, its tables and pictures."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from plures.data.clustered import cube_regression
from plures.report import robust
from plures.reproduce import _robust_blobs as blobs
from plures.reproduce import _robust_synthetic as synthetic
from plures.reproduce import robust_clustering as rc
from plures.study.reproduce import reproduce

PANEL = replace(synthetic.PANELS[0], name="tiny", num_groups=2, size=3, lr=0.05)


@pytest.fixture(scope="module")
def world():
    return synthetic.world_of(PANEL, 3)


@pytest.fixture(scope="module")
def arms():
    return synthetic.arms(PANEL)


def by_hand(world, starts, owners, lr, rounds, momentum=0.9):
    """|w - truth| when clients of one owner share a model: b <- 0.1 v + 0.9 b, b = v at first, w <- w - lr b."""
    federation = world.federation
    rows = [federation.rows_of(name, "train") for name in federation.names]
    w, b = starts.astype(float), None
    for _ in range(rounds):
        slopes = np.array([x.T @ (x @ own - y) / 9 for (x, y), own in zip(rows, w, strict=True)])
        v = np.array([slopes[owners == own].mean(0) for own in owners])
        b = v if b is None else (1 - momentum) * v + momentum * b
        w = w - lr * b
    return np.linalg.norm(w - world.truth, axis=1).mean()


@pytest.mark.parametrize(
    ("name", "owners", "momentum"),
    [
        ("known clusters", [0, 1] * 3, 0.9),
        ("alone", range(6), 0.9),
        ("one for all", [0] * 6, 0.9),
        ("IFCA", [0, 1] * 3, 0),
    ],
)
def test_a_line_of_the_figure_follows_its_recursion(world, arms, name, owners, momentum):
    starts = synthetic.near_truth(world, 3)
    own = starts[world.federation.group]
    first = np.tile(own.mean(0), (6, 1)) if name == "one for all" else own
    lr = {"IFCA": PANEL.lr_ifca, "one for all": PANEL.lr_global}.get(name, PANEL.lr)

    found = synthetic.errors(arms[name], world, starts, 3, 20)

    assert found.shape == (3,)
    assert found[0] == pytest.approx(np.linalg.norm(own - world.truth, axis=1).mean())
    assert found[2] == pytest.approx(by_hand(world, first, np.array(owners), lr, 20, momentum), rel=1e-3)


def test_with_enough_inner_rounds_clusters_need_not_be_known(world, arms):
    starts = synthetic.near_truth(world, 3)

    found = synthetic.errors(synthetic.clustering(PANEL, 30), world, starts, 3, 20)

    np.testing.assert_allclose(found, synthetic.errors(arms["known clusters"], world, starts, 3, 20), rtol=1e-3)


def test_starts_are_near_the_truth_or_the_same_for_all():
    world = cube_regression(num_clients=80, num_groups=40, seed=1)

    near, anywhere = synthetic.near_truth(world, 1), synthetic.anywhere(world, 1)

    # 400 numbers of deviation 0.1.
    assert (near - world.truth[:40]).std() == pytest.approx(0.1, rel=0.2)
    assert (anywhere == anywhere[0]).all()


def test_draws_in_which_groups_share_a_truth_are_set_apart():
    panel = synthetic.PANELS[2]

    found = synthetic.draws(panel, 2), synthetic.draws(panel, 2, apart=False)

    truths = [[len(np.unique(synthetic.world_of(panel, seed).truth, axis=0)) for seed in seeds] for seeds in found]
    assert truths == [[16, 16], [15, 15]]


def test_inner_rounds_on_blobs_follow_the_reference():
    path = blobs.paths(0.5, 40)

    assert len(path) == 50
    found = path[np.array(blobs.LOOKED_AT) - 1]
    np.testing.assert_allclose(found, blobs.REFERENCE[0.5], rtol=0.04)
    assert blobs.ideal(0.5) == pytest.approx(1.49, abs=0.005)


def ends(**changed):
    """Last errors of two draws as the other program has them; some of them changed."""
    panel = synthetic.PANELS[2]
    found = {name: np.full(2, panel.other[name]) for name in synthetic.NAMES}
    return panel, {**found, **changed}


@pytest.mark.parametrize(
    ("changed", "unmet"),
    [
        ({}, []),
        ({"Federated-Clustering": np.array([0.0186, 0.0100])}, ["k16-n4-ten"]),
        ({"alone": np.full(2, 0.3)}, ["k16-n4-alone-near"]),
    ],
    ids=["fine", "ten are enough", "another size"],
)
def test_bars_hold_every_draw_against_known_clusters(changed, unmet):
    rows = rc._panel_rows(*ends(**changed))

    assert [row.id for row in rows if row.bar and not row.met] == unmet
    assert len({row.id for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("enough", "strangers", "met"),
    [
        ([1.01, 0.99], [0, 0], True),
        ([1.01, 1.03], [0, 0], False),
        ([1.01, 1.03], [0, 2], True),
        ([1.0, np.nan], [0, 0], False),
        ([1.0, 1.0], [1, 1], False),
    ],
    ids=["fine", "one draw too far", "too far with strangers", "broken", "strangers in all"],
)
def test_enough_inner_rounds_are_as_good_as_known_clusters_in_every_draw(enough, strangers, met):
    panel, found = ends()
    found[rc._inner(80)] = found["known clusters"] * np.array(enough)

    rows = rc._enough_rows(panel, found, np.array(strangers))

    assert rows[0].met is met
    assert len(rows) == (2 if any(strangers) else 1)


def test_strangers_are_counted_by_rounds(world):
    """Keeping everybody is keeping strangers in all rounds; keeping a group's size of the nearest, in none."""
    starts = synthetic.near_truth(world, 3)
    everybody = synthetic.clustering(replace(PANEL, num_groups=1, size=6), 3)

    assert synthetic.strangers(everybody, world, starts, 3, rounds=3) == 3
    assert synthetic.strangers(synthetic.clustering(PANEL, 30), world, starts, 3, rounds=3) == 0


def test_tables_are_written_and_drawn(tmp_path, monkeypatch):
    """With made-up curves, which are quick, and two kinds of blobs."""
    curve = np.geomspace(0.3, 0.01, 9)
    monkeypatch.setattr(synthetic, "errors", lambda *_: curve)
    monkeypatch.setattr(synthetic, "strangers", lambda *_: 0)
    monkeypatch.setattr(blobs, "DEVIATIONS", (0.5, 4.0))
    monkeypatch.setitem(rc.SCALES, "small", rc.Scale(2, 80, (1, 10, 80), 1, 1, 4))

    rows = reproduce("robust-clustering", out=tmp_path)

    assert {"k4-n4-alone", "k16-n4-enough", "common-start-0", "shared-corner", "blobs-4-50"} <= {
        row.id for row in rows
    }
    assert len(json.loads((tmp_path / "summary.json").read_text())) == len(rows)
    assert pl.read_csv(tmp_path / "regression.csv").height == 3 * 5 * 9
    assert pl.read_csv(tmp_path / "inner.csv").height == 2 * 3 * 2
    for name in ("regression", "inner", "blobs"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_pictures_leave_out_tables_that_are_not_there(tmp_path):
    robust.pictures(tmp_path)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_sixteen_groups_need_more_than_ten_inner_rounds():
    """After 800 rounds, on one draw: as with known clusters after 80 inner rounds, half as good after ten."""
    panel, seed = synthetic.PANELS[2], 1
    world = synthetic.world_of(panel, seed)
    starts = synthetic.near_truth(world, seed)

    known, ten, enough = (
        synthetic.errors(arm, world, starts, seed, 800)[-1]
        for arm in (
            synthetic.arms(panel)["known clusters"],
            synthetic.clustering(panel, 10),
            synthetic.clustering(panel, 80),
        )
    )

    assert enough == pytest.approx(known, rel=0.02)
    assert ten > 1.5 * known
