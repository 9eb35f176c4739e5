"""All clients' data, stored flat: one array per field plus offsets, so memory is O(examples).

A client's rows lie together, its train rows first, then valid, then test. Training clients have the uids
0..N-1 whatever the order of rows; clients held out of training get the uids from N on.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from plures.data.check import as_array, check_arrays, labels_of, one_per_client, split_codes
from plures.data.scale import federated_scale
from plures.data.splits import SHARES, Shares, at_random
from plures.errors import BadData, BadValue, UnknownChoice, Unsupported
from plures.keys import Purpose, derive, root
from plures.types import Model, TargetUnit

SPLITS = ("train", "valid", "test")
TASKS = ("classification", "regression", "density", "sequence")


@dataclass(frozen=True, kw_only=True, eq=False)
class Federation:
    """Many clients' examples with their splits, and where known their planted group and domain.

    ``start`` and ``count`` are (clients, 3): where each client's train, valid and test rows lie in ``x``, ``y``.
    ``held_out`` marks clients that the data themselves set aside as unseen: ``hold_out()`` without arguments takes
    those. ``unit`` names what a split keeps together (a recording), if anything. ``notes`` are warnings a report
    must carry (rows left out, clients too small to split). ``standardize_target`` is whether models built by name for a
    regression learn standardized targets: so for own data and real sets, where the unit is anybody's choice; not for
    worlds, whose known optima are those of the plain loss. ``source``: the text and options by which
    ``load`` made it, and of how many clients; a part of a federation has that of the whole.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    start: NDArray[np.int64]
    count: NDArray[np.int64]
    uid: NDArray[np.int64]
    names: tuple[str, ...]
    task: str
    num_classes: int = 0
    group: NDArray[np.int64] | None = None
    domain: NDArray[np.int64] | None = None
    num_groups: int = 0
    num_domains: int = 0
    title: str = "federation"
    held_out: NDArray[np.bool_] | None = None
    class_names: tuple[str, ...] = ()
    unit: str = ""
    notes: tuple[str, ...] = ()
    standardize_target: bool = False
    source: Mapping[str, Any] | None = None

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.uid)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

    @property
    def num_outputs(self) -> int:
        """How many numbers a model should put out per example."""
        return self.num_classes or int(np.prod(self.y.shape[1:], dtype=int))

    @property
    def facts(self) -> dict[str, int]:
        """Numbers a method's factory may ask for by name; a part of a federation keeps those of the whole."""
        found = {"num_clients": self.num_clients, "num_groups": self.num_groups, "num_domains": self.num_domains}
        return {name: number for name, number in found.items() if number}

    @property
    def target_unit(self) -> TargetUnit | None:
        """The mean and deviation of the targets in training rows of seen clients; None where targets stay as they are."""
        seen = np.ones(self.num_clients, bool) if self.held_out is None else ~self.held_out
        if not self.standardize_target or self.task != "regression" or not self.count[seen, 0].any():
            return None
        return target_unit(self.y, self.start[seen, 0], self.count[seen, 0])

    @property
    def known(self) -> dict[str, Any]:
        """All that a method's factory may ask for by name: the facts, and what a row looks like."""
        return {**self.facts, "example": self.example}

    @property
    def example(self) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """The shape and type of one row's input and label, as methods see them."""

        def one(values: NDArray[Any]) -> jax.ShapeDtypeStruct:
            kind = jnp.float32 if values.dtype.kind == "f" else jnp.int32
            return jax.eval_shape(lambda: jnp.zeros(values.shape[1:], kind))

        return one(self.x), one(self.y)

    def check_model(self, model: Model) -> None:
        """Refuse a model made for another task."""
        two_classes = model.task == "binary" and self.num_classes == 2
        if self.task != ("classification" if two_classes else model.task):
            classes = f" with {self.num_classes} classes" if self.task == "classification" else ""
            raise Unsupported(f"this model is for {model.task}, but the federation's task is {self.task}{classes}")
        found = self._outputs(model)
        if self.task == "regression" and found != self.y.shape[1:]:
            targets = f"the targets are {self.y.shape[1:]} per row"
            raise Unsupported(f"this model puts out {found} per row, but {targets}")
        if self.num_classes and not two_classes and found[-1:] != (self.num_classes,):
            raise Unsupported(f"this model puts out {found[-1]} numbers, but there are {self.num_classes} classes")

    def _outputs(self, model: Model) -> tuple[int, ...]:
        """The shape of a model's outputs for one of these inputs."""
        try:
            weights = jax.eval_shape(model.init, jax.random.key(0))
            outputs = jax.eval_shape(lambda weights, x: model.apply(weights, x[None]), weights, self.example[0])
        except (TypeError, ValueError) as error:
            raise Unsupported(f"this model does not take inputs of shape {self.shape}") from error
        return tuple(outputs.shape[1:])

    def rows_of(self, name: str, split: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """The inputs and labels of one client's split, by the client's name."""
        if name not in self.names:
            raise UnknownChoice("client", name, self.names)
        if split not in SPLITS:
            raise UnknownChoice("split", split, SPLITS)
        client, part = self.names.index(name), SPLITS.index(split)
        own = slice(self.start[client, part], self.start[client, part] + self.count[client, part])
        return self.x[own], self.y[own]

    def take(self, rows: ArrayLike) -> Federation:
        """The clients at these rows in this order, with the uids they have; the examples are shared."""
        given = np.asarray(rows)
        chosen = np.flatnonzero(given) if given.dtype == bool else given.astype(np.int64)
        fields = {name: getattr(self, name) for name in ("start", "count", "uid", "group", "domain", "held_out")}
        taken: dict[str, Any] = {name: values[chosen] for name, values in fields.items() if values is not None}
        if "held_out" in taken and not taken["held_out"].any():
            taken["held_out"] = None
        return replace(self, names=tuple(self.names[row] for row in chosen), **taken)

    def subset(self, clients: Sequence[str]) -> Federation:
        """Some clients by name, as a federation of its own (uids from 0 on)."""
        return self.take(self._rows_named(clients)).renumbered(0)

    def hold_out(
        self,
        *,
        num_clients: int | None = None,
        share: float | None = None,
        clients: Sequence[str] | None = None,
        seed: int = 0,
    ) -> tuple[Federation, Federation]:
        """(seen, unseen): some clients kept out of training, by number or share (at random) or by name.

        Without any of these: the clients the data themselves set aside.
        """
        if sum(given is not None for given in (num_clients, share, clients)) > 1:
            raise BadValue("hold_out", (num_clients, share, clients), "one of num_clients, share and clients")
        if clients is not None:
            out = self._rows_named(clients)
        elif num_clients is None and share is None:
            out = self._set_aside()
        else:
            out = self._drawn(share_to_number(share, self.num_clients) if share is not None else num_clients, seed)
        kept = np.setdiff1d(np.arange(self.num_clients), out)
        if not len(kept):
            raise BadValue("clients", list(clients or ()), "a list that leaves at least one client to train")
        seen, unseen = self.take(kept).renumbered(0), self.take(np.sort(out)).renumbered(len(kept))
        return replace(seen, held_out=None), replace(unseen, held_out=None)

    def _drawn(self, number: int | None, seed: int) -> NDArray[np.int64]:
        if not 0 < (number or 0) < self.num_clients:
            raise BadValue("num_clients", number, f"between 1 and {self.num_clients - 1}")
        order = jax.random.permutation(derive(root(seed), Purpose.HOLD_OUT), self.num_clients)
        return np.argsort(self.uid)[np.asarray(order)[:number]]

    def _set_aside(self) -> NDArray[np.int64]:
        if self.held_out is None or not self.held_out.any():
            raise BadValue("hold_out", None, "num_clients, share or clients: these data set no clients aside")
        if self.held_out.all():
            wanted = "hold out some by number or name"
            raise BadData(f"these data set all clients aside, so there is none to train; {wanted}")
        return np.flatnonzero(self.held_out)

    def _rows_named(self, clients: Sequence[str]) -> NDArray[np.int64]:
        """The rows of clients by name; unknown and repeated names are refused."""
        if not len(clients):
            raise BadValue("clients", list(clients), "a list with at least one client")
        where = {name: row for row, name in enumerate(self.names)}
        for place, name in enumerate(clients):
            if name not in where:
                raise UnknownChoice("client", name, self.names)
            if name in clients[:place]:
                raise BadValue("clients", list(clients), f"a list without repeats ('{name}' is there twice)")
        return np.array([where[name] for name in clients], np.int64)

    @property
    def fingerprint(self) -> str:
        """A short number that changes when any example, split or client does, also in place."""
        found = zlib.crc32("\n".join(self.names).encode())
        for values in (self.start, self.count, self.uid, self.x, self.y):
            for first in range(0, len(values), 65536):
                found = zlib.crc32(np.ascontiguousarray(values[first : first + 65536]).tobytes(), found)
        return f"{found:08x}"

    def noted(self, *notes: str) -> Federation:
        """The same federation with further warnings for the report."""
        return replace(self, notes=self.notes + notes)

    def renumbered(self, first: int) -> Federation:
        """The same clients with uids from ``first`` on, in the order of their uids."""
        return replace(self, uid=first + np.argsort(np.argsort(self.uid)))

    def describe(self) -> dict[str, Any]:
        """The size and shape of the federation in a few numbers."""
        train = self.count[:, 0]
        low, middle, high = np.percentile(train, [5, 50, 95])
        return {
            "title": self.title,
            "task": self.task,
            "clients": self.num_clients,
            "examples": {split: int(n) for split, n in zip(SPLITS, self.count.sum(0), strict=True)},
            "train_rows_per_client": {"p5": float(low), "median": float(middle), "p95": float(high)},
            "largest_client": int(train.max()),
            "input_shape": list(self.shape),
            "classes": self.num_classes or None,
            "groups": self.facts.get("num_groups"),
            "domains": self.facts.get("num_domains"),
            "without_valid_rows": [self.names[i] for i in np.flatnonzero(self.count[:, 1] == 0)],
            "without_test_rows": [self.names[i] for i in np.flatnonzero(self.count[:, 2] == 0)],
            "notes": list(self.notes),
        }


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    client: ArrayLike,
    *,
    task: str = "classification",
    num_classes: int | None = None,
    split: ArrayLike | None = None,
    shares: Shares = SHARES,
    group: Mapping[str, int] | None = None,
    domain: Mapping[str, int] | None = None,
    clients: Sequence[str] | None = None,
    title: str = "arrays",
    standardize_target: bool = True,
    seed: int = 0,
) -> Federation:
    """A federation from one array of inputs, one of labels and one that says whose each example is.

    ``split`` gives each example's part ("train", "valid", "test"); without it every client's rows are shuffled
    and cut by ``shares``. ``clients`` lists the clients expected, so that one without rows is noticed.
    ``group`` and ``domain`` map a client's name to a number from 0 on. ``standardize_target`` is whether models built by
    name for a regression learn standardized targets.
    """
    if task not in TASKS:
        raise UnknownChoice("task", task, TASKS)
    x, owners = as_array("x", x), as_array("client", client)
    y = labels_of(as_array("y", y), task)
    classes = check_arrays(x, y, owners, task, num_classes)
    # Numbers are put in order as numbers, so that client 2 comes before client 10.
    numbers, owner = np.unique(owners, return_inverse=True)
    names = numbers.astype(str)
    _check_expected(names, clients)
    if split is None:
        codes = at_random(derive(root(seed), Purpose.SPLIT), owner, shares)
    else:
        codes = split_codes(split, len(owner), SPLITS)
    groups = one_per_client("group", group, names)
    domains = one_per_client("domain", domain, names)
    return assemble(
        Examples(x, y, owner, codes),
        names=tuple(str(name) for name in names),
        task=task,
        num_classes=classes,
        group=groups,
        domain=domains,
        num_groups=0 if groups is None else int(groups.max()) + 1,
        num_domains=0 if domains is None else int(domains.max()) + 1,
        title=title,
        standardize_target=standardize_target and task == "regression",
    )


