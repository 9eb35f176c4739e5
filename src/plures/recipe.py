"""How things were made: the name of a factory and all its options, defaults included.

A recipe tells two methods, models, channels or optimizers apart without running them. It speaks only for what its
factory returned: a copy with another function in it (``dataclasses.replace``) has the same recipe, but no longer the
parts that the recipe is for, and is then known by what it computes (see ``plures.engine.identity``).
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")

LIBRARIES = ("jax", "numpy", "optax", "plures")
"""What functions of these are called is enough to know them."""


@dataclass(frozen=True)
class Recipe:
    """The ``name`` of a factory, the ``options`` it was called with, and the recipe of the ``base`` it was put around.

    ``parts`` are what the thing consisted of when its factory returned it. ``known`` is whether the text says all: it
    does not where the factory is not of this library, or where an option or the base is something made by hand.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    base: Recipe | None = None
    known: bool = True
    parts: tuple[Any, ...] = field(default=(), compare=False, repr=False)

    @property
    def text(self) -> str:
        """All of it in one line.

        >>> Recipe("ditto", {"lam": 0.5}, base=Recipe("softmax", {"ridge": 0.0})).text
        'ditto(lam=0.5) of softmax(ridge=0.0)'
        """
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.name}({options})" + ("" if self.base is None else f" of {self.base.text}")

    def speaks_for(self, thing: Any) -> bool:
        """Whether a thing still consists of what its factory put in it."""
        now = parts_of(thing)
        return len(now) == len(self.parts) and all(a is b for a, b in zip(now, self.parts, strict=True))


def parts_of(thing: Any) -> tuple[Any, ...]:
    """What must be the same object for a recipe to speak for a thing: its fields, or the function itself."""
    if is_dataclass(thing) and not isinstance(thing, type):
        return tuple(getattr(thing, one.name) for one in fields(thing) if one.name != "recipe")
    return (thing,)


def with_recipe(thing: T, recipe: Recipe) -> T:
    """The thing with a recipe that speaks for it; one that cannot carry a recipe stays as it is."""
    sealed = replace(recipe, parts=parts_of(thing))
    if is_dataclass(thing) and any(one.name == "recipe" for one in fields(thing)):
        return replace(thing, recipe=sealed)  # type: ignore[type-var]
    if callable(thing) and hasattr(thing, "__dict__"):
        # Two factories may return one function; it computes the same, so its first recipe will do.
        vars(thing).setdefault("recipe", sealed)
    return thing


def recipe_of(thing: Any) -> Recipe | None:
    """The recipe of a thing, if it has one that speaks for it."""
    recipe = getattr(thing, "recipe", None)
    return recipe if isinstance(recipe, Recipe) and recipe.speaks_for(thing) else None


def written(factory: Callable[..., Any], options: Mapping[str, Any], base: Any = None, *, name: str = "") -> Recipe:
    """The recipe of what a factory makes with these options around ``base`` (a model or a method; None if of nothing)."""
    described = {option: describe(value) for option, value in options.items()}
    below = None if base is None else recipe_of(base) or Recipe("made by hand", known=False)
    ours = factory.__module__.partition(".")[0] == "plures"
    known = ours and None not in described.values() and (below is None or below.known)
    shown = {option: "made by hand" if value is None else value for option, value in described.items()}
    return Recipe(name or factory.__name__, shown, below, known)


def describe(value: Any) -> str | None:
    """An option as text that differs whenever the option does; None if no text can say it.

    >>> describe((64, 32)), describe(0.1), describe("mean"), describe(lambda x: x)
    ('[64, 32]', '0.1', '"mean"', None)
    """
    recipe = recipe_of(value)
    if recipe is not None:
        return recipe.text if recipe.known else None
    if is_dataclass(value) and not isinstance(value, type):
        if not _of_library(type(value).__module__):
            return None
        inner = {one.name: describe(getattr(value, one.name)) for one in fields(value)}
        said = ", ".join(f"{name}={text}" for name, text in inner.items())
        return None if None in inner.values() else f"{type(value).__name__}({said})"
    if isinstance(value, functools.partial):
        called = [describe(one) for one in (value.func, value.args, value.keywords)]
        return None if None in called else f"partial{called}"
    if callable(value):
        return _named(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1.0 is 1
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return None


def _of_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES


def _named(function: Any) -> str | None:
    """Where a function of a known library is found; None for any other."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    there = getattr(sys.modules.get(module), name, None) if _of_library(module) else None
    return f"{module}.{name}" if there is function else None
