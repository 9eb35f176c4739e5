"""Studies of tests have no time for references that are fit; the trivial one is always there. Step sizes are given."""

from functools import partial

import pytest

from plures.app import running
from plures.study.disk import references
from plures.study.tuning.step_size import StepSizes, find_step_sizes


@pytest.fixture(autouse=True)
def _quick_references(monkeypatch):
    monkeypatch.setattr(references, "references_of", partial(references.references_of, seconds=0.0))


@pytest.fixture(scope="module", autouse=True)
def _given_steps():
    """Finding step sizes takes longer than studies of tests; they are given also to what the tests of a module share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "find_step_sizes", lambda *asked, **settings: StepSizes(0.1, 0.1, (), 0, 0.0))
        yield


@pytest.fixture
def found_steps(monkeypatch):
    """In this test step sizes are found from the data."""
    monkeypatch.setattr(running, "find_step_sizes", find_step_sizes)