class Examples(NamedTuple):
    """Flat examples with the client's number and the split code (0, 1, 2) of each; ``rows`` picks some of them."""

    x: NDArray[Any]
    y: NDArray[Any]
    owner: NDArray[np.int64]
    codes: NDArray[np.int64]
    rows: NDArray[np.int64] | None = None


def assemble(examples: Examples, *, names: tuple[str, ...], in_place: bool = False, **facts: Any) -> Federation:
    """A federation from examples known to be sound: one copy of them, in the order of clients and splits.

    With ``in_place`` the given arrays are put in order themselves, for data that barely fit the memory.
    """
    x, y, owner, codes, rows = examples
    cell = owner.astype(np.int64) * 3 + codes
    count = np.bincount(cell, minlength=3 * len(names)).reshape(len(names), 3)
    without = np.flatnonzero(count[:, 0] == 0)
    if len(without):
        raise BadData(f"client '{names[without[0]]}' has no training rows; give it some, or leave it out")
    order = np.argsort(cell, kind="stable")
    order = order if rows is None else rows[order]
    start = np.cumsum(count.ravel()) - count.ravel()
    return Federation(
        x=_put_in_order(x, order, in_place),
        y=_put_in_order(y, order, in_place),
        start=start.reshape(count.shape),
        count=count,
        uid=np.arange(len(names)),
        names=names,
        **facts,
    )


