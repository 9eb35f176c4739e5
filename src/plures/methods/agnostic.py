"""Agnostic federated averaging: one model that is good on the worst mixture of domains.

    min over w  max over lam in the simplex  sum_j lam_j L_j(w)

Every client belongs to one domain j. A round averages updates with weights proportional to

    lam_j m_k / N_j        (N_j: training rows of domain j in the last ``window`` rounds, this one included)

and moves lam towards domains with a high loss at w, before training: by exponentiated gradient,
lam_j <- lam_j exp(domain_lr L_j), or by a projected step, lam <- Proj(lam + domain_lr L).

Mohri, Sivek, Suresh: Agnostic Federated Learning, ICML 2019. Ro, Chen, Mathews, Mohri, Suresh, arXiv 2104.02748.
Three deviations: a client's step is that of FedAvg (their batches are divided by the whole client's weight, so that
step sizes mean something else); domains that nobody spoke for in a round keep their weight (theirs falls); and N_j
counts this round too (theirs does not, so a domain absent before has N_j = 0 and drowns all others). There is no
``aggregate``: a robust rule takes all clients alike, and the weights of the domains are what this method is about.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.errors import require, require_choice, require_least
from plures.local import mean_loss
from plures.method import Method
from plures.methods.fedavg import Server, fedavg
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights

RULES = ("exponentiated", "projected", "fixed")


class Domains(NamedTuple):
    """FedAvg's server, the weights of the domains, and how many rows each had in the last rounds."""

    base: Server
    lam: Array  # (domains,)
    counts: Array  # (window, domains), the newest first


class DomainUpload(NamedTuple):
    """An update, whose domain it is from, and the loss there before training."""

    update: Weights
    domain: Array
    loss: Array


@method(
    title="Agnostic FedAvg",
    paper="arXiv:2104.02748",
    limits=[Limit("one domain: plain FedAvg", {"num_domains": 1}, same_served_as="fedavg")],
)
def agnostic(
    model: Model,
    *,
    num_domains: int,
    plan: Plan = Plan(),
    server_lr: float = 1.0,
    momentum: float = 0.0,
    domain_lr: float = 0.05,
    rule: str = "exponentiated",
    window: int = 1,
) -> Method:
    """One global model for the worst mixture of domains; with ``num_domains=1`` domains are ignored.

    Args:
        num_domains: How many domains the data have; their clients say which they belong to.
        plan: How clients train locally.
        server_lr: How far the server goes along the mean update: 1 is plain averaging, less damps it.
        momentum: Share of the server's last step that is added to the next, in [0, 1); 0 is none.
        domain_lr: Step size of the weights of domains towards high losses; 0 keeps them equal.
        rule: How these weights move: "exponentiated" (times exp of the step), "projected" (onto the simplex) or
            "fixed" (not at all).
        window: Over how many of the last rounds the rows of a domain are counted.
    """
    require_choice("rule", rule, RULES)
    require(0 <= domain_lr < float("inf"), "domain_lr", domain_lr, "0 or more")
    require_least(1, num_domains=num_domains, window=window)
    base = fedavg(model, plan=plan, averaging=Averaging(server_lr=server_lr, momentum=momentum))

    def start(key: Key, num_clients: int) -> Domains:
        uniform = jnp.full(num_domains, 1.0 / num_domains)
        return Domains(base.start(key, num_clients), uniform, jnp.zeros((window, num_domains)))

    def train(key: Key, shared: Weights, private: Tree, data: Data) -> tuple[DomainUpload, Tree, Info]:
        update, private, info = base.train(key, shared, private, data)
        domain = jnp.clip(jnp.asarray(data.domain), 0, num_domains - 1)
        return DomainUpload(update, domain, mean_loss(model, model.apply, shared, data.train)), private, info

    def merge(server: Domains, uploads: DomainUpload, weights: Array, uids: Array) -> Domains:
        mine = jax.nn.one_hot(uploads.domain, num_domains) * weights[:, None]  # (clients, domains)
        counts = jnp.concatenate([mine.sum(0)[None], server.counts[:-1]])
        weight = server.lam / jnp.maximum(counts.sum(0), 1e-9)  # read only for domains that are here
        after = base.merge(server.base, uploads.update, mine @ weight, uids)
        # A lost upload may hold anything: its weight 0 must win against NaN.
        losses = jnp.where(weights > 0, uploads.loss, 0.0) @ mine / jnp.maximum(mine.sum(0), 1e-9)
        return Domains(after, move_weights(server.lam, losses, mine.sum(0) > 0, domain_lr, rule), counts)

    def model_after_training(shared: Weights, private: Tree, upload: DomainUpload) -> Weights:
        return tree.add(shared, upload.update)

    return replace(
        base,
        start=start,
        send=lambda server, uid: base.send(server.base, uid),
        train=train,
        merge=merge,
        views=replace(base.views, trained=model_after_training),
        traits=replace(base.traits, num_domains=num_domains if num_domains > 1 else 0),
    )


def move_weights(lam: Array, losses: Array, seen: Array, step: float, rule: str) -> Array:
    """The weights after one step towards high losses; domains not ``seen`` keep theirs, the others share the rest."""
    mass = jnp.where(seen, lam, 0.0).sum()
    if rule == "fixed":
        return lam
    if rule == "exponentiated":
        raised = jnp.where(seen, lam * jnp.exp(step * (losses - losses.max())), 0.0)
        return jnp.where(seen, mass * raised / jnp.maximum(raised.sum(), 1e-30), lam)
    # An absent domain lies far below the simplex's threshold, so the projection leaves it out.
    far = jnp.where(seen, lam + step * losses, -jnp.inf)
    return jnp.where(seen, mass * _on_simplex(far / jnp.maximum(mass, 1e-30)), lam)


def _on_simplex(values: Array) -> Array:
    """The point of the simplex nearest to the values; entries of -inf become 0."""
    finite = jnp.where(jnp.isfinite(values), values, -1e9)
    return optax.projections.projection_simplex(finite)
