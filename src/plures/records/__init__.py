"""Records: scores, diagnostics and traffic of a run."""

from plures.records.record import Record, Scores, Visits
from plures.records.traffic import Traffic, traffic_of

__all__ = ["Record", "Scores", "Traffic", "Visits", "traffic_of"]
