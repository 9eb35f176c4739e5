"""What a client does with its own rows, against steps written out by hand.

The recording model has one parameter per row and a loss whose gradient is the mean of the one-hot rows seen:
after training with step size 1 each parameter is minus the sum of 1 / (size of the batch the row was in).
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plures import local
from plures.keys import root
from plures.local import (
    BLOCK,
    batch_size,
    begin,
    descend,
    masked_mean,
    mean_loss,
    near,
    num_steps,
    objective,
    outputs_of,
    per_example_gradients,
    sgd,
    steps_per_epoch,
)
from plures.models import from_functions, linear
from plures.models.build import Task
from plures.types import Batch, Data, Plan, Rows, Weights

ROWS = 5
THREES = Plan(batch=3, lr=1.0)
RECORDER = from_functions(
    init=lambda key: jnp.zeros(ROWS),
    apply=lambda params, x: x @ params,
    task=Task("regression", lambda outputs, y: outputs, {}, "loss", False),
)
LINE = linear.least_squares((2,))
X = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 1.0], [-2.0, 0.5]], np.float32)
Y = np.array([1.0, -1.0, 2.0, 0.5], np.float32)
KERNEL, BIAS = np.array([0.5, -0.25], np.float32), np.float32(0.125)


def rows_of(x, y=None, *, start=0, count=None, capacity=None):
    x = jnp.asarray(x, jnp.float32)
    y = jnp.zeros(len(x)) if y is None else jnp.asarray(y)
    return Rows(x, y, start, len(x) if count is None else count, len(x) if capacity is None else capacity)


@partial(jax.jit, static_argnames=("plan", "capacity", "model"))
def record(key, x, start, count, *, plan, capacity=ROWS, model=RECORDER):
    """Weights and info after ``plan``, the count being traced."""
    rows = rows_of(x, start=start, count=count, capacity=capacity)
    return sgd(key, model.init(key), Data(rows, rows), plan, objective(model))


def seen_shares(plan, *, key=None, x=None, start=0, count=ROWS, capacity=ROWS):
    """For every row the sum of 1 / (batch size) over the batches that held it; and the info."""
    x = np.eye(ROWS) if x is None else x
    trained, info = record(root(0) if key is None else key, x, start, count, plan=plan, capacity=capacity)
    return -np.asarray(trained.params), info


def line_weights(kernel=KERNEL, bias=BIAS):
    return Weights({"head": {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}})


def line_gradient(kernel, bias, x=X, y=Y):
    """The gradient of mean((x k + b - y)^2 / 2)."""
    error = x @ kernel + bias - y
    return x.T @ error / len(x), error.mean()


def train_line(plan, loss, **options):
    """Kernel, bias and info after ``plan`` on X and Y."""
    rows = rows_of(X, Y)
    found, info = jax.jit(lambda: sgd(root(0), line_weights(), Data(rows, rows), plan, loss, **options))()
    return found.params["head"]["kernel"], found.params["head"]["bias"], info


ONE_EPOCH = [1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 2]  # a batch of three and one of two


def test_an_epoch_sees_every_row_once_in_full_and_short_batches():
    shares, info = seen_shares(THREES)

    np.testing.assert_allclose(np.sort(shares), ONE_EPOCH, rtol=1e-6)
    assert float(info["steps"]) == 2


@pytest.mark.parametrize(
    ("count", "batch", "sizes"), [(5, 4, [3, 2]), (4, 3, [2, 2]), (3, 2, [2, 1]), (5, 5, [5]), (5, 1, [1] * 5)]
)
@pytest.mark.parametrize("seed", range(2))
def test_the_rows_of_an_epoch_are_spread_evenly_over_its_batches(seed, count, batch, sizes):
    """5 rows in batches of at most 4 are 3 and 2, not 4 and a step on a single row."""
    shares, info = seen_shares(Plan(batch=batch, lr=1.0), key=root(seed), count=count)

    expected = [1 / size for size in sizes for _ in range(size)]
    np.testing.assert_allclose(np.sort(shares[:count]), np.sort(expected), rtol=1e-6)
    assert float(info["steps"]) == len(sizes)


@pytest.mark.parametrize("seed", range(3))
def test_a_second_epoch_sees_every_row_once_more(seed):
    both, _ = seen_shares(replace(THREES, epochs=2), key=root(seed))
    first, _ = seen_shares(THREES, key=root(seed))

    np.testing.assert_allclose(np.sort(both - first), ONE_EPOCH, rtol=1e-6)


def test_epochs_are_shuffled_anew():
    """With one of four keys at least, another pair of rows is in the smaller batch."""
    firsts = [seen_shares(THREES, key=root(seed))[0] for seed in range(4)]
    boths = [seen_shares(replace(THREES, epochs=2), key=root(seed))[0] for seed in range(4)]

    assert any(np.abs(both - 2 * first).max() > 0.1 for both, first in zip(boths, firsts, strict=True))


def test_another_key_draws_other_batches():
    drawn = {tuple(seen_shares(THREES, key=root(seed))[0].tolist()) for seed in range(4)}

    assert len(drawn) > 1


def test_static_and_traced_counts_train_alike():
    traced, _ = seen_shares(THREES, count=ROWS)
    rows = rows_of(np.eye(ROWS), count=ROWS)

    static, _ = jax.jit(
        lambda: sgd(root(0), Weights(jnp.zeros(ROWS)), Data(rows, rows), THREES, objective(RECORDER))
    )()

    np.testing.assert_array_equal(-static.params, traced)


def test_a_larger_capacity_changes_nothing():
    alone, _ = seen_shares(THREES, count=4, capacity=4)

    among_larger, _ = seen_shares(THREES, count=4, capacity=ROWS)

    np.testing.assert_array_equal(among_larger, alone)


def test_a_client_smaller_than_a_batch_trains_on_its_own_rows():
    shares, info = seen_shares(THREES, start=2, count=2)

    assert shares.tolist() == [0.0, 0.0, 0.5, 0.5, 0.0]
    assert float(info["steps"]) == 1


@pytest.mark.parametrize(
    "plan", [THREES, Plan(batch=None), Plan(batch=None, steps=3)], ids=["batches", "full", "steps"]
)
def test_a_client_with_no_rows_does_nothing(plan):
    shares, info = seen_shares(plan, x=np.full((ROWS, ROWS), np.nan), count=0)

    np.testing.assert_array_equal(shares, np.zeros(ROWS))
    assert (float(info["loss"]), float(info["steps"])) == (0.0, 0.0)


def test_a_federation_without_rows_does_nothing():
    rows = rows_of(X, Y, count=0, capacity=0)

    found, info = sgd(root(0), line_weights(), Data(rows, rows), Plan(batch=None, steps=3), objective(LINE))

    np.testing.assert_array_equal(found.params["head"]["kernel"], KERNEL)
    assert (float(info["loss"]), float(info["steps"])) == (0.0, 0.0)


@pytest.mark.parametrize("plan", [THREES, Plan(batch=None)], ids=["batches", "full"])
def test_rows_of_others_never_count_even_if_not_finite(plan):
    spoiled = np.eye(ROWS)
    spoiled[[0, 3, 4]] = np.nan
    clean, _ = seen_shares(plan, start=1, count=2)

    among_nan, _ = seen_shares(plan, x=spoiled, start=1, count=2)

    np.testing.assert_array_equal(among_nan, clean)


def test_clients_of_different_sizes_train_together_as_each_alone():
    starts, counts = jnp.array([0, 0, 1]), jnp.array([0, 2, 4])
    one = partial(record, root(0), np.eye(ROWS), plan=THREES)

    together = jax.vmap(lambda start, count: one(start, count)[0].params)(starts, counts)

    alone = [one(start, count)[0].params for start, count in zip(starts, counts, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_steps_replace_epochs_and_run_on_into_the_next():
    """Three steps are an epoch of two batches and the first full batch of the next."""
    epoch, _ = seen_shares(THREES)

    shares, info = seen_shares(replace(THREES, epochs=7, steps=3))

    assert float(info["steps"]) == 3
    np.testing.assert_allclose(np.sort(shares - epoch), [0, 0, 1 / 3, 1 / 3, 1 / 3], rtol=1e-6)


@pytest.mark.parametrize(
    ("batch", "count", "expected"), [(2, 5, 3), (5, 5, 1), (9, 5, 1), (None, 5, 1), (2, 0, 0), (None, 0, 0)]
)
@pytest.mark.parametrize("kind", [int, jnp.asarray])
def test_an_epoch_has_enough_batches_for_all_rows(kind, batch, count, expected):
    rows = rows_of(np.eye(ROWS), count=kind(count))

    assert int(steps_per_epoch(rows, Plan(batch=batch))) == expected


@pytest.mark.parametrize(("batch", "expected"), [(2, 2), (100, ROWS), (None, ROWS)])
def test_a_batch_is_never_larger_than_the_largest_client(batch, expected):
    assert batch_size(rows_of(np.eye(ROWS)), Plan(batch=batch)) == expected


def test_no_epochs_are_no_steps():
    assert num_steps(rows_of(X, Y), Plan(epochs=0)) == 0


def test_a_full_batch_step_is_the_gradient_step():
    slope, lift = line_gradient(KERNEL, BIAS)

    kernel, bias, info = train_line(Plan(batch=None, lr=0.1), objective(LINE))

    np.testing.assert_allclose(kernel, KERNEL - 0.1 * slope, rtol=1e-6)
    np.testing.assert_allclose(bias, BIAS - 0.1 * lift, rtol=1e-6)
    np.testing.assert_allclose(info["loss"], np.square(X @ KERNEL + BIAS - Y).mean() / 2, rtol=1e-6)


def test_the_reported_loss_is_the_mean_over_steps():
    """The recorder's loss at step t is -t / ROWS with full batches and step size 1."""
    _, info = seen_shares(Plan(batch=None, epochs=3, lr=1.0))

    np.testing.assert_allclose(info["loss"], -(0 + 1 + 2) / 3 / ROWS, rtol=1e-6)


