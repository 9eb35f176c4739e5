"""Every check of the contract on every registered method and personalizer."""

import json
from pathlib import Path

import pytest

from plures.contract import CHECKS, Bench, subjects, traffic_is_as_committed, variances_stay_positive

TABLE = json.loads((Path(__file__).parent / "traffic.json").read_text())
BENCHES: dict[str, Bench] = {}


# Most of them share their functions with methods that are checked every time. All are checked by `make test-all`.
SLOW = {
    "agnostic",
    "apfl",
    "ditto|guard",
    "fedala",
    "fedavg|dapper",
    "fedavg|knn_per",
    "fedavg|norm",
    "fedavg|split",
    "fedbabu",
    "federated_clustering",
    "fedper",
    "fedprox",
    "fedrep",
    "hypcluster_auto",
    "ifca",
    "l2gd",
    "lg_fedavg",
    "mr_mtl",
    "myopic_clustering",
    "oracle",
    "pdmm",
    "per_fedavg",
    "pfedme",
    "scaffold",
    "squared_penalty",
}


# Of these, what needs no other programs than a plain run is checked every time, and the rest by `make test-all`.
LARGE = {"convex_clustering", "fedavg|mapper", "fedbn", "fedclup", "lgmix", "momentum_clustering"}
LIGHT = {
    "idle_clients_keep_their_rows",
    "planted_groups_stay_hidden",
    "resumed_equals_uninterrupted",
    "second_round_does_not_compile",
    "storage_order_is_not_identity",
    "unseen_clients_are_served",
}


def marks(name):
    """One worker per subject: its checks share what was compiled."""
    group = pytest.mark.xdist_group(f"contract-{name}")
    return [group, pytest.mark.slow] if name in SLOW else [group]


SUBJECTS = [pytest.param(one, id=one.name, marks=marks(one.name)) for one in subjects()]


@pytest.fixture(params=SUBJECTS, scope="module")
def bench(request):
    return BENCHES.setdefault(request.param.name, Bench(request.param))


HEAVY = [one for one in CHECKS if one.__name__ not in LIGHT]


@pytest.mark.parametrize(
    "check", [one for one in CHECKS if one.__name__ in LIGHT], ids=lambda check: check.__name__
)
def test_every_method_keeps_the_contract(bench, check):
    check(bench)


@pytest.mark.parametrize("check", HEAVY, ids=lambda check: check.__name__)
@pytest.mark.parametrize("bench", [one for one in SUBJECTS if one.id not in LARGE], indirect=True)
def test_every_method_keeps_all_of_the_contract(bench, check):
    check(bench)


@pytest.mark.slow
@pytest.mark.parametrize("check", HEAVY, ids=lambda check: check.__name__)
@pytest.mark.parametrize("bench", [one for one in SUBJECTS if one.id in LARGE], indirect=True)
def test_large_methods_keep_all_of_the_contract(bench, check):
    check(bench)


@pytest.mark.slow
def test_running_variances_stay_positive(bench):
    variances_stay_positive(bench)


def test_bytes_per_client_equal_the_committed_table(bench):
    traffic_is_as_committed(bench, TABLE)


def test_the_committed_table_names_no_method_that_is_gone():
    assert set(TABLE) == {subject.name for subject in subjects()}
