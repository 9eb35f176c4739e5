"""Methods x seeds on one federation: the runs are planned, run, and collected into one comparison."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from plures.builders import build_method, build_model, default_model
from plures.data import Federation
from plures.engine import Progress, Run, Settings, prepare
from plures.engine.attackers import attackers_among, attackers_of, bind_attacks, check_attackers, forecast_of
from plures.engine.identity import Identity, identify
from plures.errors import BadData, BadValue, MethodWarning
from plures.method import Channel, Forecast, Method
from plures.models.norm_layers import has_norm
from plures.study.comparison import Comparison
from plures.study.disk import layout
from plures.study.disk.results import save_comparison
from plures.study.disk.runs import (
    RunTables,
    header,
    old_mark,
    read_finished,
    save_run,
    stack_tables,
    tables_of,
    told_by,
)
from plures.study.disk.states import drop_states, which_keep
from plures.study.rounds_played import rounds_played
from plures.study.smaller_steps import Again, Tables, repeat_broken
from plures.study.tracking import Tracker, open_trackers
from plures.types import Model, Plan

ROUNDS_FOR_CLUSTERS, CLIENTS_FOR_CLUSTERS = 20, 4
"""With fewer rounds clusters have no time to part after their warm-up; with fewer clients there are none to find."""


def default_methods(federation: Federation, rounds: int) -> tuple[str, ...]:
    """What is compared unless methods are named; the oracle only where groups are planted.

    The set was chosen by regret (benchmarks/regret.py), on 38 federations: without clusters it was three times as large, and
    with ``convex_clustering``, ``fedclup`` or ``apfl`` beside them it changed by less than a tenth of a percent.
    """
    found = ["local_only", "fedavg", "fedavg|finetune", "ditto"]
    if rounds >= ROUNDS_FOR_CLUSTERS and federation.num_clients >= CLIENTS_FOR_CLUSTERS:
        found.append("hypcluster_auto")
    return (*found, "oracle") if federation.num_groups else tuple(found)


@dataclass(frozen=True)
class StudyProgress:
    """How far a study is: which run of how many, and how far that one is."""

    method: str
    seed: int
    index: int
    total: int
    run: Progress


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One method with one seed. ``tables`` are those of a finished run that lies in the folder; it is not run again."""

    label: str
    method: Method
    settings: Settings
    folder: Path | None
    identity: Identity
    keeps_state: bool
    tables: RunTables | None

    @property
    def name(self) -> tuple[str, int]:
        """(label of the method, seed)"""
        return self.label, self.settings.seed


@dataclass(frozen=True, eq=False)
class Grid:
    """All runs of a comparison, in order; ``notes`` are lines by method that the result must carry."""

    federation: Federation
    unseen: Federation | None
    methods: Mapping[str, Method]
    runs: Sequence[PlannedRun]
    notes: Mapping[str, list[str]]
    config: Mapping[str, Any]
    folder: Path | None
    vouched: bool
    again: Again | None = None  # for methods that break down


def compare(
    methods: Sequence[str] | Mapping[str, Method],
    federation: Federation,
    *,
    progress: Callable[[StudyProgress], None] | None = None,
    track: Sequence[str | Tracker] = (),
    **options: Any,
) -> Comparison:
    """Run every method with every seed; the other options are those of ``plan_grid``.

    With ``out`` finished runs are kept there, with the tables of the comparison; ``plures.compare`` adds what a reader wants.
    """
    planned = plan_grid(methods, federation, **options)
    result = run_grid(planned, progress=progress, track=track)
    if planned.folder is not None:
        save_comparison(planned.folder, result)
    return result


def plan_grid(
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
    config: Mapping[str, Any] | None = None,
    keep_models: bool | None = None,
    vouched: bool = False,
    patience: int | None = None,
    **settings: Any,
) -> Grid:
    """All runs, those that lie finished in the folder among them; what does not fit is refused before the first one starts.

    Methods are named as on the command line, or given as {label: Method}; then ``model`` is theirs. ``settings`` are those of
    a run, ``norm`` a policy for normalization layers. ``keep_models``: with the last state of runs, from which clients' models
    are made (None: where that is at most 256 MB a run). ``config`` is kept with every run. ``vouched``: the settings in the
    folder are known to be these, so that finished runs of version 0.1, which do not say all, are taken. ``patience``:
    methods are played for up to four times the rounds, until valid rows stop improving for so many evaluations.
    """
    methods = [methods] if isinstance(methods, str) else methods
    limits = Settings.of({**settings, "rounds": rounds, "checkpoint_every": None})
    check_given(methods, seeds, federation, limits)
    built = dict(methods) if isinstance(methods, Mapping) else build_methods(methods, federation, model, plan, norm)
    for label, method in built.items():
        check_attackers(method, limits, federation.num_clients, label=label)
    folder = None if out is None else Path(out)
    keeps, notes = which_keep(built, federation.num_clients, rounds, False if folder is None else keep_models)
    played = rounds_played(rounds, patience, settings.get("eval_every"))
    tuned, runs = (config or {}).get("tuned") or {}, list[PlannedRun]()
    for label, method in built.items():
        text = tuned[label][0] if label in tuned else None
        mark = old_mark(method, federation, limits, text) if vouched else None
        mine = Settings.of({**settings, **played, "checkpoint_every": None})
        made = {} if folder is None else identify(method, federation, mine, unseen=unseen).parts
        for seed in seeds:
            place = None if folder is None else layout.run_folder(folder, label, seed)
            own = {**settings, **played, "seed": seed}
            if place is not None and (keeps[label] or own.get("checkpoint_every")):
                own["checkpoint"] = place / layout.STATES
            identity = Identity({**made, "seed": str(seed)})
            tables = None if place is None else read_finished(place, identity, mark)
            runs.append(PlannedRun(label, method, Settings.of(own), place, identity, keeps[label], tables))
    return Grid(federation, unseen, built, runs, notes, config or {}, folder, vouched)