def test_near_adds_the_pull_towards_the_anchor():
    lam, anchor = 0.7, line_weights(np.array([2.0, 3.0], np.float32), np.float32(-1.0))
    slope, lift = line_gradient(KERNEL, BIAS)

    kernel, bias, _ = train_line(Plan(batch=None, lr=0.1), near(LINE, anchor, lam))

    np.testing.assert_allclose(kernel, KERNEL - 0.1 * (slope + lam * (KERNEL - [2.0, 3.0])), rtol=1e-5)
    np.testing.assert_allclose(bias, BIAS - 0.1 * (lift + lam * (BIAS + 1.0)), rtol=1e-5)


def test_the_objective_includes_the_penalty_of_the_model():
    ridged = linear.least_squares((2,), ridge=0.3)
    batch = rows_of(X, Y).all()

    plain, _ = objective(LINE)(root(0), line_weights(), batch)
    found, _ = objective(ridged)(root(0), line_weights(), batch)

    np.testing.assert_allclose(found - plain, 0.15 * (np.square(KERNEL).sum() + BIAS**2), rtol=1e-5)


def test_adjust_changes_the_gradient_before_the_step():
    slope, lift = line_gradient(KERNEL, BIAS)

    def doubled(grads, params):
        return jax.tree.map(lambda g, p: 2 * g + 3 * p, grads, params)

    kernel, bias, _ = train_line(Plan(batch=None, lr=0.1), objective(LINE), adjust=doubled)

    np.testing.assert_allclose(kernel, KERNEL - 0.1 * (2 * slope + 3 * KERNEL), rtol=1e-5)
    np.testing.assert_allclose(bias, BIAS - 0.1 * (2 * lift + 3 * BIAS), rtol=1e-5)


