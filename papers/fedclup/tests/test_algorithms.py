"""Rounds of FedCLUP on one problem: how many, where they end, and which steps are refused."""

import jax
import numpy as np
import pytest
from ellipses_world import tables

from papers.fedclup.algorithms import ditto, fedclup, l2gd, pfedme
from plures.errors import BadData, BadValue, Unsupported
from plures.moreau import envelope
from plures.solvers import Penalized, Quadratics, as_clients

LAMS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
EXACT = (2, 4, 10, 41, 76, 83)
AVERAGED = (2, 4, 12, 78, 735, 7297)
AUTO = (9, 8, 12, 43, 77, 84)
INNER = (14, 16, 14, 6, 3, 2)
LOW, HIGH = 0.608, 11.86


def drawn(seed=1, num=10, rows=60, dim=5):
    """Linear regressions with covariances from 1 to 8, noise 1, and models that differ by 0.5 in every coordinate.

    The table's own draw is not known, and rounds vary by half from draw to draw (benchmarks/fedclup.md); the seed is that of
    the draw nearest to the table.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, rows, dim)) * np.sqrt(np.geomspace(1, 8, dim))
    truth = rng.normal(size=dim) + 0.5 * rng.normal(size=(num, dim))
    return x, np.einsum("mnd,md->mn", x, truth) + rng.normal(size=(num, rows))


@pytest.fixture(scope="module")
def problem():
    """The regressions, with Hessians stretched a little so that their eigenvalues reach from 0.608 to 11.86."""
    plain = Quadratics.from_rows(*drawn())
    low, high = plain.bounds
    pace = (HIGH - LOW) / (high - low)
    a = pace * plain.a + (LOW - pace * low) * np.eye(5)
    alone = np.linalg.solve(plain.a, plain.b[..., None])
    return Quadratics.of(a, np.matmul(a, alone)[..., 0])


@pytest.fixture(scope="module")
def small():
    """Three clients of unequal weights, with rows."""
    x, y = drawn(seed=3, num=3, rows=12, dim=2)
    return as_clients(x, y, loss="least_squares", ridge=0.1, intercept=False), np.array([0.5, 0.2, 0.3])


@pytest.fixture(scope="module")
def quadratics(small):
    return Quadratics.from_clients(*small)


@pytest.fixture(scope="module")
def classes():
    world = tables("logistic", num=6, rows=12)
    return Penalized(as_clients(world.x, world.y, loss="logistic", ridge=0.1), np.arange(1, 7) / 21)


def test_the_problem_has_the_curvature_of_the_table(problem):
    assert problem.bounds.least == pytest.approx(LOW, abs=1e-12)
    assert problem.bounds.most == pytest.approx(HIGH, abs=1e-12)


@pytest.mark.parametrize(("lam", "rounds"), list(zip(LAMS, EXACT, strict=True)))
def test_rounds_with_an_exact_prox_are_those_of_the_table(problem, lam, rounds):
    found = fedclup(problem, lam, inner=np.inf)

    assert found.own_error[-1] <= 1e-8
    assert found.rounds == pytest.approx(rounds, rel=0.1)


@pytest.mark.parametrize(("lam", "rounds"), list(zip(LAMS, AVERAGED, strict=True)))
def test_rounds_of_plain_averaging_are_those_of_the_table(problem, lam, rounds):
    found = fedclup(problem, lam, gamma=1 / lam, inner=np.inf, rounds=10_000)

    assert found.own_error[-1] <= 1e-8
    assert found.rounds == pytest.approx(rounds, rel=0.1)


@pytest.mark.parametrize(("lam", "rounds", "inner"), list(zip(LAMS, AUTO, INNER, strict=True)))
def test_the_automatic_number_of_inner_steps_costs_at_most_a_tenth_more_rounds(problem, lam, rounds, inner):
    found = fedclup(problem, lam)

    assert found.own_error[-1] <= 1e-8
    assert found.inner == inner
    assert found.rounds <= 1.1 * rounds
    assert found.gradients == inner * found.rounds


def test_rounds_grow_with_lam_and_stop_growing_at_those_of_one_global_model(problem):
    """Gradient descent on the pooled loss with the step 1 / L, to the same error."""
    a, b = problem.a.mean(0), problem.b.mean(0)
    goal, model, count = np.linalg.solve(a, b), np.zeros(5), 0
    while np.sum((model - goal) ** 2) > 1e-8 * np.sum(goal**2):
        model, count = model - (a @ model - b) / HIGH, count + 1

    found = [fedclup(problem, lam, inner=np.inf).rounds for lam in (*LAMS, 1e4, 1e6)]

    assert found == sorted(found)
    assert abs(found[-1] - count) <= 1


def test_rounds_of_plain_averaging_grow_as_one_and_lam_over_mu(problem):
    """A round shrinks errors by lam / (lam + s) along a curvature s of the pooled loss, of which the least counts."""
    slowest = np.linalg.eigvalsh(problem.a.mean(0))[0]

    few, many = (
        fedclup(problem, lam, gamma=1 / lam, inner=np.inf, rounds=10_000).rounds for lam in (100.0, 1000.0)
    )

    assert many / few == pytest.approx((1 + 1000 / slowest) / (1 + 100 / slowest), rel=0.02)


def test_gradients_hardly_depend_on_lam(problem):
    """Over five decades of lam the rounds of averaging grow by four orders, gradients by about two times."""
    found = [fedclup(problem, lam).gradients for lam in LAMS]

    assert max(found) <= 2.2 * min(found)
    np.testing.assert_allclose(found, np.multiply(AUTO, INNER), rtol=0.1)


@pytest.mark.parametrize("inner", [2, np.inf])
def test_a_step_of_one_over_lam_is_the_mean_of_the_personal_models(quadratics, inner):
    found = fedclup(quadratics, 3.0, gamma=1 / 3.0, inner=inner, rounds=4, tol=0.0)

    np.testing.assert_allclose(found.shared, quadratics.weights @ found.own, atol=1e-14)


@pytest.mark.parametrize("inner", [1, 3, 40, np.inf])
def test_the_closed_form_of_inner_steps_is_the_iterated_algorithm(small, quadratics, inner):
    options = {"alpha": 0.07, "inner": inner, "rounds": 6, "tol": 0.0}

    formula = fedclup(quadratics, 2.0, **options)
    iterated = fedclup(Penalized(*small), 2.0, **options)

    np.testing.assert_allclose(formula.own, iterated.own, atol=1e-11)
    np.testing.assert_allclose(formula.shared, iterated.shared, atol=1e-11)
    np.testing.assert_allclose(formula.own_error, iterated.own_error, atol=1e-11)


def test_a_round_is_what_the_algorithm_says(quadratics):
    """Two rounds of two steps each, written out."""
    lam, gamma, alpha = 2.0, 0.3, 0.05
    shared, own = np.ones(2), np.ones((3, 2))
    for _ in range(2):
        for _ in range(2):
            gradients = np.einsum("mij,mj->mi", quadratics.a, own) - quadratics.b
            own = own - alpha * (gradients + lam * (own - shared))
        shared = shared - gamma * lam * (shared - quadratics.weights @ own)

    found = fedclup(quadratics, lam, gamma=gamma, alpha=alpha, inner=2, start=np.ones(2), rounds=2, tol=0.0)

    np.testing.assert_allclose(found.own, own, atol=1e-14)
    np.testing.assert_allclose(found.shared, shared, atol=1e-14)


def test_errors_are_relative_to_the_solution(quadratics):
    best = quadratics.path([2.0])
    start = np.array([3.0, -1.0])

    found = fedclup(quadratics, 2.0, start=start, rounds=3, tol=0.0)

    def size(models):
        return quadratics.weights @ np.square(models).sum(1)

    assert found.own_error[0] == pytest.approx(size(start - best.own[0]) / size(best.own[0]))
    assert found.own_error[-1] == pytest.approx(size(found.own - best.own[0]) / size(best.own[0]))
    assert found.shared_error[-1] == pytest.approx(
        np.sum((found.shared - best.shared[0]) ** 2) / np.sum(best.shared[0] ** 2)
    )


def test_rounds_to_an_error_are_the_first_below_it(problem):
    found = fedclup(problem, 10.0)

    assert found.rounds_to(1e-8) == found.rounds == found.talks
    halfway = found.rounds_to(1e-4)
    assert found.own_error[halfway] <= 1e-4 < found.own_error[halfway - 1]
    assert found.rounds_to(1e-12) is None


@pytest.mark.parametrize("inner", [None, np.inf])
@pytest.mark.parametrize("lam", [0.05, 5.0])
def test_rounds_of_logistic_losses_end_at_the_solution(classes, lam, inner):
    found = fedclup(classes, lam, inner=inner, rounds=4_000, tol=1e-14)

    best = classes.solve([lam])
    np.testing.assert_allclose(found.own, best.own[0], atol=1e-5)
    np.testing.assert_allclose(found.shared, best.shared[0], atol=1e-5)


@pytest.mark.parametrize("lam", [1.0, 100.0, 1e4])
def test_extrapolated_rounds_grow_with_the_root_of_the_condition(problem, lam):
    condition = envelope(problem.bounds, lam).condition

    found = fedclup(problem, lam, nesterov=True)

    assert found.inner == np.inf
    assert found.own_error[-1] <= 1e-8
    assert found.rounds <= np.sqrt(condition) * np.log(1e8)


def test_extrapolation_saves_most_rounds_where_the_condition_is_bad():
    """Two curvatures, 1 and 400, for everybody: 20 times fewer at best."""
    losses = Quadratics.of(np.tile(np.diag([1.0, 400.0]), (3, 1, 1)), [[1.0, 2.0], [3.0, -1.0], [0.0, 5.0]])

    plain = fedclup(losses, 1e4, inner=np.inf, rounds=10_000)
    faster = fedclup(losses, 1e4, nesterov=True, rounds=10_000)

    assert plain.own_error[-1] <= 1e-8
    assert faster.own_error[-1] <= 1e-8
    assert 8 * faster.rounds <= plain.rounds


@pytest.mark.parametrize("options", [{"gamma": 0.98}, {"alpha": 0.98}, {"gamma": 0.5, "alpha": 0.3}])
def test_steps_just_below_the_bound_converge(problem, options):
    lam = 10.0
    bounds = {"gamma": 2 / envelope(problem.bounds, lam).most, "alpha": 2 / (HIGH + lam)}
    steps = {name: pace * bounds[name] for name, pace in options.items()}

    found = fedclup(problem, lam, inner=np.inf if "alpha" not in steps else 200, rounds=4_000, **steps)

    assert found.own_error[-1] <= 1e-8


@pytest.mark.parametrize("pace", [0.2, 0.6, 1.02])
def test_the_automatic_number_knows_other_steps_of_clients(problem, pace):
    """A fifth of the step needs at least four times the inner steps; rounds stay within the promised factor two."""
    lam, own = 1.0, fedclup(problem, 1.0)

    found = fedclup(problem, lam, alpha=pace / (HIGH + lam))

    assert found.own_error[-1] <= 1e-8
    assert found.inner >= own.inner / pace * 0.8
    assert found.rounds <= 2 * EXACT[2]


@pytest.mark.parametrize("bad", [2 / 21.86, 1.0, 0.0, -0.1, np.nan])
def test_client_steps_that_diverge_are_refused(problem, bad):
    with pytest.raises(
        BadValue, match=r"alpha must be above 0 and below 2 / \(L \+ lam\) = 0.09149\d*, .* 0.0457\d* would do, got"
    ):
        fedclup(problem, 10.0, alpha=bad * (1 + 1e-9))


@pytest.mark.parametrize("bad", [2 * (1 / 10 + 1 / HIGH), 1.0, 0.0, -0.1, np.nan])
def test_server_steps_that_diverge_are_refused(problem, bad):
    with pytest.raises(
        BadValue, match=r"gamma must be above 0 and below 2 / \(L_g\) = 0.3686\d*, .* 0.1843\d* would do, got"
    ):
        fedclup(problem, 10.0, gamma=bad * (1 + 1e-9))


@pytest.mark.parametrize("run", [fedclup, pfedme, ditto, lambda *p: l2gd(*p, jax.random.key(0))])
@pytest.mark.parametrize("lam", [-1.0, 0.0, np.nan, np.inf])
def test_strengths_without_collaboration_are_refused(problem, run, lam):
    with pytest.raises(BadValue, match=r"lam must be a positive number.*got"):
        run(problem, lam)


@pytest.mark.parametrize("options", [{"inner": 0}, {"inner": 1.5}, {"inner": np.nan}, {"rounds": 0}])
def test_numbers_of_steps_are_whole(problem, options):
    with pytest.raises(BadValue, match="a whole number, 1 or more"):
        fedclup(problem, 1.0, **options)


def test_long_server_steps_need_a_number_of_inner_steps(problem):
    gamma = 1.99 / envelope(problem.bounds, 10.0).most

    with pytest.raises(BadValue, match=r"inner must be given where gamma is above 2 / \(mu_g \+ L_g\)"):
        fedclup(problem, 10.0, gamma=gamma)


def test_extrapolation_takes_no_longer_steps(problem):
    with pytest.raises(BadValue, match=r"at most 1 / L_g = 0\.18431"):
        fedclup(problem, 10.0, gamma=0.2, nesterov=True)


def test_what_rounds_cannot_follow_is_refused(problem):
    flat = Quadratics.of([np.eye(2), np.diag([0.0, 1.0])], np.ones((2, 2)))
    several = Quadratics.of(problem.a[None], problem.b[None])
    counts = tables("poisson", num=4)

    with pytest.raises(BadData, match=r"client 1 is not strongly convex.*a ridge would do"):
        fedclup(flat, 1.0)
    with pytest.raises(Unsupported, match="several side by side"):
        fedclup(several, 1.0)
    with pytest.raises(Unsupported, match="poisson has no bound"):
        fedclup(Penalized(as_clients(counts.x, counts.y, loss="poisson")), 1.0)
    with pytest.raises(BadData, match="one model of 5 numbers"):
        fedclup(problem, 1.0, start=np.zeros((10, 5)))
