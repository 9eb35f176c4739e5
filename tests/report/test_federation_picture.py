"""The picture of a federation: what stands in its panels is what the federation holds."""

import dataclasses

import numpy as np
import pytest
from matplotlib import colors
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from plures.data import from_arrays, load
from plures.errors import BadFile, BadValue
from plures.report.federation import client_means, picture, principal
from plures.report.figures import COLORS

ALL_TRAIN = (1.0, 0.0, 0.0)


def federation(x, y, client, **options):
    return from_arrays(np.asarray(x), np.asarray(y), np.asarray(client), **{"shares": ALL_TRAIN, **options})


def labelled(y, client, **options):
    """A federation whose inputs do not matter."""
    return federation(np.zeros((len(y), 1)), y, client, **options)


@pytest.fixture
def axes(monkeypatch, tmp_path):
    """A function that draws a federation and gives the axes of the figure, which is neither written nor closed."""
    close = plt.close
    monkeypatch.setattr(plt, "close", lambda figure: None)
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)

    def drawn(given, **options):
        picture(given, tmp_path / "picture.png", **options)
        return plt.gcf().axes

    yield drawn
    close("all")


def titles(panels):
    return [panel.get_title() for panel in panels if panel.get_title()]


def heat_map(panels):
    return np.asarray(panels[1].images[0].get_array())


@pytest.mark.parametrize("name", ["digits", "linear_clusters", "density"])
def test_a_picture_is_a_file(name, tmp_path):
    path = picture(load(name, num_clients=8), str(tmp_path / "some.png"))

    assert path == tmp_path / "some.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_no_figure_stays_open(tmp_path):
    before = plt.get_fignums()

    picture(labelled([0, 1], [0, 1]), tmp_path / "some.png")

    assert plt.get_fignums() == before


@pytest.mark.parametrize("name", ["no/such/folder.png", "picture.zebra"])
def test_a_file_that_cannot_be_written_is_said(name, tmp_path):
    with pytest.raises(BadFile, match="cannot be written"):
        picture(labelled([0, 1], [0, 1]), tmp_path / name)


@pytest.mark.parametrize(("name", "number"), [("digits", 4), ("linear_clusters", 3), ("density", 2)])
def test_there_are_panels_for_what_there_is(name, number, axes):
    assert len(titles(axes(load(name, num_clients=8)))) == number


def test_titles_carry_the_numbers(axes):
    """Means 2 and 6 about 4: (16 - 1 * 2) / 20 = 0.70, in targets and inputs; both clients have two rows."""
    values = np.array([1.0, 3.0, 5.0, 7.0])

    found = titles(axes(federation(values[:, None], values, [0, 0, 1, 1], task="regression")))

    assert found == [
        "Sizes (quantity skew 0.00)",
        "Targets: 10, 50 and 90 % (label skew 0.70)",
        "Clients' mean inputs (feature shift 0.70)",
    ]


def test_a_number_that_is_not_known_is_not_made_up(axes):
    found = titles(axes(labelled([0, 1], [0, 1])))

    assert found[1] == "Labels (label skew unknown)"


def test_bars_are_rows_by_split_in_the_order_of_training_rows(axes):
    split = ["train"] + ["train", "train", "valid", "test", "test"]
    panels = axes(labelled([0] * 6, [0] + [1] * 5, split=split))

    bars = [[bar.get_height() for bar in part] for part in panels[0].containers]

    assert bars == [[2, 1], [1, 0], [2, 0]]


def test_bars_stand_on_each_other(axes):
    panels = axes(labelled([0] * 5, [0] * 5, split=["train", "train", "valid", "test", "test"]))

    assert [part[0].get_y() for part in panels[0].containers] == [0, 2, 3]


def test_many_clients_are_filled_curves(axes):
    panels = axes(labelled([0] * 61, range(61)))

    assert (len(panels[0].containers), len(panels[0].collections)) == (0, 3)


def test_one_large_client_among_small_ones_makes_a_logarithm(axes):
    panels = axes(labelled([0] * 204, [0] * 200 + [1, 2, 3, 4]))

    assert panels[0].get_yscale() == "log"


def test_the_heat_map_holds_the_shares_of_classes(axes):
    panels = axes(labelled([0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 1, 1]))

    np.testing.assert_allclose(heat_map(panels), [[3 / 4, 1 / 4], [1 / 2, 1 / 2]])


def test_only_training_labels_are_shown(axes):
    panels = axes(labelled([0, 0, 1, 1], [0] * 4, split=["train", "train", "valid", "test"]))

    np.testing.assert_allclose(heat_map(panels), [[1.0, 0.0]])


