"""Two models' predictions put together: mixtures, how much each explains, and one as the other's target."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures.errors import Unsupported
from plures.local import masked_mean
from plures.models.build import logistic_loss
from plures.types import Model

FAR = 50.0  # log-ratios are cut off here: exp(50) is beyond what any client's rows could tell


def kind_of(model: Model) -> str:
    """What the outputs stand for: "classes" (logits), "binary" (one logit) or "numbers"."""
    if model.task in ("classification", "density", "sequence"):
        return "classes"
    if model.task == "regression":
        return "numbers"
    if model.loss is logistic_loss:
        return "binary"
    raise Unsupported("this model puts out margins, not probabilities or numbers; predictions of it do not mix")


def mixture(model: Model, common: Array, own: Array, lam: Array) -> Array:
    """Outputs that stand for (1 - lam) times the common prediction plus lam times the own one.

    In log space, so that lam = 0 and lam = 1 give -inf and never NaN. Logits of classes keep the common model's scale:
    at lam = 0 they are its own.
    """
    kind = kind_of(model)
    if kind == "numbers":
        return (1 - lam) * common + jnp.where(lam > 0, lam * own, 0.0)
    own = jnp.where(lam > 0, own, 0.0)  # a share of 0 hides a model that broke down
    first, second = jnp.log1p(-lam), jnp.log(lam)
    if kind == "classes":
        scale = jax.nn.logsumexp(common, axis=-1, keepdims=True)
        return jnp.logaddexp(first + common, second + jax.nn.log_softmax(own) + scale)
    yes, no = (
        jnp.logaddexp(first + jax.nn.log_sigmoid(sign * common), second + jax.nn.log_sigmoid(sign * own))
        for sign in (1, -1)
    )
    return yes - no


def soft_loss(model: Model, outputs: Array, targets: Array) -> Array:
    """The expected loss of each row if its label is drawn from what another model predicts.

    Cross-entropy with the other's probabilities: the divergence KL(other || this) and a constant. For numbers half
    the squared distance, which is the same for Gaussian noise.
    """
    kind = kind_of(model)
    if kind == "numbers":
        return model.loss(outputs, targets)
    if kind == "binary":
        return jax.nn.softplus(outputs) - jax.nn.sigmoid(targets) * outputs
    losses = -(jax.nn.softmax(targets) * jax.nn.log_softmax(outputs)).sum(-1)
    return losses.reshape(losses.shape[0], -1).mean(-1)


class MixtureEvidence(NamedTuple):
    """What rows say for the own model: with l(lam) a row's log-likelihood up to a constant,

    l(lam) = log(1 - lam + lam exp(gain))            for probabilities, gain = log p_own - log p_common
    l(lam) = lam gain - lam^2 square / 2             for numbers
    """

    gain: Array  # (rows, ...)
    square: Array | None
    mask: Array  # (rows,)

    def gradient(self, lam: Array) -> Array:
        """The mean derivative of l at ``lam``; it falls with ``lam``."""
        if self.square is not None:
            return self._mean(self.gain - lam * self.square)
        ratio = jnp.exp(self.gain)
        return self._mean((ratio - 1) / (1 - lam + lam * ratio))

    def total(self, lam: Array) -> Array:
        """The sum of l over rows."""
        if self.square is not None:
            values = lam * self.gain - 0.5 * lam**2 * self.square
        else:
            values = jnp.logaddexp(jnp.log1p(-lam), jnp.log(lam) + self.gain)
        return self._mean(values) * self.mask.sum()

    def share(self, lam: Array) -> Array:
        """The common model's responsibility for each row: (1 - lam) p_common / mixture."""
        share = jax.nn.sigmoid(jnp.log1p(-lam) - jnp.log(lam) - self.gain)
        return share.reshape(share.shape[0], -1).mean(-1)

    def known(self) -> Array:
        """Whether the rows tell anything at all of lam: the two models differ on one of them."""
        return (self.mask & (jnp.abs(_rows(self.gain)).max(-1) > 1e-6)).any()

    def _mean(self, values: Array) -> Array:
        return masked_mean(_rows(values).mean(-1), self.mask)


def evidence(model: Model, common: Array, own: Array, y: Array, mask: Array) -> MixtureEvidence:
    """What rows say for the own model's outputs against the common one's."""
    kind = kind_of(model)
    if kind == "numbers":
        step, left = _rows(own - common), _rows(y - common)
        noise = jnp.maximum(masked_mean((left**2).mean(-1), mask), 1e-12)
        return MixtureEvidence((left * step).sum(-1) / noise, (step**2).sum(-1) / noise, mask)
    if kind == "binary":
        sign = jnp.where(y > 0, 1, -1)
        gain = jax.nn.log_sigmoid(sign * own) - jax.nn.log_sigmoid(sign * common)
    else:
        first, second = (_at_label(jax.nn.log_softmax(one), y) for one in (common, own))
        gain = second - first
    # An own model that broke down explains nothing.
    return MixtureEvidence(jnp.clip(jnp.where(jnp.isnan(gain), -FAR, gain), -FAR, FAR), None, mask)


def best_mixture(found: MixtureEvidence) -> Array:
    """The lam in [0, 1] of the largest likelihood, by bisection; 0 where rows tell nothing.

    The log-likelihood is concave in lam, so its gradient changes sign once at most.
    """

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = (ends[0] + ends[1]) / 2
        up = found.gradient(middle) > 0
        return jnp.where(up, middle, ends[0]), jnp.where(up, ends[1], middle)

    low, high = jax.lax.fori_loop(0, 40, halve, (jnp.zeros(()), jnp.ones(())))
    inside = jnp.where(found.gradient(jnp.ones(())) >= 0, 1.0, (low + high) / 2)
    return jnp.where(found.gradient(jnp.zeros(())) <= 0, 0.0, inside)


def _at_label(log_probs: Array, y: Array) -> Array:
    return jnp.take_along_axis(log_probs, y[..., None].astype(jnp.int32), axis=-1)[..., 0]


def _rows(values: Array) -> Array:
    return values.reshape(values.shape[0], -1)
