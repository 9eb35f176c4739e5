"""The recommendation: chosen on valid rows, told on test rows, by one rule that is written once."""

import itertools
import re

import jax
import numpy as np
import pytest
from comparisons import BASE, comparison, yardsticks

from plures import compare
from plures.data import load
from plures.data.partition import feature_shift  # noqa: F401  (registers the partitioner)
from plures.study.recommendation import COLUMNS, MARGIN, Choice, recommend, simultaneous
from plures.types import Plan

WIGGLE = np.where(np.arange(30) % 2, 0.04, -0.04)


def test_a_clear_winner_is_the_advice_with_its_margins():
    found = recommend(comparison({"local_only": BASE, "fedavg": BASE + 0.05, "ditto": BASE + 0.15}))

    first, second, third = found.sentences
    assert found.advice == found.best == "ditto"
    assert first.startswith("Use ditto: mean test accuracy 0.750 (")
    assert "over 30 clients, 0.100 better than one model for all and 0.150 better than training alone." in first
    assert second == "30 of 30 clients do better than alone; it costs 1 MB and 100 gradient steps per client."
    assert third == "Every other method that could be used is clearly behind it."


def test_valid_rows_choose_and_test_rows_report():
    """On test rows fedavg is 0.1 ahead; on valid rows ditto is: ditto is taken, with its own test score."""
    scores = {"fedavg": BASE + 0.1, "ditto": BASE}
    found = recommend(comparison(scores, valid={"fedavg": BASE, "ditto": BASE + 0.1}))

    assert found.advice == "ditto"
    assert "mean test accuracy 0.600" in found.text
    assert "0.100 worse than one model for all" in found.text


def test_test_rows_change_no_choice():
    """Whatever test rows say, the method is the same."""
    noise = np.asarray(jax.random.normal(jax.random.key(0), (4, 30)), float) / 10
    valid = {"fedavg": BASE, "ditto": BASE + 0.02 + WIGGLE, "ifca": BASE + 0.015, "local_only": BASE - 0.1}

    taken = {
        recommend(
            comparison({name: BASE + times * one for name, one in zip(valid, noise, strict=True)}, valid=valid)
        ).advice
        for times in (-1, 0, 1, 3)
    }

    assert taken == {"ditto"}


def test_without_valid_rows_test_rows_choose():
    empty = np.full(30, np.nan)
    result = comparison({"fedavg": BASE, "ditto": BASE + 0.1}, valid={"fedavg": empty, "ditto": empty})

    assert Choice(result).split == "test"
    assert recommend(result).advice == "ditto"


def test_a_better_mean_beyond_the_margin_is_taken_at_any_price():
    """It costs 497 bytes more, as it may: bytes decide only between what is as good."""
    scores = {"fedavg": BASE, "ditto": BASE + 3 * MARGIN + WIGGLE}
    found = recommend(comparison(scores, mb={"fedavg": 0.001, "ditto": 40.0}))

    assert found.advice == "ditto"


@pytest.mark.parametrize(
    ("column", "better"),
    [
        ("worst_decile", {"valid": np.r_[BASE[:6] + 0.06, BASE[6:] - 0.02]}),
        ("unseen", {"newcomers": {"fedavg": [0.9, 0.9], "ditto": [0.6, 0.6]}}),
        ("steps_per_client", {"steps": {"fedavg": 100, "ditto": 201}}),
        ("mb_per_client", {"mb": {"fedavg": 1.0, "ditto": 3.0}}),
    ],
)
def test_among_candidates_each_column_decides_alone(column, better):
    """ditto is 0.002 ahead on valid rows, which is within the margin; fedavg is better in one column."""
    given = {name: value for name, value in better.items() if name != "valid"}
    fedavg = better.get("valid", BASE + WIGGLE)
    scores = {
        "fedavg": fedavg,
        "ditto": fedavg * 0 + BASE + (fedavg - BASE).mean() + 0.002 if "valid" in better else fedavg + 0.002,
    }
    result = comparison(scores, **given)

    found = recommend(result)

    assert (found.best, found.advice) == ("ditto", "fedavg")
    assert next(one.said for one in COLUMNS if one.name == column) in found.sentences[0]


def test_who_loses_decides_before_work():
    """Both have one mean and one worst tenth; with fedavg four of 30 clients fall clearly below training alone, with ditto 15."""
    few = np.where(np.arange(30) < 4, -0.03, 0.1)
    half = np.where(np.arange(30) < 15, -0.03, 2 * few.mean() + 0.03)
    alone = np.full(30, 0.5)
    scores = {"local_only": alone, "fedavg": alone + few[::-1], "ditto": alone + half}
    result = comparison(scores, steps={"fedavg": 900, "ditto": 100})

    choice = Choice(result)

    assert set(choice.candidates) == {"fedavg", "ditto"}
    assert choice.advice == "fedavg"


