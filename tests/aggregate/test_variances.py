"""Running variances stay above 0."""

import jax.numpy as jnp
import numpy as np

from plures.aggregate.variances import keep_variances_positive
from plures.types import Weights


def test_a_variance_that_would_not_stay_positive_falls_to_a_tenth():
    def of(mean, var):
        return Weights((), {"variant": {"mean": jnp.array(mean), "var": jnp.array(var)}})

    found = keep_variances_positive(of([1.0, 1.0], [2.0, 2.0]), of([-1.0, -1.0], [-1.0, 0.01])).stats["variant"]

    np.testing.assert_allclose(found["mean"], [-1.0, -1.0])
    np.testing.assert_allclose(found["var"], [0.2, 0.01])
