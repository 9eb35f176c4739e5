"""The words of all advice for the families of models between which clients choose."""

from __future__ import annotations

from enum import StrEnum


class ModelFamily(StrEnum):
    """What a client may take; simple ones first: a later one has to do clearly better."""

    GLOBAL = "global"
    ALONE = "alone"
    SHIFT = "shift"
    CLUSTERS = "clusters"
    PERSONAL = "personal"


FAMILIES: dict[str, str] = {
    ModelFamily.GLOBAL: "one model for all",
    ModelFamily.ALONE: "models trained alone",
    ModelFamily.SHIFT: "one model of inputs that each client normalizes",
    ModelFamily.CLUSTERS: "one model per cluster",
    ModelFamily.PERSONAL: "own models near a shared one",
}

DECISIONS: tuple[str, ...] = (ModelFamily.GLOBAL, ModelFamily.CLUSTERS, ModelFamily.PERSONAL, ModelFamily.ALONE)
"""What a client may decide for, in the order in which it tries them."""

ENDS: dict[str, str] = {ModelFamily.ALONE: "training alone", ModelFamily.GLOBAL: FAMILIES[ModelFamily.GLOBAL]}
"""No collaboration, and nothing but."""
