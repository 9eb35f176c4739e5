"""What is done with normalization layers: a policy that any method can be given, and that its record tells.

    share        scales, shifts and running statistics travel and are averaged like all else
    local        none of them travels: every client trains its own (FedBN, Li et al., arXiv 2102.07623)
    affine       scales and shifts are shared, running statistics stay with the client (SiloBN, Andreux et al., arXiv 2008.07424)
    recalibrate  all is shared, and statistics are computed from the client's own rows when it is served

A client that never trained has no statistics of its own; with "local" and "affine" it is served with those of its own rows
under the model it is offered, as with "recalibrate" (its scales and shifts are then untrained ones: with "local" nobody's ever
travel). Group norm has no statistics: for it, "affine" and "recalibrate" are refused.
"local" and "affine" are for methods whose uploads are updates of models; others are refused them by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from plures.errors import BadValue
from plures.method import Method
from plures.models.norm_layers import check_policy, has_statistics, recalibrated
from plures.models.parts import STATISTICS
from plures.types import Data, Key, Tree, Weights
from plures.wrap.private_parts import in_models, parted

SAID = {
    "share": "shared",
    "local": "private",
    "affine": "scales and shifts shared, statistics private",
    "recalibrate": "shared, statistics from the client's own rows",
}


def normalized(base: Method, policy: str, *, who: str = "") -> Method:
    """The base with its model's normalization layers treated as the policy says; ``who`` asks for it, in messages."""
    check_policy(base.model, policy, who=who)
    if base.traits.norm != "share":
        raise BadValue("norm", policy, f"share for a method that has a policy of its own ({base.traits.norm})")
    if policy == "share":
        return base

    def own(key: Key, weights: Weights, data: Data, new: Array) -> Weights:
        return recalibrated(base.model, key, weights, data.train, wanted=new)

    if policy != "recalibrate":
        welcome = own if policy == "affine" or has_statistics(base.model) else None
        method = parted(base, "norm" if policy == "local" else STATISTICS, welcome=welcome)
        return replace(method, traits=replace(method.traits, norm=policy))

    def serve(key: Key, offer: Tree, private: Tree, data: Data) -> Tree:
        served, key_own = base.serve(key, offer, private, data), jax.random.fold_in(key, 1)
        return in_models(base.model, served, lambda one: own(key_own, one, data, jnp.asarray(True)))

    return replace(base, serve=serve, traits=replace(base.traits, norm=policy))


def norm_said(policy: str) -> str:
    """What is done with normalization layers by methods without a policy of their own, in a sentence."""
    return f"normalization layers: {SAID[policy]}"


def norms_said(norms: Mapping[str, str]) -> str:
    """What methods do with normalization layers, in a sentence.

    >>> norms_said({"fedavg": "share", "fedbn": "local", "local_only": "local"})
    'normalization layers: shared (fedavg); private (fedbn, local_only)'
    """
    groups: dict[str, list[str]] = {}
    for name, policy in norms.items():
        groups.setdefault(policy, []).append(name)
    return "normalization layers: " + "; ".join(
        f"{SAID[one]} ({', '.join(names)})" for one, names in groups.items()
    )
