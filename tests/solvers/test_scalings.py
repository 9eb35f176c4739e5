"""One strength, many units: the objectives as they are written in the paper have the solution of the canonical one."""

import cvxpy as cp
import numpy as np
import pytest
from ellipses_world import hinge
from referee import own_loss, solved

from plures.errors import UnknownChoice
from plures.solvers import FACTORS, Problem, complete, from_alpha, solve, to_alpha

ALPHA = 0.25
WRITTEN = {  # (factor of the losses, whether every pair counts twice)
    "alpha": (lambda num: 1.0, False),
    "literal (3)": (lambda num: 1.0 / num, True),
    "(3), unordered": (lambda num: 1.0 / num, False),
    "(14)": (lambda num: 1.0, True),
    "(6), (9), (13)": (lambda num: 1.0, False),
}


def test_every_scaling_is_written_down_here():
    assert FACTORS.keys() == WRITTEN.keys()


@pytest.mark.parametrize("scaling", FACTORS)
def test_the_papers_objective_has_the_solution_of_the_canonical_one(scaling):
    clients = hinge(0, per=3)
    num = clients.num
    lam = from_alpha(ALPHA, scaling, num)
    factor, twice = WRITTEN[scaling]
    x = cp.Variable((num, clients.dim))
    pairs = [(i, j) for i in range(num) for j in range(num) if i < j or (twice and i != j)]

    found = solve(Problem(clients, complete(num), to_alpha(lam, scaling, num)))

    losses = factor(num) * sum(own_loss(clients, i, x[i]) for i in range(num))
    wanted = solved(losses + lam * sum(cp.norm(x[i] - x[j]) for i, j in pairs), x)
    assert 1 < found.num_clusters < num
    np.testing.assert_allclose(found.x, wanted, atol=1e-4)


@pytest.mark.parametrize("scaling", FACTORS)
def test_there_and_back_is_where_it_was(scaling):
    assert from_alpha(to_alpha(0.3, scaling, 7), scaling, 7) == pytest.approx(0.3, rel=1e-15)


@pytest.mark.parametrize("convert", [to_alpha, from_alpha])
def test_an_unknown_scaling_is_refused(convert):
    with pytest.raises(UnknownChoice, match=r"no scaling is called '\(15\)'"):
        convert(1.0, "(15)", 3)
