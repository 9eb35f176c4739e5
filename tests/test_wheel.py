"""The wheel alone: built, installed into an empty folder, and used without the checkout."""

import ast
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WITHOUT_CHECKOUT = """
import sys

sys.path[:0] = [sys.argv[1]]
sys.path.extend(sys.argv[2].split(","))
sys.argv = ["plures", *sys.argv[3:]]
import plures

assert plures.__file__.startswith(sys.path[0]), plures.__file__
from plures.cli import main

main()
"""

# The wheel is built once, by one worker.
pytestmark = pytest.mark.xdist_group("wheel")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("plures-*.whl")
    return path


@pytest.fixture(scope="module")
def plures(wheel, tmp_path_factory):
    """A function that runs the command from the wheel: the interpreter reads neither the checkout nor any .pth file."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*pip, str(target), str(wheel)], check=True, capture_output=True)
    dependencies = ",".join(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))

    def run(*words, cwd):
        command = [sys.executable, "-I", "-S", "-c", WITHOUT_CHECKOUT, str(target), dependencies, *words]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)

    return run


def imported_by(path):
    """The names of the packages that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


def test_all_that_is_imported_is_a_dependency_or_an_extra():
    """The run below borrows this environment's libraries, which has more than those the wheel asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(one for extra in ("tensorboard", "mlflow") for one in project["optional-dependencies"][extra]),
    ]
    known = {re.match(r"[A-Za-z0-9-]+", one).group() for one in asked}
    used = {name for path in (ROOT / "src").rglob("*.py") for name in imported_by(path)} - set(
        sys.stdlib_module_names
    )

    renamed = {"sklearn": "scikit-learn", "mlflow": "mlflow-skinny"}
    assert {renamed.get(name, name) for name in used} - known == {"plures", "papers"}


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()

    assert {name.split("/")[0].split("-")[0] for name in names} == {"plures"}
    assert not [name for name in names if name.endswith((".png", ".csv", ".jsonl", ".npz", ".parquet"))]
    assert not [name for name in names if "test" in Path(name).name]


def test_a_comparison_runs_from_the_wheel(plures, tmp_path):
    words = ["-m", "fedavg", "-m", "local_only", "--rounds", "1", "--seeds", "1", "--model", "softmax"]

    done = plures("compare", *words, "--out", "out", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "local_only" in done.stdout
    assert (tmp_path / "out" / "leaderboard.csv").exists()


def test_without_the_repository_one_line_says_how_to_get_the_papers(plures, tmp_path):
    done = plures("reproduce", "fedclup", cwd=tmp_path)

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "clone the repository of plures" in line
