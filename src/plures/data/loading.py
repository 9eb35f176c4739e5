"""Federations by text: ``"cifar10|dirichlet:alpha=0.3|rotation_groups:num_groups=4"``, or the path of own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from plures.data.disk import is_federation, open_federation
from plures.data.federation import Federation
from plures.data.holdout import with_held_out
from plures.data.tables import TableOptions, read_own
from plures.errors import BadValue, UnknownChoice
from plures.registry import DATASETS, PARTITIONERS, WORLDS, Entry, Named


def load(text: str, **options: Any) -> Federation:
    """A federation by the name of its data set or world, or by its path, with partitioners joined by ``|``.

    Options are those of the data set, or of the table (``target``, ``client`` and so on) for a path.

    >>> load("digits").num_clients
    40
    >>> load("digits:num_clients=1,num_groups=1|dirichlet:num_clients=12,alpha=0.3|rotation_groups").num_groups
    4
    """
    first, steps = split_text(text)
    federation = _first(first, options)
    for step in steps:
        # What was loaded here belongs to nobody else, so dealing may reuse its memory.
        extra = {"in_place": True} if "in_place" in step.entry.options else {}
        federation = step.entry.factory(federation, **{**extra, **step.options})
    name = str(Path(text).absolute()) if Path(text).exists() else text
    source = {"name": name, "options": dict(options), "clients": federation.num_clients}
    return replace(federation, source=source)


def split_text(text: str) -> tuple[str, list[Named]]:
    """The data set or path, and the partitioners after it; a path may hold a bar itself."""
    if Path(text).exists():
        return text, []
    first, *steps = text.split("|")
    return first.strip(), [Named.parse(step, PARTITIONERS) for step in steps]


def registered_data(text: str) -> Entry | None:
    """The registered data set or world that a text starts with; None for a path."""
    name = text.split("|")[0].partition(":")[0].strip()
    return next((registry[name] for registry in (WORLDS, DATASETS) if name in registry), None)


def check_option(text: str, name: str, value: Any) -> None:
    """Refuse an option that the data of a text do not have, or a value of another type; none of data that are not there."""
    entry = registered_data(text)
    first = text if Path(text).exists() else text.split("|")[0].strip()
    if entry is not None:
        entry.check_options({name: value})
    elif Path(first).exists() and not is_federation(first):
        _check_table_option(name)


def _check_table_option(name: str) -> None:
    known = [one.name for one in fields(TableOptions)]
    if name not in known:
        raise UnknownChoice("option of a table", name, known)


def _first(text: str, options: Mapping[str, Any]) -> Federation:
    entry = registered_data(text)
    if entry is None:
        return _from_path(text, options)
    given = _all_options(text, entry, options)
    entry.check_options(given)
    made = entry.factory(**given)
    federation: Federation = made.federation if entry.name in WORLDS else made
    return federation


def _all_options(text: str, entry: Entry, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in the text and those beside it; one that is in both is a mistake."""
    written = Named.parse(text, WORLDS if entry.name in WORLDS else DATASETS).options
    twice = [name for name in written if name in options]
    if twice:
        raise BadValue(twice[0], options[twice[0]], f"given once, but '{text}' sets it too")
    return {**written, **options}


def _from_path(text: str, options: Mapping[str, Any]) -> Federation:
    path = Path(text)
    if not path.exists() and not (path.suffix or "/" in text):
        raise UnknownChoice("data set, file or folder", text, [*DATASETS, *WORLDS])
    if is_federation(path):
        if options:
            raise BadValue("options", dict(options), "none: a federation file is complete")
        return open_federation(path)
    for name in options:
        _check_table_option(name)
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    return read_own(path, TableOptions(**plain))


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Which federation, and which of its clients are kept out of training.

    ``hold_out`` is a number of clients, a share of them, names, 0 for none, or None: then it is the clients the
    data themselves set aside, else a fifth where there are ten clients or more, else none.
    """

    text: str
    options: Mapping[str, Any] = field(default_factory=dict)
    hold_out: int | float | Sequence[str] | None = None
    seed: int = 0

    def load(self) -> tuple[Federation, Federation | None]:
        """(seen, unseen) clients."""
        federation = self.whole()
        return (federation, None) if federation.held_out is None else federation.hold_out()

    def whole(self) -> Federation:
        """All clients, those kept out of training marked as held out."""
        first, steps = split_text(self.text)
        scaled = self._standardizes(first)
        moving = [step.entry.name for step in steps if step.entry.tags & {"deals", "chooses"}]
        if scaled and not moving:
            drawn = {} if self._says_who(first) else {"hold_out": self.wanted, "hold_out_seed": self.seed}
            return load(self.text, **self.options, **drawn)
        federation = load(self.text, **self.options)
        if self.hold_out is None and (federation.held_out is not None or is_federation(first)):
            return federation
        marked_now = with_held_out(federation, self.wanted, self.seed)
        if scaled and marked_now.held_out is not None:
            return marked_now.noted(
                f"inputs were standardized with all clients: {moving[0]} came before holding out"
            )
        return marked_now

    @property
    def wanted(self) -> Any:
        """Who is to be held out, as the readers take it."""
        if self.hold_out is None:
            return "auto"
        return self.hold_out if isinstance(self.hold_out, int | float) else tuple(self.hold_out)

    def _standardizes(self, first: str) -> bool:
        """Whether the reader standardizes, so that it must know the unseen clients from the start."""
        entry = registered_data(first)
        return not is_federation(first) if entry is None else "hold_out" in entry.options

    def _says_who(self, first: str) -> bool:
        """Whether the data set's own options say who is held out; saying it twice is a mistake."""
        entry = registered_data(first)
        given = dict(self.options) if entry is None else _all_options(first, entry, self.options)
        if "hold_out" in given and self.hold_out is not None:
            raise BadValue(
                "hold_out", self.hold_out, f"given once, but the data's own options say {given['hold_out']!r}"
            )
        return "hold_out" in given
