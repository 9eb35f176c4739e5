"""Whether to federate: the answer fits worlds that are known, and every figure is what it says."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from matplotlib import pyplot as plt

from plures.advise import ENDS, WorthOptions, estimate_worth
from plures.advise.advice_figures import worth_figure
from plures.advise.worth import WAYS
from plures.data import from_arrays, load
from plures.errors import BadData, BadFile, Unsupported
from plures.solvers import Penalized, outlook

PLAIN = WorthOptions(ridge=1e-6)


def federation(radius, *, num=16, rows=60, dim=3, sigma=1.0, shares=(0.4, 0.2, 0.4), seed=0, **options):
    """Regressions whose coefficients scatter by ``radius`` around a common one."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=dim) + radius / np.sqrt(dim) * rng.normal(size=(num, dim))
    x = rng.normal(size=(num, rows, dim))
    y = np.einsum("nrd,nd->nr", x, truth) + sigma * rng.normal(size=(num, rows))
    y += radius / np.sqrt(dim) * rng.normal(size=(num, 1))  # intercepts scatter as slopes do
    names = np.repeat([f"c{k:02d}" for k in range(num)], rows)
    return from_arrays(
        x.reshape(-1, dim), y.reshape(-1).astype(np.float32), names, task="regression", shares=shares, **options
    )


@pytest.fixture(scope="module")
def between():
    return estimate_worth(federation(0.45), PLAIN)


@pytest.mark.parametrize(("radius", "verdict"), [(0.0, "global"), (0.45, "yes"), (30.0, "alone")])
def test_the_answer_follows_from_how_clients_differ(radius, verdict):
    worth = estimate_worth(federation(radius), PLAIN)

    assert worth.verdict == verdict
    start = {"global": "one model for all", "yes": "yes: federate", "alone": "no: train alone"}[verdict]
    assert worth.sentences[0].startswith(start)
    if verdict != "yes":
        assert worth.rival == worth.rival_by_test == verdict


def test_in_between_penalized_models_beat_both_ends(between):
    for end in ENDS:
        assert between.against("auto", end).high < 0
    assert between.against("auto", "alone").mean == pytest.approx(
        (between.test["auto"] - between.test["alone"]).mean()
    )
    assert "a clear gain" in " ".join(between.sentences)


def test_losses_are_those_of_the_models_on_rows_of_their_own(between):
    """Half the squared error is the loss, and the root of twice the loss the score."""
    for way in WAYS:
        np.testing.assert_allclose(between.scores[way], np.sqrt(2 * between.test[way]))
    chosen = between.validated
    assert chosen.losses[chosen.place].mean() == pytest.approx(between.valid["valid"].mean())
    assert chosen.losses[chosen.place].mean() == chosen.losses.mean(1).min()


def test_alone_is_least_squares_of_each_client_and_global_of_all(between):
    train, test = (between.rows.parts[split] for split in ("train", "test"))
    tables = [np.c_[table, np.ones(len(table))] for table in train.tables]
    pooled = np.linalg.lstsq(np.concatenate(tables), np.concatenate(train.targets), rcond=None)[0]
    own = np.linalg.lstsq(tables[3], train.targets[3], rcond=None)[0]
    fresh = np.c_[test.tables[3], np.ones(len(test.tables[3]))]

    for way, model in (("alone", own), ("global", pooled)):
        loss = 0.5 * np.square(fresh @ model - test.targets[3]).mean()
        assert between.test[way][3] == pytest.approx(loss, rel=1e-4)


def test_the_table_tells_every_client(between):
    table = between.clients_table

    assert table.height == 16
    np.testing.assert_allclose(table["gain_over_alone"], table["loss_alone"] - table["loss_auto"])
    np.testing.assert_allclose(table["gain_over_global"], table["loss_global"] - table["loss_auto"])
    np.testing.assert_allclose(
        table["predicted_gain_over_alone"], table["predicted_alone"] - table["predicted_auto"]
    )
    gaining = int((table["gain_over_alone"] > 0).sum())
    assert "16 predicted" in between.sentences[-1]
    assert f"{gaining} of 16 gain over training alone" in between.sentences[-1]


def test_files_hold_the_result(between, tmp_path):
    between.save(tmp_path)

    facts = json.loads((tmp_path / "summary.json").read_text())
    assert facts == json.loads(json.dumps(between.to_dict()))
    assert facts["verdict"] == "yes"
    assert facts["ways"]["auto"]["test_loss"] == pytest.approx(between.test["auto"].mean())
    assert pl.read_csv(tmp_path / "clients.csv").columns == between.clients_table.columns
    path = pl.read_csv(tmp_path / "path.csv")
    assert path["valid_loss"].min() == pytest.approx(between.valid["valid"].mean())


