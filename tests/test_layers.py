"""Imports go downward only; no hidden randomness; ``jit`` belongs to the engine, the solvers and the contract suite.

Every test walks all files and names every offender.
"""

import ast

from layers import LEVEL, files, imports_of, named, parsed, part_of

import plures

OWN_LIBRARY = {"matplotlib": {"report", "advise", "papers"}, "plotly": {"report"}, "pydantic": {"app"}}
NEVER_IN_THE_CORE = {"polars", "pydantic", "plotly", "matplotlib"}

# The command that runs a paper finds it beside the package, if it is there.
FINDS_THE_PAPERS = "src/plures/cli/reproduce.py"


def test_imports_go_downward_only():
    offenders = []
    for path in files():
        here = part_of(path)
        for module, node, _ in imports_of(path):
            top, *below = module.split(".")
            if module.startswith("."):
                offenders.append(f"{named(path, node)}: a relative import")
            elif top == "papers" and here != "papers" and named(path) != FINDS_THE_PAPERS:
                offenders.append(f"{named(path, node)}: {here} must not import papers")
            elif top == "plures" and below and below[0] != here and LEVEL[below[0]] >= LEVEL[here]:
                offenders.append(f"{named(path, node)}: {here} must not import {module}")

    assert not offenders, "\n".join(offenders)


def test_heavy_libraries_stay_where_they_belong():
    offenders = []
    for path in files():
        here = part_of(path)
        for module, node, at_top in imports_of(path):
            library = module.split(".")[0]
            if here not in OWN_LIBRARY.get(library, {here}):
                offenders.append(f"{named(path, node)}: {library} belongs to {sorted(OWN_LIBRARY[library])}")
            if LEVEL[here] <= LEVEL["engine"] and at_top and library in NEVER_IN_THE_CORE:
                offenders.append(f"{named(path, node)}: {library} at import time")

    assert not offenders, "\n".join(offenders)


def test_randomness_is_a_key_and_jit_is_the_engines():
    offenders = []
    for path in files():
        for node in ast.walk(parsed(path)):
            text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if text.startswith(("np.random", "numpy.random", "random.")):
                offenders.append(f"{named(path, node)}: {text}")
            if text == "jax.jit" and part_of(path) not in ("engine", "solvers", "contract", "papers"):
                offenders.append(f"{named(path, node)}: jit")

    assert not offenders, "\n".join(offenders)


def test_modules_hold_no_state():
    """No ``global`` statement, and no lowercase module variable but registries and apps."""
    offenders = []
    for path in files():
        tree = parsed(path)
        offenders += [f"{named(path, node)}: global" for node in ast.walk(tree) if isinstance(node, ast.Global)]
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict | ast.List | ast.Set):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                wrong = [name for name in names if not name.isupper() and name != "__all__"]
                offenders += [f"{named(path, node)}: {name} is state of a module" for name in wrong]

    assert not offenders, "\n".join(offenders)


def test_the_public_face_is_complete():
    for name in plures.__all__:
        assert hasattr(plures, name)
