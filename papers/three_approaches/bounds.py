"""The paper's bounds and label discrepancies: of clusters, of mappers, of training alone, of Dapper's mixture.

They are relative guides, never promises of accuracy. All need a loss in [0, 1]: the log-loss does not qualify unless it
is clipped. What commands use is in ``plures.study.bounds``.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization, arXiv 2002.10619.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray
from scipy.optimize import brentq

from plures.errors import BadValue, Unsupported
from plures.study.bounds import Discrepancy, as_law, check_counts
from plures.types import Model, Plan, Tree, Weights

Examples: TypeAlias = tuple[Any, Any]
"""(x, y) of one client: a row per example in both."""

ASCENT = Plan(steps=300, batch=None, lr=0.05, optimizer=optax.adam)


@dataclass(frozen=True)
class Bound:
    """A sum of named terms; ``sharp`` holds sharper values of terms of the same name, where a proof has them.

    ``up_to_constant`` marks an order of magnitude, whose constant the paper leaves open.
    """

    name: str
    terms: Mapping[str, float]
    sharp: Mapping[str, float] = field(default_factory=dict)
    up_to_constant: bool = False

    @property
    def total(self) -> float:
        """The sum of the terms."""
        return sum(self.terms.values())

    @property
    def verdict(self) -> str:
        """The total as text, or "vacuous" from 1 on: a loss in [0, 1] is never further off than that."""
        return "vacuous" if self.total >= 1 else f"{self.total:.3f}"

    def __str__(self) -> str:
        sum_of_terms = " + ".join(f"{name} {value:.3f}" for name, value in self.terms.items())
        constant = ", up to a constant" if self.up_to_constant else ""
        return f"{self.name}: {self.verdict} ({sum_of_terms}{constant})"


def hypcluster_bound(
    *, num_clients: int, num_rows: float, dim: int, num_clusters: int, delta: float = 0.05
) -> Bound:
    """How far HypCluster's training loss may be from its true loss, with probability 1 - delta.

    sqrt(4 p log(2 q / delta) / m) + sqrt((d q / m) log(e m / d)), arXiv 2002.10619, Corollary 2; p clients with
    m rows in total, q clusters, d the pseudo-dimension of a model. ``sharp`` is the first term as a union over all
    q^p assignments and McDiarmid's inequality give it: sqrt((p log q + log(2 / delta)) / (2 m)).

    >>> print(hypcluster_bound(num_clients=100, num_rows=10_000, dim=49, num_clusters=100))
    HypCluster, Corollary 2: vacuous (assignment 0.576 + models 1.760)
    """
    check_counts(num_clients=num_clients, num_rows=num_rows, dim=dim, num_clusters=num_clusters)
    check_risk(delta)
    if num_rows / num_clusters < dim:
        given = f"num_rows {num_rows}, num_clusters {num_clusters}, dim {dim}"
        raise Unsupported(f"Corollary 2 says nothing with fewer rows per cluster than dim: {given}")
    assignment = math.sqrt(4 * num_clients * math.log(2 * num_clusters / delta) / num_rows)
    union = num_clients * math.log(num_clusters) + math.log(2 / delta)
    return Bound(
        "HypCluster, Corollary 2",
        {"assignment": assignment, "models": complexity(dim, num_rows, num_clusters)},
        sharp={"assignment": math.sqrt(union / (2 * num_rows))},
    )


def mapper_bound(
    *,
    num_clients: int,
    num_rows: float,
    dim_common: int,
    dim_local: int,
    lipschitz: float = 1.0,
    delta: float = 0.05,
) -> Bound:
    """How far Mapper's training loss may be from its true loss, with probability 1 - delta.

    2 L (sqrt((d_c / m) log(e m / d_c)) + sqrt((d_l p / m) log(e m / d_l))) + 2 sqrt(log(1 / delta) / m),
    arXiv 2002.10619, Corollary 6; L is the ``lipschitz`` constant of the loss.

    u (1 - log u) with u = d / m grows up to u = 1 and then falls, below 0 from u = e on: so each class needs
    m >= d. Fewer rows per client than ``dim_local`` need no refusal: the local term is then above 2 L by itself.
    """
    check_counts(num_clients=num_clients, num_rows=num_rows, dim_common=dim_common, dim_local=dim_local)
    check_risk(delta)
    _positive(lipschitz=lipschitz)
    if num_rows < max(dim_common, dim_local):
        given = f"num_rows {num_rows}, dim_common {dim_common}, dim_local {dim_local}"
        raise Unsupported(f"Corollary 6 says nothing with fewer rows than a model's dim: {given}")
    terms = {
        "common": 2 * lipschitz * complexity(dim_common, num_rows, 1),
        "local": 2 * lipschitz * complexity(dim_local, num_rows, num_clients),
        "confidence": 2 * math.sqrt(math.log(1 / delta) / num_rows),
    }
    return Bound("Mapper, Corollary 6", terms)


def local_bound(*, num_rows: float, dim: int, delta: float = 0.05) -> Bound:
    """The order of a lone client's excess risk: sqrt((d + log(1 / delta)) / m_k), arXiv 2002.10619."""
    check_counts(num_rows=num_rows, dim=dim)
    check_risk(delta)
    return Bound("Local", {"excess": math.sqrt((dim + math.log(1 / delta)) / num_rows)}, up_to_constant=True)


