"""The contract suite: every check on every registered method. Yours too: ``check_method(entry)``."""

from __future__ import annotations

from plures.contract.bench import Bench, Subject, subjects
from plures.contract.checks import CHECKS, traffic_row
from plures.contract.errors import ContractBroken
from plures.registry import Entry


def check_method(entry: Entry) -> None:
    """Run every check on one registered method; raises ``ContractBroken`` at the first that fails."""
    bench = Bench(Subject.method(entry))
    for check in CHECKS:
        check(bench)
