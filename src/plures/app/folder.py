"""The folder of a study, opened: its results, a model for every client, its page; a study that stopped goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import polars as pl

from plures.app.ownership import BEFORE, read_settings, study_in, unnamable
from plures.app.reading import make_study
from plures.app.study import Study
from plures.builders import build_model, default_model
from plures.data import Federation
from plures.engine import Run, Settings
from plures.engine.result import Served
from plures.errors import BadFile, BadValue, UnknownChoice, UserError
from plures.method import Channel, Method
from plures.report.page import write_page
from plures.report.study_tables import client_rows
from plures.study.comparison import Comparison
from plures.study.difference import Difference, differ
from plures.study.disk import layout
from plures.study.disk.models import StoredModel, save_model
from plures.study.disk.results import SavedStudy, check_single, read_results
from plures.study.disk.runs import IDENTITY
from plures.study.disk.states import open_run, read_done
from plures.study.grid import StudyProgress
from plures.study.recommendation import Recommendation, recommend
from plures.study.rounds_played import rounds_played
from plures.study.tuning.outcomes import read_chosen
from plures.study.variants import is_varied

LONGEST = 120
"""Bytes of a folder's name; file systems take 255, and paths have limits too."""


@dataclass(frozen=True, eq=False)
class StudyInputs:
    """What a study was made of, where it is at hand: needed for models of a study that no text can name."""

    federation: Federation | None = None
    unseen: Federation | None = None
    methods: Mapping[str, Method] = field(default_factory=dict)
    channels: Sequence[Channel] = ()


def open_study(
    folder: str | Path,
    *,
    federation: Federation | None = None,
    unseen: Federation | None = None,
    methods: Mapping[str, Method] | None = None,
    channels: Sequence[Channel] = (),
) -> StudyFolder:
    """The study in a folder that ``plures compare``, ``plures run``, ``Study.run`` or ``plures.compare`` wrote.

    What was made in Python, and what no text can name, is given again where a client's model is wanted: the federation, the
    methods by their labels, the channels. Several studies of one file are opened by ``plures.open_variants``.
    """
    if is_varied(folder):
        raise BadFile(f"{folder} holds several studies; plures.open_variants opens them all")
    return StudyFolder(read_results(folder), StudyInputs(federation, unseen, methods or {}, channels))


