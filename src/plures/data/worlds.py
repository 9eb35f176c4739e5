"""Synthetic federations whose answers are known in closed form: the test-bed, shipped to users too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.federation import Federation, from_arrays
from plures.data.splits import SHARES
from plures.errors import BadValue, UnknownChoice
from plures.keys import Purpose, derive, root
from plures.models import linear
from plures.types import Key, Model


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """A federation, a model that fits it, and the truth it was drawn from (a row per client)."""

    federation: Federation
    model: Model
    truth: NDArray[Any]
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def weights(self) -> NDArray[Any]:
        """The number of training rows of each client."""
        return self.federation.count[:, 0].astype(float)


def _key(seed: int) -> Key:
    return derive(root(seed), Purpose.DATA)


def _positive(**numbers: float) -> None:
    """Refuse sizes and scales that are not positive numbers."""
    for name, number in numbers.items():
        if not 0 < number < float("inf"):
            raise BadValue(name, number, "a positive number")


def _names(num_clients: int) -> NDArray[Any]:
    width = len(str(num_clients - 1))
    return np.array([f"client-{k:0{width}d}" for k in range(num_clients)])


def _assemble(
    x: Any, y: Any, *, group: Any = None, shares: tuple[float, float, float], title: str, **options: Any
) -> Federation:
    """A federation from (clients, rows, ...) arrays."""
    x, y = np.asarray(x), np.asarray(y)
    num_clients, rows = y.shape[:2]
    names = _names(num_clients)
    planted = None if group is None else dict(zip(names, np.asarray(group).tolist(), strict=True))
    return from_arrays(
        x.reshape(num_clients * rows, *x.shape[2:]),
        y.reshape(num_clients * rows, *y.shape[2:]),
        np.repeat(names, rows),
        group=planted,
        shares=shares,
        title=title,
        **options,
    )


def centered_offsets(key: Key, num_clients: int, dim: int, radius: float) -> NDArray[Any]:
    """Offsets of norm exactly ``radius`` that sum to zero: pairs of opposite random directions.

    An odd client out gets a triangle with the last pair.
    """
    half = num_clients // 2
    directions = np.asarray(jax.random.normal(key, (max(half, 1), dim)), float)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    offsets = np.concatenate([directions, -directions])[:num_clients] if half else np.zeros((1, dim))
    if num_clients % 2 and num_clients > 1:
        if dim < 2:
            raise BadValue("num_clients", num_clients, "even when dim is 1, so that offsets can balance")
        across = _orthogonal(directions[-1])
        corners = [(1.0, 0.0), (-0.5, np.sqrt(0.75)), (-0.5, -np.sqrt(0.75))]
        triangle = np.array([a * directions[-1] + b * across for a, b in corners])
        offsets = np.concatenate([directions[:-1], -directions[:-1], triangle])
    return radius * offsets


def _orthogonal(direction: NDArray[Any]) -> NDArray[Any]:
    """A unit vector orthogonal to a unit vector."""
    axis = np.eye(len(direction))[np.argmin(np.abs(direction))]
    across = axis - (axis @ direction) * direction
    return across / np.linalg.norm(across)


@registry.world(title="Mean estimation")
def mean_estimation(
    *,
    num_clients: int = 20,
    dim: int = 4,
    rows: int = 25,
    radius: float = 0.5,
    sigma: float = 1.0,
    seed: int = 0,
) -> World:
    """Each client estimates its own mean, at distance exactly ``radius`` from the average of all means.

    Average risk of w_k = (local mean + lam * average of local means) / (1 + lam):
    s / N + (lam / (1 + lam))^2 radius^2 + s (1 - 1/N) / (1 + lam)^2, with s = dim sigma^2 / rows; it is least at
    lam = s (1 - 1/N) / radius^2.
    """
    _positive(num_clients=num_clients, dim=dim, rows=rows)
    key_truth, key_noise = jax.random.split(_key(seed))
    truth = centered_offsets(key_truth, num_clients, dim, radius)
    noise = np.asarray(jax.random.normal(key_noise, (num_clients, rows, dim)))
    federation = _assemble(
        np.zeros((num_clients, rows, 0), np.float32),
        (truth[:, None] + sigma * noise).astype(np.float32),
        shares=(1.0, 0.0, 0.0),
        task="regression",
        title="mean estimation",
        seed=seed,
    )
    noise_of_mean = dim * sigma**2 / rows
    facts = {"local_risk": noise_of_mean, "global_risk": noise_of_mean / num_clients + radius**2}
    return World(federation=federation, model=linear.mean((0,), dim), truth=truth, facts=facts)


def mean_estimation_risk(lam: float, *, num_clients: int, noise: float, radius: float) -> float:
    """The average risk of ``mean_estimation`` at penalty ``lam``; ``noise`` = dim sigma^2 / rows."""
    shrink = lam / (1 + lam)
    return noise / num_clients + shrink**2 * radius**2 + (1 - shrink) ** 2 * noise * (1 - 1 / num_clients)


class Planted(NamedTuple):
    """Clients in groups that share coefficients: inputs, x times coefficients, and a key for the rest."""

    truth: NDArray[Any]  # (clients, dim)
    group: NDArray[Any]
    x: NDArray[Any]  # (clients, rows, dim)
    signal: NDArray[Any]  # (clients, rows)
    key: Key


def _planted(num_clients: int, num_groups: int, dim: int, rows: int, gap: float, seed: int) -> Planted:
    """Client k belongs to group k mod ``num_groups``; the groups' coefficients lie ``gap`` apart on average."""
    _positive(num_clients=num_clients, num_groups=num_groups, dim=dim, rows=rows)
    keys = jax.random.split(_key(seed), 3)
    centers = gap / np.sqrt(2 * dim) * np.asarray(jax.random.normal(keys[0], (num_groups, dim)), float)
    group = np.arange(num_clients) % num_groups
    x = np.asarray(jax.random.normal(keys[1], (num_clients, rows, dim)))
    return Planted(centers[group], group, x, np.einsum("crd,cd->cr", x, centers[group]), keys[2])


