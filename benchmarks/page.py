"""How large the report page is and how fast a browser shows it: 40 clients, 8 methods, 3 seeds. Writes benchmarks/page.md.

Needs chromium and chromedriver. The study is written by hand, as the page does not care where scores come from.
"""

import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "helpers"))

from browsing import chromium  # noqa: E402
from studies import write_study  # noqa: E402

from plures._version import __version__  # noqa: E402
from plures.report.page import write_page  # noqa: E402

METHODS = ("local_only", "fedavg", "ditto", "ifca", "hypcluster", "fedprox", "apfl", "fedavg|finetune")
REPEATS = 7


def study(folder, number):
    """A study of so many clients with all sections of the page filled."""
    base = 0.5 + 0.3 * np.sin(np.arange(number))
    scores = {name: base + 0.02 * place for place, name in enumerate(METHODS)}
    groups = [k % 4 for k in range(number)]
    clusters = dict.fromkeys(("ifca", "hypcluster"), groups)
    return write_study(folder, scores, seeds=(0, 1, 2), groups=groups, unseen=number // 5, clusters=clusters)


def loading(page, driver):
    """(seconds until the page is ready, seconds until all pictures are drawn), the medians of some loads."""
    ready, drawn = [], []
    for _ in range(REPEATS):
        driver.get("about:blank")
        began = time.perf_counter()
        driver.get(page.as_uri())
        assert driver.execute_script("return document.documentElement.dataset.ready") == "yes"
        ready.append(time.perf_counter() - began)
        driver.execute_async_script("plures.drawAll().then(() => arguments[0]())")
        drawn.append(time.perf_counter() - began)
    return statistics.median(ready), statistics.median(drawn)


def main():
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        driver = chromium(Path(scratch) / "browser", size="1280,900")
        if driver is None:
            raise SystemExit("needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
        version = driver.capabilities["browserVersion"]
        for number in (40, 400, 4000):
            began = time.perf_counter()
            page = write_page(study(Path(scratch) / str(number), number))
            made = time.perf_counter() - began
            ready, drawn = loading(page, driver)
            rows.append((number, page.stat().st_size / 1e6, made, ready, drawn))
            print(rows[-1], flush=True)
        driver.quit()
    lines = [
        "# The report page",
        "",
        f"8 methods x 3 seeds, written by hand; medians of {REPEATS} loads from disk in headless Chromium {version}.",
        f"plures {__version__}, Python {platform.python_version()}, {platform.machine()}, 2 CPU cores, shared machine.",
        "",
        "| clients | size (MB) | written and read back in (s) | ready after (s) | all pictures drawn after (s) |",
        "|---|---|---|---|---|",
        *(f"| {n} | {size:.2f} | {made:.1f} | {ready:.2f} | {drawn:.2f} |" for n, size, made, ready, drawn in rows),
        "",
        "Of the size, 4.8 MB are the drawing library, which the page carries so that it needs no network.",
    ]
    (HERE / "page.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
