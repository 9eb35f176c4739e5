"""References that are not federated: their values are those of algebra and of scikit-learn on the same rows."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV

from plures.builders import build_model
from plures.data import from_arrays
from plures.models.metrics import auc
from plures.study import reference_clients, references
from plures.study.reference_fits import PENALTIES, fit_linear, target_of
from plures.study.references import is_useless, references_of, trivial_of

SPLITS = ("train", "valid", "test")


def federation_of(targets, *, clients=4, rows=60, columns=3, seed=0, **more):
    """Clients whose targets are ``targets(x, client)``."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(clients * rows, columns)).astype(np.float32)
    client = np.repeat(np.arange(clients), rows)
    return from_arrays(x, targets(x, client, rng), client, **more)


def numbers(x, client, rng):
    return (100 + x @ [1.0, -2.0, 0.5] + client + rng.normal(size=len(x))).astype(np.float32)


def classes(x, client, rng):
    return np.argmax(x + rng.gumbel(size=x.shape) / 2, axis=1)


REGRESSION = federation_of(numbers, task="regression")
CLASSES = federation_of(classes, num_classes=3)


def model_for(federation, text=None):
    return build_model(
        text or {"regression": "least_squares", "density": "density"}.get(federation.task, "softmax"), federation
    )


def rows(federation, split):
    """(inputs, targets) of every client's split."""
    return [federation.rows_of(name, split) for name in federation.names]


def column(found, reference, name):
    table = found.table if hasattr(found, "table") else found
    return table.filter(table["reference"] == reference)[name].to_numpy()


@pytest.fixture(scope="module")
def of_numbers():
    return references_of(REGRESSION, None, model_for(REGRESSION))


@pytest.fixture(scope="module")
def of_classes():
    return references_of(CLASSES, None, model_for(CLASSES))


def test_all_references_have_a_row_for_every_client(of_numbers, of_classes):
    for found, line in ((of_numbers, "ridge"), (of_classes, "logistic")):
        names = ["trivial", f"{line} alone", f"{line} pooled", "boosting alone", "boosting pooled"]
        assert found.table["reference"].unique(maintain_order=True).to_list() == names
        assert found.table["uid"].to_list() == [0, 1, 2, 3] * 5
        assert not found.left_out
        assert found.seconds.keys() == set(names)
    assert of_numbers.table.columns == [
        "reference", "uid", "name", "seen", "train_rows", "valid_rows", "test_rows",
        "valid_score", "test_score", "valid_loss", "test_loss",
    ]  # fmt: skip


def test_trivial_is_the_clients_own_mean(of_numbers):
    """Its score is in the unit of the targets; its loss is that of targets standardized over all training rows."""
    trained = [y.astype(float) for _, y in rows(REGRESSION, "train")]
    means, deviation = [y.mean() for y in trained], np.concatenate(trained).std()

    for split in ("valid", "test"):
        own = zip(rows(REGRESSION, split), means, strict=True)
        rmse = [math.sqrt(np.mean((y - mean) ** 2)) for (_, y), mean in own]
        assert column(of_numbers, "trivial", f"{split}_score") == pytest.approx(rmse, rel=1e-5)
        loss = np.square(np.divide(rmse, deviation)) / 2
        assert column(of_numbers, "trivial", f"{split}_loss") == pytest.approx(loss, rel=1e-5)


def test_trivial_is_the_clients_majority_and_how_frequent_its_classes_are(of_classes):
    counts = np.array([np.bincount(y, minlength=3) for _, y in rows(CLASSES, "train")])
    pooled = (counts.sum(0) + 1 / 3) / (counts.sum() + 1)
    shares = (counts + pooled) / (counts.sum(1, keepdims=True) + 1)

    test = [y for _, y in rows(CLASSES, "test")]
    accuracy = [np.mean(y == one.argmax()) for y, one in zip(test, counts, strict=True)]
    loss = [-np.log(one[y]).mean() for y, one in zip(test, shares, strict=True)]
    assert column(of_classes, "trivial", "test_score") == pytest.approx(accuracy)
    assert column(of_classes, "trivial", "test_loss") == pytest.approx(loss, rel=1e-5)


