"""The words of the library: data, models, plans and the contract of a method.

A **method** is a handful of small pure functions written for ONE client that mark every crossing of the
network. Everything here is frozen. Three words for state are never mixed: *server* (lives centrally),
*private* (a client's, never leaves it) and *info* (diagnostics, never read back).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import Array

from plures.errors import BadValue, Unsupported

Tree: TypeAlias = Any
Key: TypeAlias = Array
Info: TypeAlias = Mapping[str, Array]
Metric: TypeAlias = Callable[[Array, Array, Array], Array]
"""(outputs, y, mask) of one client -> a scalar; rows with a false mask do not count."""


class Weights(NamedTuple):
    """What a model is made of: ``params`` move by gradients, ``stats`` by forward passes (batch norm)."""

    params: Tree
    stats: Tree = ()


class Batch(NamedTuple):
    """Some rows of one client; rows with a false ``mask`` are repeats that must not count.

    ``weight`` is how much each row counts in the training loss; None is 1 for all.
    """

    x: Array
    y: Array
    mask: Array
    weight: Array | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """``count`` rows of one client, from ``start`` on in arrays that may hold other clients' rows too.

    ``capacity`` is the largest count any client has, a static bound for whole-data passes. ``count`` is a
    Python int where all clients have equally many rows: loops and masks are then static. ``weight`` is how much
    each of the client's own rows counts in training.
    """

    x: Array
    y: Array
    start: Array | int
    count: Array | int
    capacity: int = field(metadata={"static": True})
    weight: Array | None = None

    def take(self, index: Array) -> Batch:
        """The rows at ``index``; an index past the end repeats an own row under a false mask."""
        place = jnp.minimum(index, jnp.maximum(self.count - 1, 0))

        def at(values: Array, where: Array) -> Array:
            return jnp.take(values, where, axis=0, mode="clip")

        x, y = (at(values, place + self.start) for values in (self.x, self.y))
        return Batch(x, y, index < self.count, None if self.weight is None else at(self.weight, place))

    def all(self) -> Batch:
        """Every row, padded to ``capacity``."""
        return self.take(jnp.arange(max(self.capacity, 1)))


class Drawable(Protocol):
    """Anything that batches can be drawn from: ``Rows``, or several of them put together."""

    @property
    def count(self) -> Array | int:
        """How many rows there are."""

    @property
    def capacity(self) -> int:
        """A static bound on the count of any client."""

    def take(self, index: Array) -> Batch:
        """The rows at ``index``."""

    def all(self) -> Batch:
        """Every row, padded to ``capacity``."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Data:
    """One client's examples as a method sees them: never a test row.

    ``domain`` is the client's domain and ``group`` its planted cluster (-1 where there is none); only a
    method tagged ``oracle`` may read ``group``.
    """

    train: Rows
    valid: Rows
    domain: Array | int = -1
    group: Array | int = -1


class Summary(NamedTuple):
    """Sums over rows that determine a model's mean loss on them: a client may send these instead of its rows.

    ``of(x, y, mask)`` is a tree of sums, to be added up over rows and clients. ``loss(weights, sums)`` is the mean
    loss, without penalty, of the rows that were summed. ``zeros(weights)`` are the sums of no rows, from shapes.
    """

    of: Callable[[Array, Array, Array], Tree]
    loss: Callable[[Weights, Tree], Array]
    zeros: Callable[[Weights], Tree]


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """Pure functions of a predictor, with named parts.

    ``apply`` predicts (evaluation mode). ``forward`` is the training pass: dropout drawn from its key, new
    ``stats`` returned, rows with a false mask ignored by batch statistics. ``loss`` is per example. ``task`` is
    "classification", "binary", "regression", "density" or "sequence". ``parts``
    maps a part's name ("body", "head", "norm") to patterns of the paths of its leaves ("params/head/*"). ``summary``
    says what of its rows determines the loss, where that is less than the rows. ``features`` are the inputs of the last
    layer (evaluation mode); ``featured`` is the training pass with the features it had: outputs, features, stats.
    """

    init: Callable[[Key], Weights]
    apply: Callable[[Weights, Array], Array]
    forward: Callable[[Key, Weights, Array, Array], tuple[Array, Tree]]
    loss: Callable[[Array, Array], Array]
    metrics: Mapping[str, Metric]
    score: str
    higher_is_better: bool
    task: str
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    features: Callable[[Weights, Array], Array] | None = None
    featured: Callable[[Key, Weights, Array, Array], tuple[Array, Array, Tree]] | None = None
    penalty: Callable[[Tree], Array] | None = None
    summary: Summary | None = None


