"""Methods of others: from a file, and from an installed package."""

import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from plures import registry
from plures.app import Study, read_source, read_study
from plures.app.ownership import claim
from plures.cli import run as command
from plures.cli.skeleton import write_skeleton
from plures.errors import BadFile
from plures.registry import METHODS, Registry, import_file, method

BROKEN = '''
from dataclasses import replace
from plures.methods.fedavg import fedavg
from plures.registry import method

@method(title="Not a number")
def {name}(model, *, plan=None):
    """FedAvg whose merge divides by nothing."""
    base = fedavg(model)
    def merge(server, uploads, weights, uids):
        return base.merge(server, uploads, weights * float("nan"), uids)
    return replace(base, merge=merge)
'''


@pytest.fixture(autouse=True)
def _registry_as_before(monkeypatch):
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS.entries))


def test_a_file_registers_its_methods(tmp_path):
    path = write_skeleton("from_a_file", tmp_path)

    found = import_file(path)

    assert [entry.name for entry in found] == ["from_a_file"]
    assert METHODS["from_a_file"] is found[0]


def test_a_file_may_be_imported_twice(tmp_path):
    path = write_skeleton("twice_imported", tmp_path)

    assert import_file(path) == import_file(path)


def test_two_files_of_one_name_are_two(tmp_path):
    for folder, name in (("a", "first_of_two"), ("b", "second_of_two")):
        (tmp_path / folder).mkdir()
        write_skeleton(name, tmp_path / folder).rename(tmp_path / folder / "mine.py")

    found = [import_file(tmp_path / folder / "mine.py")[0].name for folder in ("a", "b")]

    assert found == ["first_of_two", "second_of_two"]


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "there is no file"), ("1 +", "SyntaxError"), ("import nothing_of_that_name", "ModuleNotFoundError")],
)
def test_a_file_that_cannot_be_imported_is_refused_in_one_line(tmp_path, text, said):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)

    with pytest.raises(BadFile, match=said):
        import_file(path)


def test_a_name_that_is_taken_is_refused(tmp_path):
    path = write_skeleton("taken", tmp_path)
    path.write_text(path.read_text().replace("def taken", "def ditto"))

    with pytest.raises(BadFile, match="a method name that is not taken"):
        import_file(path)


def test_installed_packages_are_known_by_their_entry_points(tmp_path, monkeypatch):
    (tmp_path / "their_package.py").write_text(BROKEN.format(name="theirs"))
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("theirs", "their_package:theirs", "plures.methods")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "plures.methods" else [])

    registry.import_installed("plures.methods")

    assert METHODS["theirs"].title == "Not a number"
    sys.modules.pop("their_package")


def test_a_broken_entry_point_is_named_and_stops_nobody(monkeypatch):
    point = EntryPoint("theirs", "no_such_package:theirs", "plures.methods")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])

    with pytest.warns(UserWarning, match="'theirs' of plures.methods .* cannot be imported"):
        assert len(Registry("example", group="plures.methods")) == 0


def test_the_contract_runs_on_a_file(tmp_path, capsys):
    path = write_skeleton("kept_contract", tmp_path)

    assert command(["contract", str(path)]) == 0
    assert "kept_contract: ok" in capsys.readouterr().out


def test_a_broken_contract_is_said_with_exit_code_1(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(BROKEN.format(name="broken_one"))

    assert command(["contract", str(tmp_path / "mine.py")]) == 1
    assert "fails" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("nobody.py", "there is no file"),
        ("nobodys_method", "no method is called"),
        ("a.txt", "not a Python file"),
        ("./", "not a Python file"),
    ],
)
def test_nothing_to_check_is_said_in_one_line(subject, said, capsys):
    assert command(["contract", subject]) == 1
    assert said in capsys.readouterr().err


def test_a_file_without_methods_is_refused(tmp_path, capsys):
    (tmp_path / "empty.py").write_text("")

    assert command(["contract", str(tmp_path / "empty.py")]) == 1
    assert "a Python file that registers a method" in capsys.readouterr().err


def test_what_a_file_registers_outside_of_the_library_has_no_trusted_recipe():
    @method(title="Mine", name="made_in_a_notebook")
    def mine(model, *, lam: float = 0.1):
        from plures.methods.fedavg import fedavg

        return fedavg(model)

    from plures.models.linear import softmax

    assert not mine(softmax((2,), 2)).recipe.known


def test_a_method_of_a_file_is_compared_and_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write_skeleton("compared_here", Path())
    words = [
        "--rounds",
        "1",
        "--seeds",
        "1",
        "--epochs",
        "1",
        "--data",
        "digits:num_clients=4",
        "--hold-out",
        "0",
    ]

    assert command(["compare", "--import", str(path), "-m", "compared_here", *words, "--out", "out"]) == 0
    assert command(["resume", "out"]) == 0
    assert "compared_here" in capsys.readouterr().out


def test_a_study_in_a_file_imports_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_skeleton("named_in_a_study", Path())

    assert Study(**{"import": [path.name]}).imports == (str(path.resolve()),)
    assert "named_in_a_study" in METHODS


