"""What the site needs beyond the pages of docs/: pages made from the registry, and links that lead somewhere on it.

Pages stay as they are for whoever reads them in the repository. When the site is built, links to folders lead to lists of
their files, links to benchmarks and examples to pages made of these, and lists are set off as the site's Markdown wants it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection
from pathlib import Path
from posixpath import dirname, relpath

from cards import Card, all_cards
from method_pages import FAMILIES, all_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from reference_pages import reference_pages

from plures.registry import Entry

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
WITH_METHODS = ("choosing.md", "glossary.md", "index.md")  # pages in which the name of a method leads to its page
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")
EXAMPLES = {".py": "python", ".toml": "toml"}
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"(?:\*|-|\d+\.) ")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and name all pages in the navigation."""
    cards = all_cards()
    for place, text in {
        **pages_of_methods(cards),
        **reference_pages(),
        **benchmark_pages(),
        **example_pages(),
        **assets(),
    }.items():
        files.append(File.generated(config, place, content=text))
    for place, path in results().items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    for place, text in folder_pages().items():
        files.append(File.generated(config, place, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    config.nav = filled(config.nav, cards)
    places = [one.src_uri for one in files.documentation_pages() if one.inclusion.is_in_nav()]
    unnamed = sorted(set(places) - set(named(config.nav)))
    if unnamed:
        config.nav.append({"More": unnamed})
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page as the site wants it."""
    place = page.file.src_uri
    text = outside_code(markdown, lambda words: plain_bars(spaced(relinked(words, place))))
    if place not in WITH_METHODS:
        return text
    known = {Path(one.src_uri).stem for one in files.documentation_pages() if dirname(one.src_uri) == "methods"}
    return outside_code(text, lambda words: with_methods(words, known))


def pages_of_methods(cards: list[Card]) -> dict[str, str]:
    """A page for every method and personalizer, and one that lists them."""
    return {f"methods/{name}": text for name, text in all_pages(cards, mentions).items()}


def mentions(entry: Entry) -> list[tuple[str, str]]:
    """(title, link) of the pages of docs/ that name an entry."""
    name = re.compile(rf"`(?:[^`\n]*\|)?{entry.name}[:`|]")
    pages = [(path, path.read_text()) for path in sorted(DOCS.glob("*.md")) if path.name not in WITH_METHODS]
    return [(title_of(text), f"../{path.name}") for path, text in pages if name.search(text)]


def benchmark_pages() -> dict[str, str]:
    """The tables of benchmarks/."""
    return {f"benchmarks/{path.name}": path.read_text() for path in sorted((ROOT / "benchmarks").glob("*.md"))}


def example_pages() -> dict[str, str]:
    """The programs and studies of examples/, each with what it says of itself."""
    found = {}
    for path in sorted(path for path in (ROOT / "examples").iterdir() if path.suffix in EXAMPLES):
        text = path.read_text()
        said = f"{ast.get_docstring(ast.parse(text))}\n\n" if path.suffix == ".py" else ""
        found[f"examples/{path.stem}.md"] = f"# {path.name}\n\n{said}```{EXAMPLES[path.suffix]}\n{text}```\n"
    return found


def results() -> dict[str, Path]:
    """The tables and pictures of the papers: those of papers/three_approaches/results are in three-approaches/."""
    paths = sorted(path for path in (ROOT / "papers").glob("*/results/*") if path.is_file())
    return {f"{paper_of(path.parent)}/{path.name}": path for path in paths}


def paper_of(results: Path) -> str:
    """The name of a paper's page, from its folder of results."""
    return results.parent.name.replace("_", "-")


def folder_pages() -> dict[str, str]:
    """A list of files for every folder that has no page of its own: of docs/, and of the papers' results."""
    folders = {path.parent for path in DOCS.glob("*/*") if path.parent.name != "site"}
    bare = {folder.name: folder for folder in folders if not (folder / "index.md").exists()}
    papers = {paper_of(folder): folder for folder in (ROOT / "papers").glob("*/results")}
    return {f"{name}/index.md": listing(name, folder) for name, folder in sorted({**bare, **papers}.items())}


def listing(name: str, folder: Path) -> str:
    """The files of a folder with their sizes."""
    text = (DOCS / f"{name}.md").read_text() if (DOCS / f"{name}.md").exists() else ""
    about = f"What [{title_of(text)}](../{name}.md) is made of.\n\n" if text else ""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    rows = [f"| [{path.name}]({path.name}) | {path.stat().st_size / 1000:,.1f} |" for path in files]
    return f"# Files of {name}\n\n{about}| file | kB |\n|---|---|\n" + "\n".join(rows) + "\n"


def assets() -> dict[str, str]:
    """What the pages load."""
    names = {"assets/iframe-worker.js": "worker.js", "assets/site.css": "site.css"}
    return {place: (DOCS / "site" / name).read_text() for place, name in names.items()}


def title_of(text: str) -> str:
    """The first heading of a page."""
    return text.partition("\n")[0].removeprefix("# ")


def filled(nav: list, cards: list[Card]) -> list:
    """The navigation with made pages at their places: ``methods``, ``reference``, ``benchmarks`` and ``examples`` stand for them."""
    by_family = {name: [f"methods/{one.entry.name}.md" for one in cards if one.family == name] for name in FAMILIES}
    made = {
        "methods": ["methods/index.md", *({name: places} for name, places in by_family.items() if places)],
        "benchmarks": list(benchmark_pages()),
        "examples": list(example_pages()),
        "reference": list(reference_pages()),
    }
    return _at_their_places(nav, made)


def _at_their_places(nav: list, made: dict[str, list]) -> list:
    def below(one: str | list) -> str | list:
        return made.get(one, one) if isinstance(one, str) else _at_their_places(one, made)

    return [one if isinstance(one, str) else {title: below(inner) for title, inner in one.items()} for one in nav]


def named(nav: list | str) -> list[str]:
    """All places that a navigation names."""
    if isinstance(nav, str):
        return [nav]
    parts = [one.values() if isinstance(one, dict) else [one] for one in nav]
    return [place for some in parts for one in some for place in named(one)]


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """The page with everything but its code changed."""
    return "".join(part if part.startswith("```") else change(part) for part in FENCE.split(markdown))


def relinked(words: str, place: str) -> str:
    """Links that lead to what stands for folders, benchmarks and examples on the site; what is not on it is only named."""
    here = (DOCS if not place.startswith(("benchmarks/", "examples/")) else ROOT) / dirname(place)

    def lead(link: re.Match) -> str:
        path = (here / link[2]).resolve()
        if not path.exists():
            return link[0]
        there = place_of(path)
        return f"[{link[1]}]({relpath(there, dirname(place) or '.')}{link[3] or ''})" if there else link[1]

    return LINK.sub(lead, words)


def place_of(path: Path) -> str | None:
    """Where a file or folder of the repository stands on the site; None if it is not there."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix() + ("/index.md" if path.is_dir() else "")
    if path.name == "results" and path.parents[1] == ROOT / "papers":
        return f"{paper_of(path)}/index.md"
    if path.parent.name == "results" and path.parents[2] == ROOT / "papers":
        return f"{paper_of(path.parent)}/{path.name}"
    folder, known = path.parent, {ROOT / "benchmarks": (".md",), ROOT / "examples": EXAMPLES}
    if path.suffix in known.get(folder, ()):
        return path.relative_to(ROOT).with_suffix(".md").as_posix()
    return None


def spaced(words: str) -> str:
    """A blank line before every list: without it, the site takes its items for words."""
    found, in_list = list[str](), False
    for line in words.split("\n"):
        if ITEM.match(line) and not in_list and found and found[-1].strip():
            found.append("")
        in_list = bool(ITEM.match(line)) or (in_list and (not line or line.startswith(" ") or bool(found[-1])))
        found.append(line)
    return "\n".join(found)


def plain_bars(words: str) -> str:
    """Bars within code as they are: the site knows that they end no cell of a table, and would show the backslash."""
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\|", "|"), words)


def with_methods(words: str, known: Collection[str]) -> str:
    """Names of methods in code as links to their pages; those that are links already stay."""

    def lead(code: re.Match) -> str:
        name = code[1].split("|")[-1].split(":")[0]
        return f"[{code[0]}](methods/{name}.md)" if name in known else code[0]

    return re.sub(r"(?<!\[)`([^`\s]+)`(?!\])", lead, words)
