"""One training, many ways to serve it: personalizers around a base that was run already."""

from __future__ import annotations

import time
from dataclasses import replace

from plures.engine.result import Run
from plures.engine.runner import Runner
from plures.engine.scoring import score_everyone
from plures.engine.state import next_state
from plures.errors import Unsupported
from plures.method import Method


def follow(done: Run, method: Method) -> Run:
    """The run of ``method`` if it trains just as the finished one did: its model served in another way.

    ``method`` is a personalizer around the method that was run: one that only serves, or one with a closing round,
    which is played. The result is what a run of it from the start would give, without training the base again.
    """
    base = done.runner.method
    if done.store is not None:
        raise Unsupported("a run with private rows on disk cannot be followed; keep them in memory")
    closing = any(one.rounds is None and one.method is base for one in method.phases)
    if not closing and (method.train is not base.train or method.merge is not base.merge):
        raise Unsupported("this method trains otherwise than the run it should follow; run it from the start")
    more = sum(phase.rounds or 0 for phase in method.phases[len(base.phases) :]) if closing else 0
    settings = replace(done.runner.settings, rounds=done.runner.settings.rounds + more, checkpoint=None)
    runner = replace(done.runner, method=method, settings=settings, family=None, numbers=())
    began = time.perf_counter()
    if not closing:
        return _served(runner, done, began)
    last = runner.phases[-1]
    record = done.record.with_past(done.runner.visits(done.runner.phases[-1], done.state))
    state = next_state(last, runner.key, done.state)
    state, record = runner.advance(last, state, None, record, last.stop)
    return Run(runner, state, None, record, done.seconds + time.perf_counter() - began)


def _served(runner: Runner, done: Run, began: float) -> Run:
    """The same state, scored with the other method."""
    found, now = score_everyone(runner, done.state, None), int(done.state.round)
    before = replace(done.record, scores=tuple(one for one in done.record.scores if one.round < now))
    record = before.with_scores(now, runner.everyone.uid, found, ("valid", "served", "test"))
    return Run(runner, done.state, None, record, done.seconds + time.perf_counter() - began)
