"""Every check of the contract on every registered method and personalizer."""

import json
import os
from pathlib import Path

import pytest
from contract_of_ours import traffic_is_as_committed, variances_stay_positive

from plures.contract import CHECKS, Bench, subjects

TABLE = json.loads((Path(__file__).parent / "traffic.json").read_text())

# `make quick METHOD=ditto` asks for one method or personalizer; every other run checks all of them.
ONLY = os.environ.get("CONTRACT_OF", "")

# One worker per subject: its checks share what was compiled.
SUBJECTS = [
    pytest.param(one, id=one.name, marks=pytest.mark.xdist_group(f"contract-{one.name}"))
    for one in subjects()
    if ONLY in ("", one.name, one.entry.name)
]


@pytest.fixture(params=SUBJECTS, scope="module")
def bench(request):
    return Bench(request.param)


@pytest.mark.parametrize("check", [*CHECKS, variances_stay_positive], ids=lambda check: check.__name__)
def test_every_method_keeps_the_contract(bench, check):
    check(bench)


def test_bytes_per_client_equal_the_committed_table(bench):
    traffic_is_as_committed(bench, TABLE)


def test_the_committed_table_names_no_method_that_is_gone():
    assert set(TABLE) == {subject.name for subject in subjects()}
