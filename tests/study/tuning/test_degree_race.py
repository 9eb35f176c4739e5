"""The race for a method's degree of collaboration: what is raced, which values, what is chosen, and that it is kept."""

import math
from functools import partial

import pytest

from plures import Plan
from plures.app import Study
from plures.builders import build_method
from plures.data.worlds import linear_clusters
from plures.models import linear
from plures.study.tuning.degree_race import choose, race_degree, raced_option
from plures.study.tuning.outcomes import Outcome, read_chosen
from plures.study.tuning.step_size import find_step_sizes

SEEN = linear_clusters(num_clients=6, num_groups=6, gap=5.0, rows=40, seed=0).federation
ALIKE = linear_clusters(num_clients=6, num_groups=1, rows=16, sigma=3.0, seed=0).federation


def outcome_at(loss, refused=()):
    """Plays no rounds: the loss is a function of the value."""

    def play(tried, degree, value, number):
        tried.append(value.value)
        failed = "diverged" if value.value in refused else ""
        return Outcome(10, None if failed else 0.0, None if failed else loss(value.value), failed)

    return play


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("ditto", "lam"),
        ("ditto:newcomer_epochs=3", "lam"),
        ("fedavg|knn_per", None),
        ("fedprox|finetune:epochs=3", "lam"),
        ("ditto|mapper", "lam"),
        ("fedprox", "lam"),
        ("ditto:lam=0.5", None),
        ("fedclup", None),
        ("ifca", None),
        ("fedavg|finetune", None),
        ("fedavg", None),
    ],
)
def test_numbers_that_were_left_at_their_defaults_are_raced(text, option):
    found = raced_option(text)

    assert (None if found is None else found.option) == option


@pytest.mark.parametrize("best", [0.1 / 4**4, 0.1 / 4, 0.1, 0.4, 0.1 * 4**4])
def test_the_best_of_nine_values_is_found_by_seven_runs_or_less(best):
    tried = []
    play = partial(outcome_at(lambda value: 1 + math.log(value / best) ** 2), tried)

    text, said = race_degree("ditto", raced_option("ditto"), play)

    assert float(text.partition("lam=")[2]) == pytest.approx(best, rel=0.05)
    assert len(tried) == len(set(tried)) <= 7
    assert f"in {10 * len(tried)} rounds" in said


def test_values_as_good_as_the_best_give_way_to_the_default():
    play = partial(outcome_at(lambda value: 1.0 - 0.001 * math.log(value)), [])

    assert race_degree("ditto", raced_option("ditto"), play)[0] == "ditto:lam=0.1"


def test_values_that_break_down_are_not_chosen():
    play = partial(outcome_at(lambda value: 1 / value, refused=(26.0, 6.4)), [])

    assert race_degree("ditto", raced_option("ditto"), play)[0] == "ditto:lam=1.6"


def test_values_that_the_method_refuses_are_no_part_of_the_race():
    def play(degree, value, number):
        build_method(value.label, linear.softmax((2,), 2), plan=Plan())
        return Outcome(10, 0.0, 1.0)

    _, said = race_degree("apfl", raced_option("apfl"), play)

    assert "over 4 values from 0.002 to 0.5" in said


def test_a_method_stays_as_given_where_all_values_break_down():
    play = partial(outcome_at(lambda value: math.nan, refused=tuple(raced_option("ditto").grid)), [])

    assert race_degree("ditto", raced_option("ditto"), play)[0] == "ditto"
    assert choose({}, 0.1) is None


def test_clients_that_differ_are_let_go_and_those_alike_are_held():
    """Six clients with models far apart, and six with the same one, little of it to be seen in their rows."""
    plan = Plan(epochs=2, batch=None)

    lams = [
        float(find_step_sizes(["ditto"], data, rounds=20, plan=plan).texts["ditto"].partition("lam=")[2])
        for data in (SEEN, ALIKE)
    ]

    assert lams[0] <= 0.025
    assert lams[1] >= 0.4


def test_short_studies_and_tuned_ones_race_no_degree():
    assert find_step_sizes(["ditto"], SEEN, rounds=19).texts == {}
    assert find_step_sizes(["ditto"], SEEN, rounds=20, degrees=False).texts == {}


def test_what_was_found_is_kept_and_models_are_exported_with_it(tmp_path):
    settings = {
        "data": {"name": "linear_clusters", "options": {"num_clients": 6, "num_groups": 6, "rows": 40}},
        "methods": ["ditto"],
        "seeds": [0],
        "rounds": 20,
    }
    study = Study(**settings).run(tmp_path)
    text, _ = read_chosen(tmp_path)["ditto"]

    assert text.startswith("ditto:lam=")
    assert study.comparison.methods == ["ditto"]
    (model,) = study.export(0, method="ditto").values()
    assert text in str(model.about)
