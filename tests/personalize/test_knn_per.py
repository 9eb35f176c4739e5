"""kNN-Per: votes against scikit-learn and algebra, shares found on valid rows, clients with few rows or none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from plures import run
from plures.contract import worlds
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.methods.fedavg import fedavg
from plures.models.build import CLASSIFICATION, from_functions
from plures.models.linear import density, least_squares, logistic, softmax, squared_hinge
from plures.models.sequence import char_mlp
from plures.personalize.finetune import finetune
from plures.personalize.guard import guard
from plures.personalize.knn_per import NeighborVote, knn_per, nearest, store_rows
from plures.types import Data, Rows

KEY = jax.random.key(0)
MODEL = softmax((2,), 3)
X = np.asarray(jax.random.normal(jax.random.key(1), (14, 2)))
Y = np.asarray(jax.random.randint(jax.random.key(2), (14,), 0, 3))
PROBES = jax.random.normal(jax.random.key(3), (6, 2))


def rows_of(x, y, *, count=None):
    return Rows(jnp.asarray(x), jnp.asarray(y), 0, len(y) if count is None else jnp.asarray(count), len(y))


def probabilities(x, y, *, k, scale):
    store = store_rows(MODEL, MODEL.init(KEY), rows_of(x, y))
    return np.asarray(jax.nn.softmax(NeighborVote(MODEL, k, scale).outputs(store, PROBES)))


@pytest.mark.parametrize(("k", "scale"), [(1, 1.0), (5, 0.3), (14, 2.0)])
def test_votes_are_those_of_scikit_learn(k, scale):
    peer = KNeighborsClassifier(k, weights=lambda gaps: np.exp(-gaps / scale)).fit(X, Y)

    np.testing.assert_allclose(probabilities(X, Y, k=k, scale=scale), peer.predict_proba(PROBES), atol=1e-5)


def test_without_a_scale_it_is_the_mean_distance_of_the_neighbors():
    peer = KNeighborsClassifier(5, weights=lambda gaps: np.exp(-gaps / gaps.mean(1, keepdims=True))).fit(X, Y)

    np.testing.assert_allclose(probabilities(X, Y, k=5, scale=None), peer.predict_proba(PROBES), atol=1e-5)


def test_features_in_another_unit_or_moved_change_nothing():
    scaled = from_functions(
        init=lambda key: {"kernel": jnp.zeros((2, 3))},
        apply=lambda params, x: x @ params["kernel"],
        features=lambda params, x: 100 * x + 50,
        task=CLASSIFICATION,
    )
    store = store_rows(scaled, scaled.init(KEY), rows_of(X, Y))

    found = jax.nn.softmax(NeighborVote(scaled, 5, None).outputs(store, PROBES))

    np.testing.assert_allclose(found, probabilities(X, Y, k=5, scale=None), atol=1e-4)


def test_padding_never_votes():
    """Five rows of a client in an array of fourteen whose others are not numbers."""
    x = np.where(np.arange(14)[:, None] < 5, X, np.nan)
    store = store_rows(MODEL, MODEL.init(KEY), rows_of(x, Y, count=5))

    found = jax.nn.softmax(NeighborVote(MODEL, 10, 1.0).outputs(store, PROBES))

    np.testing.assert_allclose(found, probabilities(X[:5], Y[:5], k=10, scale=1.0), atol=1e-6)
    np.testing.assert_array_equal(store.features[5:], 0)


def test_the_nearest_come_first_and_masked_rows_last():
    rows, mask = jnp.array([[3.0], [1.0], [0.0], [2.0]]), jnp.array([True, True, False, True])

    assert nearest(rows, mask, jnp.array([[0.1]]), 4).tolist() == [[1, 3, 0, 2]]


def test_equal_rows_share_their_vote():
    store = store_rows(MODEL, MODEL.init(KEY), rows_of(np.ones((4, 2), np.float32), np.array([0, 0, 0, 2])))

    found = jax.nn.softmax(NeighborVote(MODEL, 4, None).outputs(store, jnp.ones((1, 2))))

    np.testing.assert_allclose(found, [[0.75, 0.0, 0.25]], atol=1e-6)


def test_a_binary_model_gets_one_logit():
    model = logistic((2,))
    store = store_rows(model, model.init(KEY), rows_of(X, (Y > 0).astype(np.float32)))

    found = jax.nn.sigmoid(NeighborVote(model, 5, 0.5).outputs(store, PROBES))

    peer = KNeighborsClassifier(5, weights=lambda gaps: np.exp(-gaps / 0.5)).fit(X, Y > 0)
    np.testing.assert_allclose(found, peer.predict_proba(PROBES)[:, 1], atol=1e-5)


def test_every_position_of_a_text_is_a_row():
    model = char_mlp((4,), 5, context=2, dim=2, hidden=3)
    text = np.asarray(jax.random.randint(KEY, (6, 4), 0, 5))
    weights, after = model.init(KEY), (text + 1) % 5
    store = store_rows(model, weights, rows_of(text, after, count=5))

    found = jax.nn.softmax(NeighborVote(model, 3, 0.5).outputs(store, jnp.asarray(text[:2])))

    features = np.asarray(model.features(weights, text))
    peer = KNeighborsClassifier(3, weights=lambda gaps: np.exp(-gaps / 0.5))
    peer.fit(features[:5].reshape(-1, 3), after[:5].reshape(-1))
    wanted = np.zeros((8, 5))
    wanted[:, peer.classes_] = peer.predict_proba(features[:2].reshape(-1, 3))
    np.testing.assert_allclose(found.reshape(8, 5), wanted, atol=1e-4)


LINE = np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 0.0], [5.1, 0.0]], np.float32)


LABELS = [0, 0, 1, 1]


def share_of(*, train=4, valid=4, valid_labels=LABELS, lam="valid"):
    """The share taken by a client whose valid rows lie where its training rows lie, for a model that knows nothing."""
    data = Data(rows_of(LINE, np.array(LABELS), count=train), rows_of(LINE, np.array(valid_labels), count=valid))
    method = knn_per(fedavg(MODEL), k=2, lam=lam)
    served = jax.jit(method.serve)(KEY, MODEL.init(KEY), (), data)
    assert np.isfinite(method.predict(served, PROBES)).all()
    assert float(method.views.facts(None, (), served)["neighbors"]) == float(served.lam)
    return float(served.lam)


def test_what_neighbors_know_counts_against_one_row_of_which_they_know_nothing():
    """Four rows three times as likely as under the base: 4 (3 - 1) / (1 + 2 lam) = 1 / (1 - lam), so lam = 0.7."""
    assert share_of() == pytest.approx(0.7, abs=1e-5)


@pytest.mark.parametrize(
    "given", [{"valid_labels": [1, 1, 0, 0]}, {"valid": 0}, {"train": 0}], ids=["wrong", "no valid rows", "no rows"]
)
def test_neighbors_that_are_wrong_or_unknown_get_nothing(given):
    assert share_of(**given) == 0


def test_a_fixed_share_needs_rows_to_vote():
    assert [share_of(lam=1.0, train=train) for train in (4, 1, 0)] == [1, 1, 0]


def test_predictions_are_mixed_by_probability():
    data = Data(rows_of(X, Y), rows_of(X, Y))
    method = knn_per(fedavg(MODEL), k=5, lam=0.3, scale=1.0)

    served = method.serve(KEY, MODEL.init(KEY), (), data)

    wanted = 0.3 * probabilities(X, Y, k=5, scale=1.0) + 0.7 / 3
    np.testing.assert_allclose(jax.nn.softmax(method.predict(served, PROBES)), wanted, atol=1e-6)


@pytest.mark.slow
def test_the_common_model_is_the_bases_and_a_guard_may_choose_it():
    seen, _ = worlds.awkward()
    base = fedavg(worlds.model(), plan=worlds.PLAN)

    plain = run(base, seen, rounds=1).clients
    table = run(guard(knn_per(base, k=3, lam=0.9)), seen, rounds=1).clients

    np.testing.assert_allclose(table["global_valid_loss"], plain["global_valid_loss"], atol=1e-6)
    assert (table["personal_valid_loss"] <= table["global_valid_loss"] + 1e-6).all()
    assert (table["personal_valid_loss"] < table["global_valid_loss"] - 1e-3).any()


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda: knn_per(fedavg(MODEL), k=0), BadValue, "k must be 1 or more"),
        (lambda: knn_per(fedavg(MODEL), lam=1.5), BadValue, r"lam must be in \[0, 1\], got 1.5"),
        (lambda: knn_per(fedavg(MODEL), lam="best"), UnknownChoice, "is called 'best'. Known: valid"),
        (lambda: knn_per(fedavg(MODEL), scale=0.0), BadValue, "scale must be a positive number"),
        (lambda: knn_per(fedavg(least_squares((2,)))), Unsupported, "this model's is regression"),
        (lambda: knn_per(fedavg(density((1,), 3))), Unsupported, "this model's is density"),
        (lambda: knn_per(fedavg(squared_hinge((2,)))), Unsupported, "puts out margins"),
        (lambda: knn_per(knn_per(fedavg(MODEL))), Unsupported, "knn_per needs a base that serves a plain model"),
    ],
)
def test_what_does_not_fit_is_refused(build, error, said):
    with pytest.raises(error, match=said):
        build()


def test_a_model_without_features_is_refused_and_may_be_tuned_before():
    bare = from_functions(
        init=lambda key: {"kernel": jnp.zeros((2, 3))},
        apply=lambda params, x: x @ params["kernel"],
        task=CLASSIFICATION,
        parts={"head": ("kernel",)},
    )

    with pytest.raises(Unsupported, match="needs a model that tells its features; this one has: head"):
        knn_per(fedavg(bare))
    assert knn_per(finetune(fedavg(MODEL))).model is MODEL
