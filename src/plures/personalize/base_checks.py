"""What a personalizer may ask of its base."""

from __future__ import annotations

from plures.errors import BadValue, Unsupported
from plures.method import Method


def needs_weights(name: str, base: Method) -> None:
    """Refuse a base that serves something other than the weights of its model."""
    if base.predict is not base.model.apply:
        raise Unsupported(
            f"{name} needs a base that serves a plain model; put it first, before other personalizers"
        )


def check_shares(name: str, given: tuple[float, ...]) -> tuple[float, ...]:
    """Numbers in [0, 1] in ascending order, each once; refuses others and none at all."""
    if not given or not all(0 <= share <= 1 for share in given):
        raise BadValue(name, given[0] if len(given) == 1 else given, "in [0, 1]")
    return tuple(sorted(set(given)))
