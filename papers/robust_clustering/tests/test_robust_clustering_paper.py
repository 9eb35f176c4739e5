"""The reproduction of robust clustering: its recursions against algebra, its bars, its tables and pictures."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from papers.common.cells import save_cells
from papers.common.reproduce import reproduce
from papers.robust_clustering import blobs, mnist, synthetic
from papers.robust_clustering import cells as tables
from papers.robust_clustering import figures as robust
from papers.robust_clustering import run as rc
from plures.data.worlds.known_optima import cube_regression
from plures.errors import BadFile

RESULTS = Path(__file__).parents[1] / "results"
PAGE = Path(__file__).parents[3] / "docs" / "robust-clustering.md"
FOUND, MOMENTA = "Federated-Clustering, mean", "Momentum-Clustering, mean"
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
        gradients = np.array([x.T @ (x @ own - y) / 9 for (x, y), own in zip(rows, w, strict=True)])
        v = np.array([gradients[owners == own].mean(0) for own in owners])
        b = v if b is None else (1 - momentum) * v + momentum * b
        w = w - lr * b
    return np.linalg.norm(w - world.truth, axis=1).mean()


@pytest.mark.slow
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


@pytest.mark.slow
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
        ([1.01, 1.08], [0, 2], False),
        ([1.0, 1.03], [0, 2], True),
        ([1.0, np.nan], [0, 0], False),
        ([0.95, 0.95], [1, 1], False),
    ],
    ids=["fine", "too far", "one draw a little too far", "broken", "better than it can be"],
)
def test_enough_inner_rounds_are_as_good_as_known_clusters_in_the_mean(enough, strangers, met):
    panel, found = ends()
    found[rc._inner(80)] = found["known clusters"] * np.array(enough)

    rows = rc._enough_rows(panel, found, np.array(strangers))

    assert rows[0].met is met
    assert len(rows) == 1 + len({one > 0 for one in strangers})
    assert all(row.bar is None for row in rows[1:])


@pytest.mark.slow
def test_strangers_are_counted_by_rounds(world):
    """Keeping everybody is keeping strangers in all rounds; keeping a group's size of the nearest, in none."""
    starts = synthetic.near_truth(world, 3)
    everybody = synthetic.clustering(replace(PANEL, num_groups=1, size=6), 3)

    assert synthetic.strangers(everybody, world, starts, 3, rounds=3) == 3
    assert synthetic.strangers(synthetic.clustering(PANEL, 30), world, starts, 3, rounds=3) == 0


@pytest.mark.slow
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


def played(method, attack="none", seed=0, mean=0.9, part="table", curve=(0.5, 0.9), recovery=None):
    return mnist.Cell(part, method, attack, seed, mean, mean - 0.05, recovery, tuple(curve), 100.0, 1.0)


def test_of_cells_that_were_played_twice_the_last_is_read(tmp_path):
    file = tmp_path / "cells.jsonl"

    save_cells(file, [played(FOUND, mean=0.1), played(MOMENTA)])
    save_cells(file, [played(FOUND, mean=0.8)])

    assert {cell.method: cell.mean for cell in mnist.loaded(file)} == {FOUND: 0.8, MOMENTA: 0.9}


def test_a_damaged_line_is_named(tmp_path):
    file = tmp_path / "cells.jsonl"
    save_cells(file, [played(FOUND)])
    file.write_text(file.read_text() + '{"part": "table"}\n')

    with pytest.raises(BadFile, match="line 2, is no cell"):
        mnist.loaded(file)


@pytest.fixture
def quick(monkeypatch):
    """Runs that cost nothing, with a note of what was played; no data are opened."""
    asked = []

    def play(part, name, method, federation, attack, seed, rounds, every):
        asked.append((name, attack, seed))
        return played(name, attack, seed, part=part)

    monkeypatch.setattr(mnist, "play", play)
    monkeypatch.setattr(mnist, "dealt", lambda *_, **__: None)
    return asked


