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
longer pull at the common one. In training lam is each client's own maximum, unless it is a number. The own model and lam stay
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
from scipy.stats import beta

from plures import tree
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.local import outputs_of
from plures.personalize._check import check_shares, needs_weights
from plures.personalize._folds import Folds, folds_of
from plures.personalize._local_models import Local, local_model
from plures.personalize._predictions import Evidence, best_mixture, evidence, kind_of, mixture
from plures.registry import Limit, personalizer
from plures.survey import surveyed
from plures.types import Data, Info, Key, Method, Model, Plan, Tree, Weights, stateless, then

CHOICES = ("shrunk", "global", "per_client")
GRID = np.linspace(0.0, 1.0, 101)


class Mixed(NamedTuple):
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
    local: str | Local = "tuned",
    plan: Plan | None = None,
    epochs: int = 1,
    lr: float | None = None,
    folds: int = 5,
    joint: bool = False,
    warm: int = 0,
) -> Method:
    """The base's predictions mixed with those of a model of the client's own.

    ``local`` is the own model: "tuned", or for densities "counts", "smoothed" or "symbol"; in Python any ``Local``. With ``joint``
    the base trains on rows weighted by their responsibility, after ``warm`` rounds as it is.
    """
    needs_weights("mapper", base)
    kind_of(base.model)
    _check(lam, epochs, folds, joint, warm, base)
    own = plan or base.plan
    tuned = replace(own, epochs=epochs, steps=None, lr=own.lr if lr is None else lr)
    fitting = Fitting(base.model, local_model(local, base.model, tuned), folds)
    trained = _jointly(base, fitting, lam, warm) if joint else base
    if isinstance(lam, str) and lam != "per_client":
        trained = _asked(trained, fitting, one_for_all=lam == "global")
    return _serving(trained, fitting, lam, shares_form=local == "tuned")


@dataclass(frozen=True, eq=False)
class Fitting:
    """How a client fits its own model, and finds out what it is worth."""

    model: Model
    local: Local
    folds: int

    def crossed(self, key: Key, common: Weights, data: Data) -> tuple[Folds, Evidence]:
        """The client's rows in folds, and what all held rows say for models fitted to the others.

        Evidence has a row for every place of every fold, one fold after the other.
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


def _serving(method: Method, fitting: Fitting, lam: float | str, *, shares_form: bool) -> Method:
    """``method`` serving mixtures; after a survey the offer holds what was found."""
    model, asked = fitting.model, isinstance(lam, str) and lam != "per_client"

    def serve(key: Key, offer: Tree, private: Tree, data: Data) -> Mixed:
        key_base, key_own, key_folds = jax.random.split(key, 3)
        common = method.serve(key_base, offer, private, data)
        share, known = _share(fitting, lam, offer.found if asked else None, key_folds, common, data)
        own = fitting.local.fit(key_own, common, data.train)
        return Mixed(common, own, jnp.where(_sound(own) & jnp.isfinite(share), share, 0.0), known)

    def predict(served: Mixed, x: Array) -> Array:
        return mixture(model, model.apply(served.common, x), fitting.local.outputs(served.own, x), served.lam)

    def same_for_all(offer: Tree) -> Mixed:
        assert method.common is not None
        weights = method.common(offer)
        return Mixed(weights, weights, jnp.zeros(()), jnp.zeros((), bool))

    return replace(
        method,
        serve=serve,
        predict=predict,
        common=same_for_all if shares_form and method.common is not None else None,
        facts=lambda offer, private, served: {"lam": served.lam, "lam_known": served.known},
        lanes=fitting.folds,
    )


def _sound(own: Tree) -> Array:
    """Whether a fitted model holds no NaN and no +inf; a log-probability may be -inf."""
    checks = [~(jnp.isnan(leaf) | jnp.isposinf(leaf)).any() for leaf in jax.tree.leaves(own) if tree.is_float(leaf)]
    return jnp.stack(checks).all() if checks else jnp.asarray(True)


def _share(
    fitting: Fitting, lam: float | str, prior: Array | None, key: Key, common: Weights, data: Data
) -> tuple[Array, Array]:
    """The share of the client's own model, and whether its rows told anything of it."""
    if not isinstance(lam, str):
        return jnp.asarray(lam, jnp.float32), jnp.asarray(True)
    if lam == "global":
        assert prior is not None
        return prior @ jnp.asarray(GRID, jnp.float32), jnp.asarray(True)
    found = fitting.crossed(key, common, data)[1]
    if prior is None:
        return best_mixture(found), found.known()
    return posterior_mean(curve(found), prior), found.known()