def test_clients_lie_by_group_then_by_commonest_class(axes):
    """Clients 0..3 have one class each, 1 1 0 0, and the groups 1 0 1 0."""
    panels = axes(labelled([1, 1, 0, 0], [0, 1, 2, 3], group={"0": 1, "1": 0, "2": 1, "3": 0}))

    assert heat_map(panels).argmax(1).tolist() == [0, 1, 0, 1]
    assert [label.get_text() for label in panels[1].get_yticklabels()] == ["0", "1"]


def test_groups_are_marked_in_their_colors(axes):
    panels = axes(labelled([1, 1, 0, 0], [0, 1, 2, 3], group={"0": 1, "1": 0, "2": 1, "3": 0}))

    assert [colors.to_hex(patch.get_facecolor()).upper() for patch in panels[1].patches] == list(COLORS[:2])


def test_domains_serve_where_there_are_no_groups(axes):
    panels = axes(labelled([1, 1, 0, 0], [0, 1, 2, 3], domain={"0": 0, "1": 1, "2": 2, "3": 0}))

    assert panels[1].get_ylabel() == "clients, by domain"


def test_without_groups_clients_lie_by_commonest_class(axes):
    panels = axes(labelled([2, 0, 1], [0, 1, 2]))

    assert heat_map(panels).argmax(1).tolist() == [0, 1, 2]
    assert panels[1].get_ylabel() == "clients, by commonest class"


def test_of_many_clients_sixty_are_shown_and_the_title_says_so(axes):
    panels = axes(labelled(np.arange(3000) % 2, np.repeat(np.arange(1500), 2)))

    assert heat_map(panels).shape == (60, 2)
    assert panels[1].get_title().endswith("\n60 of 1,500 clients")


def test_clients_are_picked_from_every_group(axes):
    """Every other of 119 clients would be one group only, were they not put in order first."""
    member = np.arange(119) % 2

    panels = axes(labelled(member, range(119), group={str(k): int(member[k]) for k in range(119)}))

    assert heat_map(panels).sum(0).tolist() == [30, 30]


def test_the_commonest_symbols_are_shown(axes):
    """Symbol k of 40 stands k + 1 times: the thirty commonest are 10..39."""
    y = np.repeat(np.arange(40), np.arange(1, 41))
    panels = axes(labelled(y, np.zeros(len(y), int), task="density"))

    np.testing.assert_allclose(heat_map(panels), [np.arange(11, 41) / len(y)])
    assert panels[1].get_xlabel() == "symbol (the 30 commonest of 40)"


def test_classes_carry_their_names(axes):
    panels = axes(labelled([0, 1], [0, 0]), class_names=["a $5 note", "of a length that no axis has room for"])

    found = [label.get_text() for label in panels[1].get_xticklabels()]

    assert found == [r"a \$5 note", "of a length that no axi…"]


def test_too_few_names_are_refused(tmp_path):
    with pytest.raises(BadValue) as refusal:
        picture(labelled([0, 1], [0, 0]), tmp_path / "picture.png", class_names=["cat"])

    assert str(refusal.value) == "class_names must be 2 names, one per class, got ['cat']"


def test_at_most_fifteen_classes_are_written_out(axes):
    panels = axes(labelled(np.arange(31), np.zeros(31, int)))

    assert [label.get_text() for label in panels[1].get_xticklabels()] == [str(one) for one in range(0, 31, 3)]


def test_targets_are_quantiles_in_the_order_of_medians(axes):
    """Of 0, 1, .., 10 the quantiles are 1, 5 and 9."""
    y = np.concatenate([np.arange(11.0) + 100, np.arange(11.0)])
    panels = axes(labelled(y, np.repeat([0, 1], 11), task="regression"))

    lines, dots = panels[1].collections

    assert [line[:, 1].tolist() for line in lines.get_segments()] == [[1, 9], [101, 109]]
    assert np.asarray(dots.get_offsets()).tolist() == [[0, 5], [1, 105]]


def test_of_several_targets_the_first_is_shown(axes):
    y = np.stack([np.zeros(4), np.arange(4.0)], 1)
    panels = axes(labelled(y, [0] * 4, task="regression"))

    assert panels[1].get_ylabel() == "first of 2 targets"
    assert np.asarray(panels[1].collections[1].get_offsets()).tolist() == [[0, 0]]


def test_clients_are_placed_by_their_mean_inputs(axes):
    """Means -1, 1 along one direction and 0 along all others."""
    x = np.array([[-2.0, 3], [0, 3], [0, 3], [2, 3]])
    panels = axes(federation(x, [0, 0, 0, 0], [0, 0, 1, 1]))

    found = np.asarray(panels[2].collections[0].get_offsets())

    np.testing.assert_allclose(np.sort(found, axis=0), [[-1, 0], [1, 0]], atol=1e-12)
    assert panels[2].get_xlabel() == "first component (100%)"


