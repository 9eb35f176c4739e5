"""What all tests share: programs are compiled quickly, and given back before a process holds too many of them."""

import os
from pathlib import Path

# Test programs are small and run once: most of the time went into making them fast. Without optimization and without
# the emitters of fused loops they are compiled in a third of the time. Read when jax is imported.
QUICK_TO_COMPILE = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
os.environ.setdefault("XLA_FLAGS", " ".join(QUICK_TO_COMPILE))

# A command that a test runs turns on the store of compiled programs, and such programs cannot be stored.
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")

# Workers have stores of their own: one would read what another is still writing.
if "PYTEST_XDIST_WORKER" in os.environ and "JAX_COMPILATION_CACHE_DIR" in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] += "/" + os.environ["PYTEST_XDIST_WORKER"]

import jax
import pytest
from _pytest.doctest import DoctestModule


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Examples in docstrings are the package's: looking for some in every test took a third of the time of collecting."""
    found = yield
    if "tests" not in file_path.relative_to(Path(__file__).parent).parts:
        return found
    return [one for one in found if not isinstance(one, DoctestModule)]


MAPS = Path("/proc/self/maps")
MOST = 40_000  # Linux allows a process 65,530 mapped pieces of memory; every compiled program takes several.


@pytest.fixture(autouse=True)
def _room_to_compile():
    """After a test, forget compiled programs if there are many."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST:
        jax.clear_caches()