@pytest.mark.parametrize("mb", [1.9, 2.9])
def test_a_megabyte_or_less_than_double_counts_for_nothing(mb):
    scores = {"apfl": BASE + WIGGLE, "ditto": BASE + 0.002 + WIGGLE}
    cheap = {"apfl": 1.0, "ditto": 1.9} if mb < 2 else {"apfl": 1.5, "ditto": 2.9}

    assert recommend(comparison(scores, mb=cheap)).advice == "ditto"


def test_what_is_no_better_in_any_column_gives_way_to_the_simpler_one():
    """ditto is 0.002 ahead on valid rows, for less than twice the steps: one model for all will do, and it is said why."""
    steps = {"fedavg": 100, "ditto": 190}
    found = recommend(comparison({"fedavg": BASE + WIGGLE, "ditto": BASE + 0.002 + WIGGLE}, steps=steps))

    assert found.advice == "fedavg"
    assert "ditto is as good on valid rows (0.002 apart), but fedavg is simpler." in found.sentences[0]


def test_the_trivial_predictor_is_told_of_soon_and_an_error_has_no_negative_bound():
    few = np.array([0.2, 1.9])
    found = recommend(
        comparison(
            {"local_only": few},
            higher=False,
            metric="rmse",
            references=yardsticks({"trivial": 1.04}, "rmse", False),
        )
    )

    assert "(0.000 to" in found.text
    assert "trivial does better (1.040)" in found.text


def test_what_another_method_matches_in_every_column_is_never_taken():
    """At one price fedavg is worse in every column, by little: no bar in its name helps it."""
    scores = {"fedavg": BASE + WIGGLE - 0.004, "fedavg|finetune": BASE + WIGGLE}
    found = recommend(comparison(scores, newcomers={"fedavg": [0.6], "fedavg|finetune": [0.61]}))

    assert found.advice == "fedavg|finetune"


def test_no_study_recommends_what_is_dominated():
    """Forty studies, prices and newcomers of few values: who is recommended, or was near it, is best in some column against each."""
    names, pairs = ["fedavg", "ditto", "ifca", "local_only", "apfl"], 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        noise = {name: draw.choice([0.001, 0.05]) * draw.normal(size=30) for name in names}
        result = comparison(
            {name: BASE - 0.03 * draw.random() + noise[name] for name in names},
            mb={name: float(draw.choice([1.0, 4.0])) for name in names},
            steps={name: int(draw.choice([10, 100])) for name in names},
            newcomers={name: [0.6 + float(draw.choice([0.0, 0.05]))] for name in names},
        )
        choice = Choice(result)
        rows = choice._losses
        assert choice.advice in choice.candidates
        for one, other in itertools.permutations(names, 2):
            dominated = not any(rows[one][column] < rows[other][column] for column in rows[one])
            assert not dominated or rows[one] == rows[other] or one not in choice.candidates, (seed, one, other)
            pairs += dominated
    assert pairs > 40


def test_who_knows_the_groups_is_never_the_advice():
    found = recommend(comparison({"oracle": BASE + 0.2, "oracle|finetune": BASE + 0.2, "fedavg": BASE}))

    assert found.advice == "fedavg"
    assert "oracle" not in found.text


def test_where_only_who_knows_the_groups_is_left_nothing_is_advised():
    found = recommend(comparison({"oracle": BASE + 0.2, "ditto": BASE}, loss="ditto"))

    assert found.advice == ""
    assert found.sentences[0].startswith("No method gave a model that can be used but oracle, which no real client")


def test_a_method_without_scores_is_never_the_best():
    found = recommend(comparison({"local_only": np.full(30, np.nan), "fedavg": BASE}))

    assert found.advice == "fedavg"
    assert "nan" not in found.text


def test_one_client_is_no_evidence():
    found = recommend(comparison({"fedavg": BASE[:1], "ditto": BASE[:1] + 0.01}))

    assert found.advice
    assert "clearly" not in found.text
    assert "better than" not in found.text


def test_small_scores_keep_their_digits():
    found = recommend(comparison({"local_only": BASE / 1000, "fedavg": BASE / 2000}, higher=False, metric="rmse"))

    assert "mean test rmse 0.000300" in found.sentences[0]


