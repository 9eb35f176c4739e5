"""What follows from the curves of a sweep: fronts, budgets, the best value, and the sentences about them."""

import json
import math
from dataclasses import replace

import jax
import numpy as np
import polars as pl
import pytest
from sweeps import curve, made

from plures.advise.tradeoff_wording import values_table
from plures.errors import BadValue
from plures.study.fronts import Budget, last_index, needed_index, pareto, wild_loss

INF, NAN = math.inf, math.nan


def beaten(costs, errors, place):
    """By the definition, one pair after another."""
    return any(
        costs[k] <= costs[place]
        and errors[k] <= errors[place]
        and (costs[k], errors[k]) != (costs[place], errors[place])
        for k in range(len(costs))
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_front_is_what_no_point_beats(seed):
    """A grid of few values, so that there are ties."""
    costs, errors = np.asarray(jax.random.randint(jax.random.key(seed), (2, 40), 0, 8), float)

    on = pareto(costs, errors)

    assert on.tolist() == [not beaten(costs, errors, place) for place in range(40)]


def test_a_point_that_is_no_number_is_never_on_the_front():
    assert pareto(np.array([0.0, 1.0, 2.0, NAN]), np.array([NAN, 2.0, INF, 0.0])).tolist() == [
        False,
        True,
        False,
        False,
    ]


def test_a_dearer_point_has_to_gain_more_than_the_slack():
    costs, errors = np.array([1.0, 1.0, 2.0, 3.0, 4.0]), np.array([0.9, 0.905, 0.895, 0.885, 0.5])

    assert pareto(costs, errors, 0.01).tolist() == [True, True, False, True, True]
    assert pareto(costs, errors).tolist() == [True, False, True, True, True]


@pytest.mark.parametrize(
    ("errors", "place"),
    [
        ([2.0, 1.5, 1.011, 1.009, 1.0, 1.3], 3),
        ([1.0, 1.0, 1.0], 0),
        ([1.0, 2.0, 3.0], 0),
        ([INF, 3.0, 2.0, 1.01], 3),
        ([INF, NAN], None),
    ],
)
def test_the_rounds_needed_are_counted_to_the_first_point_as_good_as_the_best(errors, place):
    assert needed_index(np.array(errors), 0.01) == place


@pytest.mark.parametrize(
    ("budget", "place"),
    [(Budget(), 3), (Budget(mb=2.5), 1), (Budget(mb=3.0), 2), (Budget(rounds=20), 1), (Budget(mb=0.5), None)],
)
def test_values_are_compared_at_the_last_point_that_the_budget_allows(budget, place):
    """Not at the least error: that would stop training early."""
    mb, rounds, errors = np.array([1.0, 2.0, 3.0, 4.0]), np.array([10, 20, 30, 40]), np.array([0.3, 0.7, 0.5, 0.9])

    assert last_index(errors, budget.allows(mb, rounds)) == place


def test_a_last_point_that_is_no_number_is_no_place():
    assert last_index(np.array([0.3, INF]), np.array([True, True])) is None


@pytest.mark.parametrize(
    ("first", "most"),
    [([0.5, 2.0], 2e3), ([0.5, 2.0, 1e20], 2e3), ([-3.0, 1.0], 3e3), ([INF, 1.0], 1e3), ([0.0], INF), ([NAN], INF)],
)
def test_what_is_far_above_the_first_losses_diverged(first, most):
    assert wild_loss(np.array(first)) == most


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mb": -1.0}, "budget_mb must be a positive number, got -1.0"),
        ({"mb": NAN}, "budget_mb must be a positive number, got nan"),
        ({"rounds": 0}, "budget_rounds must be 1 or more, got 0"),
    ],
)
def test_a_budget_of_nothing_is_refused(given, said):
    with pytest.raises(BadValue, match=said):
        Budget(**given)


SLOW, FAST = curve("1", [0.9, 0.7, 0.5, 0.3]), curve("0.1", [0.6, 0.5, 0.45, 0.44])


def test_another_value_is_best_under_a_smaller_budget():
    found = [made(SLOW, FAST, mb=mb).best for mb in (None, 2.0)]

    assert [(one.setting.text, one.round, one.mb) for one in found] == [("1", 4, 4.0), ("0.1", 2, 2.0)]
    assert [one.loss for one in found] == pytest.approx([0.3, 0.5])


def test_a_budget_of_rounds_counts_rounds_not_places():
    every_fifth = [curve(said, losses, rounds=[5, 10]) for said, losses in (("1", [0.9, 0.3]), ("2", [0.8, 0.7]))]

    assert made(*every_fifth, rounds=9).best.setting.text == "2"
    assert made(*every_fifth, rounds=10).best.setting.text == "1"


def test_the_gap_to_the_next_value_is_paired_over_clients():
    best = made(SLOW, FAST).best

    assert (best.rival.text, best.within_noise) == ("0.1", False)
    assert (best.gap.mean, best.gap.low, best.gap.high) == pytest.approx((0.14, 0.14, 0.14))


