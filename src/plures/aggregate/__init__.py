"""Aggregators: stacked uploads to one."""

from plures.aggregate.mean import check_weighting, client_weights, mean

__all__ = ["check_weighting", "client_weights", "mean"]