def test_clients_without_valid_rows_hold_some_out():
    worth = estimate_worth(federation(0.45, shares=(0.6, 0.0, 0.4)), WorthOptions(valid_share=0.25))

    assert worth.held_out == 16
    assert set(worth.rows.parts["train"].counts) == {27}
    assert set(worth.rows.parts["valid"].counts) == {9}
    rows = np.concatenate([worth.rows.parts[split].tables[0] for split in ("train", "valid")])
    assert len(np.unique(rows, axis=0)) == 36


def test_a_client_without_test_rows_is_left_out_and_named():
    whole = federation(0.5, num=3)
    split = np.where(np.arange(60) < 24, 0, np.where(np.arange(60) < 36, 1, 2))
    none = np.where(split == 2, 0, split)
    owner = np.repeat(list("abc"), 60)

    worth = estimate_worth(
        from_arrays(whole.x, whole.y, owner, task="regression", split=np.r_[split, none, split]),
        WorthOptions(ridge=1e-6),
    )

    assert worth.rows.names == ("a", "c")
    assert worth.rows.left_out == ("b",)
    assert worth.to_dict()["left_out"] == ["b"]


def uneven(radius, *, num=4):
    """The first client has a fifth of the others' rows."""
    whole = federation(radius, num=num)
    kept = np.concatenate([np.arange(60 * k, 60 * k + (60 if k else 12)) for k in range(num)])
    owner = np.repeat([f"c{k}" for k in range(num)], 60)[kept]
    return from_arrays(whole.x[kept], whole.y[kept], owner, task="regression", shares=(0.4, 0.2, 0.4))


def test_predictions_for_one_lam_are_not_those_for_own_lams():
    worth = estimate_worth(uneven(0.45, num=16), PLAIN)

    models = Penalized(worth.clients).solve([worth.degree.lam]).own[0]
    told = worth.clients.counts / worth.degree.dispersion
    one, each = (
        outlook(worth.clients, worth.degree, models, worth.lams[way], weights=weights).penalized
        for way, weights in (("auto", None), ("auto each", told))
    )
    table = worth.clients_table
    assert abs(one[0] - each[0]) > 0.01 * one[0]
    np.testing.assert_allclose(table["predicted_auto"], one, rtol=1e-4)
    np.testing.assert_allclose(table["predicted_auto_each"], each, rtol=1e-4)
    np.testing.assert_allclose(
        table["predicted_gain_over_global"], table["predicted_global"] - table["predicted_auto_each"]
    )
    assert worth.to_dict()["predicted_excess_loss"]["auto"] == pytest.approx(table["predicted_auto"].mean())
    assert worth.auto == "auto each"
    assert f"predicted excess loss {table['predicted_auto_each'].mean():.3g}" in worth.sentences[0]


def test_weights_by_examples_give_the_pooled_model():
    """One client has fewer rows than the others: only by examples is the global model that of all rows."""
    worth = estimate_worth(uneven(1.0), WorthOptions(ridge=1e-6, weighting="examples"))

    train, test = (worth.rows.parts[split] for split in ("train", "test"))
    tables = [np.c_[table, np.ones(len(table))] for table in train.tables]
    pooled = np.linalg.lstsq(np.concatenate(tables), np.concatenate(train.targets), rcond=None)[0]
    fresh = np.c_[test.tables[0], np.ones(len(test.tables[0]))]
    assert worth.test["global"][0] == pytest.approx(
        0.5 * np.square(fresh @ pooled - test.targets[0]).mean(), rel=1e-4
    )


@pytest.mark.parametrize("gain", [0.0, 0.2])
def test_where_valid_rows_are_clearly_against_auto_all_answers_are_theirs(between, gain, drawn):
    """Valid rows' own lam is advised where it clearly beats the rival, and else the rival."""
    level, steps = between.valid[between.rival], np.linspace(0.1, 0.3, 16)
    losses = {**between.valid, "auto": level + steps, "valid": level - gain * steps + (gain == 0) * (steps - 0.2)}

    wrong = replace(between, valid=losses)

    verdict = "yes" if gain else between.rival
    head = {
        "yes": f"yes: federate, and keep a model each with lam = {between.validated.lam:.3g}",
        "alone": "no: train alone",
        "global": "one model for all is about as good as it gets",
    }[verdict]
    assert between.doubt is None
    assert wrong.doubt.mean == pytest.approx(0.2)
    assert wrong.to_dict()["verdict"] == wrong.verdict == verdict
    assert wrong.sentences[0].startswith(f"{head}; this is by valid rows, which speak clearly against lam =")
    assert drawn(wrong).get_suptitle() == head
    assert wrong.to_dict()["valid_rows_disagree"]
    assert f"on test rows lam = {wrong.lams['valid' if gain else 'auto'][0]:.3g} is at" in "".join(wrong.sentences)


@pytest.fixture
def drawn():
    """The picture of a result, thrown away after the test."""
    yield worth_figure
    plt.close("all")


