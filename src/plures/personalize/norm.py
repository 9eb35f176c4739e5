"""A policy for normalization layers, for one method of a comparison: ``fedavg|norm:policy=affine``.

    share        scales, shifts and running statistics travel and are averaged like all else
    local        none of them travels: every client trains its own (FedBN, arXiv 2102.07623)
    affine       scales and shifts are shared, running statistics stay with the client (SiloBN, arXiv 2008.07424)
    recalibrate  all is shared, and statistics are computed from the client's own rows when it is served

The same for all methods of a study: ``plures compare --norm affine``, ``norm = "affine"`` in its file.
"""

from __future__ import annotations

from plures.method import Method
from plures.registry import Limit, personalizer
from plures.wrap.norms import normalized
from plures.wrap.private_parts import ONE_CLIENT


@personalizer(
    title="Normalization policy",
    paper="arXiv:2102.07623",
    tags=("norm",),
    limits=[
        ONE_CLIENT,
        Limit("private layers around FedAvg: FedBN", {"policy": "local"}, same_served_as="fedbn"),
        Limit("all shared: the base itself", {"policy": "share"}, same_served_as="fedavg"),
    ],
)
def norm(base: Method, *, policy: str = "local") -> Method:
    """The base with its model's normalization layers shared, private, or in between.

    Args:
        policy: "share" (they travel like all else), "local" (none of them does), "affine" (scales and shifts are shared,
            statistics stay) or "recalibrate" (all is shared, statistics come from the client's own rows when served).
    """
    return normalized(base, policy)
