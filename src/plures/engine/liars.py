"""Who lies in a run: attacks bound to its clients, counted, and held against what a method is made for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from plures.data.federation import Federation
from plures.engine import cohort as cohorts
from plures.engine.settings import Settings
from plures.engine.state import least_rounds, phases
from plures.errors import BadValue
from plures.types import Attack, Channel, Forecast, Method


class Threat(NamedTuple):
    """Which attacks there are, by how many of how many training clients."""

    attacks: tuple[str, ...]
    num_byzantine: int
    num_clients: int

    @property
    def said(self) -> str:
        """One line for a report.

        >>> Threat(("sign_flip",), 6, 30).said
        'attack: sign_flip by 6 of 30 clients (20 %); scores are of the 24 honest clients'
        """
        share = f"{100 * self.num_byzantine / self.num_clients:.0f} %"
        who = f"{' and '.join(self.attacks)} by {self.num_byzantine} of {self.num_clients} clients ({share})"
        return f"attack: {who}; scores are of the {self.num_clients - self.num_byzantine} honest clients"


def attacks_in(channels: Iterable[Channel]) -> list[Attack]:
    """The channels on which someone lies."""
    return [one for one in channels if isinstance(one, Attack)]


def bound(channels: Iterable[Channel], num_clients: int) -> tuple[Channel, ...]:
    """The channels, every attack by exactly its share of these clients; one by nobody or by all is refused."""
    found = tuple(
        one.bound(num_clients) if isinstance(one, Attack) and one.bound is not None else one for one in channels
    )
    for attack in attacks_in(found):
        if not byzantine([attack], num_clients).any():
            least = f"at least {0.5 / num_clients:.2g}, for one of {num_clients} clients to be Byzantine"
            raise BadValue(f"share of {attack.name}", attack.share, least)
    if byzantine(found, num_clients).all():
        share = max(one.share for one in attacks_in(found))
        raise BadValue("share", share, f"so small that one of {num_clients} clients stays honest")
    return found


def byzantine(channels: Iterable[Channel], num_clients: int) -> NDArray[np.bool_]:
    """(clients,) who of the training clients lies, in the order of uids."""
    found = np.zeros(num_clients, bool)
    for attack in attacks_in(channels):
        found |= np.asarray(attack.members(jnp.arange(num_clients)))
    return found


def threat_of(channels: Iterable[Channel], num_clients: int) -> Threat | None:
    """What a run with these channels is up against; None if nobody lies."""
    found = bound(channels, num_clients)
    names = tuple(one.name for one in attacks_in(found))
    return Threat(names, int(byzantine(found, num_clients).sum()), num_clients) if names else None


def spoiled(channels: Iterable[Channel], federation: Federation) -> Federation:
    """The data that are learned from."""
    for attack in attacks_in(channels):
        federation = federation if attack.spoil is None else attack.spoil(federation)
    return federation


def check_liars(method: Method, settings: Settings, num_clients: int, *, label: str = "") -> None:
    """Refuse more liars in a round than a method is made for; of a drawn cohort, their share of it."""
    threat = threat_of(settings.channels, num_clients)
    if threat is None:
        return
    for phase in phases(method, max(settings.rounds, least_rounds(method))):
        everyone = phase.everyone or phase.method.full_cohort
        size = num_clients if everyone else cohorts.cohort(settings.cohort).size(num_clients)
        number = int(size * threat.num_byzantine / num_clients + 0.5)
        most = number if phase.method.tolerates is None else phase.method.tolerates(size)
        if number > most:
            said = f"{label}: " if label else ""
            wanted = f"at most {most} of {size} ({100 * most / size:.0f} %)"
            raise BadValue(f"{said}the number of Byzantine clients", number, wanted)


def forecast_of(
    method: Method,
    federation: Federation,
    channels: Iterable[Channel] = (),
    cohort: cohorts.Cohort | int | str | None = None,
) -> Forecast | None:
    """What a method says before a run of the federation; it hears of the honest clients' planted groups.

    Its warnings are for the clients of a round: with a drawn cohort, for their number and their share of each group.
    """
    if method.forecast is None:
        return None
    number = federation.num_clients
    honest = ~byzantine(bound(channels, number), number)[federation.uid]
    planted = np.zeros(0, np.int64) if federation.group is None else federation.group[honest]
    sizes = np.unique(planted[planted >= 0], return_counts=True)[1].tolist()
    whole = method.forecast(number, sizes)
    present = number if method.full_cohort else cohorts.cohort(cohort).size(number)
    if present == number:
        return whole
    return whole._replace(warnings=method.forecast(present, [size * present // number for size in sizes]).warnings)
