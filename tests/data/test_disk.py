"""Federations as folders: exact round trips, maps instead of copies, and one clear line for every damage."""

import dataclasses
import json
import re
import shutil
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plures.data import SPLITS, Federation, disk, from_arrays, load
from plures.data.disk import is_federation, open_federation, save
from plures.errors import BadData, BadFile

# How a federation was loaded is not part of it: what is opened has a source of its own.
FIELDS = [one.name for one in dataclasses.fields(Federation) if one.name != "source"]
FILES = ("manifest.json", "clients.json", "clients.npz", "examples.npz")


def small(**options):
    """Three clients with 5, 3 and 2 rows, row i holding the number i."""
    client = np.repeat(["a", "b", "c"], [5, 3, 2])
    return from_arrays(np.arange(10.0)[:, None], np.arange(10) % 3, client, title="small", **options)


def full():
    """A federation with every field there is, and names and notes that are not plain ASCII."""
    names = {"Zoë": 0, "a/b": 1, "\udc80": 1}
    client = np.repeat(list(names), [5, 3, 2])
    found = from_arrays(np.arange(10.0)[:, None], np.arange(10) % 3, client, group=names, domain=names)
    return dataclasses.replace(found, held_out=found.group == 1).noted("3 rows were left out", "naïve\nlines")


def assert_same(found, expected):
    for name in FIELDS:
        one, other = getattr(found, name), getattr(expected, name)
        if isinstance(other, np.ndarray):
            np.testing.assert_array_equal(one, other, err_msg=name)
            assert one.dtype == other.dtype, name
        else:
            assert (one, type(one)) == (other, type(other)), name


def message_of(folder, **options):
    with pytest.raises(BadFile) as refusal:
        open_federation(folder, **options)
    assert "\n" not in str(refusal.value)
    return str(refusal.value).replace(str(folder), "FOLDER")


