"""Short files and functions, and names that say what a thing is. Every test walks all files and names every offender."""

import ast
import importlib
import re
from collections import defaultdict
from pathlib import Path
from types import ModuleType

from layers import ROOT, files, named, parsed

MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


def package() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def functions() -> list[tuple[Path, Function]]:
    return [(path, node) for path in files() for node in ast.walk(parsed(path)) if isinstance(node, Function)]


def test_files_stay_short():
    lengths = {path: len(path.read_text().splitlines()) for path in files()}
    offenders = [f"{named(path)}: {size} lines" for path, size in lengths.items() if size > MOST_LINES_OF_A_FILE]

    assert not offenders, "\n".join(offenders)


def test_functions_fit_a_screen():
    offenders = []
    for path, node in functions():
        body = node.body[1:] if ast.get_docstring(node) else node.body
        lines = node.end_lineno - body[0].lineno + 1 if body else 0
        if lines > MOST_LINES_OF_A_FUNCTION:
            offenders.append(f"{named(path, node)}: {node.name} has {lines} lines")

    assert not offenders, "\n".join(offenders)


def test_no_public_class_name_exists_twice():
    places = defaultdict(list)
    for path in package():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(named(path, node))
    offenders = [f"{name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]

    assert not offenders, "\n".join(offenders)


def test_no_module_is_hidden_behind_a_function_of_its_package():
    """``import plures.a.b as m`` gives a module, whatever the package exports."""
    offenders = []
    for path in package():
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] in ("__init__", "__main__"):
            continue
        parent = importlib.import_module(".".join(["plures", *parts[:-1]]))
        importlib.import_module(".".join(["plures", *parts]))
        if not isinstance(getattr(parent, parts[-1]), ModuleType):
            offenders.append(f"{named(path)} is hidden behind {parent.__name__}.{parts[-1]}")

    assert not offenders, "\n".join(offenders)


IRREGULAR = {
    "built", "chosen", "dealt", "drawn", "found", "given", "heard", "held", "kept", "known", "laid", "led", "left",
    "made", "met", "said", "seen", "sent", "shown", "taken", "told", "written",
}  # fmt: skip
NO_PARTICIPLES = {
    "bring", "embed", "feed", "king", "need", "nothing", "ring", "seed", "shed", "sing", "speed", "spring", "string", "thing",
}  # fmt: skip

# What a function does to the world: it prints, writes, removes, or plays rounds.
ACTS = {
    "chmod", "copyfile", "mkdir", "print", "rename", "replace_file", "rmdir", "rmtree", "run_study", "run_trial",
    "savefig", "save", "save_file", "symlink_to", "touch", "unlink", "write", "write_bytes", "write_csv",
    "write_image", "write_json", "write_parquet", "write_text", "writelines",
}  # fmt: skip


# A name that says a whole sentence, such as a check's, has its verb elsewhere.
VERBS = {"agree", "are", "do", "does", "equals", "hold", "is", "stay", "stays"}


def is_participle(name: str) -> bool:
    first, *rest = name.lstrip("_").split("_")
    if first in NO_PARTICIPLES or VERBS & set(rest):
        return False
    return first in IRREGULAR or re.search(r"(?<!e)ed$|ing$", first) is not None


def own_nodes(function: Function) -> list[ast.AST]:
    """What stands in a function itself, not in functions inside it."""
    found, todo = [], list(function.body)
    while todo:
        node = todo.pop()
        found.append(node)
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(node)
    return found


def deeds(function: Function) -> list[str]:
    """What in a function is more than making a value."""
    found = []
    returned = None if function.returns is None else ast.unparse(function.returns)
    if returned in ("None", "NoReturn"):
        found.append(f"returns {returned}")
    if any(ast.unparse(one).split(".")[-1] in ("contextmanager", "fixture") for one in function.decorator_list):
        found.append("is a context")
    for node in own_nodes(function):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        mode = [one.value for one in node.args[1:2] if isinstance(one, ast.Constant)]
        if called in ACTS or (called == "open" and mode and set(str(mode[0])) & set("wax")):
            found.append(f"calls {called}")
    return found


def test_a_participle_names_a_value_and_does_nothing():
    offenders = []
    for path, node in functions():
        what = deeds(node) if is_participle(node.name) else []
        if what:
            offenders.append(f"{named(path, node)}: {node.name} {', '.join(sorted(set(what)))}")

    assert not offenders, "\n".join(offenders)


def test_what_counts_as_a_deed():
    """The test above is able to fail, and leaves alone what only makes a value."""
    tree = ast.parse(
        "def played(x) -> int:\n    print(x)\n    return x\n"
        "def kept(x) -> None:\n    x.a = 1\n"
        "def opened(path) -> str:\n    return open(path, 'w').name\n"
        "def mixed(a, b) -> float:\n    return open('f').read() + (a + b) / 2\n"
    )

    assert [deeds(one) for one in tree.body] == [["calls print"], ["returns None"], ["calls open"], []]
    assert [is_participle(one) for one in ("tuned", "_told", "scoring", "need", "string", "tune", "seed_of")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip
