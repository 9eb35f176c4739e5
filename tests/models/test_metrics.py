"""Metrics of one client: against scikit-learn and hand counts, rows with a false mask never counting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from plures.models import metrics
from plures.models.build import BINARY, CLASSIFICATION, DENSITY, MARGIN, REGRESSION, SEQUENCE

TASKS = {
    "classification": (CLASSIFICATION, jnp.zeros((3, 2)), jnp.zeros(3, int)),
    "sequence": (SEQUENCE, jnp.zeros((3, 4, 2)), jnp.zeros((3, 4), int)),
    "binary": (BINARY, jnp.zeros(3), jnp.zeros(3, int)),
    "margin": (MARGIN, jnp.zeros(3), jnp.zeros(3, int)),
    "regression": (REGRESSION, jnp.zeros(3), jnp.zeros(3)),
    "density": (DENSITY, jnp.zeros((3, 2)), jnp.zeros(3, int)),
}
EVERY_METRIC = [(task, name) for task, (found, _, _) in TASKS.items() for name in found.metrics]


@pytest.mark.parametrize(("task", "name"), EVERY_METRIC)
def test_a_metric_is_nan_where_nothing_counts(task, name):
    found, outputs, y = TASKS[task]

    assert jnp.isnan(found.metrics[name](outputs, y, jnp.zeros(3, bool)))


@pytest.mark.parametrize(("task", "name"), EVERY_METRIC)
def test_a_metric_does_not_see_masked_rows(task, name):
    found, outputs, y = TASKS[task]
    y = y.at[0].set(1)
    mask = jnp.array([True, True, False])
    clean = found.metrics[name](outputs, y, mask)

    spoiled = found.metrics[name](outputs.at[2].set(jnp.nan), y.at[2].set(7), mask)

    assert float(spoiled) == float(clean)


@pytest.mark.parametrize("task", TASKS)
def test_the_score_of_a_task_is_one_of_its_metrics(task):
    assert TASKS[task][0].score in TASKS[task][0].metrics


def test_accuracy_is_the_share_of_right_classes():
    outputs = jnp.array([[2.0, 1.0], [0.0, 5.0], [3.0, 0.0], [1.0, 0.0]])

    found = CLASSIFICATION.metrics["accuracy"](
        outputs, jnp.array([0, 1, 1, 1]), jnp.array([True, True, True, False])
    )

    np.testing.assert_allclose(found, 2 / 3, rtol=1e-6)


def test_accuracy_of_sequences_averages_over_their_places():
    outputs = jax.nn.one_hot(jnp.array([[0, 1, 2, 0], [1, 1, 1, 1]]), 3)

    found = metrics.hits(outputs, jnp.array([[0, 1, 0, 0], [1, 0, 0, 0]]))

    assert found.tolist() == [0.75, 0.25]


def test_accuracy_of_two_classes_goes_by_the_sign():
    found = metrics.sign_hits(jnp.array([0.5, -0.5, 0.5, -0.5, 0.0]), jnp.array([1, 0, 0, 1, 0]))

    assert found.tolist() == [1.0, 1.0, 0.0, 0.0, 1.0]


def test_rmse_is_the_root_of_the_mean_square():
    """Errors 3 and 4: sqrt((9 + 16) / 2)."""
    found = REGRESSION.metrics["rmse"](jnp.array([3.0, 0.0]), jnp.array([0.0, 4.0]), jnp.ones(2, bool))

    np.testing.assert_allclose(found, np.sqrt(12.5), rtol=1e-6)


def test_rmse_of_vectors_takes_their_whole_length():
    found = REGRESSION.metrics["rmse"](jnp.array([[3.0, 4.0]]), jnp.zeros((1, 2)), jnp.ones(1, bool))

    np.testing.assert_allclose(found, 5.0, rtol=1e-6)


def test_perplexity_of_a_uniform_guess_is_the_number_of_symbols():
    found = DENSITY.metrics["perplexity"](jnp.zeros((2, 7)), jnp.array([0, 6]), jnp.ones(2, bool))

    np.testing.assert_allclose(found, 7.0, rtol=1e-5)


def test_perplexity_is_the_exponential_of_the_mean_log_loss():
    """Probabilities 1/2 and 1/8 of the symbols seen: exp((log 2 + log 8) / 2) = 4."""
    logits = jnp.log(jnp.array([[0.5, 0.5], [0.125, 0.875]]))

    found = SEQUENCE.metrics["perplexity"](logits, jnp.zeros(2, int), jnp.ones(2, bool))

    np.testing.assert_allclose(found, 4.0, rtol=1e-5)


AUC = jax.jit(metrics.auc)


@pytest.mark.parametrize("steps", [3, 1000], ids=["many ties", "few ties"])
@pytest.mark.parametrize("seed", range(3))
def test_auc_agrees_with_scikit_learn(seed, steps):
    key_outputs, key_y, key_mask = jax.random.split(jax.random.key(seed), 3)
    outputs = jax.random.randint(key_outputs, (40,), 0, steps) / steps
    y = jax.random.bernoulli(key_y, 0.4, (40,))
    mask = jax.random.bernoulli(key_mask, 0.7, (40,))

    found = AUC(outputs, y, mask)

    np.testing.assert_allclose(found, roc_auc_score(y[mask], outputs[mask]), rtol=1e-5)


@pytest.mark.parametrize("label", [0, 1])
def test_auc_of_one_class_is_nan(label):
    assert jnp.isnan(AUC(jnp.arange(4.0), jnp.full(4, label), jnp.ones(4, bool)))


def test_auc_of_equal_outputs_is_one_half():
    assert float(AUC(jnp.ones(4), jnp.array([0, 1, 1, 0]), jnp.ones(4, bool))) == 0.5


def test_auc_of_a_large_client_is_known():
    size = 100_000

    found = AUC(jnp.arange(size, dtype=jnp.float32), jnp.arange(size) >= size // 2, jnp.ones(size, bool))

    np.testing.assert_allclose(found, 1.0, rtol=1e-4)
