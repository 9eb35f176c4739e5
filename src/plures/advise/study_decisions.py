"""Deciding what every client takes by the methods of a study, into a folder."""

from __future__ import annotations

from pathlib import Path

from plures.advise.decisions import Decisions, guide
from plures.app.ownership import claim
from plures.app.running import Listener, tell_forecasts
from plures.app.study import Study
from plures.data import Federation
from plures.study.comparison import ALONE


def default_options(federation: Federation) -> tuple[str, ...]:
    """What clients decide between unless methods are named: none that has looked at a client's valid rows before."""
    few = f",up_to={federation.num_clients}" if federation.num_clients < 4 else ""
    return ("fedavg", f"hypcluster_auto:per_client=no{few}", "fedavg|dapper", "fedavg|mapper", ALONE)


def decide_study(
    study: Study, out: str | Path, listener: Listener = Listener(), *, errors: float = 1.0
) -> Decisions:
    """Train the methods of a study, and say for every client which of them it takes, into a folder as ``plures decide`` does.

    Without methods they are ``default_options``. ``errors`` is how many standard errors a gain on valid rows must exceed.
    """
    prepared, folder = study.prepare(), Path(out)
    if study.methods is None:
        study = study.model_copy(update={"methods": default_options(prepared.seen)})
        prepared = study.prepare(data=(prepared.seen, prepared.unseen))
    for name, why in prepared.left_out.items():
        listener.say(f"left out: {name}: {why}", "dim")
    claim(folder, {**prepared.settings, "methods": list(prepared.methods), "command": "decide", "errors": errors})
    tell_forecasts(prepared, listener)
    with listener.progress() as tell:
        settings = {"unseen": prepared.unseen, "errors": errors, "progress": tell, **prepared.training}
        found = guide(prepared.methods, prepared.seen, **settings)
    found.save(folder)
    return found