def run_grid(
    grid: Grid, *, progress: Callable[[StudyProgress], None] | None = None, track: Sequence[str | Tracker] = ()
) -> Comparison:
    """Run what is not finished, and collect; runs are kept in the folder, if there is one."""
    first = grid.runs[0].settings
    seeds = list(dict.fromkeys(run.settings.seed for run in grid.runs))
    with open_trackers(track, progress, {"rounds": first.rounds, "seeds": seeds, **grid.config}) as watch:
        tables: Tables = {
            run.name: run.tables or _run(grid, run, teller(watch.tell, *run.name, index, len(grid.runs)))
            for index, run in enumerate(grid.runs)
        }
        if grid.again is not None:

            def play(grid: Grid, run: PlannedRun) -> RunTables:
                return _run(grid, run, teller(watch.tell, *run.name, len(grid.runs) - 1, len(grid.runs)))

            grid, tables = repeat_broken(grid, tables, grid.again, play)
        result = collect(grid, tables)
        watch.done(result)
    return result


def collect(grid: Grid, tables: Mapping[tuple[str, int], RunTables]) -> Comparison:
    """The comparison of all runs."""
    model = next(iter(grid.methods.values())).model
    return Comparison(
        clients=stack_tables({run: one.clients for run, one in tables.items()}),
        metric=model.score,
        higher_is_better=model.higher_is_better,
        attackers=attackers_of(grid.runs[0].settings.channels, grid.federation.num_clients),
        norms={label: method.traits.norm for label, method in grid.methods.items()} if has_norm(model) else {},
        **told_by(tables, grid.notes),
    )


def _run(grid: Grid, run: PlannedRun, tell: Callable[[Progress], None]) -> RunTables:
    """The tables of a run, which are kept in its folder."""
    given = run.label, run.method, grid.federation, grid.unseen, run.settings, tell
    done = run_one(*given, old_checkpoints=grid.vouched)
    tables = tables_of(done, with_newcomers=run.folder is not None)
    if run.folder is not None:
        save_run(run.folder, done, tables, header(*run.name, run.method, grid.config), run.identity)
        if not run.keeps_state:
            drop_states(run.folder)
    return tables


def run_one(
    name: str,
    method: Method,
    federation: Federation,
    unseen: Federation | None,
    settings: Settings,
    tell: Callable[[Progress], None],
    *,
    old_checkpoints: bool = False,
) -> Run:
    """A run of a study; what the method warns of is said with its name."""
    with record_warnings() as said:
        runner = prepare(method, federation, unseen=unseen, settings=settings, progress=tell)
        done = replace(runner, old_checkpoints=old_checkpoints).run()
    for text in said:
        warnings.warn(f"{name}: {text}", MethodWarning, stacklevel=3)
    return done


@contextmanager
def record_warnings() -> Iterator[list[str]]:
    """A list that holds, when the block is done, what methods warned of in it; other warnings are raised again."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MethodWarning)
        yield found
    for one in caught:
        if issubclass(one.category, MethodWarning):
            found.append(str(one.message))
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
            "no honest client has test rows, so there is nothing to compare; use a smaller share of attackers"
        )


def honest_rows(federation: Federation, settings: Settings) -> np.ndarray:
    """(clients,) who is honest, in the order of the federation's rows."""
    number = federation.num_clients
    return ~attackers_among(bind_attacks(settings.channels, number), number)[federation.uid]


def build_methods(
    names: Sequence[str], federation: Federation, model: str | Model | None, plan: Plan, norm: str = "share"
) -> dict[str, Method]:
    """Methods by their names, all with one model and one policy for its normalization layers."""
    chosen = model if isinstance(model, Model) else build_model(model or default_model(federation), federation)
    return {name: build_method(name, chosen, plan=plan, facts=federation.known, norm=norm) for name in names}


def forecasts(
    methods: Mapping[str, Method],
    federation: Federation,
    channels: Sequence[Channel] = (),
    cohort: int | str | None = None,
) -> dict[str, Forecast]:
    """What methods say before a study starts, those that have something to say."""
    found = {name: forecast_of(method, federation, channels, cohort) for name, method in methods.items()}
    return {name: ahead for name, ahead in found.items() if ahead is not None}
