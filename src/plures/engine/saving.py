"""How a run begins, anew or from its last checkpoint, and how it is kept."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import jax

from plures.engine import checkpoint
from plures.engine.phases import Span
from plures.engine.prepared import Prepared
from plures.engine.private_rows import DiskStore
from plures.engine.record import Record
from plures.engine.state import State, first_state, private_shape, state_entered
from plures.errors import BadValue


def begin(ready: Prepared) -> tuple[State, Record, Span, DiskStore | None]:
    """The first state, or the one of the last checkpoint."""
    span, settings = ready.phases[0], ready.settings
    in_memory = settings.store == "memory"
    state = first_state(span.method, ready.key, ready.num_seen, with_rows=in_memory)
    record = Record()
    found = None if settings.checkpoint is None else checkpoint.latest(Path(settings.checkpoint))
    if found is not None:
        # A closing round is the last one: such a run cannot go on for longer than was said.
        but = () if any(one.main for one in ready.phases[:-1]) else ("rounds",)
        done = checkpoint.round_of(found, ready.identity, but=but, old=ready.old_checkpoints)
        if done > settings.rounds:
            raise BadValue("rounds", settings.rounds, f"at least {done}, which the checkpoint has done")
        span = next(one for one in reversed(ready.phases) if one.start <= done)
        spans = ready.phases[: ready.phases.index(span) + 1]
        template = jax.eval_shape(partial(state_entered, spans, ready.key, with_rows=in_memory), state)
        state, record = checkpoint.load(found, template)
    state, store = move_rows(ready, span, state, resumed=found)
    return state, record, span, store


def move_rows(
    ready: Prepared, span: Span, state: State, resumed: Path | None = None
) -> tuple[State, DiskStore | None]:
    """With a disk store, move the private rows out of the state into files."""
    if ready.settings.store == "memory":
        return state, None
    folder = Path(ready.settings.store)
    for file in folder.glob("rows-*.bin"):
        file.unlink()
    if resumed is not None:
        checkpoint.restore_rows(resumed, folder)
    store = DiskStore(folder, private_shape(span.method, state.server), ready.num_seen)
    return state._replace(private=()), store


def save(ready: Prepared, state: State, store: DiskStore | None, record: Record, *, last: bool = False) -> None:
    """Write a checkpoint if there is to be one after this round."""
    folder, every = ready.settings.checkpoint, ready.settings.checkpoint_every
    if folder is None or not (last or (every is not None and int(state.round) % every == 0)):
        return
    if store is not None:
        store.flush()
    files = [] if store is None else store.files
    checkpoint.save(Path(folder), state, record, files, ready.identity.parts)
