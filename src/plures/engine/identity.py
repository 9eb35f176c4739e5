"""What a run is known by: anything that can change a number changes its identity, and nothing else does.

A method, model, optimizer or channel that a factory of this library made is known by its recipe. Whatever was made or
changed by hand is known by what it computes: its functions are traced from shapes, and the text of the programs and
the constants in them are what tells it apart. The same identity decides whether a checkpoint fits, whether a finished
run in a folder may be used again, what a hyper-parameter search remembers and what an exported model came from.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

import plures
from plures.data.federation import Federation
from plures.engine import cohort as cohorts
from plures.engine.attackers import attackers_among, attacks_in, bind_attacks, spoil_data
from plures.engine.clients import layout_of, on_device, view, with_unseen
from plures.engine.phases import methods_of
from plures.engine.python_code import code_of
from plures.engine.settings import Settings
from plures.errors import BadFile
from plures.method import Channel, Method
from plures.recipe import recipe_of
from plures.tree import at, plain
from plures.types import Data, Tree

NOT_COMPUTING = ("advise", "app", "cli", "contract", "report", "study")
"""Packages that run, compare and show, but compute nothing of a run."""


@dataclass(frozen=True)
class Identity:
    """What a run is known by, part by part, each in words that a person can read."""

    parts: Mapping[str, str]

    @property
    def digest(self) -> str:
        """One short text for all of it."""
        lines = [f"{name} {value}" for name, value in sorted(self.parts.items())]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]

    def difference(self, other: Mapping[str, Any], *, but: tuple[str, ...] = ()) -> str | None:
        """The first part in which another run differs, in words; None if there is none.

        >>> Identity({"seed": "1", "rounds": "5"}).difference({"seed": "2", "rounds": "5"})
        'seed 2, not 1'
        """
        for name in [*self.parts, *(one for one in other if one not in self.parts)]:
            before, now = other.get(name), self.parts.get(name)
            if name not in but and before != now:
                return f"{name} {_apart(str(before), str(now))}"
        return None

    def refuse_other(self, other: Mapping[str, Any], where: str, *, but: tuple[str, ...] = ()) -> None:
        """Refuse what another run left somewhere."""
        found = self.difference(other, but=but)
        if found is not None:
            raise BadFile(f"{where} belongs to a run with {found}; use another folder")


LONGEST = 60


def _apart(before: str, now: str) -> str:
    """Two long texts from where they begin to differ."""
    if max(len(before), len(now)) <= LONGEST:
        return f"{before}, not {now}"
    first = next((i for i, (a, b) in enumerate(zip_longest(before, now)) if a != b), len(now))
    start = before.rfind(" ", 0, first) + 1
    return f"{_cut(before, start)}, not {_cut(now, start)}"


def _cut(text: str, start: int) -> str:
    return ("..." if start else "") + text[start : start + LONGEST] + ("..." if len(text) > start + LONGEST else "")


def identify(
    method: Method, federation: Federation, settings: Settings, *, unseen: Federation | None = None
) -> Identity:
    """The identity of the run of a method on training clients, with ``unseen`` ones that are only scored."""
    settings, seen, everyone = lay_out(federation, unseen, settings)
    return identify_laid_out(method, seen, everyone, settings)


def lay_out(
    federation: Federation, unseen: Federation | None, settings: Settings
) -> tuple[Settings, Federation, Federation]:
    """What a run works with: settings with attacks by these clients, the data learned from, and all clients by uid."""
    settings = replace(settings, channels=bind_attacks(settings.channels, federation.num_clients))
    seen = spoil_data(settings.channels, federation)
    everyone = seen if unseen is None else with_unseen(seen, unseen)
    return settings, seen, everyone.take(np.argsort(everyone.uid))


def identify_laid_out(method: Method, seen: Federation, everyone: Federation, settings: Settings) -> Identity:
    """The identity of a run whose data are laid out."""
    return Identity(
        {
            **_made(method, seen, settings),
            "rounds": str(settings.rounds),
            "seed": str(settings.seed),
            "cohort": repr(cohorts.cohort(settings.cohort)),
            "clients": str(seen.num_clients),
            "data": everyone.fingerprint,
            "groups": _checksum(everyone),
            "code": _code_version(),
            **_stopping(settings),
        }
    )


def _stopping(settings: Settings) -> dict[str, str]:
    """When a run with patience ends hangs on when it is evaluated."""
    if settings.patience is None:
        return {}
    return {
        "patience": f"{settings.patience} evaluations, one every {settings.eval_every or settings.rounds} rounds"
    }


def _checksum(federation: Federation) -> str:
    """A number that changes with the planted groups and the domains, which few methods read."""
    found = zlib.crc32(f"{federation.task} {federation.num_classes}".encode())
    for values in (federation.group, federation.domain):
        found = zlib.crc32(b"none" if values is None else np.ascontiguousarray(values).tobytes(), found)
    return f"{found:08x}"


def _made(method: Method, federation: Federation, settings: Settings) -> dict[str, str]:
    """Method, model and channels by their recipes, as far as these say all; else by what they compute as well."""
    recipe, channels = recipe_of(method), settings.channels
    lines = {number: recipe_of(one) for number, one in enumerate(channels)}
    said = {"method": "made by hand" if recipe is None else recipe.text}
    if channels:
        said["channels"] = ", then ".join("made by hand" if one is None else one.text for one in lines.values())
    if recipe is not None and recipe.known and all(one is not None and one.known for one in lines.values()):
        return said
    cohort = cohorts.cohort(settings.cohort).size(federation.num_clients)
    return {**said, "programs": digest(method, federation, channels, cohort)}


def digest(
    method: Method, federation: Federation, channels: tuple[Channel, ...] = (), cohort: int | None = None
) -> str:
    """A text that changes with anything that the functions of a method, its model and some channels compute.

    ``cohort`` is how many clients take part in a round; all without it.
    """
    found = hashlib.sha256()
    for name, program in _programs(method, federation, channels, cohort or federation.num_clients):
        found.update(name.encode())
        for piece in _pieces(program):
            found.update(piece)
    for name, value in _values(method):
        found.update(f"{name} {value}".encode())
    for attack in attacks_in(channels):
        found.update(attackers_among([attack], federation.num_clients).tobytes())
    for piece in code_of(method.views.report):
        found.update(piece)
    return found.hexdigest()[:32]


def _shape(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _programs(
    method: Method, federation: Federation, channels: tuple[Channel, ...], cohort: int
) -> Iterator[tuple[str, ClosedJaxpr]]:
    """The programs of the functions of a method's phases, of channels and of its model's metrics, by name."""
    key, uid = jax.eval_shape(lambda: (jax.random.key(0), jnp.zeros((), jnp.int32)))
    data = _client(federation)
    number, before = federation.num_clients, None
    for index, (phase, one) in enumerate(zip(method.phases, methods_of(method), strict=True)):
        start = partial(_start, one, number)
        yield f"{index} start", jax.make_jaxpr(start)(key)
        server = jax.eval_shape(start, key)
        if before is not None:
            yield f"{index} hand_over", jax.make_jaxpr(phase.hand_over)(key, server, before)
            server = jax.eval_shape(phase.hand_over, key, server, before)
        before = server
        taking_part = number if phase.everyone or one.traits.full_cohort else cohort
        for name, function, arguments in _calls(one, (key, uid, data, server), taking_part, channels):
            yield f"{index} {name}", jax.make_jaxpr(function)(*arguments)
    outputs = jax.eval_shape(method.model.apply, jax.eval_shape(method.model.init, key), data.train.all().x)
    batch = jax.eval_shape(lambda: data.train.all())
    for name, metric in method.model.metrics.items():
        yield f"metric {name}", jax.make_jaxpr(metric)(outputs, batch.y, batch.mask)


def _start(method: Method, num_clients: int, key: Any) -> Tree:
    return method.start(key, num_clients)


def _client(federation: Federation) -> Data:
    """The first client's data as a method sees them."""
    arrays, places = on_device(federation)
    return view(layout_of(federation), arrays, at(places, 0))


