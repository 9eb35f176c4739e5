"""HypCluster with any number of clusters: the number for all, a client's own choice, centers that are shared."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run
from plures.data.federation import from_arrays
from plures.engine.phases import spans_of
from plures.errors import BadValue
from plures.methods.clustering.hypcluster import ClusterChoices
from plures.methods.clustering.hypcluster_auto import Opinion, Vote, best_number, hypcluster_auto
from plures.methods.clustering.starting_centers import CandidateCenters, Candidates
from plures.models.linear import density, mean
from plures.types import Data, Plan, Rows, Weights
from plures.wrap.closing import Survey

ALL = jnp.ones(3, bool)


def opinions(losses, clusters, some=(True, True, True)):
    """Three clients on q = 1, 2, 3, 4."""
    return Opinion(jnp.asarray(losses, jnp.float32), jnp.asarray(some), jnp.asarray(clusters))


APART = [[0, 0, 0, 0], [0, 1, 1, 3], [0, 0, 2, 2]]  # 1, 2, 3 and 3 clusters are used
FALLING = [[4.0, 3.0, 2.0, 1.0]] * 3


@pytest.mark.parametrize(
    ("losses", "clusters", "place"),
    [
        (FALLING, [[0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 2, 3]], 2),  # q = 4 uses 3 clusters, as q = 3 does
        (
            FALLING,
            [[0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 1, 2]],
            1,
        ),  # q = 3 uses 2, as q = 2 does; q = 4 comes too late
        (FALLING, [[0, 1, 2, 3]] * 3, 0),  # one cluster whatever q is
        ([[4.0, 1.0, 2.0, 0.0]] * 3, APART, 1),  # q = 4 would be best, but puts no further cluster to use
        ([[1.0, 9.0, 9.0, 9.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]], APART, 0),  # the mean rules
        ([[2.0, 1.0, 9.0, 9.0], [2.0, 1.5, 9.0, 9.0], [2.0, 2.0, 9.0, 9.0]], APART, 1),  # falls by 0.5, error 0.29
        ([[2.0, 0.5, 9.0, 9.0], [2.0, 1.9, 9.0, 9.0], [2.0, 2.4, 9.0, 9.0]], APART, 0),  # falls by 0.4, error 0.57
    ],
)
def test_the_number_is_the_best_of_those_that_put_more_clusters_to_use(losses, clusters, place):
    assert int(best_number(opinions(losses, clusters), ALL).best) == place


def test_clients_without_valid_rows_have_no_opinion_but_use_their_cluster():
    losses = [[5.0, 1.0, 2.0, 9.0], [0.0, 0.0, 0.0, 0.0], [5.0, 1.0, 2.0, 9.0]]

    said = best_number(opinions(losses, APART, some=[True, False, True]), ALL).best

    assert int(said) == 1  # without the second client q = 2 would use a single cluster


def test_clients_that_were_not_heard_neither_speak_nor_use_a_cluster():
    losses = [[5.0, 1.0, 0.5, 9.0], [np.nan] * 4, [5.0, 1.0, 0.5, 9.0]]
    clusters = [[0, 0, 1, 2], [0, 1, 0, 0], [0, 0, 2, 3]]

    heard = jnp.array([True, False, True])

    assert (
        int(best_number(opinions(losses, clusters), heard).best) == 0
    )  # both others share the one cluster of q = 2


LINE = mean((0,), 1)
UP_TO_TWO = {per_client: hypcluster_auto(LINE, up_to=2, per_client=per_client) for per_client in (True, False)}


def choice(*points):
    models = Weights({"point": jnp.asarray(points, jnp.float32)[:, None]})
    return ClusterChoices(models, jnp.zeros(len(points)), jnp.asarray(-1))


def offer(place):
    """One model at 0 or two at 1 and 9, and the number chosen for all."""
    return Survey((choice(0.0), choice(1.0, 9.0)), Vote(jnp.asarray(place), jnp.ones(())), jnp.asarray(True))


@cache
def serving(per_client):
    method = UP_TO_TWO[per_client]

    @jax.jit
    def both(place, data):
        told = method.views.assign(offer(place), (), data)
        return method.serve(jax.random.key(0), offer(place), (), data).params["point"][0], told

    return both


def served(per_client, place, train, valid):
    """The point a client is served, and which model that is of which number of clusters."""
    y = jnp.zeros(8).at[: len(train)].set(jnp.asarray(train)).at[4 : 4 + len(valid)].set(jnp.asarray(valid))
    x = jnp.zeros((8, 0))
    data = Data(Rows(x, y, 0, jnp.asarray(len(train)), 4), Rows(x, y, 4, jnp.asarray(len(valid)), 4))
    point, told = serving(per_client)(jnp.asarray(place), data)
    return float(point), int(told["cluster"]), int(told["num_clusters"])


@pytest.mark.parametrize(
    ("place", "train", "expected"),
    [(0, [9.0], (0.0, 0, 1)), (1, [2.0], (1.0, 1, 2)), (1, [8.0], (9.0, 2, 2))],
)
def test_clients_take_their_model_of_the_number_for_all(place, train, expected):
    assert served(False, place, train, [0.0, 0.0]) == expected


@pytest.mark.parametrize(
    ("valid", "expected"),
    [
        # A valid row y gains y - 1/2 by leaving 0 for 1; of two rows the standard error is half their distance.
        ([1.0, 1.5], (1.0, 1, 2)),  # gains 0.75, error 0.25
        ([0.6, 1.2], (1.0, 1, 2)),  # gains 0.4, error 0.3
        ([0.3, 1.3], (0.0, 0, 1)),  # gains 0.3, error 0.5
        ([0.2, 0.2], (0.0, 0, 1)),  # loses
        ([9.0, 9.0, 9.0], (9.0, 2, 2)),  # best of all: the model at 9, though training rows chose that at 1
        ([9.0], (0.0, 0, 1)),  # a single row has no standard error
        ([], (0.0, 0, 1)),
    ],
)
def test_a_client_leaves_the_number_for_all_only_for_more_than_a_standard_error(valid, expected):
    assert served(True, 0, [1.0], valid) == expected


def test_centers_are_nested_and_one_cluster_starts_at_the_warm_model():
    method = hypcluster_auto(LINE, up_to=3, warm=2)
    trained = spans_of(method, 6)[-2]
    centers = Weights({"point": jnp.array([[[5.0], [6.0], [7.0]]])})  # one set of three
    warm = Weights({"point": jnp.array([4.0])})
    before = CandidateCenters(Candidates(warm, None, None), None, centers)

    sets = trained.phase.hand_over(jax.random.key(0), trained.method.start(jax.random.key(0), 5), before)

    points = [one.base.weights.params["point"][:, 0].tolist() for one in sets]
    assert points == [[4.0], [5.0, 6.0], [5.0, 6.0, 7.0]]


GROUP = np.arange(16) % 4


@cache
def four_laws():
    """Clients of group k say symbol k in three of five cases, else any of eight; 60 rows to train, 40 for valid."""
    rng = np.random.default_rng(2)
    any_, chosen = rng.integers(0, 8, (16, 100)), rng.random((16, 100)) < 0.6
    y = np.where(chosen, GROUP[:, None], any_).astype(np.int32).ravel()
    owner = np.repeat([f"{k:02d}" for k in range(16)], 100)
    split = np.tile(["train"] * 60 + ["valid"] * 40, 16)
    x = np.zeros((1600, 0), np.float32)
    return from_arrays(x, y, owner, split=split, task="density", num_classes=8)


MODEL = density((0,), 8)


@pytest.mark.slow
def test_four_natural_clusters_are_found_among_one_to_five():
    """Models are counted through all numbers: those of q = 4 come after the 1 + 2 + 3 of the smaller ones."""
    plan = Plan(batch=None, epochs=5, lr=1.5)
    method = hypcluster_auto(MODEL, up_to=5, plan=plan, warm=3, scout_epochs=20, per_client=False)

    table = run(method, four_laws(), rounds=16, executor="vectorized").clients

    assert table["num_clusters"].to_list() == [4.0] * 16
    assert set(table["cluster"].to_list()) == {6.0, 7.0, 8.0, 9.0}
    same = table["cluster"].to_numpy()[:, None] == table["cluster"].to_numpy()[None]
    np.testing.assert_array_equal(same, GROUP[:, None] == GROUP[None])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"up_to": 0}, "up_to must be 1 or more, got 0"),
        ({"warm": 0}, "warm must be 1 or more, got 0"),
        ({"up_to": 5, "num_candidates": 4}, r"num_candidates must be at least up_to \(5\), got 4"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(BadValue, match=message):
        hypcluster_auto(LINE, **options)


def test_more_clusters_than_clients_are_refused_before_the_first_round():
    with pytest.raises(BadValue, match="up_to must be at most the 16 clients there are"):
        run(hypcluster_auto(MODEL, up_to=17, num_candidates=17), four_laws(), rounds=20)
