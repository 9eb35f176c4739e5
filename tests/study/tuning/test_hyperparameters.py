"""Tuning: one budget for every method, draws that do not depend on company, choices by valid rows alone."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import optax
import polars as pl
import pytest

from plures.data import load
from plures.errors import BadData, BadFile, BadValue, UnknownChoice, Unsupported
from plures.method import Phase
from plures.study.tuning import hyperparameters as tuning
from plures.study.tuning.hyperparameters import Rung, rungs_of, tune
from plures.study.tuning.outcomes import Outcome, outcome_of, read_chosen, valid_means, without_test
from plures.study.tuning.search_space import check_range, space_of
from plures.types import Plan

WORLD = load("logistic_clusters", num_clients=4, num_groups=2, rows=20)
PLAN = Plan(epochs=2, batch=None, lr=0.2)
QUICK = {"rounds": 2, "plan": PLAN, "model": "logistic", "executor": "vectorized"}
PLAIN = SimpleNamespace(phases=(Phase(),))


@pytest.fixture
def scored(monkeypatch):
    """Trials that are not run: their outcome follows from the method and the rounds, and they are counted."""

    def use(outcome):
        def pretended(method, reason, runs, tells, run):
            asked.append((method, runs[0].rounds))
            return Outcome(runs[0].rounds, failed=reason) if method is None else outcome(method, runs[0].rounds)

        monkeypatch.setattr(tuning, "outcome_of", pretended)
        return asked

    asked = []
    return use


def by_lr(method, rounds):
    """The smaller the step, the better."""
    return Outcome(rounds, 1 / (1 + method.plan.lr), 0.5)


def trials_of(result, method):
    return result.table.filter(pl.col("method") == method)


@pytest.mark.parametrize(
    ("trials", "rounds", "expected"),
    [
        (8, 60, [Rung(8, 15), Rung(2, 60)]),
        (16, 80, [Rung(16, 5), Rung(4, 20), Rung(2, 80)]),
        (16, 79, [Rung(16, 19), Rung(4, 79)]),
        (4, 20, [Rung(4, 5), Rung(2, 20)]),
        (3, 60, [Rung(3, 60)]),
        (8, 19, [Rung(8, 19)]),
    ],
)
def test_the_best_quarter_goes_on_to_four_times_the_rounds_where_rounds_allow(trials, rounds, expected):
    assert list(rungs_of([PLAIN], trials=trials, rounds=rounds)) == expected


def test_random_search_is_one_rung():
    assert rungs_of([PLAIN], trials=8, rounds=60, strategy="random") == (Rung(8, 60),)


def test_no_rung_is_shorter_than_the_preludes_of_any_method():
    slow = SimpleNamespace(phases=(Phase(rounds=15), Phase()))

    assert rungs_of([PLAIN, slow], trials=8, rounds=60) == (Rung(8, 60),)
    assert rungs_of([PLAIN, slow], trials=8, rounds=64) == (Rung(8, 16), Rung(2, 64))


@pytest.mark.parametrize(("trials", "rounds"), [(3, 60), (8, 19)])
def test_halving_that_is_not_possible_is_refused(trials, rounds):
    with pytest.raises(BadValue, match="4 trials or more and 20 rounds or more"):
        rungs_of([PLAIN], trials=trials, rounds=rounds, strategy="halving")


def test_every_method_has_the_same_trials_and_rounds(scored):
    asked = scored(by_lr)

    result = tune(["local_only", "ditto", "oracle"], WORLD, **{**QUICK, "rounds": 60}, trials=8)

    lengths = [rounds for _, rounds in asked]
    assert lengths == 3 * (8 * [15] + 2 * [60])
    assert result.said[0] == (
        "tuning: each method: 8 trials, 240 rounds (halving: 8 for 15 rounds, then the best 2 for 60); "
        "chosen by the mean over clients of the personal valid accuracy"
    )


def test_halving_goes_on_with_the_best_and_chooses_among_those(scored):
    """Small steps look best after 5 rounds, large ones after 20."""
    scored(lambda method, rounds: Outcome(rounds, method.plan.lr if rounds == 20 else -method.plan.lr, 0.5))

    result = tune(["fedavg"], WORLD, **{**QUICK, "rounds": 20}, trials=8, strategy="halving")

    lrs = sorted(result.table["lr"])
    went_on = result.table.filter(pl.col("rounds") == 20)
    assert sorted(went_on["lr"]) == lrs[:2]
    assert result.chosen["fedavg"] == ("fedavg", lrs[1])
    assert result.table.filter("chosen")["outcome"].to_list() == ["kept"]
    assert result.table["outcome"].to_list().count("dropped") == 6


def test_the_first_trial_is_the_setting_as_given(scored):
    scored(by_lr)

    first = trials_of(tune(["ditto:lam=0.7"], WORLD, **QUICK, trials=3), "ditto:lam=0.7").row(0, named=True)

    assert (first["trial"], first["setting"], first["lr"], first["ditto.lam"]) == (0, "ditto:lam=0.7", 0.2, 0.7)


def test_a_methods_trials_do_not_depend_on_the_others(scored):
    scored(by_lr)

    alone, together = (
        trials_of(tune(methods, WORLD, **QUICK, trials=4), "ditto")
        for methods in (["ditto"], ["fedavg|finetune", "fedavg", "ditto"])
    )

    same = ["setting", "lr", "ditto.lam", "chosen"]
    assert alone.select(same).equals(together.select(same))


def test_methods_have_draws_of_their_own(scored):
    scored(by_lr)

    table = tune(["fedprox:lam=1", "fedprox:lam=2"], WORLD, **QUICK, trials=3).table.filter(pl.col("trial") > 0)

    assert table["lr"].n_unique() == 4


def test_another_seed_draws_others_and_the_same_seed_the_same(scored):
    scored(by_lr)

    first, again, other = (tune(["ditto"], WORLD, **QUICK, trials=4, seed=seed).table for seed in (0, 0, 1))

    assert first.drop("seconds").equals(again.drop("seconds"))
    assert not set(first["lr"][1:]) & set(other["lr"][1:])


def test_draws_spread_over_a_hundredfold_of_steps_and_over_the_declared_degrees(scored):
    scored(by_lr)

    found = tune(["ditto|finetune"], WORLD, **QUICK, trials=60).table[1:]

    assert found["lr"].min() >= 0.02
    assert found["lr"].max() <= 2.0
    assert 20 < (found["lr"] < 0.2).sum() < 40  # evenly on a logarithmic scale
    assert found["ditto.lam"].min() < 0.01 < 1 < found["ditto.lam"].max()
    assert found["finetune.epochs"].to_list() == [int(one) for one in found["finetune.epochs"]]
    assert (
        found["setting"][0]
        == f"ditto:lam={found['ditto.lam'][0]:g}|finetune:epochs={found['finetune.epochs'][0]:g}"
    )


def test_named_ranges_are_kept_to_and_add_options(scored):
    scored(by_lr)
    ranges = {"lr": (0.3, 0.4), "ditto.lam": (5.0, 6.0), "momentum": (0.5, 0.9)}

    found = tune(["ditto", "local_only"], WORLD, **QUICK, trials=5, search=ranges).table.filter(pl.col("trial") > 0)

    mine = found.filter(pl.col("method") == "ditto")
    for name, low, high in [("lr", 0.3, 0.4), ("ditto.lam", 5.0, 6.0), ("ditto.momentum", 0.5, 0.9)]:
        assert mine[name].is_between(low, high).all()
    assert found.filter(pl.col("method") == "local_only")["ditto.lam"].is_null().all()


@pytest.mark.parametrize("text", ["fedclup", "federated_clustering", "hypcluster", "fedbabu", "pdmm"])
def test_options_that_choose_for_themselves_or_count_get_a_range(text):
    spans = [one for one in space_of(text, PLAN, {}) if one.name != "lr"]

    assert len(spans) == 1
    assert 0 < spans[0].low < spans[0].high


def test_refused_values_are_drawn_again_and_counted(scored):
    scored(by_lr)

    result = tune(["apfl"], WORLD, **QUICK, trials=4, search={"apfl.alpha": (0.5, 50.0)})

    again = result.table["redrawn"].sum()
    assert again > 0
    assert result.table["apfl.alpha"].max() <= 1
    assert f"apfl: {again} drawn settings were refused and drawn again" in result.said


def test_a_range_of_refused_values_leaves_failed_trials(scored):
    scored(by_lr)

    result = tune(["apfl"], WORLD, **QUICK, trials=2, search={"apfl.alpha": (2.0, 3.0)})

    assert result.chosen == {"apfl": ("apfl", 0.2)}
    assert result.table["outcome"][1].startswith("alpha must be")
    assert any(line.startswith("apfl: trials that failed: 1 (alpha must be") for line in result.said)


def test_equal_scores_are_told_apart_by_the_loss_and_then_by_the_number(scored):
    scored(lambda method, rounds: Outcome(rounds, 0.5, 0.1 if method.plan.lr > 0.2 else 0.3))

    table = tune(["fedavg"], WORLD, **QUICK, trials=6).table

    assert table.filter("chosen")["trial"].item() == table.filter(pl.col("lr") > 0.2)["trial"].min()


def test_where_less_is_better_the_lowest_score_is_chosen(scored):
    scored(lambda method, rounds: Outcome(rounds, method.plan.lr, 0.0))
    world = load("linear_clusters", num_clients=4, num_groups=2, rows=20)

    table = tune(["fedavg"], world, **{**QUICK, "model": "least_squares"}, trials=5).table

    assert table.filter("chosen")["lr"].item() == table["lr"].min()


def test_the_setting_as_given_stays_if_no_trial_comes_to_an_end(scored):
    scored(lambda method, rounds: Outcome(rounds, failed="diverged"))

    result = tune(["ditto"], WORLD, **QUICK, trials=3)

    assert result.chosen == {"ditto": ("ditto", 0.2)}
    assert result.said[1] == "ditto: as given, since no trial came to a sound end (as given: diverged)"


def test_a_trial_that_failed_does_not_go_on(scored):
    """All fail but the setting as given, so one run is long where two might be."""
    asked = scored(lambda method, rounds: Outcome(rounds, 0.1, 0.5, "" if method.plan.lr == 0.2 else "diverged"))

    result = tune(["fedavg"], WORLD, **{**QUICK, "rounds": 20}, trials=4)

    assert [(method.plan.lr, rounds) for method, rounds in asked if rounds == 20] == [(0.2, 20)]
    assert result.chosen == {"fedavg": ("fedavg", 0.2)}


def test_clients_without_valid_rows_and_liars_do_not_count():
    metrics = {"accuracy": np.array([0.2, np.nan, 0.6, 0.0]), "loss": np.array([1.0, np.nan, 3.0, np.inf])}
    runner = SimpleNamespace(
        everyone=SimpleNamespace(count=np.array([[5, 2, 2], [5, 0, 2], [5, 4, 0], [5, 2, 2]])),
        attackers=np.array([False, False, False, True]),
        method=SimpleNamespace(model=SimpleNamespace(score="accuracy")),
    )
    record = SimpleNamespace(latest=lambda kind, split: SimpleNamespace(metrics=metrics))

    assert valid_means(SimpleNamespace(runner=runner, record=record)) == pytest.approx((0.4, 2.0))


def test_one_client_whose_loss_is_no_number_is_enough_to_diverge():
    runner = SimpleNamespace(
        everyone=SimpleNamespace(count=np.full((2, 3), 4)),
        attackers=np.zeros(2, bool),
        method=SimpleNamespace(model=SimpleNamespace(score="accuracy")),
    )
    metrics = {"accuracy": np.array([1.0, 1.0]), "loss": np.array([0.1, np.nan])}
    record = SimpleNamespace(latest=lambda kind, split: SimpleNamespace(metrics=metrics))

    assert not np.isfinite(valid_means(SimpleNamespace(runner=runner, record=record))).any()


def test_trials_see_no_test_row():
    bare = without_test(WORLD)

    assert bare.count[:, 2].sum() == 0
    assert (bare.count[:, :2] == WORLD.count[:, :2]).all()
    assert (bare.start[:, 2] == WORLD.start[:, 0]).all()


def spoiled(federation):
    """The same with every test row's label turned and its inputs far off."""
    x, y = federation.x.copy(), federation.y.copy()
    for start, count in zip(federation.start[:, 2], federation.count[:, 2], strict=True):
        y[start : start + count] = 1 - y[start : start + count]
        x[start : start + count] = 99.0
    return replace(federation, x=x, y=y)