Call: TypeAlias = tuple[str, Callable[..., Any], tuple[Any, ...]]


def _calls(
    method: Method, shapes: tuple[Any, Any, Data, Tree], cohort: int, channels: tuple[Channel, ...]
) -> Iterator[Call]:
    """(name, function, shapes of its arguments) of all that a method computes in one phase, for one client.

    ``shapes`` are those of a key, of a uid, of the client's data and of the server state; ``cohort`` clients take part.
    """
    key, uid, data, server = shapes
    download, offer = jax.eval_shape(method.send, server, uid), jax.eval_shape(method.offered, server, uid)
    private = jax.eval_shape(method.join, key, offer)
    upload, _, _ = jax.eval_shape(method.train, key, download, private, data)
    served = jax.eval_shape(method.serve, key, offer, private, data)
    uploads, weight, uids = jax.tree.map(
        lambda leaf: _shape((cohort, *leaf.shape), leaf.dtype), (upload, _shape((), jnp.float32), uid)
    )
    views, traits = method.views, method.traits
    known: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "send": (method.send, (server, uid)),
        "offer": (method.offered, (server, uid)),
        "answer": (method.answered, (server, uid)),
        "join": (method.join, (key, offer)),
        "train": (method.train, (key, download, private, data)),
        "merge": (method.merge, (server, uploads, weight, uids)),
        "settle": (method.settle, (key, jax.eval_shape(method.answered, server, uid), private, data)),
        "serve": (method.serve, (key, offer, private, data)),
        "predict": (method.predict, (served, jax.eval_shape(lambda: data.train.all().x))),
        "common": (views.common, (offer,)),
        "assign": (views.assign, (offer, private, data)),
        "facts": (views.facts, (offer, private, served)),
        "receivers": (traits.receivers, (server, uid)),
        "exchanges": (traits.exchanges if callable(traits.exchanges) else None, (server,)),
    }
    for number, channel in enumerate(channels):
        known[f"channel {number}"] = (channel, (key, uploads, weight, uids))
    return ((name, function, arguments) for name, (function, arguments) in known.items() if function is not None)


