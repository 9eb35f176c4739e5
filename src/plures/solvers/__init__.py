"""Exact solvers: mathematics on all clients at once, in double precision, with proofs of what they return."""

from plures.solvers.certificate import Certificate, certify, gap_bound, objective, true_gap
from plures.solvers.clients import Clients, as_clients, points_as_clients
from plures.solvers.degree import PlugIn, Validated, plug_in_degree, valid_degree
from plures.solvers.degree import statistics as degree_statistics
from plures.solvers.fitting import ConvexClustering, Fitted, convex_clustering
from plures.solvers.flow import Flow, flow_test, threshold
from plures.solvers.graph import Graph, complete, from_edges, linked, mixed, nearest, sketched
from plures.solvers.grouped import Partition
from plures.solvers.interval import Interval, certified_interval
from plures.solvers.kernel import Fused, fuse
from plures.solvers.links import LINKS, Link
from plures.solvers.newcomer import Placed
from plures.solvers.path import Consensus, Path, consensus, follow, grid
from plures.solvers.penalized import Optimality, Penalized, curvature_bounds
from plures.solvers.penalized_rounds import Trace, ditto, fedclup, l2gd, pfedme
from plures.solvers.quadratic import Quadratics, Solved
from plures.solvers.rounds import douglas_rachford, fista, linearized_admm
from plures.solvers.scalings import FACTORS, from_alpha, l2gd_strength, to_alpha
from plures.solvers.settled import Outlook, Settled, outlook, settled_degree
from plures.solvers.solve import Problem, Solution, solve
from plures.solvers.theorems import apart_bound, fused_bound

__all__ = [
    "FACTORS",
    "LINKS",
    "Certificate",
    "Clients",
    "Consensus",
    "ConvexClustering",
    "Fitted",
    "Flow",
    "Fused",
    "Graph",
    "Interval",
    "Link",
    "Optimality",
    "Outlook",
    "Partition",
    "Path",
    "Penalized",
    "Placed",
    "PlugIn",
    "Problem",
    "Quadratics",
    "Settled",
    "Solution",
    "Solved",
    "Trace",
    "Validated",
    "apart_bound",
    "as_clients",
    "certified_interval",
    "certify",
    "complete",
    "consensus",
    "convex_clustering",
    "curvature_bounds",
    "degree_statistics",
    "ditto",
    "douglas_rachford",
    "fedclup",
    "fista",
    "flow_test",
    "follow",
    "from_alpha",
    "from_edges",
    "fuse",
    "fused_bound",
    "gap_bound",
    "grid",
    "l2gd",
    "l2gd_strength",
    "linearized_admm",
    "linked",
    "mixed",
    "nearest",
    "objective",
    "outlook",
    "pfedme",
    "plug_in_degree",
    "points_as_clients",
    "settled_degree",
    "sketched",
    "solve",
    "threshold",
    "to_alpha",
    "true_gap",
    "valid_degree",
]