def _put_in_order(values: NDArray[Any], order: NDArray[np.int64], in_place: bool) -> NDArray[Any]:
    """The rows in this order; in place a few columns at a time, so that scratch stays small."""
    if not in_place or len(order) != len(values) or not values.flags.c_contiguous or not values.flags.writeable:
        return values[order]
    columns = values.reshape(len(values), -1)
    width = max(columns.shape[1] // 16, 1)
    for first in range(0, columns.shape[1], width):
        columns[:, first : first + width] = columns[order, first : first + width]
    return values


def share_to_number(share: float, num_clients: int) -> int:
    """How many clients a share of them is: at least one, and at least one left."""
    if not 0 < share < 1:
        raise BadValue("share", share, "a number between 0 and 1")
    return min(max(round(share * num_clients), 1), max(num_clients - 1, 1))


def _check_expected(names: NDArray[Any], clients: Sequence[str] | None) -> None:
    if clients is None:
        return
    expected = np.unique([str(name) for name in clients], return_counts=True)
    for wrong, told in (
        (expected[0][expected[1] > 1], "is listed twice; names must differ"),
        (np.setdiff1d(expected[0], names), "has no rows; give it some, or leave it out of the list"),
        (np.setdiff1d(names, expected[0]), "has rows but is not listed; add it to the list of clients"),
    ):
        if len(wrong):
            raise BadData(f"client '{wrong[0]}' {told}")


def target_unit(y: NDArray[Any], start: NDArray[np.int64], count: NDArray[np.int64]) -> TargetUnit:
    """The mean and the deviation of the targets of some clients' training rows, one of each per output.

    ``start`` and ``count`` say where each client's training rows lie. A target that is the same for all has deviation 1.

    >>> target_unit(np.array([1.0, 3.0, 9.0, 5.0, 7.0]), np.array([0, 3]), np.array([2, 2]))
    TargetUnit(shift=4.0, scale=2.23606797749979)
    """
    owner = np.repeat(np.arange(len(count)), count)
    rows = np.arange(len(owner)) + np.repeat(start - (np.cumsum(count) - count), count)
    found = federated_scale(y[rows].reshape(len(rows), -1), owner, np.ones(len(rows), bool))
    if y.ndim == 1:
        return TargetUnit(float(found.mean[0]), float(found.deviation[0]))
    return TargetUnit(tuple(found.mean.tolist()), tuple(found.deviation.tolist()))
