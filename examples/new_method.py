"""A new method defined outside the package, run and compared by name.

Each client trains FedAvg's shared model with the others and one of its own alone. It is served a mix of the two,
and its own valid rows choose how much of each. Nothing more is sent than FedAvg sends.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp

import plures
from plures import tree
from plures.local import mean_loss, objective, sgd
from plures.method import keep_download
from plures.methods.fedavg import fedavg
from plures.registry import method


@method(title="Own mix")
def own_mix(model: plures.Model, *, plan: plures.Plan = plures.Plan(), choices: int = 11) -> plures.Method:
    """A mix of the shared and the client's own model, chosen on its valid rows."""
    base = fedavg(model, plan=plan)

    def train(key, shared, own, data):
        key_shared, key_own = jax.random.split(key)
        upload, _, info = base.train(key_shared, shared, (), data)
        own, _ = sgd(key_own, own, data, plan, objective(model))
        return upload, own, info

    def serve(key, shared, own, data):
        def mix(share):
            return tree.step(own, share, tree.subtract(shared, own))

        mixes = jax.vmap(mix)(jnp.linspace(0.0, 1.0, choices))
        losses = jax.vmap(lambda one: mean_loss(model, model.apply, one, data.valid))(mixes)
        return tree.at(mixes, losses.argmin())

    return replace(base, join=keep_download, train=train, serve=serve)


def main() -> None:
    federation = plures.data.load("linear_clusters", num_clients=40, rows=20, gap=1.0, dim=10)
    plan = plures.Plan(epochs=5, batch=None, lr=0.1)

    result = plures.compare(["local_only", "fedavg", "own_mix"], federation, rounds=30, plan=plan, seeds=[0])

    print(f"{federation.num_clients} clients with 12 training rows each; root mean squared error on test rows")
    for row in result.leaderboard.iter_rows(named=True):
        print(
            f"{row['method']:10}  mean {row['mean']:.3f}  worst tenth {row['worst_decile']:.3f}  "
            f"{1000 * row['mb_per_client']:.1f} kB per client  {row['against_best']}"
        )
    for other in ("local_only", "fedavg"):
        better = (result.scores("own_mix") < result.scores(other)).sum()
        print(f"own_mix is better than {other} for {better} of {federation.num_clients} clients")


if __name__ == "__main__":
    main()
