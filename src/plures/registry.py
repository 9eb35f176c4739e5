"""Names for parts: a decorator registers a factory, and everything else reads the registry.

The command line, the configuration, the contract suite and the documentation know no method by name; a
factory's keyword arguments *are* its options.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from plures.errors import BadValue, UnknownChoice

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Limit:
    """A setting at which a method must equal another; the contract suite checks every one.

    ``world`` names the test federation: "clients", "one_client", "one_group" or "own_groups". ``base`` is the method
    a personalizer is put around for it.
    """

    text: str
    options: Mapping[str, Any] = field(default_factory=dict)
    same_served_as: str = "fedavg"
    its_options: Mapping[str, Any] = field(default_factory=dict)
    world: str = "clients"
    base: str = ""


@dataclass(frozen=True)
class Entry:
    """A registered factory and the facts it declares about itself."""

    name: str
    factory: Callable[..., Any]
    title: str
    paper: str = ""
    tags: frozenset[str] = frozenset()
    limits: tuple[Limit, ...] = ()

    @property
    def summary(self) -> str:
        """The first line of the factory's docstring, as plain text."""
        return (inspect.getdoc(self.factory) or "").split("\n")[0].replace("``", "")

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The keyword arguments a user may set."""
        found = inspect.signature(self.factory).parameters.values()
        return {one.name: one for one in found if one.kind is inspect.Parameter.KEYWORD_ONLY}

    def check_options(self, given: Mapping[str, Any]) -> None:
        """Refuse an option the factory does not have, or a value of another type than it takes."""
        hints = typing.get_type_hints(self.factory)
        for name, value in given.items():
            if name not in self.options:
                raise UnknownChoice(f"option of {self.name}", name, self.options)
            if not _fits(value, hints.get(name, object)):
                raise BadValue(name, value, f"of type {getattr(hints[name], '__name__', hints[name])}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value (number, text, truth) may stand where the hint says."""
    if isinstance(hint, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(hint))
    if hint in (int, float):
        return isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint) if hint in (str, bool, type(None)) else True


class Registry(Mapping[str, Entry]):
    """Entries of one kind by name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            raise UnknownChoice(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def register(
        self,
        *,
        title: str,
        name: str | None = None,
        paper: str = "",
        tags: tuple[str, ...] = (),
        limits: tuple[Limit, ...] | list[Limit] = (),
    ) -> Callable[[F], F]:
        """A decorator that adds a factory under its own name (or ``name``)."""

        def add(factory: F) -> F:
            entry = Entry(name or factory.__name__, factory, title, paper, frozenset(tags), tuple(limits))
            if entry.name in self._entries and self._entries[entry.name].factory is not factory:
                raise BadValue("name", entry.name, f"a {self.kind} name that is not taken")
            self._entries[entry.name] = entry
            return factory

        return add


METHODS = Registry("method")
PERSONALIZERS = Registry("personalizer")
MODELS = Registry("model")
DATASETS = Registry("data set")
CHANNELS = Registry("channel")
WORLDS = Registry("world")
REPRODUCTIONS = Registry("reproduction")

method = METHODS.register
personalizer = PERSONALIZERS.register
model = MODELS.register
dataset = DATASETS.register
channel = CHANNELS.register
world = WORLDS.register
reproduction = REPRODUCTIONS.register
