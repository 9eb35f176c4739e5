"""A headless browser, where the machine has one."""

import pytest
from browsing import chromium

pytest.importorskip("selenium")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Chromium; its tests are left out on a machine without it."""
    found = chromium(tmp_path_factory.mktemp("browser"))
    if found is None:
        pytest.skip("needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
    yield found
    found.quit()
