"""Aggregators: stacked uploads to one, or to the centers of their clusters."""

from plures.aggregate.aggregators import AGGREGATORS, Aggregator, build_aggregator, num_tolerated
from plures.aggregate.averaging import Aggregation, Averaging
from plures.aggregate.graph import Edges, build_graph, complete_graph, mixed_graph, neighbor_graph
from plures.aggregate.norm_fusion import Fused, consensus_threshold, fuse, total_variation
from plures.aggregate.radius import Fixed, Gap, KNearest, Quantile, Radius, SqrtSigmaDelta, as_radius, radius_notes
from plures.aggregate.robust import (
    bucketing,
    centered_clip,
    geometric_median,
    krum,
    median,
    multi_krum,
    trimmed_mean,
)
from plures.aggregate.threshold import Clustered, threshold_clustering
from plures.aggregate.weighting import check_weighting, client_weights, mean
