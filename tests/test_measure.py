"""The script that measures the house counts right, and what it measures stays within its bounds."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def measure():
    spec = importlib.util.spec_from_file_location("measure_script", ROOT / "benchmarks" / "measure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def toy(measure, tmp_path):
    def checkout(**files):
        package = tmp_path / "src" / "plures"
        for name, text in files.items():
            path = package / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return measure.Checkout(tmp_path)

    return checkout


def test_blanks_comments_and_docstrings_are_no_code(toy):
    house = toy(
        one='"""Words.\n\nMore."""\n\nimport os\n\n# why\ndef f():\n    """Words."""\n    return [\n        1,\n    ]\n'
    )

    assert house.code(house.files[0]) == ["import os", "def f():", "return [", "1,", "]"]
    assert house.code(house.files[0], imports=False) == ["def f():", "return [", "1,", "]"]


def test_an_option_needs_a_word_in_a_docstring(toy, measure):
    house = toy(
        one="class Shared:\n    'weighting is told.'\n    weighting: int\n    silent: int\n",
        two="@method(title='A')\ndef a(model, *, plan, lam, mu, shared: Shared):\n    '''lam holds models near.'''\n",
    )

    assert measure.options(house) == {"method": (4, ["a.mu", "a.silent"])}


def test_reading_a_method_follows_its_helpers_to_the_end(toy, measure):
    house = toy(
        methods__a="from plures.methods.b import x\nfrom plures.local import y\n",
        methods__b="from plures.wrap.c import z\nx = 1\n",
        wrap__c="z = 1\n",
        local="y = 1\n",
    )

    assert measure.reading(house, "a") == (3, 5)


def test_five_lines_that_stand_in_two_files_are_copied(toy, measure):
    same = "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\n"
    house = toy(methods__a=same, methods__b=same + "f = 6\ng = 7\nh = 8\ni = 9\nj = 10\n")

    assert measure.duplication(house) == pytest.approx(100 * 10 / 15, abs=0.1)


def test_the_house_stays_within_its_bounds(measure):
    house = measure.Checkout(ROOT)

    assert measure.fields_of_method(house) <= 16
    assert measure.duplication(house) <= 3.0


def test_the_table_stands_in_the_design(measure):
    page = measure.PAGE.read_text()

    assert page.count(measure.BEGIN) == page.count(measure.END) == 1
    assert "| fields of `Method` | 30 |" in page
