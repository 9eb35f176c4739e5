"""The house in numbers: measures a checkout and writes the table of docs/design.md, before and after.

    make measure                                   this checkout; writes benchmarks/measure.json and the table
    make measure TEST_SECONDS=640                  the same, with the time that `make test` took
    python benchmarks/measure.py --root OLD --as before     another checkout, as the column to compare with

Definitions. Code: lines without blanks, comments, docstrings. Long function: more than 60 lines without its docstring.
Option without a sentence: a keyword of a registered factory (all but ``plan``) whose name stands in no docstring of the
factory, its file, or the value type it is a field of. Files to read for a method: its file and what it imports of
methods/ and of the helpers of methods (wrap/, moreau.py, aggregate/averaging.py; once survey, parting, norms, envelope), to the
end, in lines of code. Duplication: share of the code of methods/, without imports, in runs of five lines that stand in another file too.
Times are CPU seconds of one process, the least of three.
"""

from __future__ import annotations

import argparse
import ast
import collections
import io
import json
import os
import re
import resource
import subprocess
import sys
import tokenize
from pathlib import Path

HERE = Path(__file__).parents[1]
KEPT, PAGE = HERE / "benchmarks" / "measure.json", HERE / "docs" / "design.md"
BEGIN, END = "<!-- measured: written by make measure -->", "<!-- end of measured -->"
READ = ("fedavg", "ditto", "hypcluster", "fedclup", "federated_clustering", "lgmix")
HELPERS = ("methods", "wrap", "moreau", "aggregate.averaging", "survey", "parting", "norms", "envelope")
DECORATORS = {"method", "personalizer", "model", "dataset", "partitioner", "channel", "attack", "world"}
STARTS = {
    "plures --help": ["--help"],
    "plures --version": ["--version"],
    "a wrong word": ["comprae"],
    "plures methods": ["methods"],
}
LONG, RUN = 60, 5


class Checkout:
    """The source files of a checkout, parsed."""

    def __init__(self, root: Path) -> None:
        self.root, self.package = root, root / "src" / "plures"
        self.files = sorted(self.package.rglob("*.py"))
        self.trees = {path: ast.parse(path.read_text()) for path in self.files}
        self.modules = {self.name_of(path): path for path in self.files}

    def name_of(self, path: Path) -> str:
        parts = path.relative_to(self.package).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def code(self, path: Path, *, imports: bool = True) -> list[str]:
        """The lines of code of a file, white space folded."""
        text, left_out, held = path.read_text(), set(), set()
        for node in ast.walk(self.trees[path]):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if ast.get_docstring(node, clean=False) is not None:
                    left_out |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
            elif not imports and isinstance(node, ast.Import | ast.ImportFrom):
                left_out |= set(range(node.lineno, node.end_lineno + 1))
        empty = (
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        )
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in empty:
                held |= set(range(token.start[0], token.end[0] + 1))
        lines = text.splitlines()
        return [" ".join(lines[number - 1].split()) for number in sorted(held - left_out)]

    def imports_of(self, path: Path) -> set[str]:
        """The modules of the package that a file imports, anywhere in it."""
        found = set()
        for node in ast.walk(self.trees[path]):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "plures":
                base = node.module[len("plures.") :]
                for alias in node.names:
                    full = f"{base}.{alias.name}".strip(".")
                    found |= {full if full in self.modules else base} & set(self.modules)
        return found

    def functions(self) -> list[tuple[Path, ast.FunctionDef]]:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        return [
            (path, node) for path, tree in self.trees.items() for node in ast.walk(tree) if isinstance(node, kinds)
        ]

    def classes(self) -> list[tuple[Path, ast.ClassDef]]:
        return [
            (path, one)
            for path, tree in self.trees.items()
            for one in ast.walk(tree)
            if isinstance(one, ast.ClassDef)
        ]


def long_functions(checkout: Checkout) -> list[str]:
    """Functions of more than 60 lines, their docstrings not counted."""
    found = []
    for path, node in checkout.functions():
        told = node.body[0] if ast.get_docstring(node) else None
        size = node.end_lineno - node.lineno + 1 - (told.end_lineno - told.lineno + 1 if told else 0)
        if size > LONG:
            found.append(f"{checkout.name_of(path)}.{node.name} {size}")
    return found


def repeated_classes(checkout: Checkout) -> list[str]:
    """Public class names that are defined more than once."""
    names = collections.Counter(node.name for _, node in checkout.classes() if not node.name.startswith("_"))
    return sorted(name for name, times in names.items() if times > 1)


def fields_of_method(checkout: Checkout) -> int:
    """The fields of the class ``Method``."""
    (node,) = (node for _, node in checkout.classes() if node.name == "Method")
    return sum(isinstance(one, ast.AnnAssign) for one in node.body)


def options(checkout: Checkout) -> dict[str, tuple[int, list[str]]]:
    """By kind of entry: how many options there are, and those without a sentence."""
    values = {node.name: node for _, node in checkout.classes()}
    found: dict[str, tuple[int, list[str]]] = {}
    for path, node in checkout.functions():
        kinds = [name for name in map(_called, node.decorator_list) if name in DECORATORS]
        if not kinds:
            continue
        told = f"{ast.get_docstring(node) or ''}\n{ast.get_docstring(checkout.trees[path]) or ''}"
        number, silent = found.get(kinds[0], (0, []))
        for option in node.args.kwonlyargs:
            if option.arg == "plan":
                continue
            value = values.get(ast.unparse(option.annotation)) if option.annotation else None
            parts = (
                [value, *(values[base.id] for base in value.bases if getattr(base, "id", "") in values)]
                if value
                else []
            )
            fields = [one.target.id for part in parts for one in part.body if isinstance(one, ast.AnnAssign)]
            words = "\n".join([told, *(ast.get_docstring(part) or "" for part in parts)])
            for name in fields or [option.arg]:
                number += 1
                if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", words):
                    silent = [*silent, f"{node.name}.{name}"]
        found[kinds[0]] = (number, silent)
    return found


