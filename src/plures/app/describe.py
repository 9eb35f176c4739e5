"""What was asked for in Python, as the settings of a study: what a text can name by its text, the rest in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plures.app.ownership import UNSAID
from plures.app.parts import OPTIMIZERS, DataPart
from plures.app.study import Study
from plures.builders import default_model
from plures.data import Federation
from plures.method import Method
from plures.recipe import recipe_of
from plures.types import Plan


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
