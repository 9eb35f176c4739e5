"""What a user says about a table of their own: which column is what, how to split, who stays unseen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plures.data.check import check_shares
from plures.data.holdout import HoldOut
from plures.data.splits import SHARES, Shares
from plures.data.tails import knee_of
from plures.errors import BadValue, UnknownChoice
from plures.keys import root

OWN_TASKS = ("classification", "regression")
ROLES = ("client", "target", "split", "time", "recording")


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The roles of columns, the task and the splits.

    At most one of ``split``, ``time`` and ``recording`` may be given.

    Args:
        target: The column to predict; a table must have one.
        client: The column with the client of each row; in a folder each file is a client, and none is named.
        task: "classification" or "regression"; None infers it from the target.
        split: The column that gives train, valid or test for every row.
        time: The column to order rows by: a client's later rows are test rows.
        recording: The column whose rows of one value stay in one split, such as those of one recording or visit.
        shares: Shares of train, valid and test rows where no column gives the split.
        ignore: Columns that are left out.
        categories: Columns of numbers that are names of categories.
        hold_out: Clients that are held out as unseen: a number, a share, names, "auto" (a fifth of ten or more) or 0
            for none.
        hold_out_seed: Seed that draws who is held out.
        seed: Seed that draws the splits.
        tails: "tame" draws numeric inputs beyond 5 deviations from the mean in, z to 5 + log(1 + |z| - 5) with its sign;
            "keep" leaves them where they are.
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
    tails: str = "tame"

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


def check_tails(options: TableOptions) -> None:
    """Refuse another way with tails."""
    knee_of(options.tails)


OPTION_CHECKS = (check_task, check_one_split, check_one_use, check_numbers, check_tails)
