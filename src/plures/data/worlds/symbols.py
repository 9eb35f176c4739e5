"""Clients draw symbols from distributions that are known: the examples of arXiv 2002.10619."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from plures import registry
from plures.data.splits import SHARES
from plures.data.worlds.world import World, assemble_clients, check_positive, data_key, groups_of
from plures.errors import BadValue, UnknownChoice
from plures.models import linear


def density_truth(
    *, num_clients: int = 100, num_symbols: int = 50, num_groups: int = 4, variant: str = "literal"
) -> NDArray[Any]:
    """The distribution of every client: half its group's symbol, a quarter uniform, a quarter its own symbol.

    Mansour, Mohri, Ro, Suresh, arXiv 2002.10619, appendix F.1. "literal" places the own symbol at
    k mod (d - q), which may be a group's symbol; "disjoint" places it among the other d - q symbols.
    """
    if variant not in ("literal", "disjoint"):
        raise UnknownChoice("variant", variant, ["literal", "disjoint"])
    group = groups_of(num_clients, num_groups)
    if num_symbols <= num_groups:
        raise BadValue("num_symbols", num_symbols, f"more than num_groups ({num_groups})")
    client = np.arange(num_clients)
    own = client % (num_symbols - num_groups) + (num_groups if variant == "disjoint" else 0)
    truth = np.full((num_clients, num_symbols), 0.25 / num_symbols)
    truth[client, group] += 0.5
    truth[client, own] += 0.25
    return truth


def partition_loss(truth: NDArray[Any], groups: Sequence[Sequence[int]]) -> float:
    """The least mean log-loss (nats) when clients k of ``groups[i]`` share one distribution: its entropy."""
    total = 0.0
    for members in groups:
        mixture = truth[list(members)].mean(0)
        total += len(members) * float(-(mixture * np.log(mixture)).sum())
    return total / sum(len(members) for members in groups)


@registry.world(title="Categorical density")
def density(
    *,
    num_clients: int = 100,
    num_symbols: int = 50,
    num_groups: int = 4,
    rows: int = 100,
    variant: str = "literal",
    seed: int = 0,
) -> World:
    """Clients draw symbols from distributions in ``num_groups`` natural clusters (``density_truth``).

    Args:
        num_clients: How many clients.
        num_symbols: How many symbols there are, more than groups.
        num_groups: How many groups; client k belongs to group k mod ``num_groups``, and 1 makes all clients alike.
        rows: Symbols that each client draws, before they are split into train, valid and test.
        variant: Where a client's own symbol lies: "literal" as printed, which may be the symbol of a group, or
            "disjoint" from those.
        seed: Seed of all that is drawn.
    """
    truth = density_truth(num_clients=num_clients, num_symbols=num_symbols, num_groups=num_groups, variant=variant)
    logits = jnp.log(jnp.asarray(truth))[:, None, :]
    y = jax.random.categorical(data_key(seed), logits, shape=(num_clients, rows))
    group = np.arange(num_clients) % num_groups
    natural = [list(range(i, num_clients, num_groups)) for i in range(num_groups)]
    everyone = [list(range(num_clients))]
    facts = {"global_loss": partition_loss(truth, everyone), "group_loss": partition_loss(truth, natural)}
    return _world(y, truth, facts, group=group, shares=SHARES, title="categorical density", seed=seed)


@registry.world(title="One symbol or any")
def one_or_any(
    *, num_clients: int = 200, num_symbols: int = 50, rows: int = 10, valid_rows: int = 0, seed: int = 0
) -> World:
    """Even clients always draw symbol 0, odd ones any symbol alike: example 2 of arXiv 2002.10619.

    The best common model for a mixture with point masses is uniform: even clients need none of it, odd ones lose
    log ``num_symbols``. One trained on everyone's rows puts half of its mass on symbol 0.

    Args:
        num_clients: How many clients.
        num_symbols: How many symbols there are, 2 or more.
        rows: Training rows of each client.
        valid_rows: Valid rows of each client; there are no test rows.
        seed: Seed of all that is drawn.
    """
    check_positive(num_clients=num_clients, rows=rows)
    if num_symbols < 2:
        raise BadValue("num_symbols", num_symbols, "2 or more")
    odd = np.arange(num_clients) % 2
    truth = np.where(odd[:, None] == 1, 1.0 / num_symbols, np.eye(num_symbols)[0])
    total = rows + valid_rows
    y = jax.random.randint(data_key(seed), (num_clients, total), 0, num_symbols) * odd[:, None]
    shares, facts = (rows / total, valid_rows / total, 0.0), {"odd_loss": float(np.log(num_symbols))}
    return _world(y, truth, facts, group=odd, shares=shares, title="one symbol or any", seed=seed)


def _world(y: Array, truth: NDArray[Any], facts: dict[str, float], **options: Any) -> World:
    """The world of (clients, rows) symbols, without inputs, drawn from the distributions in ``truth``."""
    number = truth.shape[1]
    federation = assemble_clients(np.zeros((*y.shape, 0)), y, task="density", num_classes=number, **options)
    return World(federation=federation, model=linear.density((0,), number), truth=truth, facts=facts)