def _called(decorator: ast.expr) -> str:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return name.id if isinstance(name, ast.Name) else name.attr if isinstance(name, ast.Attribute) else ""


def reading(checkout: Checkout, method: str) -> tuple[int, int]:
    """(files, lines of code) that one reads to understand a method."""
    start = [name for name in checkout.modules if re.fullmatch(rf"methods\.(\w+\.)?{method}", name)]
    seen, left = set(), start
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            found = checkout.imports_of(checkout.modules[name])
            left += [one for one in found if any(f"{one}.".startswith(f"{helper}.") for helper in HELPERS)]
    return len(seen), sum(len(checkout.code(checkout.modules[name])) for name in seen)


def duplication(checkout: Checkout) -> float:
    """Percent of the code of methods/ in runs of five lines that stand in another file too."""
    places, total = collections.defaultdict(list), 0
    for path in sorted((checkout.package / "methods").rglob("*.py")):
        lines = checkout.code(path, imports=False)
        total += len(lines)
        for first in range(len(lines) - RUN + 1):
            places[tuple(lines[first : first + RUN])].append((path, first))
    common = [where for where in places.values() if len({path for path, _ in where}) > 1]
    copied = {(path, first + more) for where in common for path, first in where for more in range(RUN)}
    return round(100 * len(copied) / total, 1)


def contract(checkout: Checkout) -> dict[str, int]:
    """Pairs of a check and a subject that ``make test`` runs, and all that there are."""
    ran, every = (_collected(checkout, marks) for marks in (["-m", "not slow"], []))
    return {"run by make test": ran, "all": every}


def _collected(checkout: Checkout, marks: list[str]) -> int:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        *marks,
    ]
    path = checkout.root / "tests" / "contract" / "test_contract.py"
    done = subprocess.run(
        [*command, str(path)],
        cwd=checkout.root,
        env=_environment(checkout),
        capture_output=True,
        text=True,
        check=False,
    )
    listed = re.findall(r"^\S+test_contract\.py: (\d+)$", done.stdout, re.MULTILINE)
    return sum(map(int, listed))


def _environment(checkout: Checkout) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout.root / "src"), "JAX_PLATFORMS": "cpu"}


def cpu_seconds(checkout: Checkout, code: str, *words: str) -> float:
    """CPU seconds of a process that runs some Python, the least of three."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", code, *words]
        subprocess.run(command, cwd=checkout.root, env=_environment(checkout), capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return round(min(times), 2)


def measure(checkout: Checkout, test_seconds: float | None) -> dict[str, object]:
    """All rows of the table, by name."""
    told = options(checkout)
    silent = {kind: f"{len(names)} of {number}" for kind, (number, names) in sorted(told.items())}
    rows: dict[str, object] = {
        "code lines in the wheel": sum(len(checkout.code(path)) for path in checkout.files),
        "files in the wheel": len(checkout.files),
        "fields of `Method`": fields_of_method(checkout),
        "functions over 60 lines": len(long_functions(checkout)),
        "public class names defined twice or more": len(repeated_classes(checkout)),
    }
    for kind, text in silent.items():
        rows[f"options without a sentence: {kind}"] = text
    for method in READ:
        files, lines = reading(checkout, method)
        rows[f"to read for `{method}`"] = f"{files} files, {lines:,} lines"
    rows["duplication in methods"] = f"{duplication(checkout)} %"
    checks = contract(checkout)
    rows["contract checks run by `make test`"] = f"{checks['run by make test']} of {checks['all']}"
    for name, words in STARTS.items():
        rows[f"start: {name}"] = f"{cpu_seconds(checkout, 'from plures.cli import main; main()', *words)} s"
    rows["`import plures`"] = f"{cpu_seconds(checkout, 'import plures')} s"
    if test_seconds is not None:
        rows["`make test` on two cores"] = f"{test_seconds / 60:.0f} min"
    return rows


def table(before: dict[str, object], after: dict[str, object]) -> str:
    """The rows as Markdown, first those that both have."""
    lines = ["| | before (0.1) | now |", "|---|---|---|"]
    for name in [*after, *(name for name in before if name not in after)]:
        lines.append(f"| {name} | {_text(before.get(name))} | {_text(after.get(name))} |")
    return "\n".join(lines)


def _text(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def write(kept: dict[str, dict[str, object]]) -> None:
    """Keep the numbers, and put the table between its marks."""
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    PAGE.write_text(f"{head}{BEGIN}\n\n{table(kept.get('before', {}), kept.get('after', {}))}\n\n{END}{tail}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HERE, help="the checkout to measure")
    parser.add_argument("--as", dest="column", choices=("before", "after"), default="after")
    parser.add_argument("--test-seconds", type=float, help="what `make test` took; otherwise the last known stays")
    given = parser.parse_args()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    last, name = kept.get(given.column, {}), "`make test` on two cores"
    checkout = Checkout(given.root.resolve())
    now = measure(checkout, given.test_seconds)
    kept[given.column] = {**now, **({name: last[name]} if given.test_seconds is None and name in last else {})}
    write(kept)
    print(table(kept.get("before", {}), kept.get("after", {})))
    for found in (
        long_functions(checkout),
        repeated_classes(checkout),
        *(names for _, names in options(checkout).values()),
    ):
        if found:
            print("\n" + "\n".join(found))


if __name__ == "__main__":
    main()
