"""Several studies read back together: which method serves in all of them, and which in each."""

import json
import re

import numpy as np
import pytest
from studies import write_study

from plures.errors import BadFile
from plures.report.variants import write_variants_page
from plures.study.disk.results import read_results
from plures.study.variants import is_varied, open_variants, write_index

ALONE = np.linspace(0.3, 0.7, 24)
GROUPED = {"local_only": ALONE, "fedavg": ALONE - 0.1, "ifca": ALONE + 0.1}
ALIKE = {"local_only": ALONE, "fedavg": ALONE + 0.2, "ifca": ALONE + 0.1}


def written(folder, **studies):
    """A folder with studies by name, as a file that varies the data makes it."""
    for name, scores in studies.items():
        write_study(folder / name, scores)
    write_index(folder, [(name, name, {"data": name}) for name in studies])
    return folder


def test_a_method_that_is_as_good_as_the_best_everywhere_is_advised(tmp_path):
    found = open_variants(written(tmp_path, one=GROUPED, other={**GROUPED, "fedavg": ALONE - 0.2}))

    assert found.everywhere == "ifca"
    assert found.sentences[0] == "Use ifca: it is as good as the best in all 2 variants."
    assert found.sentences[1] == (
        "Its mean test accuracy is 0.605 (one) to 0.605 (other); each of them recommends it."
    )


def test_where_none_is_good_everywhere_each_variant_has_its_own(tmp_path):
    found = open_variants(written(tmp_path, grouped=GROUPED, alike=ALIKE, again=ALIKE))

    assert found.everywhere == ""
    assert found.sentences == (
        "No method is as good as the best in all 3 variants.",
        "Take fedavg in alike / again; ifca in grouped.",
    )


def test_what_is_as_good_everywhere_may_not_be_what_each_alone_would_take(tmp_path):
    noise = 0.1 * np.where(np.arange(24) % 2, 1, -1)
    level = {"local_only": ALONE - 0.2, "fedavg": ALONE, "ifca": ALONE + 0.008 + noise}
    found = open_variants(written(tmp_path, grouped=GROUPED, level=level))

    assert found.everywhere == "ifca"
    assert found.sentences[1].endswith("; looked at alone, 1 variant would advise fedavg.")


def test_the_table_has_a_row_per_variant_and_method(tmp_path):
    table = open_variants(written(tmp_path, grouped=GROUPED, alike=ALIKE)).table

    assert table.select("variant", "method", "candidate", "advice").rows() == [
        ("grouped", "ifca", True, True),
        ("grouped", "local_only", False, False),
        ("grouped", "fedavg", False, False),
        ("alike", "fedavg", True, True),
        ("alike", "ifca", False, False),
        ("alike", "local_only", False, False),
    ]
    mean = read_results(tmp_path / "alike").result.leaderboard["mean"].to_list()
    assert table["mean"].to_list()[3:] == mean


def test_a_variant_that_has_not_begun_is_missing_and_the_others_are_shown(tmp_path):
    folder = written(tmp_path, grouped=GROUPED)
    write_index(folder, [("grouped", "grouped", {"data": "a"}), ("later", "later", {"data": "b"})])

    found = open_variants(folder)

    assert list(found.studies) == ["grouped"]
    assert found.missing == (f"later: not started; go on with: plures resume {folder}",)


def test_nothing_to_show_says_how_to_go_on(tmp_path):
    write_index(tmp_path, [("later", "later", {})])

    with pytest.raises(BadFile, match="holds no finished run; go on with: plures resume"):
        open_variants(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"variants": [{"label": 1}]}', '{"variants": [1]}'])
def test_a_damaged_list_of_variants_is_said(tmp_path, text):
    written(tmp_path, grouped=GROUPED)
    (tmp_path / "variants.json").write_text(text)

    with pytest.raises(BadFile, match=r"variants.json is damaged"):
        open_variants(tmp_path)


