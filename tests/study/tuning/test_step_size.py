"""The search for a step size: where it begins, how it widens, what it chooses, and that it is not made twice."""

import numpy as np
import optax
import pytest

from plures.data import Federation
from plures.data.worlds import linear_clusters
from plures.models import linear
from plures.study.curvature import curvature_step, sample_of
from plures.study.tuning import step_size
from plures.study.tuning.outcomes import Outcome
from plures.study.tuning.step_size import choose, find_step_sizes, nearest_rung, next_rung, step
from plures.types import Plan

SEEN: Federation = linear_clusters(num_clients=6, rows=40, seed=0).federation
MODEL = linear.least_squares(SEEN.shape)


def largest_curvature(federation):
    """The largest eigenvalue of the mean of (x, 1) (x, 1)^T: the Hessian of the mean of half squared errors."""
    x = np.asarray(sample_of(federation).x, float)
    ones = np.hstack([x, np.ones((len(x), 1))])
    return np.linalg.eigvalsh(ones.T @ ones / len(ones)).max()


def test_the_ceiling_is_one_over_the_largest_curvature():
    found = curvature_step(MODEL, Plan(), SEEN)

    assert found == pytest.approx(1 / largest_curvature(SEEN), rel=0.05)


def test_momentum_makes_it_smaller_by_how_much_farther_it_goes():
    """Ten steps of momentum 0.9 along one gradient go sum over t of (1 - 0.9^t) / 0.1, on average 4.1 of them."""
    plain = curvature_step(MODEL, Plan(), SEEN)
    farther = sum((1 - 0.9**t) / 0.1 for t in range(1, 11)) / 10

    found = curvature_step(MODEL, Plan(optimizer=lambda lr: optax.sgd(lr, momentum=0.9)), SEEN)

    assert found == pytest.approx(plain / farther, rel=1e-3)


def outcomes(**losses):
    return {step(int(rung[1:].replace("m", "-"))): Outcome(5, loss, loss) for rung, loss in losses.items()}


@pytest.mark.parametrize(
    ("losses", "expected"),
    [({"r0": 1.0, "r1": 0.5, "r2": 0.6}, None), ({"r0": 0.4, "r1": 0.5}, -1), ({"r0": 0.6, "r1": 0.5}, 2)],
    ids=["inside", "at the low edge", "at the high edge"],
)
def test_the_grid_is_widened_beyond_the_edge_that_is_best(losses, expected):
    assert next_rung(outcomes(**losses), [int(one[1:]) for one in losses]) == expected


def test_where_all_fail_the_next_step_is_a_tenth_of_the_smallest():
    failed = {step(rung): Outcome(5, failed="diverged") for rung in (0, 1)}

    assert step(next_rung(failed, [0, 1])) == pytest.approx(step(0) / 10)
    assert choose(failed) is None


def test_of_steps_within_one_percent_of_the_best_the_smallest_is_taken():
    assert choose(outcomes(r0=1.02, r1=1.009, r2=1.0)) == step(1)


def search(federation=SEEN, **options):
    given = {"rounds": 8, "model": MODEL, "plan": Plan(batch=10)}
    return find_step_sizes(["fedavg", "local_only"], federation, **{**given, **options})


def test_inputs_a_thousand_times_larger_get_a_step_that_does_not_diverge():
    x = np.asarray(SEEN.x) * 1000.0
    large = Federation(**{**vars(SEEN), "x": x.astype(np.float32), "source": None})

    found = search(large)

    assert found.common <= 2 / largest_curvature(large)
    assert found.rounds >= 2 * 5 * 5


def test_test_rows_have_no_say():
    spoiled = SEEN.y.copy()
    for start, count in zip(SEEN.start[:, 2], SEEN.count[:, 2], strict=True):
        spoiled[start : start + count] = np.nan

    found = search(Federation(**{**vars(SEEN), "y": spoiled, "source": None}))

    before = search()
    assert (found.common, found.alone) == (before.common, before.alone)


def test_without_valid_rows_it_is_the_curvature_alone():
    count = SEEN.count.copy()
    count[:, 1] = 0

    found = search(Federation(**{**vars(SEEN), "count": count, "source": None}))

    assert found.common == pytest.approx(1 / largest_curvature(SEEN), rel=0.06)
    assert found.rounds == 0


def test_what_was_found_in_a_folder_is_not_searched_again(tmp_path, monkeypatch):
    first = search(out=tmp_path)
    monkeypatch.setattr(step_size, "outcome_of", lambda *given: pytest.fail("a trial was run again"))

    assert search(out=tmp_path) == first


def test_a_race_that_was_cut_short_goes_on(tmp_path, monkeypatch):
    first = search(out=tmp_path)
    (tmp_path / "tuning" / "steps.json").unlink()
    monkeypatch.setattr(step_size, "outcome_of", lambda *given: pytest.fail("a trial was run again"))

    assert search(out=tmp_path).common == first.common


def test_rungs_are_three_to_a_decade():
    assert [nearest_rung(lr) for lr in (0.09, 0.1, 0.2, 0.5, 1.1)] == [-3, -3, -2, -1, 0]
