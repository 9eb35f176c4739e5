"""Ditto: a personal model held near a jointly trained one.

    shared  w    minimizes  sum_k m_k L_k(w)                     (as FedAvg)
    own     v_k  minimizes  L_k(v_k) + (lam / 2) |v_k - w|^2

Li, Hu, Beirami, Smith: Ditto, ICML 2021. arXiv 2012.04221.
"""

from __future__ import annotations

from dataclasses import replace

import jax

from plures.aggregate.averaging import Averaging
from plures.errors import require
from plures.local import near, sgd
from plures.method import Method, keep_download
from plures.methods.fedavg import fedavg
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Weights, untraced


@method(
    title="Ditto",
    paper="arXiv:2012.04221",
    degree="lam",
    limits=[Limit("no proximal term: the own model trains alone", {"lam": 0.0}, same_served_as="local_only")],
)
def ditto(model: Model, *, plan: Plan = Plan(), lam: float = 0.1, averaging: Averaging = Averaging()) -> Method:
    """Personal models regularized towards FedAvg's shared model, made by ``aggregate``.

    Args:
        plan: How clients train locally, the copy of the shared model and the own one alike.
        lam: Strength of the proximal term that holds the own model near the shared one, in the unit of curvature: 0
            trains alone, a large one (with steps that are short enough) serves the shared model.
    """
    require(not untraced(lam) or lam >= 0, "lam", lam, "0 or more")
    base = fedavg(model, plan=plan, averaging=averaging)

    def train(key: Key, shared: Weights, own: Weights, data: Data) -> tuple[Weights, Weights, Info]:
        key_shared, key_own = jax.random.split(key)
        upload, _, info = base.train(key_shared, shared, (), data)
        own, more = sgd(key_own, own, data, plan, near(model, shared, lam))
        return upload, own, {**info, "steps": info["steps"] + more["steps"]}

    return replace(base, train=train, join=keep_download, serve=lambda key, shared, own, data: own)
