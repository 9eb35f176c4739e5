"""The checks: each says what it found, and each is able to fail."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import jax
import numpy as np

from plures import tree
from plures.contract import worlds
from plures.contract.bench import (
    COHORT,
    ROUNDS,
    Bench,
    Subject,
    capacity_raised,
    interrupted,
    losing,
    outcome,
    predictions,
    prelude_rounds,
    quiet,
    served_models,
)
from plures.engine import Settings
from plures.engine.play import play
from plures.engine.run import prepare
from plures.errors import BadValue, PluresError, Unsupported
from plures.registry import METHODS

Table = Mapping[str, Mapping[str, int]]


class ContractBroken(PluresError):
    """A method does not keep the contract; says which check, and what was seen."""


def _same(what: str, ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], *, atol: float) -> None:
    if ours.keys() != theirs.keys():
        raise ContractBroken(f"{what}: other things came out: {sorted(ours.keys() ^ theirs.keys())[:3]}")
    for name, values in ours.items():
        if not np.allclose(values, theirs[name], atol=atol, rtol=atol, equal_nan=True):
            gap = np.nanmax(np.abs(np.asarray(values, float) - np.asarray(theirs[name], float)))
            raise ContractBroken(f"{what}: '{name}' differs by {gap:.3g}")


def executors_agree(bench: Bench) -> None:
    """Vectorized = chunked = one by one: no leakage across clients, no wrong axis, no hidden randomness.

    The method is built anew, so that randomness drawn while building shows as well.
    """
    again = bench.rebuilt()
    for executor in ("chunked:3", "one_by_one"):
        other = bench.run(executor=executor, method=again)
        _same(f"vectorized against {executor}", outcome(bench.base), outcome(other), atol=1e-6)


def storage_order_is_not_identity(bench: Bench) -> None:
    """Storing clients in another order changes nothing for any uid."""
    other = bench.run(order=[3, 0, 7, 5, 1, 6, 2, 4])
    _same("clients stored in another order", outcome(bench.base), outcome(other), atol=1e-6)


def seeds_rule(bench: Bench) -> None:
    """The same seed gives the same bits; another seed, with everyone taking part, gives something else."""
    _same("the same seed", outcome(bench.base), outcome(bench.run()), atol=0.0)
    if "deterministic" in bench.subject.entry.tags:
        return
    first, other = (outcome(bench.run(seed=seed, cohort=None, rounds=1)) for seed in (0, 1))
    if all(np.array_equal(first[name], other[name], equal_nan=True) for name in first if "visits" not in name):
        raise ContractBroken("another seed gives the same result: the key is not used")


def idle_clients_keep_their_rows(bench: Bench) -> None:
    """A round changes the private rows of its cohort and of nobody else."""
    link, method = bench.method.prelude, bench.method
    if link is not None and link.leave:
        # Of a run with a closing round: everyone takes part in that one, the rounds before are those of its base.
        if not (np.asarray(bench.base.state.visits) == 1).all():
            raise ContractBroken("not everyone took part in the closing round, once")
        method = link.method
    before, after = (bench.run(rounds=rounds, method=method).state for rounds in (ROUNDS - 1, ROUNDS))
    idle = np.flatnonzero(np.asarray(after.visits) == np.asarray(before.visits))
    wanted = len(before.visits) if method.full_cohort else COHORT
    if len(idle) != len(before.visits) - wanted:
        raise ContractBroken(f"{len(before.visits) - len(idle)} clients took part in a round of {wanted}")
    rows = [_rows(state.private, idle) for state in (before, after)]
    _same("private rows of clients outside the cohort", rows[0], rows[1], atol=0.0)


def _rows(private: object, idle: np.ndarray) -> dict[str, np.ndarray]:
    leaves = [np.asarray(leaf)[idle] for leaf in jax.tree.leaves(private)]
    return dict(zip(tree.paths(private), leaves, strict=True))


def padding_does_not_matter(bench: Bench) -> None:
    """Neither what lies between clients' rows nor how long the padding is changes anything."""
    _same("NaN between clients' rows", outcome(bench.base), outcome(bench.run(junk=np.nan)), atol=0.0)
    longer = capacity_raised(bench.runner(), 5).run()
    _same("longer padding", outcome(bench.base), outcome(longer), atol=1e-6)


def second_round_does_not_compile(bench: Bench) -> None:
    """After the first round nothing is compiled again: no Python values hide in the state."""
    link = bench.method.prelude
    # A closing round knows the number of its round: what comes before it are the rounds of its base.
    method = link.method if link is not None and link.leave else bench.method
    bench.run(rounds=1, method=method)
    known = _compilations()
    bench.run(rounds=ROUNDS, method=method)
    if _compilations() > known:  # programs of other methods may be forgotten meanwhile
        raise ContractBroken("a later round compiled again: the state's types change, or it holds Python values")


def _compilations() -> int:
    """How many programs ``play`` has been compiled to."""
    return int(play._cache_size())  # type: ignore[attr-defined]


