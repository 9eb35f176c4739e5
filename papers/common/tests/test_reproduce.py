"""Reproductions: rows held to bars, written as JSON."""

import json

import pytest

from papers.common.reproduce import Row, all_met, reproduce, within
from plures.errors import UnknownChoice
from plures.registry import Registry


@pytest.fixture
def toys(monkeypatch):
    registry = Registry("reproduction")
    monkeypatch.setattr("papers.common.reproduce.REPRODUCTIONS", registry)

    @registry.register(title="Toy")
    def toy(*, scale, out):
        (out / "table.csv").write_text("scale\n" + scale)
        return (Row("plain", "a number", 1.5), within("near", "another", 3.17, 3.1663, 0.005, published=3.2))

    return registry


@pytest.mark.parametrize(
    ("ours", "met"), [(1.0, True), (1.5, True), (0.5, True), (1.51, False), (float("nan"), False)]
)
def test_a_row_meets_its_bar_up_to_the_tolerance(ours, met):
    assert within("id", "what", ours, 1.0, 0.5).met is met


def test_a_row_says_its_bar_in_words():
    assert within("id", "what", 3.0, 3.1663, 0.005, published=3.2) == Row(
        "id", "what", 3.0, 3.2, "within 0.005 of 3.1663", False
    )


@pytest.mark.parametrize(
    ("met", "expected"), [([True, True], True), ([True, False], False), ([], True), ([None], False)]
)
def test_all_is_met_when_every_bar_is(met, expected):
    rows = [Row(str(i), "what", 1.0, bar="a bar", met=one) for i, one in enumerate(met)]

    assert all_met(rows) is expected


def test_a_row_without_a_bar_cannot_fail():
    assert all_met([Row("id", "what", 1.0)])


def test_the_rows_come_back(toys, tmp_path):
    rows = reproduce("toy", out=tmp_path)

    assert rows == [
        Row("plain", "a number", 1.5),
        Row("near", "another", 3.17, 3.2, "within 0.005 of 3.1663", True),
    ]


def test_the_summary_is_written_beside_the_tables(toys, tmp_path):
    out = tmp_path / "deep" / "er"

    reproduce("toy", scale="full", out=out)

    assert (out / "table.csv").read_text() == "scale\nfull"
    assert json.loads((out / "summary.json").read_text()) == [
        {"id": "plain", "what": "a number", "ours": 1.5, "published": None, "bar": None, "met": None},
        {
            "id": "near",
            "what": "another",
            "ours": 3.17,
            "published": 3.2,
            "bar": "within 0.005 of 3.1663",
            "met": True,
        },
    ]


def test_the_default_scale_is_small(toys, tmp_path):
    reproduce("toy", out=tmp_path)

    assert (tmp_path / "table.csv").read_text() == "scale\nsmall"


@pytest.mark.parametrize(
    ("name", "scale", "message"),
    [
        ("tyo", "small", "no reproduction is called 'tyo'; did you mean 'toy'? Known: toy"),
        ("toy", "smal", "no scale is called 'smal'; did you mean 'small'? Known: full, small"),
    ],
)
def test_an_unknown_name_or_scale_is_refused_before_anything_is_written(toys, tmp_path, name, scale, message):
    with pytest.raises(UnknownChoice) as refusal:
        reproduce(name, scale=scale, out=tmp_path / "out")

    assert str(refusal.value) == message
    assert not (tmp_path / "out").exists()
