"""What a user says about a table of their own: which column is what, how to split, who stays unseen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plures.data.apart import HoldOut
from plures.data.check import check_shares
from plures.data.splits import SHARES, Shares
from plures.errors import BadValue, UnknownChoice
from plures.keys import root

OWN_TASKS = ("classification", "regression")
ROLES = ("client", "target", "split", "time", "recording")


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The roles of columns, the task and the splits.

    At most one of ``split`` (gives train, valid or test per row), ``time`` (a client's later rows are test) and
    ``recording`` (whole recordings stay in one split) may be given. ``hold_out`` is a number of clients, a share
    of them or their names; they are marked in the federation's ``apart``; ``hold_out_seed`` draws them, ``seed`` draws the splits.
    """

    target: str | None = None
    client: str | None = None
    task: str | None = None
    split: str | None = None
    time: str | None = None
    recording: str | None = None
    shares: Shares = SHARES
    ignore: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    hold_out: HoldOut = 0
    hold_out_seed: int = 0
    seed: int = 0

    @property
    def uses(self) -> Iterator[tuple[str, str]]:
        """(column, what it is used as) of everything that was given."""
        for role in ROLES:
            if getattr(self, role) is not None:
                yield getattr(self, role), role
        yield from ((column, "ignore") for column in self.ignore)
        yield from ((column, "categories") for column in self.categories)


def check_task(options: TableOptions) -> None:
    """Refuse a task that tables do not have."""
    if options.task is not None and options.task not in OWN_TASKS:
        raise UnknownChoice("task", options.task, OWN_TASKS)


def check_one_split(options: TableOptions) -> None:
    """Refuse two ways to split at once."""
    given = [role for role in ("split", "time", "recording") if getattr(options, role) is not None]
    if len(given) > 1:
        raise BadValue("the way to split", given, "at most one of split, time and recording")


def check_one_use(options: TableOptions) -> None:
    """Refuse a column that is given two roles."""
    used: dict[str, str] = {}
    for column, use in options.uses:
        if used.setdefault(column, use) != use:
            raise BadValue(f"column '{column}'", [used[column], use], "used as one of these")


def check_numbers(options: TableOptions) -> None:
    """Refuse shares that do not add up and a seed out of range."""
    check_shares(options.shares)
    root(options.seed)
    root(options.hold_out_seed)


OPTION_CHECKS = (check_task, check_one_split, check_one_use, check_numbers)
