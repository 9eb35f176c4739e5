"""The layers of the house, lowest first: a module imports from layers below its own, and from its own package.

The one table: tests hold the code to it, and the diagram in the docs is made from it (``diagram``).
"""

import ast
from functools import cache
from pathlib import Path

import plures

ROOT = Path(plures.__file__).parent
HOME = ROOT.parent.parent
PAPERS = HOME / "papers"

LAYERS = (
    ("errors", "docstrings", "_version", "recipe"),
    ("types",),
    ("tree", "keys", "registry", "wording", "method"),
    ("local", "aggregate", "models", "moreau"),
    ("wrap",),
    ("methods", "channel", "attacks", "data", "solvers"),
    ("personalize",),
    ("builders",),
    ("engine",),
    ("study", "contract"),
    ("report",),
    ("app",),
    ("advise",),  # above app: advice runs studies in folders of their own, and names the study to run
    ("cli",),
    ("__init__", "__main__"),
    ("papers",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

NOT_DRAWN = {"_version", "__init__", "__main__"}


def diagram() -> str:
    """The layers as text, highest first, one line each."""
    lines = ["  ".join(name for name in names if name not in NOT_DRAWN) for names in reversed(LAYERS)]
    return "\n".join(line for line in lines if line)


def files() -> list[Path]:
    """Every file of the package and of the papers, but for tests."""
    papers = [path for path in PAPERS.rglob("*.py") if "tests" not in path.parts and "results" not in path.parts]
    return sorted([*ROOT.rglob("*.py"), *papers])


def part_of(path: Path) -> str:
    """The part of the house that a file belongs to."""
    if path.is_relative_to(ROOT):
        return path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "papers"


def named(path: Path, node: ast.AST | None = None) -> str:
    """A file, or a line of it, as an editor finds it."""
    line = "" if node is None else f":{node.lineno}"  # type: ignore[attr-defined]
    return f"{path.relative_to(HOME)}{line}"


@cache
def parsed(path: Path) -> ast.Module:
    """The file's syntax tree, parsed once for all tests."""
    return ast.parse(path.read_text())


def imports_of(path: Path) -> list[tuple[str, ast.stmt, bool]]:
    """(module, statement, whether at the top of the file) of every import."""
    found: list[tuple[str, ast.stmt, bool]] = []
    tree = parsed(path)
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "plures" else [base]
            found += [(name, node, id(node) in top) for name in names]
    return found
