"""Decisions client by client: the rule on tables made by hand, the evidence, whole runs."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from plures import run
from plures.advise import decide, default_options, guide
from plures.advise.choice import Candidate, choose, paired_gain, population_best
from plures.advise.decisions import decide_between, families_of
from plures.contract import worlds
from plures.data import load
from plures.data.worlds import linear_clusters, logistic_clusters
from plures.errors import BadData, BadValue, UnknownChoice
from plures.methods.clustering.hypcluster import hypcluster
from plures.methods.fedavg import fedavg
from plures.methods.local_only import local_only
from plures.models.linear import density
from plures.personalize.finetune import finetune
from plures.study.bounds import joining_words
from plures.types import Plan

FULL = Plan(epochs=2, batch=None, lr=0.1)


def option(family, *valid, test=None, name=None):
    """An option with one seed from the losses on valid rows, a list per client."""
    held = valid if test is None else test
    return Candidate(
        name or family, family, *([np.array([rows], float) for rows in part] for part in (valid, held))
    )


def roster(options, *, seen=None):
    """The clients that the first option has losses for."""
    first = options[0]
    number = len(first.valid)
    return pl.DataFrame(
        {
            "uid": range(number),
            "name": [f"client-{uid}" for uid in range(number)],
            "seen": seen or [True] * number,
            "valid_rows": [rows.shape[1] for rows in first.valid],
            "test_rows": [rows.shape[1] for rows in first.test],
        }
    )


def decided(*options, seen=None):
    return decide_between(options, roster(options, seen=seen))


def taken(*options):
    """The family that the only client of some options decides for."""
    return choose(options, 0).family


def test_a_client_leaves_global_only_if_the_gain_exceeds_its_standard_error():
    """Two rows with gains a and b have mean (a + b) / 2 and standard error |a - b| / 2."""
    stays = option("global", [1.0, 1.0])

    assert taken(stays, option("clusters", [0.0, 1.0])) == "global"  # 0.5 against 0.5
    assert taken(stays, option("clusters", [0.0, 0.9])) == "clusters"  # 0.55 against 0.45


def test_more_errors_may_be_asked_for():
    """Gains of 3 and 1 have mean 2 and standard error 1."""
    options = [option("global", [3.0, 3.0]), option("clusters", [0.0, 2.0])]

    assert [choose(options, 0, errors=errors).family for errors in (0.0, 1.9, 2.0)] == ["clusters"] * 2 + ["global"]


def test_rows_are_paired():
    """Losses of 0 and 10 say little about a gain of 0.1, unless every row shows it."""
    assert taken(option("global", [0.5, 10.5]), option("clusters", [0.4, 10.4])) == "clusters"
    assert taken(option("global", [0.5, 10.5]), option("clusters", [10.4, 0.4])) == "global"


def test_a_later_family_must_beat_the_choice_so_far():
    """Both beat global clearly; between them the gains are 1 and 0 (too little), or 1 and 0.1."""
    start, cluster = option("global", [9.0, 9.0]), option("clusters", [2.0, 2.0])

    assert taken(start, cluster, option("personal", [1.0, 2.0])) == "clusters"
    assert taken(start, cluster, option("personal", [1.0, 1.9])) == "personal"


def test_the_order_in_which_options_are_given_does_not_matter_past_the_first():
    start = option("global", [9.0, 9.0])
    others = [option("alone", [1.0, 2.0]), option("personal", [2.0, 3.0]), option("clusters", [2.0, 2.0])]

    assert taken(start, *others) == taken(start, *others[::-1]) == "clusters"


def test_staying_alone_must_beat_every_way_to_join():
    start, cluster = option("global", [9.0, 9.0]), option("clusters", [2.0, 2.0])

    assert taken(start, cluster, option("alone", [1.0, 2.0])) == "clusters"
    assert taken(start, cluster, option("alone", [1.0, 1.0])) == "alone"


def test_the_best_of_a_family_stands_for_it():
    first, second = option("clusters", [2.0, 2.0], name="two"), option("clusters", [1.0, 1.0], name="four")

    assert choose([option("global", [9.0, 9.0]), first, second], 0).name == "four"


def test_a_gain_of_rounding_size_is_none():
    assert taken(option("global", [1.0, 1.0]), option("personal", [1.0 - 1e-9, 1.0 - 1e-9])) == "global"


def test_an_option_that_diverged_is_never_chosen():
    lost = option("clusters", [np.nan, -9.0])

    assert taken(option("global", [1.0, 1.0]), lost) == "global"
    assert population_best([option("global", [1.0, 1.0]), lost], [0]).family == "global"


def test_losses_are_averaged_over_seeds_before_rows_are_paired():
    """Seeds (2, 0) and (0, 2) of the gain average to a gain of 1 on both rows: no error at all."""
    before, after = np.ones((2, 2)), np.array([[-1.0, 1.0], [1.0, -1.0]])

    assert paired_gain(before, after) == (1.0, 0.0)


def test_with_one_valid_row_a_client_takes_what_is_best_for_all():
    """The first two clients make cluster the best for all; the third has one row, which speaks for global."""
    result = decided(
        option("global", [3.0, 3.0], [3.0, 3.0], [0.9]), option("clusters", [1.0, 1.0], [1.0, 1.0], [1.0])
    )

    assert result.best == "clusters"
    assert result.clients["family"].to_list() == ["clusters"] * 3
    assert result.clients["evidence"].to_list() == ["clear", "clear", "none"]


def test_the_best_for_all_counts_clients_not_rows_and_seen_ones_only():
    """Client means: global 1, 4, cluster 3, 1. Client 0 has many rows; the unseen client 2 would tip the scale."""
    options = [
        option("global", [1.0] * 9, [4.0, 4.0], [0.0, 0.0]),
        option("clusters", [3.0] * 9, [1.0, 1.0], [9.0, 9.0]),
    ]

    assert decided(*options, seen=[True, True, False]).best == "clusters"


def test_the_simplest_of_equals_is_best_for_all():
    assert population_best([option("global", [1.0, 1.0]), option("alone", [1.0, 1.0])], [0]).family == "global"


def test_gains_on_test_rows_come_with_their_standard_error():
    """Falls of 3 and 1 on test rows: mean 2, standard error 1. Against alone 5 and 5: 5 and 0."""
    result = decided(
        option("global", [2.0, 2.0], [1.0, 1.0], test=([4.0, 4.0], [1.0, 1.0])),
        option("clusters", [1.0, 1.0], [2.0, 2.0], test=([1.0, 3.0], [7.0, 7.0])),
        option("alone", [8.0, 8.0], [8.0, 8.0], test=([6.0, 8.0], [8.0, 8.0])),
    )

    first, second = result.clients.iter_rows(named=True)
    assert (first["family"], second["family"]) == ("clusters", "global")
    assert (first["valid_gain"], first["valid_gain_error"]) == (1.0, 0.0)
    assert (first["test_gain"], first["test_gain_error"]) == (2.0, 1.0)
    assert (first["test_gain_over_alone"], first["test_gain_over_alone_error"]) == (5.0, 0.0)
    assert (second["test_gain"], second["test_gain_error"]) == (0.0, 0.0)
    assert (first["valid_loss_alone"], first["test_loss_clusters"]) == (8.0, 2.0)


def test_the_evidence_sums_up_both_policies():
    """Decided: gains 2, -1, 0. Cluster for all: 2, -1, -3; each of the hurt is counted."""
    options = (
        option("global", [2.0, 2.0], [2.0, 2.0], [1.0, 1.0], test=([3.0, 3.0], [3.0, 3.0], [3.0, 3.0])),
        option("clusters", [1.0, 1.0], [1.0, 1.0], [1.5, 1.5], test=([1.0, 1.0], [4.0, 4.0], [6.0, 6.0])),
    )

    rows = {(row["policy"], row["against"]): row for row in decided(*options).evidence.iter_rows(named=True)}

    by_client, for_all = rows["client by client", "global"], rows["clusters for all", "global"]
    assert by_client["mean"] == pytest.approx(1 / 3)
    assert by_client["hurt"] == pytest.approx(1 / 3)
    assert for_all["mean"] == pytest.approx(-2 / 3)
    assert for_all["hurt"] == pytest.approx(2 / 3)
    assert rows["client by client", "clusters for all"]["mean"] == pytest.approx(1.0)


def several(valid_gain, test_gains):
    """Decisions for clients that all gain on valid rows by clustering, and on test rows as given."""
    number = len(test_gains)
    return decided(
        option("global", *[[2.0, 2.0]] * number, test=[[2.0, 2.0]] * number),
        option("clusters", *[[2.0 - valid_gain] * 2] * number, test=[[2.0 - gain] * 2 for gain in test_gains]),
    )


def test_the_summary_says_what_is_within_noise():
    said = several(1.0, [0.5, -0.5] * 10).summary

    assert said.startswith("20 of 20 clients: clusters.")
    assert "Deciding client by client lowers the test loss by 0.000" in said
    assert "against global, within noise; 50 % of clients are hurt." in said


def test_the_summary_says_what_is_gained_and_lost():
    gained, lost = several(1.0, [0.5] * 20).summary, several(1.0, [-0.5] * 20).summary

    assert "lowers the test loss by 0.500 [0.500, 0.500] against global; 0 % of clients are hurt." in gained
    assert "raises the test loss by 0.500 [0.500, 0.500] against global; 100 % of clients are hurt." in lost
    assert "within noise" not in gained + lost
    assert "Deciding client by client against clusters for all: no change." in gained


def test_one_client_is_too_few_to_tell():
    assert "too few clients to tell" in several(1.0, [0.5]).summary


def test_a_client_without_test_rows_decides_and_counts_in_no_mean():
    result = decided(
        option("global", [2.0, 2.0], [2.0, 2.0], [2.0, 2.0], test=([], [2.0, 2.0], [2.0, 2.0])),
        option("clusters", [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], test=([], [1.0, 1.0], [1.0, 1.0])),
    )

    assert result.clients["test_gain"].to_list() == [None, 1.0, 1.0]
    assert result.evidence["num_clients"].to_list() == [2] * 3
    assert result.evidence["mean"][0] == 1.0


def test_an_option_that_cannot_serve_the_unseen_is_not_theirs():
    """The last client is unseen. Cluster has no model for it, though it is best for all others."""
    result = decided(
        option("global", [2.0, 2.0], [2.0, 2.0], [2.0, 2.0]),
        option("clusters", [1.0, 1.0], [1.0, 1.0]),
        seen=[True, True, False],
    )

    assert result.clients["family"].to_list() == ["clusters", "clusters", "global"]
    assert result.clients["test_loss_clusters"].to_list() == [1.0, 1.0, None]
    assert result.evidence.filter(~pl.col("seen"))["verdict"].unique().to_list() == ["too few clients to tell"]


def test_a_loss_without_bound_is_not_averaged_away():
    result = decided(
        option("global", [2.0, 2.0], [2.0, 2.0], test=([2.0, 2.0], [2.0, 2.0])),
        option("clusters", [1.0, 1.0], [1.0, 1.0], test=([1.0, 1.0], [np.inf, 1.0])),
    )

    assert result.evidence["verdict"][0] == "a loss without bound"
    assert result.evidence["hurt"][0] == 0.5


@pytest.mark.parametrize(
    ("valid", "test", "said"),
    [
        ([[1.0], [1.0]], [[1.0], [1.0]], "no client has two valid rows"),
        ([[1.0, 1.0]], [[]], "no client has test rows"),
        ([[np.inf, 1.0]], [[1.0]], "global diverged"),
    ],
)
def test_what_leaves_nothing_to_decide_is_refused(valid, test, said):
    with pytest.raises(BadData, match=said):
        decided(option("global", *valid, test=test), option("clusters", *valid, test=test))


def runs_of(world, methods):
    return {
        name: run(method, world.federation, rounds=25, executor="vectorized") for name, method in methods.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["vectorized", "chunked:3", "one_by_one"])
def test_row_losses_average_to_the_scores(executor):
    seen, unseen = worlds.awkward()
    method = local_only(worlds.model(), plan=worlds.PLAN, newcomer_epochs=2)

    done = run(method, seen, unseen=unseen, rounds=1, executor=executor)

    for split, losses in done.losses().items():
        assert [len(rows) for rows in losses] == done.clients[f"{split}_rows"].to_list()
        means = [rows.mean() for rows in losses]
        np.testing.assert_allclose(means, done.clients[f"personal_{split}_loss"].to_numpy(), rtol=1e-5)


@pytest.mark.slow
def test_row_losses_of_private_rows_on_disk(tmp_path):
    seen, unseen = worlds.awkward()
    method = local_only(worlds.model(), plan=worlds.PLAN, newcomer_epochs=2)

    kept, stored = (
        run(method, seen, unseen=unseen, rounds=1, store=where).losses() for where in ("memory", tmp_path / "rows")
    )

    np.testing.assert_allclose(np.concatenate(kept["test"]), np.concatenate(stored["test"]), rtol=1e-6)


@pytest.fixture(scope="module")
def clustered():
    """Three groups of clients, far apart, and a run of one method per family."""
    world = linear_clusters(num_clients=12, num_groups=3, gap=4.0, rows=40)
    methods = {
        "local_only": local_only(world.model, plan=FULL),
        "hypcluster": hypcluster(world.model, num_clusters=3, plan=FULL, warm=2),
        "fedavg": fedavg(world.model, plan=FULL),
        "fedavg|finetune": finetune(fedavg(world.model, plan=FULL), epochs=1),
    }
    return world, runs_of(world, methods)


@pytest.mark.slow
def test_a_clustered_world_is_decided_for_clusters(clustered):
    result = decide(clustered[1])

    assert result.counts["clusters"] >= 10
    assert result.reference == "fedavg"
    assert result.best == "hypcluster"
    assert result.evidence["verdict"][0] == "better"
    assert result.families["fedavg|finetune"] == "personal"


def test_test_labels_decide_nothing(clustered):
    """With the labels of all test rows changed, decisions and valid gains stay; what is said of them does not."""
    world, runs = clustered
    federation = world.federation
    labels = federation.y.copy()
    for start, count in zip(federation.start[:, 2], federation.count[:, 2], strict=True):
        labels[start : start + count] = 5.0 - labels[start : start + count][::-1]
    changed = replace(world, federation=replace(federation, y=labels))
    methods = {name: done.runner.method for name, done in runs.items()}

    before, after = decide(runs), decide(runs_of(changed, methods))

    same = ["family", "method", "evidence", "valid_gain", "valid_gain_error"]
    assert after.clients.select(same).equals(before.clients.select(same))
    assert after.best == before.best
    assert after.evidence["mean"][0] != pytest.approx(before.evidence["mean"][0])


@pytest.fixture(scope="module")
def alike():
    """One group of clients, trained to the end: nothing but chance speaks against the common model."""
    world = logistic_clusters(num_clients=20, num_groups=1, rows=80)
    seen, unseen = world.federation.hold_out(num_clients=4)
    plan = Plan(epochs=2, batch=None, lr=1.0)
    methods = {
        "fedavg": fedavg(world.model, plan=plan),
        "local_only": local_only(world.model, plan=plan),
        "fedavg|finetune": finetune(fedavg(world.model, plan=plan), epochs=1, select=False),
    }
    return {name: run(one, seen, unseen=unseen, rounds=25, executor="vectorized") for name, one in methods.items()}


@pytest.mark.slow
def test_clients_alike_stay_global(alike):
    result = decide(alike, errors=2.0)

    assert result.counts["global"] >= 18
    assert result.clients["seen"].sum() == 16


@pytest.mark.slow
def test_with_a_low_bar_more_leave_and_the_evidence_calls_it_noise(alike):
    low, high = decide(alike), decide(alike, errors=2.0)

    assert 12 <= low.counts["global"] < high.counts["global"]
    assert low.evidence["verdict"][0] == "within noise"


@pytest.mark.slow
def test_several_seeds_are_averaged(clustered):
    world, runs = clustered
    names = ["fedavg", "local_only"]
    methods = {name: runs[name].runner.method for name in names}
    pairs = {name: [run(methods[name], world.federation, rounds=3, seed=seed) for seed in (0, 1)] for name in names}

    result = decide(pairs)

    expected = np.mean([done.clients["personal_test_loss"].to_numpy() for done in pairs["fedavg"]], axis=0)
    np.testing.assert_allclose(result.clients["test_loss_fedavg"].to_numpy(), expected, rtol=1e-5)


@pytest.mark.slow
def test_guiding_is_deciding_between_runs(clustered):
    world, runs = clustered
    methods = {name: runs[name].runner.method for name in ("fedavg", "local_only")}

    guided = guide(methods, world.federation, rounds=25, executor="vectorized")

    assert guided.clients.equals(decide({name: runs[name] for name in methods}).clients)


def test_families_are_known_by_name_and_by_what_methods_do(clustered):
    methods = {name: done.runner.method for name, done in clustered[1].items()}

    assert list(families_of(methods).items()) == [
        ("fedavg", "global"),
        ("hypcluster", "clusters"),
        ("fedavg|finetune", "personal"),
        ("local_only", "alone"),
    ]
    assert families_of({**methods, "mine": methods["fedavg"]}, {"mine": "global"})["mine"] == "global"


@pytest.mark.parametrize(
    ("names", "families", "error", "said"),
    [
        (["fedavg"], {}, BadValue, "of two families or more"),
        (["local_only", "hypcluster"], {}, BadValue, "a global one to start from, such as fedavg"),
        (["fedavg", "local_only"], {"local_only": "lone"}, UnknownChoice, "no family is called 'lone'"),
        (["fedavg", "local_only"], {"lokal": "alone"}, UnknownChoice, "no method in families is called 'lokal'"),
    ],
)
def test_families_that_leave_no_choice_are_refused(clustered, names, families, error, said):
    with pytest.raises(error, match=said):
        decide({name: clustered[1][name] for name in names}, families=families)


def test_runs_on_other_data_or_of_unequal_number_are_refused(clustered):
    world, runs = clustered
    other = linear_clusters(num_clients=12, num_groups=3, gap=4.0, rows=40, seed=1)
    strange = run(local_only(world.model, plan=FULL), other.federation, rounds=1)

    with pytest.raises(BadData, match="different data"):
        decide({"fedavg": runs["fedavg"], "local_only": strange})
    with pytest.raises(BadValue, match="errors must be a number of standard errors, 0 or more"):
        decide(runs, errors=-1.0)
    with pytest.raises(BadValue, match="equally many"):
        decide({"fedavg": [runs["fedavg"]] * 2, "local_only": runs["local_only"]})


def test_no_default_option_needs_more_clusters_than_clients():
    assert "hypcluster_auto:per_client=no" in default_options(load("digits"))
    assert "hypcluster_auto:per_client=no,up_to=3" in default_options(load("digits", num_clients=4).take([0, 1, 2]))


def labels(*counts):
    """A density federation whose clients have so many training rows of each symbol, and nothing else."""
    whole = load("density", num_clients=len(counts), num_symbols=len(counts[0]) + 1, num_groups=1)
    y = [np.repeat(np.arange(len(one)), one) for one in counts]
    sizes = np.array([len(one) for one in y])
    start = np.cumsum(sizes) - sizes
    return replace(
        whole,
        y=np.concatenate(y).astype(np.int32),
        x=np.zeros((sizes.sum(), 0), np.float32),
        start=np.stack([start, start + sizes, start + sizes], axis=1),
        count=np.stack([sizes, 0 * sizes, 0 * sizes], axis=1),
    )


def test_theory_is_told_in_words():
    """d = 3. Alone sqrt(3 / m_k), together sqrt(3 / m) + disc.

    [300, 300] of all [600, 300]: alone 0.07 < 0.06 + 1/6. [6, 0]: alone 0.71 > 0.06 + 1/3. The rest has too few rows.
    """
    federation = labels([300, 300], [300, 0], [6, 0], [1, 0])
    model = density((0,), federation.num_classes)

    words = joining_words(model, federation, num_seen=4)

    assert words == ["stay alone", "stay alone", "join", "join"]
    assert joining_words(model, labels([1, 0], [0, 1]), num_seen=2) == ["not valid: fewer rows than parameters"] * 2
    assert joining_words(model, labels([2, 0], [0, 2]), num_seen=2) == ["vacuous"] * 2


def test_theory_is_silent_where_labels_are_no_classes():
    world = linear_clusters(num_clients=4)

    assert joining_words(world.model, world.federation, num_seen=4) == [None] * 4
