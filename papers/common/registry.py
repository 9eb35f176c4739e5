"""The reproductions by name: ``run.py`` of every paper registers its own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from plures.registry import Registry

REPRODUCTIONS = Registry("reproduction")

reproduction = REPRODUCTIONS.register


def import_papers() -> Registry:
    """Import ``run.py`` of every paper, so that all reproductions are known."""
    for path in sorted(Path(__file__).parents[1].glob("*/run.py")):
        import_module(f"papers.{path.parent.name}.run")
    return REPRODUCTIONS
