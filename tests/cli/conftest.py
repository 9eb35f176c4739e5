"""Every command of a test runs in a folder of its own, without the kept compilations."""

from functools import partial

import pytest

from plures.app import references
from plures.cli import commands


@pytest.fixture(autouse=True)
def _in_a_fresh_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "keep_compilations", lambda: None)
    # References that are fit take longer than studies of tests; the trivial one is always there.
    monkeypatch.setattr(references, "references_of", partial(references.references_of, seconds=0.0))
