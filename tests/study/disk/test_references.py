"""References are written beside a study, and read back as they were."""

import pytest

from plures.builders import build_model
from plures.data import load
from plures.study.disk import layout
from plures.study.disk.references import read_references, save_references
from plures.study.references import data_mark, references_of

FEDERATION = load("logistic_clusters", num_clients=4)
MODEL = build_model("softmax", FEDERATION)


@pytest.fixture(scope="module")
def found():
    return references_of(FEDERATION, None, MODEL, seconds=0.0)


def test_what_is_read_is_what_was_written(found, tmp_path):
    save_references(tmp_path / "new", found)

    again = read_references(tmp_path / "new")

    assert again is not None
    assert again.table.equals(found.table)
    assert (again.metric, again.higher_is_better) == ("accuracy", True)
    assert (again.left_out, again.seconds) == (found.left_out, found.seconds)
    assert again.data == data_mark(FEDERATION, None, MODEL)
    assert [file.name for file in (tmp_path / "new").iterdir()] == [layout.REFERENCES]


def test_a_folder_without_them_has_none(tmp_path):
    assert read_references(tmp_path) is None


def test_a_damaged_file_is_as_none(found, tmp_path):
    save_references(tmp_path, found)
    (tmp_path / layout.REFERENCES).write_bytes(b"PAR1")

    assert read_references(tmp_path) is None
