"""The checks: each says what it found, and each is able to fail."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plures import tree
from plures.contract import worlds
from plures.contract.bench import (
    CHUNKED,
    COHORT,
    LONGER,
    ROUNDS,
    Bench,
    Subject,
    interrupted,
    predictions,
    prelude_rounds,
)
from plures.contract.errors import ContractBroken
from plures.contract.lost_uploads import lost_as
from plures.contract.views_checks import trained_is_what_training_ended_with, views_tell_the_truth
from plures.contract.watched_runs import main_phase, outcome, plain
from plures.engine.round import STEPS
from plures.errors import BadValue
from plures.registry import METHODS

LIMIT_ROUNDS = 3

Arrays = Mapping[str, np.ndarray]


def _same(what: str, ours: Arrays, theirs: Arrays, *, atol: float) -> None:
    if ours.keys() != theirs.keys():
        raise ContractBroken(f"{what}: other things came out: {sorted(ours.keys() ^ theirs.keys())[:3]}")
    for name, values in ours.items():
        if not np.allclose(values, theirs[name], atol=atol, rtol=atol, equal_nan=True):
            gap = np.nanmax(np.abs(np.asarray(values, float) - np.asarray(theirs[name], float)))
            raise ContractBroken(f"{what}: '{name}' differs by {gap:.3g}")


def executors_agree(bench: Bench) -> None:
    """Vectorized = chunked = one by one: no leakage across clients, no wrong axis, no hidden randomness.

    Compared is the last round of every phase, one by one, and of the main one in chunks. For that the method is built
    anew, so that randomness drawn while building shows as well.
    """
    if not _alike(bench.expected, bench.one_by_one):  # longer padding may be to blame
        plain_padding = bench.rounds_of(bench.runner(executor="one_by_one"))
        _same("vectorized against one_by_one", bench.expected, plain_padding, atol=1e-6)
    chunked = bench.rounds_of(bench.runner(executor=CHUNKED, method=bench.rebuilt()), main_only=True)
    expected = {name: bench.expected[name] for name in chunked if name in bench.expected}
    _same(f"vectorized against {CHUNKED}", expected, chunked, atol=1e-6)


def _alike(ours: Arrays, theirs: Arrays) -> bool:
    return ours.keys() == theirs.keys() and all(
        np.allclose(ours[name], theirs[name], atol=1e-6, rtol=1e-6, equal_nan=True) for name in ours
    )


def storage_order_is_not_identity(bench: Bench) -> None:
    """Storing clients in another order changes nothing for any uid."""
    other = bench.run(order=[3, 0, 7, 5, 1, 6, 2, 4])
    _same("clients stored in another order", outcome(bench.base), outcome(other), atol=1e-6)


def seeds_rule(bench: Bench) -> None:
    """The same seed gives the same bits; a round with another seed but the same cohort gives something else."""
    _same("the same seed", outcome(bench.base), outcome(bench.run()), atol=0.0)
    if "deterministic" in bench.subject.entry.tags:
        return
    if not any(_differ(ours, theirs) for ours, theirs in _with_another_key(bench)):
        raise ContractBroken("another seed gives the same result: the key is not used")


def _with_another_key(bench: Bench) -> Iterator[tuple[Any, Any]]:
    """States and scores of the base run, and what another key makes of the same cohorts."""
    for before, after in pairwise(bench.stops):
        if before.phase == after.phase:
            yield after.state, bench.next_round_with_another_key(before)
    yield bench.scores(seed=0), bench.scores(seed=1)
    other = bench.runner(seed=1)
    other.run()
    for number, phase in enumerate(other.phases):  # a method may keep a key in its state from the start
        yield bench.watched.entries[number], other.entries[number]
        if not phase.everyone:
            return
        ours, theirs = (
            [one.state for one in run.stops_seen if one.phase == number] for run in (bench.watched, other)
        )
        yield ours, theirs


def _differ(ours: Any, theirs: Any) -> bool:
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return not all(np.array_equal(plain(a), plain(b), equal_nan=True) for a, b in pairs)


def idle_clients_keep_their_rows(bench: Bench) -> None:
    """A round changes the private rows of its cohort and of nobody else."""
    runner = bench.base.runner
    phase = main_phase(runner)
    if phase != len(runner.phases) - 1 and not (np.asarray(bench.base.state.visits) == 1).all():
        raise ContractBroken("not everyone took part in the closing round, once")
    before, after = bench.last_rounds[phase][0], bench.last_rounds[phase][1].state
    idle = np.flatnonzero(np.asarray(after.visits) == np.asarray(before.visits))
    wanted = len(before.visits) if runner.phases[phase].everyone else COHORT
    if len(idle) != len(before.visits) - wanted:
        raise ContractBroken(f"{len(before.visits) - len(idle)} clients took part in a round of {wanted}")
    rows = [
        {name: np.asarray(leaf)[idle] for name, leaf in tree.named(state.private).items()}
        for state in (before, after)
    ]
    _same("private rows of clients outside the cohort", *rows, atol=0.0)


def padding_does_not_matter(bench: Bench) -> None:
    """Neither what lies between clients' rows nor how long the padding is changes anything."""
    _same("NaN between clients' rows", outcome(bench.base), outcome(bench.run(junk=np.nan)), atol=0.0)
    if not _alike(bench.expected, bench.one_by_one):  # the executor may be to blame
        longer = bench.run(longer=LONGER)
        _same("longer padding", outcome(bench.base), outcome(longer), atol=1e-6)


