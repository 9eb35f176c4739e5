"""What the contract asks of registered methods beyond what it asks of everybody's."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from plures import tree
from plures.contract import Bench, ContractBroken, traffic_row, worlds
from plures.contract.bench import quiet, served_models
from plures.contract.watched_runs import Watched
from plures.errors import Unsupported

Table = Mapping[str, Mapping[str, int]]


def variances_stay_positive(bench: Bench) -> None:
    """With batch norm no client is ever served a running variance of 0 or below."""
    try:
        runner = _ran_with_norms(bench)
    except Unsupported:
        return
    last = [one.state for one in runner.stops_seen if one.phase == len(runner.phases) - 1]
    for state in (last[0], last[-1]):
        for name, values in tree.named(served_models(runner, state)).items():
            if "stats/" in name and name.endswith("/var") and not (np.asarray(values) > 0).all():
                raise ContractBroken(f"a running variance is {np.min(values):.3g} ('{name}')")


def _ran_with_norms(bench: Bench) -> Watched:
    """A finished run with batch norm in the model: the base run, where that has it."""
    if "norm" in bench.subject.entry.tags:
        return bench.watched
    method = quiet(bench.subject.build(worlds.model(norm=True), worlds.PLAN, {}))
    runner = replace(bench.runner(method=method), scored=False)
    runner.run()
    return runner


def traffic_is_as_committed(bench: Bench, table: Table) -> None:
    """Bytes per client equal the committed table."""
    found = traffic_row(bench)
    if bench.subject.name not in table:
        raise ContractBroken(f"{bench.subject.name} is not in the traffic table; run `make traffic` and commit it")
    if dict(table[bench.subject.name]) != found:
        raise ContractBroken(f"traffic is {found}, committed is {dict(table[bench.subject.name])}")
