"""Closing rounds: who plays which rounds, who takes part, what is counted and scored, and going on from a checkpoint."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run
from plures.contract.bench import Stopped
from plures.data.worlds import mean_estimation
from plures.engine import Settings, prepare
from plures.engine.phases import least_rounds, spans_of
from plures.errors import BadFile, BadValue, MethodWarning, Unsupported
from plures.method import Report, Views, closed, then
from plures.methods.clustering.hypcluster import hypcluster
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.types import Plan
from plures.wrap.closing import Survey, surveyed

WORLD = mean_estimation(num_clients=4, dim=2, rows=6, radius=1.0, sigma=0.1)
MEANS = np.stack([WORLD.federation.rows_of(name, "train")[1].mean(0) for name in WORLD.federation.names])
EXACT = Plan(batch=None, lr=1.0)
POINT = 2 * 4  # bytes of a model


def counting(base):
    """``base`` closed by a round in which the server counts the clients it hears and adds up three of each."""

    def gather(found, answers, weights, uids):
        return found + jnp.stack([(weights > 0).sum(), answers.sum()])

    return surveyed(
        base,
        blank=lambda key, num_clients: jnp.zeros(2),
        ask=lambda key, offer, data: (jnp.asarray(3.0), {"asked": jnp.ones(())}),
        gather=gather,
    )


@cache
def method():
    return counting(fedavg(WORLD.model, plan=EXACT))


@cache
def finished():
    return run(method(), WORLD.federation, rounds=3, cohort=1, eval_every=1)


def spans(method, rounds):
    return [(one.start, one.stop, one.main) for one in spans_of(method, rounds)]


@pytest.mark.parametrize(
    ("build", "rounds", "wanted"),
    [
        (lambda base: counting(base), 7, [(0, 6, True), (6, 7, True)]),
        (lambda base: counting(then(base, 2, base)), 7, [(0, 2, False), (2, 6, True), (6, 7, True)]),
        (lambda base: counting(counting(base)), 7, [(0, 5, True), (5, 6, True), (6, 7, True)]),
        (
            lambda base: counting(hypcluster(base.model, warm=3)),  # warm, candidates, scores, clusters
            9,
            [(0, 3, False), (3, 4, False), (4, 5, False), (5, 8, True), (8, 9, True)],
        ),
    ],
    ids=["alone", "after a prelude", "closed twice", "hypcluster"],
)
def test_the_last_round_closes_and_the_others_are_the_bases(build, rounds, wanted):
    assert spans(build(fedavg(WORLD.model)), rounds) == wanted


def test_the_fewest_rounds_leave_one_for_the_method_itself():
    method = counting(then(fedavg(WORLD.model), 2, fedavg(WORLD.model)))

    assert least_rounds(method) == 4
    assert spans(method, 4) == [(0, 2, False), (2, 3, True), (3, 4, True)]
    with pytest.raises(BadValue, match="rounds must be more than the 3 before and after the method's own, got 3"):
        run(method, WORLD.federation, rounds=3)


def test_a_base_with_private_state_is_refused():
    base = ditto(WORLD.model)

    with pytest.raises(Unsupported, match="a closing round needs a base without private state"):
        closed(base, base, hand_over=lambda key, fresh, before: before)


def test_everyone_takes_part_in_the_last_round_whatever_the_cohort():
    result = finished()

    assert result.state.server.found.tolist() == [4.0, 12.0]
    assert result.state.visits.tolist() == [1] * 4
    assert sorted(result.clients["rounds"].to_list()) in ([1, 1, 1, 3], [1, 1, 2, 2])


def test_the_base_is_handed_over_as_it_ended():
    alone = run(fedavg(WORLD.model, plan=EXACT), WORLD.federation, rounds=2, cohort=1)

    np.testing.assert_array_equal(
        finished().state.server.base.weights.params["point"], alone.state.server.weights.params["point"]
    )


def test_bytes_of_both_phases_are_counted():
    """Two rounds with one client: a model down and up. The last with all four: a model down, a number up, and then the
    offer: the model, what was counted and whether the client was heard."""
    result = finished()

    offer = POINT + 2 * 4 + 1
    assert result.num_bytes == 2 * (POINT + POINT) + 4 * (POINT + 4 + offer)
    visits = result.clients["rounds"].to_numpy() - 1
    np.testing.assert_array_equal(result.clients["bytes_down"], visits * POINT + POINT + offer)
    np.testing.assert_array_equal(result.clients["bytes_up"], visits * POINT + 4)


def test_scores_are_taken_in_the_methods_own_rounds_and_at_the_end_but_not_in_preludes():
    base = fedavg(WORLD.model, plan=EXACT)

    result = run(counting(then(base, 2, base)), WORLD.federation, rounds=5, eval_every=1)

    rounds = {
        split: {one.round for one in result.record.scores if one.split == split} for split in ("valid", "test")
    }
    assert rounds == {"valid": {3, 4, 5}, "test": {5}}


def test_what_clients_tell_when_asked_is_recorded_in_the_last_round():
    assert [(round_, value) for round_, name, value in finished().record.info if name == "asked"] == [(3, 1.0)]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_run_stopped_in_any_phase_goes_on_to_the_same_end(tmp_path, stop):
    settings = Settings(rounds=3, cohort=1, eval_every=1, checkpoint=tmp_path, checkpoint_every=1)
    runner = prepare(method(), WORLD.federation, settings=settings)

    def stop_there(now):
        if now.round == stop:
            raise Stopped

    with pytest.raises(Stopped):
        replace(runner, progress=stop_there).run()
    resumed = runner.run()

    whole = finished()
    for one, other in zip(jax.tree.leaves(whole.state), jax.tree.leaves(resumed.state), strict=True):
        np.testing.assert_array_equal(one, other)
    assert resumed.num_bytes == whole.num_bytes
    assert resumed.clients.equals(whole.clients)


def test_a_finished_run_is_found_finished(tmp_path):
    settings = {"rounds": 3, "cohort": 1, "eval_every": 1, "checkpoint": tmp_path}
    first = run(method(), WORLD.federation, **settings)

    again = run(method(), WORLD.federation, **settings)

    assert again.clients.equals(first.clients)
    assert again.state.server.found.tolist() == [4.0, 12.0]


def test_a_run_of_another_length_is_refused(tmp_path):
    """Its last round was another one: the base cannot be trained on after it."""
    run(method(), WORLD.federation, rounds=3, cohort=1, checkpoint=tmp_path)

    with pytest.raises(BadFile, match="belongs to a run with rounds 3, not 5; use another folder"):
        run(method(), WORLD.federation, rounds=5, cohort=1, checkpoint=tmp_path)


def test_warnings_of_the_base_are_still_given():
    def report(server):
        return Report([f"{len(server.weights.params['point'])} numbers"])

    base = replace(fedavg(WORLD.model, plan=EXACT), views=Views(report=report))

    with pytest.warns(MethodWarning, match="2 numbers"):
        result = run(counting(base), WORLD.federation, rounds=2)

    assert result.report.warnings == ["2 numbers"]


def test_what_a_method_tells_of_clients_and_models_stands_in_the_table():
    """The cluster is the sign of a client's mean, by its training rows; the fact is the first number of its model."""
    base = replace(
        fedavg(WORLD.model, plan=EXACT),
        views=Views(
            assign=lambda offer, private, data: {"cluster": (data.train.all().y.mean(0)[0] > 0).astype(int)},
            facts=lambda offer, private, served: {"first": served.params["point"][0]},
        ),
    )

    table = run(counting(base), WORLD.federation, rounds=2).clients

    assert table["cluster"].to_list() == (MEANS[:, 0] > 0).astype(float).tolist()
    np.testing.assert_allclose(table["first"], [MEANS.mean(0)[0]] * 4, atol=1e-6)


def test_a_survey_offers_what_was_found_and_serves_as_the_base_does():
    offer = method().offered(finished().state.server, jnp.asarray(2))

    assert isinstance(offer, Survey)
    assert offer.found.tolist() == [4.0, 12.0]
    np.testing.assert_array_equal(method().views.common(offer).params["point"], offer.base.params["point"])


@pytest.mark.parametrize(("lanes", "size"), [(1, None), (2**16 * 15 // 8, 2), (2**18, 1)])
def test_models_trained_side_by_side_take_up_room(lanes, size, monkeypatch):
    """An offer is 17 bytes; there is room for four megabytes, on any machine."""
    monkeypatch.setattr("plures.engine.executors.CACHE_BYTES", 2**22)
    monkeypatch.setattr("plures.engine.executors.DEVICE_BYTES", 2**22)
    busy = replace(method(), traits=replace(method().traits, lanes=lanes))
    runner = prepare(busy, WORLD.federation, settings=Settings(rounds=3))

    assert runner.setup(runner.phases[-1]).executor.size == size
