"""A headless Chromium, for tests and benchmarks of pages."""

import shutil

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
NEEDED = ("chromium", "chromedriver")


def chromium(folder, size="1200,900"):
    """A browser that keeps its files in a folder; None on a machine without one."""
    from selenium import webdriver

    program, driver = map(shutil.which, NEEDED)
    if program is None or driver is None:
        return None
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={folder}", f"--window-size={size}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
