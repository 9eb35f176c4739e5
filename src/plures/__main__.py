"""``python -m plures``."""

from plures.cli import main

main()
