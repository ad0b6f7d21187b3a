"""The explorable article in a real browser, opened from a file."""

import importlib.util
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenmargin.report.explore.page import write_explore_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine: install Debian's chromium, or Chrome", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
Page, Browser = playwright.Page, playwright.Browser

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
SIZES = {"desk": (1440, 900), "laptop": (1280, 720), "wide laptop": (1366, 768), "phone": (390, 844)}
ACCESSIBILITY = (Path(__file__).parent / "accessibility.js").read_text()
PICTURES = ("tokens", "training", "margin", "settle", "proofs")
SECTIONS = (*PICTURES, "words")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_explore_page(tmp_path_factory.mktemp("explore") / "page.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Tab:
    """The page in a clean profile; it remembers what went wrong and what was asked of the network."""

    def __init__(self, browser: Browser, address: str, **options: object) -> None:
        usual = {"viewport": {"width": 1280, "height": 720}, "reduced_motion": "reduce", "accept_downloads": True}
        self.context = browser.new_context(**(usual | options))
        self.page = self.context.new_page()
        self.address, self.wrong = address, []
        self.page.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url: str) -> None:
        if not url.startswith((self.address, "blob:", "data:", "about:")):
            self.wrong.append(f"asked for {url}")

    def open(self, fragment: str = "", query: str = "") -> Page:
        self.page.goto("about:blank")  # a change of the fragment alone would not load the page anew
        self.page.goto(f"{self.address}{query}{fragment}")
        self.page.wait_for_selector("html[data-painted]", state="attached")
        return self.page


@pytest.fixture
def tab(browser: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Tab]:
    tab = Tab(browser, address, **getattr(request, "param", {}))
    yield tab
    tab.context.close()
    assert not tab.wrong


def state(page: Page) -> dict:
    return page.evaluate("() => window.explore.view.state")


def ground_ready(page: Page) -> None:
    page.wait_for_function("() => window.explore.view.ground?.last", timeout=120_000)  # on a busy machine


def drag(page: Page, selector: str, to: tuple[float, float]) -> None:
    """Drag something to a place of the window."""
    box = page.locator(selector).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for k in range(1, 6):
        page.mouse.move(x + (to[0] - x) * k / 5, y + (to[1] - y) * k / 5)
    page.mouse.up()


def inside(page: Page, selector: str) -> bool:
    """Whether the whole of something lies in the window."""
    return page.evaluate(
        "(selector) => { const b = document.querySelector(selector).getBoundingClientRect();"
        " return b.height > 0 && b.top >= 0 && b.left >= 0 &&"
        " b.bottom <= innerHeight + 1 && b.right <= innerWidth + 1; }",
        selector,
    )


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        ("desk", "dark"),
        ("laptop", "light"),
        ("laptop", "dark"),
        ("wide laptop", "light"),
        ("phone", "light"),
        ("phone", "dark"),
    ],
)
def test_each_section_is_seen_whole_and_can_be_read(browser: Browser, address: str, size: str, scheme: str) -> None:
    """Caption, play button and drawing together; every control with a name, every text with enough contrast."""
    width, height = SIZES[size]
    tab = Tab(browser, address, viewport={"width": width, "height": height}, color_scheme=scheme)
    for section in SECTIONS:
        page = tab.open(f"#{section}")
        assert page.evaluate("() => window.explore.view.section") == section
        seen = ("#play", "#time") if section in PICTURES else ("#typed",)
        for selector in ("#caption", "#disc", *seen, f"#{section} h2"):
            assert inside(page, selector), f"{selector} at {size}, {section}"
        assert page.locator("#disc").bounding_box()["width"] > 250
        assert len(page.locator("#caption").inner_text()) > 20
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        faults = page.evaluate(ACCESSIBILITY)
        assert not faults, json.dumps(faults[:5], indent=1)
        if section in PICTURES:
            assert page.locator(".token").count() == len([k for row in state(page)["inputs"] for k in row["tokens"]])
    tab.context.close()
    assert not tab.wrong


def test_scrolling_brings_each_section_with_its_picture(tab: Tab) -> None:
    page = tab.open()
    for section in SECTIONS:
        page.evaluate(f"() => document.getElementById('{section}').scrollIntoView()")
        page.wait_for_function(f"() => window.explore.view.section === '{section}'")
        assert page.locator("#contents a[aria-current]").get_attribute("href") == f"#{section}"


