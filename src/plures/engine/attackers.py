"""Who attacks in a run: attacks bound to its clients, counted, and held against what a method is made for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from plures.data.federation import Federation
from plures.engine import cohort as cohorts
from plures.engine.phases import least_rounds, spans_of
from plures.engine.settings import Settings
from plures.errors import BadValue
from plures.method import Attack, Channel, Forecast, Method
from plures.recipe import recipe_of, with_recipe


class AttackSummary(NamedTuple):
    """Which attacks there are, by how many of how many training clients."""

    attacks: tuple[str, ...]
    num_attackers: int
    num_clients: int

    @property
    def said(self) -> str:
        """One line for a report.

        >>> AttackSummary(("sign_flip",), 6, 30).said
        'attack: sign_flip by 6 of 30 clients (20 %); scores are of the 24 honest clients'
        """
        share = f"{100 * self.num_attackers / self.num_clients:.0f} %"
        who = f"{' and '.join(self.attacks)} by {self.num_attackers} of {self.num_clients} clients ({share})"
        return f"attack: {who}; scores are of the {self.num_clients - self.num_attackers} honest clients"


def attacks_in(channels: Iterable[Channel]) -> list[Attack]:
    """The channels on which someone attacks."""
    return [one for one in channels if isinstance(one, Attack)]


def bind_attacks(channels: Iterable[Channel], num_clients: int) -> tuple[Channel, ...]:
    """The channels, every attack by exactly its share of these clients; one by nobody or by all is refused."""
    found = tuple(_bound(one, num_clients) if isinstance(one, Attack) else one for one in channels)
    for attack in attacks_in(found):
        if not attackers_among([attack], num_clients).any():
            least = f"at least {0.5 / num_clients:.2g}, for one of {num_clients} clients to attack"
            raise BadValue(f"share of {attack.name}", attack.share, least)
    if attackers_among(found, num_clients).all():
        share = max(one.share for one in attacks_in(found))
        raise BadValue("share", share, f"so small that one of {num_clients} clients stays honest")
    return found


def _bound(attack: Attack, num_clients: int) -> Attack:
    """The same attack, known by the same recipe, by exactly its share of these clients."""
    recipe = recipe_of(attack)
    exact = attack if attack.bound is None else attack.bound(num_clients)
    if recipe is not None:
        return with_recipe(exact, recipe)
    if attack.recipe is None:
        return exact
    # A copy that was changed by hand: what was changed stays so.
    names = [one.name for one in fields(attack) if one.name != "recipe"]
    before = dict(zip(names, attack.recipe.parts, strict=True))
    changed = {name: getattr(attack, name) for name in names if getattr(attack, name) is not before[name]}
    return replace(exact, **changed)


def attackers_among(channels: Iterable[Channel], num_clients: int) -> NDArray[np.bool_]:
    """(clients,) who of the training clients attacks, in the order of uids."""
    found = np.zeros(num_clients, bool)
    for attack in attacks_in(channels):
        found |= np.asarray(attack.members(jnp.arange(num_clients)))
    return found


def attackers_of(channels: Iterable[Channel], num_clients: int) -> AttackSummary | None:
    """What a run with these channels is up against; None if nobody attacks."""
    found = bind_attacks(channels, num_clients)
    names = tuple(one.name for one in attacks_in(found))
    return AttackSummary(names, int(attackers_among(found, num_clients).sum()), num_clients) if names else None


def spoil_data(channels: Iterable[Channel], federation: Federation) -> Federation:
    """The data that are learned from."""
    for attack in attacks_in(channels):
        federation = federation if attack.spoil is None else attack.spoil(federation)
    return federation


def check_attackers(method: Method, settings: Settings, num_clients: int, *, label: str = "") -> None:
    """Refuse more attackers in a round than a method is made for; of a drawn cohort, their share of it."""
    found = attackers_of(settings.channels, num_clients)
    if found is None:
        return
    for span in spans_of(method, max(settings.rounds, least_rounds(method))):
        size = num_clients if span.everyone else cohorts.cohort(settings.cohort).size(num_clients)
        number = int(size * found.num_attackers / num_clients + 0.5)
        most = number if span.method.traits.tolerates is None else span.method.traits.tolerates(size)
        if number > most:
            said = f"{label}: " if label else ""
            wanted = f"at most {most} of {size} ({100 * most / size:.0f} %)"
            raise BadValue(f"{said}the number of attackers", number, wanted)


def forecast_of(
    method: Method,
    federation: Federation,
    channels: Iterable[Channel] = (),
    cohort: cohorts.Cohort | int | str | None = None,
) -> Forecast | None:
    """What a method says before a run of the federation; it hears of the honest clients' planted groups.

    Its warnings are for the clients of a round: with a drawn cohort, for their number and their share of each group.
    """
    if method.views.forecast is None:
        return None
    number = federation.num_clients
    honest = ~attackers_among(bind_attacks(channels, number), number)[federation.uid]
    planted = np.zeros(0, np.int64) if federation.group is None else federation.group[honest]
    sizes = np.unique(planted[planted >= 0], return_counts=True)[1].tolist()
    whole = method.views.forecast(number, sizes)
    present = number if method.traits.full_cohort else cohorts.cohort(cohort).size(number)
    if present == number:
        return whole
    return whole._replace(
        warnings=method.views.forecast(present, [size * present // number for size in sizes]).warnings
    )