def change(folder, **fields):
    """Put other values into the manifest; "arrays.x.shape" is written arrays__x__shape."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    for path, value in fields.items():
        *outer, last = path.split("__")
        inside = manifest
        for name in outer:
            inside = inside[name]
        inside[last] = value
    file.write_text(json.dumps(manifest))


@pytest.fixture
def folder(tmp_path):
    return save(small(), tmp_path / "stored")


WORLDS = ["digits", "linear_clusters", "logistic_clusters", "density", "mean_estimation"]


@pytest.mark.parametrize("memory_map", [False, True])
@pytest.mark.parametrize("name", WORLDS)
def test_what_is_saved_comes_back(name, memory_map, tmp_path):
    federation = load(name)

    found = open_federation(save(federation, tmp_path / "stored"), memory_map=memory_map)

    assert_same(found, federation)


@pytest.mark.parametrize("memory_map", [False, True])
def test_every_field_comes_back(memory_map, tmp_path):
    found = open_federation(save(full(), tmp_path / "stored"), memory_map=memory_map)

    assert_same(found, full())


def test_a_federation_has_no_field_that_is_not_stored():
    assert set(FIELDS) == {"x", "y", "names", *map(disk.field_of, disk.PER_CLIENT), *disk.FACTS, *disk.LATER}


KINDS = st.sampled_from(["f4", "f8", ">f8", "f2", "i4", "u1", "?", "i8"])


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    shape=st.lists(st.integers(0, 3), max_size=3),
    kind=KINDS,
    order=st.sampled_from("CF"),
    notes=st.lists(st.text(), max_size=3),
    title=st.text(),
)
def test_any_federation_comes_back(sizes, shape, kind, order, notes, title, tmp_path_factory):
    client = np.repeat(np.arange(len(sizes)), sizes)
    number = len(client) * int(np.prod(shape, dtype=int))
    x = np.asarray(np.arange(number).reshape(len(client), *shape), kind, order=order)
    federation = from_arrays(x, np.arange(len(client)) % 4, client, title=title).noted(*notes)
    federation = dataclasses.replace(federation, x=np.asarray(federation.x, order=order))

    found = open_federation(save(federation, tmp_path_factory.mktemp("some") / "stored"))

    assert_same(found, federation)


def test_saving_returns_the_folder(tmp_path):
    assert save(small(), str(tmp_path / "new" / "stored")) == tmp_path / "new" / "stored"


def test_the_same_federation_gives_the_same_files(tmp_path):
    one, other = (save(full(), tmp_path / name) for name in ("one", "other"))

    assert [(one / file).read_bytes() for file in FILES] == [(other / file).read_bytes() for file in FILES]


def test_numpy_opens_the_archives(folder):
    with np.load(folder / "examples.npz", allow_pickle=False) as archive:
        found = archive["x"]

    np.testing.assert_array_equal(found, small().x)


def test_the_manifest_says_what_it_is(folder):
    manifest = json.loads((folder / "manifest.json").read_text())

    assert (manifest["format"], manifest["version"], manifest["title"]) == ("plures-federation", 1, "small")


def test_arrays_start_at_multiples_of_64_bytes(tmp_path):
    folder = save(full(), tmp_path / "stored")

    found = open_federation(folder, memory_map=True)

    assert [values.ctypes.data % 64 for values in (found.x, found.y)] == [0, 0]


@pytest.mark.parametrize("take", [[1], [2, 0], [0, 1], [2, 1, 0]])
def test_a_part_is_saved_with_its_own_rows_alone(take, tmp_path):
    part = small().take(take)

    found = open_federation(save(part, tmp_path / "stored"))

    assert len(found.x) == len(found.y) == part.count.sum()
    for name in part.names:
        for split in SPLITS:
            for one, other in zip(found.rows_of(name, split), part.rows_of(name, split), strict=True):
                np.testing.assert_array_equal(one, other)


def test_held_out_clients_keep_their_uids(tmp_path):
    _, unseen = small().hold_out(clients=["c", "a"])

    found = open_federation(save(unseen, tmp_path / "stored"))

    assert dict(zip(found.names, found.uid.tolist(), strict=True)) == {"a": 1, "c": 2}


def test_rows_that_clients_share_are_stored_once(tmp_path):
    whole = small()
    start, count = whole.start.copy(), whole.count.copy()
    start[:, 2], count[:, 2] = 7, 3  # all are tested on the last three rows
    shared = dataclasses.replace(whole, start=start, count=count)

    found = open_federation(save(shared, tmp_path / "stored"))

    tested = [found.rows_of(name, "test")[0].tolist() for name in "abc"]
    assert (len(found.x), tested) == (
        len(np.union1d(trained_or_valid(whole), [7, 8, 9])),
        [whole.x[7:].tolist()] * 3,
    )


def test_rows_inside_another_clients_rows_are_stored_once(tmp_path):
    """Client a trains on rows 0..9, b on 2 and 3, c on 5 and 6; row 0..9 are all there are."""
    start, count = np.zeros((3, 3), int), np.zeros((3, 3), int)
    start[:, 0], count[:, 0] = [0, 2, 5], [10, 2, 2]
    nested = dataclasses.replace(small(), start=start, count=count)

    assert_same(open_federation(save(nested, tmp_path / "stored")), nested)


def trained_or_valid(federation):
    """The places of all train and valid rows."""
    ends = federation.start + federation.count
    parts = [np.arange(a, b) for a, b in zip(federation.start[:, :2].flat, ends[:, :2].flat, strict=True)]
    return np.concatenate(parts)


def test_mapped_examples_stay_on_disk(tmp_path):
    """8 MB of inputs: mapped and checked, with blocks that are smaller, next to nothing is allocated."""
    wide = from_arrays(np.zeros((100, 10_000)), np.zeros(100, int), np.arange(100) % 5)
    folder = save(wide, tmp_path / "stored")
    tracemalloc.start()

    found = open_federation(folder, memory_map=True, verify=False)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(found.x, np.memmap)
    assert Path(found.x.filename) == folder / "examples.npz"
    assert peak < 1e6


def test_only_examples_are_mapped(folder):
    found = open_federation(folder, memory_map=True)

    kinds = {name: type(getattr(found, name)) for name in ("x", "y", "start", "uid")}
    assert kinds == {"x": np.memmap, "y": np.memmap, "start": np.ndarray, "uid": np.ndarray}


def test_checking_mapped_examples_takes_one_block(tmp_path, monkeypatch):
    wide = from_arrays(np.zeros((100, 10_000)), np.zeros(100, int), np.arange(100) % 5)
    folder = save(wide, tmp_path / "stored")
    monkeypatch.setattr(disk, "BLOCK_BYTES", 500_000)
    tracemalloc.start()

    open_federation(folder, memory_map=True)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5e6


def test_saving_mapped_examples_takes_no_copy(tmp_path):
    wide = from_arrays(np.zeros((100, 100_000), np.float32), np.zeros(100, int), np.arange(100) % 5)
    mapped = open_federation(save(wide, tmp_path / "stored"), memory_map=True)
    del wide
    tracemalloc.start()

    save(mapped.take([4, 2]), tmp_path / "part")

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6


def test_saving_takes_one_block_where_rows_do_not_lie_together(tmp_path, monkeypatch):
    """8 MB of inputs that are every other column of something larger, written 400 KB at a time."""
    wide = from_arrays(np.zeros((100, 20_000)), np.zeros(100, int), np.arange(100) % 5)
    sparse = dataclasses.replace(wide, x=wide.x[:, ::2])
    monkeypatch.setattr(disk, "BLOCK_BYTES", 400_000)
    tracemalloc.start()

    save(sparse, tmp_path / "stored")

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6


def test_blocks_do_not_change_what_is_stored(tmp_path, monkeypatch):
    part = load("digits", num_clients=6).take([5, 1, 2])
    expected = open_federation(save(part, tmp_path / "whole"))
    monkeypatch.setattr(disk, "BLOCK_BYTES", 1000)

    assert_same(open_federation(save(part, tmp_path / "blocks")), expected)


@pytest.mark.parametrize(("memory", "kind"), [(2 * 160 - 2, np.memmap), (2 * 160, np.ndarray)])
def test_examples_above_half_the_memory_are_mapped(memory, kind, folder, monkeypatch):
    """Ten rows of x and y with 8 bytes each."""
    monkeypatch.setattr(disk, "physical_memory", lambda: memory)

    assert type(open_federation(folder).x) is kind


def test_the_machine_says_how_much_memory_it_has():
    assert disk.physical_memory() > 2**20


def test_a_machine_that_does_not_say_counts_as_8_gib(monkeypatch):
    monkeypatch.setattr(disk.os, "sysconf", lambda name: int(""))

    assert disk.physical_memory() == 2**33


def test_examples_in_memory_can_be_forced(folder, monkeypatch):
    monkeypatch.setattr(disk, "physical_memory", lambda: 1)

    assert type(open_federation(folder, memory_map=False).x) is np.ndarray


def test_a_federation_is_replaced_only_when_asked(folder):
    with pytest.raises(BadFile, match=r"holds a federation already; use another folder, or overwrite it$"):
        save(full(), folder)

    assert_same(open_federation(folder), small())


def test_a_federation_is_replaced_when_asked(folder):
    save(full(), folder, overwrite=True)

    assert_same(open_federation(folder), full())


def test_a_link_to_a_federation_stays_a_link(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)

    save(full(), tmp_path / "link", overwrite=True)

    assert (tmp_path / "link").is_symlink()
    assert_same(open_federation(folder), full())


def test_a_mapped_federation_may_replace_itself(folder):
    mapped = open_federation(folder, memory_map=True)

    save(mapped.take([2]), folder, overwrite=True)

    np.testing.assert_array_equal(open_federation(folder).x, mapped.x[8:])


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.write_text("x")], ids=["folder", "file"])
def test_what_is_no_federation_is_never_replaced(make, tmp_path):
    make(tmp_path / "mine")

    with pytest.raises(BadFile, match="is there already and is no stored federation; use another folder"):
        save(small(), tmp_path / "mine", overwrite=True)


def test_other_files_in_the_folder_are_not_lost(folder):
    (folder / "README").write_text("mine")

    with pytest.raises(BadFile, match=r"holds other files too \(README\), which would be lost"):
        save(full(), folder, overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_crash_leaves_what_was_there(overwrite, tmp_path, monkeypatch):
    if overwrite:
        save(small(), tmp_path / "stored")

    def crash(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "_pieces", crash)
    with pytest.raises(BadFile, match="cannot be written: No space left on device"):
        save(full(), tmp_path / "stored", overwrite=overwrite)

    assert [path.name for path in tmp_path.iterdir()] == ["stored"] * overwrite


def test_an_interruption_while_renaming_brings_the_former_back(folder, monkeypatch):
    rename = Path.rename

    def interrupted(path, target):
        if path.name == "fresh":
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(full(), folder, overwrite=True)

    assert_same(open_federation(folder), small())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ("a", "b")}, "there are 3 clients and 2 names"),
        ({"names": ("a", "b", "a")}, "two clients have one name"),
        ({"uid": np.array([0, 1, 1])}, "clients' uids must differ and be 0 or more"),
        ({"uid": np.array([0, 1, -1])}, "clients' uids must differ and be 0 or more"),
        ({"uid": np.array([0.0, 1, 2])}, "uid has the dtype float64"),
        ({"start": np.zeros((3, 2), int)}, "start has the shape (3, 2), not (3, 3)"),
        ({"start": np.full((3, 3), 9)}, "some client's rows lie outside of the 10 rows there are"),
        ({"start": np.full((3, 3), -1)}, "some client's rows lie outside of the 10 rows there are"),
        ({"count": np.full((3, 3), -1)}, "some client's rows lie outside of the 10 rows there are"),
        ({"group": np.array([0, 1, 2]), "num_groups": 2}, "some client's group is not in 0..1"),
        ({"domain": np.array([0, 1, -1]), "num_domains": 2}, "some client's domain is not in 0..1"),
        ({"held_out": np.array([0, 1, 0])}, "held_out has the dtype int64"),
        ({"y": np.zeros(9)}, "x has 10 rows and y has 9"),
        ({"x": np.array(["1"] * 10)}, "x must hold numbers, a row per example, not <U1 of shape (10,)"),
        ({"x": np.array(1.0)}, "x must hold numbers, a row per example, not float64 of shape ()"),
        ({"task": "guessing"}, "there is no task 'guessing'"),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, dict) else "",
)
def test_a_federation_that_contradicts_itself_is_not_saved(changes, message, tmp_path):
    with pytest.raises(BadData) as refusal:
        save(dataclasses.replace(small(), **changes), tmp_path / "stored")

    assert str(refusal.value) == f"this federation cannot be saved: {message}"


def test_a_missing_folder_is_said(tmp_path):
    assert message_of(tmp_path / "no") == "there is no folder FOLDER; give the folder of a stored federation"


def test_a_folder_without_a_manifest_is_no_federation(tmp_path):
    assert message_of(tmp_path) == "FOLDER holds no federation (there is no manifest.json in it)"


@pytest.mark.parametrize(
    "text", [b"{", b"", b"\xff\xfe", b"[" * 100_000, b"[1, 2]"], ids=lambda text: str(text[:4])
)
def test_a_damaged_manifest_is_said(text, folder):
    (folder / "manifest.json").write_bytes(text)

    assert message_of(folder).startswith("FOLDER/manifest.json is damaged: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "zebra"}, "FOLDER/manifest.json does not describe a federation (its format is 'zebra')"),
        (
            {"version": 2},
            "FOLDER was made by a newer plures (version 2, this release reads 1); update plures to open it",
        ),
        ({"version": 0}, "FOLDER/manifest.json is damaged: 0 is no version"),
        ({"version": "one"}, "FOLDER/manifest.json is damaged: 'one' is no version"),
        ({"title": 5}, "FOLDER/manifest.json is damaged: it has no 'title' of type str"),
        ({"num_classes": None}, "FOLDER/manifest.json is damaged: it has no 'num_classes' of type int"),
        ({"notes": [1]}, "FOLDER/manifest.json is damaged: its notes should be lines of text"),
        ({"arrays": {}}, "FOLDER/manifest.json is damaged: it names the arrays "),
        ({"arrays__z": {}}, "FOLDER/manifest.json is damaged: it names the arrays count, start, uid, x, y, z"),
        ({"arrays__x": 3}, "FOLDER/manifest.json is damaged: None is no file of a federation"),
        (
            {"arrays__x__file": "../x.npz"},
            "FOLDER/manifest.json is damaged: '../x.npz' is no file of a federation",
        ),
        (
            {"arrays__x__shape": [-1]},
            "FOLDER/manifest.json is damaged: x has the dtype '<f8' and the shape [-1]",
        ),
        (
            {"arrays__x__dtype": "|O"},
            "FOLDER/manifest.json is damaged: x has the dtype '|O' and the shape [10, 1]",
        ),
        (
            {"arrays__x__shape": [5, 2]},
            "FOLDER/examples.npz is cut off or damaged: x is float64 of shape (10, 1), not float64 of shape (5, 2)",
        ),
        (
            {"arrays__y__sha256": "0"},
            "FOLDER/examples.npz was changed or damaged (the sha256 of y is another); get it anew",
        ),
        (
            {"names__sha256": "0"},
            "FOLDER/clients.json was changed or damaged (its sha256 is another); save or get it anew",
        ),
        ({"num_groups": 0, "task": "guessing"}, "FOLDER is damaged: there is no task 'guessing'"),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, dict) else "",
)
def test_a_manifest_that_cannot_be_is_said(changes, message, folder):
    change(folder, **changes)

    assert message_of(folder) == message


@pytest.mark.parametrize("file", FILES[1:])
def test_a_missing_file_is_named(file, folder):
    (folder / file).unlink()

    assert message_of(folder) == f"FOLDER is not whole: there is no {file} in it"


@pytest.mark.parametrize("memory_map", [False, True])
@pytest.mark.parametrize("file", ["clients.npz", "examples.npz"])
def test_an_archive_that_ends_early_is_named(file, memory_map, folder):
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: len(content) // 2])

    assert message_of(folder, memory_map=memory_map) == (
        f"FOLDER/{file} is cut off or damaged: File is not a zip file"
    )


@pytest.mark.parametrize("memory_map", [False, True])
def test_a_changed_number_is_noticed(memory_map, folder):
    flip(folder / "examples.npz", small().x.tobytes())

    assert message_of(folder, memory_map=memory_map) == (
        "FOLDER/examples.npz was changed or damaged (the sha256 of x is another); get it anew"
    )


@pytest.mark.parametrize("memory_map", [False, True])
def test_a_changed_number_may_be_let_pass(memory_map, folder):
    flip(folder / "examples.npz", small().x.tobytes())

    found = open_federation(folder, memory_map=memory_map, verify=False)

    assert not np.array_equal(found.x, small().x)


def flip(file, where):
    """Change the last byte of this part of a file."""
    content = bytearray(file.read_bytes())
    content[content.index(where) + len(where) - 1] ^= 1
    file.write_bytes(content)


def test_a_compressed_archive_is_refused(folder):
    archived = folder / "examples.npz"
    with zipfile.ZipFile(archived) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(archived, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)

    assert message_of(folder).startswith("FOLDER/examples.npz is cut off or damaged: ")


def test_an_array_that_is_shorter_than_it_says_is_named(folder):
    archived = folder / "examples.npz"
    with zipfile.ZipFile(archived) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(archived, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content[:-1] if name == "x.npy" else content)

    assert message_of(folder, verify=False) == (
        "FOLDER/examples.npz is cut off or damaged: x is not as long as its shape says"
    )


def test_bytes_that_are_not_there_are_not_made_up(tmp_path):
    (tmp_path / "short").write_bytes(b"12345")

    with (tmp_path / "short").open("rb") as file, pytest.raises(EOFError, match="it ends too early"):
        list(disk._blocks(file, 6, None))


def test_an_archive_packed_anew_without_compression_is_the_same(folder):
    archived = folder / "examples.npz"
    with zipfile.ZipFile(archived) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(archived, "w") as archive:
        for name, content in reversed(members.items()):
            archive.writestr(name, content)

    assert_same(open_federation(folder, memory_map=True), small())


@pytest.mark.parametrize("file", FILES)
def test_no_changed_byte_goes_through_unnoticed(file, folder):
    """Every third byte of a file is changed in turn: it is refused in one line, or nothing came of it.

    The manifest may be mended by hand (a title, a note): there only the refusal is asked for.
    """
    content = (folder / file).read_bytes()
    for place in range(0, len(content), 3):
        (folder / file).write_bytes(content[:place] + bytes([content[place] ^ 21]) + content[place + 1 :])
        try:
            found = open_federation(folder)
        except BadFile:
            continue
        if file != "manifest.json":
            assert_same(found, small())


@pytest.mark.parametrize("file", FILES)
def test_no_file_that_ends_early_goes_through_unnoticed(file, folder):
    content = (folder / file).read_bytes()
    for place in range(0, len(content.rstrip()), 7):
        (folder / file).write_bytes(content[:place])

        with pytest.raises(BadFile):
            open_federation(folder)


def test_a_file_that_cannot_be_read_is_said(folder, monkeypatch):
    def closed(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disk, "_find", closed)

    assert re.fullmatch(r"FOLDER/\w+.npz cannot be read: Permission denied", message_of(folder))


def test_a_stored_federation_is_known_as_one(folder):
    assert is_federation(folder)
    assert is_federation(str(folder))


def test_a_federation_of_a_newer_version_is_still_one(folder):
    change(folder, version=99)

    assert is_federation(folder)


@pytest.mark.parametrize(
    "content", [None, "{", "[]", "[" * 100_000, '{"format": "zebra"}'], ids=lambda one: str(one)[:4]
)
def test_other_folders_are_not_taken_for_federations(content, tmp_path):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)

    assert not is_federation(tmp_path)


def test_a_moved_folder_opens_all_the_same(folder, tmp_path):
    shutil.move(folder, tmp_path / "elsewhere")

    assert_same(open_federation(tmp_path / "elsewhere"), small())


def test_whether_targets_are_standardized_comes_back_and_is_off_in_folders_of_before(folder):
    whole = dataclasses.replace(full(), standardize_target=True)
    kept = save(whole, folder.parent / "standardized")
    before = json.loads((folder / "manifest.json").read_text())
    del before["standardize_target"]
    (folder / "manifest.json").write_text(json.dumps(before))

    assert open_federation(kept).standardize_target is True
    assert open_federation(folder).standardize_target is False
