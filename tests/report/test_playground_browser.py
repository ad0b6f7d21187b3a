"""The page in a real browser: Chromium, driven."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tokenmargin as tm
from tokenmargin.report.playground.presets import PAPER, PRESETS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine: install Debian's chromium, or Chrome", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
Page, Browser = playwright.Page, playwright.Browser

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
WIDE = {"width": 1200, "height": 850}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Tab:
    """A page with a clean profile that remembers what went wrong in it."""

    def __init__(self, browser: Browser, address: str, **options: object) -> None:
        self.context = browser.new_context(**({"viewport": WIDE, "accept_downloads": True} | options))
        self.page = self.context.new_page()
        self.address, self.errors, self.foreign = address, [], []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self._outside(request.url))

    def _outside(self, url: str) -> None:
        if not url.startswith((self.address, "blob:", "data:")):
            self.foreign.append(url)

    def open(self, fragment: str = "", query: str = "") -> Page:
        self.page.goto(f"{self.address}problem.html{query}{fragment}")
        self.page.wait_for_selector("html[data-painted]")
        return self.page

    def preset(self, name: str) -> Page:
        page = self.open()
        page.keyboard.press("Escape")  # any key ends the tour
        page.select_option("#preset", name)
        settle(page)
        return page


def until(page: Page, condition: str) -> None:
    """Wait for a condition; a function, since the page's policy forbids evaluating text."""
    page.wait_for_function(f"() => {condition}")


def settle(page: Page) -> None:
    """Wait until nothing is asked and the full picture is painted."""
    page.wait_for_function(
        "() => { const { asker, store } = window.playground; return asker.flying === 0 && !asker.waiting "
        "&& asker.painted === asker.sent && window.playground.view.answer.ring.length > 100; }"
    )


@pytest.fixture
def tab(browser: Browser, playground: str, request: pytest.FixtureRequest) -> Iterator[Tab]:
    tab = Tab(browser, playground, **getattr(request, "param", {}))
    yield tab
    tab.context.close()
    assert not tab.errors
    assert not tab.foreign


def drag(page: Page, selector: str, dx: float, dy: float) -> None:
    box = page.locator(selector).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for k in range(1, 9):
        page.mouse.move(x + dx * k / 8, y + dy * k / 8)
    page.mouse.up()
    settle(page)


def limits(page: Page) -> list[list[float]]:
    return page.evaluate("window.playground.view.answer.limits.map((limit) => limit.unit)")


def rays(page: Page) -> list[str]:
    return page.locator(".ray line:first-child").evaluate_all("(l) => l.map((x) => x.getAttribute('x2'))")


def token(page: Page, i: int, t: int) -> dict[str, float]:
    return page.evaluate(f"window.playground.store.now.inputs[{i}].tokens[{t}]")


def test_it_opens_with_the_article_and_its_own_words(tab: Tab) -> None:
    """The explorable page, under a policy that allows its own scripts by their checksums and nothing else."""
    tab.page.goto(f"{tab.address}#words")
    tab.page.wait_for_selector("html[data-painted]", state="attached")
    tab.page.fill("#typed", "a dreadful ferry")
    assert tab.page.inner_text("#caption").startswith("negative")
    tab.page.goto(f"{tab.address}#settle")
    tab.page.wait_for_function("() => window.explore.view.ground?.last")  # its worker runs
    tab.page.click("#own-problem")
    tab.page.wait_for_selector("html[data-painted]", state="attached")
    assert tab.page.locator("#preset").count() == 1


def test_dragging_a_token_moves_rays_and_basins(tab: Tab) -> None:
    page = tab.preset("fig1b")
    before, drawn, ring = limits(page), rays(page), page.locator(".sector").count()
    assert len(before) == 2
    assert ring >= 2
    drag(page, '[data-token="0,1"]', -40, 120)
    moved = token(page, 0, 1)
    assert moved["x"] < 0.95
    assert moved["y"] < -0.3
    assert limits(page) != before
    assert rays(page) != drawn
    # what is drawn is what the library says of the moved problem
    places = [[key["x"], key["y"]] for key in (token(page, 0, t) for t in range(3))]
    problem = tm.TokenProblem.of([places], [1], scores=[[1.0, 0.9, 0.0]])
    for unit in limits(page):
        assert (
            max(tm.cosine(problem.keys, np.array(unit), tm.max_margin(problem, [t]).vector) for t in range(3))
            > 1 - 1e-9
        )


def test_dragging_the_start_moves_the_path(tab: Tab) -> None:
    page = tab.preset("fig1b")
    assert "selects A2" in page.inner_text("#note")
    drag(page, "#start", 0, -140)
    assert page.evaluate("window.playground.store.now.start[1]") > 0
    assert "selects A1, the best" in page.inner_text("#note")


