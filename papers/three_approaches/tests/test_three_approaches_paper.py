"""The reproduction of the three approaches: densities near their closed forms, tables from stored grids, bars."""

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from papers.three_approaches import density
from papers.three_approaches import figures as approaches
from papers.three_approaches import grid as writers
from papers.three_approaches import run as three
from papers.three_approaches.follow import follow
from plures.data.worlds import mean_estimation, one_or_any
from plures.engine import Family, Settings, prepare, run
from plures.errors import BadFile, Unsupported
from plures.methods.clustering.hypcluster import hypcluster
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.personalize.finetune import finetune
from plures.personalize.guard import guard
from plures.personalize.mapper import mapper
from plures.types import Plan


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(100), marks=pytest.mark.slow)])
@pytest.mark.slow
def test_four_clusters_are_the_natural_ones(seeds):
    found = density.played(density.by_text(density.CLUSTERS.format(4)), 100, seeds)

    assert (found.purity >= 0.99).mean() >= 0.95
    assert (np.abs(found.mean - 2.468689363974) <= 0.02).mean() >= 0.95


def test_one_cluster_reaches_the_entropy_of_the_mixture():
    found = density.played(density.by_text(density.BASE), 100, range(3))

    np.testing.assert_allclose(found.mean, 3.166304598772, atol=0.005)


@pytest.mark.slow
def test_exact_steps_never_raise_the_objective():
    """Full batches of step 1 put every cluster at the mean of its clients: Lloyd's algorithm."""
    world = mean_estimation(num_clients=30, dim=2, rows=4, radius=3.0, seed=2)
    method = hypcluster(world.model, num_clusters=3, init="partition", warm=1, plan=Plan(batch=None, lr=1.0))

    table = run(method, world.federation, rounds=14, eval_every=14).record.info_table()

    losses = table.filter((pl.col("name") == "loss") & (pl.col("round") > 1)).sort("round")["value"].to_numpy()
    assert len(losses) == 13
    assert np.diff(losses).max() <= 1e-6
    assert losses[-1] < 0.9 * losses[0]


@pytest.fixture(scope="module")
def trained():
    world = one_or_any(num_clients=6, num_symbols=4, rows=12, valid_rows=4)
    base = fedavg(world.model, plan=Plan(batch=5, lr=0.5), momentum=0.9)
    return world.federation, base, run(base, world.federation, rounds=3)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [mapper, lambda base: finetune(base, epochs=2)], ids=["closing", "serving"])
def test_following_a_run_equals_running_from_the_start(trained, wrap):
    federation, base, done = trained
    method = wrap(base)

    followed = follow(done, method)

    whole = run(method, federation, rounds=followed.runner.settings.rounds)
    assert followed.num_bytes == whole.num_bytes
    for kind, split in (("personal", "valid"), ("global", "valid"), ("facts", "served")):
        ours, theirs = followed.record.latest(kind, split), whole.record.latest(kind, split)
        assert (ours is None) == (theirs is None)
        for name in {} if ours is None else ours.metrics:
            np.testing.assert_array_equal(ours.metrics[name], theirs.metrics[name])


def test_a_method_that_trains_otherwise_cannot_follow(trained):
    _, base, done = trained

    with pytest.raises(Unsupported, match="trains otherwise"):
        follow(done, ditto(base.model))


