"""Methods by name: ``"ditto:lam=0.5|finetune:epochs=3"`` to a Method, every mistake in one clear line."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plures import channel, methods, models, personalize
from plures.data import Federation
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.registry import CHANNELS, METHODS, MODELS, PERSONALIZERS, Entry, Registry
from plures.types import Channel, Method, Model, Plan

__all__ = [
    "Named",
    "build_channel",
    "build_method",
    "build_model",
    "channel",
    "methods",
    "models",
    "personalize",
]


@dataclass(frozen=True)
class Named:
    """A name and its options, as in ``ditto:lam=0.5``."""

    entry: Entry
    options: Mapping[str, Any]

    @staticmethod
    def parse(text: str, registry: Registry) -> Named:
        """From text; options are checked against the factory's own signature.

        >>> Named.parse("ditto:lam=2", METHODS).options
        {'lam': 2.0}
        """
        name, _, rest = text.strip().partition(":")
        entry = registry[name]
        pairs = [part for part in rest.split(",") if part.strip()]
        for pair in pairs:
            if "=" not in pair:
                raise BadValue(f"option of {name}", pair, "name=value")
        split = [pair.partition("=") for pair in pairs]
        given = {key.strip(): value.strip() for key, _, value in split}
        if len(given) < len(split):
            raise BadValue(f"options of {name}", rest, "a list in which each option is given once")
        for key in given:
            if key not in entry.options:
                raise UnknownChoice(f"option of {name}", key, entry.options)
        hints = typing.get_type_hints(entry.factory)
        return Named(entry, {key: convert(key, value, hints[key]) for key, value in given.items()})


def build_method(text: str, model: Model, *, plan: Plan, facts: Mapping[str, int] | None = None) -> Method:
    """The method a text names, its personalizers applied from left to right.

    ``facts`` are numbers of the federation (``num_groups``) that a factory may ask for by name.
    """
    first, *others = text.split("|")
    named = Named.parse(first, METHODS)
    method: Method = named.entry.factory(model, **_filled(named, plan, facts or {}))
    for other in others:
        wrapper = Named.parse(other, PERSONALIZERS)
        method = wrapper.entry.factory(method, **_filled(wrapper, plan, facts or {}))
    return method


def build_model(text: str, federation: Federation) -> Model:
    """The model a text names, in the federation's shape."""
    named = Named.parse(text, MODELS)
    model: Model = named.entry.factory(federation.shape, federation.num_outputs, **named.options)
    federation.check_model(model)
    return model


def build_channel(text: str) -> Channel:
    """The channel a text names."""
    named = Named.parse(text, CHANNELS)
    found: Channel = named.entry.factory(**named.options)
    return found


DEFAULT_MODELS = {
    "classification": "mlp:hidden=64",
    "regression": "least_squares",
    "density": "density",
}


def default_model(federation: Federation) -> str:
    """A sane model for the federation's task."""
    if federation.task not in DEFAULT_MODELS:
        raise Unsupported(f"there is no default model for a {federation.task} task; name one")
    if federation.task == "regression" and math.prod(federation.shape) == 0:
        return "mean"
    return DEFAULT_MODELS[federation.task]


def _filled(named: Named, plan: Plan, facts: Mapping[str, int]) -> dict[str, Any]:
    known: dict[str, Any] = {"plan": plan, **facts}
    wanted = {name: value for name, value in known.items() if name in named.entry.options}
    options = {**wanted, **named.options}
    for name, parameter in named.entry.options.items():
        if parameter.default is parameter.empty and name not in options:
            raise Unsupported(f"{named.entry.name} needs {name}, which these data do not tell; set {name}=...")
    return options


def convert(name: str, text: str, kind: Any) -> Any:
    """Text as the type an option is annotated with.

    >>> convert("hidden", "64x32", tuple[int, ...])
    (64, 32)
    """
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if type(None) in options and text.lower() == "none":
        return None
    for option in options:
        try:
            return _as(text, option)
        except ValueError:
            continue
    wanted = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise BadValue(name, text, f"of type {wanted}")


def _as(text: str, kind: Any) -> Any:
    if kind is bool:
        words = {"true": True, "false": False, "yes": True, "no": False}
        if text.lower() not in words:
            raise ValueError(text)
        return words[text.lower()]
    if kind in (int, float, str):
        return kind(text)
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        return tuple(inner(part) for part in text.split("x") if part)
    raise ValueError(text)