DIGITS = {
    "private label": mnist.Part(mnist.Scale(8, (4, 2, 2), 2, (0,)), ("alone",)),
    "attackers": mnist.Part(mnist.Scale(10, (4, 2, 2), 2, (0, 1)), ("FedAvg",), ("sign_flip",)),
    "table": mnist.Part(mnist.Scale(10, (4, 2, 2), 2, (0,)), ("alone", FOUND), ("none", "ipm")),
}
SMALL = rc.Scale(1, 10, (10,), 0, 0, 4, digits=DIGITS)


def test_every_cell_is_played_once_and_kept(quick, tmp_path):
    """Who trains alone uploads nothing: it is played without attackers only."""
    save_cells(tmp_path / "cells.jsonl", [played("FedAvg", "sign_flip", 1, part="attackers")])
    said = []

    first = rc._digits(SMALL, tmp_path, said.append)
    again = rc._digits(SMALL, tmp_path, said.append)

    table = [("alone", "none", 0), (FOUND, "none", 0), (FOUND, "ipm", 0)]
    assert quick == [("alone", "none", 0), ("FedAvg", "sign_flip", 0), *table]
    assert first == again
    assert len(mnist.loaded(tmp_path / "cells.jsonl")) == 6
    assert said[0] == "digits: 1 cells read from cells.jsonl"


def test_without_data_one_line_says_so_and_the_row_is_unmet(quick, monkeypatch, tmp_path):
    def missing(*_, **__):
        raise BadFile("mnist_by_writer.npz is not there; set PLURES_DATA")

    monkeypatch.setattr(mnist, "dealt", missing)
    said = []

    rows = rc._digits(SMALL, tmp_path, said.append)

    assert said == ["digits: mnist_by_writer.npz is not there; set PLURES_DATA"]
    assert [row.met for row in rows] == [False]


@pytest.mark.parametrize("scale", ["small", "full"])
def test_parts_name_methods_and_attacks_that_there_are(scale):
    for name, part in mnist.PARTS[scale].items():
        assert set(part.methods or ()) <= set(mnist.methods_of(name, part.scale.clients))
        assert set(part.attacks or ()) <= set(mnist.ATTACKS)


def test_losses_are_over_the_seeds_that_both_runs_have():
    cells = [played(FOUND, "none", 0, 0.9), played(FOUND, "none", 1, 0.8)]
    cells += [played(FOUND, "ipm", 1, 0.7), played(FOUND, "edge", 5, 0.7), played("alone"), played("alone", "ipm")]

    table = tables.attack_table(cells)

    lines = {(row["method"], row["attack"]): row for row in table.iter_rows(named=True)}
    assert list(lines) == [(FOUND, "none"), (FOUND, "ipm"), (FOUND, "edge"), ("alone", "none")]
    assert lines[FOUND, "none"]["accuracy"] == pytest.approx(85)
    assert lines[FOUND, "none"]["seeds"] == 2
    assert lines[FOUND, "ipm"]["loss"] == pytest.approx(10)
    assert lines[FOUND, "edge"]["loss"] is None


def under_attack(losses, method=FOUND, seeds=(0, 1)):
    """A method's cells without attackers, at 90 %, and under attacks that take so many points."""
    free = [played(method, "none", seed) for seed in seeds]
    return free + [played(method, name, seed, 0.9 - by / 100) for name, by in losses.items() for seed in seeds]


FINE = dict.fromkeys(tables.HELD, 0.5)


