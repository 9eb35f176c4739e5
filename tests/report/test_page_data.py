"""What the report page says equals the per-client table."""

import json
import re

import numpy as np
import polars as pl
import pytest
from studies import client_table, write_run, write_study

from plures.report.page import page_text, write_page
from plures.report.page_data import page_of
from plures.study.disk.results import read_results

CLIENTS, UNSEEN = 12, 3
ALONE = np.linspace(0.3, 0.7, CLIENTS)
SCORES = {"local_only": ALONE, "fedavg": ALONE + 0.05, "ifca": ALONE + 0.2, "oracle": ALONE + 0.25}
GROUPS = [k % 2 for k in range(CLIENTS)]
CLUSTERS = {"ifca": [k % 2 for k in range(CLIENTS)], "oracle": GROUPS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "study"
    return write_study(path, SCORES, groups=GROUPS, unseen=UNSEEN, clusters=CLUSTERS)


@pytest.fixture(scope="module")
def page(folder):
    return page_of(read_results(folder))


def test_methods_stand_in_the_order_of_the_leaderboard(page):
    assert [one["name"] for one in page["methods"]] == ["oracle", "ifca", "fedavg", "local_only"]
    assert [one["method"] for one in page["leaderboard"]] == ["oracle", "ifca", "fedavg", "local_only"]


def test_every_method_has_a_look_of_its_own(page):
    looks = [(one["color"], one["symbol"], one["dash"]) for one in page["methods"]]

    assert len(set(looks)) == len(looks)


def test_the_advice_is_not_the_oracle(page):
    assert page["answer"]["advice"] == "ifca"
    assert len(page["answer"]["sentences"]) == 3


def test_clients_have_their_means_over_seeds(page):
    order = [one["name"] for one in page["methods"]]

    for client in page["clients"]:
        for name, values in SCORES.items():
            assert client["scores"][order.index(name)] == pytest.approx(values[client["uid"]] + 0.005, abs=1e-6)
    assert [one["seen"] for one in page["clients"]] == [True] * 9 + [False] * 3


def test_the_front_leaves_out_who_knows_the_groups(page):
    assert page["front"] == ["ifca"]


def test_clusters_are_told_with_their_recovery(page):
    found = {one["method"]: one for one in page["clusters"]}

    assert set(found) == {"ifca", "oracle"}
    assert found["ifca"]["adjusted_rand"] == 1
    assert len(found["ifca"]["labels"]) == 2
    assert found["ifca"]["groups"] == sorted(found["ifca"]["groups"])


def test_newcomers_are_means_over_unseen_clients(page):
    found = {one["method"]: one for one in page["newcomers"]}["ifca"]

    mean = SCORES["ifca"][-UNSEEN:].mean() + 0.005
    assert found["rows"] == [0, 2]
    assert found["mean"] == pytest.approx([0, mean / 2])
    assert found["all_mean"] == pytest.approx(mean)


def test_deciles_go_from_the_least_to_the_largest_score(page):
    found = {one["method"]: one["deciles"] for one in page["fairness"]}["fedavg"]

    assert len(found) == 11
    assert found[0] == pytest.approx(SCORES["fedavg"][0] + 0.005)
    assert found[-1] == pytest.approx(SCORES["fedavg"][CLIENTS - UNSEEN - 1] + 0.005)


def test_papers_of_the_methods_are_named(page):
    found = {one["name"]: one["url"] for one in page["references"]}

    assert found["ifca"] == "https://arxiv.org/abs/2006.04088"


def test_times_stand_in_one_place_only(page):
    assert page["times"]["seconds"]["fedavg"] == 3.0
    assert "seconds" not in page["leaderboard"][0]


def test_the_same_results_give_the_same_page(tmp_path):
    one, other = (write_study(tmp_path / name, SCORES, groups=GROUPS, clusters=CLUSTERS) for name in "ab")

    assert page_of(read_results(one)) | {"command": ""} == page_of(read_results(other)) | {"command": ""}


def test_the_page_loads_nothing_from_elsewhere(folder, tmp_path):
    text = write_page(folder, tmp_path / "page.html").read_text()

    outside = text.split("<script>", 1)[0] + text.rsplit("</script>", 1)[1]
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']https?:", text)
    assert "@import" not in outside


def test_texts_of_users_cannot_end_the_script_or_add_tags(tmp_path):
    names = ["</script><b>", "<img src=x>", "a & b", *[f"n{k}" for k in range(9)]]
    saved = read_results(write_study(tmp_path, {"fedavg": ALONE}, names=names))

    text = page_text(page_of(saved))

    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert [one["name"] for one in json.loads(data[1])["clients"]] == names
    assert "<img src=x>" not in text.replace(data[1], "")


def test_scores_that_are_no_numbers_are_left_blank(tmp_path):
    table = client_table(ALONE).with_columns(
        pl.when(pl.col("uid") == 3)
        .then(None)
        .otherwise(pl.col("personal_test_accuracy"))
        .alias("personal_test_accuracy")
    )
    write_run(tmp_path, "fedavg", 0, table)

    page = page_of(read_results(tmp_path))

    assert page["clients"][3]["scores"] == [None]
    json.dumps(page, allow_nan=False)


@pytest.mark.parametrize(("column", "rows"), [("train_rows", 1), ("valid_rows", 0), ("test_rows", 0)])
def test_a_client_with_too_little_data_is_marked(tmp_path, column, rows):
    table = client_table(ALONE).with_columns(pl.Series(column, [rows] + [20] * (CLIENTS - 1)))
    write_run(tmp_path, "fedavg", 0, table)

    assert [one["uid"] for one in page_of(read_results(tmp_path))["clients"] if one["small"]] == [0]


def test_a_study_of_forty_clients_and_eight_methods_is_a_small_file(tmp_path):
    names = ["local_only", "fedavg", "ditto", "ifca", "hypcluster", "fedprox", "apfl", "fedavg|finetune"]
    scores = {name: np.linspace(0.2, 0.9, 40) + 0.01 * place for place, name in enumerate(names)}
    folder = write_study(tmp_path, scores, seeds=(0, 1, 2), unseen=8, clusters={"ifca": [k % 4 for k in range(40)]})

    assert write_page(folder).stat().st_size < 6_000_000
