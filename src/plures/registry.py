"""Names for parts: a decorator registers a factory, and everything else reads the registry.

The command line, the configuration, the contract suite and the documentation know no method by name; a
factory's keyword arguments *are* its options. Options that many factories share are the fields of one value, an
``OptionGroup``: such a value is one argument in Python, and flat in text (``ditto:server_lr=0.5``).
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, TypeVar

from plures.docstrings import argument_sentences
from plures.errors import BadFile, BadValue, UnknownChoice
from plures.recipe import with_recipe, written

F = TypeVar("F", bound=Callable[..., Any])


class OptionGroup:
    """Marks a frozen dataclass whose fields are options of every factory that takes one; each has a default."""


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

    ``degree`` is the option that says how much clients collaborate, in a unit and a direction of its own. ``base`` is
    the method that a personalizer is shown and checked around where that is not FedAvg.
    """

    name: str
    factory: Callable[..., Any]
    title: str
    paper: str = ""
    tags: frozenset[str] = frozenset()
    limits: tuple[Limit, ...] = ()
    degree: str = ""
    base: str = ""

    @property
    def summary(self) -> str:
        """The first line of the factory's docstring, as plain text."""
        return (inspect.getdoc(self.factory) or "").split("\n")[0].replace("``", "")

    @functools.cached_property
    def options(self) -> dict[str, inspect.Parameter]:
        """The keyword arguments a user may set; those of a group stand in its place."""
        found: dict[str, inspect.Parameter] = {}
        for one in inspect.signature(self.factory).parameters.values():
            if one.kind is inspect.Parameter.KEYWORD_ONLY:
                found |= _group_parameters(one) or {one.name: one}
        return found

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The type of every option."""
        hints = typing.get_type_hints(self.factory)
        for group in option_groups(self.factory).values():
            hints |= typing.get_type_hints(type(group))
        return hints

    @property
    def sentences(self) -> dict[str, str]:
        """What every option means, from the factory's docstring or from that of the value it is a field of."""
        known = argument_sentences(self.factory)
        for group in option_groups(self.factory).values():
            known = {**argument_sentences(type(group)), **known}
        return {name: known[name] for name in self.options if name in known}

    def check_options(self, given: Mapping[str, Any]) -> None:
        """Refuse an option the factory does not have, or a value of another type than it takes."""
        for name, value in given.items():
            if name not in self.options:
                raise UnknownChoice(f"option of {self.name}", name, self.options)
            hint = self.hints.get(name, object)
            if not _fits(value, hint):
                raise BadValue(name, value, f"of type {getattr(hint, '__name__', hint)}")


def option_groups(factory: Callable[..., Any]) -> dict[str, Any]:
    """By argument, the default value of every group of options that a factory takes."""
    found = inspect.signature(factory).parameters.values()
    return {one.name: one.default for one in found if isinstance(one.default, OptionGroup)}


def _group_parameters(parameter: inspect.Parameter) -> dict[str, inspect.Parameter]:
    """The fields of a group as parameters; nothing for a parameter that is no group."""
    group: Any = parameter.default
    if not isinstance(group, OptionGroup):
        return {}
    found = inspect.signature(type(group)).parameters
    return {name: one.replace(default=getattr(group, name)) for name, one in found.items()}


def _folded(groups: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments with those of groups put into their group."""
    rest = dict(given)
    for name, default in groups.items():
        own = {one.name: rest.pop(one.name) for one in fields(default) if one.name in rest}
        if own:
            rest[name] = replace(rest.get(name, default), **own)
    return rest


def recorded(factory: F, *, name: str, with_recipes: bool) -> F:
    """The factory, which takes options of groups by their own names too, and says how what it returns was made."""
    groups, signature = option_groups(factory), inspect.signature(factory)
    if not groups and not with_recipes:
        return factory

    @functools.wraps(factory)
    def make(*args: Any, **given: Any) -> Any:
        arguments = _folded(groups, given)
        made = factory(*args, **arguments)
        if not with_recipes:
            return made
        bound = signature.bind(*args, **arguments)
        bound.apply_defaults()
        options = dict(bound.arguments)
        base = next((one for one in options if hasattr(options[one], "recipe")), None)
        return with_recipe(made, written(factory, options, None if base is None else options.pop(base), name=name))

    return typing.cast(F, make)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value (number, text, truth) may stand where the hint says."""
    if isinstance(hint, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(hint))
    if hint in (int, float):
        return isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint) if hint in (str, bool, type(None)) else True


