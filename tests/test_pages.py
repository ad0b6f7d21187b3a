"""Commands on the pages can be given as they stand; printed programs print what the pages say."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import shlex
from pathlib import Path

import pytest

from tokenmargin.experiments import experiment_named

ROOT = Path(__file__).parents[1]
PAGES = {
    page.relative_to(ROOT).as_posix(): re.sub(r" \\\n\s*", " ", page.read_text(encoding="utf-8"))
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
SAID = [  # (page, program, output): a block of Python followed by what it prints
    (name, *found)
    for name, text in PAGES.items()
    for found in re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
]
OTHERS = ("heavy-tails", "my-study", "my_study:MyStudy", "heavy.scaling", "methods --over method=NAME")
"""What only whoever has installed or written it can name (docs/extending.md), and what is no value."""


def commands(name: str, prefix: str) -> list[str]:
    """The commands of a page that begin with `prefix`: lines of its blocks, and what stands in backquotes."""
    text = PAGES[name]
    blocks = [line.strip().removeprefix("$ ") for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
              for line in block.splitlines()]  # fmt: skip
    spans = [
        " ".join(span.split()) for span in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    ]
    found = [
        one.partition(prefix)[2] for one in (*blocks, *spans) if re.match(rf"(torchrun .*)?{re.escape(prefix)}", one)
    ]
    return [one for one in (re.split(r"\s#\s|\[--", command)[0].strip() for command in found) if "..." not in one]


@pytest.mark.parametrize("name", PAGES)
def test_commands_can_be_given_as_they_stand(name: str) -> None:
    from tokenmargin.cli import VERBS, app

    verbs = {verb.__name__ for group in VERBS.values() for verb in group}
    for command in {*commands(name, "tokenmargin "), *commands(name, "-m tokenmargin ")}:
        words = shlex.split(command)
        if len(words) < 2 or words[0] not in verbs or any(other in command for other in OTHERS):
            assert words[0] in {*verbs, "--help"}, f"{name}: no command {words[0]}"
            continue
        if words == ["prepare", "sentences"]:  # the page speaks of it, and where it goes is said elsewhere
            continue
        _, bound, *_ = app.parse_args(words, exit_on_error=False, print_error=False)
        if words[0] in ("reproduce", "sweep"):
            figures = bound.args[0] if words[0] == "reproduce" and bound.args else bound.args[:1]
            kinds = {field for figure in figures for field in inspect.signature(experiment_named(figure)).parameters}
            flags = bound.kwargs.keys() - {"scale", "out", "list_", "again", "over", "table", "engine", "address"}
            assert not bound.args or {flag.replace("-", "_") for flag in flags} <= kinds, f"{name}: {command}"


@pytest.mark.parametrize("name", PAGES)
def test_benchmarks_have_the_flags_that_pages_give(name: str) -> None:
    for command in commands(name, "python -m benchmarks."):
        module, *words = command.split()
        place = ROOT / "benchmarks" / f"{module}.py"
        assert place.exists(), f"{name}: python -m benchmarks.{command}"
        source = place.read_text(encoding="utf-8")
        if 'f"--{' in source:  # a flag for every field of its settings
            continue
        taken = set(re.findall(r"\b([a-z_]+): ", source))  # keywords of its functions, where flags are taken from them
        flags = [word for word in words if word.startswith("--") and f'"{word}"' not in source]
        missing = [flag for flag in flags if flag[2:].replace("-", "_") not in taken]
        assert not missing, f"{name}: {place.name} has no {missing}"


def same(said: str, found: str) -> bool:
    """Equal words; numbers to a unit of the last digit printed, since another processor rounds the last bit otherwise.

    What is printed as 1e-13 is a residual or a gap: rounding itself, of which only the size is said.
    """
    number = r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?"
    if re.sub(number, "#", said).split() != re.sub(number, "#", found).split():
        return False
    for one, other in zip(re.findall(number, said), re.findall(number, found), strict=True):
        unit = 10.0 ** -len(one.partition("e")[0].partition(".")[2]) * 10.0 ** int(one.partition("e")[2] or 0)
        if (
            abs(float(one) - float(other)) > max(1.01 * unit, 1e-12)
            and not max(map(abs, map(float, (one, other)))) < 1e-6
        ):
            return False
    return True


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("page", "program", "said"), SAID, ids=[page for page, *_ in SAID])
def test_programs_print_what_the_pages_say(page: str, program: str, said: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program, {})
    assert same(said, out.getvalue()), out.getvalue()


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_program_prints_what_its_comments_say(page: str) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program, {})
    said = re.findall(r"print\(.*\)  # (.*)", program)
    solution, angle = out.getvalue().splitlines()
    assert same(said[0].split(", residual")[0], solution.split(", residual")[0])
    assert angle.startswith(said[1].rstrip("."))


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_first_commands_print_what_the_readme_says(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'tokenmargin[classify]')")
    from tokenmargin.cli import main

    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```console\n(.*?)```", PAGES["README.md"], re.DOTALL)
    assert len(blocks) == 2  # see, and use
    for block in blocks:
        for command, said in re.findall(r"\$ tokenmargin (.*)\n((?:[^$].*\n)*)", block):
            assert main(shlex.split(command)) == 0
            printed = "".join(capsys.readouterr())
            expected = said.removesuffix("...\n").splitlines()
            assert same("\n".join(expected), "\n".join(printed.splitlines()[: len(expected)]))


def test_the_graph_of_next_tokens_is_the_one_on_its_page(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'tokenmargin[report]')")
    from tokenmargin.cli import main

    ((command, said),) = re.findall(r"```text\n\$ tokenmargin (.*?)\n(.*?)```", PAGES["docs/next-token.md"], re.DOTALL)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)) == 0
    assert same(said, capsys.readouterr().out)
    assert (tmp_path / "graph.png").exists()