def test_a_dragged_token_is_never_lost(tab: Tab) -> None:
    page = tab.open("#margin")
    drag(page, '[data-token="0,1"]', (1275, 700))
    x, y = (state(page)["inputs"][0]["tokens"][1][axis] for axis in "xy")
    assert (x, y) != (1, 0)
    box, disc = page.locator('[data-token="0,1"]').bounding_box(), page.locator("#disc").bounding_box()
    assert disc["x"] < box["x"]
    assert box["x"] + box["width"] < disc["x"] + disc["width"]
    drag(page, '[data-token="0,1"]', (disc["x"] + disc["width"] / 2, disc["y"] + disc["height"] / 3))
    assert state(page)["inputs"][0]["tokens"][1]["y"] > 0.1
    page.keyboard.press("Escape")
    page.locator("#undo").click()
    assert state(page)["inputs"][0]["tokens"][1] == {"x": x, "y": y, "score": 0.9}


def test_the_ground_says_where_the_path_from_there_ends(tab: Tab) -> None:
    page = tab.open("#settle")
    ground_ready(page)
    disc = page.locator("#disc").bounding_box()
    middle = disc["x"] + disc["width"] / 2, disc["y"] + disc["height"] / 2
    ends = set()
    for turn in range(0, 360, 40):
        reach = 0.3 * disc["width"]
        drag(page, "#prompt", (middle[0] + reach * math.cos(math.radians(turn)),
                               middle[1] + reach * math.sin(math.radians(turn))))  # fmt: skip
        end, ground = page.evaluate(
            "() => { const { picture, ground, scales, state } = window.explore.view, r = Math.hypot(...state.start);"
            " const cell = (z) => Math.floor(((z / (r + scales.half) + 1) / 2) * ground.side);"
            " return [picture.run.end, ground.labels[cell(-state.start[1]) * ground.side + cell(state.start[0])]]; }"
        )
        assert end == ground
        ends.add(end)
        assert page.locator("#caption").inner_text().startswith("From p = ")
    assert ends == {0, 1, 2}


@pytest.mark.parametrize(
    "tab", [{}, {"viewport": {"width": 390, "height": 844}}], indirect=True, ids=["laptop", "phone"]
)
def test_no_score_is_written_over_a_token_or_another_score(tab: Tab) -> None:
    page = tab.open("#settle")
    for story in ("one", "three", "ties", "seven"):
        page.evaluate(f"() => document.querySelector('[data-story={story}]').click()")
        boxes = page.evaluate(
            "() => { const box = (node) => {"
            " const b = node.getBoundingClientRect(); return [b.x, b.y, b.right, b.bottom]; };"
            " const tokens = [...document.querySelectorAll('#layer-tokens .token')];"
            " return tokens.map((node) => { const [name, score] = node.querySelectorAll('text');"
            "   return { token: box(node.children[1]), score: score && box(score), name: name.textContent }; }); }"
        )
        written = [one for one in boxes if one["score"]]
        assert len(written) >= min(3, len(boxes))
        for one in written:
            for other in boxes:
                taken = [other["score"]] if other["score"] and other is not one else []
                taken += [other["token"]] if other is not one else []
                for left, top, right, bottom in taken:
                    across = min(one["score"][2], right) - max(one["score"][0], left)
                    down = min(one["score"][3], bottom) - max(one["score"][1], top)
                    # A text's box is a line high, three pixels more than its digits on either side.
                    assert across <= 2 or down <= 6, (story, one["name"], other["name"], across, down)


def test_a_link_opens_the_same_picture_and_back_goes_back(tab: Tab) -> None:
    page = tab.open("#settle")
    drag(page, '[data-token="0,3"]', (700, 300))
    page.wait_for_function("() => location.hash.startsWith('#settle/')")
    link, limits = page.evaluate("() => [location.hash, window.explore.view.picture.limits.map((l) => l.margin)]")
    page = tab.open(link)
    again = page.evaluate("() => window.explore.view.picture.limits.map((l) => l.margin)")
    assert again == pytest.approx(limits, abs=2e-3)  # coordinates travel with three decimals
    page.locator('[data-story="eight"]').click()
    assert len(state(page)["inputs"][0]["tokens"]) == 2
    page.go_back()
    page.wait_for_function("() => window.explore.view.state.inputs[0].tokens.length === 4")
    page = tab.open("#settle/nonsense")
    assert "could not be read" in page.locator("#toast").inner_text()
    assert len(state(page)["inputs"][0]["tokens"]) == 4


