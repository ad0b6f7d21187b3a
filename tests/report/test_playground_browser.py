"""What the server adds to the article, in Chromium: a problem and a model of the reader's own. `test_explore_browser`
tests the article itself."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tokenmargin as tm

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine: install Debian's chromium, or Chrome", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
Page, Browser = playwright.Page, playwright.Browser

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


PATIENCE = 120_000  # milliseconds: the first answer compiles what it needs, and the machine may be busy


@pytest.fixture
def page(browser: Browser, playground: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The seventh section with its example answered; nothing may go wrong in it, or be asked of anyone else."""
    size = getattr(request, "param", (1280, 720))
    context = browser.new_context(viewport=dict(zip(("width", "height"), size, strict=True)), accept_downloads=True)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    refused = ("422", "ERR_FAILED")  # the browser logs what the server refuses, and the line that a test cuts
    page.on(
        "console",
        lambda said: (
            wrong.append(said.text) if said.type == "error" and not any(map(said.text.count, refused)) else None
        ),
    )
    page.on(
        "request",
        lambda asked: None if asked.url.startswith((playground, "blob:", "data:")) else wrong.append(asked.url),
    )
    page.goto(f"{playground}#own")
    until(page, "window.explore.own.overview")
    yield page
    context.close()
    assert not wrong


def until(page: Page, condition: str) -> None:
    """Wait for a condition; a function, since the page's policy forbids evaluating text."""
    page.wait_for_function(f"() => {condition}", timeout=PATIENCE)


def asked_for(page: Page, selection: list[int]) -> None:
    until(page, f"`${{window.explore.own.asked}}` === '{','.join(map(str, selection))}'")


def open_file(page: Page, path: Path) -> None:
    page.set_input_files("#problem-file", path)


def test_a_problem_of_any_dimension_is_opened_certified_and_saved(page: Page, tmp_path: Path) -> None:
    problem = tm.random_problem(4, 5, 30, rng=np.random.default_rng(1))
    problem.save(tmp_path / "mine.json")
    open_file(page, tmp_path / "mine.json")
    until(page, "window.explore.own.name === 'mine.json' && window.explore.own.overview")
    assert "4 inputs of 5 tokens in 30 dimensions" in page.inner_text('[data-live="own"]')
    assert page.locator(".band").count() == 4
    assert page.is_hidden('[data-act="own-move"]')
    page.click('[data-ask="0,0"]')
    until(page, "window.explore.own.asked[0] === 0")
    asked = page.evaluate("() => window.explore.own.asked")
    solution = tm.max_margin(problem, asked)
    shown = page.inner_text("#evidence")
    assert f"{solution.margin:.6f}"[:-1] in shown
    page.click("#limits .limit >> nth=0")
    asked_for(page, tm.atlas(problem, budget=500).limits[0].selected.tolist())
    page.click("#keep summary")
    with page.expect_download() as download:
        page.click("#save-problem")
    fields = json.loads(Path(download.value.path()).read_text())
    assert fields == json.loads((tmp_path / "mine.json").read_text())


def test_an_infeasible_selection_is_refuted_in_the_drawing(page: Page, tmp_path: Path) -> None:
    line = tm.TokenProblem.of([[[0.0, 0, 0], [1, 0, 0], [-1, 0, 0]]], [1], scores=[[1, 0, 0.5]])
    line.save(tmp_path / "line.json")
    open_file(page, tmp_path / "line.json")
    until(page, "window.explore.own.name === 'line.json'")
    assert "No direction selects A1" in page.inner_text("#caption")
    assert "Farkas weight against A2" in page.inner_text("#evidence")
    assert page.locator(".difference").count() == 2
    assert page.locator(".band").count() == 0


def test_a_set_is_listed_as_one_and_without_an_answer_no_plane_is_explained(page: Page, tmp_path: Path) -> None:
    keys = [[0.0, 0, 1], [1, 0, 0], [1, 0, 0]]
    for name, scores, listed in (("equal", [1, 1, 1], "Training settles on no"), ("set", [0, 1, 1], "A2+A3")):
        tm.TokenProblem.of([keys], [1], scores=[scores]).save(tmp_path / f"{name}.json")
        open_file(page, tmp_path / f"{name}.json")
        until(page, f"window.explore.own.name === '{name}.json' && window.explore.own.overview")
        assert listed in page.inner_text("#limits")
        assert ("Across is p" in page.inner_text('[data-live="own"]')) == (name == "set")
        assert "Seen in the plane" not in page.inner_text('[data-live="own"]')


