"""Bounds with the numbers of their formulas, and label discrepancies against closed forms and brute force."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from papers.three_approaches.bounds import (
    Bound,
    Moments,
    discrepancy_binary,
    discrepancy_linear,
    discrepancy_model,
    effective_rows,
    hypcluster_bound,
    local_bound,
    mapper_bound,
    moments,
    skewness,
)
from plures.errors import BadValue, Unsupported
from plures.models import linear
from plures.study.bounds import Discrepancy
from plures.types import Plan, Weights

NAN = float("nan")
HYPCLUSTER = {"num_clients": 100, "num_rows": 10_000, "dim": 49, "num_clusters": 4}
MAPPER = {"num_clients": 100, "num_rows": 10_000, "dim_common": 49, "dim_local": 49}
X = np.linspace(-1, 1, 40)[:, None]
POSITIVE = (X, (X[:, 0] > 0).astype(int))
NEGATIVE = (X, (X[:, 0] < 0).astype(int))
BOTH = tuple(np.concatenate(parts) for parts in zip(POSITIVE, NEGATIVE, strict=True))
THRESHOLDS = np.append((X[:-1, 0] + X[1:, 0]) / 2, [-2.0, 2.0])


def normal(seed, *shape):
    return np.asarray(jax.random.normal(jax.random.key(seed), shape), float)


def brute_force(one, other, radius, seed):
    """The largest |difference of the losses| over random models, inside the ball and on its border."""
    dim = len(one.xy)
    ways = normal(seed, 200_000, dim)
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)
    lengths = np.minimum(np.linspace(0, 2, len(ways)), 1)[:, None]
    w = radius * lengths * ways
    losses = [np.einsum("ni,ij,nj->n", w, m.xx, w) - 2 * w @ m.xy + m.yy for m in (one, other)]
    return np.abs(losses[0] - losses[1]).max()


def difference(a, b, c):
    """Two clients whose moments differ by a, b and c."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    return Moments(a, b, c), Moments(np.zeros_like(a), np.zeros_like(b), 0.0)


@pytest.mark.parametrize(
    ("given", "assignment", "models", "total", "sharp"),
    [
        ({"num_clusters": 1}, 0.384, 0.176, 0.560, 0.014),
        ({"num_clusters": 4}, 0.451, 0.352, 0.802, 0.084),
        ({"num_clusters": 100}, 0.576, 1.760, 2.336, 0.152),
        ({"num_rows": 1_000_000}, 0.045, 0.046, 0.091, 0.008),
    ],
)
def test_hypcluster_terms_are_those_of_corollary_2(given, assignment, models, total, sharp):
    bound = hypcluster_bound(**HYPCLUSTER | given)

    assert bound.terms == pytest.approx({"assignment": assignment, "models": models}, abs=5e-4)
    assert bound.total == pytest.approx(total, abs=5e-4)
    assert bound.sharp == pytest.approx({"assignment": sharp}, abs=5e-4)


def test_the_assignment_terms_do_not_depend_on_the_model():
    """The writers of EMNIST-62: 2500 clients, 494,000 rows, two clusters."""
    bound = hypcluster_bound(num_clients=2500, num_rows=494_000, dim=1, num_clusters=2)

    assert bound.terms["assignment"] == pytest.approx(0.298, abs=5e-4)
    assert bound.sharp["assignment"] == pytest.approx(0.042, abs=5e-4)


@pytest.mark.parametrize(
    ("total", "verdict"), [(0.25, "0.250"), (1.0, "vacuous"), (math.inf, "vacuous"), (0.75, "0.750")]
)
def test_a_bound_of_one_or_more_is_vacuous(total, verdict):
    bound = Bound("test", {"a": total - 0.25, "b": 0.25})

    assert bound.verdict == verdict
    assert str(bound).startswith(f"test: {verdict} (a ")


def test_the_line_of_a_vacuous_bound_says_so():
    assert "vacuous" in str(hypcluster_bound(**HYPCLUSTER | {"num_clusters": 100}))
    assert "vacuous" not in str(hypcluster_bound(**HYPCLUSTER))