def test_play_step_and_reset_move_the_run_and_the_loss(tab: Tab) -> None:
    page = tab.open("#training")
    assert page.locator("#clock").inner_text() == "step 0"
    page.locator("#step").click()
    assert page.locator("#clock").inner_text() == "step 1"
    assert page.locator("#caption").inner_text().startswith("Step 1: |p| = ")
    page.select_option("#speed", "4")
    page.locator("#play").click()
    page.wait_for_function("() => window.explore.view.frame > 20")
    page.keyboard.press("Tab")
    page.locator("#play").click()
    frame, risk = page.evaluate("() => [window.explore.view.frame, window.explore.view.picture.run.risk]")
    assert risk == sorted(risk, reverse=True)
    # Eight pictures later it still stands.
    page.evaluate("async () => { for (let k = 0; k < 8; k++) await new Promise(requestAnimationFrame); }")
    assert page.evaluate("() => window.explore.view.frame") == frame
    page.locator("#reset").click()
    assert page.locator("#clock").inner_text() == "step 0"


def test_keys_move_what_the_pointer_moves(tab: Tab) -> None:
    page = tab.open("#tokens")
    before = state(page)
    page.locator("#prompt").focus()
    page.keyboard.press("ArrowRight")
    assert state(page)["start"][0] > before["start"][0]
    page.locator('[data-token="0,1"]').focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("+")
    # One press is a share of the picture's width, 0.02 but for the pixels.
    assert state(page)["inputs"][0]["tokens"][1] == {"x": 1, "y": pytest.approx(0.02, rel=0.1, abs=0), "score": 0.95}
    page.wait_for_function("() => document.getElementById('said').textContent.includes('logit')")


def test_escape_and_a_click_elsewhere_close_the_menu(tab: Tab) -> None:
    page = tab.open()
    for close in (lambda: page.keyboard.press("Escape"), lambda: page.mouse.click(300, 400)):
        page.locator("#keep summary").click()
        assert page.locator("#copy-link").is_visible()
        close()
        assert not page.locator("#copy-link").is_visible()


def test_hovering_tells_what_is_under_the_pointer(tab: Tab) -> None:
    page = tab.open("#settle")
    ground_ready(page)
    page.locator('[data-token="0,0"]').hover()
    assert page.locator("#card").inner_text().splitlines()[0] == "A1"
    assert "score 0.8" in page.locator("#card").inner_text()
    disc = page.locator("#disc").bounding_box()
    page.mouse.move(disc["x"] + 0.5 * disc["width"], disc["y"] + 0.9 * disc["height"])
    assert "From here training ends on A1 and B1" in page.locator("#card").inner_text()


def test_a_selection_is_proven_possible_or_not(tab: Tab) -> None:
    page = tab.open("#proofs")
    assert "A direction selects A1 and B1 with margin 0.537" in page.locator("#caption").inner_text()
    page.locator('[data-act="impossible"]').click()
    words = page.locator("#caption").inner_text()
    assert words.startswith("No direction selects ")
    # The mixture that is said to be zero is zero.
    parts = re.findall(r"([\d.]+) \(([A-F])(\d) − [A-F](\d)\)", words)
    tokens = [row["tokens"] for row in state(page)["inputs"]]
    assert len(parts) >= 2
    for axis in "xy":
        terms = [float(w) * (tokens["AB".index(i)][int(a) - 1][axis] - tokens["AB".index(i)][int(b) - 1][axis])
                 for w, i, a, b in parts]  # fmt: skip
        assert sum(terms) == pytest.approx(0, abs=2e-3)  # weights are written with three decimals


def test_ties_are_named_as_sets(tab: Tab) -> None:
    page = tab.open("#settle")
    page.locator('[data-story="twice"]').click()
    page.wait_for_function("() => document.getElementById('limits').textContent.includes('A1+A2')")


@pytest.mark.parametrize("tab", [{"viewport": {"width": 390, "height": 844}, "has_touch": True}], indirect=True)
def test_on_a_phone_a_swipe_on_the_drawing_scrolls_and_tokens_do_not(tab: Tab) -> None:
    page = tab.open("#tokens")
    assert page.evaluate("() => getComputedStyle(document.getElementById('disc')).touchAction") == "pan-y"
    assert page.evaluate("() => getComputedStyle(document.querySelector('.token')).touchAction") == "none"
    disc = page.locator("#disc").bounding_box()
    client = tab.context.new_cdp_session(page)
    x, y = disc["x"] + 0.2 * disc["width"], disc["y"] + 0.7 * disc["height"]
    client.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for k in range(1, 11):
        client.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [{"x": x, "y": y - 20 * k}]})
    client.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_function("() => scrollY > 100")


