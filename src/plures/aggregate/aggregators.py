"""Aggregators by name: ``"trimmed_mean:share=0.2"`` to a function, every mistake in one clear line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from plures.aggregate.weighting import mean
from plures.errors import BadValue, UserError
from plures.registry import Named, Registry
from plures.types import Key, Tree

AGGREGATORS = Registry("aggregator")
aggregator = AGGREGATORS.register

aggregator(title="Weighted mean")(mean)

TRIED_WITH = 2**12  # clients: more than any option needs


@dataclass(frozen=True, eq=False)
class Aggregator:
    """Stacked uploads and weights to one upload; a ``random`` one also needs the uids and a key."""

    text: str
    apply: Callable[..., Tree]
    random: bool = False

    @property
    def robust(self) -> bool:
        """Whether it promises anything against attackers; the mean does not."""
        return parse_aggregator(self.text).entry.name != "mean"

    def __call__(self, uploads: Tree, weights: Array, uids: Array | None = None, key: Key | None = None) -> Tree:
        """One upload."""
        if not self.random:
            return self.apply(uploads, weights)
        if uids is None or key is None:
            raise BadValue("key", key, f"given, with the uids: {self.text} draws at random")
        return self.apply(uploads, weights, uids, key)


def build_aggregator(text: str) -> Aggregator:
    """The aggregator a text names; options are separated by commas, or by semicolons inside another list.

    >>> build_aggregator("trimmed_mean:share=0.7")
    Traceback (most recent call last):
    plures.errors.BadValue: share must be a number in [0, 0.5), got 0.7
    """
    named = parse_aggregator(text)
    found = Aggregator(text, partial(named.entry.factory, **named.options), "random" in named.entry.tags)
    _try(found)
    return found


def _try(found: Aggregator) -> None:
    """Run on shapes alone, so that an impossible option is refused now and not in the first round."""
    shape = partial(jax.ShapeDtypeStruct, (TRIED_WITH,))
    arguments = shape(jnp.float32), shape(jnp.float32), shape(jnp.int32)
    try:
        jax.eval_shape(partial(found, key=jax.random.key(0)), *arguments)
    except UserError as error:
        getattr(error, "__notes__", []).clear()  # about JAX, which the user did not ask for
        raise


def parse_aggregator(text: str) -> Named:
    """The entry and the options a text names."""
    return Named.parse(text.replace(";", ","), AGGREGATORS)


def num_tolerated(text: str, num_clients: int) -> int:
    """How many of so many clients may be attackers for the aggregator to do what it promises; 0 for the mean.

    >>> [num_tolerated(name, 10) for name in ("mean", "median", "trimmed_mean:share=0.2", "krum:num_byzantine=3")]
    [0, 4, 2, 3]
    """
    named = parse_aggregator(text)
    given = {name: option.default for name, option in named.entry.options.items()} | dict(named.options)
    if named.entry.name == "bucketing":
        # An attacker spoils one bucket, whatever it sends.
        return num_tolerated(given["inner"], -(-num_clients // given["size"]))
    return max(TOLERATED[named.entry.name](num_clients, given), 0)


def _below_half(num_clients: int, options: Mapping[str, Any]) -> int:
    return (num_clients - 1) // 2


def _krum(num_clients: int, options: Mapping[str, Any]) -> int:
    return min(options["num_byzantine"], (num_clients - 3) // 2)


TOLERATED: Mapping[str, Callable[[int, Mapping[str, Any]], int]] = {
    "mean": lambda num_clients, options: 0,
    "median": _below_half,
    "geometric_median": _below_half,
    "centered_clip": _below_half,
    "trimmed_mean": lambda num_clients, options: int(options["share"] * num_clients + 1e-9),
    "krum": _krum,
    "multi_krum": _krum,
}
