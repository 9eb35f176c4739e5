"""The walks of docs/life-of-a-round.md are true: every function they name stands in the file they link to."""

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "life-of-a-round.md"
LINKS = re.findall(r"\[`([\w.]+)`\]\((\.\./src/[\w/]+\.py)\)", PAGE.read_text())


def defined_in(path):
    """The names of functions, classes and their methods in a file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef))
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name


def test_the_page_walks_through_files_of_the_engine_and_the_study():
    folders = {Path(link).parts[3] for _, link in LINKS}

    assert len(LINKS) > 30
    assert {"engine", "study", "report"} <= folders


@pytest.mark.parametrize(("name", "link"), sorted(set(LINKS)), ids=lambda value: Path(value).stem)
def test_a_named_function_stands_where_the_page_says(name, link):
    assert name in defined_in(PAGE.parent / link)


def test_a_walk_names_no_source_without_a_link_to_a_function():
    """A link to a file that names no function would not be checked."""
    every = re.findall(r"\]\((\.\./src/[^)]+)\)", PAGE.read_text())

    assert len(every) == len(LINKS)
