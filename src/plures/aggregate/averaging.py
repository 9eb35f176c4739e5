"""How uploads become one, and the step the server takes along it: the options that most methods share, as values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import optax
from jax import Array

from plures.aggregate.aggregators import Aggregator, build_aggregator, num_tolerated, parse_aggregator
from plures.aggregate.weighting import check_weighting, client_weights, mean
from plures.errors import require
from plures.registry import OptionGroup


@dataclass(frozen=True, kw_only=True)
class Aggregation(OptionGroup):
    """How uploads become one.

    Args:
        weighting: What a client counts for in the mean: "examples", its training rows, or "uniform", the same for
            every client that has any.
        aggregate: What takes the place of the mean, by name: "mean", or a robust aggregator such as "median",
            "trimmed_mean:share=0.2" or "krum:num_byzantine=2", which counts all clients alike.

    >>> Aggregation(weighting="rows")
    Traceback (most recent call last):
    plures.errors.UnknownChoice: no weighting is called 'rows'. Known: examples, uniform
    """

    weighting: str = "examples"
    aggregate: str = "mean"

    def __post_init__(self) -> None:
        check_weighting(self.weighting)
        assert self.aggregator  # refuses an unknown name

    @cached_property
    def aggregator(self) -> Aggregator:
        """The aggregator that ``aggregate`` names; the mean, unless it says otherwise, by ``weighting``."""
        named = parse_aggregator(self.aggregate)
        if named.entry.name == "mean":
            return Aggregator(self.aggregate, partial(mean, **{"weighting": self.weighting, **named.options}))
        return build_aggregator(self.aggregate)

    @property
    def robust(self) -> bool:
        """Whether it promises anything against attackers; the mean does not."""
        return self.aggregator.robust

    @property
    def tolerates(self) -> Callable[[int], int] | None:
        """How many attackers among so many clients it is made for; None promises nothing."""
        return partial(num_tolerated, self.aggregate) if self.robust else None

    def client_weights(self, weights: Array) -> Array:
        """What clients of so many training rows count for in the mean."""
        return client_weights(weights, self.weighting)


@dataclass(frozen=True, kw_only=True)
class Averaging(Aggregation):
    """How updates become one, and the server's step along it: v <- momentum v + update, w <- w + server_lr v.

    Args:
        weighting: What a client counts for in the mean: "examples", its training rows, or "uniform", the same for
            every client that has any.
        aggregate: What takes the place of the mean, by name: "mean", or a robust aggregator such as "median",
            "trimmed_mean:share=0.2" or "krum:num_byzantine=2", which counts all clients alike.
        server_lr: How far the server goes along the mean update: 1 is plain averaging, less damps it.
        momentum: Share of the server's last step that is added to the next, in [0, 1); 0 is none.
    """

    server_lr: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.server_lr > 0, "server_lr", self.server_lr, "a positive number")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "a number in [0, 1)")

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """The server's optimizer."""
        return optax.sgd(self.server_lr, self.momentum or None)