def test_the_pictures_and_the_library_exchange_problems(page: Page) -> None:
    page.evaluate("() => window.explore.show('settle')")
    page.evaluate("() => window.explore.show('own')")
    page.click('[data-act="own-picture"]')
    until(page, "window.explore.own.overview?.limits.length === 3")
    margins = page.evaluate("() => window.explore.own.overview.limits.map(({ margin }) => margin)")
    page.click('[data-act="own-move"]')
    assert page.evaluate("() => window.explore.view.section") == "settle"
    # Margins of both solvers, JavaScript's and the library's, held to 1e-9 by `benchmarks.explore_plane`.
    assert page.evaluate("() => window.explore.view.picture.limits.map(({ margin }) => margin)") == pytest.approx(
        margins, rel=1e-9, abs=0
    )
    page.go_back()
    until(page, "window.explore.view.section === 'own'")


def test_what_cannot_be_shown_is_told_and_nothing_is_lost(page: Page, tmp_path: Path) -> None:
    before = page.inner_text("#caption")
    large = json.dumps({"keys": [[[0]]] * 30, "labels": [1] * 30, "scores": [[0]] * 30})
    for content, reason in (("{", "is not JSON"), ('{"keys": 3}', "no field 'labels'"), (large, "at most 26")):
        (tmp_path / "bad.json").write_text(content)
        open_file(page, tmp_path / "bad.json")
        until(page, f"document.querySelector('#toast').textContent.includes({json.dumps(reason)})")
    page.route("**/api/problem", lambda route: route.abort())
    page.click('[data-act="own-best"]')
    until(page, "document.querySelector('#toast').textContent.includes('still running')")
    page.unroute("**/api/problem")
    assert page.inner_text("#caption") == before


@pytest.mark.parametrize("page", [(1280, 720), (1440, 900), (390, 844)], indirect=True)
def test_the_section_is_seen_whole(page: Page) -> None:
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    for selector in ("#caption", "#disc", "#keep"):
        box = page.locator(selector).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= page.viewport_size["width"] + 1, selector
        assert box["y"] + box["height"] <= page.viewport_size["height"]
    for section in ("tokens", "words", "own"):
        page.evaluate("(section) => window.explore.show(section)", section)
        assert page.inner_text("#caption")


def test_words_are_decided_under_the_policy(page: Page) -> None:
    page.evaluate("() => window.explore.show('words')")
    page.fill("#typed", "a dreadful ferry")
    assert page.inner_text("#caption").startswith("negative")
    page.evaluate("() => window.explore.show('settle')")
    until(page, "window.explore.view.ground?.last")  # its worker runs


def test_a_model_that_a_page_cannot_read_decides_behind_it(browser: Browser) -> None:
    """Words cut by a pipeline: the page asks, and shows what the library says."""
    import threading

    import uvicorn

    from tokenmargin.classifier import TokenSelectionClassifier
    from tokenmargin.data.pipeline import Pipeline
    from tokenmargin.report.playground.server import create_app, listen

    texts = ["a fine walk", "a dull walk", "walking was fine", "walking was dull"] * 10
    model = TokenSelectionClassifier(Pipeline(stemmer="english"), random_state=0).fit(texts, ["good", "bad"] * 20)
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(model), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{listener.getsockname()[1]}/#words")
    page.fill("#typed", "😀 Walked: fine!")
    until(page, "document.querySelector('#caption').textContent.startsWith('good')")
    assert [node.inner_text() for node in page.locator("#sentence .lit").all()][-2:] == ["Walked", "fine"]
    page.click("#sentence .lit >> text=fine")
    until(page, "!document.querySelector('#caption').textContent.startsWith('good')")
    page.close()
    server.should_exit = True
    thread.join(timeout=20)
