"""Who has which rows, in which split they are and who stays unseen: all that is decided before inputs are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plures.data.holdout import choose_held_out
from plures.data.splits import by_order, by_unit, stratified
from plures.data.tables.messages import attempt
from plures.data.tables.options import TableOptions
from plures.data.tables.target import Labels
from plures.errors import BadData, UserError
from plures.keys import Purpose, derive, root
from plures.wording import counted, listed, shown

Rows = NDArray[np.int64]


class SplitMarks(NamedTuple):
    """What the data say about splits, per row: the split itself, an order in time or a recording; or nothing."""

    given: Rows | None = None
    order: Rows | None = None
    unit: Rows | None = None


class RowOwners(NamedTuple):
    """The client's number of each row, and the clients' names in order."""

    owner: Rows
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class TableLayout:
    """The rows that are used, each client's together in the order of the files, with split and client number."""

    rows: Rows
    owner: Rows
    codes: Rows
    names: tuple[str, ...]
    held_out: NDArray[np.bool_]
    notes: tuple[str, ...]
    unit: str = ""

    @property
    def use(self) -> NDArray[np.bool_]:
        """Which rows may be learned from: training rows of seen clients."""
        return (self.codes == 0) & ~self.held_out[self.owner]


def lay_out(
    labels: Labels, owners: RowOwners, marks: SplitMarks, options: TableOptions, errors: list[UserError]
) -> TableLayout | None:
    """The layout of all rows with a target; what keeps it from being made joins the errors."""
    known = np.flatnonzero(labels.known)
    # Clients' rows lie together before anything is drawn: how files interleave them makes no difference.
    rows = known[np.argsort(owners.owner[known], kind="stable")]
    left, owner = np.unique(owners.owner[rows], return_inverse=True)
    names = tuple(owners.names[int(number)] for number in left)
    held_out = attempt(errors, choose_held_out, names, options.hold_out, options.hold_out_seed)
    marks = SplitMarks(*(None if mark is None else mark[rows] for mark in marks))
    codes, notes = _split(marks, owner, labels.y[rows], options)
    count = np.bincount(owner * 3 + codes, minlength=3 * len(names)).reshape(-1, 3)
    attempt(errors, _check_train, names, count)
    if errors or held_out is None:
        return None
    notes = (*_left_out(labels, owners, names), *notes, *_small(names, count, options))
    layout = TableLayout(rows, owner, codes, names, held_out, notes, options.recording or "")
    return layout if labels.task == "regression" else _with_rare_classes(layout, labels)


def _split(marks: SplitMarks, owner: Rows, y: NDArray[Any], options: TableOptions) -> tuple[Rows, tuple[str, ...]]:
    """(codes, notes) by what the data say, else drawn within each client with every class in its share."""
    key = derive(root(options.seed), Purpose.SPLIT)
    if marks.order is not None:
        return by_order(owner, marks.order, options.shares), ()
    if marks.unit is not None:
        return by_unit(key, owner, marks.unit, options.shares), ()
    if marks.given is None:
        return stratified(key, owner, y, options.shares), ()
    train, valid = options.shares[:2]
    if (marks.given == 1).any() or not valid:
        return marks.given, ()
    codes, is_train = marks.given.copy(), marks.given == 0
    share = valid / (train + valid)
    codes[is_train] = stratified(key, owner[is_train], y[is_train], (1 - share, share, 0.0))
    note = f"no row is marked as valid; a share of {share:.2g} of each client's train rows is taken for it"
    return codes, (note,)


def _check_train(names: Sequence[str], count: Rows) -> None:
    without = list(compress(names, count[:, 0] == 0))
    if without:
        several = f"{len(without)} clients ({listed(without)}) have"
        who = several if len(without) > 1 else f"client '{shown(without[0])}' has"
        raise BadData(f"{who} no training rows; give some, or leave the client out")


def _left_out(labels: Labels, owners: RowOwners, kept: tuple[str, ...]) -> list[str]:
    """Notes on rows without a target, and on clients that lose all their rows by that."""
    missing = owners.owner[~labels.known]
    if not len(missing):
        return []
    touched = [owners.names[int(number)] for number in np.unique(missing)]
    lost = [name for name in touched if name not in set(kept)]
    rows, clients = counted(len(missing), "row"), counted(len(touched), "client")
    notes = [f"{rows} without a target left out, of {clients}: {listed(touched)}"]
    if lost:
        notes.append(f"{counted(len(lost), 'client')} left out, as no row has a target: {listed(lost)}")
    return notes


def _small(names: Sequence[str], count: Rows, options: TableOptions) -> list[str]:
    """Notes on clients without valid or test rows, and on a federation of one."""
    notes = []
    for split, code in (("valid", 1), ("test", 2)):
        without = list(compress(names, count[:, code] == 0))
        if without and (options.shares[code] or count[:, code].any()):
            notes.append(f"{counted(len(without), 'client')} without {split} rows: {listed(without)}")
    if len(names) == 1:
        notes.append(f"there is only one client, '{shown(names[0])}'")
    return notes


def _with_rare_classes(layout: TableLayout, labels: Labels) -> TableLayout:
    """The layout with a note on classes that no training row of a seen client has."""
    learned = np.bincount(labels.y[layout.rows[layout.use]], minlength=len(labels.class_names))
    unknown = list(compress(labels.class_names, learned == 0))
    if not unknown:
        return layout
    note = f"no training row of a seen client has the class: {listed(unknown)}"
    return replace(layout, notes=(*layout.notes, note))
