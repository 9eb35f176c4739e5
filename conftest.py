"""What all tests share: compiled programs are given back before a process holds too many of them."""

from pathlib import Path

import jax
import pytest

MAPS = Path("/proc/self/maps")
MOST = 15_000  # Linux allows a process 65,530 mapped pieces of memory; every compiled program takes several.


@pytest.fixture(autouse=True, scope="module")
def _room_to_compile():
    """After a file of tests, forget compiled programs if there are many."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST:
        jax.clear_caches()
