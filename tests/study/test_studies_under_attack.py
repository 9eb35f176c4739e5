"""Studies under attack: attacks by name, honest clients alone in every number, attackers in the tables."""

import json
import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from plures import compare
from plures.advise.choice import Candidate
from plures.advise.decisions import decide_between
from plures.attacks.upload_attacks import sign_flip
from plures.contract import worlds
from plures.engine import AttackSummary
from plures.errors import BadData, BadFile, BadValue, UnknownChoice
from plures.methods.fedavg import fedavg
from plures.study import Comparison, build_attack, build_channel

ALONE = np.linspace(0.4, 0.9, 20)
SEEN, UNSEEN = worlds.awkward()
MINE = {"mine": fedavg(worlds.model(), plan=worlds.PLAN)}


# By name


@pytest.mark.parametrize(
    ("text", "name", "share"),
    [
        ("sign-flip:0.3", "sign_flip", 0.3),
        ("sign_flip:share=0.3", "sign_flip", 0.3),
        (" alie:0.1,z=1.5", "alie", 0.1),
        ("alie:z=1.5", "alie", 0.2),
        ("label-flip", "label_flip", 0.2),
        ("large-noise:scale=3,share=0.4", "large_noise", 0.4),
    ],
)
def test_an_attack_is_built_by_name(text, name, share):
    found = build_attack(text, {"num_clients": 20})

    assert (found.name, found.share) == (name, share)
    assert int(found.members(np.arange(20)).sum()) == round(20 * share)


@pytest.mark.parametrize("text", ["sing-flip:0.2", "clip", ""])
def test_an_unknown_attack_is_refused_with_the_names(text):
    with pytest.raises(UnknownChoice, match=f"no attack is called '{text.split(':')[0]}'.* Known: alie, edge, ipm"):
        build_attack(text)


def test_a_channel_hears_how_many_clients_there_are():
    found = build_channel("sign_flip:share=0.3", SEEN.known)

    assert int(found.members(np.arange(6)).sum()) == 2


# Comparisons


def table(scores, attackers, *, loss=0.5):
    """A comparison from {method: scores of the clients}; attackers score 0, with a loss that is no number."""
    rows = [
        {
            "method": method,
            "seed": seed,
            "uid": uid,
            "seen": True,
            "attacker": uid in attackers,
            "test_rows": 5,
            "bytes_down": 0 if uid in attackers else 1_000_000,
            "bytes_up": 0,
            "personal_test_accuracy": 0.0 if uid in attackers else value,
            "personal_test_loss": None if uid in attackers else loss,
        }
        for method, values in scores.items()
        for seed in (0, 1)
        for uid, value in enumerate(values)
    ]
    return Comparison(
        pl.DataFrame(rows), "accuracy", True, {}, AttackSummary(("sign_flip",), len(attackers), len(ALONE))
    )


def test_terrible_scores_of_liars_change_nothing():
    attackers = [0, 7, 13]
    scores = {"local_only": ALONE, "better": ALONE + 0.05}
    honest = {name: np.delete(values, attackers) for name, values in scores.items()}

    found = table(scores, attackers)

    assert found.leaderboard.equals(table(honest, []).leaderboard, null_equal=True)
    assert found.leaderboard["mean"][0] == pytest.approx(honest["better"].mean())
    assert found.scores("better").shape == (2, 17)
    assert not found.diverged("better")
    assert found.clients.height == 2 * 2 * 20


def test_a_study_keeps_the_rows_of_liars_and_says_who_they_are(tmp_path):
    result = compare(
        MINE, SEEN, rounds=1, seeds=(0,), executor="vectorized", channels=(sign_flip(share=0.34),), out=tmp_path
    )

    kept = pl.read_csv(tmp_path / "clients.csv")
    about = json.loads((tmp_path / "summary.json").read_text())
    honest = kept.filter(~pl.col("attacker"))["personal_test_accuracy"]
    assert kept["attacker"].sum() == 2
    assert result.leaderboard["mean"].item() == pytest.approx(honest.mean(), abs=1e-6)
    assert about["attack"]["said"] == result.attackers.said
    assert result.attackers.said == (
        "attack: sign_flip by 2 of 6 clients (33 %); scores are of the 4 honest clients"
    )


def test_a_run_kept_from_another_attack_is_refused(tmp_path):
    compare(MINE, SEEN, rounds=1, seeds=(0,), executor="vectorized", out=tmp_path)

    with pytest.raises(BadFile, match="holds a run with other settings"):
        compare(
            MINE, SEEN, rounds=1, seeds=(0,), executor="vectorized", channels=(sign_flip(share=0.34),), out=tmp_path
        )


def test_more_liars_than_a_method_is_made_for_are_refused_by_its_name():
    plain, robust = "fedavg", "fedavg:aggregate=median"

    with pytest.raises(BadValue, match="fedavg:aggregate=median: the number of attackers must be at most 2 of"):
        compare([plain, robust], SEEN, rounds=1, model=worlds.model(), channels=(sign_flip(share=0.5),))


def test_without_an_honest_client_to_score_nothing_is_compared():
    count = SEEN.count.copy()
    count[~sign_flip(share=0.34).bound(6).members(SEEN.uid), 2] = 0
    without = replace(SEEN, count=count)

    with pytest.raises(BadData, match="no honest client has test rows"):
        compare(MINE, without, rounds=1, channels=(sign_flip(share=0.34),))


# Decisions


def option(name, family, losses):
    rows = [np.full((1, 4), loss) for loss in losses]
    return Candidate(name, family, rows, rows)


def roster(attackers):
    number = 8
    facts = {"uid": list(range(number)), "seen": [True] * 6 + [False] * 2, "train_rows": 9, "valid_rows": 4}
    return pl.DataFrame(
        {**facts, "test_rows": [4] * number, "attacker": [uid in attackers for uid in range(number)]}
    )


def options(losses):
    """The global model with these losses, or training alone with a loss of 0.5."""
    return [option("fedavg", "global", losses), option("local_only", "alone", np.full(8, 0.5))]


def test_decisions_are_counted_over_honest_clients():
    """The attackers are best off with the global model, so much that it would be the population's best."""
    losses = np.array([1.0, -90.0, 1.0, 1.0, -90.0, 1.0, 1.0, 1.0])

    found = decide_between(options(losses), roster([1, 4]), attackers=AttackSummary(("sign_flip",), 2, 6))

    assert found.clients.height == 8
    assert found.counts == {"alone": 6}
    assert found.by_method["clients"].to_list() == [6]
    assert found.best == "local_only"
    evidence = found.evidence.filter((pl.col("against") == "global") & pl.col("seen"))
    assert evidence["num_clients"].to_list() == [4, 4]
    assert evidence["mean"].to_list() == pytest.approx([0.5, 0.5])
    assert found.summary.startswith("6 of 6 clients: alone.")


def test_a_global_model_that_is_lost_on_a_liar_alone_is_no_mistake():
    losses = np.array([1.0, math.nan, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])

    decide_between(options(losses), roster([1]), attackers=AttackSummary(("nan",), 1, 6))
    with pytest.raises(BadData, match=r"fedavg diverged: .*; use a smaller step size or a robust aggregator"):
        decide_between(options(losses), roster([2]), attackers=AttackSummary(("nan",), 1, 6))
