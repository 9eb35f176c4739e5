"""pFedMe: several local steps on the envelope of a penalized loss, then averaging.

    F_i(w)  =  min_u  L_i(u) + (lam / 2) |w - u|^2

    client   u_i   =   some steps on  L_i(u) + (lam / 2) |w_i - u|^2
             w_i  <-   w_i - eta lam (w_i - u_i)                            R times, from w_i = w_g
    server   w_g  <-   (1 - beta) w_g + beta sum_i p_i w_i

u_i is the personal model. With R = 1 and beta = 1 this is FedCLUP with gamma = eta; with more local rounds clients
that differ pull w_g away from the optimum of sum_i p_i F_i, as they do in FedAvg.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, arXiv 2006.08848. We go on
from the last u_i, and choose eta = (1 / lam + 1 / L) / R unless told otherwise.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.envelope import Bounds
from plures.errors import BadValue
from plures.methods._penalized import Client, Server, penalized
from plures.methods._pull import Descent, How, Steps, too_long
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Method, Model, Plan, Weights


@method(
    title="pFedMe",
    paper="arXiv:2006.08848",
    degree="lam",
    limits=[
        Limit("one local round is FedCLUP", {"lam": 0.5, "local_rounds": 1}, "fedclup", {"lam": 0.5}),
        Limit(
            "no pull: the own model trains alone",
            {"lam": 0.0, "local": "sgd", "local_rounds": 1},
            "local_only",
            {"newcomer_epochs": 20},
        ),
    ],
)
def pfedme(
    model: Model,
    *,
    plan: Plan = Plan(),
    lam: float | str = "auto",
    eta: float | None = None,
    beta: float = 1.0,
    local_rounds: int = 5,
    alpha: float | None = None,
    inner: int | str = "auto",
    local: str = "auto",
    absent: str = "sampled",
    weighting: str = "uniform",
    aggregate: str = "mean",
) -> Method:
    """Personal models near a shared one, which clients move ``local_rounds`` times before it is averaged.

    ``eta`` is the step on the envelope, ``beta`` the server's; the other options are FedCLUP's.
    """
    if eta is not None and not 0 < eta < float("inf"):
        raise BadValue("eta", eta, "a positive number (or None to choose one)")
    if not 0 < beta <= 2:
        raise BadValue("beta", beta, "a number in (0, 2]")
    if local_rounds < 1:
        raise BadValue("local_rounds", local_rounds, "1 or more")
    how = How(
        lam=lam, alpha=alpha, inner=inner, local=local, absent=absent, weighting=weighting, aggregate=aggregate
    )

    descent = Descent.of(model, plan, how)

    def check(lam: float, bounds: Bounds) -> str | None:
        return None if eta is None else too_long("pfedme", "steps of eta", "eta", eta, bounds, lam)

    def speed(server: Server) -> Array:
        return jnp.full_like(server.lam, beta)

    return penalized(descent, "pfedme", _moving(descent, eta, local_rounds), speed=speed, check=check)


def _moving(descent: Descent, eta: float | None, local_rounds: int) -> Client:
    """A client that moves a copy of the shared model towards its personal one, time and again."""

    def act(key: Key, shared: Weights, own: Weights, steps: Steps, data: Data) -> tuple[Weights, Weights, Info]:
        reach = steps.pace / local_rounds if eta is None else eta * steps.lam

        def move(carry: tuple[Weights, Weights], turn: Array) -> tuple[tuple[Weights, Weights], Info]:
            moved, mine = carry
            # Round 0 has the key that FedCLUP's clients have.
            now = jax.tree.map(lambda a, b: jnp.where(turn == 0, a, b), key, jax.random.fold_in(key, turn))
            mine, info = descent.own(now, mine, moved, steps, data)
            params = tree.step(moved.params, reach, tree.subtract(mine.params, moved.params))
            return (Weights(params, mine.stats), mine), info

        (moved, mine), info = jax.lax.scan(move, (shared, own), jnp.arange(local_rounds))
        told = {"loss": info["loss"].mean(), "steps": info["steps"].sum()}
        return moved, mine, told

    return act
