"""What stands in a text for people: its blocks of code, its commands, and whether these can be parsed."""

import re
import shlex

import typer

from plures.cli import app

COMMAND = typer.main.get_command(app)


def blocks(text: str, language: str) -> list[tuple[int, str]]:
    """(line number, text) of every block of exactly this language."""
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text[: one.start(1)].count("\n"), one[1]) for one in found]


def commands(text: str) -> list[str]:
    """The lines of all shell blocks, comments and empty lines left out."""
    lines = "\n".join(block for _, block in blocks(text, "sh")).replace("\\\n", " ").splitlines()
    return [line for line in lines if shlex.split(line, comments=True)]


def parse_line(line: str) -> None:
    """Parse a line of a shell down to its last word without running it, if it is a ``plures`` command."""
    first, *words = shlex.split(line, comments=True)
    if first == "plures":
        parse(words)


def parse(words: list[str]) -> None:
    """Parse a ``plures`` command down to its last word without running it; a mistake raises."""
    command, name, rest = COMMAND, "plures", words
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            raise KeyError(f"{name} has no command {rest[0]}")
        command, name, rest = command.commands[rest[0]], rest[0], rest[1:]
    with command.make_context(name, list(rest)):
        pass
