"""Mapper: the predictions of a common model and of one's own, mixed.

    h_k  =  (1 - lam_k) h_common  +  lam_k h_own          (probabilities, in log space; or predicted numbers)

The own model starts at the common one and is trained by the client alone. On the rows it was trained on lam would always
be 1; so lam is found by cross-fitting: h_own of all folds but one predicts that one, and lam maximizes the likelihood of
all those predictions, which is concave in lam. Then the own model is fitted to all rows. ``lam`` is

    per_client   that maximum
    global       one lam for all, which maximizes the sum over clients (asked in a closing round)
    shrunk       the mean of lam_k given the client's rows and a Beta prior, fitted to all clients in a closing round
                 (empirical Bayes). Mixing over the posterior of lam is mixing at its mean.
    a number     in [0, 1]

Trained separately, the common model is that of the base. Trained jointly (``joint``), every row counts for the common
model by its responsibility r = (1 - lam) h_common / h_k, as in the EM algorithm: rows that the own model explains no
longer move the common one. In training lam is each client's own maximum, unless it is a number. The own model and lam stay
with the client.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization, arXiv 2002.10619, section 6 and appendix E. The paper
searches lam on a grid; here it is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.errors import Unsupported, require_least
from plures.local import outputs_of
from plures.method import ALONE, Method, stateless, then
from plures.personalize.base_checks import check_lam, needs_weights
from plures.personalize.local_models import LocalModel, local_model
from plures.personalize.mixtures import MixtureEvidence, best_mixture, evidence, kind_of, mixture
from plures.registry import Limit, personalizer
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights
from plures.wrap.closing import surveyed
from plures.wrap.cross_validation import RowFolds, folds_of

CHOICES = ("shrunk", "global", "per_client")
GRID = np.linspace(0.0, 1.0, 101)


class MixedModels(NamedTuple):
    """A client's two models, the share of its own one, and whether its rows told anything of that share."""

    common: Weights
    own: Tree
    lam: Array
    known: Array


@personalizer(
    title="Mapper",
    paper="arXiv:2002.10619",
    degree="lam",
    limits=[
        Limit("no share for the own model: the base itself", {"lam": 0.0}, same_served_as="fedavg"),
        Limit("an own model that never trained: the base itself", {"epochs": 0}, same_served_as="fedavg"),
    ],
)
def mapper(
    base: Method,
    *,
    lam: float | str = "shrunk",
    local: str | LocalModel = "tuned",
    plan: Plan | None = None,
    epochs: int = 1,
    lr: float | None = None,
    folds: int = 5,
    joint: bool = False,
    warm: int = 0,
) -> Method:
    """The base's predictions mixed with those of a model of the client's own.

    Args:
        lam: Share of the own model, a number in [0, 1] (0 is the base, 1 the own model), or how it is found: "per_client" (what
            makes the client's held-out rows likeliest), "global" (one for all clients) or "shrunk" (each client's, given a
            prior fitted to all clients).
        local: The own model: "tuned" (the base's, trained on by the client), or for densities "counts", "smoothed" (counts
            plus 1/2) or "symbol" (the most frequent one); in Python any ``LocalModel``.
        plan: How the own model is tuned; None is the base's plan.
        epochs: Epochs of that tuning; 0 is the base itself.
        lr: Step size of that tuning; None is the plan's.
        folds: Folds of the cross-fitting by which the own model is judged, 2 or more; more cost more training.
        joint: Whether the base trains on rows weighted by how much the own model leaves unexplained, instead of alike.
        warm: Rounds of the base as it is before joint training.
    """
    needs_weights("mapper", base)
    kind_of(base.model)
    check_lam(lam, CHOICES)
    require_least(0, epochs=epochs, warm=warm)
    require_least(2, folds=folds)
    asks = isinstance(lam, str) and lam != "per_client"
    if asks and base.join is not stateless:
        raise Unsupported(
            f"lam={lam} asks all clients in a closing round, which needs a base without private state; "
            "use lam=per_client"
        )
    if joint:
        _check_joint(base)
    elif warm:
        raise Unsupported("warm is the number of rounds before joint training; add joint=true")
    own = plan or base.plan
    tuned = replace(own, epochs=epochs, steps=None, lr=own.lr if lr is None else lr)
    crossfit = CrossFitting(base.model, local_model(local, base.model, tuned), folds)
    trained = _train_jointly(base, crossfit, lam, warm) if joint else base
    if asks:
        trained = _ask_for_prior(trained, crossfit, one_for_all=lam == "global")
    return _serve_mixtures(trained, crossfit, lam, shares_form=local == "tuned")


