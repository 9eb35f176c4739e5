"""Worlds: what they plant is what algebra says, and what is drawn from them shows it."""

import math
from functools import cache

import numpy as np
import pytest

from plures.data import worlds
from plures.errors import BadValue, UnknownChoice
from plures.keys import root
from plures.registry import WORLDS

# Log-losses in nats when natural clusters (client mod 4) are merged so; 12 digits, three-approaches.md 6.1.
MERGES = {
    "one": ([[0, 1, 2, 3]], 3.166304598772, 3.249082164977),
    "02-13": ([[0, 2], [1, 3]], 2.775709704688, 2.869078242699),
    "01-23": ([[0, 1], [2, 3]], 2.869982467870, 2.936047740703),
    "03-12": ([[0, 3], [1, 2]], 2.869982467870, 2.936047740703),
    **{f"{i} alone": ([[i], [k for k in range(4) if k != i]], 2.893796688477, 2.971025236498) for i in range(4)},
    "02": ([[0, 2], [1], [3]], 2.622199534331, 2.705112490845),
    "13": ([[1, 3], [0], [2]], 2.622199534331, 2.705112490845),
    "01": ([[0, 1], [2], [3]], 2.669335915922, 2.738597239847),
    "03": ([[0, 3], [1], [2]], 2.669335915922, 2.738597239847),
    "12": ([[1, 2], [0], [3]], 2.669335915922, 2.738597239847),
    "23": ([[2, 3], [0], [1]], 2.669335915922, 2.738597239847),
    "natural": ([[0], [1], [2], [3]], 2.468689363974, 2.541146738991),
}


@pytest.mark.parametrize("variant", ["literal", "disjoint"])
@pytest.mark.parametrize("merge", MERGES)
def test_density_losses_are_those_of_the_closed_form(merge, variant):
    clusters, literal, disjoint = MERGES[merge]
    groups = [[k for k in range(100) if k % 4 in cluster] for cluster in clusters]

    found = worlds.partition_loss(worlds.density_truth(variant=variant), groups)

    assert found == pytest.approx(literal if variant == "literal" else disjoint, abs=1e-10)


@pytest.mark.parametrize(("variant", "floor"), [("literal", 1.928682378843), ("disjoint", 1.965065969198)])
def test_density_floor_is_the_mean_entropy_of_the_clients(variant, floor):
    alone = [[k] for k in range(100)]

    assert worlds.partition_loss(worlds.density_truth(variant=variant), alone) == pytest.approx(floor, abs=1e-10)


def test_literal_variant_has_eight_clients_with_a_single_atom():
    """The own symbol k mod 46 is the group's symbol k mod 4 for k in 0..3 and 92..95."""
    truth = worlds.density_truth(variant="literal")

    assert np.flatnonzero(truth.max(1) > 0.75).tolist() == [0, 1, 2, 3, 92, 93, 94, 95]


@pytest.mark.parametrize("variant", ["literal", "disjoint"])
def test_density_truths_are_distributions(variant):
    truth = worlds.density_truth(num_clients=9, num_symbols=7, num_groups=3, variant=variant)

    np.testing.assert_allclose(truth.sum(1), np.ones(9))
    assert (truth > 0).all()


def test_a_group_weighs_by_its_number_of_clients():
    """A uniform pair (log 2) counts two thirds, a certain client (0) one third."""
    truth = np.array([[1.0, 1e-300], [1e-300, 1.0], [1.0, 1e-300]])

    assert worlds.partition_loss(truth, [[0, 1], [2]]) == pytest.approx(2 / 3 * math.log(2))


@pytest.fixture(scope="module")
def symbols():
    return worlds.density(rows=10)


def test_density_facts_are_the_losses_of_one_and_of_natural_clusters(symbols):
    assert symbols.facts == pytest.approx({"global_loss": 3.166304598772, "group_loss": 2.468689363974}, abs=1e-10)


def test_density_samples_follow_the_truth(symbols):
    """The mean log-loss of the truth on its samples is its entropy, up to sampling."""
    owner = np.repeat(np.arange(100), 10)

    drawn = -np.log(symbols.truth[owner, symbols.federation.y])

    entropy = -(symbols.truth * np.log(symbols.truth)).sum(1).mean()
    assert abs(drawn.mean() - entropy) < 5 * drawn.std() / math.sqrt(len(drawn))


def test_an_unknown_variant_is_refused():
    with pytest.raises(UnknownChoice) as refusal:
        worlds.density_truth(variant="litteral")

    assert str(refusal.value) == (
        "no variant is called 'litteral'; did you mean 'literal'? Known: disjoint, literal"
    )


@pytest.mark.parametrize("options", [{"num_symbols": 4}, {"num_symbols": 3}, {"num_clients": 3}])
def test_density_sizes_that_cannot_work_are_refused(options):
    with pytest.raises(BadValue):
        worlds.density(**{"num_clients": 8, "rows": 2, **options})


@pytest.mark.parametrize(("num_clients", "dim"), [(2, 1), (6, 3), (3, 2), (7, 2)])
def test_offsets_have_exactly_the_radius_and_sum_to_zero(num_clients, dim):
    offsets = worlds.centered_offsets(root(0), num_clients, dim, 2.5)

    np.testing.assert_allclose(np.linalg.norm(offsets, axis=1), np.full(num_clients, 2.5), rtol=1e-12)
    np.testing.assert_allclose(offsets.sum(0), np.zeros(dim), atol=1e-12)


