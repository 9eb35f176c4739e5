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
    """A registered factory and the facts it declares about itself.

    ``degree`` is the option that says how much clients collaborate, in a unit and a direction of its own.
    """

    name: str
    factory: Callable[..., Any]
    title: str
    paper: str = ""
    tags: frozenset[str] = frozenset()
    limits: tuple[Limit, ...] = ()
    degree: str = ""

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
        degree: str = "",
    ) -> Callable[[F], F]:
        """A decorator that adds a factory under its own name (or ``name``)."""

        def add(factory: F) -> F:
            entry = Entry(name or factory.__name__, factory, title, paper, frozenset(tags), tuple(limits), degree)
            if degree and degree not in entry.options:
                raise UnknownChoice(f"option of {entry.name}", degree, entry.options)
            if entry.name in self._entries and self._entries[entry.name].factory is not factory:
                raise BadValue("name", entry.name, f"a {self.kind} name that is not taken")
            self._entries[entry.name] = entry
            return factory

        return add


METHODS = Registry("method")
PERSONALIZERS = Registry("personalizer")
MODELS = Registry("model")
DATASETS = Registry("data set")
PARTITIONERS = Registry("partitioner")
CHANNELS = Registry("channel")
WORLDS = Registry("world")
REPRODUCTIONS = Registry("reproduction")

method = METHODS.register
personalizer = PERSONALIZERS.register
model = MODELS.register
dataset = DATASETS.register
partitioner = PARTITIONERS.register
channel = CHANNELS.register
world = WORLDS.register
reproduction = REPRODUCTIONS.register


@dataclass(frozen=True)
class Named:
    """A name and its options, as in ``ditto:lam=0.5``."""

    entry: Entry
    options: Mapping[str, Any]

    @staticmethod
    def parse(text: str, registry: Registry) -> Named:
        """From text; options are checked against the factory's own signature.

        >>> known = Registry("example")
        >>> _ = known.register(title="Rabbits", name="rabbits")(lambda *, num: num)
        >>> Named.parse("rabbits:weight=2", known)
        Traceback (most recent call last):
        plures.errors.UnknownChoice: no option of rabbits is called 'weight'. Known: num
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
        return tuple(inner(part.strip()) for part in text.split("+" if inner is str else "x") if part.strip())
    raise ValueError(text)
