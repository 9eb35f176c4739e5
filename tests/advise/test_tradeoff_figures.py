"""Pictures of a sweep: what is drawn is what was found."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib import pyplot as plt
from sweeps import curve, made

from plures.advise.tradeoff_figures import degree_figure, front_figure
from plures.report.figures import save_figures

CURVES = [
    curve("0.1", [0.9, 0.5, 0.444, 0.44]),
    curve("1", [0.9, 0.7, 0.5, 0.3]),
    curve("10", [0.9, 0.8, 0.75, 0.7]),
]
AUTO = curve("auto", [0.9, 0.6, 0.5, 0.35], kind="auto")
ENDS = [
    curve("local_only", [0.8] * 4, mb=[0.5] * 4, kind="end"),
    curve("fedavg", [0.9, 0.7, 0.65, 0.6], kind="end"),
]


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    plt.close("all")


def line(axis, label):
    """The coordinates of the line of which the label begins so."""
    return next(one.get_xydata() for one in axis.lines if str(one.get_label()).startswith(label))


def test_the_degree_picture_holds_losses_ends_and_the_best_value():
    axes = degree_figure(made(*CURVES, *ENDS)).axes

    assert line(axes[0], "test loss") == pytest.approx(np.array([[0.1, 0.44], [1, 0.3], [10, 0.7]]))
    assert line(axes[0], "best") == pytest.approx(np.array([[1, 0.3]]))
    assert line(axes[0], "alone")[:, 1] == pytest.approx([0.8, 0.8])
    assert line(axes[0], "one model for all")[:, 1] == pytest.approx([0.6, 0.6])
    # 0.444 is within 1 % of the way from 0.9 to 0.3 of 0.44.
    assert axes[1].lines[0].get_ydata() == pytest.approx([3, 4, 4])
    assert axes[0].get_xscale() == "log"


def test_bytes_and_gradients_are_drawn_against_the_degree():
    known = [replace(one, gradients=10 * one.mb) for one in CURVES[:2]]

    axes = degree_figure(made(*known, CURVES[2], *ENDS)).axes

    assert [one.get_ylabel() for one in axes[1:]] == ["rounds\nneeded", "MB per\nclient", "gradients\nper client"]
    assert axes[2].lines[0].get_ydata() == pytest.approx([3, 4, 4])
    assert axes[3].lines[0].get_ydata() == pytest.approx([30, 40, np.nan], nan_ok=True)


def test_gradients_that_no_value_reports_have_no_panel():
    assert len(degree_figure(made(*CURVES, *ENDS)).axes) == 3


def test_an_end_that_diverged_is_not_drawn_and_stretches_no_axis():
    lost = curve("local_only", [1e9, 1e20, 1e25, 1e29], mb=[0.5] * 4, kind="end")
    for figure in degree_figure(made(*CURVES, lost, ENDS[1])), front_figure(made(*CURVES, lost, ENDS[1])):
        axis = figure.axes[0]
        assert axis.get_ylim()[1] < 2
        assert not any(str(one.get_label()).startswith("alone") for one in axis.lines)
        assert any(str(one.get_label()).startswith("one model") for one in axis.lines)


def test_under_a_budget_the_best_value_is_marked_on_the_line_of_valid_rows():
    axis = degree_figure(made(*CURVES, *ENDS, rounds=2)).axes[0]

    assert line(axis, "best") == pytest.approx(np.array([[0.1, 0.5]]))
    assert line(axis, "valid loss at the last round within 2 rounds")[:, 1] == pytest.approx([0.5, 0.7, 0.8])


def test_auto_has_a_column_of_its_own():
    with_auto, without = (degree_figure(made(*CURVES, *more, *ENDS)).axes for more in ([AUTO], []))

    assert (len(with_auto), len(without)) == (6, 3)
    assert any(one.get_ydata()[0] == pytest.approx(0.35) for one in with_auto[1].lines if len(one.get_ydata()) == 1)


def test_zero_has_a_place_on_the_axis_of_degrees():
    axis = degree_figure(
        made(curve("0", [0.9, 0.8]), *[curve(said, [0.9, 0.5]) for said in ("1", "10")], *ENDS)
    ).axes[0]

    assert axis.get_xscale() == "symlog"


def test_a_value_that_diverged_is_named_and_stretches_no_axis():
    lost = curve("100", [0.9, 1e9, 1e9, np.inf])
    axis = degree_figure(made(*CURVES, lost, *ENDS)).axes[0]

    assert [one.get_text() for one in axis.texts] == ["diverged"]
    assert axis.get_ylim()[1] < 2
    assert front_figure(made(*CURVES, lost, *ENDS)).axes[0].get_ylim()[1] < 2


def test_a_value_that_blew_up_is_beyond_the_frame():
    axis = degree_figure(made(*CURVES, curve("100", [0.9, 50.0, 50.0, 50.0]), *ENDS)).axes[0]

    assert axis.get_ylim()[1] < 3


def test_the_front_picture_holds_the_front_the_best_point_and_the_budget():
    axis = front_figure(made(*CURVES, *ENDS, mb=3.5)).axes[0]

    assert line(axis, "best within 3.5 MB per client: lam=0.1, round 3") == pytest.approx(np.array([[3, 0.444]]))
    front = line(axis, "front")
    assert front[-1] == pytest.approx([4, 0.3])
    assert np.all(np.diff(front[:, 1]) <= 0)
    assert [one.get_text() for one in axis.texts] == ["budget: 3.5 MB"]
    assert line(axis, "alone")[:, 1] == pytest.approx([0.8, 0.8])  # costs the same after any number of rounds


def test_little_traffic_is_drawn_in_kilobytes():
    axis = front_figure(made(*[curve(said, [0.9, 0.5], mb=[0.001, 0.002]) for said in ("1", "2")], *ENDS[:1])).axes[
        0
    ]

    assert axis.get_xlabel().startswith("kB per client")
    assert line(axis, "best")[0, 0] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "curves",
    [
        [*CURVES, AUTO, *ENDS],
        CURVES[:1],
        [AUTO, *ENDS],
        [curve("1", [np.nan, np.nan]), *ENDS],
        [curve("1", [0.5]), *ENDS[:1]],
    ],
    ids=["all", "one value", "auto alone", "all diverged", "one evaluation"],
)
def test_pictures_are_files_and_no_figure_stays_open(curves, tmp_path):
    found = save_figures(made(*curves).figures, tmp_path)

    assert [path.read_bytes()[1:4] for path in found] == [b"PNG"] * 2
    assert not plt.get_fignums()
