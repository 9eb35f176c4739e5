"""Dapper trained by the single examples of Theorem 4 ends within the excess that it promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from papers.three_approaches.bounds import dapper_recipe
from plures.data import from_arrays
from plures.engine import run
from plures.methods.fedavg import fedavg
from plures.models.linear import mean
from plures.personalize.dapper import dapper
from plures.types import Plan


@pytest.mark.parametrize("lam", [0.3, *(pytest.param(lam, marks=pytest.mark.slow) for lam in (0.05, 0.7, 0.99))])
@pytest.mark.slow
def test_single_steps_of_the_prescribed_size_stay_within_the_guaranteed_excess(lam):
    """l = (h - x)^2 / 2 on [0, 1]: strong convexity, gradients and size are all 1. A hundred clients give 40 rows each."""
    y = jax.random.uniform(jax.random.key(1), (100, 40)) ** jnp.linspace(0.3, 3.0, 100)[:, None]
    names = np.repeat([f"{k:03d}" for k in range(100)], 40)
    world = from_arrays(
        np.zeros((4000, 0), np.float32),
        np.asarray(y.reshape(4000, 1)),
        names,
        split=np.full(4000, "train"),
        task="regression",
    )
    recipe = dapper_recipe(lam, 40, 4000, convexity=1, gradient=1, size=1)
    base = fedavg(mean((0,), 1), plan=Plan(batch=None, lr=1.0))
    single = Plan(batch=1, lr=recipe.lr)
    options = {"source": "raw", "allow_raw_sharing": True, "example": world.example, "shared_rows": 40}
    method = dapper(base, lam=lam, plan=single, ratio=recipe.ratio, pool_rows=recipe.ratio * 40, **options)

    result = run(method, world, rounds=2, executor="vectorized")

    points = np.array([result.model_for(uid).weights.weights.params["point"] for uid in range(0, 100, 5)]).ravel()
    own, pool = np.asarray(y).mean(1)[::5], float(y.mean())
    excess = (points - (lam * own + (1 - lam) * pool)) ** 2 / 2
    assert recipe.ratio == 36
    assert excess.mean() <= recipe.excess
