"""All clients' data, stored flat: one array per field plus offsets, so memory is O(examples).

A client's rows lie together, its train rows first, then valid, then test. Training clients have the uids
0..N-1 whatever the order of rows; clients held out of training get the uids from N on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from plures.data.check import as_array, check_arrays, check_shares, labels_of, one_per_client, split_codes
from plures.errors import BadData, BadValue, UnknownChoice, Unsupported
from plures.keys import Purpose, derive, root
from plures.types import Model

SPLITS = ("train", "valid", "test")
TASKS = ("classification", "regression", "density", "sequence")


@dataclass(frozen=True, kw_only=True, eq=False)
class Federation:
    """Many clients' examples with their splits, and where known their planted group and domain.

    ``start`` and ``count`` are (clients, 3): where each client's train, valid and test rows lie in ``x``, ``y``.
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

    def check_model(self, model: Model) -> None:
        """Refuse a model made for another task."""
        two_classes = model.task == "binary" and self.num_classes == 2
        if self.task != ("classification" if two_classes else model.task):
            classes = f" with {self.num_classes} classes" if self.task == "classification" else ""
            raise Unsupported(f"this model is for {model.task}, but the federation's task is {self.task}{classes}")
        found = self._outputs(model)
        if self.task == "regression" and found != self.y.shape[1:]:
            raise Unsupported(
                f"this model puts out {found} per row, but the targets are {self.y.shape[1:]} per row"
            )
        if self.num_classes and not two_classes and found[-1:] != (self.num_classes,):
            raise Unsupported(f"this model puts out {found[-1]} numbers, but there are {self.num_classes} classes")

    def _outputs(self, model: Model) -> tuple[int, ...]:
        """The shape of a model's outputs for one of these inputs."""
        kind = jnp.int32 if self.x.dtype.kind in "iub" else jnp.float32

        def outputs_of_one() -> Any:
            return model.apply(model.init(jax.random.key(0)), jnp.zeros((1, *self.shape), kind))

        try:
            outputs = jax.eval_shape(outputs_of_one)
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
        return replace(
            self,
            start=self.start[chosen],
            count=self.count[chosen],
            uid=self.uid[chosen],
            names=tuple(self.names[row] for row in chosen),
            group=None if self.group is None else self.group[chosen],
            domain=None if self.domain is None else self.domain[chosen],
        )

    def subset(self, clients: Sequence[str]) -> Federation:
        """Some clients by name, as a federation of its own (uids from 0 on)."""
        self._check_names(clients)
        where = {name: row for row, name in enumerate(self.names)}
        return self.take([where[name] for name in clients]).renumbered(0)

    def hold_out(
        self, *, num_clients: int | None = None, clients: Sequence[str] | None = None, seed: int = 0
    ) -> tuple[Federation, Federation]:
        """(seen, unseen): some clients, drawn at random or named, kept out of training."""
        if (num_clients is None) == (clients is None):
            raise BadValue("hold_out", (num_clients, clients), "either num_clients or a list of clients")
        if clients is None:
            if not 0 < (num_clients or 0) < self.num_clients:
                raise BadValue("num_clients", num_clients, f"between 1 and {self.num_clients - 1}")
            order = jax.random.permutation(derive(root(seed), Purpose.HOLD_OUT), self.num_clients)
            by_uid = np.argsort(self.uid)
            out = by_uid[np.asarray(order)[:num_clients]]
        else:
            self._check_names(clients)
            out = np.array([self.names.index(name) for name in clients])
        kept = np.setdiff1d(np.arange(self.num_clients), out)
        if not len(kept):
            raise BadValue("clients", list(clients or ()), "a list that leaves at least one client to train")
        return self.take(kept).renumbered(0), self.take(np.sort(out)).renumbered(len(kept))

    def _check_names(self, clients: Sequence[str]) -> None:
        if not len(clients):
            raise BadValue("clients", list(clients), "a list with at least one client")
        for name in clients:
            if name not in self.names:
                raise UnknownChoice("client", name, self.names)
            if list(clients).count(name) > 1:
                raise BadValue("clients", list(clients), f"a list without repeats ('{name}' is there twice)")

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
        }


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    client: ArrayLike,
    *,
    task: str = "classification",
    num_classes: int | None = None,
    split: ArrayLike | None = None,
    shares: tuple[float, float, float] = (0.6, 0.2, 0.2),
    group: Mapping[str, int] | None = None,
    domain: Mapping[str, int] | None = None,
    clients: Sequence[str] | None = None,
    title: str = "arrays",
    seed: int = 0,
) -> Federation:
    """A federation from one array of inputs, one of labels and one that says whose each example is.

    ``split`` gives each example's part ("train", "valid", "test"); without it every client's rows are shuffled
    and cut by ``shares``. ``clients`` lists the clients expected, so that one without rows is noticed.
    ``group`` and ``domain`` map a client's name to a number from 0 on.
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
    sizes = np.bincount(owner)
    if split is None:
        check_shares(shares)
        codes = _cut(owner, sizes, shares, seed)
    else:
        codes = split_codes(split, len(owner), SPLITS)
    count = np.zeros((len(names), 3), np.int64)
    np.add.at(count, (owner, codes), 1)
    without = np.flatnonzero(count[:, 0] == 0)
    if len(without):
        raise BadData(f"client '{names[without[0]]}' has no training rows; give it some, or leave it out")
    order = np.lexsort((codes, owner))
    ends = np.cumsum(count.ravel())
    groups = one_per_client("group", group, names)
    domains = one_per_client("domain", domain, names)
    return Federation(
        x=x[order],
        y=y[order],
        start=(ends - count.ravel()).reshape(count.shape),
        count=count,
        uid=np.arange(len(names)),
        names=tuple(str(name) for name in names),
        task=task,
        num_classes=classes,
        group=groups,
        domain=domains,
        num_groups=0 if groups is None else int(groups.max()) + 1,
        num_domains=0 if domains is None else int(domains.max()) + 1,
        title=title,
    )


def _check_expected(names: NDArray[Any], clients: Sequence[str] | None) -> None:
    if clients is None:
        return
    expected = [str(name) for name in clients]
    doubled = sorted({name for name in expected if expected.count(name) > 1})
    if doubled:
        raise BadData(f"client '{doubled[0]}' is listed twice; names must differ")
    empty = sorted(set(expected) - set(names))
    if empty:
        raise BadData(f"client '{empty[0]}' has no rows; give it some, or leave it out of the list")
    unlisted = sorted(set(names) - set(expected))
    if unlisted:
        raise BadData(f"client '{unlisted[0]}' has rows but is not listed; add it to the list of clients")


def _cut(
    owner: NDArray[np.int64], sizes: NDArray[np.int64], shares: tuple[float, float, float], seed: int
) -> NDArray[np.int64]:
    """Split codes: within each client a random order is cut into train, valid and test.

    From three rows on a client gets at least one row of each wanted part; training always has one.
    """
    chance = np.asarray(jax.random.uniform(derive(root(seed), Purpose.SPLIT), owner.shape))
    order = np.lexsort((chance, owner))
    rank = np.empty_like(owner)
    first = np.cumsum(sizes) - sizes
    rank[order] = np.arange(len(owner)) - first[owner[order]]
    test = np.where(shares[2] > 0, np.maximum(np.rint(shares[2] * sizes), 1), 0)
    for_valid = (shares[1] > 0) & (sizes >= 3)
    test = np.minimum(test, np.maximum(sizes - 1 - for_valid, 0))
    valid = np.where(shares[1] > 0, np.maximum(np.rint(shares[1] * sizes), 1), 0)
    valid = np.minimum(valid, np.maximum(sizes - test - 1, 0))
    train = (sizes - test - valid).astype(np.int64)
    return (rank >= train[owner]).astype(np.int64) + (rank >= (train + valid)[owner])