def test_the_copied_python_gives_the_numbers_of_the_page(tab: Tab, tmp_path: Path) -> None:
    page = tab.open("#training")
    script = page.evaluate("() => window.explore.asPython()")
    margins, end = page.evaluate(
        "() => { const { limits, run } = window.explore.view.picture;"
        " return [limits.map((l) => l.margin), run.points.at(-1)]; }"
    )
    (tmp_path / "copied.py").write_text(script)
    done = subprocess.run([sys.executable, tmp_path / "copied.py"], capture_output=True, text=True, check=True)
    # Printed with six digits.
    assert [float(m) for m in re.findall(r"margin ([\d.]+)", done.stdout)] == pytest.approx(margins, abs=1e-6)
    found = re.search(r"p = \[ *(\S+) +(\S+?) *\]", done.stdout)
    # Printed with five digits, or so numpy shows them.
    assert [float(z) for z in found.groups()] == pytest.approx(end, abs=1e-5)


def test_pictures_can_be_kept(tab: Tab) -> None:
    page = tab.open("#settle")
    ground_ready(page)
    page.locator("#keep summary").click()
    with page.expect_download() as kept:
        page.locator("#save-svg").click()
    text = Path(kept.value.path()).read_text()
    assert "data:image/png;base64," in text
    assert "var(--" not in text
    with page.expect_download() as kept:
        page.locator("#save-png").click()
    assert Path(kept.value.path()).read_bytes().startswith(b"\x89PNG")


def test_embedded_it_is_the_picture_alone(tab: Tab) -> None:
    page = tab.open("#settle", query="?embed")
    assert not page.locator("#article").is_visible()
    assert page.locator("#disc").is_visible()
    assert page.evaluate("() => window.explore.view.section") == "settle"


def test_a_sentence_of_ones_own_is_decided_or_not_and_kept_in_the_link(tab: Tab) -> None:
    page = tab.open("#words")
    assert page.locator("#caption").inner_text().startswith("positive")
    names = page.locator("#disc .word-token text").all_text_contents()
    assert "delightful" in names
    page.locator("#sentence button", has_text="delightful").click()
    assert "No word here that decides" in page.locator("#caption").inner_text()
    page.locator('#disc .word-token[aria-pressed="true"]').focus()
    page.keyboard.press("Enter")
    assert page.locator("#caption").inner_text().startswith("positive")
    page.fill("#typed", "and")
    assert "No word here that decides" in page.locator("#caption").inner_text()
    page.fill("#typed", "a dreadful <b>ferry</b> / 😀")
    assert page.locator("#caption").inner_text().startswith("negative")
    page.wait_for_function("() => location.hash.startsWith('#words/a%20dreadful')")
    page = tab.open(page.evaluate("() => location.hash"))
    assert page.locator("#typed").input_value() == "a dreadful <b>ferry</b> / 😀"
    page.locator("#contents a").first.click()
    assert page.locator(".token").count() == 3
    assert page.locator(".word-token").count() == 0


def axe_core() -> Path | None:
    """The script of axe-core: that of a Python package (`make axe` installs it), or where node finds it."""
    package = importlib.util.find_spec("axe_playwright_python")
    if package is not None and package.origin is not None:
        return Path(package.origin).with_name("axe.min.js")
    node = shutil.which("node")
    if node is None:
        return None
    ask = [node, "-p", "require.resolve('axe-core/axe.min.js')"]
    done = subprocess.run(ask, capture_output=True, text=True, check=False)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


@pytest.mark.parametrize("size", ["laptop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(browser: Browser, address: str, size: str, scheme: str) -> None:
    script = axe_core()
    if script is None:
        pytest.skip(
            "no axe-core: make axe, or pip install axe-playwright-python, or npm install axe-core and NODE_PATH"
        )
    width, height = SIZES[size]
    tab = Tab(browser, address, viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=True)
    for section in SECTIONS:
        page = tab.open(f"#{section}")
        page.evaluate(script.read_text())
        found = page.evaluate("() => axe.run()")["violations"]
        serious = [
            (fault["id"], fault["nodes"][0]["html"]) for fault in found if fault["impact"] in ("serious", "critical")
        ]
        assert not serious
    tab.context.close()