def resumed_equals_uninterrupted(bench: Bench) -> None:
    """A run stopped and resumed ends bit for bit where an uninterrupted one does."""
    with tempfile.TemporaryDirectory() as folder:
        resumed = interrupted(bench, Path(folder))
    whole, again = outcome(bench.base), outcome(resumed)
    end = f"round {ROUNDS + prelude_rounds(bench.method)}"
    last = {name: values for name, values in whole.items() if name.startswith(("state", end))}
    _same("resumed against uninterrupted", last, {name: again[name] for name in last}, atol=0.0)


def numbers_stay_finite(bench: Bench) -> None:
    """An empty client, a client with one class and a federation of one client give finite numbers."""
    _all_finite("with an empty client", outcome(bench.base))
    alone = replace(worlds.limit_world("one_client"), num_groups=bench.method.num_groups)
    try:
        prepare(bench.method, alone, settings=Settings(rounds=2 + prelude_rounds(bench.method)))
    except BadValue:
        return  # more clusters than clients: refused in so many words, before the first round
    probe = predictions(bench.method, alone, rounds=2)
    if not np.isfinite(probe).all():
        raise ContractBroken("with a single client predictions are not finite")


def _all_finite(when: str, found: Mapping[str, np.ndarray]) -> None:
    for name, values in found.items():
        if np.asarray(values).dtype.kind == "f" and not np.isfinite(values).all():
            raise ContractBroken(f"{when} '{name}' is not finite")


def lost_uploads_do_not_count(bench: Bench) -> None:
    """An upload of weight 0 has no influence, whatever it holds."""
    content = [np.nan]
    channel = losing(1, content)
    found = [outcome(bench.run(channels=(channel,)))]
    content[0] = 7.0
    found.append(outcome(bench.run(channels=(channel,))))
    _all_finite("after a lost upload", found[0])
    _same("after a lost upload with other content", found[0], found[1], atol=0.0)


def unseen_clients_are_served(bench: Bench) -> None:
    """A client never seen in training is served, or refused in so many words."""
    if bench.method.transductive:
        seen, unseen = worlds.awkward()
        try:
            prepare(bench.method, seen, unseen=unseen, settings=bench.runner().settings)
        except Unsupported:
            return
        raise ContractBroken("a method that serves only its training clients took an unseen one")
    scores = bench.base.record.latest("personal", "test")
    if scores is None or not np.isfinite(scores.metrics["loss"][-worlds.NUM_UNSEEN :]).all():
        raise ContractBroken("an unseen client was not served")


def planted_groups_stay_hidden(bench: Bench) -> None:
    """Only an oracle reads the planted group."""
    if "oracle" in bench.subject.entry.tags:
        return
    runner = bench.runner()
    hidden = replace(runner, places=runner.places._replace(group=runner.places.group * 0))
    _same("planted groups hidden", outcome(bench.base), outcome(hidden.run()), atol=0.0)


def variances_stay_positive(bench: Bench) -> None:
    """With batch norm no client is ever served a running variance of 0 or below."""
    try:
        method = quiet(bench.subject.build(worlds.model(norm=True), worlds.PLAN, {}))
    except Unsupported:
        return
    for rounds in (1, ROUNDS):
        served = served_models(bench.run(method=method, rounds=rounds))
        for name, values in zip(tree.paths(served), jax.tree.leaves(served), strict=True):
            if "stats/" in name and name.endswith("/var") and not (np.asarray(values) > 0).all():
                raise ContractBroken(f"after {rounds} rounds a running variance is {values.min():.3g} ('{name}')")


def limits_hold(bench: Bench) -> None:
    """At every declared limit the method predicts what the other method predicts."""
    for limit in bench.subject.entry.limits:
        federation = worlds.limit_world(limit.world)
        facts = {k: v for k, v in federation.facts.items() if k in bench.subject.entry.options}
        subject = Subject.personalizer(bench.subject.entry, limit.base) if limit.base else bench.subject
        ours = subject.build(subject.model, worlds.FULL_BATCH, {**facts, **limit.options})
        other = Subject.method(METHODS[limit.same_served_as])
        theirs = other.build(bench.subject.model, worlds.FULL_BATCH, limit.its_options)
        found, wanted = (predictions(one, federation, rounds=3) for one in (ours, theirs))
        if not np.allclose(found, wanted, atol=1e-5):
            gap = np.abs(found - wanted).max()
            raise ContractBroken(f"limit '{limit.text}': predictions differ by {gap:.3g}")


def traffic_is_as_committed(bench: Bench, table: Table) -> None:
    """Bytes per client equal the committed table."""
    found = traffic_row(bench)
    if bench.subject.name not in table:
        raise ContractBroken(f"{bench.subject.name} is not in the traffic table; run `make traffic` and commit it")
    if dict(table[bench.subject.name]) != found:
        raise ContractBroken(f"traffic is {found}, committed is {dict(table[bench.subject.name])}")


def traffic_row(bench: Bench) -> dict[str, int]:
    """Bytes of each message of one client."""
    return asdict(bench.runner().traffic(bench.method))


CHECKS: tuple[Callable[[Bench], None], ...] = (
    executors_agree,
    storage_order_is_not_identity,
    seeds_rule,
    idle_clients_keep_their_rows,
    padding_does_not_matter,
    second_round_does_not_compile,
    resumed_equals_uninterrupted,
    numbers_stay_finite,
    lost_uploads_do_not_count,
    unseen_clients_are_served,
    planted_groups_stay_hidden,
    limits_hold,
)
