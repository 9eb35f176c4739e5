"""What all tests share: programs are compiled quickly, and given back before a process holds too many of them."""

import os
from pathlib import Path

# Test programs are small and run once: half of the time went into making them fast. Read when jax is imported.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

# A command that a test runs turns on the store of compiled programs, and such programs cannot be stored.
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")

# Workers have stores of their own: one would read what another is still writing.
if "PYTEST_XDIST_WORKER" in os.environ and "JAX_COMPILATION_CACHE_DIR" in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] += "/" + os.environ["PYTEST_XDIST_WORKER"]

import jax
import pytest

MAPS = Path("/proc/self/maps")
MOST = 40_000  # Linux allows a process 65,530 mapped pieces of memory; every compiled program takes several.


@pytest.fixture(autouse=True)
def _room_to_compile():
    """After a test, forget compiled programs if there are many."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST:
        jax.clear_caches()
