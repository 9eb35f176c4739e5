"""Every command of a test runs in a folder of its own, without the kept compilations."""

import pytest

from plures.cli import commands


@pytest.fixture(autouse=True)
def _in_a_fresh_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "keep_compilations", lambda: None)
