"""Running a study into a folder: checked, tuned, compared, and written with its tables, its picture and its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plures.app.check import PreparedStudy
from plures.app.folder import StudyFolder, StudyInputs
from plures.app.mistakes import StudySource
from plures.app.ownership import FREE, UNSAID, claim
from plures.app.parts import OPTIMIZERS, DataPart
from plures.app.study import Study
from plures.app.toml import as_toml
from plures.builders import build_method, build_model, default_model
from plures.data import Federation
from plures.engine import Settings
from plures.engine.attackers import check_attackers
from plures.engine.check import check_fit
from plures.method import Method
from plures.recipe import recipe_of
from plures.report.page import write_page
from plures.study import grid
from plures.study.comparison import Comparison
from plures.study.disk import layout
from plures.study.disk.references import keep_references, trivial_references
from plures.study.disk.results import save_comparison, saved_study
from plures.study.grid import StudyProgress
from plures.study.tracking import Tracker
from plures.study.tuning.hyperparameters import Tuned, tune
from plures.study.tuning.step_size import (
    AUTO,
    FoundSteps,
    find_step_sizes,
    quartered,
    steps_of,
    steps_of_tuned,
)
from plures.types import Model, Plan

TITLE = "# The study with every default filled in; `plures run` takes it.\n\n"
Tell = Callable[[StudyProgress], None]


@dataclass(frozen=True)
class Listener:
    """Who is told while a study runs: lines with a style ("", "dim", "yellow"), and how far it is."""

    say: Callable[[str, str], None] = lambda text, style: None
    progress: Callable[[], AbstractContextManager[Tell | None]] = nullcontext


def run_study(
    study: Study,
    out: Path,
    listener: Listener = Listener(),
    *,
    source: StudySource | None = None,
    command: str = "",
) -> StudyFolder:
    """Run a study into a folder; finished runs that lie there are not run again.

    ``source`` is the file it was read from, if any: mistakes are shown with its lines. ``command`` is what was typed.
    """
    prepared = study.prepare(source)
    for name, why in prepared.left_out.items():
        listener.say(f"left out: {name}: {why}", "dim")
    before = layout.count_finished(out)
    claim(out, prepared.settings, prepared.seen)
    (out / layout.RESOLVED).write_text(TITLE + as_toml(prepared.resolved))
    if command and not (out / layout.COMMAND).exists():
        (out / layout.COMMAND).write_text(f"{command}\n")
    if before:
        listener.say(f"{before} finished runs are kept from before in {out}", "")
    tell_forecasts(prepared, listener)
    steps, tuned = find_steps(prepared, out, listener)
    methods, chosen = dict(prepared.methods), dict[str, tuple[str, float]]()
    if steps is not None:
        steps.keep()
        methods, chosen = steps.methods(), steps.now
    elif tuned is not None:
        methods, chosen = dict(tuned.built), dict(tuned.chosen)
    planned = grid.plan_grid(
        methods,
        prepared.seen,
        unseen=prepared.unseen,
        seeds=study.seeds,
        out=out,
        config={**prepared.settings, "tuned": chosen} if chosen else prepared.settings,
        checkpoint_every=study.checkpoint_every,
        keep_models=study.keep_models,
        vouched=True,
        patience=study.patience or None,
        **prepared.running,
    )
    again = None if steps is None else steps.again
    with listener.progress() as tell:
        result = grid.run_grid(replace(planned, again=again), progress=tell, track=study.track)
    given = prepared.seen, prepared.unseen, prepared.model
    known = keep_references(out, *given, listener.say) if study.references else trivial_references(*given, out)
    result = replace(result, references=known)
    return finish(out, result, prepared.seen, prepared.unseen)


def tell_forecasts(prepared: PreparedStudy, listener: Listener) -> None:
    """Say what methods cost and what is likely to go wrong; the runs will repeat the warnings."""
    for name, ahead in prepared.forecasts().items():
        listener.say(f"{name}: {ahead.cost}", "dim")
        for warning in ahead.warnings:
            listener.say(f"warning: {name}: {warning}", "yellow")


def find_steps(prepared: PreparedStudy, out: Path, listener: Listener) -> tuple[FoundSteps | None, Tuned | None]:
    """The step sizes that were left to the data, which is said, and what tuning chose around them."""
    study = prepared.study
    if not study.plan.finds_lr:
        return None, tune_methods(prepared, out, listener)
    times = quartered(out)
    with listener.progress() as tell:
        found = find_step_sizes(
            list(prepared.methods),
            prepared.seen,
            model=prepared.model,
            plan=study.plan.build(),
            norm=study.norm,
            seeds=study.seeds,
            out=out,
            progress=tell,
            degrees=study.tune is None,
            **prepared.running,
        )
    for line in found.said:
        listener.say(line, "")

    def build(text: str, lr: float) -> Method:
        return study.build_method(text, prepared.model, prepared.seen, lr=lr)

    if study.tune is None:
        return steps_of(found, list(prepared.methods), build, out), None
    given = {text: build(text, found.common) for text in prepared.methods}
    tuned = tune_methods(replace(prepared, methods=given), out, listener, lr=found.common)
    assert tuned is not None
    return steps_of_tuned(tuned.chosen, build, out, times), tuned


def tune_methods(
    prepared: PreparedStudy, out: Path, listener: Listener, *, lr: float | None = None
) -> Tuned | None:
    """The methods of a study tuned with one budget, which is said with what was chosen; None if it does not ask for it."""
    study = prepared.study
    if study.tune is None:
        return None
    with listener.progress() as tell:
        found = tune(
            prepared.methods,
            prepared.seen,
            trials=study.tune.trials,
            strategy=study.tune.strategy,
            search=study.tune.search,
            seed=study.tune.seed,
            seeds=study.tune.seeds or study.seeds[:1],
            model=study.model,
            plan=study.plan.build(lr),
            norm=study.norm,
            out=out,
            progress=tell,
            **{name: value for name, value in prepared.running.items() if name != "eval_every"},
        )
    for line in found.said:
        listener.say(line, "")
    listener.say(f"every trial: {out / layout.TUNING / layout.TRIALS_TABLE}", "")
    return found


def finish(out: Path, result: Comparison, seen: Federation, unseen: Federation | None) -> StudyFolder:
    """Write what a folder has beside its runs: the tables, what the data are, the picture and the page."""
    from plures.report.figures import overview  # matplotlib is loaded only where a picture is drawn

    layout.write_json(out / layout.DATA, {**seen.describe(), "unseen_clients": unseen.num_clients if unseen else 0})
    save_comparison(out, result)
    overview(result, out / layout.OVERVIEW)
    saved = saved_study(result, out)
    write_page(saved)
    return StudyFolder(saved, StudyInputs(seen, unseen))


def compare(
    methods: Sequence[str] | Mapping[str, Method],
    federation: Federation,
    *,
    rounds: int,
    unseen: Federation | None = None,
    model: str | Model | None = None,
    plan: Plan | None = None,
    norm: str = "share",
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path | None = None,
    progress: Tell | None = None,
    config: Mapping[str, Any] | None = None,
    keep_models: bool | None = None,
    references: bool = True,
    track: Sequence[str | Tracker] = (),
    **settings: Any,
) -> Comparison:
    """Run every method with every seed; ``settings`` are those of a run, ``norm`` a policy for normalization layers.

    Methods are named as on the command line, or given as {label: Method}; then ``model`` is theirs.
    Every method is built before the first run starts, so a mistake in the last name costs no time. With ``out``
    finished runs are kept there and are not run again, and the folder has what ``plures compare`` leaves in one: settings,
    tables, picture and page. ``keep_models``: with the last state of runs, from which clients' models are made (None: where
    that is at most 256 MB a run). Without a ``plan`` it is ``Plan()`` with a step size found from the data. ``references``:
    with scores of predictors that are not federated, beside the study in the folder. ``track`` names trackers, see
    ``plures.study.tracking``. ``config`` is kept with every run.

    Left out, ``plan``, ``eval_every`` and ``patience`` are not those of ``plures compare`` (2 epochs in batches of 10, every 10 rounds,
    3 evaluations), so that numbers differ from the command's: ``plures.Study`` has its defaults.
    """
    steps = None
    own = {"rounds": rounds, "model": model, "norm": norm, "seeds": seeds}
    if plan is None and not isinstance(methods, Mapping):
        texts = [methods] if isinstance(methods, str) else list(methods)
        steps = _find_for(texts, federation, None if out is None else Path(out), progress, own, settings)
    asked = {**own, "plan": plan or Plan(), **settings}
    kept = {"keep_models": keep_models, "references": references}
    values = {} if out is None else describe(methods, federation, unseen, {**asked, **kept})
    if values and steps is not None:
        values["plan"]["lr"] = AUTO
    planned = grid.plan_grid(
        methods if steps is None else steps.methods(),
        federation,
        unseen=unseen,
        out=out,
        config=values | ({} if steps is None else {"tuned": steps.now}) | dict(config or {}),
        keep_models=keep_models,
        **asked,
    )
    if planned.folder is not None:
        _keep(planned.folder, values)
        if steps is not None:
            steps.keep()
    result = grid.run_grid(
        planned if steps is None else replace(planned, again=steps.again), progress=progress, track=track
    )
    given = federation, unseen, next(iter(planned.methods.values())).model
    if planned.folder is None or not references:
        result = replace(result, references=trivial_references(*given, planned.folder))
    else:
        result = replace(result, references=keep_references(planned.folder, *given))
    if planned.folder is not None:
        finish(planned.folder, result, federation, unseen)
    return result


def _find_for(
    texts: list[str],
    federation: Federation,
    out: Path | None,
    progress: Tell | None,
    own: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> FoundSteps:
    """The step sizes of a comparison that says nothing of how clients train; every method is built before any is run."""
    limits = Settings.of({**settings, "rounds": own["rounds"]})
    grid.check_given(texts, own["seeds"], federation, limits)
    given = own["model"]
    model = given if isinstance(given, Model) else build_model(given or default_model(federation), federation)

    def build(text: str, lr: float) -> Method:
        return build_method(text, model, plan=Plan(lr=lr), facts=federation.known, norm=own["norm"])

    for text in texts:
        method = build(text, Plan().lr)
        check_attackers(method, limits, federation.num_clients, label=text)
        check_fit(method, federation, limits)
    found = find_step_sizes(texts, federation, out=out, progress=progress, **{**settings, **own, "model": model})
    return steps_of(found, texts, build, out)


def _keep(folder: Path, values: dict[str, Any]) -> None:
    """Write the settings of a comparison; more methods and seeds may be added to those that a folder has."""
    if (folder / layout.STUDY).exists() and UNSAID not in layout.read_json(folder / layout.STUDY):
        return  # a study of the command, whose runs were found to fit
    claim(folder, values, free=(*FREE, "methods", "seeds"))
    if not values[UNSAID]:
        (folder / layout.RESOLVED).write_text(TITLE + as_toml({k: v for k, v in values.items() if k != UNSAID}))


def describe(
    methods: Sequence[str] | Mapping[str, Method],
    federation: Federation,
    unseen: Federation | None,
    asked: Mapping[str, Any],
) -> dict[str, Any]:
    """The settings of ``plures.compare`` as ``study.json`` has them.

    What was made in Python stands in words under "python", by the name of the setting: it must be given again to whoever
    wants a client's model.
    """
    unsaid = dict[str, str]()
    values = Study().model_dump(mode="json")
    values |= {name: value for name, value in asked.items() if name in values and _is_plain(value)}
    values["methods"] = list(methods) if not isinstance(methods, str) else [methods]
    values["seeds"] = list(asked["seeds"])
    values["patience"] = asked.get("patience") or 0
    values["eval_every"] = asked.get("eval_every") or asked["rounds"]
    values["data"] = _data(federation, unseen, unsaid)
    own = next(iter(methods.values())).plan if isinstance(methods, Mapping) and methods else asked["plan"]
    values["plan"] = _plan(own, unsaid)
    if isinstance(methods, Mapping):
        unsaid["methods"] = "; ".join(f"{label}: {_recipe(method)}" for label, method in methods.items())
    elif asked["model"] is None or isinstance(asked["model"], str):
        values["model"] = asked["model"] or default_model(federation)
    else:
        unsaid["model"] = _recipe(asked["model"])
    if asked.get("channels"):
        unsaid["channels"] = "; ".join(_recipe(one) for one in asked["channels"])
    return {**values, UNSAID: unsaid}


def study_on(federation: Federation) -> Study | None:
    """A study on these clients, all of them in training; None where no text names them."""
    unsaid = dict[str, str]()
    found = _data(federation, None, unsaid)
    return None if unsaid else Study(data=found)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _recipe(thing: Any) -> str:
    """How a thing was made, as far as it is known."""
    recipe = recipe_of(thing)
    return "made in Python" if recipe is None else recipe.text


def _data(federation: Federation, unseen: Federation | None, unsaid: dict[str, str]) -> dict[str, Any]:
    """The data section; a part of what a text names has no name of its own."""
    source, others = federation.source or {}, () if unseen is None else unseen.names
    if source.get("clients") == federation.num_clients + len(others):
        named = {"name": source["name"], "options": source["options"], "hold_out": list(others) or 0}
        return {**DataPart().model_dump(mode="json"), **named}
    unsaid["data"] = (
        f"a federation made in Python, '{federation.title}' with {federation.num_clients} clients "
        f"(fingerprint {federation.fingerprint})"
    )
    return {"name": federation.title}


def _plan(plan: Plan, unsaid: dict[str, str]) -> dict[str, Any]:
    found = {"epochs": plan.epochs, "steps": plan.steps, "batch": plan.batch or 0, "lr": plan.lr}
    name = next((name for name, make in OPTIMIZERS.items() if make is plan.optimizer), None)
    if name is None:
        unsaid["optimizer"] = getattr(plan.optimizer, "__name__", "made in Python")
    return {**found, **({} if name is None else {"optimizer": name})}