def untraced(value: object) -> bool:
    """Whether the value of a number is known: one that is an argument of a program was checked before it became one."""
    return not isinstance(value, jax.core.Tracer)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Local optimization: ``epochs`` over the client's rows, or a number of ``steps`` instead.

    ``batch=None`` is full batch: one step per epoch, no shuffling, so that limits become exactly testable.
    ``optimizer`` makes an optax transformation from ``lr``.

    >>> Plan(lr=0.0)
    Traceback (most recent call last):
    plures.errors.BadValue: lr must be a positive number, got 0.0
    """

    epochs: int = 1
    steps: int | None = None
    batch: int | None = 20
    lr: float = 0.1
    optimizer: Callable[[float], optax.GradientTransformation] = optax.sgd

    def __post_init__(self) -> None:
        if untraced(self.lr) and (not isinstance(self.lr, int | float) or not 0 < self.lr < float("inf")):
            raise BadValue("lr", self.lr, "a positive number")
        if self.epochs < 0:
            raise BadValue("epochs", self.epochs, "0 or more")
        if self.steps is not None and self.steps < 0:
            raise BadValue("steps", self.steps, "0 or more")
        if not callable(self.optimizer):
            raise BadValue("optimizer", self.optimizer, "a function of the step size, such as optax.adam")
        if self.batch is not None and self.batch < 1:
            raise BadValue("batch", self.batch, "1 or more (or None for full batch)")


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
    ``common``   client               (offer) -> served: the one model for all, where there is one
    ``assign``   client               (offer, private, data) -> info: its "cluster", and how surely
    ``facts``    client               (offer, private, served) -> info: what is worth telling of its model
    ``trained``  client               (download, private, upload) -> the model its training ended with, where they tell it
    ``notes``    server, at the end   (server) -> warnings in plain words
    ``tells``    server, at the end   (server) -> what is worth knowing, in plain words
    ``forecast`` before a run         (num_clients, sizes of planted groups) -> its cost, and warnings
    ============ ==================== ========================================================

    Only ``merge`` sees clients stacked, on axis 0 of every leaf; a client of weight 0 must not count there.
    A round is ``turns`` exchanges (send, train, merge) with one cohort and one key per client, then ``settle``; where
    their number differs from round to round, ``turns(server)`` says it when a round begins. ``receivers(server, uid)``:
    an upload is a stack of messages, one for each of these clients, to whom a liar may say different things.
    ``plan`` is how its clients train, for whoever builds on it. ``transductive``: it serves only clients it was
    trained with. ``full_cohort``: everyone takes part in every round. ``num_groups``, ``num_domains``: planted
    groups and domains it reads.
    ``num_clusters``: how many ``assign`` tells apart; 0 is as many as there are clients. ``lanes``: models a client trains side by side when it is
    served. ``tolerates(num_clients)``: how many liars it is made for; None promises nothing. Uids of training clients are 0..num_clients-1, so a server table is an array indexed by uid; clients
    never seen in training have larger uids. ``norm`` is what is done with normalization layers (see ``plures.norms``). Equality is identity: a Method is a valid static argument of ``jit``.
    """

    model: Model
    start: Callable[[Key, int], Tree]
    train: Callable[[Key, Tree, Tree, Data], tuple[Tree, Tree, Info]]
    merge: Callable[[Tree, Tree, Array, Array], Tree]
    serve: Callable[[Key, Tree, Tree, Data], Tree]
    predict: Callable[[Tree, Array], Array]
    plan: Plan = Plan()
    send: Callable[[Tree, Array], Tree] = broadcast
    join: Callable[[Key, Tree], Tree] = stateless
    settle: Callable[[Key, Tree, Tree, Data], Tree] | None = None
    offer: Callable[[Tree, Array], Tree] | None = None
    answer: Callable[[Tree, Array], Tree] | None = None
    common: Callable[[Tree], Tree] | None = None
    assign: Callable[[Tree, Tree, Data], Info] | None = None
    facts: Callable[[Tree, Tree, Tree], Info] | None = None
    trained: Callable[[Tree, Tree, Tree], Weights] | None = None
    notes: Callable[[Tree], list[str]] | None = None
    tells: Callable[[Tree], list[str]] | None = None
    forecast: Callable[[int, Sequence[int]], Forecast] | None = None
    receivers: Callable[[Tree, Array], Array] | None = None
    tolerates: Callable[[int], int] | None = None
    turns: int | Callable[[Tree], Array] = 1
    prelude: Prelude | None = None
    transductive: bool = False
    full_cohort: bool = False
    num_groups: int = 0
    num_domains: int = 0
    num_clusters: int = 1
    lanes: int = 1
    norm: str = "share"

    def offered(self, server: Tree, uid: Array) -> Tree:
        """What a client downloads to join and to serve."""
        return (self.offer or self.send)(server, uid)

    def answered(self, server: Tree, uid: Array) -> Tree:
        """What a client downloads to settle."""
        return (self.answer or self.send)(server, uid)