@pytest.mark.slow
def test_the_choice_is_the_same_whatever_the_test_rows_say():
    first, second = (tune(["fedavg"], one, **QUICK, trials=2) for one in (WORLD, spoiled(WORLD)))

    assert first.chosen == second.chosen
    assert first.table.drop("seconds").equals(second.table.drop("seconds"), null_equal=True)
    assert first.table["valid_loss"].n_unique() == 2


def test_a_trial_that_diverges_never_wins():
    world = load("linear_clusters", num_clients=3, num_groups=1, rows=12)

    result = tune(["fedavg"], world, **{**QUICK, "model": "least_squares"}, trials=2, search={"lr": (1e30, 1e30)})

    assert result.table["outcome"].to_list() == ["kept", "diverged"]
    assert result.chosen == {"fedavg": ("fedavg", 0.2)}
    assert "fedavg: trials that failed: 1 (diverged)" in result.said


def test_a_trial_that_is_refused_while_it_runs_has_failed():
    def refused(settings, tell):
        raise Unsupported("nobody is near anybody")

    found = outcome_of(PLAIN, "", [SimpleNamespace(rounds=3)], [print], refused)

    assert (found.failed, found.score) == ("nobody is near anybody", None)


def test_chosen_methods_are_built_under_the_labels_as_given(scored):
    scored(by_lr)

    result = tune(["ditto", "fedavg"], WORLD, **QUICK, trials=4)

    assert list(result.built) == ["ditto", "fedavg"]
    assert {name: method.plan.lr for name, method in result.built.items()} == {
        name: lr for name, (_, lr) in result.chosen.items()
    }
    assert result.chosen["ditto"][1] == trials_of(result, "ditto")["lr"].min()