def test_hypcluster_refuses_fewer_rows_per_cluster_than_dimensions():
    """The CNN of EMNIST-62; the formula alone would print a second term of 0.72."""
    with pytest.raises(Unsupported, match="num_rows 494000, num_clusters 2, dim 1206590"):
        hypcluster_bound(num_clients=2500, num_rows=494_000, dim=1_206_590, num_clusters=2)


def test_hypcluster_counts_rows_per_cluster():
    """Enough rows for one cluster are too few for two; as many rows per cluster as dimensions will do."""
    assert hypcluster_bound(**HYPCLUSTER | {"num_rows": 98, "num_clusters": 2}).verdict == "vacuous"
    with pytest.raises(Unsupported):
        hypcluster_bound(**HYPCLUSTER | {"num_rows": 97, "num_clusters": 2})


@pytest.mark.parametrize("name", list(HYPCLUSTER))
@pytest.mark.parametrize("value", [0, -1, NAN, math.inf])
def test_hypcluster_refuses_sizes_that_are_none(name, value):
    with pytest.raises(BadValue, match=name):
        hypcluster_bound(**HYPCLUSTER | {name: value})


@pytest.mark.parametrize(("num_rows", "total", "digits"), [(10_000, 3.9, 0.05), (1_000_000, 0.51, 0.005)])
def test_mapper_total_is_that_of_corollary_6(num_rows, total, digits):
    """100 clients with 100 and with 10,000 rows each."""
    assert mapper_bound(**MAPPER | {"num_rows": num_rows}).total == pytest.approx(total, abs=digits)


def test_only_the_model_terms_of_mapper_scale_with_the_lipschitz_constant():
    once, thrice = mapper_bound(**MAPPER), mapper_bound(**MAPPER, lipschitz=3.0)

    ratio = {name: thrice.terms[name] / once.terms[name] for name in once.terms}
    assert ratio == pytest.approx({"common": 3.0, "local": 3.0, "confidence": 1.0})


def test_mapper_tells_common_from_local_models():
    """A local class of one parameter per client costs p times what a common class of one costs."""
    bound = mapper_bound(**MAPPER | {"dim_common": 1, "dim_local": 1})

    assert bound.terms["local"] == pytest.approx(10 * bound.terms["common"])  # sqrt(100 clients)
    assert mapper_bound(**MAPPER | {"dim_local": 1}).terms["common"] > bound.terms["common"]


def test_the_local_order_is_a_root():
    """delta = exp(-3) makes sqrt((6 + 3) / 900)."""
    bound = local_bound(num_rows=900, dim=6, delta=math.exp(-3))

    assert bound.total == pytest.approx(0.1)
    assert str(bound) == "Local: 0.100 (excess 0.100, up to a constant)"


@pytest.mark.parametrize("dim", ["dim_common", "dim_local"])
def test_mapper_refuses_fewer_rows_than_dimensions(dim):
    with pytest.raises(Unsupported, match=f"{dim} 10001"):
        mapper_bound(**MAPPER | {dim: 10_001})


def test_mapper_is_vacuous_with_fewer_rows_per_client_than_local_dimensions():
    """At L = 1/2 the local term alone is above 1 there, by however little: 100 rows per client, 101 parameters."""
    assert mapper_bound(**MAPPER | {"dim_local": 101}, lipschitz=0.5).terms["local"] > 1


@pytest.mark.parametrize("name", [*MAPPER, "lipschitz"])
@pytest.mark.parametrize("value", [0, NAN])
def test_mapper_refuses_sizes_that_are_none(name, value):
    with pytest.raises(BadValue, match=name):
        mapper_bound(**MAPPER | {name: value})


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2.0, NAN])
def test_a_risk_lies_strictly_between_0_and_1(delta):
    with pytest.raises(BadValue, match="delta"):
        hypcluster_bound(**HYPCLUSTER, delta=delta)
    with pytest.raises(BadValue, match="delta"):
        mapper_bound(**MAPPER, delta=delta)
    with pytest.raises(BadValue, match="delta"):
        local_bound(num_rows=100, dim=1, delta=delta)


def test_effective_rows_end_at_the_pool_and_at_the_client():
    assert effective_rows(0.0, 40, 4000) == 4000
    assert effective_rows(1.0, 40, 4000) == 40


