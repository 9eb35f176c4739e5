"""The command line. Exit codes: 0 fine, 1 the user's mistake in one line, 2 a defect of ours."""

from __future__ import annotations

import sys
import traceback

from plures.cli.commands import app
from plures.cli.terminal import own_mistake
from plures.errors import UserError


def main() -> None:
    """The entry point of the ``plures`` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of one command."""
    try:
        code = app(arguments, prog_name="plures", standalone_mode=False, obj=tuple(arguments))
    except BrokenPipeError:
        return 0
    except (Exception, KeyboardInterrupt) as error:
        code, said = _exit(error)
        print(said, file=sys.stderr)
        return code
    if code == STOPPED[0]:
        print(STOPPED[1], file=sys.stderr)
    return code if isinstance(code, int) else 0


STOPPED = 130, "plures: stopped"


def _exit(error: BaseException) -> tuple[int, str]:
    """(exit code, what to say): what the argument parser objects to is the user's, and their own files; a full disk too; the rest is ours."""
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        return STOPPED
    if type(error).__name__ == "NoArgsIsHelpError":
        return 1, str(error)
    if hasattr(error, "format_message"):
        return 1, f"plures: {error.format_message()} (see {_path_of(error)} --help)"
    if isinstance(error, UserError | OSError):
        return 1, f"plures: {error}"
    if said := own_mistake(error):
        return 1, f"plures: {said}"
    traceback.print_exception(error)
    return 2, "plures: this is a defect of plures; the lines above say where"


def _path_of(error: BaseException) -> str:
    """The command that the argument parser was reading."""
    context = getattr(error, "ctx", None)
    return "plures" if context is None else str(context.command_path)
