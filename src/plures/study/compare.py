"""Methods x seeds on one federation: a per-client table, a leaderboard, a folder with all of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plures.data import Federation
from plures.engine import Progress, Run, Runner, Settings, can_join, prepare, run_together
from plures.engine.liars import bound, byzantine, check_liars, forecast_of, threat_of
from plures.errors import BadData, BadValue, MethodWarning
from plures.norms import has_norm
from plures.study.comparison import Comparison
from plures.study.folder import (
    Kept,
    finished,
    header,
    kept_of,
    labeled,
    mark_of,
    newcomers_of,
    run_folder,
    save_comparison,
    save_run,
    tuned_texts,
)
from plures.study.keeping import STATES, drop_states, keeping_all
from plures.study.spec import build_method, build_model, default_model
from plures.study.tracking import Tracker, tracking
from plures.types import Channel, Forecast, Method, Model, Plan


def default_methods(federation: Federation) -> tuple[str, ...]:
    """What is compared unless methods are named; the oracle only where groups are planted."""
    found = ("local_only", "fedavg", "fedavg|finetune", "ditto")
    return (*found, "oracle") if federation.num_groups else found


@dataclass(frozen=True)
class StudyProgress:
    """How far a study is: which run of how many, and how far that one is."""

    method: str
    seed: int
    index: int
    total: int
    run: Progress


def compare(
    methods: Sequence[str] | Mapping[str, Method],
    federation: Federation,
    *,
    rounds: int,
    unseen: Federation | None = None,
    model: str | Model | None = None,
    plan: Plan = Plan(),
    norm: str = "share",
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path | None = None,
    progress: Callable[[StudyProgress], None] | None = None,
    config: Mapping[str, Any] | None = None,
    keep_models: bool | None = None,
    track: Sequence[str | Tracker] = (),
    together: bool | None = None,
    **settings: Any,
) -> Comparison:
    """Run every method with every seed; ``settings`` are those of a run, ``norm`` a policy for normalization layers.

    Methods are named as on the command line, or given as {label: Method}; then ``model`` is theirs.
    Every method is built before the first run starts, so a mistake in the last name costs no time. With ``out``
    finished runs are kept there and are not run again; ``keep_models``: with their last state, from which clients' models
    are made (None: where that is at most 256 MB a run). ``track`` names trackers, see ``plures.study.tracking``. ``together``
    plays the seeds of a method side by side (not by default: it pays for long runs alone). ``config`` is kept with every run; {"tuned":
    Tuned.chosen} in it keeps apart runs of other choices of tuning.
    """
    methods = [methods] if isinstance(methods, str) else methods
    limits = Settings.of({"rounds": rounds, **settings, "checkpoint": "checked"})
    check_given(methods, seeds, federation, limits)
    built = dict(methods) if isinstance(methods, Mapping) else built_methods(methods, federation, model, plan, norm)
    for name, method in built.items():
        check_liars(method, limits, federation.num_clients, label=name)
    threat = threat_of(limits.channels, federation.num_clients)
    chosen = next(iter(built.values())).model
    runs, seconds, told = dict[tuple[str, int], Kept](), dict[str, float](), dict[str, list[str]]()
    texts = tuned_texts(config or {})
    keeps, notes = keeping_all(built, federation.num_clients, rounds, keep_models if out is not None else False)
    with tracking(track, progress, {"rounds": rounds, "seeds": list(seeds), **(config or {})}) as watch:
        for place, (name, method) in enumerate(built.items()):
            folders = {} if out is None else {seed: run_folder(Path(out), name, seed) for seed in seeds}
            mark = mark_of(method, federation, limits, texts.get(name))
            kept = {seed: one for seed, at in folders.items() if (one := finished(at, mark)) is not None}
            jobs = dict[int, Job]()
            for index, seed in enumerate(seeds):
                extra = dict(settings)
                if seed in folders and (keeps[name] or extra.get("checkpoint_every")):
                    extra["checkpoint"] = folders[seed] / STATES
                tell = teller(watch.tell, name, seed, place * len(seeds) + index, len(built) * len(seeds))
                if seed not in kept:
                    jobs[seed] = Job(Settings.of({"rounds": rounds, "seed": seed, **extra}), tell)
            for seed, run in played(name, method, federation, unseen, jobs, together=together):
                kept[seed] = kept_of(run, with_newcomers=seed in folders)
                if seed in folders:
                    save_run(folders[seed], run, kept[seed], header(name, seed, method, config), mark)
                    if not keeps[name]:
                        drop_states(folders[seed])
            told[name] = kept[seeds[0]].told + notes[name]
            runs |= {(name, seed): kept[seed] for seed in seeds}
            seconds[name] = sum(one.seconds for one in kept.values())
        said = tuple(f"{name}: {line}" for name, lines in told.items() for line in lines)
        norms = {name: method.norm for name, method in built.items()} if has_norm(chosen) else {}
        result = Comparison(
            labeled({run: one.clients for run, one in runs.items()}),
            chosen.score,
            chosen.higher_is_better,
            seconds,
            threat,
            said,
            norms,
            newcomers_of(runs),
        )
        if out is not None:
            save_comparison(Path(out), result)
        watch.done(result)
    return result


class Job(NamedTuple):
    """A run that is to be played."""

    settings: Settings
    tell: Callable[[Progress], None]


def played(
    name: str,
    method: Method,
    federation: Federation,
    unseen: Federation | None,
    jobs: Mapping[int, Job],
    *,
    together: bool | None = None,
) -> Iterator[tuple[int, Run]]:
    """(seed, run) of a method, one after another; side by side where that is asked for and can be done.

    On a CPU seeds side by side gain little, and cost the equality with a run alone to the last bit.
    """
    if not (together and len(jobs) > 1 and all(can_join(one.settings) for one in jobs.values())):
        for seed, job in jobs.items():
            yield seed, run_one(name, method, federation, unseen, *job)
        return
    with named_warnings(name):
        runs = run_together([ready(method, federation, unseen, *job) for job in jobs.values()])
    yield from zip(jobs, runs, strict=True)


def ready(
    method: Method,
    federation: Federation,
    unseen: Federation | None,
    settings: Settings,
    tell: Callable[[Progress], None],
) -> Runner:
    """A run made ready; unseen clients are left out for a method that cannot serve them."""
    hidden = None if method.transductive else unseen
    return prepare(method, federation, unseen=hidden, settings=settings, progress=tell)


def run_one(
    name: str,
    method: Method,
    federation: Federation,
    unseen: Federation | None,
    settings: Settings,
    tell: Callable[[Progress], None],
) -> Run:
    """A run of a study; what the method warns of is said with its name."""
    with named_warnings(name):
        return ready(method, federation, unseen, settings, tell).run()


@contextmanager
def named_warnings(name: str) -> Iterator[None]:
    """Warnings of a method that are raised in the block are said with its name when it ends."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", MethodWarning)
        yield
    for one in said:
        if issubclass(one.category, MethodWarning):
            warnings.warn(f"{name}: {one.message}", MethodWarning, stacklevel=5)
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def teller(
    progress: Callable[[StudyProgress], None] | None, method: str, seed: int, index: int, total: int
) -> Callable[[Progress], None]:
    """What a run calls to say how far it is; the study says which run of how many that is."""

    def tell(now: Progress) -> None:
        if progress is not None:
            progress(StudyProgress(method, seed, index, total, now))

    return tell


