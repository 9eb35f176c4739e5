"""A study on its data, every part of it built once; and what is wrong with one: unknown names, refused values, parts that do not go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from plures.app.mistakes import Findings, place_in_data
from plures.app.toml import Place
from plures.builders import build_attack, build_channel, build_model, default_model
from plures.data import Federation
from plures.data.loading import check_option
from plures.engine import Settings
from plures.engine.attackers import bind_attacks, check_attackers, spoil_data
from plures.engine.check import check_fit
from plures.engine.cohort import cohort
from plures.engine.executors import executor
from plures.errors import BadValue, Unsupported, UserError
from plures.keys import root
from plures.method import Channel, Forecast, Method
from plures.models.norm_layers import check_policy
from plures.registry import METHODS, MODELS, PERSONALIZERS, Named
from plures.study.grid import default_methods, forecasts
from plures.study.tracking import check_tracker
from plures.study.tuning.hyperparameters import check_valid_rows, rungs_of
from plures.study.tuning.search_space import check_range
from plures.study.tuning.trial import Rung
from plures.types import Model

if TYPE_CHECKING:
    from plures.app.study import Study

ALL = "all"
Loaded = tuple[Federation, Federation | None]


@dataclass(frozen=True, eq=False)
class PreparedStudy:
    """``methods`` are by their texts; ``left_out`` are those of ``all`` that do not fit, with the reason."""

    study: Study
    seen: Federation
    unseen: Federation | None
    model: Model
    methods: Mapping[str, Method]
    left_out: Mapping[str, str]
    channels: tuple[Channel, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """The study as it was asked for, its methods named where they were ``all``."""
        values = self.study.model_dump(mode="json")
        return {**values, "methods": list(self.methods)} if self.study.takes_all else values

    @property
    def resolved(self) -> dict[str, Any]:
        """Plain values with every default filled in and the methods named; a study made of them comes to the same."""
        study, values = self.study, self.settings
        values["methods"] = list(self.methods)
        values["model"] = study.model or default_model(self.seen)
        if study.data.hold_out is None:
            values["data"]["hold_out"] = "auto"
        if study.tune is not None:
            values["tune"]["strategy"] = "halving" if len(self.rungs) > 1 else "random"
            values["tune"]["seeds"] = list(study.tune.seeds or study.seeds[:1])
        return values

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """How trials are cut down; every method gets the same."""
        tune = self.study.tune
        assert tune is not None
        built = self.methods.values()
        return rungs_of(built, trials=tune.trials, rounds=self.study.rounds, strategy=tune.strategy)

    @property
    def running(self) -> dict[str, Any]:
        """The settings of every run, for ``compare`` and ``tune``."""
        return {**self.study.running, "channels": self.channels}

    @property
    def training(self) -> dict[str, Any]:
        """How methods are built and trained, for commands that build methods of their own."""
        study = self.study
        own = {"model": study.model, "plan": study.plan.build(), "norm": study.norm, "seeds": study.seeds}
        return {**own, **self.running}

    def forecasts(self) -> dict[str, Forecast]:
        """What methods say before they run."""
        return forecasts(self.methods, self.seen, self.channels, self.study.cohort)


def inspect(
    study: Study, findings: Findings, *, loads: bool = True, sure: bool = True, data: Loaded | None = None
) -> PreparedStudy | None:
    """The study with everything built once; mistakes are added to the findings, and then there is none.

    Where settings had to be left out for mistakes of their own it is not ``sure`` how the others go together: then only
    names and values are checked, and data are loaded only if it is known which.
    """
    _check_lists(study, findings)
    loaded = data or (_load(study, findings) if loads else None)
    findings.attempt(("executor",), lambda: executor(study.executor))
    drawn = findings.attempt(("cohort",), lambda: cohort(study.cohort))
    model, built = None, dict[str, Method]()
    if loaded is None:
        _check_names(study, findings)
    else:
        if drawn is not None:
            findings.attempt(("cohort",), lambda: drawn.size(loaded[0].num_clients))
        model = _check_model(study, loaded[0], findings)
        built = _check_methods(study, loaded[0], model, findings, sure=sure)
    _check_search(study, loaded, findings)
    facts = None if loaded is None else loaded[0].known
    for name, build, texts in (("attack", build_attack, study.attack), ("channels", build_channel, study.channels)):
        for text in texts:
            findings.attempt((name, text), partial(build, text, facts))
    if loaded is None or model is None or not sure or findings.mistakes:
        return None
    return _check_all(study, loaded, model, built, findings)


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
            findings.attempt((*place, number), partial(root, seed))
    for text in study.track:
        findings.attempt(("track", text), partial(check_tracker, text))


def _load(study: Study, findings: Findings) -> Loaded | None:
    before = len(findings.mistakes)
    for name, value in study.data.options.items():
        findings.attempt(("data", "options", name), partial(check_option, study.data.name, name, value))
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
        findings.attempt(("model",), partial(Named.parse, study.model, MODELS))
    for text in _named(study):
        for index, part in enumerate(text.split("|")):
            findings.attempt(("methods", text), partial(Named.parse, part, PERSONALIZERS if index else METHODS))


def _check_model(study: Study, seen: Federation, findings: Findings) -> Model | None:
    model: Model | None = findings.attempt(
        ("model",), lambda: build_model(study.model or default_model(seen), seen)
    )
    if model is not None:
        findings.attempt(("norm",), lambda: check_policy(model, study.norm))
    return model


def _check_methods(
    study: Study, seen: Federation, model: Model | None, findings: Findings, *, sure: bool
) -> dict[str, Method]:
    """The methods that are named, by their texts; those that are refused are mistakes."""
    # With another model than the one meant, names and options can be checked, but not whether they go together.
    unless = () if sure and model is not None else (Unsupported,)
    able = model or build_model(default_model(seen), seen)
    limits, built = Settings(rounds=study.rounds), dict[str, Method]()
    if any(one.place == ("norm",) for one in findings.mistakes):
        # What is refused once need not be refused by every method.
        study = study.model_copy(update={"norm": "share"})
    for text in _named(study, seen):
        method = findings.attempt(("methods", text), partial(study.build_method, text, able, seen), unless=unless)
        if method is not None and not unless:
            findings.attempt(("methods", text), partial(check_fit, method, seen, limits), label=text)
            built[text] = method
    return built


def _check_search(study: Study, loaded: Loaded | None, findings: Findings) -> None:
    """Refuse ranges of options that no method has; none of all there are, where it is unsure which are meant."""
    if study.tune is None:
        return
    texts = list(_named(study, loaded and loaded[0]))
    if not texts or any(one.place[0] == "methods" for one in findings.mistakes):
        texts = [*METHODS, *(f"fedavg|{name}" for name in PERSONALIZERS)]
    elif ALL in (study.methods or ()):
        texts = [*texts, *METHODS]
    for name in study.tune.search:
        findings.attempt(("tune", "search", name), partial(check_range, texts, name, study.tune.search))


def _check_all(
    study: Study, loaded: Loaded, model: Model, built: Mapping[str, Method], findings: Findings
) -> PreparedStudy | None:
    """Refuse attacks by nobody or by all, on data they are not for, or by more than a method is made for; then tuning."""
    seen, unseen = loaded
    settings = Settings(rounds=study.rounds, cohort=study.cohort, channels=study.all_channels(seen))
    findings.attempt(("attack",), lambda: spoil_data(bind_attacks(settings.channels, seen.num_clients), seen))
    if findings.mistakes:
        return None
    left_out = dict[str, str]()
    if study.takes_all:
        chosen: Any = findings.attempt(("methods",), lambda: _all_that_fit(study, seen, model, built, settings))
        built, left_out = chosen or ({}, {})
    for text, method in built.items():
        findings.attempt(("attack",), partial(check_attackers, method, settings, seen.num_clients, label=text))
    prepared = PreparedStudy(study, seen, unseen, model, built, left_out, settings.channels)
    if study.tune is not None and not findings.mistakes:
        findings.attempt(("tune",), lambda: check_valid_rows(seen, settings))
        findings.attempt(("tune", "strategy"), lambda: prepared.rungs)
    return prepared


def _all_that_fit(
    study: Study, seen: Federation, model: Model, built: Mapping[str, Method], settings: Settings
) -> tuple[dict[str, Method], dict[str, str]]:
    """The methods that are named and all others that fit, and those left out with the reason."""
    found, left_out = dict(built), dict[str, str]()
    for name in METHODS:
        try:
            method = found[name] if name in found else study.build_method(name, model, seen)
            check_fit(method, seen, settings)
            check_attackers(method, settings, seen.num_clients)
            found[name] = method
        except UserError as error:
            left_out[name] = str(error)
    if not found:
        raise Unsupported(f"no method fits: {'; '.join(f'{name}: {why}' for name, why in left_out.items())}")
    return found, left_out


def _named(study: Study, seen: Federation | None = None) -> Sequence[str]:
    """The methods that the study names one by one; where it names none, those that suit the clients."""
    if not study.methods and seen is not None:
        return default_methods(seen, study.rounds)
    return [text for text in study.methods or () if text != ALL]
