"""A command starts at once: what it does not need is not imported."""

import subprocess
import sys

import pytest

HEAVY = {"jax", "numpy", "scipy", "sklearn", "polars", "matplotlib", "flax", "optax"}


def imported_by(*arguments):
    """The heavy libraries that a command imported."""
    script = f"""
import sys
from plures.cli import run
run({list(arguments)!r})
print("imported", *(name for name in {sorted(HEAVY)!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("comprae",), ("compare", "--bogus"), ("compare", "--rounds", "x")]
)
def test_help_and_mistakes_in_words_import_no_heavy_library(arguments):
    assert not imported_by(*arguments)


def test_the_list_of_methods_needs_no_statistics_and_no_tables():
    assert imported_by("methods") <= {"jax", "numpy", "optax"}
