"""What is advised for tables as users have them: the right family, and models that are as good as could be had."""

import numpy as np
import pytest
from ordinary_tables import ordinary_table, read_table

from plures.advise import WorthOptions, advise, estimate_worth
from plures.data import from_arrays
from plures.solvers.degree import valid_degree


@pytest.fixture(scope="module")
def worth_of(tmp_path_factory):
    """What `worth` says of a table, found out once."""
    found, folder = {}, tmp_path_factory.mktemp("tables")

    def find(name):
        if name not in found:
            found[name] = estimate_worth(read_table(ordinary_table(name), folder, name))
        return found[name]

    return find


# The bars are what independent code reached on the same rows, with a few percent for chance.
@pytest.mark.parametrize(
    ("name", "verdict", "way", "bar"),
    [
        ("alike", "global", "global", 0.53),
        ("moderate", "yes", "auto", 0.765),
        ("apart", "alone", "alone", 0.79),
        ("offset", "yes", "auto", 0.78),  # 1000 away from 0
        ("logprice", "yes", "auto", 0.054),
        ("intercepts", "yes", "auto", 0.44),  # a level each and slopes for all: 0.433
        ("oneslope", "yes", "auto", 1.08),  # two strengths, of slopes and intercept: 1.073
        ("groups", "clusters", "clusters", 0.54),  # a model per group: 0.531
        ("sizes", "yes", "auto each", 0.68),
        ("noises", "yes", "auto each", 2.31),
        ("classes", "yes", "auto", 0.365),
    ],
)
def test_worth_says_what_fits_and_it_does(worth_of, name, verdict, way, bar):
    worth = worth_of(name)

    assert (worth.verdict, worth.way) == (verdict, way)
    assert worth.test[way].mean() < bar


def test_precise_clients_are_not_spoilt_by_noisy_ones(worth_of):
    """Half of the sites have a hundredth of the others' deviation: 0.007 alone, 0.23 with one lam for all."""
    worth, precise = worth_of("noises"), np.arange(30) % 2 == 1

    assert worth.test["auto each"][precise].mean() < 1.05 * worth.test["alone"][precise].mean()
    gain = (worth.predicted["alone"] - worth.predicted["auto each"])[precise]
    assert gain.max() < 0.001
    assert "clients are not equally noisy (deviations of 0.07" in " ".join(worth.sentences)


def test_an_outlier_is_named_and_spoils_nothing(worth_of):
    worth = worth_of("outlier")

    assert worth.outliers == worth.served.names == ("site029",)
    assert worth.verdict == "global"
    assert worth.test["global"].mean() < 0.56
    assert worth.served.test["alone"][0] < 2 < worth.served.test["global"][0]
    assert "`fedavg:aggregate=median`" in " ".join(worth.sentences)


def test_groups_are_sent_to_a_clustering_method(worth_of):
    said = " ".join(worth_of("groups").sentences)

    assert said.startswith("yes, but in groups: one model for each of 2 clusters of clients")
    assert "take a clustering method, `hypcluster_auto` or `ifca`" in said


def test_a_client_with_one_row_is_served_and_stops_nobody(worth_of):
    worth = worth_of("tiny")

    assert worth.verdict == "yes"
    assert worth.rows.left_out == tuple(f"site{number:03d}" for number in range(5))
    assert worth.served.names == tuple(f"site{number:03d}" for number in range(5, 10))
    assert set(worth.served.why) == {"one training row, no valid row"}
    assert worth.served.test["auto"].mean() < worth.served.test["alone"].mean()


def test_two_answers_for_the_same_clients_are_named_with_their_reasons(worth_of):
    """Clusters of slopes are nearly as good as slopes that scatter; folds of isotropic models cannot tell."""
    worth = worth_of("oneslope")

    assert worth.families.family == "clusters"
    told = next(said for said in worth.sentences if "says otherwise" in said)
    assert told.startswith(
        "`plures advise` says otherwise: clusters (one model per cluster), and this says personal"
    )
    assert worth.LOOKS in told
    assert worth.families.LOOKS in told


def test_clients_held_out_reach_no_estimate(tmp_path):
    seen, unseen = read_table(ordinary_table("moderate"), tmp_path).hold_out(num_clients=6)
    rng = np.random.default_rng(0)
    other = from_arrays(
        rng.normal(size=(60, 8)), 1e3 * rng.normal(size=60), np.repeat(range(6), 10), task="regression"
    )

    worth, again = (estimate_worth(seen, unseen=late) for late in (unseen, other))

    assert worth.served.why == ("held out",) * 6
    assert worth.served.test["auto"].mean() < worth.served.test["global"].mean()
    assert again.degree.lam == worth.degree.lam
    for way in worth.ways:
        np.testing.assert_array_equal(again.test[way], worth.test[way])


def test_at_the_time_limit_it_says_what_it_knows(tmp_path):
    federation = read_table(ordinary_table("classes"), tmp_path)

    worth = estimate_worth(federation, WorthOptions(limit=1e-9))

    assert len(worth.validated.lams) == 1
    assert worth.remarks[-1] == (
        "the time limit of 1e-09 s was reached: valid rows chose among 1 of 31 strengths; --limit gives more"
    )


def test_strengths_are_tried_from_the_middle_to_both_sides_until_it_is_enough(worth_of):
    clients, tried = worth_of("classes").clients, []

    found = valid_degree(clients, clients, np.arange(1.0, 8.0), enough=lambda: tried.append(0) or len(tried) == 3)

    np.testing.assert_array_equal(found.lams, [2.0, 4.0, 6.0])
    whole = valid_degree(clients, clients, np.arange(1.0, 8.0))
    np.testing.assert_allclose(found.losses, whole.losses[1::2], rtol=1e-6)


def test_nothing_saves_more_than_all_of_an_error(tmp_path):
    found = advise(read_table(ordinary_table("outlier"), tmp_path))

    assert found.outliers == ("site029",)
    assert found.verdict == "global"
    assert all(found.saving("global", name).high <= 1 for name in found.scores)


@pytest.mark.parametrize("name", ["alike", "offset", "intercepts", "apart"])
def test_advise_names_no_outliers_where_none_are(worth_of, name):
    assert worth_of(name).outliers == ()
    assert worth_of(name).families.family == worth_of(name).family
