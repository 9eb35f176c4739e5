"""Imports go downward only; no hidden randomness; ``jit`` belongs to the engine and the solvers."""

import ast
from pathlib import Path

import pytest

import plures

ROOT = Path(plures.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

LAYERS = [
    ["errors", "_version"],
    ["types"],
    ["tree", "keys", "registry"],
    ["local", "aggregate", "models", "survey", "envelope"],
    ["parting"],
    ["norms"],
    ["methods", "personalize", "channel", "data", "solvers"],
    ["records"],
    ["engine"],
    ["study", "contract"],
    ["report", "flower"],
    ["reproduce"],
    ["toml_lines"],
    ["config"],
    ["cli"],
    ["__init__", "__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

OWN_LIBRARY = {"matplotlib": {"report"}, "plotly": {"report"}, "flwr": {"flower"}, "pydantic": {"config"}}
NEVER_IN_THE_CORE = {"polars", "pydantic", "plotly", "matplotlib", "flwr", "torch"}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path: Path) -> list[tuple[str, bool]]:
    """(module, whether at the top of the file) of every import."""
    found = []
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "plures" else [base]
            found += [(name, id(node) in top) for name in names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downward_only(path):
    here = part_of(path)

    for module, _ in imports_of(path):
        if not module.startswith("plures."):
            continue
        there = module.split(".")[1]
        fine = there == here or LEVEL[there] < LEVEL[here]
        assert fine, f"{here} must not import {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_libraries_stay_where_they_belong(path):
    here = part_of(path)

    for module, at_top in imports_of(path):
        library = module.split(".")[0]
        assert here in OWN_LIBRARY.get(library, {here}), f"{library} belongs to {OWN_LIBRARY[library]}"
        in_core = LEVEL[here] <= LEVEL["engine"]
        assert not (in_core and at_top and library in NEVER_IN_THE_CORE), f"{path}: {library} at import time"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_randomness_is_a_key_and_jit_is_the_engines(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            assert not text.startswith(("np.random", "numpy.random", "random.")), f"{path}:{node.lineno} {text}"
            if text == "jax.jit":
                assert part_of(path) in ("engine", "solvers"), f"{path}:{node.lineno} jit"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_hold_no_state(path):
    """No ``global`` statement, and no lowercase module variable but registries and apps."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Global), f"{path}:{node.lineno} global"
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict | ast.List | ast.Set):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            assert all(name.isupper() or name == "__all__" for name in names), f"{path}: {names}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_short(path):
    assert len(path.read_text().splitlines()) <= 400


def test_the_public_face_is_complete():
    for name in plures.__all__:
        assert hasattr(plures, name)
