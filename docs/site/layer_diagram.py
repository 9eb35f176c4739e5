"""Writes the diagram of the layers into the pages that show it: `make layers`.

The table of the layers stands in tests/helpers/layers.py, where the tests hold the code to it.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from layers import diagram  # noqa: E402

PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "design.md")
BEGIN, END = "<!-- layers: written by make layers -->\n", "<!-- end of layers -->"


def block() -> str:
    """The diagram as the pages have it."""
    return f"\n```text\n{diagram()}\n```\n\n"


def shown(page: Path) -> str:
    """What stands between the marks of a page."""
    return page.read_text().split(BEGIN)[1].split(END)[0]


def write() -> None:
    """Put the diagram between the marks of every page."""
    for page in PAGES:
        before, rest = page.read_text().split(BEGIN)
        page.write_text(before + BEGIN + block() + END + rest.split(END, 1)[1])


if __name__ == "__main__":
    write()
