"""The reproduction of LG-Mix: how settings are chosen, paired rows and their bars, tables, what is left out."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from papers.common.cells import save_cells
from papers.common.registry import REPRODUCTIONS
from papers.lgmix import cells
from papers.lgmix import rows as lines
from papers.lgmix import run as lg
from papers.lgmix.cells import ALONE, FEDAVG, FEDBN, LGMIX, Cell, Setting
from plures.data import load
from plures.errors import BadFile

HALF = "LG-Mix, lam 0.5"
RESULTS = Path(__file__).parents[1] / "results"
PAGE = Path(__file__).parents[3] / "docs" / "lgmix.md"
CELL = Cell("shift-18", ALONE, 0, 0.1, "local_only", [0.8, 0.6], [0, 1], 0.7, 1.0, 2.0)
PART = cells.shifted(18, seeds=(0, 1), methods=(ALONE, FEDAVG, FEDBN, LGMIX))


def quiet(text):
    """Hears and says nothing."""


def table(**above):
    """Cells of two seeds: every method lies so many points above 70 % and 50 % of two clients."""
    return [
        replace(CELL, method=method, seed=seed, accuracy=[0.7 + points / 100, 0.5 + points / 100 + seed / 1000])
        for method, points in above.items()
        for seed in (0, 1)
    ]


def four(lgmix, fedbn=5.0):
    """Cells in which FedAvg is 1 point above training alone."""
    return table(**{ALONE: 0.0, FEDAVG: 1.0, FEDBN: fedbn, LGMIX: lgmix})


def test_every_way_has_as_many_settings_to_choose_from():
    for part in (*lg.SCALES["small"], *lg.SCALES["full"]):
        numbers = {len(cells.settings(part, way)) for way in cells.WAYS.values() if not way.follows}

        assert numbers == {len(part.lrs)}


def test_strengths_take_the_place_of_the_outer_step_sizes():
    part = cells.shifted(6, lrs=(1.0, 2.0, 3.0, 4.0))

    found = cells.settings(part, cells.Way(("ditto:lam=0.1", "ditto:lam=1")))

    assert found == [Setting(lr, f"ditto:lam={lam}") for lr in (2.0, 3.0) for lam in ("0.1", "1")]


def test_those_that_follow_come_after_their_leader():
    order = list(cells.WAYS)

    assert all(order.index(way.follows) < order.index(name) for name, way in cells.WAYS.items() if way.follows)


@pytest.mark.slow
def test_valid_rows_of_the_first_seed_choose_and_test_rows_do_not(monkeypatch):
    """The setting that is best on test rows is worst on valid ones."""
    part = cells.shifted(18, seeds=(0, 1), lrs=(0.1, 0.2), methods=(LGMIX, HALF))
    played = []

    def fake(name, setting, method, federation, part):
        played.append((name[1], name[2], setting.lr))
        good = setting.lr == 0.1
        return Cell(*name, *setting, [0.2 if good else 0.9], [0], 0.9 if good else 0.2, 1.0, 1.0)

    monkeypatch.setattr(cells, "play", fake)
    monkeypatch.setattr(cells, "build", lambda *_: None)

    found = list(cells.play_all([part]))

    assert [(cell.method, cell.seed, cell.lr) for cell in found] == [
        (LGMIX, 0, 0.1),
        (LGMIX, 1, 0.1),
        (HALF, 0, 0.1),
        (HALF, 1, 0.1),
    ]
    assert found[0].tried == [[0.1, "lgmix", 0.9], [0.2, "lgmix", 0.2]]
    assert played == [(LGMIX, 0, 0.1), (LGMIX, 0, 0.2), (LGMIX, 1, 0.1), (HALF, 0, 0.1), (HALF, 1, 0.1)]


def test_known_cells_are_not_played_and_their_choice_is_followed(monkeypatch, tmp_path):
    part = cells.shifted(18, seeds=(0,), lrs=(0.1, 0.2), methods=(LGMIX, HALF))
    save_cells(tmp_path / "cells.jsonl", [replace(CELL, method=LGMIX, lr=0.2, text="lgmix")])
    monkeypatch.setattr(
        cells, "play", lambda name, setting, *_: Cell(*name, *setting, [0.5, 0.5], [0, 1], 0.5, 1.0, 1.0)
    )
    monkeypatch.setattr(cells, "build", lambda *_: None)

    found = lg.played([part], tmp_path, quiet)

    assert [(cell.method, cell.lr) for cell in found] == [(LGMIX, 0.2), (HALF, 0.2)]
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_a_run_tells_every_client_in_the_order_of_domains():
    part = cells.shifted(6, rounds=2, every=1)
    federation = load(part.data.format(seed=3))
    setting = Setting(0.1, "lgmix")
    method = cells.build(part, cells.WAYS[LGMIX], setting, cells.build_model(part.model, federation))

    cell = cells.play(("shift-6", LGMIX, 3), setting, method, federation, part)

    assert cell.domain == [0, 1, 2, 3, 4, 5]
    assert [step["round"] for step in cell.path] == [1, 2]
    assert all(len(step[name]) == 6 for step in cell.path for name in cells.TOLD)
    # In the first round both models are the same, and in the same mode: lam is a half.
    assert cell.path[0]["lam"] == pytest.approx([0.5] * 6, abs=0.05)
    assert np.unique(federation.count.sum(1)).max() - federation.count.sum(1).min() <= 1


def test_differences_are_paired_over_clients_and_seeds():
    found = lines.paired(four(3.0), "shift-18", LGMIX, FEDAVG)

    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize(("lgmix", "met"), [(3.0, {True}), (0.5, {False, True}), (-2.0, {False})])
def test_lgmix_has_to_beat_both_ends_where_it_decides(lgmix, met):
    rows = lines.rows([PART], four(lgmix))

    held = {row.id: row.met for row in rows if row.bar is not None}

    assert len(held) == 4
    assert {held[f"shift-18-lg-mix-against-{end}"] for end in ("fedavg", "alone")} == met
    assert held["shift-18-fedbn-against-alone"]


def test_an_interval_that_holds_zero_misses_the_bar():
    found = four(3.0)
    found = [replace(one, accuracy=[0.9, 0.45]) if one.method == LGMIX else one for one in found]

    row = next(row for row in lines.rows([PART], found) if row.id == "shift-18-lg-mix-against-alone")

    assert row.ours > 0
    assert row.met is False


def test_other_federations_have_no_bar():
    part = replace(PART, name="shift-6")
    found = [replace(one, part="shift-6") for one in four(-9.0)]

    assert all(row.bar is None for row in lines.rows([part], found))


def test_the_lead_is_over_the_best_other_method_and_stands_beside_the_published_one():
    behind, ahead = ({row.id: row for row in lines.rows([PART], four(3.0, fedbn=one))} for one in (5.0, 2.0))

    assert [rows["largest-lead"].ours for rows in (behind, ahead)] == pytest.approx([-2.0, 1.0])
    assert [rows["share-best"].ours for rows in (behind, ahead)] == [0.0, 1.0]
    assert ahead["largest-lead"].published == 5.01


def test_a_method_without_all_seeds_is_not_shown():
    found = [one for one in four(3.0) if (one.method, one.seed) != (FEDBN, 1)]

    assert "shift-18-fedbn" not in {row.id for row in lines.rows([PART], found)}


def test_tables_hold_means_differences_clients_and_rounds(tmp_path):
    step = {
        "round": 3,
        "lam": [0.5, 0.6],
        "trace_own": [1.0, 2.0],
        "trace_global": [1.0, 1.0],
        "cosine": [0.1, 0.2],
    }
    found = [replace(one, path=[step]) if one.method == LGMIX else one for one in four(3.0)]

    lines.write_tables([PART], found, tmp_path)

    read = {path.stem: pl.read_csv(path) for path in tmp_path.glob("*.csv")}
    assert set(read) == {"accuracy", "differences", "clients", "rounds"}
    mean = read["accuracy"].filter(pl.col("method") == LGMIX)["accuracy"]
    assert mean.to_list() == pytest.approx([63.025])  # of 73, 53, 73 and 53.1
    assert read["rounds"]["domain"].to_list() == ["invert", "blur"]
    assert read["rounds"]["lam"].to_list() == [0.5, 0.6]
    assert read["clients"].height == 16


def test_data_that_are_not_there_are_left_out_with_a_line(monkeypatch, tmp_path):
    def missing(*_, **__):
        raise BadFile("it is not here")

    monkeypatch.setattr(cells, "load", missing)
    told = []

    assert lg.played([cells.people()], tmp_path, told.append) == []
    assert told == ["HAR, 30 people: left out, it is not here"]


def test_it_is_a_reproduction():
    assert REPRODUCTIONS["lgmix"].factory is lg.lgmix
    assert {part.name for part in lg.SCALES["small"]} & set(lines.BARRED) == {"shift-18"}


@pytest.mark.skipif(not (RESULTS / "summary.json").exists(), reason="the page has no summary yet")
def test_the_summary_of_the_page_has_every_bar_met_or_named():
    rows = json.loads((RESULTS / "summary.json").read_text())
    page = PAGE.read_text()

    assert [row["id"] for row in rows if row["bar"] and not row["met"] and row["id"] not in page] == []
