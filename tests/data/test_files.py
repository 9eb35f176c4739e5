"""Data files: where they are looked for, what is refused, and what the refusal says."""

import hashlib

import numpy as np
import pytest

from plures.data.files import DataFile, locate, read_npz
from plures.errors import BadFile

CONTENT = b"some numbers"
SOURCE = DataFile("numbers.npz", hashlib.sha256(CONTENT).hexdigest(), "three numbers", "the people who count")
WANTED = (
    "get numbers.npz (three numbers; from the people who count) and name its folder with --data-dir DIR or "
    "PLURES_DATA; docs/data-sets.md lists keys and hashes"
)


@pytest.fixture(autouse=True)
def no_folder_named(monkeypatch):
    monkeypatch.delenv("PLURES_DATA", raising=False)


def stored(folder, content=CONTENT):
    folder.mkdir(exist_ok=True)
    path = folder / SOURCE.file
    path.write_bytes(content)
    return path


def message_of(data_dir=None):
    with pytest.raises(BadFile) as refusal:
        locate(SOURCE, data_dir)
    return str(refusal.value)


def test_a_file_is_found_in_the_folder_given(tmp_path):
    path = stored(tmp_path)

    assert locate(SOURCE, str(tmp_path)) == path


def test_a_file_is_found_in_the_folder_of_the_environment(tmp_path, monkeypatch):
    path = stored(tmp_path)
    monkeypatch.setenv("PLURES_DATA", str(tmp_path))

    assert locate(SOURCE) == path


def test_the_folder_given_comes_before_that_of_the_environment(tmp_path, monkeypatch):
    given, general = stored(tmp_path / "given"), stored(tmp_path / "general")
    monkeypatch.setenv("PLURES_DATA", str(general.parent))

    assert locate(SOURCE, str(given.parent)) == given


def test_what_the_folder_given_lacks_is_taken_from_that_of_the_environment(tmp_path, monkeypatch):
    general = stored(tmp_path / "general")
    monkeypatch.setenv("PLURES_DATA", str(general.parent))

    assert locate(SOURCE, str(tmp_path)) == general


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    path = stored(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert locate(SOURCE, "~") == path


def test_without_a_folder_the_message_says_what_to_get_and_how_to_name_it():
    assert message_of() == f"no data folder is named; {WANTED}"


def test_an_empty_variable_names_no_folder(monkeypatch):
    monkeypatch.setenv("PLURES_DATA", "")

    assert message_of() == f"no data folder is named; {WANTED}"


def test_a_missing_file_is_named_with_the_folders_looked_at(tmp_path, monkeypatch):
    monkeypatch.setenv("PLURES_DATA", "elsewhere")

    assert message_of(str(tmp_path)) == f"there is no numbers.npz in {tmp_path} or elsewhere; {WANTED}"


def test_an_empty_file_is_refused(tmp_path):
    path = stored(tmp_path, b"")

    assert message_of(str(tmp_path)) == f"{path} is empty (0 bytes); {WANTED}"


def test_another_file_of_that_name_is_refused_with_both_hashes(tmp_path):
    path = stored(tmp_path, b"other numbers")

    found = hashlib.sha256(b"other numbers").hexdigest()
    assert message_of(str(tmp_path)) == (
        f"{path} is another file or damaged: its sha256 is {found}, not {SOURCE.sha256}; {WANTED}"
    )


def test_arrays_are_read_by_key(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(3), y=np.ones(2), z=np.zeros(1))

    found = read_npz(path, ("x", "y"))

    assert {key: values.tolist() for key, values in found.items()} == {"x": [0, 1, 2], "y": [1.0, 1.0]}


def test_a_missing_array_is_named(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(3))

    with pytest.raises(BadFile) as refusal:
        read_npz(path, ("x", "label"))

    assert str(refusal.value).startswith(f"{path} lacks an array: ")
    assert "label" in str(refusal.value)


def test_an_array_of_objects_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object))

    with pytest.raises(BadFile, match=r"a\.npz is damaged or no npz file: Object arrays cannot be loaded"):
        read_npz(path, ("x",))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"plain text"])
def test_a_damaged_file_is_refused(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)

    with pytest.raises(BadFile, match=r"a\.npz is damaged or no npz file: .*; it should hold x$"):
        read_npz(path, ("x",))


def test_a_file_cut_short_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(1000))
    path.write_bytes(path.read_bytes()[:-200])

    with pytest.raises(BadFile, match=r"a\.npz is damaged or no npz file"):
        read_npz(path, ("x",))


def test_a_flipped_byte_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(1000))
    content = bytearray(path.read_bytes())
    content[4000] ^= 255
    path.write_bytes(content)

    with pytest.raises(BadFile, match=r"a\.npz is damaged or no npz file: Bad CRC"):
        read_npz(path, ("x",))


def test_a_single_stored_array_is_no_npz(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3))

    with pytest.raises(BadFile, match=r"a\.npy is damaged or no npz file"):
        read_npz(path, ("x",))
