"""Methods by name: ``"ditto:lam=0.5|finetune:epochs=3"`` to a Method, every mistake in one clear line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from plures.data import Federation
from plures.errors import UnknownChoice, Unsupported
from plures.method import Channel, Method
from plures.models.norm_layers import check_policy
from plures.models.units import in_units
from plures.recipe import with_recipe, written
from plures.registry import CHANNELS, METHODS, MODELS, PERSONALIZERS, Named
from plures.types import Model, Plan
from plures.wrap.norms import normalized


def build(text: str, model: Model, *, plan: Plan | None = None, federation: Federation | None = None) -> Method:
    """The method a text names, ``"ditto:lam=0.5|finetune"``, around a model.

    Args:
        text: A method with its options, and personalizers after bars.
        model: What the clients train.
        plan: How clients train locally; the default plan if None.
        federation: The clients it is for, for methods that ask for a fact about them, such as the number of groups.
    """
    facts = None if federation is None else federation.facts
    return build_method(text, model, plan=plan or Plan(), facts=facts)


def build_method(
    text: str,
    model: Model,
    *,
    plan: Plan,
    facts: Mapping[str, Any] | None = None,
    norm: str = "share",
    numbers: Mapping[tuple[int, str], Any] | None = None,
) -> Method:
    """The method a text names, its personalizers applied from left to right.

    ``facts`` are numbers of the federation (``num_groups``) that a factory may ask for by name. ``norm`` is the policy for
    normalization layers (see ``plures.wrap.norms``) of a method that has none of its own. ``numbers`` stand in place of options, by
    (which of the parts of the text, name); they may be traced.
    """
    first, *others = text.split("|")
    named = Named.parse(first, METHODS)
    check_policy(model, norm)
    known = {**(facts or {}), "norm": norm} if "norm" in named.entry.tags else facts or {}
    method: Method = named.entry.factory(model, **{**_filled(named, plan, known), **_of(numbers, 0)})
    if method.traits.norm == "share" and norm != "share":
        plain = method
        try:
            method = normalized(method, norm)
        except Unsupported as error:
            raise Unsupported(f"{named.entry.name} with norm={norm}: {error}") from error
        method = with_recipe(method, written(normalized, {"policy": norm}, plain, name="norm"))
    for place, other in enumerate(others, start=1):
        wrapper = Named.parse(other, PERSONALIZERS)
        method = wrapper.entry.factory(method, **{**_filled(wrapper, plan, facts or {}), **_of(numbers, place)})
    return method


def _of(numbers: Mapping[tuple[int, str], Any] | None, place: int) -> dict[str, Any]:
    """The numbers that are for one part."""
    return {option: value for (part, option), value in (numbers or {}).items() if part == place}


def build_model(text: str, federation: Federation) -> Model:
    """The model a text names, in the federation's shape and, for a regression that standardizes its targets, in their unit."""
    named = Named.parse(text, MODELS)
    model: Model = named.entry.factory(federation.shape, federation.num_outputs, **named.options)
    federation.check_model(model)
    unit = federation.target_unit
    return model if unit is None else in_units(model, unit.shift, unit.scale)


def build_channel(text: str, facts: Mapping[str, Any] | None = None) -> Channel:
    """The channel a text names; ``facts`` are numbers of the federation (``num_clients``) that it may ask for."""
    named = Named.parse(text, CHANNELS)
    wanted = {name: value for name, value in (facts or {}).items() if name in named.entry.options}
    found: Channel = named.entry.factory(**{**wanted, **named.options})
    return found


def build_attack(text: str, facts: Mapping[str, Any] | None = None) -> Channel:
    """The attack a text names: ``"sign-flip:0.2"`` is short for ``"sign_flip:share=0.2"``."""
    given, _, rest = text.strip().partition(":")
    name = given.strip().replace("-", "_")
    known = [one.name for one in CHANNELS.values() if "attack" in one.tags]
    if name not in known:
        raise UnknownChoice("attack", given, known)
    short = rest.partition(",")[0]
    return build_channel(f"{name}:{'share=' if short.strip() and '=' not in short else ''}{rest}", facts)


DEFAULT_MODELS = {
    "classification": "mlp:hidden=64",
    "regression": "least_squares",
    "density": "density",
    "sequence": "char_mlp",
}


def default_model(federation: Federation) -> str:
    """A sane model for the federation's task."""
    if federation.task == "regression" and math.prod(federation.shape) == 0:
        return "mean"
    return DEFAULT_MODELS[federation.task]


def _filled(named: Named, plan: Plan, facts: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {"plan": plan, **facts}
    wanted = {name: value for name, value in known.items() if name in named.entry.options}
    options = {**wanted, **named.options}
    for name, parameter in named.entry.options.items():
        if parameter.default is parameter.empty and name not in options:
            raise Unsupported(f"{named.entry.name} needs {name}, which these data do not tell; set {name}=...")
    return options
