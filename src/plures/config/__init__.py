"""Studies from TOML files: validated before anything starts, all mistakes at once, each with its line."""

from plures.config.check import ALL
from plures.config.parts import DataPart, PlanPart, TunePart
from plures.config.reading import make_study, read_source, read_study
from plures.config.source import Source
from plures.config.study import Study
from plures.config.vary import VARY, Variant, make_variants

__all__ = [
    "ALL", "DataPart", "PlanPart", "Source", "Study", "TunePart", "VARY", "Variant",
    "make_study", "make_variants", "read_source", "read_study",
]  # fmt: skip