def effective_rows(lam: float, own_rows: float, pool_rows: float) -> float:
    """The rows of one law that are worth Dapper's mixture of lam own and 1 - lam pooled data.

    1 / (lam^2 / m_k + (1 - lam)^2 / m_C), from arXiv 2002.10619, Lemma 3. It is m_k + m_C at its largest.

    >>> effective_rows(0.1, 100, 900)
    1000.0
    """
    if not 0 <= lam <= 1:
        raise BadValue("lam", lam, "a number in [0, 1]")
    _positive(own_rows=own_rows, pool_rows=pool_rows)
    return own_rows * pool_rows / (lam**2 * pool_rows + (1 - lam) ** 2 * own_rows)


class DapperSteps(NamedTuple):
    """How to train Dapper by single examples: pool rows per own row, step size, steps, and the excess to expect."""

    ratio: int
    lr: float
    steps: int
    excess: float


def dapper_recipe(
    lam: float, own_rows: int, pool_rows: float, *, convexity: float, gradient: float, size: float
) -> DapperSteps:
    """Theorem 4 of arXiv 2002.10619, for losses of strong convexity mu, gradients up to G and a domain of size R.

    r >= G^2 (4 G / mu + 2 R)^2, step min(2 G lam / (mu (1 - lam)), R) / (G sqrt(r m_k)), r m_k steps; the excess of the
    mixed loss is then at most sqrt(lam^2 / m_k + (1 - lam)^2 / m_C).
    """
    _positive(own_rows=own_rows, convexity=convexity, gradient=gradient, size=size)
    excess = effective_rows(lam, own_rows, pool_rows) ** -0.5
    ratio = math.ceil(gradient**2 * (4 * gradient / convexity + 2 * size) ** 2)
    reach = size if lam == 1 else min(2 * gradient * lam / (convexity * (1 - lam)), size)
    return DapperSteps(ratio, reach / (gradient * math.sqrt(ratio * own_rows)), ratio * own_rows, excess)


def skewness(lam: Any, rows: Any) -> float:
    """sum_k lam_k^2 / (m_k / m): 1 where the domain weights lam follow the rows, more elsewhere.

    It scales the m^-1/2 of the agnostic bound of arXiv 2002.10619.
    """
    weights, counts = as_law("lam", lam), np.asarray(rows, float)
    if counts.shape != weights.shape or not (counts > 0).all():
        given = f"{counts.size} from {counts.min(initial=math.inf):g} on"
        raise BadValue("rows", given, f"a positive number for each of the {weights.size} weights")
    return float((weights**2 * counts.sum() / counts).sum())


class Moments(NamedTuple):
    """E[x x'], E[x y] and E[y^2] of a client: all that squared losses of linear models depend on."""

    xx: NDArray[Any]
    xy: NDArray[Any]
    yy: float


def moments(x: Any, y: Any) -> Moments:
    """The moments of examples; give x a column of ones for models with a bias."""
    rows, targets = np.asarray(x, float).reshape(len(y), -1), np.asarray(y, float).reshape(-1)
    return Moments(rows.T @ rows / len(rows), rows.T @ targets / len(rows), float(targets @ targets) / len(rows))


def discrepancy_linear(one: Moments, other: Moments, *, radius: float) -> Discrepancy:
    """max over |w| <= radius of |E1 (y - w'x)^2 - E2 (y - w'x)^2|, from moments alone. Exact.

    The difference is w'A w - 2 b'w + c with the differences A, b, c of the moments: a trust-region problem per sign.
    """
    _positive(radius=radius)
    if np.shape(one.xx) != np.shape(other.xx):
        raise BadValue("other", f"{len(other.xy)} inputs", f"of the {len(one.xy)} inputs of one")
    curvature, axes = np.linalg.eigh(one.xx - other.xx)
    gradient, offset = axes.T @ (one.xy - other.xy), one.yy - other.yy
    lowest = _least_in_ball(curvature, gradient, radius) + offset
    highest = -_least_in_ball(-curvature, -gradient, radius) + offset
    return Discrepancy(float(max(highest, -lowest)), exact=True)


def _least_in_ball(curvature: NDArray[Any], gradient: NDArray[Any], radius: float) -> float:
    """min over |w| <= radius of sum_i a_i w_i^2 - 2 b_i w_i.

    Equal, also where the problem is not convex, to its dual: the maximum over mu >= max(0, -min a) of
    -sum_i b_i^2 / (a_i + mu) - mu radius^2. The dual is concave and needs no special hard case (b_i = 0 at the
    least a_i): its maximum is then at the border, where those terms count as 0.
    """

    def point(mu: float) -> NDArray[Any]:
        gap = curvature + mu
        return np.divide(gradient, gap, out=np.zeros_like(gradient), where=gap > 0)

    def rise(mu: float) -> float:
        return float((point(mu) ** 2).sum()) - radius**2

    low = max(0.0, float((np.abs(gradient) / radius - curvature).max()))  # no term alone leaves the ball
    high = max(0.0, -float(curvature.min())) + 2 * float(np.linalg.norm(gradient)) / radius
    mu = low if rise(low) <= 0 else brentq(rise, low, high, xtol=1e-15 * high)
    return float(-(gradient * point(mu)).sum()) - mu * radius**2


