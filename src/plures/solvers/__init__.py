"""Exact solvers: mathematics on all clients at once, in double precision, with proofs of what they return."""

from plures.solvers.certificate import Certificate, certify, gap_bound, objective, true_gap
from plures.solvers.clients import Clients, as_clients, points_as_clients
from plures.solvers.degree import ValidatedDegree, valid_degree
from plures.solvers.estimator import ConvexClustering, Fitted, convex_clustering
from plures.solvers.flow import Flow, flow_test, threshold
from plures.solvers.fused_problem import Problem, Solution, solve
from plures.solvers.graph import Graph, complete, from_edges, linked, mixed, nearest, sketched
from plures.solvers.interval import AlphaInterval, certified_interval
from plures.solvers.losses import LINEAR_LOSSES, LinearLoss
from plures.solvers.newcomer import PlacedNewcomer
from plures.solvers.partition import Partition
from plures.solvers.path import ClusterPath, Consensus, consensus, follow, grid
from plures.solvers.penalized import Penalized
from plures.solvers.point_fusion import FusedPoints, fuse
from plures.solvers.quadratic import PenalizedSolution, Quadratics
from plures.solvers.reml import Outlook, RemlDegree, outlook, reml_degree
from plures.solvers.scalings import FACTORS, from_alpha, to_alpha
from plures.solvers.splitting import douglas_rachford
