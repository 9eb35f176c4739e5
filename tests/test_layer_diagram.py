"""The three pages that show the layers show the table that the tests hold the code to."""

import importlib.util
from pathlib import Path

import pytest
from layers import LAYERS, NOT_DRAWN

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("layers_script", ROOT / "docs" / "site" / "layer_diagram.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/design.md"])
def test_pages_show_the_layers_as_they_are(script, page):
    assert script.shown(ROOT / page) == script.block(), "run `make layers`"


def test_the_layout_of_the_readme_names_every_part():
    layout = (ROOT / "README.md").read_text().split("## Layout")[1].split("\n## ")[0]
    parts = {name for names in LAYERS for name in names if name not in NOT_DRAWN}

    assert [name for name in sorted(parts) if f"{name}/" not in layout and f"{name}.py" not in layout] == []