def test_a_gap_that_half_of_the_clients_turn_around_is_within_noise():
    result = made(curve("1", [0.9, 0.300]), curve("2", [0.9, 0.301], noise=0.1), curve("4", [0.9, 0.5]))

    assert result.best.within_noise
    assert [one.text for one in result.near] == ["2"]
    assert "within noise" in result.sentences[0]


def test_the_rounds_needed_have_one_scale_for_all_values():
    """The range is 0.9 - 0.3: a curve that changes by 0.0002 needs one round, for 1 % of the range is 0.006."""
    flat = curve("2", [0.5002, 0.50015, 0.5001, 0.5])

    result = made(SLOW, flat, curve("fedavg", [0.6] * 4, kind="end"))

    assert result.scale == pytest.approx(0.6)
    assert [result.needed_index(one) for one in result.curves] == [3, 0, 0]


def test_the_range_is_that_of_ends_too_unless_they_diverged():
    far, lost = curve("fedavg", [3.3, 1.0], kind="end"), curve("local_only", [1e9, 1e29], kind="end")

    assert made(curve("1", [0.9, 0.3]), far, lost).scale == pytest.approx(3.0)


def test_a_value_is_not_on_the_front_when_any_point_of_another_is_cheaper_and_better():
    """The first needs 4 rounds for 0.3; the second has 0.29 after 3 already, though it needs 5 itself."""
    result = made(curve("1", [0.9, 0.8, 0.7, 0.3, 0.3]), curve("2", [0.9, 0.9, 0.29, 0.25, 0.2]))

    assert [one.text for one in result.worth] == ["2"]


def test_a_gain_of_a_hundred_thousandth_of_the_range_is_not_on_the_front():
    tiny = made(curve("1", [0.9, 0.3, 0.299995]), curve("2", [0.9, 0.8, 0.7]))
    small = made(curve("1", [0.9, 0.3, 0.2997]), curve("2", [0.9, 0.8, 0.7]))

    assert [place for _, place in tiny.front] == [0, 0, 1]
    assert [place for _, place in small.front] == [0, 0, 1, 2]


def test_values_are_compared_at_the_round_at_which_test_rows_are_read():
    """The first was better once, and is worse in the end: nothing stops a run there."""
    table = values_table(result := made(curve("1", [0.9, 0.2, 0.6]), curve("2", [0.9, 0.6, 0.5])))

    assert (result.best.setting.text, result.best.round) == ("2", 3)
    assert table["valid_loss"].to_list() == pytest.approx(table["test_loss"].to_list())
    assert table["valid_round"].to_list() == table["test_round"].to_list() == [3, 3]
    assert table["rounds_needed"].to_list() == [2, 3]


def test_under_a_budget_rounds_of_valid_and_test_rows_are_told_apart():
    table = values_table(made(SLOW, FAST, rounds=2))

    assert (table["valid_round"].to_list(), table["test_round"].to_list()) == ([2, 2], [4, 4])


def test_the_front_of_values_takes_each_with_the_rounds_it_needs():
    """The second needs two rounds and is better than the first then; the third is dearer and worse than the fourth."""
    curves = [
        curve(str(k), losses)
        for k, losses in enumerate([[0.9, 0.8, 0.7], [0.9, 0.5, 0.5], [0.9, 0.9, 0.4], [0.9, 0.8, 0.3]])
    ]

    assert [one.text for one in made(*curves).worth] == ["1", "3"]


def test_the_front_of_points_is_over_all_values_and_rounds():
    result = made(
        SLOW, FAST, curve("auto", [0.7, 0.5, 0.46, 0.2], kind="auto"), curve("local_only", [0.0] * 4, kind="end")
    )

    found = [(one.text, place) for one, place in result.front]

    assert sorted(found) == [("0.1", 0), ("0.1", 1), ("0.1", 2), ("auto", 1), ("auto", 3)]


def test_a_value_that_diverged_is_neither_best_nor_on_a_front():
    lost = curve("5", [0.1, INF])
    broken = curve("6", [0.1, 0.1], broken=True)
    result = made(curve("1", [0.9, 0.8]), lost, broken)

    assert result.best.setting.text == "1"
    assert {one.text for one, _ in result.front} == {"1"}
    assert [one.text for one in result.worth] == ["1"]
    assert values_table(result)["mark"].to_list() == ["best, front", "diverged", "diverged"]
    assert "diverged: 5, 6" in result.sentences


def test_an_end_with_an_absurd_loss_diverged_and_is_compared_with_nothing():
    """1e29 is a number; it is more than a thousand times the largest first loss of the values."""
    ends = [curve("local_only", [1e9, 1e29], kind="end"), curve("fedavg", [0.9, 0.85], kind="end")]

    result = made(curve("1", [0.9, 0.8]), curve("2", [0.9, 0.85]), *ends)
    said = result.sentences

    assert "local_only diverged with this plan: a smaller --lr would do" in said
    assert not any("1e+29" in line or "than local_only" in line for line in said)
    assert any("better than fedavg" in line for line in said)
    assert values_table(result)["mark"].to_list()[2:] == ["diverged", ""]
    assert math.isnan(values_table(result)["test_loss"][2])