def test_a_run_of_a_family_may_be_followed_by_another_method(trained):
    """What is served is the other method's, not what the family makes."""
    federation, base, _ = trained

    def near(numbers):
        return ditto(base.model, plan=Plan(batch=5, lr=numbers["lr"]), lam=numbers["lam"])

    numbers = {"lr": jnp.float32(0.2), "lam": jnp.float32(3.0)}
    family, method = Family(near, near({"lr": 0.05, "lam": 0.2})), near({"lr": 0.2, "lam": 3.0})
    runners = [
        prepare(method, federation, settings=Settings(rounds=4), **more)
        for more in ({"family": family, "numbers": numbers}, {})
    ]

    found, expected = (follow(one.run(), guard(method)) for one in runners)

    for ours, theirs in zip(
        jax.tree.leaves(found.state.private), jax.tree.leaves(expected.state.private), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    for ours, theirs in zip(found.record.scores, expected.record.scores, strict=True):
        assert (ours.round, ours.kind, ours.split) == (theirs.round, theirs.kind, theirs.split)
        for name, values in ours.metrics.items():
            np.testing.assert_allclose(values, theirs.metrics[name], atol=1e-4)


def grid_of(accuracy):
    """A grid in which every cell has the given accuracies, and a second seed with Dapper worse for all."""
    ways = [(base, way) for base in writers.BASES for way in writers.PERSONALIZERS]
    facts = {"lam": np.full(len(accuracy), 0.5)}
    seen = np.arange(len(accuracy)) < len(accuracy) // 2
    times = dict.fromkeys(writers.BASES, 2.0)

    def played(gain):
        cells = {
            (base, way): writers.Cell(accuracy + gain * (way == "Dapper"), accuracy, facts, 3.0)
            for base, way in ways
        }
        rows = np.full(len(accuracy), 5)
        many = dict.fromkeys(writers.BASES, 100.0)
        return writers.Played(cells, seen, rows, seen * 1, times, many, "NVIDIA H200", repr(writers.SCALES["full"]))

    return played


def test_a_stored_grid_comes_back(tmp_path):
    one = grid_of(np.linspace(0.5, 1.0, 20))(0.0)

    writers.save(one, tmp_path / "grid.npz")
    again = writers.opened(tmp_path / "grid.npz", writers.SCALES["full"])

    assert again.cells.keys() == one.cells.keys()
    np.testing.assert_array_equal(again.cells["HypCluster", "Mapper"].facts["lam"], np.full(20, 0.5))
    assert (again.training, again.examples, again.device) == (one.training, one.examples, one.device)
    with pytest.raises(BadFile, match="other settings"):
        writers.opened(tmp_path / "grid.npz", writers.SCALES["small"])


@pytest.mark.parametrize(("gain", "met"), [(0.0, True), (-0.2, False), (0.1, True)])
def test_a_personalizer_may_not_lose_more_than_noise(gain, met):
    played = [grid_of(np.linspace(0.2, 0.8, 20))(gain) for _ in range(2)]

    rows = {row.id: row for row in three._grid_rows(played, held=True)}

    assert rows["unseen-fedavg-dapper-gain"].met is met
    assert rows["seen-hypcluster-mapper-gain"].met
    assert rows["seen-fedavg-dapper"].published == 90.1
    assert rows["seen-fedavg-initial"].ours == pytest.approx(100 * np.linspace(0.2, 0.8, 20)[:10].mean())
    assert (rows["grid-seconds"].ours, rows["grid-seconds"].met) == (36.0, True)
    assert rows["grid-examples-per-second"].ours == 50.0


def test_stored_grids_are_read_and_drawn(tmp_path):
    for seed in range(3):
        writers.save(grid_of(np.linspace(0.2, 0.8, 20))(0.0), tmp_path / f"grid-seed-{seed}.npz")

    rows = three._writers("full", tmp_path, lambda text: None)
    approaches.pictures(tmp_path)

    assert [row.id for row in rows if row.bar and not row.met] == []
    assert (tmp_path / "grid.png").stat().st_size > 10_000
    assert pl.read_csv(tmp_path / "grid.csv").height == 24
    pairs = pl.read_csv(tmp_path / "pairs.csv")
    assert pairs.height == 2 * (3 * 6 + 4 * 3)
    assert set(pairs["verdict"]) == {"within noise"}


def test_without_the_data_the_row_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PLURES_DATA", str(tmp_path / "nowhere"))
    said = []

    rows = three._writers("small", tmp_path, said.append)

    assert [(row.id, row.met) for row in rows] == [("writers", False)]
    assert "mnist_by_writer.npz" in said[0]
