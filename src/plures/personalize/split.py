"""Split: named parts of the model stay with the client and never travel.

    shared parts   move as in the base (averaged)
    private parts  are trained by their client alone

With the head kept it is FedPer (Arivazhagan et al., arXiv 1912.00818), with the normalization kept FedBN
(Li et al., arXiv 2102.07623). Clients start from one common initialization of the private parts.
"""

from __future__ import annotations

from plures.method import Method
from plures.models.parts import parting
from plures.personalize.base_checks import needs_weights
from plures.registry import personalizer
from plures.wrap.private_parts import ONE_CLIENT, fitted_part, parted


@personalizer(title="Split by parts", paper="arXiv:1912.00818", tags=("parts",), limits=[ONE_CLIENT])
def split(base: Method, *, keep: str = "head", newcomer_epochs: int = 5) -> Method:
    """The base with the named part of the model private to each client; newcomers fit theirs to their own rows first.

    Args:
        keep: The part of the model that stays with the client, by name.
        newcomer_epochs: Epochs for which a client that never trained fits its private part before it is served; 0 serves
            it as it was drawn.
    """
    needs_weights("split", base)
    welcome = None if base.views.trained is None else fitted_part(base, parting(base.model, keep), newcomer_epochs)
    return parted(base, keep, welcome=welcome)
