"""The commands as a user types them, for all tests of the command line."""

from plures import cli


def plures(*arguments):
    """The exit code of a command."""
    return cli.run(list(arguments))


def complaint(capsys):
    """The one line a user sees when something is wrong."""
    said = capsys.readouterr().err.strip()
    assert "\n" not in said, said
    return said
