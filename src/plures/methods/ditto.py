"""Ditto: a personal model held near a jointly trained one.

    shared  w    minimizes  sum_k m_k L_k(w)                     (as FedAvg)
    own     v_k  minimizes  L_k(v_k) + (lam / 2) |v_k - w|^2

Li, Hu, Beirami, Smith: Ditto, ICML 2021. arXiv 2012.04221.
"""

from __future__ import annotations

from dataclasses import replace

import jax

from plures.errors import BadValue
from plures.local import near, sgd
from plures.methods.fedavg import fedavg
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Method, Model, Plan, Weights, keep_download, untraced


@method(
    title="Ditto",
    paper="arXiv:2012.04221",
    degree="lam",
    limits=[Limit("no pull: the own model trains alone", {"lam": 0.0}, same_served_as="local_only")],
)
def ditto(
    model: Model,
    *,
    plan: Plan = Plan(),
    lam: float = 0.1,
    server_lr: float = 1.0,
    momentum: float = 0.0,
    weighting: str = "examples",
    aggregate: str = "mean",
) -> Method:
    """Personal models regularized towards FedAvg's shared model, made by ``aggregate``."""
    if untraced(lam) and not lam >= 0:
        raise BadValue("lam", lam, "0 or more")
    base = fedavg(
        model, plan=plan, server_lr=server_lr, momentum=momentum, weighting=weighting, aggregate=aggregate
    )

    def train(key: Key, shared: Weights, own: Weights, data: Data) -> tuple[Weights, Weights, Info]:
        key_shared, key_own = jax.random.split(key)
        upload, _, info = base.train(key_shared, shared, (), data)
        own, more = sgd(key_own, own, data, plan, near(model, shared, lam))
        return upload, own, {**info, "steps": info["steps"] + more["steps"]}

    def serve(key: Key, shared: Weights, own: Weights, data: Data) -> Weights:
        return own

    return replace(base, train=train, join=keep_download, serve=serve)