@dataclass(frozen=True, eq=False)
class StudyFolder:
    """A study's folder; ``missing`` of ``saved`` says what cannot be shown."""

    saved: SavedStudy
    given: StudyInputs = StudyInputs()

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.saved.folder

    @property
    def settings(self) -> Mapping[str, Any]:
        """What was asked for."""
        return self.saved.study

    @property
    def comparison(self) -> Comparison:
        """The result: everything that follows from the table of clients."""
        return self.saved.result

    @property
    def clients(self) -> pl.DataFrame:
        """A row per (method, seed, client)."""
        return self.comparison.clients

    @property
    def leaderboard(self) -> pl.DataFrame:
        """A row per method, the best first."""
        return self.comparison.leaderboard

    @cached_property
    def recommendation(self) -> Recommendation:
        """Which method to take, in three sentences."""
        return recommend(self.comparison)

    def client(self, client: int | str) -> pl.DataFrame:
        """The rows of one client, by uid or name, with every method and seed."""
        return client_rows(self.comparison, str(client))

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report page, by default ``report.html`` in the folder; returns its path."""
        return write_page(self.saved, path)

    def diff(self, other: StudyFolder) -> Difference:
        """What differs between this study and another: settings, and methods paired over the clients that both have."""
        return differ(self.saved, other.saved)

    def resume(self, *, progress: Callable[[StudyProgress], None] | None = None) -> StudyFolder:
        """Go on with the study where it stopped; finished runs are not run again."""
        return study_in(self.path).run(self.path, progress=progress)

    def model(self, method: str, client: int | str, *, seed: int | None = None) -> Served:
        """The model that a client got from a method, ready to predict; by default with the first seed."""
        return run_in(self.path, method, seed, self.given).run.model_for(client)

    def export(
        self, *clients: int | str, method: str | None = None, seed: int | None = None, out: str | Path | None = None
    ) -> dict[Path, StoredModel]:
        """Write clients' models, those of all where none is named, to folders that ``plures.load_model`` reads.

        By default it is the recommended method with the first seed, into ``models/METHOD/seed-N/CLIENT``.
        """
        return export_models(self.path, clients, method=method, seed=seed, out=out, given=self.given)


def export_models(
    folder: Path,
    clients: Sequence[int | str] = (),
    *,
    method: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    given: StudyInputs = StudyInputs(),
) -> dict[Path, StoredModel]:
    """Models of some clients, or of all, written to folders: {folder: model}."""
    opened = run_in(folder, method, seed, given)
    run = opened.run
    names = [_named(run, str(one)) for one in clients] or run.runner.everyone.names
    own = folder / layout.MODELS / folder_name(opened.method) / f"seed-{run.runner.settings.seed}"
    places = {one: (own if out is None else Path(out)) / folder_name(one) for one in names}
    return {place: save_model(run, one, place, **opened.about) for one, place in places.items()}


def exportable(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """(settings, what they do not say) of a comparison; the results of other commands are refused."""
    check_single(folder)
    settings, unsaid = read_settings(folder, of="comparison")
    if "command" in settings:
        raise BadFile(f"{folder} is of plures {settings['command']}; models are exported from a comparison")
    return settings, unsaid


class OpenedRun(NamedTuple):
    """A run of a study as it ended, the label of its method, and what its models are to say of themselves."""

    run: Run
    method: str
    about: dict[str, Any]


def run_in(folder: Path, method: str | None, seed: int | None, given: StudyInputs = StudyInputs()) -> OpenedRun:
    """A run of a study: by default the recommended method with the first seed."""
    settings, unsaid = exportable(folder)
    method, seed = _chosen(folder, settings, method, seed)
    place = layout.run_folder(folder, method, seed)
    done = read_done(place)
    lineage = {
        "study": folder.resolve().name,
        "run": str(place.relative_to(folder)),
        "identity": done.get(IDENTITY) or done.get("mark"),
    }
    if not all(_at_hand(name, method, given) for name in unsaid):
        how = "plures.open_study(folder, federation=..., methods=...).export()"
        raise unnamable(folder, unsaid, f"give it again: {how}")
    # As far as texts can name it.
    study = make_study(
        {**BEFORE} | {name: one for name, one in settings.items() if name not in unsaid or name == "methods"}
    )
    seen, unseen = _data(study, given)
    text, lr = _text_of(folder, study, method)
    built, known = given.methods.get(method), dict[str, Any]()
    if built is None:
        known = {"method": text, "model": study.model or default_model(seen), "norm": study.norm}
        built = study.build_method(text, build_model(known["model"], seen), seen, lr=lr)
    running = {**study.running, **rounds_played(study.rounds, study.patience or None, study.eval_every)}
    own = Settings(seed=seed, channels=tuple(given.channels) or study.all_channels(seen), **running)
    tuned = None if study.tune is None else text
    run = open_run(place, built, seen, unseen=unseen, settings=own, tuned=tuned)
    return OpenedRun(run, method, {**known, "lineage": lineage})


def _at_hand(name: str, method: str, given: StudyInputs) -> bool:
    """Whether what a setting does not say was given again."""
    if name == "data":
        return given.federation is not None
    return bool(given.channels) if name == "channels" else method in given.methods


def _data(study: Study, given: StudyInputs) -> tuple[Federation, Federation | None]:
    if given.federation is not None:
        return given.federation, given.unseen
    try:
        return study.federations()
    except UserError as error:
        raise BadFile(
            f"a model is made from the kept state and the client's data, and these are gone: {error}"
        ) from error


def _text_of(folder: Path, study: Study, name: str) -> tuple[str, float]:
    """What a method of a study stands for: its text, and the step size."""
    chosen = read_chosen(folder)
    if (study.tune is not None or study.plan.finds_lr) and name not in chosen:
        file = folder / layout.TUNING / layout.CHOSEN
        raise BadFile(
            f"step sizes were chosen, and {file} does not say what {name} stands for; plures resume {folder}"
        )
    return chosen.get(name, (name, study.plan.build().lr))


def _chosen(folder: Path, settings: Mapping[str, Any], method: str | None, seed: int | None) -> tuple[str, int]:
    """The run that is meant: by default the recommended method with the first seed."""
    seeds = list(settings.get("seeds") or Study().seeds)
    number = seeds[0] if seed is None else seed
    if number not in seeds:
        raise BadValue("seed", number, f"one of {', '.join(map(str, seeds))}")
    there = [layout.label_of(place) for place in folder.glob(f"{layout.RUNS}/*")]
    known = list(dict.fromkeys([*(settings.get("methods") or ()), *there]))
    if method is None:
        return _best(folder), number
    if method not in known:
        raise UnknownChoice("method of this study", method, known)
    return method, number


def _best(folder: Path) -> str:
    """The method that the study recommends."""
    if not (folder / layout.SUMMARY).exists():
        raise BadFile(f"{folder} has no leaderboard yet; say --method, or finish the study with plures resume")
    found = recommend(read_results(folder).result)
    if not found.advice:
        raise BadFile(f"{folder} recommends no method; say which with --method")
    return found.advice


def _named(run: Run, client: str) -> str:
    """A client's name, given by its name or uid."""
    names = run.runner.everyone.names
    if client in names:
        return client
    if client.isdecimal() and int(client) < len(names):
        return names[int(client)]
    raise UnknownChoice("client", client, names)


def folder_name(text: str) -> str:
    """A text as the name of a folder; different texts have different ones.

    Letters and digits of any script are kept. A name that is longer than file systems take is cut, and ends in a hash.

    >>> folder_name("Zürich/北")
    'Zürich%2F北'
    """
    name = "".join(one if one.isalnum() else quote(one, safe=" =,+") for one in text)
    if len(name.encode()) > LONGEST:
        start = name.encode()[:LONGEST].decode(errors="ignore")
        return f"{start}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return layout.undotted(name)
