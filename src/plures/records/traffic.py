"""Bytes on the wire, derived from the messages themselves."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from plures import tree
from plures.types import Data, Method, Rows, Tree


@dataclass(frozen=True)
class Traffic:
    """Bytes of each message of one client.

    ``join`` is the extra download at first contact (0 where ``send`` serves for it too); ``down`` and ``up``
    are per turn, of which most methods make one a round; ``answer`` is the second download of methods that settle.
    """

    join: int
    down: int
    up: int
    answer: int
    serve: int

    @property
    def per_round(self) -> int:
        """Bytes both ways for one client and a round of one turn."""
        return self.down + self.up + self.answer


def traffic_of(method: Method, server: Tree, rows: tuple[Rows, Rows]) -> Traffic:
    """The messages of one round, from shapes alone; ``rows`` are any client's train and valid rows."""

    def messages(server: Tree) -> tuple[Tree, ...]:
        uid, key = jnp.zeros((), jnp.int32), jax.random.key(0)
        offer, download = method.offered(server, uid), method.send(server, uid)
        data = Data(*rows, domain=jnp.zeros((), jnp.int32), group=jnp.zeros((), jnp.int32))
        upload, _, _ = method.train(key, download, method.join(key, offer), data)
        return offer, download, upload, method.answered(server, uid)

    offer, download, upload, answer = (tree.num_bytes(one) for one in jax.eval_shape(messages, server))
    return Traffic(
        join=0 if method.offer is None else offer,
        down=download,
        up=upload,
        answer=0 if method.settle is None else answer,
        serve=offer,
    )