def second_round_does_not_compile(bench: Bench) -> None:
    """After the first round of a phase nothing is compiled again: no Python values hide in the state."""
    phases = len(bench.base.runner.phases)
    for phase in range(phases):
        stops = [one for one in bench.stops if one.phase == phase]
        if stops[-1].compiled > stops[0].compiled:
            raise ContractBroken(
                "a later round compiled again: the state's types change, or it holds Python values"
            )


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
    try:
        alone = bench.alone()
    except BadValue:
        return  # more clusters than clients: refused in so many words, before the first round
    _all_finite("with a single client", outcome(alone.run()))


def _all_finite(when: str, found: Arrays) -> None:
    for name, values in found.items():
        if np.asarray(values).dtype.kind == "f" and not np.isfinite(values).all():
            raise ContractBroken(f"{when} '{name}' is not finite")


def lost_uploads_do_not_count(bench: Bench) -> None:
    """An upload of weight 0 has no influence, whatever it holds."""
    found = [outcome(bench.run(loss=lost_as(content))) for content in (np.nan, 7.0)]
    _all_finite("after a lost upload", found[0])
    _same("after a lost upload with other content", found[0], found[1], atol=0.0)


def unseen_clients_are_served(bench: Bench) -> None:
    """A client never seen in training is served."""
    scores = bench.base.record.latest("personal", "test")
    if scores is None or not np.isfinite(scores.metrics["loss"][-worlds.NUM_UNSEEN :]).all():
        raise ContractBroken("an unseen client was not served")


def work_is_counted(bench: Bench) -> None:
    """A round with a training loss tells its gradient steps too, so that no method looks cheaper than it is."""
    told = {(at, name): value for at, name, value in bench.base.record.info}
    silent = sorted(at for (at, name), loss in told.items() if name == "loss" and loss and not told[at, STEPS])
    if silent:
        raise ContractBroken(f"round {silent[0]} has a training loss in its info, but no '{STEPS}'")


def planted_groups_stay_hidden(bench: Bench) -> None:
    """Only an oracle reads the planted group."""
    if "oracle" in bench.subject.entry.tags:
        return
    runner = bench.runner()
    hidden = replace(runner, places=runner.places._replace(group=runner.places.group * 0))
    _same("planted groups hidden", outcome(bench.base), outcome(hidden.run()), atol=0.0)


def limits_hold(bench: Bench) -> None:
    """At every declared limit the method predicts what the other method predicts."""
    for limit in bench.subject.entry.limits:
        federation = worlds.limit_world(limit.world)
        facts = {k: v for k, v in federation.facts.items() if k in bench.subject.entry.options}
        subject = Subject(bench.subject.entry, limit.base) if limit.base else bench.subject
        ours = subject.build(subject.model, worlds.FULL_BATCH, {**facts, **limit.options})
        found = predictions(ours, federation, rounds=LIMIT_ROUNDS)
        options = tuple(sorted(limit.its_options.items()))
        tags = bench.subject.entry.tags
        wanted = _reference(limit.same_served_as, options, "parts" in tags, "norm" in tags, limit.world)
        if not np.allclose(found, wanted, atol=1e-5):
            gap = np.abs(found - wanted).max()
            raise ContractBroken(f"limit '{limit.text}': predictions differ by {gap:.3g}")


@cache
def _reference(name: str, options: tuple[tuple[str, Any], ...], parts: bool, norm: bool, world: str) -> np.ndarray:
    """What the method at the other end of a limit predicts: many have FedAvg or training alone there."""
    model = worlds.model(parts=parts, norm=norm)
    method = Subject(METHODS[name]).build(model, worlds.FULL_BATCH, dict(options))
    return predictions(method, worlds.limit_world(world), rounds=LIMIT_ROUNDS)


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
    work_is_counted,
    planted_groups_stay_hidden,
    views_tell_the_truth,
    trained_is_what_training_ended_with,
    limits_hold,
)
