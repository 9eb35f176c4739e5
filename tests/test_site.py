"""The documentation site: its pages about methods say what the registry says, what it cites stands where it says."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from cards import all_cards
from method_pages import FAMILIES, all_pages, as_markdown
from reference_pages import KINDS, reference_pages
from written import blocks, commands, parse_line

from plures.method import Method
from plures.registry import METHODS, PERSONALIZERS
from plures.report.options import formula_of, line_kind, option_rows

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
ENTRIES = [*METHODS.values(), *PERSONALIZERS.values()]

# Cards take seconds to make: one worker makes them once for all tests.
pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def cards():
    return {card.entry.name: card for card in all_cards()}


@pytest.fixture(scope="module")
def pages(cards):
    return all_pages(list(cards.values()), lambda entry: [("Somewhere", f"../{entry.name}-elsewhere.md")])


@pytest.fixture(scope="module")
def hooks():
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_method_and_personalizer_has_a_page_of_its_own(pages):
    assert len(pages) == 1 + len(METHODS) + len(PERSONALIZERS)
    for entry in ENTRIES:
        assert pages[f"{entry.name}.md"].startswith(f"# {entry.title}\n")


def test_the_contents_list_every_entry_once_and_in_a_family(pages, cards):
    listed = re.findall(r"^\| \[`(\w+)`\]\((\w+)\.md\)", pages["index.md"], re.MULTILINE)

    assert sorted(listed) == sorted((entry.name, entry.name) for entry in ENTRIES)
    assert {card.family for card in cards.values()} == set(FAMILIES)


def test_a_page_has_a_row_for_every_option_with_its_default_and_sentence(pages):
    for entry in ENTRIES:
        for option in option_rows(entry):
            rows = pages[f"{entry.name}.md"].splitlines()
            row = next(line for line in rows if line.startswith(f"| `{option.name}` |"))
            assert option.kind in row
            assert option.default in row
            assert row.endswith(f"| {as_markdown(option.sentence)} |")


def test_models_data_and_channels_have_pages_with_all_options():
    made = reference_pages()

    for name, kind in KINDS.items():
        for entry in kind.entries.values():
            (section,) = re.findall(rf"^## {entry.name}\n(.*?)(?=^## |\Z)", made[f"reference/{name}"], re.S | re.M)
            for option in option_rows(entry):
                assert f"| `{option.name}` | {option.kind} | `{option.default}` |" in section
    assert (
        "| `eval_every` | int or None | `None` | Rounds from one evaluation to the next"
        in made["reference/settings.md"]
    )


def test_a_page_shows_the_formulas_of_the_file_as_they_stand(pages):
    for entry in ENTRIES:
        shown = "\n".join(text for _, text in blocks(pages[f"{entry.name}.md"], "text"))
        for line in formula_of(entry).splitlines():
            if line_kind(line) == "formula":
                assert line.strip().replace("``", "") in shown


def test_papers_lead_to_their_pages(pages):
    hosts = {"arXiv": "https://arxiv.org/abs/", "OpenReview": "https://openreview.net/forum?id="}
    for entry in ENTRIES:
        if entry.paper:
            host, number = entry.paper.split(":")
            assert f"**Paper:** [{entry.paper}]({hosts[host]}{number})" in pages[f"{entry.name}.md"]


def test_degree_tags_limits_and_further_pages_are_named(pages):
    for entry in ENTRIES:
        text = pages[f"{entry.name}.md"]
        assert f"**Degree of collaboration:** `{entry.degree}`" in text if entry.degree else "**Degree" not in text
        assert all(f"**Tag** `{tag}`: " in text for tag in entry.tags)
        assert all(f"* {limit.text}: `" in text for limit in entry.limits)
        assert f"[Somewhere](../{entry.name}-elsewhere.md)" in text


def test_a_limit_tells_both_settings(pages):
    said = "`fedclup:lam=0.0,local=sgd` serves what [`local_only:newcomer_epochs=20`](local_only.md) serves"

    assert said in pages["fedclup.md"]


def test_programs_of_pages_build_the_method(pages):
    for entry in ENTRIES:
        ((_, text),) = blocks(pages[f"{entry.name}.md"], "python")
        found = {}
        exec(compile(text, f"{entry.name}.md", "exec", dont_inherit=True), found)
        assert isinstance(found["method"], Method)


def test_commands_of_pages_parse_and_name_the_entry(pages):
    for entry in ENTRIES:
        lines = commands(pages[f"{entry.name}.md"])
        assert len(lines) == (2 if entry.degree else 1)
        for line in lines:
            assert entry.name in line
            parse_line(line)


def test_traffic_is_in_sizes_of_the_model(cards):
    """A perceptron of 64 inputs, 64 hidden units and 10 classes: the body has 64 * 65 of its 64 * 65 + 65 * 10 numbers."""
    whole, body = 64 * 65 + 65 * 10, 64 * 65

    assert cards["fedavg"].training.sizes == {"join": 0, "down": 1, "up": 1, "answer": 0, "serve": 1}
    assert cards["local_only"].training.sizes["down"] == cards["local_only"].training.sizes["up"] == 0
    assert cards["fedper"].training.sizes["up"] == pytest.approx(body / whole)
    assert cards["finetune"].training.sizes == cards["fedavg"].training.sizes


def test_a_closing_round_with_everyone_does_not_make_training_one(pages):
    text = pages["hypcluster_auto.md"]

    assert "**Also in `rounds`:** 7 rounds before training and a closing round" in text
    assert "**Cohort:**" not in text


def test_sentences_hold_no_markup_by_accident():
    assert as_markdown("w_k * v_k <- ``a_b``, see [x], arXiv 2012.04221.") == (
        r"w\_k \* v\_k &lt;- `a_b`, see \[x\], [arXiv 2012.04221](https://arxiv.org/abs/2012.04221)."
    )


def test_formulas_apart_by_a_blank_line_stand_in_one_block():
    said = as_markdown("Words.\n\n    a = 1\n\n    b = 2\n\nMore\nwords.")

    assert said == "Words.\n\n```text\na = 1\n\nb = 2\n```\n\nMore words."


def evidence():
    """(text, linked pages) of every claim of the page on choosing: a row of a table, or an item of a list."""
    items = re.split(r"\n(?=\* |\| |\n)", (DOCS / "choosing.md").read_text())
    found = [(item, re.findall(r"\]\(([^)#]+\.md)", item)) for item in items]
    return [(item, links) for item, links in found if links and item.startswith(("* ", "| "))]


def test_numbers_on_choosing_stand_on_the_pages_they_cite():
    claims = evidence()

    assert len(claims) > 15
    for item, links in claims:
        cited = "\n".join((DOCS / link).read_text() for link in links)
        numbers = re.findall(r"(?<![\w=.:])[-+]?\d+\.\d+(?![\w])", item)
        assert [number for number in numbers if number not in cited] == [], item


def test_the_glossary_explains_every_word_of_the_style_guide():
    (words,) = re.findall(r"One word per idea: (.*)\.", (ROOT / "CONTRIBUTING.md").read_text())
    bold = {word for line in re.findall(r"^\| \*\*(.*?)\*\*", (DOCS / "glossary.md").read_text(), re.MULTILINE)
            for word in line.split(", ")}  # fmt: skip

    assert set(words.split(", ")) <= bold


def test_links_out_of_the_docs_lead_to_pages_of_the_site(hooks):
    text = "[a](../benchmarks/data.md) [b](../papers/fedclup/results/) [c](../examples/own_data.py#top) [d](../Makefile) [e](fedclup.md)"

    assert hooks.relinked(text, "choosing.md") == (
        "[a](benchmarks/data.md) [b](fedclup/index.md) [c](examples/own_data.md#top) d [e](fedclup.md)"
    )
    assert hooks.relinked("[a](../lgmix.md)", "heterogeneity/feature-shift.md") == "[a](../lgmix.md)"


def test_a_list_under_a_sentence_is_set_off(hooks):
    assert hooks.spaced("Words:\n* one\n  more\n* two\n\nWords") == "Words:\n\n* one\n  more\n* two\n\nWords"


def test_bars_in_code_of_a_table_lose_their_backslash(hooks):
    assert hooks.plain_bars(r"| `fedavg\|finetune` | a \| b |") == r"| `fedavg|finetune` | a \| b |"


def test_names_of_methods_lead_to_their_pages(hooks):
    said = hooks.with_methods(
        "`fedavg|finetune`, `ditto:lam=1`, `plures fuse`, [`fedavg`](x.md)", {"finetune", "ditto"}
    )

    assert said == (
        "[`fedavg|finetune`](methods/finetune.md), [`ditto:lam=1`](methods/ditto.md), `plures fuse`, [`fedavg`](x.md)"
    )


class Loaded(HTMLParser):
    """The addresses of all that a page loads by itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag != "a":
            self.found += [
                value for name, value in attributes if name in ("src", "href", "srcset", "data") and value
            ]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocs")

    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )

    built = sorted((tmp_path / "site").rglob("*.html"))
    assert len(built) > len(ENTRIES) + len(list(DOCS.rglob("*.md")))
    for path in built:
        page = Loaded()
        page.feed(path.read_text())
        assert [one for one in page.found if re.match(r"(\w+:)?//", one)] == [], path.name