def curve(found: Evidence) -> Array:
    """The log-likelihood of the rows at every lam of the grid, up to a constant."""
    return jax.vmap(found.total)(jnp.asarray(GRID, jnp.float32))


def posterior_mean(log_likelihood: Array, prior: Array) -> Array:
    """The mean of lam given the rows' log-likelihood and the prior's probabilities on the grid."""
    return jax.nn.softmax(log_likelihood + jnp.log(prior)) @ jnp.asarray(GRID, jnp.float32)


def _asked(base: Method, fitting: Fitting, *, one_for_all: bool) -> Method:
    """``base`` closed by a round in which clients tell how likely their rows are at every lam."""

    def blank(key: Key, num_clients: int) -> Array:
        return jnp.full(len(GRID), 1 / len(GRID))

    def ask(key: Key, offer: Tree, data: Data) -> tuple[Array, Info]:
        common = base.serve(key, offer, (), data)
        found = fitting.crossed(jax.random.fold_in(key, 1), common, data)[1]
        values = curve(found)
        # Exactly flat where the rows tell nothing, free of what rounding would make of it.
        return jnp.where(found.known() & jnp.isfinite(values).all(), values, 0.0), {"lam": best_mixture(found)}

    def gather(found: Array, answers: Array, weights: Array, uids: Array) -> Array:
        fine = jnp.where(((weights > 0) & jnp.isfinite(answers).all(1))[:, None], answers, 0.0)
        if one_for_all:
            return jax.nn.one_hot(fine.sum(0).argmax(), len(GRID))
        return fitted_prior(fine)

    return surveyed(base, blank=blank, ask=ask, gather=gather)


def fitted_prior(curves: Array) -> Array:
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
    ends = np.clip(np.append(GRID - 0.005, 1.0), 0.0, 1.0)
    means, strengths = np.linspace(0.05, 0.95, 19), np.geomspace(0.25, 512.0, 12)
    shapes = [(1.0, 1.0), *((mean * size, (1 - mean) * size) for mean in means for size in strengths)]
    cells = np.array([np.diff(beta.cdf(ends, *shape)) for shape in shapes])
    return np.maximum(cells, 1e-30).astype(np.float32)


def _jointly(base: Method, fitting: Fitting, lam: float | str, warm: int) -> Method:
    """``base`` training on rows weighted by how much the common model is responsible for them."""

    def train(key: Key, download: Tree, private: Tree, data: Data) -> tuple[Tree, Tree, Info]:
        key_base, key_folds = jax.random.split(key)
        common = base.serve(key_base, download, private, data)
        parts, found = fitting.crossed(key_folds, common, data)
        share = jnp.asarray(lam, jnp.float32) if not isinstance(lam, str) else best_mixture(found)
        weight = parts.of_rows(found.share(share).reshape(fitting.folds, -1))
        upload, private, info = base.train(
            key_base, download, private, replace(data, train=replace(parts.rows, weight=weight))
        )
        return upload, private, {**info, "lam": share}

    main = replace(base, train=train, prelude=None, lanes=fitting.folds)
    if warm:
        return then(base, warm, main)
    return replace(main, prelude=base.prelude)


def _check(lam: float | str, epochs: int, folds: int, joint: bool, warm: int, base: Method) -> None:
    if isinstance(lam, str) and lam not in CHOICES:
        raise UnknownChoice("lam (besides numbers in [0, 1])", lam, CHOICES)
    if not isinstance(lam, str):
        check_shares("lam", (lam,))
    for name, number, least in (("epochs", epochs, 0), ("folds", folds, 2), ("warm", warm, 0)):
        if number < least:
            raise BadValue(name, number, f"{least} or more")
    if isinstance(lam, str) and lam != "per_client" and base.join is not stateless:
        raise Unsupported(
            f"lam={lam} asks all clients in a closing round, which needs a base without private state; "
            "use lam=per_client"
        )
    if warm and not joint:
        raise Unsupported("warm is the number of rounds before joint training; add joint=true")
    if joint and kind_of(base.model) == "numbers":
        raise Unsupported("joint training needs a model that predicts probabilities; this one predicts numbers")
    if joint and base.prelude is not None and base.prelude.leave:
        raise Unsupported("joint training needs a base whose last round trains, such as fedavg or hypcluster")
    if joint and base.offer is not None:
        raise Unsupported("joint training needs a base that trains what it serves, such as fedavg or hypcluster")