def test_the_page_of_a_method_of_a_file(tmp_path, capsys):
    path = write_skeleton("shown_here", tmp_path)

    assert command(["methods", "shown_here", "--import", str(path)]) == 0
    assert "Strength of the proximal term" in capsys.readouterr().out


def test_a_study_in_a_file_imports_files_that_lie_beside_it(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    path = write_skeleton("beside_a_study", tmp_path / "there")
    file = tmp_path / "there" / "study.toml"
    file.write_text(f"import = ['{path.name}']\nrounds = 2")
    monkeypatch.chdir(tmp_path / "here")

    assert read_study(file).imports == (str(path.resolve()),)
    assert f'import = ["{path.resolve()}"]' in read_source(file).text


def test_a_study_in_a_file_imports_files_of_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    file = tmp_path / "there" / "study.toml"
    monkeypatch.chdir(tmp_path)
    path = write_skeleton("in_the_current_folder", Path())
    file.write_text(f'import = "{path.name}"')

    assert read_study(file).imports == (str(path.resolve()),)


def test_an_imported_file_may_move(tmp_path):
    for folder in ("a", "b"):
        claim(tmp_path / "out", {**Study().model_dump(mode="json"), "imports": [f"/{folder}/mine.py"]})


FAULTY = BROKEN.replace("        return base.merge", "        len(3)\n        return base.merge")


def test_a_mistake_in_an_imported_file_is_said_in_one_line(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(FAULTY.format(name="faulty_one"))
    line = FAULTY.splitlines().index("        len(3)") + 1
    words = ["--data", "digits:num_clients=4", "--rounds", "1", "--seeds", "1", "--out", str(tmp_path / "out")]

    assert command(["compare", "--import", str(path), "-m", "faulty_one", *words]) == 1
    said = capsys.readouterr().err.strip()
    assert said == f"plures: TypeError: object of type 'int' has no len() ({path}:{line})"


def test_a_mistake_in_a_method_fails_its_checks(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(FAULTY.format(name="faulty_two"))

    assert command(["contract", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "fails" in out
    assert "TypeError: object of type 'int' has no len()" in " ".join(out.split())
    assert "defect" not in err


OTHERS = """
from plures.data import load
from plures.registry import channel, dataset, model
from plures.models.linear import softmax

@model(title="Mine")
def own_model(inputs, outputs):
    "A model of my own."
    return softmax(inputs, outputs)

@channel(title="Mine")
def own_channel():
    "A channel of my own."

@dataset(title="Mine")
def own_data():
    "Data of my own."
    return load("digits:num_clients=4")
"""


def test_commands_that_list_or_take_data_import_files(tmp_path, monkeypatch, capsys):
    for kind in registry.KINDS:
        monkeypatch.setattr(kind, "_entries", dict(kind.entries))
    (tmp_path / "mine.py").write_text(OTHERS)
    monkeypatch.chdir(tmp_path)

    for words in (
        ["models", "own_model"],
        ["channels", "own_channel"],
        ["data", "list", "own_data"],
        ["data", "check", "own_data"],
        ["data", "describe", "own_data"],
    ):
        assert command([*words, "--import", "mine.py"]) == 0, words
    assert Path("runs/own_data.png").exists()
    assert "of my own" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["advise", "worth", "fuse"])
def test_commands_that_advise_import_files(name, capsys):
    where = ["--data", "digits"] if name == "advise" else ["digits"]

    assert command([name, *where, "--import", "nobody.py"]) == 1
    assert "there is no file nobody.py to import" in capsys.readouterr().err


def test_an_edited_file_is_read_again(tmp_path, monkeypatch):
    """Though it has the same size, and was edited within a second."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = write_skeleton("edited_here", tmp_path)
    os.utime(path, (1e9, 1e9))
    import_file(path)
    path.write_text(path.read_text().replace("lam: float = 0.1", "lam: float = 0.7"))
    os.utime(path, (1e9, 1e9))

    assert import_file(path)[0].options["lam"].default == 0.7
    assert METHODS["edited_here"].options["lam"].default == 0.7


def test_a_cell_of_a_notebook_may_run_twice():
    for title in ("First", "Second"):

        @method(title=title, name="in_a_cell")
        def in_a_cell(model, *, lam: float = 0.1):
            return model

    assert METHODS["in_a_cell"].title == "Second"


def test_a_file_that_leaves_python_is_refused(tmp_path, capsys):
    (tmp_path / "leaving.py").write_text("import sys; sys.exit(0)")

    assert command(["contract", str(tmp_path / "leaving.py")]) == 1
    assert "SystemExit" in capsys.readouterr().err


def test_any_mistake_in_an_installed_package_stops_nobody(tmp_path, monkeypatch):
    (tmp_path / "their_broken_package.py").write_text("undefined_name")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("theirs", "their_broken_package:theirs", "plures.methods")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])

    with pytest.warns(UserWarning, match="undefined_name"):
        registry.import_installed("plures.methods")
