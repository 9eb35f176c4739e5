"""Runs under attack: who attacks, what they learn from, who is scored, and what is refused or said before."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from plures import run, then
from plures.attacks.attackers import attacker_uids
from plures.attacks.label_flip import label_flip
from plures.attacks.upload_attacks import large_noise, sign_flip
from plures.channel.clip import clip
from plures.contract import worlds
from plures.engine import Settings, prepare
from plures.engine.attackers import attackers_of, forecast_of
from plures.errors import BadFile, BadValue, MethodWarning, Unsupported
from plures.method import Forecast
from plures.methods.fedavg import fedavg
from plures.methods.local_only import local_only
from plures.types import Plan

SEEN, UNSEEN = worlds.awkward()  # six clients, and two
SHARE, NUMBER = 0.34, 2
ATTACKERS = attacker_uids(6, share=SHARE).tolist()
METHOD = fedavg(worlds.model(), plan=worlds.PLAN)


def ready(method=METHOD, federation=SEEN, *, channels, **settings):
    return prepare(method, federation, settings=Settings(rounds=1, channels=channels, **settings))


# Who


def test_exactly_the_share_of_the_training_clients_lies_and_is_marked():
    found = run(METHOD, SEEN, unseen=UNSEEN, rounds=1, channels=(clip(norm=9.0), sign_flip(share=SHARE))).clients

    assert len(ATTACKERS) == NUMBER
    assert found.filter("attacker")["uid"].to_list() == ATTACKERS
    assert not found.filter(~found["seen"])["attacker"].any()


def test_the_same_clients_lie_in_any_order_of_rows():
    turned, _ = worlds.awkward(order=[3, 1, 7, 0, 5, 2, 6, 4])

    assert (
        np.flatnonzero(ready(federation=turned, channels=(sign_flip(share=SHARE),)).attackers).tolist() == ATTACKERS
    )


def test_without_an_attack_nobody_is_marked():
    assert "attacker" not in run(METHOD, SEEN, rounds=1).clients.columns


def test_two_attacks_are_by_the_clients_of_either():
    found = ready(channels=(sign_flip(share=0.2, seed=1), large_noise(share=0.2, seed=4)))

    both = {*attacker_uids(6, share=0.2, seed=1), *attacker_uids(6, share=0.2, seed=4)}
    assert set(np.flatnonzero(found.attackers)) == both
    counted = attackers_of(found.settings.channels, found.num_seen)
    assert counted.attacks == ("sign_flip", "large_noise")
    assert counted.num_attackers == len(both) == 2


@pytest.mark.parametrize(
    ("channels", "said"),
    [
        (
            (sign_flip(share=0.05),),
            "share of sign_flip must be at least 0.083, for one of 6 clients to attack",
        ),
        ((sign_flip(share=0.95),), "share must be so small that one of 6 clients stays honest, got 0.95"),
        ((sign_flip(num_clients=9),), "num_clients must be 6, the number of training clients, got 9"),
    ],
)
def test_attacks_that_these_clients_cannot_have_are_refused(channels, said):
    with pytest.raises(BadValue, match=said):
        ready(channels=channels)


# What they learn from


def test_liars_about_labels_learn_from_wrong_ones_and_are_scored_on_right_ones():
    """With steps too small to move, losses tell the labels: those of test rows are what they were."""
    method = fedavg(worlds.model(parts=True), plan=Plan(batch=None, lr=1e-9))

    honest, lying = (
        run(method, SEEN, unseen=UNSEEN, rounds=1, channels=channels).clients
        for channels in ((), (label_flip(share=SHARE),))
    )

    assert lying["personal_test_loss"].to_list() == pytest.approx(honest["personal_test_loss"].to_list(), abs=1e-6)
    moved = (lying["personal_valid_loss"] - honest["personal_valid_loss"]).abs() > 1e-4
    found = set(lying.filter(moved)["uid"])
    assert found <= set(ATTACKERS)  # the middle one of three classes is its own mirror image
    assert found


def test_the_data_of_the_caller_are_left_as_they_were():
    before = SEEN.y.copy()

    ready(channels=(label_flip(share=SHARE),))

    assert (SEEN.y == before).all()


def test_a_checkpoint_under_another_attack_is_refused(tmp_path):
    run(METHOD, SEEN, rounds=1, channels=(sign_flip(share=SHARE),), checkpoint=tmp_path)

    with pytest.raises(BadFile, match="channels sign_flip"):
        run(METHOD, SEEN, rounds=2, channels=(sign_flip(share=0.2),), checkpoint=tmp_path)


# Who is scored


def test_progress_is_the_score_of_honest_clients():
    told = []

    found = run(METHOD, SEEN, rounds=1, channels=(label_flip(share=0.2),), progress=told.append).clients

    honest = found.filter(~found["attacker"])["personal_valid_accuracy"]
    assert told[-1].score == pytest.approx(honest.mean())
    assert told[-1].score != pytest.approx(found["personal_valid_accuracy"].mean())


# What is refused


def test_more_liars_than_a_method_is_made_for_are_refused_with_the_numbers():
    weak = replace(METHOD, traits=replace(METHOD.traits, tolerates=lambda number: number // 6))

    with pytest.raises(BadValue, match=r"number of attackers must be at most 1 of 6 \(17 %\), got 2"):
        ready(weak, channels=(sign_flip(share=SHARE),))
    ready(weak, channels=(sign_flip(share=0.2),))
    ready(weak, channels=())


def test_of_a_cohort_their_share_is_counted():
    """A third of the clients lie: 1 of a cohort of 3, where none is tolerated."""
    weak = replace(METHOD, traits=replace(METHOD.traits, tolerates=lambda number: {3: 0, 6: 5}[number]))

    ready(weak, channels=(sign_flip(share=SHARE),))
    with pytest.raises(BadValue, match=r"at most 0 of 3 \(0 %\), got 1"):
        ready(weak, channels=(sign_flip(share=SHARE),), cohort=3)
    ready(
        replace(weak, traits=replace(weak.traits, full_cohort=True)), channels=(sign_flip(share=SHARE),), cohort=3
    )


def test_a_prelude_is_held_to_what_it_is_made_for_too():
    warm = then(
        replace(METHOD, traits=replace(METHOD.traits, tolerates=lambda number: 0)),
        1,
        local_only(worlds.model(), plan=worlds.PLAN),
    )

    with pytest.raises(BadValue, match="at most 0 of 6"):
        prepare(warm, SEEN, settings=Settings(rounds=3, channels=(sign_flip(share=SHARE),)))


def test_the_median_is_made_for_less_than_half():
    robust = fedavg(worlds.model(), plan=worlds.PLAN, aggregate="median")

    with pytest.raises(BadValue, match=r"at most 2 of 6 \(33 %\), got 3"):
        ready(robust, channels=(sign_flip(share=0.5),))


def test_labels_are_flipped_only_where_there_are_classes():
    numbers = replace(SEEN, task="regression", y=SEEN.y.astype(float), num_classes=0)

    with pytest.raises(Unsupported, match="label_flip is for classification"):
        ready(federation=numbers, channels=(label_flip(share=SHARE),))


# What is said before


def talkative(num_clients, sizes):
    return Forecast("much", (f"{num_clients} clients in groups of {list(sizes)}",))


def test_a_run_warns_once_of_what_its_method_foresees():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(replace(METHOD, views=replace(METHOD.views, forecast=talkative)), SEEN, rounds=1)

    found = [str(one.message) for one in caught if one.category is MethodWarning]
    assert found == ["6 clients in groups of [3, 3]"]


def test_a_forecast_hears_of_honest_groups_alone():
    method = replace(METHOD, views=replace(METHOD.views, forecast=talkative))
    sizes = np.bincount([uid % 2 for uid in range(6) if uid not in ATTACKERS]).tolist()

    found = forecast_of(method, SEEN, (sign_flip(share=SHARE),))

    assert found.warnings == (f"6 clients in groups of {sizes}",)
    assert sizes != [3, 3]


def test_without_planted_groups_a_forecast_hears_of_none():
    found = forecast_of(
        replace(METHOD, views=replace(METHOD.views, forecast=talkative)), replace(SEEN, group=None, num_groups=0)
    )

    assert found == Forecast("much", ("6 clients in groups of []",))
    assert forecast_of(METHOD, SEEN) is None


def test_with_a_drawn_cohort_warnings_are_for_its_number_and_its_share_of_groups():
    method = replace(METHOD, views=replace(METHOD.views, forecast=talkative))

    assert forecast_of(method, SEEN, cohort=4).warnings == ("4 clients in groups of [2, 2]",)
    assert forecast_of(
        replace(method, traits=replace(method.traits, full_cohort=True)), SEEN, cohort=4
    ).warnings == ("6 clients in groups of [3, 3]",)
