"""What a run refuses before it starts."""

from __future__ import annotations

import jax

from plures.data.federation import Federation
from plures.engine.attackers import check_attackers
from plures.engine.phases import least_rounds, spans_of
from plures.engine.settings import Settings
from plures.errors import BadValue, Unsupported
from plures.keys import root
from plures.method import Method


def check_kinds(method: Method, federation: Federation) -> None:
    """Refuse what is no method or no federation of training clients."""
    if not isinstance(method, Method):
        raise BadValue("method", method, "a Method, such as fedavg(model)")
    if not isinstance(federation, Federation):
        raise BadValue("federation", type(federation).__name__, "a Federation, such as data.load('digits')")
    if sorted(federation.uid.tolist()) != list(range(federation.num_clients)):
        raise BadValue("uid", federation.uid[:5].tolist(), "0..N-1 in some order for training clients")


def check_fit(method: Method, federation: Federation, settings: Settings) -> None:
    """Refuse a method that these clients, rounds or attackers are not for."""
    federation.check_model(method.model)
    if method.traits.num_groups and (federation.group is None or federation.num_groups != method.traits.num_groups):
        raise Unsupported(
            f"this method reads {method.traits.num_groups} planted groups; these clients have {federation.num_groups}"
        )
    if method.traits.num_domains and (
        federation.domain is None or federation.num_domains != method.traits.num_domains
    ):
        raise Unsupported(
            f"this method reads {method.traits.num_domains} domains; these clients have {federation.num_domains or 'none'}"
        )
    if settings.rounds < least_rounds(method):
        others = least_rounds(method) - 1
        raise BadValue("rounds", settings.rounds, f"more than the {others} before and after the method's own")
    check_attackers(method, settings, federation.num_clients)
    for span in spans_of(method, settings.rounds):
        # What a start refuses (more clusters than clients, say) is refused before the first round of any phase.
        jax.eval_shape(lambda key, span=span: span.method.start(key, federation.num_clients), root(0))
