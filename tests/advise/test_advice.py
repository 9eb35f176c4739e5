"""All advice is one kind of result: a verdict, sentences, tables and facts, printed, drawn and written alike."""

import io
import json

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from sweeps import curve, made

from plures.advise import (
    DECISIONS,
    FAMILIES,
    Advice,
    WorthOptions,
    advise,
    estimate_worth,
    fuse_clients,
)
from plures.advise.advice import has_bounds, is_noise, mean_interval
from plures.advise.advice_tables import advice_tables
from plures.advise.choice import Candidate
from plures.advise.decisions import decide_between
from plures.advise.preparation import fit_scale, flat_table, principal_axes
from plures.data import load

WORLD = "linear_clusters:num_clients=6,num_groups=2,rows=20"


def decisions():
    """Two clients, of which the second gains by staying alone."""
    losses = {"global": [[[1.0, 1.0]], [[2.0, 2.0]]], "alone": [[[1.5, 1.5]], [[1.0, 1.0]]]}
    options = [Candidate(name, name, *(2 * [[np.array(rows) for rows in each]])) for name, each in losses.items()]
    names = {"uid": [0, 1], "name": ["a", "b"], "seen": [True, True], "valid_rows": [2, 2], "test_rows": [2, 2]}
    return decide_between(options, pl.DataFrame(names))


KINDS = {
    "advise": lambda: advise(load(WORLD)),
    "worth": lambda: estimate_worth(load(WORLD), WorthOptions(num_lams=3)),
    "decide": decisions,
    "fuse": lambda: fuse_clients(load(WORLD)),
    "tradeoff": lambda: made(
        curve("1", [0.9, 0.3]), curve("2", [0.9, 0.5]), curve("fedavg", [0.8, 0.6], kind="end")
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def advice(request):
    return KINDS[request.param]()


def test_every_kind_is_printed_drawn_and_written_in_one_way(advice, tmp_path):
    screen = Console(file=io.StringIO(), width=200)

    files = advice.save(tmp_path)
    for part in advice_tables(advice):
        screen.print(part)

    assert isinstance(advice, Advice)
    assert [file.stem for file in files[: len(advice.tables)]] == list(advice.tables)
    assert all(file.stat().st_size for file in files)
    assert len(screen.file.getvalue().splitlines()) > 3


def test_every_summary_has_the_question_the_verdict_and_what_is_said(advice, tmp_path):
    advice.save(tmp_path)

    facts = json.loads((tmp_path / advice.SUMMARY).read_text())
    assert facts["question"].endswith("?")
    assert facts["verdict"] == advice.verdict
    assert facts["said"] == advice.sentences
    assert set(advice.facts) < set(facts)


def test_what_clients_decide_for_are_families():
    assert set(DECISIONS) <= set(FAMILIES)


def test_one_client_has_a_mean_and_no_interval():
    one, several = mean_interval(np.array([[2.0], [4.0]])), mean_interval(np.array([1.0, 2.0, 3.0]))

    assert (one.mean, has_bounds(one), is_noise(one)) == (3.0, False, False)
    assert (several.mean, has_bounds(several), is_noise(several)) == (2.0, True, False)


def test_columns_are_put_on_one_scale_and_constant_ones_stay():
    table = np.array([[1.0, 5.0, 0.0], [3.0, 5.0, 4.0]])

    np.testing.assert_allclose(fit_scale(table, constant=1e-12)(table), [[-1, 0, -1], [1, 0, 1]])


def test_columns_that_hardly_change_are_not_blown_up():
    """Spreads of 1 and 0.01: their root mean square is about 0.707, of which a fifth is the least."""
    table = np.array([[-1.0, -0.01], [1.0, 0.01]])

    floor = 0.2 * np.sqrt((1 + 1e-4) / 2)
    np.testing.assert_allclose(fit_scale(table, constant=1e-9, floor=0.2)(table), table / [1.0, floor])


def test_the_first_principal_axis_is_that_of_the_largest_variance():
    variances, axes = principal_axes(np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), 1)

    np.testing.assert_allclose(variances, [2.0, 0.5])
    np.testing.assert_allclose(np.abs(axes), [[1.0], [0.0]])


def test_images_are_tables():
    assert flat_table(np.zeros((3, 2, 4))).shape == (3, 8)
    assert flat_table(np.zeros((3, 0))).shape == (3, 0)
