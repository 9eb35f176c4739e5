"""The command line. Exit codes: 0 fine, 1 the user's mistake in one line, 2 a defect of ours."""

from __future__ import annotations

import sys
import traceback

from plures.cli.commands import app
from plures.errors import UserError

__all__ = ["app", "main"]


def main() -> None:
    """The entry point of the ``plures`` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of one command."""
    try:
        code = app(arguments, prog_name="plures", standalone_mode=False, obj=tuple(arguments))
    except UserError as error:
        print(f"plures: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("plures: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:
        return _other(error)
    if code == 130:
        print("plures: stopped", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _other(error: Exception) -> int:
    """What the argument parser objects to is the user's; a full disk too; the rest is ours."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error, file=sys.stderr)
        return 1
    if hasattr(error, "format_message"):
        print(f"plures: {error.format_message()} (see plures --help)", file=sys.stderr)
        return 1
    if type(error).__name__ == "Abort":
        print("plures: stopped", file=sys.stderr)
        return 130
    if isinstance(error, OSError):
        print(f"plures: {error}", file=sys.stderr)
        return 1
    traceback.print_exception(error)
    print("plures: this is a defect of plures; the lines above say where", file=sys.stderr)
    return 2
