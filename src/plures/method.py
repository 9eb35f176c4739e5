"""The contract of a method: a handful of small pure functions, written for ONE client, that mark every crossing of the network.

Everything here is frozen. Three words for state are never mixed: *server* (lives centrally), *private* (a client's,
never leaves it) and *info* (diagnostics, never read back).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from jax import Array

from plures.errors import BadValue, Unsupported
from plures.recipe import Recipe
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights


def broadcast(server: Tree, uid: Array) -> Tree:
    """The server state itself, the same for every client."""
    return server


def stateless(key: Key, download: Tree) -> Tree:
    """No private state."""
    return ()


def keep_download(key: Key, download: Tree) -> Tree:
    """Private state that starts as what was first received."""
    return download


class Forecast(NamedTuple):
    """What can be said of a run before it starts: what a round costs, and what is likely to go wrong."""

    cost: str
    warnings: tuple[str, ...] = ()


class Report(NamedTuple):
    """What can be said of a finished training, in plain words: what went wrong, and what was found."""

    warnings: Sequence[str] = ()
    findings: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Traits:
    """What the engine must know of a method before it runs it.

    ``exchanges``: how often a round sends, trains and merges, with one cohort and one key per client; where their
    number differs from round to round, ``exchanges(server)`` says it when a round begins. ``full_cohort``: everyone
    takes part in every round. ``lanes``: models a client trains side by side when it is served.
    ``receivers(server, uid)``: an upload is a stack of messages, one for each of these clients, to whom an attacker
    may say different things. ``num_clusters``: how many clusters ``views.assign`` tells apart; 0 is as many as there
    are clients. ``num_groups``, ``num_domains``: planted groups and domains it reads. ``norm``: what is done with
    normalization layers (see ``plures.wrap.norms``). ``tolerates(num_clients)``: how many attackers it is made for;
    None promises nothing.
    """

    exchanges: int | Callable[[Tree], Array] = 1
    full_cohort: bool = False
    lanes: int = 1
    receivers: Callable[[Tree, Array], Array] | None = None
    num_clusters: int = 1
    num_groups: int = 0
    num_domains: int = 0
    norm: str = "share"
    tolerates: Callable[[int], int] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Views:
    """Other true statements about the state of a method, for wrappers and for people; the contract suite checks them.

    ============ ==================== ========================================================
    ``common``   client               (offer) -> served: the one model for all, where there is one
    ``trained``  client               (download, private, upload) -> the model that local training ended with
    ``assign``   client               (offer, private, data) -> info: its "cluster", and how surely
    ``facts``    client               (offer, private, served) -> info: numbers worth telling of its model
    ``report``   server, at the end   (server) -> Report: warnings and findings in plain words
    ``forecast`` before a run         (num_clients, sizes of planted groups) -> Forecast: cost and warnings
    ============ ==================== ========================================================

    Whoever changes what a method sends, trains or serves says what becomes of them: a view that is inherited
    (``replace(base, train=train)``) must still be true.
    """

    common: Callable[[Tree], Tree] | None = None
    trained: Callable[[Tree, Tree, Tree], Weights] | None = None
    assign: Callable[[Tree, Tree, Data], Info] | None = None
    facts: Callable[[Tree, Tree, Tree], Info] | None = None
    report: Callable[[Tree], Report] | None = None
    forecast: Callable[[int, Sequence[int]], Forecast] | None = None

    def common_as(self, form: Callable[[Tree], Tree]) -> Callable[[Tree], Tree] | None:
        """The one model for all in another form; None where there is none."""
        common = self.common
        return None if common is None else lambda offer: form(common(offer))

    def through(
        self,
        *,
        client: Callable[[Tree, Tree], tuple[Tree, Tree]],
        server: Callable[[Tree], Tree] | None = None,
    ) -> Views:
        """The same statements about a state that holds the one they were made for.

        ``client(offer, private)`` and ``server(server)`` find the inner state in the outer one. What is said of the
        one model for all and of local training is left out: whoever wraps says it anew.
        """
        assign, facts, report = self.assign, self.facts, self.report
        find = server or (lambda outer: outer)
        return Views(
            assign=None if assign is None else lambda offer, private, data: assign(*client(offer, private), data),
            facts=None if facts is None else lambda offer, private, served: facts(*client(offer, private), served),
            report=None if report is None else lambda outer: report(find(outer)),
            forecast=self.forecast,
        )


def take_over(key: Key, fresh: Tree, before: Tree) -> Tree:
    """The server state of the phase before, as it is."""
    return before


@dataclass(frozen=True, kw_only=True, eq=False)
class Phase:
    """A part of a run: a method played for ``rounds``.

    ``method`` None is the method that has this phase. ``rounds`` None is all rounds that the other phases leave;
    that phase and those after it are what the run is about, the ones before it are warm-ups. ``everyone``: all
    clients take part. ``hand_over(key, fresh, before)`` makes the server state it begins with from its method's own
    ``start`` and the last server state of the phase before. Private rows do not carry over: clients join anew.
    ``refuse(before)`` says, of that state, why it cannot go on from it; None where it can.
    """

    method: Method | None = None
    rounds: int | None = None
    everyone: bool = False
    hand_over: Callable[[Key, Tree, Tree], Tree] = take_over
    refuse: Callable[[Tree], str | None] | None = None


ALONE = (Phase(),)
"""The phases of a method that is played from the first round to the last."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Method:
    """The contract: pure functions for one client, and ``start`` and ``merge`` for the server.

    ============ ==================== ========================================================
    ``start``    server, once         (key, num_clients) -> server
    ``send``     server               (server, uid) -> download, before training
    ``offer``    server               (server, uid) -> download, to join and to serve; default ``send``
    ``answer``   server, after merge  (server, uid) -> download for ``settle``; default ``send``
    ``join``     client, first time   (key, offer) -> private
    ``train``    client               (key, download, private, data) -> upload, private, info
    ``merge``    server               (server, uploads, weights, uids) -> server
    ``settle``   client, after merge  (key, answer, private, data) -> private
    ``serve``    client, to predict   (key, offer, private, data) -> served
    ``predict``  client               (served, x) -> outputs
    ============ ==================== ========================================================

    Only ``merge`` sees clients stacked, on axis 0 of every leaf; a client of weight 0 must not count there.
    A round is one or more exchanges (send, train, merge), then ``settle``. Uids of training clients are
    0..num_clients-1, so a server table is an array indexed by uid; clients never seen in training have larger uids.
    ``plan`` is how its clients train, for whoever builds on it. ``phases`` are what is played, in order; the method
    itself is one of them. ``traits`` are what the engine must know, ``views`` other true statements about the same
    state. Equality is identity: a Method is a valid static argument of ``jit``.
    """

    model: Model
    start: Callable[[Key, int], Tree]
    train: Callable[[Key, Tree, Tree, Data], tuple[Tree, Tree, Info]]
    merge: Callable[[Tree, Tree, Array, Array], Tree]
    serve: Callable[[Key, Tree, Tree, Data], Tree]
    predict: Callable[[Tree, Array], Array]
    send: Callable[[Tree, Array], Tree] = broadcast
    join: Callable[[Key, Tree], Tree] = stateless
    settle: Callable[[Key, Tree, Tree, Data], Tree] | None = None
    offer: Callable[[Tree, Array], Tree] | None = None
    answer: Callable[[Tree, Array], Tree] | None = None
    plan: Plan = Plan()  # noqa: RUF009
    phases: tuple[Phase, ...] = ALONE
    traits: Traits = Traits()
    views: Views = Views()
    recipe: Recipe | None = None

    def __post_init__(self) -> None:
        """Refuse phases that cannot be played."""
        if [one.method for one in self.phases].count(None) != 1 or [one.rounds for one in self.phases].count(
            None
        ) != 1:
            raise BadValue(
                "phases", self.phases, "one phase of the method itself, and one that takes the rounds left"
            )

    def offered(self, server: Tree, uid: Array) -> Tree:
        """What a client downloads to join and to serve."""
        return (self.offer or self.send)(server, uid)

    def answered(self, server: Tree, uid: Array) -> Tree:
        """What a client downloads to settle."""
        return (self.answer or self.send)(server, uid)