def test_trivial_alone_is_the_one_among_all(of_numbers):
    found = trivial_of(REGRESSION, None, model_for(REGRESSION))

    assert found.equals(of_numbers.table.filter(of_numbers.table["reference"] == "trivial"))


def test_means_are_those_of_clients_in_training():
    seen, unseen = REGRESSION.hold_out(num_clients=2)

    found = references_of(seen, unseen, model_for(REGRESSION))

    mine = column(found, "ridge alone", "test_score")[column(found, "ridge alone", "seen")]
    assert len(mine) == 2
    assert found.means["ridge alone"] == pytest.approx(mine.mean())


def test_ridge_solves_its_normal_equations(of_numbers):
    """(Z'Z + alpha I) w = Z'(y - mean) for standardized Z; alpha is the one that leaves out every row best."""
    expected = []
    for (x, y), (new, target) in zip(rows(REGRESSION, "train"), rows(REGRESSION, "test"), strict=True):
        mean, deviation, center = x.mean(0), x.std(0), y.astype(float).mean()
        z = (x - mean) / deviation

        def solve(z, y, alpha):
            inner, middle = z - z.mean(0), y - y.mean()
            w = np.linalg.solve(inner.T @ inner + alpha * np.eye(3), inner.T @ middle)
            return w, y.mean() - z.mean(0) @ w

        def left_out(alpha, z=z, y=y, solve=solve):
            kept = [np.arange(len(y)) != row for row in range(len(y))]
            solved = [solve(z[one], y[one], alpha) for one in kept]
            return sum((y[row] - z[row] @ w - b) ** 2 for row, (w, b) in enumerate(solved))

        w, _ = solve(z, y, min(len(y) * PENALTIES, key=left_out))
        expected.append(math.sqrt(np.mean(((new - mean) / deviation @ w + center - target) ** 2)))

    assert column(of_numbers, "ridge alone", "test_score") == pytest.approx(expected, rel=1e-4)


def test_pooled_ridge_is_that_of_all_rows(of_numbers):
    x, y = (np.concatenate(parts) for parts in zip(*rows(REGRESSION, "train"), strict=True))
    mean, deviation = x.mean(0, dtype=float), x.std(0, dtype=float)
    fitted = RidgeCV(alphas=len(y) * PENALTIES).fit((x - mean) / deviation, y.astype(float))

    rmse = [
        math.sqrt(np.mean((fitted.predict((new - mean) / deviation) - target) ** 2))
        for new, target in rows(REGRESSION, "test")
    ]
    assert column(of_numbers, "ridge pooled", "test_score") == pytest.approx(rmse, rel=1e-5)


def test_pooled_logistic_regression_is_scikit_learns_on_the_same_rows(of_classes):
    """With one of the penalties: the loss on test rows is that of scikit-learn's fit."""
    x, y = (np.concatenate(parts) for parts in zip(*rows(CLASSES, "train"), strict=True))
    mean, deviation = x.mean(0, dtype=float), x.std(0, dtype=float)
    found = []
    for penalty in PENALTIES:
        fitted = LogisticRegression(C=1 / (penalty * len(y)), max_iter=200).fit((x - mean) / deviation, y)
        shares = [(fitted.predict_proba((new - mean) / deviation), own) for new, own in rows(CLASSES, "test")]
        found.append([-np.log(share[np.arange(len(own)), own]).mean() for share, own in shares])

    mine = column(of_classes, "logistic pooled", "test_loss")
    assert any(mine == pytest.approx(losses, rel=1e-4) for losses in found)