def test_finished_trials_are_kept_and_not_run_again(scored, tmp_path):
    asked = scored(by_lr)
    first = tune(["ditto"], WORLD, **QUICK, trials=3, out=tmp_path)
    done = len(asked)

    again = tune(["ditto", "fedavg"], WORLD, **QUICK, trials=3, out=tmp_path)

    assert (done, len(asked)) == (3, 6)
    assert trials_of(again, "ditto").equals(first.table)
    assert pl.read_parquet(tmp_path / "tuning" / "trials.parquet").equals(again.table)
    assert read_chosen(tmp_path) == again.chosen


def test_a_study_that_was_not_tuned_has_no_choice_and_a_damaged_one_is_named(tmp_path):
    assert read_chosen(tmp_path) == {}
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / "chosen.json").write_text("{")

    with pytest.raises(BadFile, match=r"chosen\.json is damaged"):
        read_chosen(tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 1}, "holds trials with other settings"),
        ({"cohort": 2}, "holds trials with other settings"),
        ({"seeds": (0, 1)}, "holds trials with other settings"),
    ],
)
def test_trials_with_other_settings_are_refused(scored, tmp_path, changed, said):
    scored(by_lr)
    tune(["ditto"], WORLD, **QUICK, trials=2, out=tmp_path)

    with pytest.raises(BadFile, match=said):
        tune(["ditto"], WORLD, **QUICK, **changed, trials=2, out=tmp_path)


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"methods": []}, BadValue, "methods must be a list with at least one entry"),
        ({"trials": 0}, BadValue, "trials must be 1 or more, got 0"),
        ({"search": {"lr": (1.0, 0.1)}}, BadValue, "lr must be two positive numbers"),
        ({"search": {"ditto.lam": (0.1, 1.0)}}, UnknownChoice, "no option to tune is called 'ditto.lam'"),
        ({"strategy": "grid"}, UnknownChoice, "no strategy is called 'grid'"),
        ({"methods": ["fedporx"]}, UnknownChoice, "did you mean 'fedprox'"),
        ({"federation": load("mean_estimation", num_clients=4)}, BadData, "no client has valid rows"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_runs(scored, changed, error, said):
    asked = scored(by_lr)

    with pytest.raises(error, match=said):
        tune(**{"methods": ["fedavg"], "federation": WORLD, **QUICK, "trials": 2, **changed})

    assert not asked


def test_a_slow_method_is_said_to_be_why_trials_are_longer():
    slow = SimpleNamespace(phases=(Phase(rounds=15), Phase()))
    free, rungs = (rungs_of(some, trials=8, rounds=60) for some in ([], [slow]))

    assert tuning._forced_said({"plain": PLAIN, "slow": slow}, rungs, free) == [
        "tuning: slow needs 16 rounds or more, so that no trial of any method is shorter (else: 8 for 15, 2 for 60)"
    ]
    assert tuning._forced_said({"plain": PLAIN}, free, free) == []


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"mark": "x", "runs": {"a": {}}}', '{"mark": 1, "runs": 3}'])
def test_damaged_trials_are_named(scored, tmp_path, content):
    scored(by_lr)
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / "trials.json").write_text(content)

    with pytest.raises(BadFile, match=r"trials\.json is damaged: .*; remove it to run all trials again"):
        tune(["fedavg"], WORLD, **QUICK, trials=2, out=tmp_path)


@pytest.mark.parametrize("changed", [{"model": "softmax"}, {"plan": replace(PLAN, optimizer=optax.adam)}])
def test_trials_with_another_model_or_optimizer_are_refused(scored, tmp_path, changed):
    scored(by_lr)
    tune(["fedavg"], WORLD, **QUICK, trials=2, out=tmp_path)

    with pytest.raises(BadFile, match="holds trials with other settings"):
        tune(["fedavg"], WORLD, **{**QUICK, **changed}, trials=2, out=tmp_path)


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"finetune.epochs": (1.2, 1.8)}, "finetune.epochs must be a range with a whole number in it"),
        (
            {"epochs": (1, 8), "finetune.epochs": (1, 4)},
            "finetune.epochs must be given once, but epochs is the same",
        ),
    ],
)
def test_ranges_without_a_value_or_given_twice_are_refused(search, said):
    with pytest.raises(BadValue, match=said):
        check_range(["fedavg|finetune"], next(iter(search)), search)
