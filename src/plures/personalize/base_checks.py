"""What a personalizer may ask of its base."""

from __future__ import annotations

from plures.errors import BadValue, UnknownChoice, Unsupported
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


def check_lam(lam: float | str, words: tuple[str, ...]) -> None:
    """Refuse what is neither a number in [0, 1] nor one of the words."""
    if not isinstance(lam, str):
        check_shares("lam", (lam,))
    elif lam not in words:
        raise UnknownChoice("lam (besides numbers in [0, 1])", lam, words)