@dataclass(frozen=True, eq=False)
class CrossFitting:
    """How a client fits its own model, and finds out what it is worth."""

    model: Model
    local: LocalModel
    folds: int

    def cross_fit(self, key: Key, common: Weights, data: Data) -> tuple[RowFolds, MixtureEvidence]:
        """The client's rows in folds, and what all held rows say for models fitted to the others.

        Evidence has a row for every row of every fold, one fold after the other.
        """
        parts = folds_of(key, data.train, self.folds)

        def one(fold: Array) -> tuple[Array, ...]:
            held = parts.held(fold)
            fitted = self.local.fit(key, common, parts.fit(fold))
            pair = outputs_of(self.model.apply, common, held), outputs_of(self.local.outputs, fitted, held)
            batch = held.all()
            return *pair, batch.y, batch.mask

        found = jax.vmap(one)(jnp.arange(self.folds))
        # All folds are put together first: numbers are scaled by the noise of all the client's rows.
        return parts, evidence(self.model, *(leaf.reshape(-1, *leaf.shape[2:]) for leaf in found))


def _serve_mixtures(method: Method, crossfit: CrossFitting, lam: float | str, *, shares_form: bool) -> Method:
    """``method`` serving mixtures; after a survey the offer holds what was found."""
    model, asked = crossfit.model, isinstance(lam, str) and lam != "per_client"

    def serve(key: Key, offer: Tree, private: Tree, data: Data) -> MixedModels:
        key_base, key_own, key_folds = jax.random.split(key, 3)
        common = method.serve(key_base, offer, private, data)
        share, known = _share(crossfit, lam, offer.found if asked else None, key_folds, common, data)
        own = crossfit.local.fit(key_own, common, data.train)
        return MixedModels(common, own, jnp.where(_sound(own) & jnp.isfinite(share), share, 0.0), known)

    def predict(served: MixedModels, x: Array) -> Array:
        return mixture(model, model.apply(served.common, x), crossfit.local.outputs(served.own, x), served.lam)

    def unmixed(common: Weights) -> MixedModels:
        return MixedModels(common, common, jnp.zeros(()), jnp.zeros((), bool))

    return replace(
        method,
        serve=serve,
        predict=predict,
        views=replace(
            method.views,
            common=method.views.common_as(unmixed) if shares_form else None,
            facts=lambda offer, private, served: {"lam": served.lam, "lam_known": served.known},
        ),
        traits=replace(method.traits, lanes=crossfit.folds),
    )


def _sound(own: Tree) -> Array:
    """Whether a fitted model holds no NaN and no +inf; a log-probability may be -inf."""
    checks = [~(jnp.isnan(leaf) | jnp.isposinf(leaf)).any() for leaf in jax.tree.leaves(own) if tree.is_float(leaf)]
    return jnp.stack(checks).all() if checks else jnp.asarray(True)


def _share(
    crossfit: CrossFitting, lam: float | str, prior: Array | None, key: Key, common: Weights, data: Data
) -> tuple[Array, Array]:
    """The share of the client's own model, and whether its rows told anything of it."""
    if not isinstance(lam, str):
        return jnp.asarray(lam, jnp.float32), jnp.asarray(True)
    if lam == "global":
        assert prior is not None
        return prior @ jnp.asarray(GRID, jnp.float32), jnp.asarray(True)
    found = crossfit.cross_fit(key, common, data)[1]
    if prior is None:
        return best_mixture(found), found.known()
    return posterior_mean(curve(found), prior), found.known()


def curve(found: MixtureEvidence) -> Array:
    """The log-likelihood of the rows at every lam of the grid, up to a constant."""
    return jax.vmap(found.total)(jnp.asarray(GRID, jnp.float32))