def test_effective_rows_are_all_rows_at_their_largest():
    """lam = m_k / (m_k + m_C) weighs every row alike."""
    best = 40 / 4040

    assert effective_rows(best, 40, 4000) == pytest.approx(4040)
    assert effective_rows(best + 0.01, 40, 4000) < 4040
    assert effective_rows(best - 0.005, 40, 4000) < 4040


@pytest.mark.parametrize(
    ("given", "name"),
    [((-0.1, 1, 1), "lam"), ((1.1, 1, 1), "lam"), ((0.5, 0, 1), "own_rows"), ((0.5, 1, NAN), "pool_rows")],
)
def test_effective_rows_refuse_what_makes_no_mixture(given, name):
    with pytest.raises(BadValue, match=name):
        effective_rows(*given)


def test_skewness_is_one_where_weights_follow_rows():
    assert skewness([0.1, 0.2, 0.7], [10, 20, 70]) == pytest.approx(1.0)


def test_skewness_of_a_single_domain_is_its_rarity():
    assert skewness([1.0, 0.0], [25, 75]) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("lam", "rows", "name"),
    [
        ([0.5, 0.6], [1, 1], "lam"),
        ([-0.5, 1.5], [1, 1], "lam"),
        ([1.0], [1, 1], "rows"),
        ([1.0, 0], [1, 0], "rows"),
    ],
)
def test_skewness_refuses_weights_that_are_no_law(lam, rows, name):
    with pytest.raises(BadValue, match=name):
        skewness(lam, rows)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("radius", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_linear_discrepancy_is_that_of_brute_force(dim, radius, seed):
    one, other = (
        moments(scale * normal(10 * seed + part, 40, dim), normal(10 * seed + part + 5, 40))
        for part, scale in ((0, 1.0), (1, 1.5))
    )
    brute = brute_force(one, other, radius, seed + 99)

    found = discrepancy_linear(one, other, radius=radius)

    assert found.exact
    assert brute <= found.value * (1 + 1e-9)
    assert found.value == pytest.approx(brute, rel=2e-3)


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        # The border of the hard case: 2 u^2 + v^2 - 2 v with u^2 = 1 - v^2 is 2 - v^2 - 2 v, at most 3 (v = -1, u = 0).
        ([[2, 0], [0, 1]], [0, 1], 0.0, 3.0),
        # The hard case: 4 u^2 + v^2 - 2 v with u^2 = 1 - v^2 is 4 - 3 v^2 - 2 v, at most 13/3 (v = -1/3, u free in sign).
        ([[4, 0], [0, 1]], [0, 1], 0.0, 13 / 3),
        # The same with the sign of everything turned, so that the minimum is the hard case.
        ([[-4, 0], [0, -1]], [0, -1], 0.0, 13 / 3),
        # No gradient at all: the largest eigenvalue, 3, times the squared radius.
        ([[2, 1], [1, 2]], [0, 0], 0.0, 3.0),
        # No curvature at all: 2 |b| times the radius.
        ([[0, 0], [0, 0]], [3, 4], 0.0, 10.0),
        # An interior minimum, |w - b|^2 - 1/4 at w = b = (1/2, 0); c puts it at -3 and the border at -3/4.
        ([[1, 0], [0, 1]], [0.5, 0], -2.75, 3.0),
        # Equal clients.
        ([[0, 0], [0, 0]], [0, 0], 0.0, 0.0),
        # Only the targets' spread differs.
        ([[0, 0], [0, 0]], [0, 0], -0.7, 0.7),
    ],
)
def test_the_linear_discrepancy_in_closed_form(a, b, c, expected):
    assert discrepancy_linear(*difference(a, b, c), radius=1.0).value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("tilt", [1e-18, 1e-13, 1e-8, 1e-4])
def test_the_linear_discrepancy_does_not_jump_near_the_hard_case(tilt):
    """A gradient along the direction without one adds 2 tilt |u| to first order, at u = sqrt(1 - 1/9)."""
    found = discrepancy_linear(*difference([[4, 0], [0, 1]], [tilt, 1], 0.0), radius=1.0)

    assert found.value == pytest.approx(13 / 3 + 2 * tilt * math.sqrt(8 / 9), abs=tilt**2 + 1e-12)