def test_offsets_point_in_different_directions():
    offsets = worlds.centered_offsets(root(0), 6, 3, 1.0)

    assert len(np.unique(offsets.round(9), axis=0)) == 6


def test_a_single_client_has_no_offset():
    assert worlds.centered_offsets(root(0), 1, 3, 1.0).tolist() == [[0.0, 0.0, 0.0]]


def test_an_odd_number_of_clients_on_a_line_is_refused():
    with pytest.raises(BadValue) as refusal:
        worlds.mean_estimation(num_clients=5, dim=1)

    assert str(refusal.value) == "num_clients must be even when dim is 1, so that offsets can balance, got 5"


@pytest.mark.parametrize("radius", [0.5, 0.2])
def test_mean_estimation_facts_are_the_ends_of_the_risk_curve(radius):
    facts = worlds.mean_estimation(num_clients=6, dim=4, rows=20, sigma=1.5, radius=radius).facts

    noise = 4 * 1.5**2 / 20
    assert facts == pytest.approx({"local_risk": noise, "global_risk": noise / 6 + radius**2})


def test_mean_estimation_draws_around_the_truth():
    world = worlds.mean_estimation(num_clients=6, dim=4, rows=20, sigma=2.0)

    noise = world.federation.y.reshape(6, 20, 4) - world.truth[:, None]

    # Standard errors: 2 / sqrt(20) of a mean, 1 / sqrt(2 * 480) of the relative deviation.
    assert np.abs(noise.mean(1)).max() < 5 * 2.0 / math.sqrt(20)
    assert noise.std() == pytest.approx(2.0, rel=5 / math.sqrt(960))


def pooled(world, group):
    """All rows of a planted group, whatever their split."""
    federation = world.federation
    rows = [
        np.arange(federation.start[k, 0], federation.start[k, 0] + federation.count[k].sum())
        for k in np.flatnonzero(federation.group == group)
    ]
    own = np.concatenate(rows)
    return federation.x[own].astype(float), federation.y[own].astype(float)


@pytest.fixture(scope="module")
def regressions():
    return worlds.linear_clusters(num_clients=8, rows=200, sigma=0.5)


@pytest.mark.parametrize("group", range(4))
def test_least_squares_on_a_whole_group_recovers_its_coefficients(regressions, group):
    x, y = pooled(regressions, group)

    found, *_ = np.linalg.lstsq(x, y, rcond=None)

    error = 0.5 * np.sqrt(np.diag(np.linalg.inv(x.T @ x)))
    assert (np.abs(found - regressions.truth[group]) < 5 * error).all()
    assert (y - x @ found).std() == pytest.approx(0.5, rel=5 / math.sqrt(2 * len(y)))


@pytest.fixture(scope="module")
def classifications():
    return worlds.logistic_clusters(num_clients=8, rows=200)


@pytest.mark.parametrize("group", range(4))
def test_maximum_likelihood_on_a_whole_group_recovers_its_coefficients(classifications, group):
    x, y = pooled(classifications, group)
    found = np.zeros(5)
    for _ in range(15):  # Newton
        chance = 1 / (1 + np.exp(-x @ found))
        hessian = (x * (chance * (1 - chance))[:, None]).T @ x
        found = found - np.linalg.solve(hessian, x.T @ (chance - y))

    error = np.sqrt(np.diag(np.linalg.inv(hessian)))
    assert (np.abs(found - classifications.truth[group]) < 5 * error).all()


NAMES = ("mean_estimation", "linear_clusters", "logistic_clusters", "density")


@cache
def small(name, seed=0):
    return WORLDS[name].factory(num_clients=6, rows=20, seed=seed)


def test_mean_estimation_gives_all_rows_to_training():
    assert small("mean_estimation").weights.tolist() == [20.0] * 6


@pytest.mark.parametrize("name", ["linear_clusters", "logistic_clusters"])
def test_clients_of_a_group_share_the_truth_and_groups_differ(name):
    world = small(name)

    assert world.federation.group.tolist() == [0, 1, 2, 3, 0, 1]
    assert len(np.unique(world.truth, axis=0)) == 4
    np.testing.assert_array_equal(world.truth[[0, 1]], world.truth[[4, 5]])


def test_groups_lie_a_gap_apart_on_average():
    """The mean squared distance of two centers is gap^2, 9; over 800 numbers its standard error is 5 %."""
    centers = np.concatenate(
        [
            worlds.linear_clusters(num_clients=8, num_groups=8, rows=200, gap=3.0, seed=seed).truth
            for seed in range(20)
        ]
    )

    assert 2 * np.square(centers).sum(1).mean() == pytest.approx(9.0, rel=0.25)


@pytest.mark.parametrize("name", NAMES)
def test_the_model_of_a_world_fits_its_data(name):
    world = small(name)
    weights = world.model.init(root(0))

    losses = world.model.loss(world.model.apply(weights, world.federation.x[:3]), world.federation.y[:3])

    assert losses.shape == (3,)
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_what_is_drawn(name):
    again = small.__wrapped__(name)

    np.testing.assert_array_equal(again.federation.y, small(name).federation.y)
    assert (again.federation.y != small(name, seed=1).federation.y).any()