def test_dots_are_colored_by_group(axes):
    panels = axes(labelled([0, 0, 0], [0, 1, 2], group={"0": 1, "1": 0, "2": 1}))

    found = [colors.to_hex(color).upper() for color in panels[2].collections[0].get_facecolors()]

    assert sorted(found) == sorted([COLORS[0], COLORS[1], COLORS[1]])


def test_more_groups_than_colors_are_told_by_shade(axes):
    panels = axes(labelled([0] * 9, range(9), group={str(k): k for k in range(9)}))

    assert len(np.unique(panels[2].collections[0].get_facecolors(), axis=0)) == 9
    assert [text.get_text() for text in panels[2].texts] == ["color: group 0 (dark) to 8 (bright)"]


def test_mean_inputs_are_those_of_training_rows():
    x = np.array([[1.0, 0], [3, 0], [50, 50], [5, 7]])
    found = federation(x, [0] * 4, [0, 0, 0, 1], split=["train", "train", "test", "train"])

    np.testing.assert_allclose(client_means(found, np.array([1, 0])), [[5, 7], [2, 0]])


def test_principal_components_are_ordered_by_variance():
    points, share = principal(np.array([[0.0, 3], [0, -3], [1, 0], [-1, 0]]))

    np.testing.assert_allclose(np.abs(points), [[3, 0], [3, 0], [0, 1], [0, 1]], atol=1e-12)
    np.testing.assert_allclose(share, [0.9, 0.1])


def test_a_single_column_has_no_second_component():
    points, share = principal(np.array([[1.0], [3.0]]))

    np.testing.assert_allclose([*np.abs(points), share], [[1, 0]] * 3, atol=1e-12)


def test_one_client_has_no_direction():
    points, share = principal(np.array([[1.0, 2, 3]]))

    assert (points.tolist(), share.tolist()) == ([[0, 0]], [0, 0])


def painted(number, *shape):
    """Images each of which is painted evenly with its own number."""
    return np.arange(float(number)).reshape(number, *[1] * len(shape)) * np.ones(shape)


def sheet(panels):
    return np.asarray(panels[3].images[0].get_array())


def test_images_stand_in_rows_by_group(axes):
    """Clients 0 and 1 with images 0, 1 and 2, 3: group 1 (client 0) comes second; a line of background between."""
    found = federation(painted(4, 5, 6), [0] * 4, [0, 0, 1, 1], split=["train"] * 4, group={"0": 1, "1": 0})
    panels = axes(found)

    assert sheet(panels).shape == (2 * 6, 6 * 7)
    np.testing.assert_allclose(sheet(panels)[[0, 6]][:, [0, 7, 14]], [[2 / 3, 1, 0], [0, 1 / 3, 0]])
    assert [label.get_text() for label in panels[3].get_yticklabels()] == ["group 0", "group 1"]


def test_images_of_a_group_come_from_its_clients_in_turn(axes):
    found = federation(painted(4, 5, 5), [0] * 4, [0, 0, 1, 1], split=["train"] * 4, group={"0": 0, "1": 0})

    np.testing.assert_allclose(sheet(axes(found))[0, [0, 6, 12, 18]] * 3, [0, 2, 1, 3])


def test_images_of_clients_are_shown_where_there_are_no_groups(axes):
    panels = axes(federation(painted(8, 5, 5), [0] * 8, range(8)))

    assert [label.get_text() for label in panels[3].get_yticklabels()] == ["0", "1", "2", "4", "5", "7"]
    assert panels[3].get_title() == "Training images of 6 of 8 clients"


def test_color_images_keep_their_colors(axes):
    images = np.zeros((2, 5, 5, 3))
    images[0, ..., 0], images[1, ..., 2] = 255, 255

    found = sheet(axes(federation(images, [0, 0], [0, 1])))

    assert (found[0, 0].tolist(), found[6, 0].tolist(), found[5, 5].tolist()) == ([1, 0, 0], [0, 0, 1], [1, 1, 1])


@pytest.mark.parametrize(
    ("shape", "number"),
    [((5, 64), 4), ((8, 8, 1), 4), ((4, 8), 3), ((8, 65), 3), ((8, 8, 2), 3), ((8,), 3), ((5, 5, 3, 1), 3)],
)
def test_images_are_known_by_their_shape(shape, number, axes):
    assert len(titles(axes(federation(painted(4, *shape), [0] * 4, [0, 0, 1, 1])))) == number


def test_the_headline_says_what_it_is(axes):
    given = dataclasses.replace(labelled([0] * 2, [0, 0]), title="a $ and a $")

    figure = axes(given)[0].figure

    assert figure.get_suptitle() == (r"a \$ and a \$: 1 client, 2 train, 0 valid and 0 test rows (classification)")
