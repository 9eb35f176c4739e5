"""The words of all advice for the families of models between which clients choose."""

from __future__ import annotations

FAMILIES = {
    "global": "one model for all",
    "alone": "models trained alone",
    "shift": "one model of inputs that each client normalizes",
    "clusters": "one model per cluster",
    "personal": "own models near a shared one",
}
"""Simple ones first: a later one has to do clearly better."""

DECISIONS = {"global": "global", "cluster": "clusters", "personalize": "personal", "alone": "alone"}
"""What a client may decide for, in the order in which it tries them, and the family that it is."""

ENDS = {"alone": "training alone", "global": FAMILIES["global"]}
"""No collaboration, and nothing but."""
