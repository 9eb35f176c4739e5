"""Every check of the contract on every registered method and personalizer."""

import json
from pathlib import Path

import pytest

from plures.contract import CHECKS, Bench, subjects, traffic_is_as_committed, variances_stay_positive

TABLE = json.loads((Path(__file__).parent / "traffic.json").read_text())
BENCHES: dict[str, Bench] = {}


# Most of them share their functions with methods that are checked every time: momentum_clustering, hypcluster, fedavg,
# mapper, lgmix, fedbn, fedclup, convex_clustering. All are checked by `make test-all`.
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


def marks(name):
    """One worker per subject: its checks share what was compiled."""
    group = pytest.mark.xdist_group(f"contract-{name}")
    return [group, pytest.mark.slow] if name in SLOW else [group]


SUBJECTS = [pytest.param(one, id=one.name, marks=marks(one.name)) for one in subjects()]


@pytest.fixture(params=SUBJECTS, scope="module")
def bench(request):
    return BENCHES.setdefault(request.param.name, Bench(request.param))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_method_keeps_the_contract(bench, check):
    check(bench)


@pytest.mark.slow
def test_running_variances_stay_positive(bench):
    variances_stay_positive(bench)


def test_bytes_per_client_equal_the_committed_table(bench):
    traffic_is_as_committed(bench, TABLE)


def test_the_committed_table_names_no_method_that_is_gone():
    assert set(TABLE) == {subject.name for subject in subjects()}
