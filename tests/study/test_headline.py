"""The answer in two sentences: what to take, against what, for whom, at what price."""

import re

import jax
import numpy as np
import polars as pl
import pytest
from studies import client_table

from plures import compare
from plures.data import load
from plures.data.partition import feature_shift  # noqa: F401  (registers the partitioner)
from plures.study.comparison import Comparison
from plures.study.disk.runs import stack_tables
from plures.study.headline import headline_of
from plures.types import Plan

BASE = np.linspace(0.4, 0.8, 30)
WIGGLE = np.where(np.arange(30) % 2, 0.04, -0.04)


def comparison(scores, *, mb=None, higher=True, groups=None, loss=None):
    """A comparison from {method: (clients,) scores} and their megabytes."""
    tables = {}
    for name, values in scores.items():
        table = client_table(values, groups=groups)
        size = int(1e6 * (mb or {}).get(name, 1.0))
        table = table.with_columns(pl.lit(size).alias("bytes_down"), pl.lit(0).alias("bytes_up"))
        if name == loss:
            table = table.with_columns(pl.lit(None).cast(pl.Float64).alias("personal_test_loss"))
        tables[name, 0] = table
    return Comparison(stack_tables(tables), "accuracy", higher, {})


def test_a_clear_winner_is_the_advice_with_its_margins():
    found = headline_of(comparison({"local_only": BASE, "fedavg": BASE + 0.05, "ditto": BASE + 0.15}))

    first, second = found.sentences
    assert found.advice == "ditto"
    assert first.startswith("Use ditto: mean test accuracy 0.750 (")
    assert "over 30 clients, 0.100 better than one model for all and 0.150 better than training alone." in first
    assert (
        second
        == "30 of 30 clients do better than alone; it costs 1 MB per client; every other method that could be used is clearly worse."
    )


def test_within_noise_the_cheaper_one_is_the_advice_and_the_better_mean_is_told():
    scores = {"local_only": BASE - 0.2, "ditto": BASE, "ifca": BASE + 0.002 + WIGGLE}
    found = headline_of(comparison(scores, mb={"local_only": 0.0, "ditto": 1.0, "ifca": 4.0}))

    assert (found.advice, found.best) == ("ditto", "ifca")
    assert found.sentences[1].endswith("ifca scores 0.002 better, which is within noise of it.")


def test_at_one_price_one_model_for_all_comes_before_its_personalizations():
    scores = {"fedavg": BASE, "fedavg|finetune": BASE + WIGGLE, "local_only": BASE - 0.2}
    found = headline_of(comparison(scores, mb={"local_only": 0.0}))

    assert found.advice == "fedavg"


def test_at_one_price_one_model_for_all_comes_before_a_better_mean_within_noise():
    scores = {"ditto": BASE + 0.002 + WIGGLE, "fedavg": BASE, "local_only": BASE - 0.2}
    found = headline_of(comparison(scores, mb={"local_only": 0.0}))

    assert (found.advice, found.best) == ("fedavg", "ditto")


def test_training_alone_is_the_advice_where_nothing_is_clearly_better():
    scores = {"local_only": BASE, "fedavg": BASE - 0.3, "ditto": BASE + WIGGLE}
    found = headline_of(comparison(scores, mb={"local_only": 0.0}))

    assert found.advice == "local_only"
    assert "0.300 better than one model for all" in found.sentences[0]
    assert "do better than alone" not in found.text


def test_who_knows_the_groups_is_never_the_advice():
    found = headline_of(comparison({"oracle": BASE + 0.2, "oracle|finetune": BASE + 0.2, "fedavg": BASE}))

    assert found.advice == "fedavg"
    assert "oracle" not in found.text


def test_where_only_who_knows_the_groups_is_left_nothing_is_advised():
    found = headline_of(comparison({"oracle": BASE + 0.2, "ditto": BASE}, loss="ditto"))

    assert found.advice == ""
    assert found.sentences[0].startswith("No method gave a model that can be used but oracle, which no real client")


def test_a_cheap_method_that_is_clearly_beaten_is_not_the_advice():
    """fedavg is within noise of the noisy best one, but ditto beats it for every client."""
    noisy = BASE + 0.05 + np.where(np.arange(30) % 2, 0.3, -0.3)
    scores = {"fedavg": BASE, "ditto": BASE + 0.03, "ifca": noisy}
    found = headline_of(comparison(scores, mb={"fedavg": 1.0, "ditto": 2.0, "ifca": 3.0}))

    assert found.advice == "ditto"


def test_a_method_without_scores_is_never_the_best():
    found = headline_of(comparison({"local_only": np.full(30, np.nan), "fedavg": BASE}))

    assert found.advice == "fedavg"
    assert "nan" not in found.text


def test_one_client_is_no_evidence():
    found = headline_of(comparison({"fedavg": BASE[:1], "ditto": BASE[:1] + 0.01}))

    assert "clearly" not in found.text
    assert "better than" not in found.text


def test_small_scores_keep_their_digits():
    found = headline_of(comparison({"local_only": BASE / 1000, "fedavg": BASE / 2000}, higher=False))

    assert "mean test accuracy 0.000300" in found.sentences[0]


def test_what_diverged_is_never_the_advice():
    found = headline_of(comparison({"ditto": BASE + 0.2, "fedavg": BASE}, loss="ditto"))

    assert found.advice == "fedavg"


def test_if_all_diverged_it_is_said():
    found = headline_of(comparison({"ditto": BASE}, loss="ditto"))

    assert found.advice == ""
    assert "the others diverged" in found.sentences[0]


def test_lower_may_be_better():
    found = headline_of(comparison({"local_only": BASE, "fedavg": BASE - 0.1}, higher=False))

    assert found.advice == "fedavg"
    assert "0.100 better than training alone" in found.sentences[0]
    assert "30 of 30 clients do better than alone" in found.sentences[1]


def test_one_method_alone_is_said_to_be_alone():
    assert headline_of(comparison({"ditto": BASE})).sentences[1].endswith("there was nothing else to take.")


def test_always_two_sentences():
    for names in (["local_only"], ["fedavg", "ditto"], ["local_only", "fedavg", "ditto", "ifca"]):
        noise = np.asarray(jax.random.normal(jax.random.key(1), (len(names), 30)), float) / 20
        found = headline_of(comparison(dict(zip(names, BASE + noise, strict=True))))

        assert len(re.findall(r"\.(?: |$)", found.text)) == 2


METHODS = ["local_only", "fedavg", "fedavg|finetune", "ditto", "hypcluster_auto"]
WORLDS = {
    "groups": ("linear_clusters", {"num_clients": 24, "num_groups": 3}, {"hypcluster_auto"}),
    "all alike": ("linear_offsets", {"radius": 0.0}, {"fedavg"}),
    "all different": ("linear_offsets", {"radius": 4.0}, {"local_only"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_the_headline_names_the_right_method_on_worlds_whose_truth_is_known(world):
    """A reader who knows nothing but the two sentences takes the right method."""
    name, options, right = WORLDS[world]
    seen = load(name, **options)

    result = compare(METHODS, seen, rounds=40, plan=Plan(epochs=2, batch=None, lr=0.05), seeds=(0, 1))

    said = re.match(r"Use (\S+):", headline_of(result).sentences[0])
    assert said is not None
    assert said[1] in right