def test_the_linear_discrepancy_turns_with_the_axes():
    """The hard case along axes that are not the coordinates': A = Q diag(4, 1, 0) Q', b = Q (0, 1, 0)'."""
    axes, _ = np.linalg.qr(normal(3, 3, 3))
    clients = difference(axes @ np.diag([4.0, 1.0, 0.0]) @ axes.T, axes[:, 1], 0.0)

    assert discrepancy_linear(*clients, radius=1.0).value == pytest.approx(13 / 3, abs=1e-9)


def test_moments_are_those_of_the_examples():
    found = moments([[1.0, 2.0], [3.0, 0.0]], [1.0, -1.0])

    np.testing.assert_allclose(found.xx, [[5.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(found.xy, [-1.0, 1.0])
    assert found.yy == 1.0


def test_the_linear_discrepancy_refuses_other_inputs_and_no_ball():
    one, other = moments(np.ones((3, 2)), np.ones(3)), moments(np.ones((3, 1)), np.ones(3))

    with pytest.raises(BadValue, match="of the 2 inputs"):
        discrepancy_linear(one, other, radius=1.0)
    with pytest.raises(BadValue, match="radius"):
        discrepancy_linear(one, one, radius=0.0)


def threshold_loss(examples, threshold, sign):
    """The 0-1 loss of the logistic model that says 1 on one side of the threshold."""
    model = linear.logistic((1,))
    weights = Weights({"head": {"kernel": jnp.array([sign]), "bias": jnp.array(-sign * threshold)}})
    x, y = (jnp.asarray(part) for part in examples)
    return 1 - float(model.metrics["accuracy"](model.apply(weights, x), y, jnp.ones(len(y), bool)))


def test_every_threshold_errs_on_half_of_the_mixture():
    losses = {threshold_loss(BOTH, t, sign) for t in THRESHOLDS for sign in (1.0, -1.0)}

    assert losses == {0.5}


def test_each_client_has_a_threshold_without_errors():
    assert threshold_loss(POSITIVE, 0.0, 1.0) == 0
    assert threshold_loss(NEGATIVE, 0.0, -1.0) == 0


def test_opposite_clients_have_discrepancy_1_and_half_of_it_to_their_mixture():
    apart, to_mixture = discrepancy_binary(POSITIVE, NEGATIVE), discrepancy_binary(POSITIVE, BOTH)

    assert apart.value == pytest.approx(1.0, abs=1e-12)
    assert to_mixture.value == pytest.approx(0.5, abs=1e-12)
    assert not apart.exact


def test_the_binary_discrepancy_is_exact_for_thresholds():
    """In one dimension every linear classifier is a signed threshold: brute force over all of them, with ties."""
    x = np.round(normal(4, 90, 1), 1)
    y = (normal(5, 90) + 0.5 * x[:, 0] > 0.3).astype(int)
    one, other = (x[:30], y[:30]), (x[30:] + 0.5, 1 - y[30:])
    values = np.unique(np.concatenate([one[0], other[0]]))
    cuts = np.concatenate([[values[0] - 1], (values[:-1] + values[1:]) / 2, [values[-1] + 1]])
    gaps = [np.mean((one[0][:, 0] > cut) != one[1]) - np.mean((other[0][:, 0] > cut) != other[1]) for cut in cuts]

    assert discrepancy_binary(one, other).value == pytest.approx(np.abs(gaps).max(), abs=1e-12)


def test_the_binary_discrepancy_finds_the_direction():
    """In five dimensions the labels of the two clients disagree beyond one plane and nowhere else."""
    x = normal(6, 400, 5)
    y = (x @ np.array([1.0, -2.0, 0.5, 0.0, 3.0]) > 0.4).astype(int)

    assert discrepancy_binary((x, y), (x, 1 - y)).value > 0.98


def test_the_binary_discrepancy_weighs_clients_not_rows():
    """Repeating one client's rows changes nothing, also where no direction separates: losses are means."""
    x, noise = normal(7, 80, 4), normal(8, 80)
    one = (x[:40], (x[:40, 0] + noise[:40] > 0).astype(int))
    other = (x[40:], (x[40:, 1] + noise[40:] > 0).astype(int))
    many = tuple(np.concatenate([part] * 20) for part in other)

    assert discrepancy_binary(one, many).value == pytest.approx(discrepancy_binary(one, other).value, abs=1e-9)


@pytest.mark.parametrize(("label", "expected"), [(0, 1.0), (1, 0.0)])
def test_clients_of_one_label_each(label, expected):
    one, other = (X, np.ones(40, int)), (X, np.full(40, label))

    assert discrepancy_binary(one, other).value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("y", [np.full(40, 2), np.full(40, -1), np.full(40, 0.5)])
def test_labels_other_than_0_and_1_are_refused(y):
    with pytest.raises(BadValue, match="labels 0 and 1"):
        discrepancy_binary((X, y), NEGATIVE)


@pytest.mark.parametrize("labels", [([0, 1], [1, 0]), ([1, 0], [0, 1])])
def test_a_model_climbs_to_discrepancy_1(labels):
    """Rows at -4 and 4 with opposite labels: a gradient of 1.5 clips one client's loss, the other's is log(1 + e^-6)."""
    model = linear.logistic((1,))
    one, other = ((np.array([[-4.0], [4.0]]), np.array(y)) for y in labels)

    found = discrepancy_model(model, model.init(jax.random.key(0)), one, other, ceiling=1.0)

    assert 1 - math.log1p(math.exp(-6)) < found.value <= 1.0


@pytest.mark.parametrize("flip", [False, True])
def test_one_client_beyond_the_ceiling_is_no_reason_to_refuse(flip):
    """Half the squared error at 0 is 2 for targets of 2 and 0 for targets of 0, where the largest difference is."""
    model = linear.least_squares((1,))
    pair = [(X, np.full(40, target)) for target in (2.0, 0.0)]

    found = discrepancy_model(model, model.init(jax.random.key(0)), *(pair[::-1] if flip else pair), ceiling=1.0)

    assert found.value == pytest.approx(1.0)


def test_ascent_is_labeled_as_an_estimate_from_below():
    model = linear.logistic((1,))

    found = discrepancy_model(model, model.init(jax.random.key(0)), POSITIVE, NEGATIVE, ceiling=1.0)

    assert not found.exact
    assert str(found) == f"at least {found.value:.3f}"
    assert str(Discrepancy(found.value, exact=True)) == f"{found.value:.3f}"


def test_a_model_finds_the_direction_in_which_either_client_loses_more():
    """Densities: client one always sees symbol 0, the other is uniform on 2. Unlike symbols cost at most the ceiling.

    With h(0) = p: min(-log p, 1) - (min(-log p, 1) + min(-log(1 - p), 1)) / 2, which is +1/2 at p = 0 and -1/2 at 1.
    """
    model = linear.density((0,), 2)
    always, even = (np.zeros((4, 0)), np.zeros(4, int)), (np.zeros((4, 0)), np.array([0, 1, 0, 1]))
    start = model.init(jax.random.key(0))

    found = [discrepancy_model(model, start, *pair, ceiling=1.0).value for pair in ((always, even), (even, always))]

    assert found == pytest.approx([0.5, 0.5], abs=0.01)


def test_equal_clients_have_no_discrepancy_under_any_model():
    model = linear.logistic((1,))

    found = discrepancy_model(model, model.init(jax.random.key(0)), BOTH, BOTH, ceiling=1.0)

    assert found.value == pytest.approx(0.0, abs=1e-6)


def test_the_best_point_on_the_way_counts():
    """Steps far too long leave every optimum behind; more of them never lower the estimate."""
    model = linear.least_squares((1,))
    one, other = (X, X[:, 0]), (X, 0.5 * X[:, 0])
    plans = [Plan(steps=steps, batch=None, lr=3.0) for steps in (0, 1, 2, 3, 10, 30)]

    found = [
        discrepancy_model(model, model.init(jax.random.key(0)), one, other, ceiling=1.0, plan=plan).value
        for plan in plans
    ]

    assert found == sorted(found)
    assert found[-1] > found[0]


@pytest.mark.parametrize("ceiling", [0.5, 0.0])
def test_a_ceiling_below_every_loss_is_refused(ceiling):
    """The logistic loss at 0 is log 2 = 0.69 for every row."""
    model = linear.logistic((1,))

    with pytest.raises(BadValue, match="ceiling"):
        discrepancy_model(model, model.init(jax.random.key(0)), POSITIVE, NEGATIVE, ceiling=ceiling)
