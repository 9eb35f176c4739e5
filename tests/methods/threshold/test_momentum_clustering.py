"""Momentum-Clustering and the myopic strawman: centers, momentum, audits, attackers, seeds, newcomers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run, tree
from plures.data.worlds import linear_clusters, mean_estimation
from plures.data.worlds.known_optima import quadratics
from plures.errors import BadValue, UnknownChoice
from plures.method import Attack
from plures.methods.threshold.gradients import GradientUpload
from plures.methods.threshold.momentum_clustering import momentum_clustering
from plures.methods.threshold.momentum_table import draw_centers, nearest_center
from plures.types import Plan, Weights

WORLD = mean_estimation(num_clients=6, dim=2, rows=8, radius=1.0, sigma=0.1)
MEANS = np.stack([WORLD.federation.rows_of(name, "train")[1].mean(0) for name in WORLD.federation.names])
STEP = Plan(steps=1, batch=None, lr=0.5)
CLUSTERS = linear_clusters(num_clients=12, num_groups=3)
PLAN = Plan(steps=1, batch=None, lr=0.1)


def mc(**options):
    return momentum_clustering(
        CLUSTERS.model, **{"num_clusters": 3, "plan": PLAN, "radius": "k_nearest:k=4", **options}
    )


def test_momentum_is_a_running_mean_of_slopes():
    """One cluster, a ball for all: v_1 = g_1, v_2 = alpha g_2 + (1 - alpha) g_1."""
    method = momentum_clustering(WORLD.model, num_clusters=1, plan=STEP, radius="fixed", alpha=0.25)

    result = run(method, WORLD.federation, rounds=2)

    target = MEANS.mean(0)
    # x_1 = t/2; g_1 = -t, g_2 = -t/2: v_2 = -(0.125 + 0.75) t
    np.testing.assert_allclose(
        np.asarray(result.state.server.models.params["point"])[0], target * (0.5 + 0.5 * 0.875), atol=1e-5
    )
    np.testing.assert_allclose(
        result.state.private.momentum.params["point"], 0.25 * (0.5 * target - MEANS) - 0.75 * MEANS, atol=1e-5
    )


@pytest.fixture(scope="module")
def audited():
    return run(mc(audit=3), CLUSTERS.federation, rounds=7)


def groups_found(result):
    table = result.clients
    return {(row["group"], row["cluster"]) for row in table.iter_rows(named=True)}


@pytest.mark.slow
def test_planted_clusters_are_found(audited):
    assert len(groups_found(audited)) == 3
    assert len({cluster for _, cluster in groups_found(audited)}) == 3


@pytest.mark.slow
def test_an_audit_costs_one_exchange_more_for_every_cluster(audited):
    # Rounds 4 and 7 (the first is round 0) have audits of three exchanges.
    assert audited.state.exchanges.tolist() == [7 + 2 * 3] * 12
    assert audited.state.visits.tolist() == [7] * 12


def test_an_audit_puts_a_client_back_where_it_belongs(audited):
    """Client 0 is given another cluster's model by force; the audit of the next round finds out."""
    server = audited.state.server
    label = np.asarray(server.label)
    wrong = server._replace(label=server.label.at[0].set((label[0] + 1) % 3), round=jnp.asarray(3))
    method = mc(audit=3)
    result = run(replace(method, start=lambda key, number: wrong._replace(key=key)), CLUSTERS.federation, rounds=1)

    np.testing.assert_array_equal(result.state.server.label, label)


@pytest.mark.slow
def test_who_is_moved_by_an_audit_forgets_its_momentum():
    """Gradients at model k are 0 for its cluster and far away for the others; client 5 is in the wrong one."""
    method = mc(audit=3)
    server = method.start(jax.random.key(0), 12)
    everyone = jnp.ones(12, bool)
    server = server._replace(label=jnp.arange(12) % 3, round=jnp.asarray(3), heard=everyone, met=everyone)
    belongs = np.arange(12) % 3
    belongs[5] = 0
    flat = jax.tree.map(lambda leaf: jnp.zeros((12, *leaf.shape[1:])), server.models)
    for k in range(3):
        far = 100.0 * (belongs != k)
        points = jax.tree.map(lambda leaf, far=far: leaf + tree.along(jnp.asarray(far), leaf), flat)
        server = method.merge(
            server, GradientUpload(points, jnp.zeros(12, jnp.int32)), jnp.ones(12), jnp.arange(12)
        )

    np.testing.assert_array_equal(server.label, belongs)
    assert np.flatnonzero(server.moved).tolist() == [5]
    assert bool(method.send(server, jnp.asarray(5)).forget)
    assert not bool(method.send(server, jnp.asarray(4)).forget)


def test_without_audits_nobody_moves_between_clusters():
    result = run(mc(audit=0), CLUSTERS.federation, rounds=3)

    assert result.state.exchanges.tolist() == [3] * 12
    assert len(groups_found(result)) == 3


