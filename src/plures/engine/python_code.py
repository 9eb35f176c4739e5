"""What can be seen of a Python function that no traced program holds: a callback, or what reports in words.

Its byte code and constants, the names it uses and what they stand for, its defaults, what it closes over and what it is bound
to. Functions of installed libraries are known by name and version. What nothing can be said of is never the same.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import uuid
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

from plures.recipe import describe

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def code_of(thing: Any, seen: set[int] | None = None) -> Iterator[bytes]:
    """Bytes that differ wherever two things, or what they use, compute something else."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    said = _in_words(thing)
    if said is not None:
        yield said.encode()
    elif isinstance(thing, np.ndarray | np.generic | jax.Array):
        yield repr((np.shape(thing), np.asarray(thing).dtype)).encode() + np.asarray(thing).tobytes()
    elif isinstance(thing, tuple | list):
        for part in (type(thing).__name__, *thing):
            yield from code_of(part, seen)
    elif isinstance(thing, dict):
        yield from code_of(list(thing.items()), seen)
    else:
        seen.add(id(thing))
        for part in _parts(thing):
            yield from code_of(part, seen)


def _in_words(thing: Any) -> str | None:
    """A text that says all of a thing: a value, or the name of something in a library; None if there is none."""
    if isinstance(thing, ModuleType):
        return f"{thing.__name__} {getattr(thing, '__version__', '')}"
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if isinstance(module, str) and name and "<" not in name and not isinstance(thing, MethodType):
        source = getattr(sys.modules.get(module), "__file__", None)
        if (source is None and module == "builtins") or (source is not None and source.startswith(LIBRARIES)):
            root = sys.modules.get(module.partition(".")[0])
            return f"{module}.{name} {getattr(root, '__version__', '')}"
    return None if isinstance(thing, FunctionType | type) else describe(thing)


def _parts(thing: Any) -> Iterator[Any]:
    """What a thing is made of."""
    if isinstance(thing, MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, CodeType):
        yield from (thing.co_code.hex(), thing.co_names, [repr(one) for one in thing.co_consts if _is_plain(one)])
        yield from (one for one in thing.co_consts if isinstance(one, CodeType))
    elif isinstance(thing, FunctionType):
        yield from (thing.__code__, thing.__defaults__, thing.__kwdefaults__)
        yield from (cell.cell_contents for cell in thing.__closure__ or ())
        used = _names(thing.__code__)
        yield {name: one for name, one in sorted(thing.__globals__.items()) if name in used}
    elif isinstance(thing, type):
        yield thing.__qualname__
        yield {name: one for name, one in vars(thing).items() if not name.startswith("__") or callable(one)}
        yield thing.__bases__
    elif isinstance(thing, staticmethod | classmethod | property):
        yield getattr(thing, "__func__", None) or (thing.fget, thing.fset)  # type: ignore[union-attr]
    elif hasattr(thing, "__dict__"):
        yield from (type(thing), vars(thing))
    else:
        yield uuid.uuid4().hex


def _is_plain(constant: Any) -> bool:
    return not isinstance(constant, CodeType)


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(one) for one in code.co_consts if isinstance(one, CodeType)))