def test_one_client_has_no_interval_and_no_verdict():
    """Resampling one client gives it again and again: a width of nothing is no certainty."""
    curves = [curve(said, losses, num_clients=1) for said, losses in (("1", [0.9, 0.3]), ("2", [0.9, 0.5]))]
    auto = curve("auto", [0.9, 0.6], kind="auto", num_clients=1)
    end = curve("fedavg", [0.9, 0.7], kind="end", num_clients=1)

    result = made(*curves, auto, end)
    said = result.sentences

    assert (result.near, result.best.within_noise) == ((), False)
    assert said[0].endswith("next is lam=2, 0.2 above it: one client: no interval")
    assert said[1].endswith("the method lies 0.3 above it (one client: no interval)")
    assert "+0.4 against fedavg (one client: no interval)" in said[2]
    assert not any(word in line for line in said for word in ("clear", "behind", "better than", "within noise"))
    assert values_table(result)["test_loss_low"].is_nan().all()
    assert result.to_dict()["best"]["within_noise"] is None
    assert json.dumps(result.to_dict(), allow_nan=False)


def test_a_last_fall_within_the_tolerance_calls_for_no_more_rounds():
    said = made(curve("1", [0.9, 0.305, 0.3]), curve("2", [0.9, 0.8, 0.7])).sentences

    assert not any("more rounds" in line for line in said)


def test_where_all_diverged_nothing_is_best():
    result = made(curve("1", [NAN, NAN]))

    assert result.best is None
    assert result.sentences[-1] == "no value has a finite loss on valid rows within the budget"


def test_gradients_that_are_not_reported_stay_unknown():
    known = curve("2", [0.9, 0.8], gradients=np.array([[3.0, 6.0]]))

    table = values_table(made(curve("1", [0.9, 0.8]), known))

    assert table["gradients_needed"].to_list() == [None, 6.0]


def test_only_the_best_value_and_auto_are_told_of():
    result = made(SLOW, FAST, curve("auto", [0.9] * 4, kind="auto"))
    lines = ("ditto:lam=1: steady", "ditto:lam=0.1: shaky", "ditto:lam=auto: chose 3")

    assert replace(result, told=lines).remarks == ["ditto:lam=1: steady", "ditto:lam=auto: chose 3"]


def test_the_sentences_tell_what_to_do_next():
    ends = [curve("local_only", [0.6] * 4, kind="end"), curve("fedavg", [0.2] * 4, kind="end")]
    free = made(SLOW, FAST, *ends, left_out=["99"]).sentences
    tight = made(SLOW, FAST, *ends, mb=2.0, asked="--data digits --lr 0.3").sentences

    assert free[0] == "left out, for the method refuses them: lam 99"
    assert free[1].startswith(
        "best: lam=1 at round 4 (4 MB per client, valid loss 0.3); next is lam=0.1, 0.14 above it"
    )
    assert "better than local_only (+0.3 [+0.3, +0.3]), worse than fedavg (-0.1 [-0.1, -0.1])" in free[2]
    assert free[3] == "1 is the smallest value that was tried: others beyond it may be better"
    assert free[4] == "its valid loss still fell at the last round: more rounds may help"
    assert tight[0].startswith("best within 2 MB per client: lam=0.1 at round 2")
    assert tight[-1].endswith("plures compare -m ditto:lam=0.1 --rounds 2 --data digits --lr 0.3")


def test_the_cheapest_value_within_noise_is_told():
    cheap = curve("2", [0.3005, 0.3005], noise=0.1)

    said = made(curve("1", [0.9, 0.3]), cheap).sentences

    assert (
        "as good within noise, and cheapest: lam=2, which needs 1 round and 1 MB per client (lam=1 needs 2 MB)"
        in said
    )


def test_of_values_that_cost_the_same_the_better_one_is_told():
    alike = [curve(said, [loss, loss], noise=0.1) for said, loss in (("2", 0.304), ("4", 0.3005))]

    said = made(curve("1", [0.9, 0.3]), *alike).sentences

    assert any("cheapest: lam=4, which" in line for line in said)


def test_the_cheapest_is_compared_with_what_the_best_needs():
    """The best value ends after 3 rounds, and needs 1: that is no more than the other needs."""
    alike = curve("2", [0.302, 0.302, 0.302], noise=0.1)

    said = made(curve("1", [0.304, 0.3, 0.3]), alike, curve("4", [0.9, 0.8, 0.7])).sentences

    assert "within noise" in said[0]
    assert not any("cheapest" in line for line in said)


def test_points_are_read_back_with_texts_and_numbers(tmp_path):
    """More rows of numbers than a reader looks at, before the first text."""
    many = [curve(str(k + 1), [0.9 - k / 1000] * 30) for k in range(5)]

    points, *_ = made(*many, curve("auto", [0.5] * 30, kind="auto")).save(tmp_path)

    found = pl.read_csv(points).sort("round", maintain_order=True)
    assert found["value"].unique(maintain_order=True).to_list() == ["1", "2", "3", "4", "5", "auto"]
    assert found["number"].unique(maintain_order=True).to_list() == [1, 2, 3, 4, 5, None]
    assert found["number"].dtype == pl.Float64
