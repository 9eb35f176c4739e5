"""Federations by text: ``"cifar10|dirichlet:alpha=0.3|rotation_groups:num_groups=4"``, or the path of own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plures.data.apart import choose_apart, set_apart
from plures.data.federation import Federation
from plures.data.own import TableOptions, read_own
from plures.data.stored import is_federation, open_federation
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
    first, *steps = text.split("|")
    named = [Named.parse(step, PARTITIONERS) for step in steps]
    federation = _first(first.strip(), options)
    for step in named:
        # What was loaded here belongs to nobody else, so dealing may reuse its memory.
        extra = {"in_place": True} if "in_place" in step.entry.options else {}
        federation = step.entry.factory(federation, **{**extra, **step.options})
    return federation


def _first(text: str, options: Mapping[str, Any]) -> Federation:
    entry = known_set(text)
    if entry is None:
        return _from_path(text, options)
    given = {**Named.parse(text, WORLDS if entry.name in WORLDS else DATASETS).options, **options}
    entry.check_options(given)
    made = entry.factory(**given)
    federation: Federation = made.federation if entry.name in WORLDS else made
    return federation


def known_set(text: str) -> Entry | None:
    """The registered data set or world that a text starts with; None for a path."""
    name = text.split("|")[0].partition(":")[0].strip()
    return next((registry[name] for registry in (WORLDS, DATASETS) if name in registry), None)


def _from_path(text: str, options: Mapping[str, Any]) -> Federation:
    path = Path(text)
    if not path.exists() and not (path.suffix or "/" in text):
        raise UnknownChoice("data set, file or folder", text, [*DATASETS, *WORLDS])
    if is_federation(path):
        if options:
            raise BadValue("options", dict(options), "none: a federation file is complete")
        return open_federation(path)
    unknown = [name for name in options if name not in TableOptions.__dataclass_fields__]
    if unknown:
        raise UnknownChoice("option of a table", unknown[0], TableOptions.__dataclass_fields__)
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
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
        return (federation, None) if federation.apart is None else federation.hold_out()

    def whole(self) -> Federation:
        """All clients, those kept out of training marked as apart."""
        wanted = self._wanted()
        if self._scaled_by_seen():
            return load(self.text, **self.options, hold_out=wanted)
        federation = load(self.text, **self.options)
        if self.hold_out is None and federation.apart is not None:
            return federation
        return set_apart(federation, choose_apart(federation.names, wanted, self.seed))

    def _wanted(self) -> Any:
        if self.hold_out is None:
            return "auto"
        return self.hold_out if isinstance(self.hold_out, int | float) else tuple(self.hold_out)

    def _scaled_by_seen(self) -> bool:
        """Whether the reader standardizes, so that it must know the unseen clients from the start."""
        if "|" in self.text or "hold_out" in self.options:
            return False
        entry = known_set(self.text)
        return not is_federation(Path(self.text)) if entry is None else "hold_out" in entry.options