def phases_of(method: Method) -> tuple[Phase, ...]:
    """The phases of a method with itself filled in."""
    return tuple(replace(one, method=one.method or method) for one in method.phases)


def then(
    warm_up: Method,
    rounds: int,
    main: Method,
    *,
    hand_over: Callable[[Key, Tree, Tree], Tree] = take_over,
    everyone: bool = False,
    refuse: Callable[[Tree], str | None] | None = None,
) -> Method:
    """``main`` after ``rounds`` rounds of ``warm_up``; with ``everyone`` all clients take part in those.

    A ``main`` that has a warm-up already gets this one before it, handed over to that one. What ``refuse`` makes of
    the last server state of the warm-up, if not None, is why the run ends there.
    """
    if rounds < 1:
        raise BadValue("rounds", rounds, "1 or more for a warm-up")
    *before, last = (replace(one, rounds=one.rounds or rounds) for one in phases_of(warm_up))
    first, *after = main.phases
    entered = replace(first, hand_over=hand_over, refuse=refuse)
    return replace(main, phases=(*before, replace(last, everyone=everyone), entered, *after))


def closed(base: Method, closing: Method, *, hand_over: Callable[[Key, Tree, Tree], Tree]) -> Method:
    """``closing`` for the last round of a run whose other rounds are those of ``base`` and its warm-ups.

    Everyone takes part in the last round. Clients keep nothing private over it, so ``base`` must have no private
    state.
    """
    if base.join is not stateless:
        raise Unsupported("a closing round needs a base without private state, such as fedavg or hypcluster")
    last = Phase(rounds=1, hand_over=hand_over)
    return replace(closing, traits=replace(closing.traits, full_cohort=True), phases=(*phases_of(base), last))


Channel: TypeAlias = Callable[[Key, Tree, Array, Array], tuple[Tree, Array]]
"""(key, uploads, weights, uids) -> uploads, weights: what happens between client and server."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Attack:
    """A channel on which a ``share`` of the clients attacks.

    ``members(uids)`` says who they are, so that the honest can be scored alone. ``forge(key, uploads, weights, uids,
    receivers)`` returns the uploads with the attackers' in place of theirs; ``receivers`` is None, or for every client the
    uid of the client its message is for: attackers then know, and aim at, what others send to the same one.
    ``spoil(federation)`` is for attackers who falsify their data. ``bound(num_clients)`` is the same attack by exactly that share
    of so many clients.
    """

    name: str
    share: float
    members: Callable[[Array], Array]
    forge: Callable[[Key, Tree, Array, Array, Array | None], Tree]
    spoil: Callable[[Any], Any] | None = None
    recipe: Recipe | None = None
    bound: Callable[[int], Attack] | None = None

    def __call__(
        self, key: Key, uploads: Tree, weights: Array, uids: Array, receivers: Array | None = None
    ) -> tuple[Tree, Array]:
        """What arrives, as of any channel."""
        return self.forge(key, uploads, weights, uids, receivers), weights
