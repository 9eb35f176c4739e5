"""What is seen of Python functions: another process sees the same, and another function something else."""

import functools
import operator
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from plures.engine.python_code import code_of

EVERY_REPORT = """
import hashlib
from plures.contract import worlds
from plures.contract.bench import subjects
from plures.engine.python_code import code_of

for name, subject in sorted((one.name, one) for one in subjects()):
    method = subject.build(subject.model, worlds.PLAN, {})
    if method.views.report is not None:
        print(name, hashlib.sha256(b"".join(code_of(method.views.report))).hexdigest())
"""


def seen(thing):
    return b"".join(code_of(thing))


class Pair(NamedTuple):
    one: int
    other: float


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Frozen:
    value: float


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def in_a_set(x):
    return x in {"a", "b", "c", "dd"}


@jax.jit
def jitted(x):
    return 2 * x


THINGS = [
    Pair,
    Pair(1, 2.0),
    Color.RED,
    Frozen(1.0),
    Frozen,
    Slotted(2),
    in_a_set,
    jitted,
    operator.add,
    functools.reduce,
    re.compile("a+"),
    Path("a/b"),
    np.dtype("float32"),
    {"x", "y", "zz"},
    frozenset({1, 2}),
    np.array(["a", None], object),
    np.sin,
    len,
    [1, (2, 3)],
    {1: 2},
]
PROCESS = """
import hashlib, sys
sys.path.insert(0, {folder!r})
from test_python_code import THINGS, seen
print([hashlib.sha256(seen(one)).hexdigest() for one in THINGS])
"""


def printed(program, seed):
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout


@pytest.mark.parametrize(
    "program", [PROCESS.format(folder=str(Path(__file__).parent)), EVERY_REPORT], ids=["things", "reports"]
)
def test_another_process_sees_the_same(program):
    first, second = (printed(program, seed) for seed in ("1", "2"))

    assert first == second
    assert len(first) > 500


def test_things_that_differ_are_seen_to_differ():
    assert len({seen(one) for one in THINGS}) == len(THINGS)


def wrapped(factor):
    @functools.wraps(np.mean)
    def call(x):
        return factor * x

    return call


def empty_cell():
    def call():
        return later

    if call is None:
        later = 1
    return call


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (wrapped(2), wrapped(3)),
        ([in_a_set, in_a_set], [in_a_set]),
        ((0, 1), [0, 1]),
        ({1: 2}, {"1": 2}),
        (Color.RED, Color.BLUE),
        (Slotted(1), Slotted(2)),
        (["ab", "c"], ["a", "bc"]),
        (lambda x: x + 1, lambda x: x + 2),
    ],
)
def test_each_of_two(one, other):
    assert seen(one) == seen(one)
    assert seen(one) != seen(other)


def test_a_module_of_ones_own_is_known_by_what_is_in_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "mine_alone.py"
    file.write_text("def f(x):\n    return x\n")
    import mine_alone

    def call(x):
        return mine_alone.f(x)

    before = seen(call)
    file.write_text("def f(x):\n    return 2 * x\n")

    assert seen(call) != before


def test_a_name_that_stands_for_nothing_yet_is_no_error():
    assert seen(empty_cell())


def test_what_nothing_can_be_said_of_is_never_the_same():
    assert seen(object()) != seen(object())
