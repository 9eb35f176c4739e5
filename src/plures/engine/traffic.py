"""Bytes on the wire, derived from the messages themselves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from plures import tree
from plures.method import Method
from plures.types import Data, Rows, Tree


@dataclass(frozen=True)
class Traffic:
    """Bytes of each message of one client.

    ``join`` is the extra download at first contact (0 where ``send`` serves for it too); ``down`` and ``up``
    are per exchange, of which most methods make one a round; ``answer`` is the second download of methods that settle.
    """

    join: int
    down: int
    up: int
    answer: int
    serve: int


def traffic_of(method: Method, server: Tree, rows: tuple[Rows, Rows]) -> Traffic:
    """The messages of one round, from shapes alone; ``rows`` are any client's train and valid rows."""
    shapes = _messages.eval_shape(method, server, rows)  # type: ignore[no-untyped-call]
    offer, download, upload, answer = (tree.num_bytes(one) for one in shapes)
    return Traffic(
        join=0 if method.offer is None else offer,
        down=download,
        up=upload,
        answer=0 if method.settle is None else answer,
        serve=offer,
    )


@partial(jax.jit, static_argnums=0)  # never run: so the shapes of a method are found once for all seeds
def _messages(method: Method, server: Tree, rows: tuple[Rows, Rows]) -> tuple[Tree, ...]:
    """All messages of one client in one round."""
    uid, key = jnp.zeros((), jnp.int32), jax.random.key(0)
    offer, download = method.offered(server, uid), method.send(server, uid)
    data = Data(*rows, domain=uid, group=uid)
    upload, _, _ = method.train(key, download, method.join(key, offer), data)
    return offer, download, upload, method.answered(server, uid)
