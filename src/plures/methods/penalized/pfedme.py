"""pFedMe: several local steps on the envelope of a penalized loss, then averaging.

    F_i(w)  =  min_u  L_i(u) + (lam / 2) |w - u|^2

    client   u_i   =   some steps on  L_i(u) + (lam / 2) |w_i - u|^2
             w_i  <-   w_i - eta lam (w_i - u_i)                            R times, from w_i = w_g
    server   w_g  <-   (1 - beta) w_g + beta sum_i p_i w_i

u_i is the personal model. With R = 1 and beta = 1 this is FedCLUP with gamma = eta; with more local rounds clients
that differ draw w_g away from the optimum of sum_i p_i F_i, as they do in FedAvg.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, arXiv 2006.08848. We go on
from the last u_i, and choose eta = (1 / lam + 1 / L) / R unless told otherwise.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.averaging import Aggregation
from plures.errors import require, require_least
from plures.method import Method
from plures.methods.penalized.descent import Penalty, PenaltySettings, PersonalDescent, Steps, step_refusal
from plures.methods.penalized.rounds import ClientRound, PenalizedMethod, PenaltyServer
from plures.moreau import Bounds
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Weights


@method(
    title="pFedMe",
    paper="arXiv:2006.08848",
    degree="lam",
    limits=[
        Limit("one local round is FedCLUP", {"lam": 0.5, "local_rounds": 1}, "fedclup", {"lam": 0.5}),
        Limit(
            "no proximal term: the own model trains alone",
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
    penalty: Penalty = Penalty(),
    eta: float | None = None,
    beta: float = 1.0,
    local_rounds: int = 5,
    aggregation: Aggregation = Aggregation(weighting="uniform"),
) -> Method:
    """Personal models near a shared one, which clients move ``local_rounds`` times before it is averaged.

    Args:
        plan: How clients train locally where they do so by SGD; full-batch steps do not read it.
        eta: Size of a client's step on the envelope; None is (1 / lam + 1 / L) / local_rounds, above 2 / L_g diverges and
            is refused.
        beta: The server's step towards the mean of what clients send, in (0, 2]: 1 is plain averaging.
        local_rounds: How often a client moves its copy of the shared model in a round; 1 is FedCLUP.
    """
    require(eta is None or 0 < eta < float("inf"), "eta", eta, "a positive number (or None to choose one)")
    require(0 < beta <= 2, "beta", beta, "a number in (0, 2]")
    require_least(1, local_rounds=local_rounds)
    descent = PersonalDescent.of(model, plan, PenaltySettings(penalty=penalty, aggregation=aggregation))

    def check(lam: float, bounds: Bounds) -> str | None:
        return None if eta is None else step_refusal("pfedme", "steps of eta", "eta", eta, bounds, lam)

    def speed(server: PenaltyServer) -> Array:
        return jnp.full_like(server.lam, beta)

    act = _move_shared(descent, eta, local_rounds)
    return PenalizedMethod(descent=descent, name="pfedme", act=act, speed=speed, check=check).build()


def _move_shared(descent: PersonalDescent, eta: float | None, local_rounds: int) -> ClientRound:
    """A client that moves a copy of the shared model towards its personal one, time and again."""

    def act(key: Key, shared: Weights, own: Weights, steps: Steps, data: Data) -> tuple[Weights, Weights, Info]:
        reach = steps.pace / local_rounds if eta is None else eta * steps.lam

        def move(carry: tuple[Weights, Weights], round_: Array) -> tuple[tuple[Weights, Weights], Info]:
            moved, mine = carry
            # Round 0 has the key that FedCLUP's clients have.
            now = jax.tree.map(lambda a, b: jnp.where(round_ == 0, a, b), key, jax.random.fold_in(key, round_))
            mine, info = descent.train(now, mine, moved, steps, data)
            params = tree.step(moved.params, reach, tree.subtract(mine.params, moved.params))
            return (Weights(params, mine.stats), mine), info

        (moved, mine), info = jax.lax.scan(move, (shared, own), jnp.arange(local_rounds))
        told = {"loss": info["loss"].mean(), "steps": info["steps"].sum()}
        return moved, mine, told

    return act