def attack_with(value, *attackers):
    def is_attacker(uids):
        return jnp.isin(uids, jnp.array(attackers))

    def forge(key, uploads, weights, uids, receivers):
        return jax.tree.map(lambda leaf: jnp.where(tree.along(is_attacker(uids), leaf), value, leaf), uploads)

    return Attack(name="attack_with", share=len(attackers) / 12, members=is_attacker, forge=forge)


@pytest.mark.slow
def test_attackers_far_away_change_nothing_but_who_is_there():
    """Three of twelve, one of each group, send huge numbers or none: the honest get the same models."""
    honest = [uid for uid in range(12) if uid not in (0, 1, 2)]
    found = [
        run(
            mc(audit=2, radius="k_nearest:k=3"),
            CLUSTERS.federation,
            rounds=4,
            channels=(attack_with(value, 0, 1, 2),),
        )
        for value in (1e6, float("nan"))
    ]

    for result in found:
        table = result.clients.to_dicts()
        assert len({(row["group"], row["cluster"]) for row in table if row["uid"] in honest}) == 3
        assert all(row["personal_test_loss"] < 2.0 for row in table if row["uid"] in honest)


@pytest.mark.slow
def test_first_centers_cover_the_clusters_and_not_the_attackers():
    """Four tight clusters of five, and five attackers far apart from everybody: no center is an attacker's."""
    rng = np.random.default_rng(0)
    centers = 10.0 * np.eye(4)
    honest = np.repeat(centers, 5, axis=0) + 0.1 * rng.normal(size=(20, 4))
    points = np.concatenate([honest, 1e6 * rng.normal(size=(5, 4))]).astype(np.float32)

    for seed in range(5):
        found = draw_centers(jax.random.key(seed), Weights(jnp.asarray(points)), jnp.ones(25), 4, 64)
        apart = np.linalg.norm(np.asarray(found.params)[:, None] - centers[None], axis=-1)
        assert sorted(apart.argmin(1).tolist()) == [0, 1, 2, 3], seed
        assert apart.min(1).max() < 1.0


def test_who_does_not_count_stays_where_it_was():
    points = Weights(jnp.array([[0.0], [9.0], [jnp.nan], [1.0]]))
    centers = Weights(jnp.array([[0.0], [10.0]]))

    found = nearest_center(points, jnp.array([1.0, 1.0, 1.0, 0.0]), centers, jnp.array([1, 0, 1, 1]))

    assert found.tolist() == [0, 1, 1, 1]


@pytest.mark.slow
def test_newcomers_get_the_model_that_serves_their_rows_best():
    seen, unseen = CLUSTERS.federation.hold_out(num_clients=3)
    result = run(mc(radius="k_nearest:k=2", plan=Plan(steps=5, batch=None, lr=0.1)), seen, unseen=unseen, rounds=8)

    table = result.clients.to_dicts()
    by_group = {row["group"]: row["cluster"] for row in table[:9]}
    assert [row["cluster"] for row in table[9:]] == [by_group[row["group"]] for row in table[9:]]


def test_the_cost_is_told_with_that_of_audits():
    said = mc(audit=5).views.forecast(40, ()).cost

    assert "40 gradients per round, 120 more in every 5th" in said
    assert "strangers" in mc(radius="quantile:q=0.5").views.forecast(12, (4, 4, 4)).warnings[0]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"num_clusters": -1}, BadValue, "num_clusters must be"),
        ({"alpha": 0.0}, BadValue, "alpha must be"),
        ({"audit": -1}, BadValue, "audit must be"),
        ({"reassign": "never"}, UnknownChoice, "always"),
        ({"num_starts": 0}, BadValue, "num_starts must be"),
    ],
)
def test_what_cannot_be_is_refused(options, error, match):
    with pytest.raises(error, match=match):
        mc(**options)


def test_more_clusters_than_clients_are_refused_before_the_first_round():
    with pytest.raises(BadValue, match="at most the 12 clients"):
        run(mc(num_clusters=13), CLUSTERS.federation, rounds=1)


@pytest.mark.slow
def test_with_a_part_of_the_clients_who_is_new_is_put_where_it_belongs():
    """Without memory, in rounds of half of the clients: audits until everybody was there, and then every fifth round."""
    world = quadratics(num_clients=12, num_groups=2, dim=4, rows=4)
    method = momentum_clustering(world.model, plan=PLAN, radius="quantile:q=0.4", alpha=1.0, audit=5)

    result = run(method, world.federation, rounds=9, cohort=6)

    server = result.state.server
    assert bool(server.met.all())
    same = np.asarray(server.label) == world.federation.group
    assert same.all() or not same.any()
    assert int(server.round) == 9  # an audit that ends early would play rounds of its own