def _values(method: Method) -> Iterator[tuple[str, Any]]:
    """What is not computed: traits, what is better, how many rounds and who takes part in phases."""
    yield "score", (method.model.score, method.model.higher_is_better)
    for index, (phase, one) in enumerate(zip(method.phases, methods_of(method), strict=True)):
        yield f"{index} played", (phase.rounds, phase.everyone)
        yield f"{index} traits", [v for f in fields(one.traits) if not callable(v := getattr(one.traits, f.name))]


def _pieces(program: ClosedJaxpr) -> Iterator[bytes]:
    """The text of a program and the values of its constants, those of programs inside it too."""
    yield ADDRESS.sub("", str(program.jaxpr)).encode()
    yield from _constants(program)


ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def _constants(program: ClosedJaxpr) -> Iterator[bytes]:
    for value in program.consts:
        yield np.asarray(plain(value)).tobytes()
    for equation in program.jaxpr.eqns:
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda one: not isinstance(one, list | tuple)
        ):
            if isinstance(value, ClosedJaxpr):
                yield from _constants(value)
            elif isinstance(value, Jaxpr):
                yield from _constants(ClosedJaxpr(value, ()))
            elif callable(value) and "callback" in equation.primitive.name:
                yield from code_of(getattr(value, "callback_func", value))


@cache
def _code_version() -> str:
    """The version of this library; in a checkout, where it may be edited, with a checksum of all that computes."""
    package = Path(plures.__file__).parent
    if not (package.parents[1] / "pyproject.toml").exists():
        return plures.__version__
    files = sorted(one for one in package.rglob("*.py") if one.relative_to(package).parts[0] not in NOT_COMPUTING)
    found = 0
    for file in files:
        found = zlib.crc32(file.read_bytes(), found)
    return f"{plures.__version__}+{found:08x}"
