"""The report page in a real browser: it loads without errors, its filters work, its numbers are those of the table."""

import numpy as np
import polars as pl
import pytest
from studies import write_study

pytestmark = pytest.mark.xdist_group("browser")

from plures.report.page import write_page  # noqa: E402
from plures.report.variants import write_variants_page  # noqa: E402
from plures.study.disk.results import read_results  # noqa: E402
from plures.study.variants import open_variants, write_index  # noqa: E402

CLIENTS, UNSEEN = 40, 8
BASE = 0.5 + 0.3 * np.sin(np.arange(CLIENTS))
SCORES = {
    "local_only": BASE,
    "fedavg": BASE + 0.03,
    "ifca": BASE + 0.1 - 0.15 * (np.arange(CLIENTS) % 5 == 0),
    "oracle": BASE + 0.15,
}
GROUPS = [k % 4 for k in range(CLIENTS)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "study"
    clusters = {"ifca": [k % 4 for k in range(CLIENTS)], "oracle": GROUPS}
    return read_results(write_study(folder, SCORES, groups=GROUPS, unseen=UNSEEN, clusters=clusters))


@pytest.fixture
def page(browser, saved):
    browser.get(write_page(saved).as_uri())
    assert browser.execute_script("return document.documentElement.dataset.ready") == "yes"
    return browser


def cells(page, table):
    """The text of every cell of a table."""
    script = (
        "return [...document.querySelectorAll(`#${arguments[0]} tr`)].map(r => [...r.cells].map(c => c.innerText))"
    )
    return page.execute_script(script, table)


def choose(page, select, value):
    page.execute_script(
        "const one = document.getElementById(arguments[0]); one.value = arguments[1];"
        "one.dispatchEvent(new Event(one.tagName === 'SELECT' ? 'change' : 'input'))",
        select,
        value,
    )


def dots(page):
    """How many clients are drawn, and how many of them stand out."""
    script = "const d = document.getElementById('gains').data[0]; return [d.x.length, d.marker.opacity]"
    number, opacity = page.execute_script(script)
    return number, sum(one == 1 for one in opacity)


def test_it_loads_and_draws_everything_without_an_error(page):
    number = page.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "const one = (chart) => chart.querySelector('.main-svg') !== null;"
        "const drawn = () => [...document.querySelectorAll('.chart')].filter(one).length;"
        "plures.drawAll().then(() => done(drawn()), (e) => done(String(e)))"
    )

    assert number == 8
    assert [one for one in page.get_log("browser") if one["level"] == "SEVERE"] == []


def test_the_leaderboard_is_that_of_the_table(page, saved):
    head, *rows = cells(page, "leaderboard")
    board = saved.result.leaderboard

    assert [row[0] for row in rows] == board["method"].to_list()
    assert [row[head.index("mean")].split()[0] for row in rows] == [f"{mean:.3f}" for mean in board["mean"]]
    assert [row[head.index("Gini")] for row in rows] == [f"{one:.3f}" for one in board["gini"]]
    assert [row[head.index("MB")] for row in rows] == [f"{one:.2f}" for one in board["mb_per_client"]]


def test_every_client_has_the_scores_of_the_parquet_table(page, saved):
    choose(page, "gain-method", "ifca")
    choose(page, "gain-other", "local_only")
    choose(page, "gain-group", "")

    tables = [
        pl.read_parquet(saved.folder / "runs" / "ifca" / f"seed-{seed}" / "clients.parquet") for seed in (0, 1)
    ]
    means = pl.concat(tables).group_by("uid").agg(pl.col("personal_test_accuracy").mean())
    wanted = {str(uid): f"{score:.3f}" for uid, score in means.iter_rows()}
    _, *rows = cells(page, "clients")
    assert {row[1]: row[4] for row in rows} == wanted


def test_clients_are_sorted_by_their_gain(page):
    choose(page, "gain-method", "ifca")

    y = page.execute_script("plures.drawAll(); return document.getElementById('gains').data[0].y")

    assert y == sorted(y)


def test_a_search_by_uid_leaves_that_client(page):
    page.execute_script("plures.drawAll()")
    choose(page, "gain-search", "7")

    _, *rows = cells(page, "clients")
    assert [row[1] for row in rows] == ["7"]
    assert dots(page)[1] == 1


def test_a_search_by_name_leaves_all_that_have_it(page):
    choose(page, "gain-search", "client-01")

    _, *rows = cells(page, "clients")
    assert sorted(int(row[1]) for row in rows) == list(range(10, 20))


def test_a_search_for_nobody_says_so(page):
    choose(page, "gain-search", "nobody")

    assert cells(page, "clients")[1] == ["no such client"]


def test_a_group_can_be_picked(page):
    choose(page, "gain-group", "group 2")

    _, *rows = cells(page, "clients")
    assert {row[2] for row in rows} == {"2"}
    assert len(rows) == CLIENTS // 4