def test_the_penalty_follows_the_data():
    """Where targets have nothing to do with inputs, hardly anything is predicted from these; else nearly all."""
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(60, 20)), rng.normal(size=(200, 20))

    def shares(y):
        return fit_linear(x, y, target_of(model_for(CLASSES), 2, y))(new)[:, 1]

    chance = rng.integers(0, 2, 60)
    assert np.abs(shares(chance) - chance.mean()).mean() < 0.1
    assert np.abs(shares((x[:, 0] > 0).astype(int)) - (new[:, 0] > 0)).mean() < 0.25


def spoiled(federation):
    """Valid and test rows are another world's."""
    x, y = federation.x.copy(), federation.y.copy()
    for part in (1, 2):
        for first, number in zip(federation.start[:, part], federation.count[:, part], strict=True):
            x[first : first + number] = 1e3
            y[first : first + number] = 0
    return replace(federation, x=x, y=y)


@pytest.mark.parametrize("federation", [REGRESSION, CLASSES], ids=["regression", "classification"])
def test_no_valid_or_test_row_is_fit_on(federation, monkeypatch):
    def fitted(which):
        seen = []
        for make in (HistGradientBoostingRegressor, HistGradientBoostingClassifier, LogisticRegression, RidgeCV):
            fit = make.fit

            def spy(self, x, y, fit=fit):
                seen.append((np.array(x), np.array(y)))
                return fit(self, x, y)

            monkeypatch.setattr(make, "fit", spy)
        references_of(which, None, model_for(which))
        monkeypatch.undo()
        return seen

    before, after = fitted(federation), fitted(spoiled(federation))

    assert len(before) == len(after) > 10
    for (x, y), (other_x, other_y) in zip(before, after, strict=True):
        assert np.array_equal(x, other_x)
        assert np.array_equal(y, other_y)


def test_rows_of_unseen_clients_are_not_pooled():
    seen, unseen = REGRESSION.hold_out(num_clients=1)
    moved = replace(unseen, y=unseen.y + 50)

    first, second = (references_of(seen, one, model_for(REGRESSION)) for one in (unseen, moved))

    for name in ("ridge pooled", "boosting pooled"):
        known = column(first, name, "seen")
        assert list(column(first, name, "test_score")[known]) == list(column(second, name, "test_score")[known])
        assert column(second, name, "test_score")[~known] > 40
    assert column(second, "ridge alone", "test_score")[-1] == pytest.approx(
        column(first, "ridge alone", "test_score")[-1], abs=1e-3
    )


def test_a_constant_added_to_the_target_changes_nothing(of_numbers):
    moved = replace(REGRESSION, y=REGRESSION.y - 100)

    found = references_of(moved, None, model_for(moved))

    for name in found.means:
        assert found.means[name] == pytest.approx(of_numbers.means[name], rel=1e-3)


def test_a_constant_column_and_another_unit_change_no_line(of_numbers):
    x = np.concatenate([1000 * REGRESSION.x + 7, np.full((len(REGRESSION.x), 1), 3, np.float32)], axis=1)
    changed = replace(REGRESSION, x=x.astype(np.float32))

    found = references_of(changed, None, model_for(changed))

    assert found.means["ridge alone"] == pytest.approx(of_numbers.means["ridge alone"], rel=1e-4)


@pytest.mark.parametrize("text", ["logistic", "squared_hinge", "softmax"])
def test_two_classes_in_every_model(text):
    federation = federation_of(lambda x, client, rng: (x[:, 0] + 0.3 * rng.normal(size=len(x)) > 0).astype(int))

    found = references_of(federation, None, model_for(federation, text))

    test = [(y, t) for (_, y), (_, t) in zip(rows(federation, "train"), rows(federation, "test"), strict=True)]
    majority = [np.mean(t == (y.mean() > 0.5)) for y, t in test]
    assert column(found, "trivial", "test_score") == pytest.approx(majority)
    assert all(mean > 0.8 for name, mean in found.means.items() if name != "trivial")


