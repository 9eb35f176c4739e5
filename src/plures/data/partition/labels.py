"""Label skew: clients see other classes, or the same ones in other proportions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.federation import Federation
from plures.data.partition.quantity import KINDS, sizes_of_kind
from plures.data.partition.redistribution import Dealing, Owners, needs_labels, redistribute, round_to_total
from plures.errors import BadValue, UnknownChoice
from plures.types import Key

FIT_STEPS = 1000


@registry.partitioner(
    title="Dirichlet label skew",
    paper="arXiv:2102.02079 (free sizes), arXiv:1909.06335 (given sizes)",
    tags=("deals",),
)
def dirichlet(
    federation: Federation,
    *,
    dealing: Dealing = Dealing(),
    alpha: float = 0.5,
    min_size: int = 3,
    sizes: str = "free",
    spread: float = 1.0,
) -> Federation:
    """Class proportions drawn from a Dirichlet: small ``alpha`` gives clients few classes each.

    sizes="free": each class is dealt over clients by its own draw from Dir(alpha); sizes follow from that.
    sizes="equal" | "lognormal" | "zipf": each client draws its class proportions, which are then fitted to the wanted
    sizes and to the number of examples there are of each class.

    Args:
        alpha: Concentration of the Dirichlet distribution, from 1e-9 to 1e9: near 0 a client has few classes, large
            ones give everyone the same mix.
        min_size: Fewest rows of a client: those that drew fewer are topped up from larger ones, and a note counts
            them.
        sizes: How many rows clients have: "free" as the draws of the classes make it; "equal", "lognormal" or "zipf"
            fix the sizes.
        spread: How unequal fixed sizes are: the sigma of "lognormal" or the exponent of "zipf"; 0 makes them equal.
    """
    if not 1e-9 <= alpha <= 1e9:
        raise BadValue("alpha", alpha, "a number from 1e-9 to 1e9")
    if sizes not in ("free", *KINDS):
        raise UnknownChoice("kind of sizes", sizes, ("free", *KINDS))
    needs_labels(federation, "dirichlet")

    def rule(key: Key, labels: Owners, number: int) -> Owners:
        key_draw, key_sizes, key_hand = jax.random.split(key, 3)
        _, codes, totals = np.unique(labels, return_inverse=True, return_counts=True)
        if sizes == "free":
            draw = np.asarray(jax.random.dirichlet(key_draw, jnp.full(number, alpha), (len(totals),)), float)
            return hand_out(key_hand, codes, draw.T * totals)
        wanted = sizes_of_kind(sizes, key_sizes, len(labels), number, spread=spread, smallest=min_size)
        weight = alpha * len(totals) * totals / totals.sum()
        draw = np.asarray(jax.random.dirichlet(key_draw, jnp.asarray(weight), (number,)), float)
        return hand_out(key_hand, codes, fit_proportions(draw, wanted, totals))

    return redistribute(federation, rule, dealing, step="dirichlet", min_size=min_size)


@registry.partitioner(title="Some classes per client", tags=("deals",))
def classes(federation: Federation, *, dealing: Dealing = Dealing(), per_client: int = 2) -> Federation:
    """Every client sees ``per_client`` classes; a class is shared out equally among those that see it.

    Args:
        num_clients: How many new clients the rows are dealt to, as evenly over groups and domains as can be. Every
            class must be seen by someone.
        per_client: How many classes a client sees: 1 is one class alone, as many as there are is the same mix for
            all.
    """
    needs_labels(federation, "classes")

    def rule(key: Key, labels: Owners, number: int) -> Owners:
        key_draw, key_hand = jax.random.split(key)
        _, codes, totals = np.unique(labels, return_inverse=True, return_counts=True)
        check_classes(per_client, number, len(totals))
        held = draw_classes(key_draw, number, len(totals), per_client)
        rare = np.flatnonzero(totals < held.sum(0))
        if len(rare):
            wanted = f"fewer: a class of {totals[rare[0]]} rows is too small for the {held.sum(0)[rare[0]]:.0f} that see it"
            raise BadValue("num_clients", dealing.num_clients, wanted)
        return hand_out(key_hand, codes, held * (totals / held.sum(0)))

    return redistribute(federation, rule, dealing, step="classes")


def check_classes(per_client: int, num_clients: int, num_classes: int) -> None:
    """Refuse more classes than there are, or so few that some class would belong to nobody."""
    if not 1 <= per_client <= num_classes:
        raise BadValue("per_client", per_client, f"between 1 and the {num_classes} classes there are")
    if num_clients * per_client < num_classes:
        least = f"at least {-(-num_classes // per_client)} in each group and domain, so that every class is seen"
        raise BadValue("num_clients", num_clients, least)


def draw_classes(key: Key, num_clients: int, num_classes: int, per_client: int) -> NDArray[Any]:
    """(clients, classes) zeros and ones: ``per_client`` classes each, every class held equally often up to one.

    Classes are dealt from shuffled packs without a break: client k takes the next ``per_client`` cards. As many
    clients as use up whole packs share one order, taken in a circle, so nobody gets a class twice.
    """
    together = num_classes // int(np.gcd(num_classes, per_client))
    packs = -(-num_clients // together)
    order = np.argsort(np.asarray(jax.random.uniform(key, (packs, num_classes))), axis=1)
    client = np.arange(num_clients)[:, None]
    card = (client % together * per_client + np.arange(per_client)) % num_classes
    held = np.zeros((num_clients, num_classes))
    held[client, order[client // together, card]] = 1.0
    return held


@registry.partitioner(title="Shards", paper="arXiv:1602.05629", tags=("deals",))
def shards(federation: Federation, *, dealing: Dealing = Dealing(), per_client: int = 2) -> Federation:
    """Examples sorted by label and cut into equal shards, of which every client gets ``per_client``.

    Args:
        per_client: How many shards a client gets, and so about how many classes; many approach the same mix for all.
    """
    if per_client < 1:
        raise BadValue("per_client", per_client, "1 or more")
    needs_labels(federation, "shards")

    def rule(key: Key, labels: Owners, number: int) -> Owners:
        total = number * per_client
        if total > len(labels):
            raise BadValue("per_client", per_client, f"at most {len(labels) // number}: a shard needs an example")
        key_ties, key_deal = jax.random.split(key)
        chance = np.asarray(jax.random.uniform(key_ties, labels.shape))
        shard = np.arange(len(labels)) * total // len(labels)
        client_of = np.asarray(jax.random.permutation(key_deal, total)) // per_client
        owner = np.empty(len(labels), np.int64)
        owner[np.lexsort((chance, labels))] = client_of[shard]
        return owner

    return redistribute(federation, rule, dealing, step="shards")


def hand_out(key: Key, codes: NDArray[np.int64], table: NDArray[Any]) -> Owners:
    """The client of every example, so that client k gets table[k, c] examples of class c up to rounding."""
    chance = np.asarray(jax.random.uniform(jax.random.fold_in(key, 0), codes.shape))
    starts = np.asarray(jax.random.uniform(jax.random.fold_in(key, 1), (table.shape[1],)))
    totals = np.bincount(codes, minlength=table.shape[1])
    columns = [
        np.repeat(np.arange(len(table)), round_to_total(table[:, c], int(totals[c]), starts[c]))
        for c in range(table.shape[1])
    ]
    owner = np.empty(len(codes), np.int64)
    owner[np.lexsort((chance, codes))] = np.concatenate(columns)
    return owner


def fit_proportions(draw: NDArray[Any], sizes: NDArray[Any], totals: NDArray[Any]) -> NDArray[Any]:
    """The table nearest to the drawn proportions whose rows add up to the sizes and columns to the totals.

    Iterative proportional fitting; a tiny floor lets a client take classes it did not draw when its own run out.
    """
    table = np.maximum(draw, 1e-9) * sizes[:, None]
    for _ in range(FIT_STEPS):
        table *= (sizes / table.sum(1))[:, None]
        table *= totals / table.sum(0)
        if np.allclose(table.sum(1), sizes, rtol=1e-9):
            break
    return table