def test_momentum_is_kept_across_steps():
    """Constant gradient g: velocities g, 1.9 g, 2.71 g."""
    plan = Plan(batch=None, epochs=3, lr=1.0, optimizer=partial(optax.sgd, momentum=0.9))

    shares, _ = seen_shares(plan)

    np.testing.assert_allclose(shares, np.full(ROWS, (1 + 1.9 + 2.71) / ROWS), rtol=1e-6)


def test_adam_moments_are_kept_across_steps():
    kernel, bias, moments = KERNEL, BIAS, [(0.0, 0.0), (0.0, 0.0)]
    for step in (1, 2, 3):
        slopes = line_gradient(kernel, bias)
        moments = [
            (0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2)
            for (first, second), slope in zip(moments, slopes, strict=True)
        ]
        kernel, bias = (
            value - 0.2 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
            for value, (first, second) in zip((kernel, bias), moments, strict=True)
        )

    found, lifted, _ = train_line(Plan(batch=None, epochs=3, lr=0.2, optimizer=optax.adam), objective(LINE))

    np.testing.assert_allclose(found, kernel, rtol=1e-4)
    np.testing.assert_allclose(lifted, bias, rtol=1e-4)


def test_a_descent_in_two_pieces_is_the_whole_descent():
    plan, rows = Plan(batch=2, lr=0.1, optimizer=partial(optax.sgd, momentum=0.9)), rows_of(X, Y)

    @jax.jit
    def go(descent, start, stop):
        return descend(root(0), descent, rows, plan, objective(LINE), start=start, stop=stop)

    whole = go(begin(line_weights(), plan), 0, 4)
    pieces = go(go(begin(line_weights(), plan), 0, 3), 3, 4)

    jax.tree.map(np.testing.assert_array_equal, pieces, whole)


