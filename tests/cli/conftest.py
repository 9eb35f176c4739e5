"""Every command of a test runs in a folder of its own, without the kept compilations; step sizes are given."""

from functools import partial

import pytest

from plures.app import running
from plures.cli import commands
from plures.study.disk import references
from plures.study.tuning.step_size import StepSizes, find_step_sizes


@pytest.fixture(autouse=True)
def _in_a_fresh_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "keep_compilations", lambda: None)
    # References that are fit take longer than studies of tests; the trivial one is always there.
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