def posterior_mean(log_likelihood: Array, prior: Array) -> Array:
    """The mean of lam given the rows' log-likelihood and the prior's probabilities on the grid."""
    return jax.nn.softmax(log_likelihood + jnp.log(prior)) @ jnp.asarray(GRID, jnp.float32)


def _ask_for_prior(base: Method, crossfit: CrossFitting, *, one_for_all: bool) -> Method:
    """``base`` closed by a round in which clients tell how likely their rows are at every lam."""

    def ask(key: Key, offer: Tree, data: Data) -> tuple[Array, Info]:
        common = base.serve(key, offer, (), data)
        found = crossfit.cross_fit(jax.random.fold_in(key, 1), common, data)[1]
        values = curve(found)
        # Exactly flat where the rows tell nothing, free of what rounding would make of it.
        return jnp.where(found.known() & jnp.isfinite(values).all(), values, 0.0), {"lam": best_mixture(found)}

    def gather(found: Array, answers: Array, weights: Array, uids: Array) -> Array:
        fine = jnp.where(((weights > 0) & jnp.isfinite(answers).all(1))[:, None], answers, 0.0)
        if one_for_all:
            return jax.nn.one_hot(fine.sum(0).argmax(), len(GRID))
        return fit_prior(fine)

    return surveyed(base, blank=lambda key, num_clients: jnp.full(len(GRID), 1 / len(GRID)), ask=ask, gather=gather)


def fit_prior(curves: Array) -> Array:
    """The Beta prior under which all clients' rows are likeliest, as probabilities on the grid.

    ``curves`` are (clients, grid) log-likelihoods; a flat one says nothing. The prior is the best of a table, the flat one
    where nobody says anything.
    """
    table, told = jnp.asarray(_priors()), jnp.ptp(curves, axis=1) > 0

    def fit(prior: Array) -> Array:
        return jnp.where(told, jax.nn.logsumexp(curves + jnp.log(prior), axis=1), 0.0).sum()

    # One prior after the other: all at once they would need the memory of 229 times the curves.
    fits = jax.lax.map(fit, table)
    return table[fits.argmax()]


def _priors() -> np.ndarray:
    """Probabilities of the grid's cells under Beta priors: 19 means times 12 strengths, the flat one first."""
    from scipy.stats import beta  # slow to import, and few need it

    ends = np.clip(np.append(GRID - 0.005, 1.0), 0.0, 1.0)
    means, strengths = np.linspace(0.05, 0.95, 19), np.geomspace(0.25, 512.0, 12)
    shapes = [(1.0, 1.0), *((mean * size, (1 - mean) * size) for mean in means for size in strengths)]
    cells = np.array([np.diff(beta.cdf(ends, *shape)) for shape in shapes])
    return np.maximum(cells, 1e-30).astype(np.float32)


def _train_jointly(base: Method, crossfit: CrossFitting, lam: float | str, warm: int) -> Method:
    """``base`` training on rows weighted by how much the common model is responsible for them."""

    def train(key: Key, download: Tree, private: Tree, data: Data) -> tuple[Tree, Tree, Info]:
        key_base, key_folds = jax.random.split(key)
        common = base.serve(key_base, download, private, data)
        parts, found = crossfit.cross_fit(key_folds, common, data)
        share = jnp.asarray(lam, jnp.float32) if not isinstance(lam, str) else best_mixture(found)
        weight = parts.of_rows(found.share(share).reshape(crossfit.folds, -1))
        weighted = replace(data, train=replace(parts.rows, weight=weight))
        upload, private, info = base.train(key_base, download, private, weighted)
        return upload, private, {**info, "lam": share}

    main = replace(base, train=train, phases=ALONE, traits=replace(base.traits, lanes=crossfit.folds))
    if warm:
        return then(base, warm, main)
    return replace(main, phases=base.phases)


def _check_joint(base: Method) -> None:
    """Refuse a base that cannot be trained jointly."""
    if kind_of(base.model) == "numbers":
        raise Unsupported("joint training needs a model that predicts probabilities; this one predicts numbers")
    if base.phases[-1].rounds is not None:
        raise Unsupported("joint training needs a base whose last round trains, such as fedavg or hypcluster")
    if base.offer is not None:
        raise Unsupported("joint training needs a base that trains what it serves, such as fedavg or hypcluster")