def test_presets_open_with_their_theorem(tab: Tab) -> None:
    page = tab.preset("fig1b")
    for preset in PRESETS:
        page.select_option("#preset", preset.name)
        settle(page)
        assert page.get_attribute("#story a", "href") == PAPER
        assert page.inner_text("#story a") == preset.theorem
        assert page.locator(".ray").count() == len(limits(page)) > 0
        assert page.inner_text("#note")


def test_tour_plays_by_itself_and_yields_to_the_reader(tab: Tab) -> None:
    page = tab.open(query="?pace=0.08")
    seen = set()
    while page.evaluate("window.playground.tour.running"):
        seen.add(page.inner_text("#caption") if page.is_visible("#caption") else "")
        page.wait_for_timeout(20)
    assert len(seen - {""}) >= 8
    assert page.evaluate("window.playground.store.now.preset") == "three-limits"
    page.click("#tour")
    assert page.is_visible("#caption")
    page.keyboard.press("Escape")
    assert not page.is_visible("#caption")


def test_undo_and_redo_take_a_whole_drag(tab: Tab) -> None:
    page = tab.preset("fig1b")
    before = token(page, 0, 0)
    drag(page, '[data-token="0,0"]', 60, 30)
    after = token(page, 0, 0)
    assert after != before
    page.keyboard.press("Control+z")
    assert token(page, 0, 0) == before
    page.click("#redo")
    assert token(page, 0, 0) == after
    page.click("#undo")
    page.click("#undo")
    assert page.evaluate("window.playground.store.now.preset") == "fig1a"


def test_everything_by_keyboard(tab: Tab) -> None:
    page = tab.preset("fig1b")
    page.focus('[data-token="0,1"]')
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+ArrowLeft")
    assert token(page, 0, 1) == {"x": 0.75, "y": 0.05, "score": 0.9}
    page.keyboard.press("-")
    assert token(page, 0, 1)["score"] == pytest.approx(0.85)
    assert page.evaluate("document.activeElement.dataset.token") == "0,1"
    page.keyboard.press("Delete")
    assert page.evaluate("window.playground.store.now.inputs[0].tokens.length") == 2
    page.focus("#start")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("window.playground.store.now.start[0]") == pytest.approx(0.2)
    settle(page)
    page.focus("#tab-plane")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#text-view")


