"""What can be seen of a Python function that no traced program holds: a callback, or what reports in words.

Its byte code and constants, the names it uses and what they stand for, its defaults, what it closes over and what it is bound
to. Functions and classes of this library and of installed ones are known by their names: versions are known elsewhere.
Another process sees the same bytes. What nothing can be said of is never the same.
"""

from __future__ import annotations

import functools
import re
import sys
import sysconfig
import uuid
import zlib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

LIBRARIES = tuple(
    {str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))}
)
PLAIN = (str, bytes, int, float, complex, bool, type(None), type(...), range, slice, re.Pattern, PurePath, np.dtype)


def code_of(thing: Any) -> Iterator[bytes]:
    """Bytes that differ wherever two things, or what they use, compute something else."""
    for piece in _pieces(thing, {}):
        yield len(piece).to_bytes(8, "big") + piece


def _pieces(thing: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[bytes]:
    """``seen`` has what came before by its id, and holds it: an id is given again to what comes after."""
    if isinstance(thing, PLAIN):
        yield f"{type(thing).__name__} {thing!r}".encode()
    elif isinstance(thing, np.ndarray | np.generic | jax.Array):
        array = np.asarray(thing)
        yield repr((array.shape, str(array.dtype))).encode()
        yield from _pieces(array.tolist(), seen) if array.dtype.hasobject else [array.tobytes()]
    elif isinstance(thing, set | frozenset):
        yield f"set of {len(thing)}".encode()
        yield from sorted(b"".join(_pieces(one, dict(seen))) for one in thing)
    elif id(thing) in seen:
        yield f"seen as {seen[id(thing)][0]}".encode()
    else:
        seen[id(thing)] = len(seen), thing
        kind, parts = _parts(thing)
        yield f"{kind} of {len(parts)}".encode()
        for part in parts:
            yield from _pieces(part, seen)


def _parts(thing: Any) -> tuple[str, list[Any]]:
    """What a thing is called, and what it is made of."""
    if isinstance(thing, tuple | list):
        return type(thing).__name__, list(thing)
    if isinstance(thing, dict):
        return "dict", [part for item in thing.items() for part in item]
    if isinstance(thing, ModuleType):
        return f"module {thing.__name__} {_content(thing)}", []
    if isinstance(thing, MethodType):
        return "method", [thing.__func__, thing.__self__]
    if isinstance(thing, functools.partial):
        return "partial", [thing.func, thing.args, thing.keywords]
    if isinstance(thing, CodeType):
        return "code", [thing.co_code, thing.co_names, list(thing.co_consts)]
    if isinstance(thing, FunctionType):
        return _function(thing)
    if isinstance(thing, type):
        return _class(thing)
    if isinstance(thing, Enum):
        return f"{type(thing).__qualname__}.{thing.name}", []
    if isinstance(thing, BuiltinFunctionType | np.ufunc):
        owner = getattr(thing, "__self__", None)
        bound = [] if owner is None or isinstance(owner, ModuleType) else [owner]
        return f"{getattr(thing, '__module__', '')}.{thing.__name__}", bound
    return _object(thing)


def _function(function: FunctionType) -> tuple[str, list[Any]]:
    held = [function.__defaults__, function.__kwdefaults__, [_held(cell) for cell in function.__closure__ or ()]]
    if function.__code__.co_filename.startswith(LIBRARIES):
        return f"{function.__module__}.{function.__code__.co_qualname}", held
    used = _names(function.__code__)
    values = {name: one for name, one in sorted(function.__globals__.items()) if name in used}
    return "function", [function.__code__, *held, values]


def _class(cls: type) -> tuple[str, list[Any]]:
    source = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if source is None or source.startswith(LIBRARIES):
        return f"{cls.__module__}.{cls.__qualname__}", []
    told = (FunctionType, staticmethod, classmethod, property, *PLAIN, tuple, list, dict, np.ndarray)
    own = {name: one for name, one in sorted(vars(cls).items()) if isinstance(one, told) and not _is_about(name)}
    return f"class {cls.__qualname__}", [list(cls.__bases__), own]


def _is_about(name: str) -> bool:
    """Whether a name is what a class tells of itself, and no computation."""
    return name in (
        "__module__",
        "__doc__",
        "__firstlineno__",
        "__static_attributes__",
        "__qualname__",
        "__annotations__",
    )


def _object(thing: Any) -> tuple[str, list[Any]]:
    if isinstance(thing, staticmethod | classmethod):
        return type(thing).__name__, [thing.__func__]
    if isinstance(thing, property):
        return "property", [thing.fget, thing.fset]
    if callable(inner := getattr(thing, "__wrapped__", None)):
        return f"wrapped by {type(thing).__qualname__}", [inner]
    slots = {name: getattr(thing, name, None) for cls in type(thing).__mro__ for name in _slots(cls)}
    held = {**getattr(thing, "__dict__", {}), **slots}
    return ("object", [type(thing), held]) if held or type(thing) is not object else (uuid.uuid4().hex, [])


def _slots(cls: type) -> tuple[str, ...]:
    found = vars(cls).get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)


def _content(module: ModuleType) -> str:
    """A checksum of a module that is no library's; those are known by their names."""
    source = getattr(module, "__file__", None)
    if source is None or source.startswith(LIBRARIES):
        return ""
    return f"{zlib.crc32(Path(source).read_bytes()):08x}"


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that nothing was given to yet
        return None


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(one) for one in code.co_consts if isinstance(one, CodeType)))
