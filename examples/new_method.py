"""A new method defined outside the package, run and compared by name.

FedAvg's shared model changes every round, and not every change is good for every client. Here each client keeps,
of all shared models it has received, the one that did best on its own valid rows. Nothing more is sent.
"""

from dataclasses import replace

import jax.numpy as jnp

import plures
from plures import tree
from plures.local import mean_loss
from plures.methods.fedavg import fedavg
from plures.registry import method
from plures.study import compare


@method(title="Best so far")
def best_so_far(model: plures.Model, *, plan: plures.Plan = plures.Plan()) -> plures.Method:
    """The shared model that was best on the client's own valid rows."""
    base = fedavg(model, plan=plan)

    def better(shared, best, data):
        weights, least = best
        loss = mean_loss(model, model.apply, shared, data.valid)
        wins = (loss < least) | (jnp.asarray(data.valid.count) == 0)
        return tree.choose(wins, (shared, loss), (weights, least))

    def join(key, shared):
        return shared, jnp.asarray(jnp.inf)  # the best model yet and its loss

    def train(key, shared, best, data):
        upload, _, info = base.train(key, shared, (), data)
        return upload, better(shared, best, data), info

    def serve(key, shared, best, data):
        return better(shared, best, data)[0]

    return replace(base, join=join, train=train, serve=serve)


def main() -> None:
    federation = plures.data.load("digits", num_clients=20)
    plan = plures.Plan(epochs=2, batch=10, lr=0.1)

    result = compare(["fedavg", "best_so_far"], federation, rounds=30, plan=plan, seeds=[0, 1])

    for row in result.leaderboard.iter_rows(named=True):
        print(
            f"{row['method']:12} accuracy {row['mean']:.3f}, worst tenth {row['worst_decile']:.3f}, "
            f"{row['mb_per_client']:.2f} MB per client, {row['against_best']}"
        )
    gain = (result.scores("best_so_far") - result.scores("fedavg")).mean(axis=0)
    print(f"better off {(gain > 0).sum()}, worse off {(gain < 0).sum()}, as before {(gain == 0).sum()} clients")


if __name__ == "__main__":
    main()