def test_few_clients_are_said_to_tell_little():
    few = estimate_worth(uneven(0.6), PLAIN)
    level = few.valid[few.rival] + np.array([0.1, 0.2, 0.1, 0.2])

    few = replace(few, valid={**few.valid, "auto": level, "auto each": level})

    assert few.doubt is not None
    assert few.sentences[0].endswith("as far as 4 clients can tell")


def test_a_place_in_the_picture_is_one_client(between, drawn):
    right = drawn(between).axes[1]

    alone, shared = (line.get_ydata() for line in right.lines if len(line.get_ydata()) == 16)
    table = between.clients_table.sort("gain_over_alone", descending=True)
    np.testing.assert_allclose(alone, table["gain_over_alone"])
    np.testing.assert_allclose(shared, table["gain_over_global"])
    assert right.get_xlabel() == "clients, sorted by their gain over training alone"
    ticks = right.get_xticks()
    assert len(ticks) > 2
    assert all(tick == round(tick) and 1 <= tick <= 16 for tick in ticks)


def test_it_is_said_what_the_interval_of_lam_assumes(between):
    assert (
        f"if models scatter alike in every direction with 95 % probability between {between.degree.low:.3g}"
        in (between.sentences[1])
    )


def test_one_number_of_evidence_is_not_several(between):
    scarce = replace(between, degree=replace(between.degree, freedom=1.2))

    assert "(1 number of evidence)" in scarce.sentences[1]


@pytest.mark.parametrize(("size", "axes", "fits"), [(1.0, None, True), (3.0, None, False), (1.0, 2, False)])
def test_it_is_said_whether_lam_fits_the_columns_as_they_come(size, axes, fits):
    whole = federation(0.45, rows=240)
    owner = np.repeat([f"c{k:02d}" for k in range(16)], 240)
    other = from_arrays(size * whole.x, whole.y, owner, task="regression", shares=(0.4, 0.2, 0.4))

    worth = estimate_worth(other, WorthOptions(ridge=1e-6, axes=axes))

    assert worth.rows.as_given == fits
    start = "lam is for principal axes of columns" if axes else "lam is for columns"
    assert worth.sentences[2].startswith(
        f"{start} on one scale" + (", as these are" if fits else "; these are not")
    )


def test_long_work_says_where_it_is():
    heard = []

    estimate_worth(federation(0.45, num=3), WorthOptions(num_lams=5), heard.append)

    assert [stage.split(":")[0] for stage in heard] == ["families", "statistics", "path", "valid rows, test rows"]


def test_a_rival_that_test_rows_deny_is_named(between):
    other = {"alone": "global", "global": "alone"}[between.rival_by_test]
    better = {**between.valid, other: between.valid[other] - 1e3}

    torn = replace(between, valid=better)

    assert (torn.rival, torn.rival_by_test) == (other, between.rival_by_test)
    assert torn.against("auto").mean == pytest.approx((between.test["auto"] - between.test[other]).mean())
    assert "but by test rows it is" in torn.sentences[-2]


def test_two_classes_are_a_logistic_model_and_more_a_multinomial_one():
    rng = np.random.default_rng(2)
    x, owner = rng.normal(size=(160, 2)), np.repeat(list("abcd"), 40)
    two = from_arrays(x, (x[:, 0] + rng.normal(size=160) > 0).astype(int), owner, num_classes=2)
    three = from_arrays(x, np.digitize(x[:, 0] + rng.normal(size=160), [-0.5, 0.5]), owner, num_classes=3)

    assert estimate_worth(two, WorthOptions()).clients.loss.name == "logistic"
    worth = estimate_worth(three, WorthOptions())
    assert worth.clients.loss.name == "multinomial"
    assert worth.metric == "accuracy"
    assert np.isfinite(worth.outlook.penalized).all()


def test_what_cannot_be_answered_is_refused():
    with pytest.raises(Unsupported, match="linear models of a density task cannot be compared"):
        estimate_worth(load("density"), WorthOptions())
    with pytest.raises(BadData, match="1 client has training and test rows; two or more are needed"):
        estimate_worth(federation(0.1, num=1), WorthOptions())
    with pytest.raises(BadData, match=r"no client has test rows, .* as --shares 0.6,0.2,0.2 says"):
        estimate_worth(federation(0.1, shares=(0.8, 0.2, 0.0)), WorthOptions())
    with pytest.raises(Unsupported, match="these clients have no input columns"):
        estimate_worth(load("mean_estimation"), WorthOptions())


@pytest.mark.parametrize("name", ["school", "heart"])
def test_on_real_data_auto_is_at_least_as_good_as_the_better_end(name):
    try:
        federation = load(name)
    except BadFile:
        pytest.skip("the data sets are not here")

    worth = estimate_worth(federation, WorthOptions())

    assert worth.against("auto", worth.rival).mean < 0
    assert worth.against("auto", worth.rival_by_test).mean < 0
