"""How fast the playground follows a dragged token: n = 4 inputs of T = 6 tokens, in Chromium, on this computer.

    python -m benchmarks.playground_latency

A token of the preset "Figure 9" is dragged along a circle. Printed are the time from the move to the painted picture,
as the page measures it, and the part of it that the server takes. One minute at most.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

MOVES, BETWEEN = 150, 40  # moves of the pointer, and milliseconds between them
NAMES = {"server": "server", "answered": "move to answer", "drawn": "drawing", "total": "move to painted picture"}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@contextmanager
def running() -> Iterator[str]:
    """The address of a playground in a process of its own."""
    command = [sys.executable, "-m", "tokenmargin", "playground", "--no-browser"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        yield next(found.group() for found in (re.search(r"http://[^ ]+/", line) for line in process.stderr) if found)
        process.terminate()


def main() -> None:
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with running() as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1200, "height": 850})
        page.goto(f"{address}problem.html")
        page.wait_for_selector("html[data-painted]")
        page.keyboard.press("Escape")
        page.select_option("#preset", "fig9")
        page.wait_for_timeout(1500)
        box = page.locator('[data-token="0,4"]').bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.evaluate("window.playground.timings.length = 0")
        for k in range(MOVES):
            page.mouse.move(x - 60 + 60 * math.cos(k / 12), y + 60 * math.sin(k / 12))
            page.wait_for_timeout(BETWEEN)
        page.mouse.up()
        timings = page.evaluate("window.playground.timings")
        browser.close()
    print(
        f"{len(timings)} pictures painted for {MOVES} moves {BETWEEN} ms apart; load average {os.getloadavg()[0]:.1f}"
    )
    print(f"{'milliseconds':<24}{'median':>8}{'95%':>8}{'worst':>8}")
    for key, name in NAMES.items():
        values = np.array([timing[key] for timing in timings])
        print(f"{name:<24}{np.median(values):>8.1f}{np.quantile(values, 0.95):>8.1f}{values.max():>8.1f}")


if __name__ == "__main__":
    main()
