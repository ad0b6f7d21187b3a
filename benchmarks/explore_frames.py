"""How fast the explorable page is: first picture from a file, and frames while something is dragged or plays.

    python -m benchmarks.explore_frames

In Chromium, on this computer. The pointer moves at every frame of the screen, as a hand does; a frame counts when the
browser has drawn it. The heaviest problem of the page has four inputs of six tokens. Half a minute.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tokenmargin.report.explore.page import write_explore_page

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
SCENES = (("training", "one"), ("margin", "one"), ("settle", "three"), ("settle", "random"), ("proofs", "random"))
WATCH = """() => { window.frames_ = []; let last = performance.now(); window.watching = true;
  const tick = (now) => {
    window.frames_.push(now - last); last = now; if (window.watching) requestAnimationFrame(tick); };
  requestAnimationFrame(tick); }"""


def main() -> None:
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        address = write_explore_page(Path(folder) / "page.html").as_uri()
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        print(f"load average {os.getloadavg()[0]:.1f}")
        first = [_first_picture(page, address) for _ in range(5)]
        print(f"first picture from a file: median {np.median(first):.0f} ms, worst {max(first):.0f} ms")
        print(f"{'':<34}{'frames/s':>10}{'median ms':>11}{'95% ms':>9}{'worst ms':>10}")
        for section, story in SCENES:
            _open(page, address, section, story)
            _report(f"{section}, {story}: token dragged", _dragged(page, '.token[data-token="0,1"]'))
            if section == "settle":
                _report(f"{section}, {story}: start dragged", _dragged(page, "#prompt"))
        _open(page, address, "training", "random")
        page.evaluate(WATCH)
        page.locator("#play").click()
        page.wait_for_timeout(3000)
        _report("training, random: playing", page.evaluate("() => { window.watching = false; return window.frames_; }"))
        browser.close()


def _first_picture(page: Any, address: str) -> float:
    """Milliseconds from the start of the navigation to the first picture on the screen."""
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("html[data-painted]", state="attached")
    return float(page.evaluate("() => performance.getEntriesByName('painted')[0].startTime"))


def _open(page: Any, address: str, section: str, story: str) -> None:
    page.goto("about:blank")
    page.goto(f"{address}#{section}")
    page.wait_for_selector("html[data-painted]", state="attached")
    page.locator(f'[data-story="{story}"]').click()
    page.wait_for_timeout(800)


def _dragged(page: Any, selector: str) -> list[float]:
    """Times between frames while something is dragged along a circle for two seconds and a half."""
    box = page.locator(selector).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.evaluate(WATCH)
    for k in range(150):
        page.mouse.move(x - 40 + 40 * math.cos(k / 12), y + 40 * math.sin(k / 12))
        page.wait_for_timeout(12)
    frames: list[float] = page.evaluate("() => { window.watching = false; return window.frames_; }")
    page.mouse.up()
    return frames


def _report(name: str, frames: list[float]) -> None:
    times = np.array(frames[2:])
    rate = 1000 * len(times) / times.sum()
    print(f"{name:<34}{rate:>10.1f}{np.median(times):>11.1f}{np.quantile(times, 0.95):>9.1f}{times.max():>10.1f}")


if __name__ == "__main__":
    main()
