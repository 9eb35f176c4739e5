"""Pictures of LG-Mix: what is drawn is what the tables say."""

import polars as pl
import pytest
from matplotlib import pyplot as plt

from papers.lgmix import figures as report
from papers.lgmix.cells import WAYS

METHODS = ("alone", "FedAvg", "FedBN", "LG-Mix")
HEIGHT = dict(zip(METHODS, (70.0, 60.0, 75.0, 80.0), strict=True))


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    plt.close("all")


@pytest.fixture
def tables():
    accuracy = [
        {"part": "p", "title": "a federation", "method": name, "accuracy": mean, "low": mean - 1, "high": mean + 2}
        for name, mean in HEIGHT.items()
    ]
    clients = [
        {
            "part": "p",
            "method": name,
            "seed": seed,
            "client": client,
            "domain": "d",
            "accuracy": mean + client + seed,
        }
        for name, mean in HEIGHT.items()
        for seed in (0, 1)
        for client in (0, 1)
    ]
    rounds = [
        {
            "part": "p",
            "method": name,
            "round": number,
            "client": client,
            "domain": f"d{client}",
            "lam": 0.5 + client / 10,
            "trace_own": 2.0,
            "trace_global": 1.0,
            "cosine": 0.1 * number,
        }
        for name in ("LG-Mix", "LG-Mix, published")
        for number in (1, 2)
        for client in (0, 1)
    ]
    return {
        "accuracy": pl.DataFrame(accuracy),
        "clients": pl.DataFrame(clients),
        "rounds": pl.DataFrame(rounds),
    }


def test_every_method_of_the_comparison_has_a_color_of_its_own():
    assert set(report.METHODS) == set(WAYS)
    assert len(set(report.METHODS.values())) == len(WAYS)


def test_accuracies_are_drawn_with_their_intervals(tables):
    (axis,) = report._accuracy(tables).axes

    assert [label.get_text() for label in axis.get_yticklabels()] == list(METHODS)
    spans, dots = axis.lines[::2], axis.lines[1::2]
    assert [line.get_xdata()[0] for line in dots] == list(HEIGHT.values())
    assert list(spans[0].get_xdata()) == [69.0, 72.0]
    assert "%" in axis.get_xlabel()


def test_every_client_is_a_dot_above_fedavg_and_alone(tables):
    (axis,) = report._clients(tables).axes

    (dots,) = [line for line in axis.lines if line.get_label() == "LG-Mix"]
    assert dots.get_xydata().tolist() == [[20.0, 10.0], [20.0, 10.0]]


def test_mixing_has_a_line_per_client_in_the_color_of_its_domain(tables):
    axes = report._mixing(tables).axes

    assert [axis.get_title() for axis in axes[:2]] == ["LG-Mix", "LG-Mix, published"]
    first, second, middle = axes[0].lines
    assert list(second.get_ydata()) == [0.6, 0.6]
    assert first.get_color() != second.get_color()
    assert set(middle.get_ydata()) == {0.5}


def test_a_picture_is_written_for_every_table_that_is_there(tables, tmp_path):
    for name, table in tables.items():
        table.write_csv(tmp_path / f"{name}.csv")

    report.pictures(tmp_path)

    assert {path.stem for path in tmp_path.glob("*.png")} == {"accuracy", "clients", "mixing"}