def test_area_under_the_curve_where_that_is_the_score():
    federation = federation_of(lambda x, client, rng: (x[:, 0] + 0.3 * rng.normal(size=len(x)) > 0).astype(int))
    model = replace(model_for(federation, "logistic"), score="auc")

    found = references_of(federation, None, model)

    assert model.metrics["auc"] is auc
    assert found.means["trivial"] == 0.5
    assert found.means["logistic alone"] > 0.9


def test_clients_of_one_class_and_of_few_rows():
    """The class of a client is its answer; a class that it has not seen costs it, but not all."""
    rng = np.random.default_rng(0)
    client = np.repeat([0, 1, 2], [40, 40, 4])
    y = np.where(client == 0, 0, rng.integers(0, 3, len(client)))
    federation = from_arrays(rng.normal(size=(len(client), 3)).astype(np.float32), y, client, num_classes=3)

    found = references_of(federation, None, model_for(federation))

    assert not found.left_out
    assert next(iter(column(found, "logistic alone", "test_score"))) == 1.0
    assert np.isfinite(found.table["test_loss"].to_numpy()).all()


def test_a_client_without_training_rows_gets_what_is_pooled():
    count = REGRESSION.count.copy()
    count[1, 0] = 0
    federation = replace(REGRESSION, count=count)
    mean = np.concatenate([y for _, y in rows(federation, "train")]).astype(float).mean()

    found = references_of(federation, None, model_for(federation))

    _, y = federation.rows_of(federation.names[1], "test")
    rmse = math.sqrt(np.mean((y - mean) ** 2))
    for name in ("trivial", "ridge alone", "boosting alone"):
        assert column(found, name, "test_score")[1] == pytest.approx(rmse, rel=1e-5)


def test_a_client_without_test_rows_has_no_score_there():
    count = REGRESSION.count.copy()
    count[1, 2] = 0

    found = trivial_of(replace(REGRESSION, count=count), None, model_for(REGRESSION))

    assert found["test_score"].is_null().to_list() == [False, True, False, False]


def test_missing_values_are_no_obstacle():
    x = REGRESSION.x.copy()
    x[::7, 0] = np.nan
    x[3, 1] = np.inf

    found = references_of(replace(REGRESSION, x=x), None, model_for(REGRESSION))

    assert not found.left_out
    assert found.means["ridge alone"] < found.means["trivial"]


def test_several_targets_are_for_lines_only():
    federation = federation_of(
        lambda x, client, rng: (x @ rng.normal(size=(3, 2))).astype(np.float32), task="regression"
    )

    found = references_of(federation, None, model_for(federation))

    assert list(found.means) == ["trivial", "ridge alone", "ridge pooled"]
    assert found.means["ridge alone"] < 0.1 * found.means["trivial"]
    assert found.left_out["boosting alone"] == "boosting predicts one number, and targets have several"


def test_symbols_without_inputs_have_their_frequencies():
    federation = federation_of(classes, task="density", num_classes=3)

    found = references_of(federation, None, model_for(federation, "density"))

    counts = np.array([np.bincount(y, minlength=3) for _, y in rows(federation, "train")])
    pooled = (counts.sum(0) + 1 / 3) / (counts.sum() + 1)
    shares = (counts + pooled) / (counts.sum(1, keepdims=True) + 1)
    losses = [-np.log(one[y]).mean() for (_, y), one in zip(rows(federation, "test"), shares, strict=True)]
    assert column(found, "trivial", "test_score") == pytest.approx(losses, rel=1e-5)
    assert "test_loss" not in found.table.columns
    assert found.left_out["logistic pooled"] == "logistic predicts a number or a class, and the task is density"


def test_wide_inputs_are_not_for_trees():
    federation = federation_of(lambda x, client, rng: x[:, 0], columns=1025, rows=20, task="regression")

    found = references_of(federation, None, model_for(federation))

    assert found.left_out["boosting pooled"] == "boosting is for at most 1024 inputs, and there are 1025"
    assert "ridge alone" in found.means