def test_statistics_of_the_forward_pass_are_carried_and_its_key_changes_every_step():
    def forward(key, weights, x, mask):
        step, keys = weights.stats
        return x @ weights.params, (step + 1, keys.at[step].set(jax.random.key_data(key)))

    fresh = Weights(jnp.zeros(ROWS), (jnp.asarray(0), jnp.zeros((3, 2), jnp.uint32)))
    witness = replace(RECORDER, init=lambda key: fresh, forward=forward)

    found, _ = record(root(0), np.eye(ROWS), 0, ROWS, plan=Plan(batch=None, epochs=3), model=witness)

    step, keys = found.stats
    assert int(step) == 3
    assert len(np.unique(np.asarray(keys), axis=0)) == 3


def test_per_example_gradients_average_to_the_batch_gradient():
    mask = jnp.array([True, True, False, True])
    kernel, bias = line_gradient(KERNEL, BIAS, X[[0, 1, 3]], Y[[0, 1, 3]])

    found = per_example_gradients(LINE, root(0), line_weights(), Batch(jnp.asarray(X), jnp.asarray(Y), mask))

    np.testing.assert_allclose(found["head"]["kernel"].sum(0) / 3, kernel, rtol=1e-6)
    np.testing.assert_allclose(found["head"]["bias"].sum() / 3, bias, rtol=1e-6)


@pytest.mark.parametrize(
    "ridge",
    [
        0.0,
        pytest.param(0.5),
    ],
)
def test_the_gradient_of_a_row_that_does_not_count_is_zero(ridge):
    batch = Batch(jnp.asarray(X[:2]), jnp.asarray(Y[:2]), jnp.array([True, False]))

    found = per_example_gradients(linear.least_squares((2,), ridge=ridge), root(0), line_weights(), batch)

    assert found["head"]["kernel"][1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", [int, jnp.asarray])
@pytest.mark.parametrize(("start", "count", "capacity"), [(0, 7, 7), (3, 2 * BLOCK + 1, 2 * BLOCK + 40)])
def test_outputs_of_all_rows_are_the_direct_prediction(kind, start, count, capacity):
    x = np.arange(3 * BLOCK, dtype=np.float32)[:, None] * [1.0, -0.5]
    rows = rows_of(x, start=start, count=kind(count), capacity=capacity)

    found = outputs_of(LINE.apply, line_weights(), rows)

    assert found.shape == (capacity,)
    np.testing.assert_allclose(found[:count], x[start : start + count] @ KERNEL + BIAS, rtol=1e-6)


def test_mean_loss_counts_own_rows_only():
    x, y = np.vstack([X, np.full((2, 2), np.nan)]), np.append(Y, [np.nan, np.nan])

    found = mean_loss(LINE, LINE.apply, line_weights(), rows_of(x, y, count=jnp.asarray(4)))

    np.testing.assert_allclose(found, np.square(X @ KERNEL + BIAS - Y).mean() / 2, rtol=1e-6)


def test_mean_loss_of_no_rows_is_zero():
    assert float(mean_loss(LINE, LINE.apply, line_weights(), rows_of(X, Y, count=0))) == 0.0


def test_masked_mean_ignores_what_is_masked():
    assert float(masked_mean(jnp.array([1.0, jnp.nan, 4.0]), jnp.array([True, False, True]))) == 2.5


def test_full_batches_in_blocks_equal_the_whole(monkeypatch):
    """A client of 300 rows among larger ones: three blocks, the last one short."""
    model = linear.softmax((2,), 3, ridge=0.1)
    keys = jax.random.split(jax.random.key(4), 2)
    x, y = jax.random.normal(keys[0], (400, 2)), jax.random.randint(keys[1], (400,), 0, 3)
    data = Data(Rows(x, y, 0, jnp.asarray(300), 400), Rows(x, y, 0, 0, 0))
    plan = Plan(batch=None, lr=0.5, epochs=3)
    start = Weights({"head": {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(3)}})

    blocks, info = sgd(jax.random.key(0), start, data, plan, objective(model))
    monkeypatch.setattr(local, "BLOCK", 1000)
    whole, expected = sgd(jax.random.key(0), start, data, plan, objective(model))

    for found, wanted in zip(jax.tree.leaves(blocks), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert float(info["loss"]) == pytest.approx(float(expected["loss"]), abs=1e-6)