def test_what_diverged_is_never_the_advice():
    found = recommend(comparison({"ditto": BASE + 0.2, "fedavg": BASE}, loss="ditto"))

    assert found.advice == "fedavg"


def test_if_all_diverged_it_is_said():
    found = recommend(comparison({"ditto": BASE}, loss="ditto"))

    assert found.advice == ""
    assert "ditto diverged" in found.sentences[0]


def test_what_diverged_to_a_number_is_useless_and_said_so():
    """An RMSE of 46 million where predicting the client's mean makes 2: never within noise, never advised."""
    known = yardsticks({"trivial": 2.0}, "rmse", False)
    result = comparison({"fedavg": BASE + 1, "ditto": BASE + 4.6e7}, higher=False, metric="rmse", references=known)

    words = dict(result.leaderboard.select("method", "against_best").iter_rows())
    assert words == {"fedavg": "best", "ditto": "useless"}
    assert recommend(result).advice == "fedavg"


def test_if_all_are_useless_it_is_said_with_what_the_trivial_predictor_gets():
    known = yardsticks({"trivial": 2.0}, "rmse", False)
    found = recommend(comparison({"ditto": BASE + 4.6e7}, higher=False, metric="rmse", references=known))

    assert found.advice == ""
    assert "ditto did clearly worse than predicting a client's own mean" in found.text


def test_lower_may_be_better():
    found = recommend(comparison({"local_only": BASE, "fedavg": BASE - 0.1}, higher=False, metric="rmse"))

    assert found.advice == "fedavg"
    assert "0.100 better than training alone" in found.sentences[0]
    assert "30 of 30 clients do better than alone" in found.sentences[1]


def test_who_loses_is_named_with_what_to_take_instead():
    gain = np.full(30, 0.1)
    gain[[3, 7]] = -0.2, -0.1  # and a client that loses less than two points is not named
    gain[11] = -0.015
    found = recommend(comparison({"local_only": BASE, "fedavg": BASE + gain}))

    losers = "client-003 and client-007 do worse with it and should keep their own model (local_only)"
    assert f"27 of 30 clients do better than alone; {losers}" in found.sentences[1]


def test_a_reference_that_does_better_is_told():
    scores = {"local_only": BASE, "fedavg": BASE + 0.1}
    alone = recommend(comparison(scores, references=yardsticks({"trivial": 0.2, "boosting alone": 0.9})))
    pooled = recommend(comparison(scores, references=yardsticks({"trivial": 0.2, "boosting pooled": 0.9})))
    neither = recommend(comparison(scores, references=yardsticks({"trivial": 0.2, "boosting alone": 0.6})))

    assert (
        "Without any federation boosting alone does better (0.900): federating these models does not pay."
        in alone.text
    )
    assert "With all rows in one place boosting pooled does better (0.900)" in pooled.text
    assert "boosting" not in neither.text


def test_what_newcomers_get_is_told():
    found = recommend(comparison({"fedavg": BASE}, newcomers={"fedavg": [0.5, 0.7]}))

    assert "newcomers get 0.600" in found.text.lower()


def test_one_method_alone_is_said_to_be_alone():
    assert recommend(comparison({"ditto": BASE})).sentences[-1] == "There was nothing else to take."


def test_always_three_sentences():
    for names in (["local_only"], ["fedavg", "ditto"], ["local_only", "fedavg", "ditto", "ifca"]):
        noise = np.asarray(jax.random.normal(jax.random.key(1), (len(names), 30)), float) / 20
        found = recommend(comparison(dict(zip(names, BASE + noise, strict=True))))

        assert len(re.findall(r"\.(?: |$)", found.text)) == 3


def test_the_interval_of_the_winner_holds_although_it_was_chosen():
    """Twelve equal methods on 30 clients, the best of them taken by the very same scores: its interval still covers 0."""
    missed = 0
    for seed in range(200):
        scores = np.random.default_rng(seed).normal(size=(12, 30))
        best = scores[scores.mean(1).argmax()]
        half = 1.96 * best.std() / np.sqrt(30)
        low, high = simultaneous(
            {"mean": best.mean(), "low": best.mean() - half, "high": best.mean() + half}, 12, 30
        )
        missed += not low <= 0 <= high

    assert missed <= 0.075 * 200


