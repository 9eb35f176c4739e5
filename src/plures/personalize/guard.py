"""A guard: no client is served a personal model that loses to the common one on the client's valid rows.

    serve  personal  if  L_valid(personal) < L_valid(common)  else  common

A client without valid rows gets the common model: nothing speaks for the personal one.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp

from plures import tree
from plures.errors import Unsupported
from plures.local import mean_loss
from plures.method import Method
from plures.registry import Limit, personalizer
from plures.types import Data, Key, Tree


@personalizer(
    title="Guard",
    base="ditto",
    limits=[Limit("around FedAvg there is nothing to choose", same_served_as="fedavg", base="fedavg")],
)
def guard(base: Method) -> Method:
    """Whichever of the base's personal and common model wins on the client's valid rows."""
    if base.views.common is None:
        raise Unsupported("guard needs a base with a model common to all clients; this one has none")
    common_of = base.views.common

    def serve(key: Key, download: Tree, private: Tree, data: Data) -> Tree:
        personal, common = base.serve(key, download, private, data), common_of(download)
        losses = [mean_loss(base.model, base.predict, one, data.valid) for one in (personal, common)]
        wins = (losses[0] < losses[1]) & (jnp.asarray(data.valid.count) > 0)
        return tree.choose(wins, personal, common)

    return replace(base, serve=serve)