@registry.world(title="Linear regression in clusters")
def linear_clusters(
    *,
    num_clients: int = 20,
    num_groups: int = 4,
    dim: int = 5,
    rows: int = 50,
    gap: float = 2.0,
    sigma: float = 0.5,
    seed: int = 0,
) -> World:
    """Clients k of group k mod q share the coefficients of their group; groups lie ``gap`` apart on average."""
    planted = _planted(num_clients, num_groups, dim, rows, gap, seed)
    noise = np.asarray(jax.random.normal(planted.key, (num_clients, rows)))
    federation = _assemble(
        planted.x,
        (planted.signal + sigma * noise).astype(np.float32),
        group=planted.group,
        shares=SHARES,
        task="regression",
        title="linear clusters",
        seed=seed,
    )
    return World(
        federation=federation,
        model=linear.least_squares((dim,)),
        truth=planted.truth,
        facts={"noise_rmse": sigma},
    )


@registry.world(title="Logistic regression in clusters")
def logistic_clusters(
    *,
    num_clients: int = 20,
    num_groups: int = 4,
    dim: int = 5,
    rows: int = 60,
    gap: float = 4.0,
    seed: int = 0,
) -> World:
    """As ``linear_clusters`` with labels drawn from the logistic model; not separable, so optima exist."""
    planted = _planted(num_clients, num_groups, dim, rows, gap, seed)
    y = jax.random.bernoulli(planted.key, jax.nn.sigmoid(jnp.asarray(planted.signal)))
    federation = _assemble(
        planted.x,
        np.asarray(y, np.int32),
        group=planted.group,
        shares=SHARES,
        num_classes=2,
        title="logistic clusters",
        seed=seed,
    )
    return World(federation=federation, model=linear.logistic((dim,)), truth=planted.truth)


def density_truth(
    *, num_clients: int = 100, num_symbols: int = 50, num_groups: int = 4, variant: str = "literal"
) -> NDArray[Any]:
    """The distribution of every client: half its group's symbol, a quarter uniform, a quarter its own symbol.

    Mansour, Mohri, Ro, Suresh, arXiv 2002.10619, appendix F.1. "literal" places the own symbol at
    k mod (d - q), which may be a group's symbol; "disjoint" places it among the other d - q symbols.
    """
    if variant not in ("literal", "disjoint"):
        raise UnknownChoice("variant", variant, ["literal", "disjoint"])
    if not 1 <= num_groups <= num_clients:
        raise BadValue("num_groups", num_groups, f"between 1 and num_clients ({num_clients})")
    if num_symbols <= num_groups:
        raise BadValue("num_symbols", num_symbols, f"more than num_groups ({num_groups})")
    client = np.arange(num_clients)
    own = client % (num_symbols - num_groups) + (num_groups if variant == "disjoint" else 0)
    truth = np.full((num_clients, num_symbols), 0.25 / num_symbols)
    truth[client, client % num_groups] += 0.5
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
    """Clients draw symbols from distributions in ``num_groups`` natural clusters (``density_truth``)."""
    truth = density_truth(num_clients=num_clients, num_symbols=num_symbols, num_groups=num_groups, variant=variant)
    group = np.arange(num_clients) % num_groups
    logits = jnp.log(jnp.asarray(truth))[:, None, :]
    y = jax.random.categorical(_key(seed), logits, shape=(num_clients, rows))
    federation = _assemble(
        np.zeros((num_clients, rows, 0), np.float32),
        np.asarray(y, np.int32),
        group=group,
        shares=SHARES,
        task="density",
        num_classes=num_symbols,
        title="categorical density",
        seed=seed,
    )
    natural = [list(range(i, num_clients, num_groups)) for i in range(num_groups)]
    everyone = [list(range(num_clients))]
    facts = {"global_loss": partition_loss(truth, everyone), "group_loss": partition_loss(truth, natural)}
    return World(federation=federation, model=linear.density((0,), num_symbols), truth=truth, facts=facts)


@registry.world(title="One symbol or any")
def one_or_any(
    *, num_clients: int = 200, num_symbols: int = 50, rows: int = 10, valid_rows: int = 0, seed: int = 0
) -> World:
    """Even clients always draw symbol 0, odd ones any symbol alike: example 2 of arXiv 2002.10619.

    The best common model for a mixture with point masses is uniform: even clients need none of it, odd ones lose
    log ``num_symbols``. One trained on everyone's rows puts half of its mass on symbol 0.
    """
    _positive(num_clients=num_clients, rows=rows)
    if num_symbols < 2:
        raise BadValue("num_symbols", num_symbols, "2 or more")
    odd = np.arange(num_clients) % 2
    truth = np.where(odd[:, None] == 1, 1.0 / num_symbols, np.eye(num_symbols)[0])
    total = rows + valid_rows
    y = jax.random.randint(_key(seed), (num_clients, total), 0, num_symbols) * odd[:, None]
    federation = _assemble(
        np.zeros((num_clients, total, 0), np.float32),
        np.asarray(y, np.int32),
        group=odd,
        shares=(rows / total, valid_rows / total, 0.0),
        task="density",
        num_classes=num_symbols,
        title="one symbol or any",
        seed=seed,
    )
    facts = {"odd_loss": float(np.log(num_symbols))}
    return World(federation=federation, model=linear.density((0,), num_symbols), truth=truth, facts=facts)