def check_given(
    methods: Sequence[str] | Mapping[str, Method], seeds: Sequence[int], federation: Federation, settings: Settings
) -> None:
    """Refuse what leaves nothing to compare, or would be run twice."""
    for name, given in (("methods", list(methods)), ("seeds", list(seeds))):
        if not given:
            raise BadValue(name, given, "a list with at least one entry")
        if len(set(given)) < len(given):
            raise BadValue(name, given, "a list without repeats")
    if not federation.count[:, 2].any():
        raise BadData("no client has test rows, so there is nothing to compare; split the data with a test share")
    if not federation.count[honest_rows(federation, settings), 2].any():
        raise BadData(
            "no honest client has test rows, so there is nothing to compare; use a smaller share of liars"
        )


def honest_rows(federation: Federation, settings: Settings) -> np.ndarray:
    """(clients,) who is honest, in the order of the federation's rows."""
    number = federation.num_clients
    return ~byzantine(bound(settings.channels, number), number)[federation.uid]


def built_methods(
    names: Sequence[str], federation: Federation, model: str | Model | None, plan: Plan, norm: str = "share"
) -> dict[str, Method]:
    """Methods by their names, all with one model and one policy for its normalization layers."""
    chosen = model if isinstance(model, Model) else build_model(model or default_model(federation), federation)
    return {name: build_method(name, chosen, plan=plan, facts=federation.known, norm=norm) for name in names}


def forecasts(
    names: Sequence[str],
    federation: Federation,
    model: str | Model | None,
    plan: Plan,
    channels: Sequence[Channel] = (),
    cohort: int | str | None = None,
    norm: str = "share",
) -> dict[str, Forecast]:
    """What methods say before a study starts, those that have something to say."""
    built = built_methods(names, federation, model, plan, norm)
    found = {name: forecast_of(method, federation, channels, cohort) for name, method in built.items()}
    return {name: ahead for name, ahead in found.items() if ahead is not None}
