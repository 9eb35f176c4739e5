"""Synthetic federations whose answers are known in closed form: the test-bed, shipped to users too."""

from plures.data.worlds.clusters import linear_clusters, logistic_clusters
from plures.data.worlds.known_optima import cube_regression, ellipses, quadratics
from plures.data.worlds.means import centered_offsets, mean_estimation
from plures.data.worlds.offsets import linear_offsets, logistic_offsets
from plures.data.worlds.symbols import density, density_truth, one_or_any, partition_loss
from plures.data.worlds.world import World