def test_every_control_is_reachable_and_named(tab: Tab) -> None:
    page = tab.preset("three-limits")
    reached = set()
    page.focus(".skip")
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.dataset?.token || ''"))
    assert {"tour", "undo", "preset", "start", "play", "time", "chosen-score", "add-token", "0,0", "1,3"} <= reached
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, textarea, [tabindex="0"]')].filter(
        (node) => !(node.getAttribute('aria-label') || node.textContent.trim() || node.labels?.length)
        ).map((node) => node.id)"""
    )
    assert unnamed == []
    assert page.get_attribute("#note", "aria-live") == "polite"


def test_state_survives_a_reload_and_a_copied_address(tab: Tab, browser: Browser) -> None:
    page = tab.preset("three-limits")
    drag(page, '[data-token="1,1"]', 30, 20)
    page.eval_on_selector("#settings", "(node) => { node.open = true; }")
    page.select_option("#method", "descent")
    state = page.evaluate("window.playground.store.now")
    page.wait_for_timeout(400)  # the address follows when a change has rested
    address = page.url
    page.reload()
    page.wait_for_selector("html[data-painted]")
    assert page.evaluate("window.playground.store.now") == state
    other = Tab(browser, tab.address)
    try:
        assert other.open("#" + address.partition("#")[2]).evaluate("window.playground.store.now") == state
        assert not other.page.is_visible("#caption")
        broken = other.open("#s=not-a-state")
        assert broken.locator(".token").count() > 2
    finally:
        other.context.close()


def test_adding_removing_scores_and_labels(tab: Tab) -> None:
    page = tab.preset("fig1b")
    page.click("#add-input")
    page.click("#add-token")
    page.fill("#chosen-score", "0.4")
    assert token(page, 1, 2)["score"] == 0.4
    page.select_option("#chosen-label", "-1")
    assert page.evaluate("window.playground.store.now.inputs[1].label") == -1
    assert token(page, 1, 2)["score"] == -0.4
    page.click("#remove-token")
    page.click("#remove-input")
    assert page.evaluate("window.playground.store.now.inputs.length") == 1
    settle(page)
    assert page.locator("[data-token]").count() == 3


def test_infeasible_selections_say_so_with_a_certificate(tab: Tab) -> None:
    page = tab.preset("fig8")
    page.click("#certificate summary")
    page.select_option("#asked label:nth-child(1) select", "1")
    until(page, "document.querySelector('#verdict').textContent.includes('feasible')")
    settle(page)
    page.evaluate("window.playground.store.edit((s) => { s.inputs[1].tokens[0].x = 2; s.inputs[1].tokens[0].y = 0; })")
    settle(page)
    assert page.get_attribute("#verdict", "data-status") == "infeasible"
    assert "No direction selects" in page.inner_text("#verdict")
    assert "Farkas weight" in page.inner_text("#evidence")
    # Drawn: an arrow for every other token of every input, and the combination that meets at the origin.
    arrows = page.evaluate("document.querySelectorAll('#hull line').length")
    others = page.evaluate(
        "document.querySelectorAll('#layer-tokens .token').length - document.querySelectorAll('#asked select').length"
    )
    assert arrows == others
    assert page.evaluate("document.querySelectorAll('#hull circle[r=\"6\"]').length") == 1


def test_training_can_be_scrubbed(tab: Tab) -> None:
    page = tab.preset("fig1a")
    page.evaluate(
        "document.querySelector('#time').value = 0; document.querySelector('#time').dispatchEvent(new Event('input'))"
    )
    first = page.locator(".bar").evaluate_all("(bars) => bars.map((bar) => bar.getAttribute('aria-label'))")
    assert page.inner_text("#clock") == "step 0"
    page.click("#play")
    until(page, "document.querySelector('#clock').textContent === 'step 200'")
    last = page.locator(".bar").evaluate_all("(bars) => bars.map((bar) => bar.getAttribute('aria-label'))")
    assert first != last
    assert last[0] == "A1: 100 percent"


def test_flow_is_drawn(tab: Tab) -> None:
    page = tab.preset("fig1a")
    page.eval_on_selector("#settings", "(node) => { node.open = true; }")
    page.select_option("#method", "flow")
    until(page, "window.playground.view.answer.note.includes('gradient flow')")
    settle(page)
    assert page.evaluate("window.playground.view.answer.training.points.length") == 80


def test_a_stale_answer_is_never_painted_over_a_newer_one(tab: Tab) -> None:
    page = tab.preset("fig1b")
    held = []

    def hold(route: object) -> None:
        body = json.loads(route.request.post_data)
        if body["inputs"][0]["tokens"][0]["x"] == 0.5:
            held.append(route)  # answered last, though asked first
        else:
            route.continue_()

    page.route("**/api/plane", hold)
    move = "(x) => window.playground.store.edit((s) => { s.inputs[0].tokens[0].x = x; }, { moving: true })"
    page.evaluate(move, 0.5)
    page.evaluate(move, -0.5)
    until(page, "window.playground.asker.painted === window.playground.asker.sent")
    newest = limits(page)
    assert len(held) == 1
    held[0].continue_()
    until(page, "window.playground.asker.flying === 0")
    assert limits(page) == newest
    page.unroute("**/api/plane")


def test_errors_of_the_server_are_told_and_survived(browser: Browser, playground: str) -> None:
    tab = Tab(browser, playground)
    try:
        page = tab.preset("fig1b")
        page.route("**/api/plane", lambda route: route.abort())
        page.evaluate("window.playground.store.edit((s) => { s.inputs[0].tokens[0].x = 0.3; })")
        page.wait_for_selector("#status:not([hidden])")
        page.unroute("**/api/plane")
        page.evaluate("window.playground.store.edit((s) => { s.inputs[0].tokens[0].x = 0.2; })")
        settle(page)
    finally:
        tab.context.close()


@pytest.mark.parametrize("tab", [{"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}],
                         indirect=True)  # fmt: skip
def test_phone(tab: Tab) -> None:
    page = tab.preset("fig1b")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    box = page.locator('[data-token="0,1"]').bounding_box()
    assert min(box["width"], box["height"]) >= 20
    before = token(page, 0, 1)
    client = tab.context.new_cdp_session(page)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    for kind, dx in (("touchStart", 0), ("touchMove", -20), ("touchMove", -40)):
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x + dx, "y": y}]})
    client.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    settle(page)
    assert token(page, 0, 1)["x"] < before["x"]


@pytest.mark.parametrize("tab", [{"color_scheme": "dark"}], indirect=True)
def test_dark_mode(tab: Tab) -> None:
    page = tab.preset("fig1b")

    def contrast() -> float:
        ink, paper = page.evaluate("['color', 'backgroundColor'].map((name) => getComputedStyle(document.body)[name])")

        def luminance(colour: str) -> float:
            parts = [int(v) / 255 for v in re.findall(r"\d+", colour)[:3]]
            linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
            return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

        low, high = sorted((luminance(ink), luminance(paper)))
        return (high + 0.05) / (low + 0.05)

    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 27)"
    assert contrast() > 7
    page.emulate_media(color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(251, 250, 247)"
    assert contrast() > 7


def test_text_words_can_be_left_out(tab: Tab) -> None:
    page = tab.open("#t=What%20a%20delightful%2C%20noisy%20kettle!")
    page.wait_for_selector(".word")
    assert "positive" in page.inner_text("#decision")
    assert "delightful" in page.inner_text("#decision")
    page.click(".word >> text=delightful")
    until(page, "document.querySelector('#decision').textContent.startsWith('negative')")
    page.click(".word >> text=delightful")
    until(page, "document.querySelector('#decision').textContent.startsWith('positive')")
    page.fill("#text", "<img src=x onerror=alert(1)> dreadful")
    until(page, "document.querySelector('#decision').textContent.includes('dreadful')")
    assert page.locator("#words img").count() == 0
    page.fill("#text", "and the kettle")
    until(page, "document.querySelector('#decision').textContent.startsWith('No word here that decides')")
    page.fill("#text", "")
    until(page, "document.querySelector('#decision').textContent.startsWith('Type')")


def saved(page: Page, button: str) -> Path:
    page.click(".menu summary")
    with page.expect_download() as download:
        page.click(button)
    return Path(download.value.path())


def test_pictures_problem_files_and_python_can_be_kept(tab: Tab, tmp_path: Path) -> None:
    page = tab.preset("three-limits")
    svg = saved(page, "#save-svg").read_text()
    assert svg.startswith("<svg")
    assert "var(--" not in svg
    assert saved(page, "#save-png").read_bytes().startswith(b"\x89PNG")
    path = tmp_path / "problem.json"
    path.write_bytes(saved(page, "#save-problem").read_bytes())
    problem = tm.load_problem(path)
    assert (problem.scores == tm.three_limits().scores).all()
    tm.figure8().save(path)
    page.set_input_files("#problem-file", path)
    until(page, "window.playground.store.now.inputs[1].tokens.length === 2")
    settle(page)
    path.write_text('{"keys": 3}')
    page.set_input_files("#problem-file", path)
    page.wait_for_selector("#status:not([hidden])")
    tab.errors = [error for error in tab.errors if "422" not in error]  # the browser logs the refusal


def test_copied_python_runs_and_agrees(tab: Tab, capsys: pytest.CaptureFixture[str]) -> None:
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = tab.preset("three-limits")
    page.click("#remove-token")  # inputs of different lengths: a mask
    settle(page)
    page.click(".menu summary")
    page.click("#copy-python")
    page.wait_for_selector("#status:not([hidden])")
    exec(page.evaluate("navigator.clipboard.readText()"), {})
    printed = capsys.readouterr().out
    names = "(selected) => selected.map((t, i) => `${'ABCDEF'[i]}${t + 1}`).join(' ')"
    selections = page.evaluate(f"() => window.playground.view.answer.limits.map((limit) => ({names})(limit.selected))")
    assert re.findall(r"^([A-F]\d(?: [A-F]\d)*) margin", printed, flags=re.M) == selections
    training = page.evaluate(f"() => ({names})(window.playground.view.answer.training.selected)")
    assert f"training leads with {training} at p = " in printed


@pytest.mark.parametrize(
    "tab", [{"viewport": {"width": w, "height": h}} for w, h in ((1280, 720), (1366, 768), (1440, 900))], indirect=True
)
def test_caption_drawing_and_play_button_are_seen_together(tab: Tab) -> None:
    page = tab.open()
    page.wait_for_selector("#caption:not([hidden])")
    height = page.evaluate("innerHeight")
    for selector in ("#caption", "#plane", "#play"):
        box = page.locator(selector).bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= height, selector
    assert page.locator("#plane").bounding_box()["height"] > 400


def test_a_token_dragged_out_of_the_drawing_stays_in_it(tab: Tab) -> None:
    page = tab.preset("fig1b")
    drag(page, '[data-token="0,1"]', 2000, 900)
    inside, outside = page.locator('[data-token="0,1"]').bounding_box(), page.locator("#plane").bounding_box()
    assert outside["x"] < inside["x"]
    assert inside["x"] + inside["width"] < outside["x"] + outside["width"]


def test_back_returns_to_the_story_before(tab: Tab) -> None:
    page = tab.preset("fig1b")
    page.select_option("#preset", "fig8")
    settle(page)
    page.go_back()
    until(page, "window.playground.store.now.inputs.length === 1")


def test_the_menu_closes_and_a_broken_link_is_told(tab: Tab) -> None:
    page = tab.open("#s=nonsense")
    assert "could not be read" in page.inner_text("#status")
    for close in (lambda: page.keyboard.press("Escape"), lambda: page.mouse.click(20, 400)):
        page.click(".menu summary")
        assert page.is_visible("#copy-link")
        close()
        assert not page.is_visible("#copy-link")