def discrepancy_binary(one: Examples, other: Examples) -> Discrepancy:
    """max over linear classifiers of the difference in 0-1 loss (labels 0 and 1), estimated from below.

    L1 - L2 = L1 + (L2 with flipped labels) - 1: a logistic regression on true labels of one and flipped labels of
    the other finds a direction, and the threshold along it is exact. With h the class holds its opposite, whose
    difference has the other sign: one fit serves both.
    """
    x, y = (np.concatenate(parts) for parts in zip(_binary(*one), _binary(*other), strict=True))
    sign = np.repeat([1, -1], [len(one[1]), len(other[1])])
    share = np.repeat([1 / len(one[1]), 1 / len(other[1])], [len(one[1]), len(other[1])])
    scores = _separate(x, np.where(sign > 0, y, 1 - y), share)
    order = np.argsort(scores)
    scores, labels, loss = scores[order], y[order], (sign * share)[order]
    # Predict 1 above a threshold. Below all rows only zeros are wrong; passing a row moves its own loss.
    differences = loss[labels == 0].sum() + np.append(0.0, np.cumsum(np.where(labels == 1, loss, -loss)))
    between = np.concatenate([[True], np.diff(scores) > 0, [True]])  # equal scores are passed together
    return Discrepancy(float(np.abs(differences[between]).max()), exact=False)


def _binary(x: Any, y: Any) -> Examples:
    labels = np.asarray(y).reshape(-1)
    if not len(labels) or not np.isin(labels, [0, 1]).all():
        raise BadValue("y", np.unique(labels).tolist()[:5], "labels 0 and 1, at least one")
    return np.asarray(x, float).reshape(len(labels), -1), labels.astype(int)


def _separate(x: NDArray[Any], labels: NDArray[Any], share: NDArray[Any]) -> NDArray[Any]:
    """Scores of the rows along the direction that logistic regression finds; all 0 where there is one label."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(labels)) == 1:
        return np.zeros(len(labels))
    spread = x.std(axis=0)
    scaled = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    fit = LogisticRegression(C=1000.0, max_iter=1000).fit(scaled, labels, sample_weight=share)
    return scaled @ fit.coef_[0]


def discrepancy_model(
    model: Model, start: Weights, one: Examples, other: Examples, *, ceiling: float, plan: Plan = ASCENT
) -> Discrepancy:
    """max over a model's weights of the difference in loss, by gradient ascent from ``start``: from below.

    Losses count up to ``ceiling`` and are divided by it, so that they lie in [0, 1]. Both signs are climbed
    with full batches, ``plan.steps`` (or ``plan.epochs``) times, and the largest difference on the way is kept.
    """
    _positive(ceiling=ceiling)
    pair = [tuple(map(jnp.asarray, examples)) for examples in (one, other)]
    if all(bool((model.loss(model.apply(start, x), y) >= ceiling).all()) for x, y in pair):
        raise BadValue("ceiling", ceiling, "above some loss at the start: beyond it there is no gradient to climb")
    optimizer = plan.optimizer(plan.lr)

    def mean_loss(params: Tree, x: Any, y: Any) -> Any:
        return jnp.minimum(model.loss(model.apply(start._replace(params=params), x), y) / ceiling, 1.0).mean()

    def climb(sign: Any) -> Any:
        def fall(params: Tree) -> Any:
            return -sign * (mean_loss(params, *pair[0]) - mean_loss(params, *pair[1]))

        def step(state: Any, _: None) -> Any:
            params, memory = state
            value, gradient = jax.value_and_grad(fall)(params)
            updates, memory = optimizer.update(gradient, memory, params)
            return (optax.apply_updates(params, updates), memory), -value

        steps = plan.epochs if plan.steps is None else plan.steps
        (params, _), seen = jax.lax.scan(step, (start.params, optimizer.init(start.params)), length=steps)
        return jnp.maximum(seen.max(initial=0.0), -fall(params))

    return Discrepancy(float(jax.lax.map(climb, jnp.array([1.0, -1.0])).max()), exact=False)


def complexity(dim: float, num_rows: float, num_classes: float) -> float:
    """sqrt((d q / m) log(e m / d)): q classes of pseudo-dimension d that share m rows."""
    return math.sqrt(dim * num_classes / num_rows * math.log(math.e * num_rows / dim))


def check_risk(delta: float) -> None:
    """Refuse a risk outside (0, 1)."""
    if not 0 < delta < 1:
        raise BadValue("delta", delta, "a number in (0, 1)")


def _positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise BadValue(name, number, "a positive number")
