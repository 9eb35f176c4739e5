"""What is wrong with a study whose sections are sound: unknown names, refused values, parts that do not go together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from plures.config.source import Findings, place_in_data
from plures.data import Federation
from plures.data.loading import check_option
from plures.engine import Settings
from plures.engine.check import check_fit
from plures.engine.cohort import cohort
from plures.engine.executors import executor
from plures.engine.liars import bound, check_liars, spoiled
from plures.errors import BadValue, Unsupported, UserError
from plures.keys import root
from plures.norms import check_policy
from plures.registry import METHODS, MODELS, PERSONALIZERS, Named
from plures.study import build_attack, build_channel, build_model, default_methods, default_model
from plures.study.search import check_range
from plures.study.tracking import check_tracker
from plures.study.tuning import check_valid_rows
from plures.toml_lines import Place
from plures.types import Model

if TYPE_CHECKING:
    from plures.config.study import Study

ALL = "all"
Loaded = tuple[Federation, Federation | None]


def inspect(study: Study, findings: Findings, *, loads: bool = True, sure: bool = True) -> Loaded | None:
    """The data of a study, after everything was built once; mistakes are added to the findings.

    Where settings had to be left out for mistakes of their own it is not ``sure`` how the others go together: then only
    names and values are checked, and data are loaded only if it is known which.
    """
    _check_lists(study, findings)
    loaded = _load(study, findings) if loads else None
    findings.tried(("executor",), lambda: executor(study.executor))
    drawn = findings.tried(("cohort",), lambda: cohort(study.cohort))
    if loaded is None:
        _check_names(study, findings)
    else:
        if drawn is not None:
            findings.tried(("cohort",), lambda: drawn.size(loaded[0].num_clients))
        model = _check_model(study, loaded[0], findings)
        _check_methods(study, loaded[0], model, findings, sure=sure)
    _check_search(study, loaded, findings)
    facts = None if loaded is None else loaded[0].known
    for name, build, texts in (("attack", build_attack, study.attack), ("channels", build_channel, study.channels)):
        for text in texts:
            findings.tried((name, text), partial(build, text, facts))
    if loaded is not None and sure and not findings.mistakes:
        _check_together(study, loaded[0], findings)
    return loaded


def _check_lists(study: Study, findings: Findings) -> None:
    tried = (study.tune and study.tune.seeds) or ()
    lists: dict[Place, tuple[Any, ...]] = {
        ("methods",): study.methods or (),
        ("seeds",): study.seeds,
        ("tune", "seeds"): tried,
    }
    for place, given in lists.items():
        repeated = next((number for number, one in enumerate(given) if one in given[:number]), None)
        if repeated is not None:
            wrong = BadValue(".".join(map(str, place)), list(given), "a list without repeats")
            findings.add((*place, repeated), wrong)
    for place in (("seeds",), ("tune", "seeds")):
        for number, seed in enumerate(lists[place]):
            findings.tried((*place, number), partial(root, seed))
    for text in study.track:
        findings.tried(("track", text), partial(check_tracker, text))


def _load(study: Study, findings: Findings) -> Loaded | None:
    before = len(findings.mistakes)
    for name, value in study.data.options.items():
        findings.tried(("data", "options", name), partial(check_option, study.data.name, name, value))
    if len(findings.mistakes) > before:
        return None
    try:
        return study.federations()
    except UserError as error:
        findings.add(place_in_data(error, study.data.model_dump()), error)
    try:
        # Where only holding out went wrong, the others can be checked with everybody.
        return study.data.model_copy(update={"hold_out": 0}).spec.load()
    except UserError:
        return None


def _check_names(study: Study, findings: Findings) -> None:
    """Names and options, which are known without data."""
    if study.model is not None:
        findings.tried(("model",), partial(Named.parse, study.model, MODELS))
    for text in _named(study):
        first, *others = text.split("|")
        findings.tried(("methods", text), partial(Named.parse, first, METHODS))
        for other in others:
            findings.tried(("methods", text), partial(Named.parse, other, PERSONALIZERS))


def _check_model(study: Study, seen: Federation, findings: Findings) -> Model | None:
    model: Model | None = findings.tried(("model",), lambda: build_model(study.model or default_model(seen), seen))
    if model is not None:
        findings.tried(("norm",), lambda: check_policy(model, study.norm))
    return model


def _check_methods(study: Study, seen: Federation, model: Model | None, findings: Findings, *, sure: bool) -> None:
    # With another model than the one meant, names and options can be checked, but not whether they go together.
    unless = () if sure and model is not None else (Unsupported,)
    able = model or build_model(default_model(seen), seen)
    limits = Settings(rounds=study.rounds)
    if any(one.place == ("norm",) for one in findings.mistakes):
        study = study.model_copy(
            update={"norm": "share"}
        )  # what is refused once need not be refused by every method
    for text in _named(study) if study.methods else default_methods(seen):
        method = findings.tried(("methods", text), partial(study.built, text, able, seen), unless=unless)
        if method is not None and not unless:
            findings.tried(("methods", text), partial(check_fit, method, seen, limits), label=text)


def _check_search(study: Study, loaded: Loaded | None, findings: Findings) -> None:
    """Refuse ranges of options that no method has; none of all there are, where it is unsure which are meant."""
    if study.tune is None:
        return
    texts = _named(study) if study.methods else default_methods(loaded[0]) if loaded else []
    if not texts or any(one.place[0] == "methods" for one in findings.mistakes):
        texts = [*METHODS, *(f"fedavg|{name}" for name in PERSONALIZERS)]
    elif ALL in (study.methods or ()):
        texts = [*texts, *METHODS]
    for name in study.tune.search:
        findings.tried(("tune", "search", name), partial(check_range, texts, name, study.tune.search))


def _check_together(study: Study, seen: Federation, findings: Findings) -> None:
    """Refuse attacks by nobody or by all, on data they are not for, or by more than a method is made for; then tuning."""
    settings = Settings(rounds=study.rounds, cohort=study.cohort, channels=study.all_channels(seen))
    findings.tried(("attack",), lambda: spoiled(bound(settings.channels, seen.num_clients), seen))
    if findings.mistakes:
        return
    model = build_model(study.model or default_model(seen), seen)
    names: Any = findings.tried(("methods",), lambda: study.chosen(seen).names)
    for text in names or ():
        method = study.built(text, model, seen)
        findings.tried(("attack",), partial(check_liars, method, settings, seen.num_clients, label=text))
    if study.tune is None or findings.mistakes:
        return
    findings.tried(("tune",), lambda: check_valid_rows(seen, settings))
    findings.tried(("tune", "strategy"), lambda: study.rungs(names, seen))


def _named(study: Study) -> list[str]:
    """The methods that the study names one by one."""
    return [text for text in study.methods or () if text != ALL]
