"""What a personalizer may ask of its base."""

from __future__ import annotations

from plures.errors import Unsupported
from plures.types import Method


def needs_weights(name: str, base: Method) -> None:
    """Refuse a base that serves something other than the weights of its model."""
    if base.predict is not base.model.apply:
        raise Unsupported(
            f"{name} needs a base that serves a plain model; put it first, before other personalizers"
        )
