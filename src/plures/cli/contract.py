"""``plures contract``: the checks of the contract on methods of your own, or on registered ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from plures.cli.terminal import console, in_one_line, own_mistake
from plures.errors import BadFile, BadValue

if TYPE_CHECKING:
    from plures.contract import Bench, Subject


def contract_command(
    subject: Annotated[
        str, typer.Argument(help="A Python file with methods of your own, or the name of a method.")
    ],
) -> None:
    """Check that methods keep the contract: those of a file, or a registered one. Exits 0 only if all checks pass."""
    from plures.contract import CHECKS, Bench

    failed = 0
    for one in _subjects(subject):
        bench = Bench(one)
        for check in CHECKS:
            problem = _problem(check, bench)
            failed += problem is not None
            mark = "[green]ok[/]  " if problem is None else "[red]fails[/]"
            console.print(f"{one.name}: {mark} {check.__name__.replace('_', ' ')}{escape(problem or '')}")
        if (row := _row(bench, failed)) is None:
            continue
        sizes = ", ".join(f"{name} {size:,}" for name, size in row.items() if size)
        console.print(f"{one.name}: bytes of a message on the test world: {sizes}", highlight=False)
    if failed:
        raise typer.Exit(1)


def _problem(check: Callable[[Bench], None], bench: Bench) -> str | None:
    """What a check objects to, or what a method raises in it; None if all is well."""
    from plures.contract import ContractBroken

    try:
        check(bench)
    except ContractBroken as error:
        return f": {error}" if str(error) else ""
    except Exception as error:  # whatever a method of somebody else's raises
        return f": {own_mistake(error) or in_one_line(error)}"
    return None


def _row(bench: Bench, failed: int) -> dict[str, int] | None:
    """The bytes of messages; None for a method that fails in telling them too."""
    from plures.contract import traffic_row

    try:
        return traffic_row(bench)
    except Exception:
        if failed:
            return None
        raise


def _subjects(subject: str) -> list[Subject]:
    """What is to be checked: all methods and personalizers of a file, or the one of that name."""
    from plures.contract import subjects
    from plures.registry import METHODS, PERSONALIZERS, import_file

    if not subject.endswith(".py"):
        path = Path(subject)
        if (
            subject not in METHODS
            and subject not in PERSONALIZERS
            and (path.exists() or path.suffix or "/" in subject)
        ):
            raise BadFile(f"{subject} is not a Python file; give one that ends in .py, or the name of a method")
        known = {one.entry.name: one for one in subjects()}
        entry = METHODS[subject] if subject not in PERSONALIZERS else PERSONALIZERS[subject]
        return [known[entry.name]]
    names = {entry.name for entry in import_file(Path(subject))}
    found = [one for one in subjects() if one.entry.name in names]
    if not found:
        raise BadValue(
            "file", subject, "a Python file that registers a method or a personalizer (@method(title=...))"
        )
    return found