METHODS = ["local_only", "fedavg", "fedavg|finetune", "ditto", "hypcluster_auto"]
WORLDS = {
    "groups": ("linear_clusters", {"num_clients": 24, "num_groups": 3}, {"hypcluster_auto"}),
    "all alike": ("linear_offsets", {"radius": 0.0}, {"fedavg"}),
    "all different": ("linear_offsets", {"radius": 4.0}, {"local_only"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_the_right_method_is_recommended_on_worlds_whose_truth_is_known(world):
    """A reader who knows nothing but the sentences takes the right method."""
    name, options, right = WORLDS[world]
    seen = load(name, **options)

    result = compare(METHODS, seen, rounds=40, plan=Plan(epochs=2, batch=None, lr=0.05), seeds=(0, 1))

    assert recommend(result).advice in right


NOTHING = np.full(30, np.nan)


def test_a_method_that_failed_does_not_make_test_rows_choose():
    scores = {"local_only": BASE, "fedavg": BASE + 0.05, "ditto": BASE}
    valid = {"local_only": BASE + 0.2, "fedavg": BASE, "ditto": NOTHING}

    assert recommend(comparison(scores, valid=valid, loss="ditto")).advice == "local_only"


def test_of_one_client_valid_rows_choose_and_no_interval_is_made_up():
    scores = {"local_only": BASE[:1], "ditto": BASE[:1] + 0.1}
    found = recommend(comparison(scores, valid={"local_only": BASE[:1] + 0.4, "ditto": BASE[:1]}))

    assert found.advice == "local_only"
    assert "nan" not in found.text
    assert found.sentences[-1] == "One client is no evidence for others."


def test_what_is_useless_on_valid_rows_is_not_taken_either():
    known = yardsticks({"trivial": 0.5})
    result = comparison(
        {"fedavg": BASE, "ditto": BASE}, valid={"fedavg": BASE, "ditto": BASE - 0.4}, references=known
    )

    assert dict(result.leaderboard.select("method", "against_best").iter_rows())["ditto"] == "useless"


def test_a_few_clients_with_valid_rows_do_not_choose_for_all():
    one = np.where(np.arange(30) < 1, 0.9, np.nan)
    result = comparison({"local_only": BASE, "fedavg": BASE + 0.2}, valid={"local_only": one, "fedavg": one - 0.5})

    assert Choice(result).split == "test"
    assert recommend(result).advice == "fedavg"


def test_methods_are_compared_over_the_clients_that_all_of_them_serve():
    """local_only has no score where clients are hard; on the others it is behind."""
    hard = np.arange(30) < 12
    fedavg = np.where(hard, 0.3, 0.7)
    valid = {"fedavg": fedavg, "local_only": np.where(hard, np.nan, 0.65)}

    assert recommend(comparison({"fedavg": fedavg, "local_only": fedavg}, valid=valid)).advice == "fedavg"


def test_a_loss_that_does_not_count_is_no_loss():
    """27 of 30 clients gain nearly a point, three lose 0.002: training alone is not better for anybody."""
    gains = np.where(np.arange(30) % 10 == 0, -0.002, 0.009)
    result = comparison({"local_only": BASE, "fedavg": BASE + gains})

    assert recommend(result).advice == "fedavg"


def test_losers_are_unknown_where_no_client_has_both_scores():
    early, late = np.arange(30) < 15, np.arange(30) >= 15
    valid = {
        "local_only": np.where(early, 0.5, np.nan),
        "fedavg": np.where(late, 0.5, np.nan),
        "ditto": np.where(late, 0.505, np.nan),
    }

    assert recommend(comparison(dict.fromkeys(valid, BASE), valid=valid)).advice


def test_useless_methods_take_no_digits_from_the_others():
    huge = dict.fromkeys(("ditto", "apfl", "ifca"), BASE + 40000000000000.0)
    scores = {"local_only": BASE + 2.1, "fedavg": BASE + 2.0, **huge}
    found = recommend(
        comparison(scores, higher=False, metric="rmse", references=yardsticks({"trivial": 2.9}, "rmse", False))
    )

    assert "mean test rmse 2.60" in found.text


def test_a_better_method_that_valid_rows_saw_is_told_as_such():
    scores = {"fedavg": BASE, "ditto": BASE + 0.004}
    found = recommend(comparison(scores, mb={"fedavg": 1.0, "ditto": 9.0}))

    assert found.advice == "fedavg"
    assert "On test rows ditto does better by 0.004, which counted less than that." in found.text


def test_only_one_of_several_may_be_left():
    found = recommend(comparison({"ditto": BASE + 0.2, "fedavg": BASE}, loss="ditto"))

    assert found.sentences[-1] == "No other method gave a model that can be used."


def test_an_accuracy_is_never_above_one():
    found = recommend(comparison({"fedavg": np.array([0.96, 1.0])}))

    assert "to 1.000)" in found.text