@pytest.mark.parametrize(
    ("cells", "unmet"),
    [
        (under_attack(FINE), []),
        (under_attack({**FINE, "ipm": 1.2}), ["attack-ipm", "attack-all"]),
        (under_attack({**FINE, "ipm": 5}) + under_attack({**FINE, "alie": 5}, MOMENTA), ["attack-all"]),
        (
            under_attack({**FINE, "ipm": 5}) + under_attack(FINE, MOMENTA, seeds=(0,)),
            ["attack-ipm", "attack-all"],
        ),
        (under_attack({**FINE, "ipm": 5}) + under_attack(FINE, "known groups, mean"), ["attack-ipm", "attack-all"]),
        (under_attack({"large_noise": 0.5}), ["attack-sign-flip", "attack-ipm", "attack-alie", "attack-all"]),
        ([played("alone")], ["attack-large-noise", "attack-sign-flip", "attack-ipm", "attack-alie", "attack-all"]),
    ],
    ids=["fine", "too much", "one for each", "fewer seeds", "told the groups", "not played", "nobody"],
)
def test_the_best_personalized_method_may_lose_a_point(cells, unmet):
    rows = tables.attack_rows(cells, held=True)

    assert [row.id for row in rows if not row.met] == unmet
    assert len(rows) == 5


def test_rows_name_the_best_method_under_each_attack():
    cells = under_attack({**FINE, "ipm": 5}) + under_attack({**FINE, "alie": 0.9, "large_noise": 3}, MOMENTA)

    rows = {row.id: row for row in tables.attack_rows(cells, held=True)}

    assert MOMENTA in rows["attack-ipm"].what
    assert FOUND in rows["attack-alie"].what
    assert f"{MOMENTA} under large_noise" in rows["attack-all"].what
    assert rows["attack-all"].ours == pytest.approx(3)


def test_small_runs_are_held_to_no_bar():
    rows = tables.attack_rows(under_attack({"ipm": 50}), held=False)

    assert [row.id for row in rows] == ["attack-ipm", "attack-all"]
    assert all(row.bar is None for row in rows)


def test_tables_of_the_digits_are_written_and_drawn(tmp_path):
    cells = [*under_attack(FINE), played("HypCluster, mean", recovery=0.5), played("alone")]
    cells += [played("FedAvg", attack, part="attackers") for attack in ("none", "ipm")]
    cells += [played("FedAvg", part=kind, seed=seed) for kind in mnist.KINDS for seed in (0, 1)]

    rows = tables.write_tables(cells, tmp_path, rounds=10, held=True)
    robust.pictures(tmp_path)

    assert {"private-label-fedavg", "rotation-fedavg", "attackers-ipm-fedavg", "attack-all"} <= {
        row.id for row in rows
    }
    assert pl.read_csv(tmp_path / "groups.csv")["seeds"].to_list() == [2, 2]
    assert pl.read_csv(tmp_path / "attackers.csv")["round"].to_list() == [5, 10, 5, 10]
    for name in ("attackers", "attacks", "attacks-worst", "attacks-clusters"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000


def test_methods_without_clusters_have_no_picture_of_them(tmp_path):
    tables.write_tables([played("FedAvg, mean")], tmp_path, rounds=10, held=False)

    robust.pictures(tmp_path)

    assert {file.name for file in tmp_path.iterdir()} == {"attacks.csv", "attacks.png", "attacks-worst.png"}


def test_parts_that_were_not_played_leave_no_tables(tmp_path):
    rows = tables.write_tables([], tmp_path, rounds=10, held=True)

    assert rows == []
    assert list(tmp_path.iterdir()) == []


def test_the_page_says_what_the_cells_say():
    """Every number of the table of attacks, and every dash; and the table beside it is that of the cells."""
    cells = [cell for cell in mnist.loaded(RESULTS / "cells.jsonl") if cell.part == "table"]
    table = tables.attack_table(cells)

    told = {(row["method"], row["attack"]): f"{row['accuracy']:.1f}" for row in table.iter_rows(named=True)}
    page = PAGE.read_text().split("| accuracy in % |")[1].split("\n\n")[0]
    lines = [[word.strip() for word in line.strip("|").split("|")] for line in page.splitlines()[2:]]
    shown = {(name, at): cell for name, *row in lines for at, cell in zip(robust.SHOWN, row, strict=True)}
    assert {key: cell for key, cell in shown.items() if cell != "-"} == told
    assert table.equals(pl.read_csv(RESULTS / "attacks.csv", schema=table.schema))


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