def test_a_method_can_be_hidden_everywhere(page):
    page.execute_script("plures.drawAll(); document.querySelector('.chip[data-method=fedavg]').click()")

    _, *rows = cells(page, "leaderboard")
    drawn = page.execute_script("return document.getElementById('curve-rounds').data.map((one) => one.name ?? '')")
    assert "fedavg" not in [row[0] for row in rows]
    assert "fedavg" not in drawn
    assert "ifca" in drawn


def test_who_gains_counts_clients_in_training(page):
    said = page.execute_script("return document.getElementById('gain-said').innerText")

    assert f" of {CLIENTS - UNSEEN} clients do better" in said


def test_names_that_look_like_tags_harm_nothing(browser, tmp_path):
    names = ["<!--<script>", "</script>", "<b>bold</b>", '"quoted" & co']
    study = write_study(tmp_path, {"fedavg": BASE[:4], "ifca": BASE[:4] + 0.1}, names=names)
    browser.get(write_page(study).as_uri())

    choose(browser, "gain-group", "")

    assert browser.execute_script("return document.documentElement.dataset.ready") == "yes"
    assert sorted(row[0] for row in cells(browser, "clients")[1:]) == sorted(names)


def test_less_may_be_better(browser, tmp_path):
    study = write_study(tmp_path, {"fedavg": 10 * BASE, "ifca": 9 * BASE}, metric="rmse", higher=False)
    browser.get(write_page(study).as_uri())

    _, *rows = cells(browser, "leaderboard")
    pairs = {row[0]: row[1:] for row in cells(browser, "pairs")[1:]}
    assert [row[0] for row in rows] == ["ifca", "fedavg"]
    assert pairs["ifca"][1].startswith("+")
    assert pairs["fedavg"][0].startswith("-")
    assert browser.execute_script("return document.getElementById('direction').innerText") == "Lower is better."


def test_one_method_without_clusters_or_newcomers_is_a_page_too(browser, tmp_path):
    browser.get(write_page(write_study(tmp_path, {"mine": BASE[:3]}, seeds=(0,))).as_uri())

    number = browser.execute_async_script(
        "plures.drawAll().then(() => arguments[0](Object.keys(plures.page).length))"
    )

    assert number > 10
    assert [one for one in browser.get_log("browser") if one["level"] == "SEVERE"] == []


def test_a_click_on_a_column_sorts_by_it(page):
    page.execute_script("document.querySelector('#leaderboard th[data-key=gini]').click()")

    head, *rows = cells(page, "leaderboard")
    values = [float(row[head.index("Gini")]) for row in rows]
    assert values == sorted(values, reverse=True)


def test_dark_mode_redraws_the_pictures(page):
    before = page.execute_script(
        "document.documentElement.dataset.theme = 'light'; plures.drawAll(); return document.getElementById('front').layout.paper_bgcolor"
    )

    after = page.execute_script(
        "document.getElementById('theme').click(); return document.getElementById('front').layout.paper_bgcolor"
    )

    assert before != after


def test_on_a_phone_nothing_is_wider_than_the_screen(page):
    page.set_window_size(390, 844)
    try:
        page.execute_script("plures.drawAll()")
        wide, inner = page.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    finally:
        page.set_window_size(1200, 900)

    assert inner < 520
    assert wide <= inner


def test_methods_have_the_symbols_of_the_pictures_everywhere(page):
    """Colors alone do not tell methods apart for everybody."""
    script = "return [...document.querySelectorAll(arguments[0])].map(one => [one.parentNode.innerText.trim(), one.dataset.glyph])"
    chips = dict(page.execute_script(script, "#chips .glyph"))
    board = dict(page.execute_script(script, "#leaderboard .glyph"))

    assert chips == board == dict(zip(SCORES, "●■◆▲", strict=True))


def test_the_page_of_several_studies_loads_and_leads_to_each(browser, tmp_path):
    for name, shift in (("one", 0.0), ("other", 0.3)):
        scores = {method: values + shift * (method == "fedavg") for method, values in SCORES.items()}
        write_page(read_results(write_study(tmp_path / name, scores, groups=GROUPS)))
    write_index(tmp_path, [(name, name, {"data": name}) for name in ("one", "other")])
    found = open_variants(tmp_path)

    browser.get(write_variants_page(found).as_uri())

    table = {row[0].split()[-1]: row[1:] for row in cells(browser, "scores")[1:]}
    for row in found.table.iter_rows(named=True):
        shown = table[row["method"]][list(found.studies).index(row["variant"])]
        assert shown == f"{row['mean']:.3f}{' ✓' if row['advice'] else ''}"
    heat = browser.execute_script(
        "return getComputedStyle(document.querySelector('#scores td.best')).backgroundColor"
    )
    assert heat != browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    browser.execute_script("document.querySelector('#scores a').click()")
    assert browser.current_url.endswith("/one/report.html")
    assert browser.execute_script("return document.documentElement.dataset.ready") == "yes"
    assert [one for one in browser.get_log("browser") if one["level"] == "SEVERE"] == []