def take_over(key: Key, fresh: Tree, before: Tree) -> Tree:
    """The prelude's server state as it is."""
    return before


@dataclass(frozen=True, kw_only=True, eq=False)
class Prelude:
    """An ordinary method run for ``rounds`` first, whose server state starts the main one.

    With ``leave`` instead of ``rounds`` it plays all rounds of the run but so many, and is what the run is about:
    the method it leads to only closes it. ``hand_over(key, fresh, before)`` makes the main method's server state from its own ``start`` and the
    prelude's last server state. Private rows do not carry over: clients join the main method anew. ``refuse(before)``
    says, of that state, why the main method cannot go on from it; None where it can.
    """

    method: Method
    rounds: int = 0
    hand_over: Callable[[Key, Tree, Tree], Tree] = take_over
    everyone: bool = False
    leave: int = 0
    refuse: Callable[[Tree], str | None] | None = None


def then(
    prelude: Method,
    rounds: int,
    main: Method,
    *,
    hand_over: Callable[[Key, Tree, Tree], Tree] = take_over,
    everyone: bool = False,
    refuse: Callable[[Tree], str | None] | None = None,
) -> Method:
    """``main`` after ``rounds`` rounds of ``prelude``; with ``everyone`` all clients take part in those.

    A ``main`` that has a prelude already gets this one before it, handed over to that one. What ``refuse`` makes of the
    prelude's last server state, if not None, is why the run ends there.
    """
    if rounds < 1:
        raise BadValue("rounds", rounds, "1 or more for a prelude")
    if main.prelude is not None:
        first = then(prelude, rounds, main.prelude.method, hand_over=hand_over, everyone=everyone, refuse=refuse)
        return replace(main, prelude=replace(main.prelude, method=first))
    link = Prelude(method=prelude, rounds=rounds, hand_over=hand_over, everyone=everyone, refuse=refuse)
    return replace(main, prelude=link)


def closed(base: Method, closing: Method, *, hand_over: Callable[[Key, Tree, Tree], Tree]) -> Method:
    """``closing`` for the last round of a run whose other rounds are those of ``base`` and its preludes.

    Everyone takes part in the last round. Clients keep nothing private over it, so ``base`` must have no private
    state.
    """
    if base.join is not stateless:
        raise Unsupported("a closing round needs a base without private state, such as fedavg or hypcluster")
    return replace(closing, full_cohort=True, prelude=Prelude(method=base, hand_over=hand_over, leave=1))


Channel: TypeAlias = Callable[[Key, Tree, Array, Array], tuple[Tree, Array]]
"""(key, uploads, weights, uids) -> uploads, weights: what happens between client and server."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Attack:
    """A channel on which a ``share`` of the clients lies.

    ``members(uids)`` says who they are, so that the honest can be scored alone. ``forge(key, uploads, weights, uids,
    receivers)`` returns the uploads with the liars' in place of theirs; ``receivers`` is None, or for every client the
    uid of the client its message is for: attackers then know, and aim at, what others send to the same one.
    ``spoil(federation)`` is for liars about their data. ``bound(num_clients)`` is the same attack by exactly that share
    of so many clients.
    """

    name: str
    share: float
    members: Callable[[Array], Array]
    forge: Callable[[Key, Tree, Array, Array, Array | None], Tree]
    spoil: Callable[[Any], Any] | None = None
    bound: Callable[[int], Attack] | None = None

    def __call__(
        self, key: Key, uploads: Tree, weights: Array, uids: Array, receivers: Array | None = None
    ) -> tuple[Tree, Array]:
        """What arrives, as of any channel."""
        return self.forge(key, uploads, weights, uids, receivers), weights