class Registry(Mapping[str, Entry]):
    """Entries of one kind by name.

    What the ``packages`` of this library and the entry points of installed ones (``group``) register is imported when
    the registry is first asked.
    """

    def __init__(
        self, kind: str, *, packages: tuple[str, ...] = (), group: str = "", with_recipes: bool = False
    ) -> None:
        self.kind, self.packages, self.group = kind, packages, group
        self.with_recipes = with_recipes
        self._entries: dict[str, Entry] = {}
        self._asked = False

    @property
    def entries(self) -> dict[str, Entry]:
        """All entries, in the order in which they were registered."""
        if not self._asked:
            self._asked = True
            for package in self.packages:
                import_module(package)
            import_installed(self.group)
        return self._entries

    def forget(self, module: str) -> None:
        """Drop what modules whose names begin so have registered."""
        kept = {name: one for name, one in self.entries.items() if not one.factory.__module__.startswith(module)}
        self._entries = kept

    def __getitem__(self, name: str) -> Entry:
        if name not in self.entries:
            raise UnknownChoice(self.kind, name, self.entries)
        return self.entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.entries))

    def __len__(self) -> int:
        return len(self.entries)

    def register(
        self,
        *,
        title: str,
        name: str | None = None,
        paper: str = "",
        tags: tuple[str, ...] = (),
        limits: tuple[Limit, ...] | list[Limit] = (),
        degree: str = "",
        base: str = "",
    ) -> Callable[[F], F]:
        """A decorator that adds a factory under its own name (or ``name``)."""

        def add(factory: F) -> F:
            known_as = name or factory.__name__
            made = recorded(factory, name=known_as, with_recipes=self.with_recipes)
            entry = Entry(known_as, made, title, paper, frozenset(tags), tuple(limits), degree, base)
            if degree and degree not in entry.options:
                raise UnknownChoice(f"option of {entry.name}", degree, entry.options)
            before = self._entries.get(known_as)
            if before is not None and not _same_place(before.factory, factory):
                raise BadValue("name", entry.name, f"a {self.kind} name that is not taken")
            self._entries[entry.name] = entry
            return made

        return add


def _same_place(before: Callable[..., Any], now: Callable[..., Any]) -> bool:
    """Whether two factories are one, or one that is defined again where it was, as when a notebook's cell runs twice."""
    one, other = inspect.unwrap(before), inspect.unwrap(now)
    again = (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)
    return one is other or (again and one.__module__.partition(".")[0] != "plures")


def import_modules(package: str, paths: Iterable[str]) -> None:
    """Import every module of a package, so that what they register is known."""
    for module in walk_packages(paths, f"{package}."):
        import_module(module.name)


def import_installed(group: str) -> None:
    """Import what installed packages name under an entry point group; one that cannot be imported is named in a warning."""
    for point in entry_points(group=group) if group else ():
        try:
            point.load()
        except Exception as error:  # somebody else's mistake must not stop everybody
            warnings.warn(f"'{point.name}' of {group} ({point.value}) cannot be imported: {error}", stacklevel=2)


IMPORTED = "plures_imported_"
"""How the modules of imported files are called."""


class _FromSource(SourceFileLoader):
    """Reads the file itself: byte code kept of it is told apart by second and size, and an edit may change neither."""

    def path_stats(self, path: Any) -> Any:
        """Nothing that byte code could be kept by."""
        raise OSError


def import_file(path: Path) -> list[Entry]:
    """Import a Python file, so that what it registers is known; the entries it registered."""
    if not path.is_file():
        raise BadFile(f"there is no file {path} to import")
    where = path.resolve()
    here = f"{IMPORTED}{zlib.crc32(str(where).encode()):08x}"
    name = f"{here}_{zlib.crc32(where.read_bytes()):08x}_{where.stem}"
    if name not in sys.modules:
        for kind in KINDS:
            kind.forget(here)  # what the file registered before it was edited
        spec = spec_from_file_location(name, where)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            raise BadFile(f"{path} is not a Python file")
        spec.loader = _FromSource(name, str(where))
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # whatever a file of somebody else's raises
            del sys.modules[name]
            raise BadFile(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return [entry for kind in KINDS for entry in kind.values() if entry.factory.__module__ == name]


METHODS = Registry("method", packages=("plures.methods",), group="plures.methods", with_recipes=True)
PERSONALIZERS = Registry(
    "personalizer", packages=("plures.personalize",), group="plures.personalizers", with_recipes=True
)
MODELS = Registry("model", packages=("plures.models",), group="plures.models", with_recipes=True)
DATASETS = Registry("data set", packages=("plures.data",), group="plures.data")
PARTITIONERS = Registry("partitioner", packages=("plures.data",), group="plures.data")
WORLDS = Registry("world", packages=("plures.data",), group="plures.data")
CHANNELS = Registry(
    "channel", packages=("plures.channel", "plures.attacks"), group="plures.channels", with_recipes=True
)
KINDS = (METHODS, PERSONALIZERS, MODELS, DATASETS, PARTITIONERS, WORLDS, CHANNELS)

method = METHODS.register
personalizer = PERSONALIZERS.register
model = MODELS.register
dataset = DATASETS.register
partitioner = PARTITIONERS.register
channel = CHANNELS.register
world = WORLDS.register


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
        return Named(entry, {key: convert(key, value, entry.hints[key]) for key, value in given.items()})


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