def test_no_inputs_leave_the_trivial_one():
    federation = replace(REGRESSION, x=REGRESSION.x[:, :0])

    found = references_of(federation, None, model_for(federation, "mean"))

    assert list(found.means) == ["trivial"]
    assert set(found.left_out.values()) == {"there are no inputs to predict from"}


def test_what_would_take_too_long_is_left_out_and_said(monkeypatch):
    """Every fit takes a second of this clock: one pooled fit and its trial, then three clients of four."""
    now = [0.0]

    def slow(x, y, target):
        now[0] += 1
        return fit_linear(x, y, target)

    monkeypatch.setattr(references, "process_time", lambda: now[0])
    monkeypatch.setattr(references, "fit_linear", slow)
    monkeypatch.setattr(references, "QUICK_SHARE", 2)

    found = references_of(REGRESSION, None, model_for(REGRESSION), seconds=5.5)

    assert found.left_out["ridge alone"] == "it would take about 1 s, and references have 0.5 s left"
    assert list(found.means) == ["trivial", "ridge pooled", "boosting alone", "boosting pooled"]


def test_no_time_at_all_leaves_the_trivial_one():
    found = references_of(REGRESSION, None, model_for(REGRESSION), seconds=0.0)

    assert list(found.means) == ["trivial"]
    assert len(found.left_out) == 4


def test_a_fit_that_fails_is_left_out_and_said(monkeypatch):
    def fail(x, y, target):
        raise ValueError("no luck\nat all")

    monkeypatch.setattr(references, "fit_linear", fail)

    found = references_of(REGRESSION, None, model_for(REGRESSION))

    assert found.left_out == {"ridge alone": "it failed: no luck", "ridge pooled": "it failed: no luck"}
    assert list(found.means) == ["trivial", "boosting alone", "boosting pooled"]


def test_a_fit_takes_so_many_rows_at_most(monkeypatch):
    monkeypatch.setattr(reference_clients, "MOST_ROWS", 10)
    clients = reference_clients.reference_clients(REGRESSION, None, model_for(REGRESSION))

    pooled = np.concatenate([x for x, _ in rows(REGRESSION, "train")])

    assert np.array_equal(clients.pooled_rows().x, pooled[np.linspace(0, len(pooled) - 1, 10).round().astype(int)])


def test_progress_is_told():
    told = []

    references_of(REGRESSION, None, model_for(REGRESSION), progress=lambda *one: told.append(one))

    assert ("ridge alone", 4, 4) in told
    assert ("boosting pooled", 4, 4) in told


@pytest.mark.parametrize(
    ("score", "trivial", "higher", "metric", "useless"),
    [
        (0.39, 0.5, True, "accuracy", True),  # error 0.61 over 0.6
        (0.41, 0.5, True, "accuracy", False),
        (0.41, 0.5, True, "auc", False),
        (0.927, 0.953, True, "accuracy", True),
        (0.975, 0.982, True, "accuracy", False),  # two fifths more errors, but fewer than one row in a hundred
        (1.21, 1.0, False, "rmse", True),
        (1.19, 1.0, False, "rmse", False),
        (2e13, 2.0, False, "rmse", True),
        (math.nan, 1.0, False, "loss", True),
        (math.inf, 1.0, False, "loss", True),
        (None, 1.0, False, "loss", True),
        (1.0, math.nan, False, "loss", False),
        (1.0, None, False, "loss", False),
        (1.0, 1.0, True, "accuracy", False),
        (0.0, 0.0, False, "rmse", False),
        (-1.3, -1.0, True, "log_likelihood", True),
    ],
)
def test_a_score_is_useless_when_it_is_worse_by_a_fifth_of_the_trivial_error(
    score, trivial, higher, metric, useless
):
    assert is_useless(score, trivial, higher_is_better=higher, metric=metric) is useless