def test_one_study_is_asked_for_by_name(tmp_path):
    written(tmp_path, grouped=GROUPED, alike=ALIKE)

    assert is_varied(tmp_path)
    with pytest.raises(BadFile, match="holds several studies; name one of them: alike, grouped"):
        read_results(tmp_path)


def test_the_page_links_to_every_variant_and_shows_what_the_table_has(tmp_path):
    found = open_variants(written(tmp_path, **{"a b": GROUPED, "alike": {**ALIKE, "oracle": ALONE + 0.3}}))
    (tmp_path / "a b" / "report.html").touch()

    text = write_variants_page(found).read_text()

    assert 'href="a%20b/report.html"' in text
    assert 'href="alike/report.html"' not in text  # it has no page yet
    assert 'href="../a%20b/report.html"' in write_variants_page(found, tmp_path / "pages" / "x.html").read_text()
    assert "No method is as good as the best in all 2 variants." in text
    digits = found.studies["alike"].result.digits
    for row in found.table.iter_rows(named=True):
        kind = "best" if row["candidate"] else "ceiling" if row["method"] == "oracle" else "beaten"
        cell = f'<td class="{kind}" style="--heat:'
        assert cell in text
        assert f">{row['mean']:.{digits}f}{' ✓' if row['advice'] else ''}</td>" in text
    assert "<td>-</td>" in text  # the oracle is in one of them only


def test_marks_in_the_picture_stand_in_the_order_of_their_scores(tmp_path):
    found = open_variants(written(tmp_path, grouped=GROUPED))
    text = write_variants_page(found).read_text()

    said = re.findall(r"<title>grouped: (\w+) .*?</title>.*?<text x=\"([\d.]+)\"", text)
    places = {name: float(x) for name, x in said}
    assert places["fedavg"] < places["local_only"] < places["ifca"]
    gaps = [places["local_only"] - places["fedavg"], places["ifca"] - places["local_only"]]
    assert gaps[0] == pytest.approx(gaps[1], abs=0.2)


def test_names_cannot_break_the_page(tmp_path):
    write_study(tmp_path / "x", {"local_only": ALONE, "<b>&": ALONE + 0.1})
    write_index(tmp_path, [("<i>", "x", {"<u>": "y"})])

    text = write_variants_page(open_variants(tmp_path)).read_text()

    assert not any(tag in text for tag in ("<b>&", "<i>", "<u>"))


def test_scores_where_lower_is_better_are_darkest_at_the_lowest(tmp_path):
    write_study(tmp_path / "x", {"local_only": ALONE + 1, "fedavg": ALONE + 2}, metric="mse", higher=False)
    write_index(tmp_path, [("x", "x", {"data": "x"})])

    found = open_variants(tmp_path)
    text = write_variants_page(found).read_text()

    assert "Lower is better." in text
    assert found.everywhere == "local_only"
    assert text.index('data-method="local_only"') < text.index('data-method="fedavg"')
    assert json.loads((tmp_path / "variants.json").read_text())["variants"][0]["label"] == "x"


def test_one_variant_is_answered_like_a_study(tmp_path):
    found = open_variants(written(tmp_path, grouped=GROUPED))

    assert found.sentences == found.answers["grouped"].sentences


def test_methods_that_are_not_in_all_variants_are_not_said_to_be_beaten(tmp_path):
    parts = [{name: GROUPED[name]} for name in ("local_only", "fedavg")]
    found = open_variants(written(tmp_path, one=parts[0], other=parts[1]))

    assert found.sentences == ("No method was run in all 2 variants.", "Take local_only in one; fedavg in other.")


def test_of_several_that_are_as_good_everywhere_the_one_most_recommended_is_advised(tmp_path):
    noise = 0.1 * np.where(np.arange(24) % 2, 1, -1)
    near = {"local_only": ALONE - 0.3, "fedavg": ALONE + 0.008 + noise, "ifca": ALONE}
    found = open_variants(written(tmp_path, one=near, other=near))

    assert found.table.filter(found.table["candidate"])["method"].to_list() == ["fedavg", "ifca"] * 2
    assert found.everywhere == "ifca"  # the worst tenth is better off with it
