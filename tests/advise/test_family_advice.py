"""FamilyAdvice is right where the answer is known, says when it is unclear, and every figure is what it says."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from plures.advise import FAMILIES, FamilyAdvice, advise
from plures.advise import fold_sums as preparation
from plures.advise.family_advice import mean_saving
from plures.advise.family_wording import signs_of
from plures.advise.fold_sums import FoldedRows, RowSums, fold_rows, noise_floor
from plures.advise.linear_families import (
    FoldSums,
    LinearFamily,
    ProximalWeights,
    find_clusters,
    fit_alone,
    fit_near,
    fit_pooled,
    judge,
)
from plures.advise.shift import _beyond_chance, normalize_inputs
from plures.data import from_arrays, load
from plures.errors import BadData, Unsupported
from plures.registry import METHODS, Named
from plures.study import build_method, build_model, default_model
from plures.types import Plan

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "advice.py"


def regressions(models, *, rows=40, sigma=0.5, units=None, seed=0):
    """A client for each row of ``models``: y = x . w_k + noise; ``units`` are factors of its columns as it sees them."""
    rng = np.random.default_rng(seed)
    num, dim = np.shape(models)
    x = rng.normal(size=(num, rows, dim))
    y = np.einsum("nrd,nd->nr", x, models) + sigma * rng.normal(size=(num, rows))
    seen = x if units is None else x * units[:, None] + np.log(units)[:, None]
    names = np.repeat([f"c{k:02d}" for k in range(num)], rows)
    return from_arrays(
        seen.reshape(-1, dim).astype(np.float32), y.ravel().astype(np.float32), names, task="regression"
    )


def draws(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape)


def one_global():
    return regressions(np.ones((12, 3)))


def clustered():
    return regressions(np.repeat(3 * np.eye(3), 5, axis=0))


def all_different():
    return regressions(np.ones((30, 5)) + 0.25 * draws(30, 5), rows=30)


def far_apart():
    return regressions(5 * draws(12, 3), rows=300)


def shifted():
    return regressions(np.ones((20, 8)), sigma=2.0, units=np.exp(0.7 * draws(20, 8)))


WORLDS = {
    "global": one_global,
    "clusters": clustered,
    "personal": all_different,
    "alone": far_apart,
    "shift": shifted,
}


@pytest.fixture(scope="module")
def advice_of():
    """FamilyAdvice by the right family of its world, found once."""
    kept = {}

    def found(name):
        if name not in kept:
            kept[name] = advise(WORLDS[name]())
        return kept[name]

    return found


def sums(x, y):
    """RowSums of (N, m, D) rows and (N, m, C) targets."""
    turned = x.swapaxes(1, 2)
    return RowSums(turned @ x, turned @ y, np.square(y).sum((1, 2)), np.full(len(x), float(x.shape[1])))


def rows_with(errors_of_clients):
    """FoldedRows of so many clients as lists of values are given, and the values."""
    owner = np.repeat(np.arange(len(errors_of_clients)), [len(one) for one in errors_of_clients])
    names = tuple(str(k) for k in range(len(errors_of_clients)))
    nothing = np.zeros((len(owner), 1))
    return FoldedRows(nothing, nothing, owner, np.zeros(len(owner), int), names, "regression", ()), np.concatenate(
        errors_of_clients
    )


@pytest.mark.parametrize("family", WORLDS)
def test_the_right_family_is_named_where_it_is_known(family, advice_of):
    found = advice_of(family)

    assert (found.family, found.rival) == (family, None)


def test_rotation_groups_of_digits_are_clusters():
    found = advise(load("digits:num_clients=8,num_groups=2"))

    assert (found.family, found.clusters.k) == ("clusters", 2)
    assert found.accuracies["clusters"] > found.accuracies["global"]


@pytest.mark.slow
def test_the_benchmark_is_right_with_other_seeds_too():
    spec = importlib.util.spec_from_file_location("bench_advice", BENCHMARK)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)

    said = {known.name: advise(known.make(300)).family for known in bench.WORLDS}

    assert said == {known.name: known.right for known in bench.WORLDS}


def test_little_evidence_is_called_unclear_and_both_candidates_are_studied():
    found = advise(regressions(np.ones((6, 3)) + 0.5 * draws(6, 3), rows=12, sigma=1.0))

    assert found.rival is not None
    assert found.pays == "unclear"
    assert "it may as well be" in found.sentences[2]
    assert {"ditto", "fedclup"} <= set(found.methods) or "personal" not in found.wants


@pytest.mark.parametrize(("family", "pays"), [("global", "no"), ("clusters", "yes")])
def test_whether_personalization_pays_is_said_first(family, pays, advice_of):
    found = advice_of(family)

    start = {"no": "Personalization is unlikely to pay", "yes": "Personalization can pay"}[pays]
    assert found.pays == pays
    assert found.sentences[0].startswith(start)


def test_clusters_that_other_folds_do_not_find_are_not_advised(advice_of):
    found = advice_of("clusters")

    lost = replace(found, clusters=found.clusters._replace(stability=0.3))

    assert "clusters" not in lost.able
    assert lost.family != "clusters"


def test_test_rows_are_never_read(advice_of):
    federation = clustered()
    x, y = federation.x.copy(), federation.y.copy()
    for start, count in zip(federation.start[:, 2], federation.count[:, 2], strict=True):
        x[start : start + count], y[start : start + count] = np.nan, np.nan

    spoiled = advise(replace(federation, x=x, y=y))

    assert spoiled.to_dict() == advice_of("clusters").to_dict()


def test_the_order_of_clients_makes_no_difference(advice_of):
    federation = all_different()

    turned = advise(federation.take(np.arange(federation.num_clients)[::-1]))

    before = advice_of("personal")
    assert turned.family == before.family
    for name in ("global", "alone", "shift", "personal"):
        np.testing.assert_allclose(turned.errors[name][::-1], before.errors[name], rtol=1e-6)


def test_folds_split_the_rows_of_every_client_evenly():
    rows = fold_rows(one_global())

    share = [np.bincount(rows.fold[rows.owner == k], minlength=5) for k in range(rows.num)]
    assert {int(one.max() - one.min()) for one in share} <= {0, 1}


def test_what_a_split_keeps_together_is_judged_by_valid_rows():
    federation = one_global()

    rows = fold_rows(replace(federation, unit="recording"))

    assert rows.num_folds == 1
    assert (rows.fold == 0).sum() == federation.count[:, 1].sum()
    assert "recording" in rows.notes[0]


def test_some_clients_and_rows_stand_for_many(monkeypatch):
    monkeypatch.setattr(preparation, "MOST_CLIENTS", 8)
    monkeypatch.setattr(preparation, "MOST_ROWS", 20)

    rows = fold_rows(one_global())

    assert rows.num == 8
    assert rows.counts.tolist() == [20] * 8
    assert [note.split(" ")[0] for note in rows.notes] == ["of", "8"]


def test_wide_inputs_are_reduced_to_main_axes(monkeypatch):
    monkeypatch.setattr(preparation, "MOST_COLUMNS", 2)
    common = draws(300, 2) @ draws(2, 6, seed=2)
    wide = from_arrays(common, common[:, 0], np.repeat(np.arange(6), 50), task="regression")

    rows = fold_rows(wide)

    assert rows.x.shape[1] == 3  # two axes and the intercept
    assert "6 columns are reduced to 2 main axes (100 % of the variance)" in rows.notes


def test_sums_tell_the_squared_error_of_rows():
    x, y, models = draws(3, 7, 2), draws(3, 7, 2, seed=2), draws(3, 2, 2, seed=3)
    one = sums(x, y)

    np.testing.assert_allclose(one.losses(models), np.square(x @ models - y).sum((1, 2)))
    np.testing.assert_allclose(one.losses(models[:1]), np.square(x @ models[0] - y).sum((1, 2)))


def test_personal_models_balance_own_rows_and_the_shared_model():
    """(G_i + P) W_i = B_i + P W for all clients, where W is the mean of the W_i."""
    one = sums(draws(4, 9, 3), draws(4, 9, 2, seed=2))

    models = fit_near(one, ProximalWeights(2.0, 5.0))

    weight = np.diag([2.0, 2.0, 5.0])
    shared = models.mean(0)
    np.testing.assert_allclose((one.gram + weight) @ models, one.cross + weight @ shared, atol=0.02)


def test_proximal_weights_lead_from_models_alone_to_one_for_all():
    one = sums(draws(4, 9, 3), draws(4, 9, 2, seed=2))

    hard, soft = (
        fit_near(one, ProximalWeights(1e7, 1e7)),
        fit_near(one, ProximalWeights(1e-7, 1e-7, own_ridge=3.0)),
    )

    np.testing.assert_allclose(hard, np.broadcast_to(fit_pooled(one, 1e-9), hard.shape), atol=1e-3)
    ridge = np.diag([3.0, 3.0, 0.0])
    np.testing.assert_allclose(soft, np.linalg.solve(one.gram + ridge, one.cross), atol=1e-5)


def test_a_client_without_rows_has_the_mean_of_all():
    x, y = draws(2, 5, 3), draws(2, 5, 1, seed=2)
    x[1], y[1] = 0.0, 0.0

    assert not fit_alone(sums(x, y), 1.0)[1].any()


def test_noiseless_clusters_are_recovered():
    group = np.array([0, 1, 2, 0, 1, 2, 0, 1])
    truth = draws(3, 4, 2, seed=2)
    x = draws(8, 10, 4)
    one = sums(x, x @ truth[group])

    found = find_clusters(one, truth[group], draws(5, 3, seed=3) % 1.0, ridge=1e-9)

    assert found.loss == pytest.approx(0.0, abs=1e-2)
    np.testing.assert_array_equal(found.label[:, None] == found.label, group[:, None] == group)


def test_what_is_set_is_chosen_by_the_other_folds():
    """Setting "a" has the least error in fold 0 alone: there "b" is taken, which fold 1 likes, and the other way round."""
    rows = replace(rows_with([[0.0, 0.0]])[0], fold=np.array([0, 1]))
    table = {("a", 0): 1.0, ("a", 1): 4.0, ("b", 0): 9.0, ("b", 1): 0.0}
    family = LinearFamily(
        "one",
        ["a", "b"],
        lambda fold, setting: np.array([table[setting, fold]]),
        lambda fold, setting: np.zeros((1, 1)),
    )

    assert judge(family, FoldSums.of(rows)).chosen == ["b", "a"]


def test_inputs_that_do_not_differ_are_left_alone():
    rows = fold_rows(regressions(np.ones((40, 3)), seed=2))

    same = normalize_inputs(rows, np.ones(len(rows.owner), bool), "scaled")

    np.testing.assert_allclose(same, rows.x, atol=0.05)


def test_inputs_in_other_units_become_alike():
    rows = fold_rows(regressions(np.ones((20, 2)), rows=400, units=np.exp(draws(20, 2))))

    alike = normalize_inputs(rows, np.ones(len(rows.owner), bool), "by column")

    spread = np.array([alike[rows.owner == k, :2].std(0) for k in range(20)])
    middle = np.array([alike[rows.owner == k, :2].mean(0) for k in range(20)])
    assert (spread / spread.mean(0)).std() < 0.05
    assert np.abs(middle - middle.mean(0)).max() < 0.05 * spread.mean()


def test_a_spread_beyond_chance_is_found_from_its_eigenvalue():
    """A spread t in one of many directions has the eigenvalue (1 + t)(1 + g / t) for g = columns / freedom."""
    spread, share = np.array([2.0, 5.0]), 4 / 40

    found = _beyond_chance(np.append((1 + spread) * (1 + share / spread), [1.2, 1.0]), 40)

    np.testing.assert_allclose(found, [2.0, 5.0, 0.0, 0.0])


def test_with_many_clients_an_interval_is_over_clients():
    values = [[float(k), float(k)] for k in range(12)]

    found = mean_saving(*rows_with(values))

    wide = stats.t.ppf(0.975, 11) * np.std(range(12), ddof=1) / np.sqrt(12)
    assert (found.mean, found.high - found.mean) == (5.5, pytest.approx(wide))


def test_with_few_clients_an_interval_is_over_their_rows():
    found = mean_saving(*rows_with([[0.0, 2.0], [10.0, 14.0]]))

    wide = stats.norm.ppf(0.975) * np.sqrt((2.0 / 2 + 8.0 / 2) / 4)  # variances of means, over the clients squared
    assert (found.mean, found.high - found.mean) == (6.5, pytest.approx(wide))


def test_the_noise_floor_is_what_own_models_leave_per_spare_row():
    x, y = draws(2, 20, 3), draws(2, 20, 1, seed=2)

    left = sum(np.linalg.lstsq(a, b, rcond=None)[1][0] for a, b in zip(x, y, strict=True))

    assert noise_floor(sums(x, y)) == pytest.approx(left / (2 * 17))


def test_without_spare_rows_there_is_no_noise_floor():
    assert noise_floor(sums(draws(4, 3, 3), draws(4, 3, 1))) is None


def test_clients_whose_rows_do_not_tell_are_counted(advice_of):
    clear, faint = advice_of("clusters"), advice_of("global")

    small = {sign.name: sign.value for sign in signs_of(faint)}["too small to tell"]
    assert clear.certain.all()
    assert small == f"{(~faint.certain).sum()} of 12"
    assert not faint.certain.all()


CLASSES, NUMBERS = "logistic_clusters:num_clients=6", "linear_clusters:num_clients=6"


@pytest.mark.parametrize(("family", "text"), [*((family, CLASSES) for family in FAMILIES), ("shift", NUMBERS)])
def test_the_methods_of_every_family_can_be_built(family, text, advice_of, monkeypatch):
    federation = load(text)
    task = replace(advice_of("clusters").rows, task=federation.task)
    found = replace(advice_of("clusters"), rows=task)
    monkeypatch.setattr(FamilyAdvice, "wants", (family,))
    model = build_model(found.model or default_model(federation), federation)

    for name in found.methods:
        build_method(name, model, plan=Plan(), facts=federation.known)

    assert {"fedavg", "fedavg|finetune", "local_only"} < {*found.methods, "more"}
    assert all(Named.parse(name.split("|")[0], METHODS) for name in found.methods)


def test_the_result_is_written_as_files(advice_of, tmp_path):
    found = advice_of("clusters")

    found.save(tmp_path / "out")

    facts = json.loads((tmp_path / "out" / "advice.json").read_text())
    clients = pl.read_csv(tmp_path / "out" / "clients.csv")
    assert (facts["family"], facts["pays"], facts["clusters"]["k"]) == ("clusters", "yes", 3)
    assert clients.height == 15
    assert clients["error_global"].mean() == pytest.approx(facts["errors"]["global"])
    assert clients["cluster"].n_unique() == 3


def test_the_picture_is_drawn(advice_of, tmp_path):
    advice_of("clusters").save(tmp_path)

    picture = tmp_path / "advice.png"
    assert picture.stat().st_size > 10_000


def arrays(num_clients=3, y=None, **options):
    x = draws(30, 2)
    owner = np.repeat(np.arange(num_clients), 30 // num_clients)
    return from_arrays(x, x[:, 0] if y is None else y, owner, task="regression", **options)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: replace(arrays(), task="density"), Unsupported, "a density task"),
        (lambda: arrays(1), BadData, "two clients or more are needed, got 1"),
        (lambda: arrays(y=np.ones(30)), BadData, "all training targets are the same"),
        (
            lambda: replace(arrays(shares=(1.0, 0.0, 0.0)), unit="recording"),
            BadData,
            "no client has valid rows to judge models by",
        ),
    ],
)
def test_what_cannot_be_advised_on_is_refused(make, error, said):
    with pytest.raises(error, match=said):
        advise(make())
