"""Studies of tests have no time for references that are fit; the trivial one is always there."""

from functools import partial

import pytest

from plures.app import references


@pytest.fixture(autouse=True)
def _quick_references(monkeypatch):
    monkeypatch.setattr(references, "references_of", partial(references.references_of, seconds=0.0))
