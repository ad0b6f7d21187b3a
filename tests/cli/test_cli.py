"""The command line: data on standard output, messages on standard error, exit codes 0, 1 and 2."""

import inspect
import json
import re
import subprocess
import sys
from dataclasses import fields
from itertools import chain

import numpy as np
import pytest

from tokenmargin.cli import VERBS, main
from tokenmargin.cli.reproduce import reproduce, sweep
from tokenmargin.experiments import EXPERIMENTS
from tokenmargin.experiments.figures.prompt_paths import Figure1a, Figure1b, Figure1c
from tokenmargin.experiments.provenance import MODULES
from tokenmargin.margin import max_margin
from tokenmargin.problem.instances import figure1b, random_problem
from tokenmargin.problem.token_problem import TokenProblem

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_lists_every_verb_and_loads_nothing_heavy() -> None:
    check = (
        "import sys; from tokenmargin.cli import main; code = main(['--help']);"
        "heavy = {'torch', 'matplotlib', 'numpy', 'scipy'} & set(sys.modules); assert not heavy, heavy; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    for verb in chain(*VERBS.values()):
        assert verb.__name__ in done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    check = "import sys, tokenmargin; assert not {'torch', 'matplotlib', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize("verb", [verb.__name__ for verb in chain(*VERBS.values())])
def test_every_verb_explains_itself_with_an_example(capsys, verb: str) -> None:
    code, out, _ = run(capsys, verb, "--help")
    assert code == 0
    assert f"tokenmargin {verb}" in out
    assert "Example" in out


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tokenmargin", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip()


def test_solve_gives_the_certified_answer_as_json(capsys, tmp_path) -> None:
    problem = random_problem(3, 4, 8, rng=np.random.default_rng(0))
    problem.save(tmp_path / "p.npz")
    code, out, _ = run(capsys, "solve", str(tmp_path / "p.npz"), "--select", "0,2,1", "--json")
    answer = json.loads(out)
    expected = max_margin(problem, [0, 2, 1])
    assert code == 0
    assert answer["status"] == "optimal"
    assert answer["vector"] == expected.vector.tolist()
    assert answer["margin"] == expected.margin
    assert answer["residual"] == expected.certificate.residual
    assert answer["active"] == expected.tokens[expected.active].tolist()
    assert all(pair in answer["neighbours"] for pair in answer["active"])
    assert {"locally_optimal", "globally_optimal"} <= set(answer)


def test_solve_reads_json_files_and_names(capsys, tmp_path) -> None:
    figure1b().save(tmp_path / "p.json")
    by_file = json.loads(run(capsys, "solve", str(tmp_path / "p.json"), "--select", "1", "--json")[1])
    by_name = json.loads(run(capsys, "solve", "fig1b", "--select", "1", "--json")[1])
    assert by_file["vector"] == by_name["vector"] == [1.0, 0.0, 0.0]
    assert by_name["locally_optimal"]
    assert not by_name["globally_optimal"]
    assert by_name["neighbours"] == [[0, 2]]


def test_an_infeasible_selection_is_an_answer(capsys, tmp_path) -> None:
    problem = TokenProblem.of([[[0.0], [1.0], [-1.0]]], [1], head=[1.0])
    problem.save(tmp_path / "p.npz")
    code, out, _ = run(capsys, "solve", str(tmp_path / "p.npz"), "--select", "0", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["status"] == "infeasible"
    assert answer["vector"] is None
    assert answer["farkas"] == [0.5, 0.5]
    assert "no direction satisfies the constraints" in run(capsys, "solve", str(tmp_path / "p.npz"), "--select", "0")[1]


def test_solve_for_people(capsys) -> None:
    code, out, _ = run(capsys, "solve", "fig1c")
    assert code == 0
    assert "optimal tokens   yes" in out
    assert "A7 B6" in out
    assert "alike" not in out


def test_solve_says_which_tokens_training_need_not_leave_behind(capsys, tmp_path) -> None:
    """ATT-SVM parts tokens of one score; training does not, so its answer is not where training goes."""
    problem = TokenProblem.of([[[1.0, 1], [1, -1], [0, 0]]], [1], scores=[[1.0, 1, 0]])
    problem.save(tmp_path / "p.npz")
    assert "A2: as good in training" in run(capsys, "solve", str(tmp_path / "p.npz"), "-s", "A1")[1]
    assert "alike" not in run(capsys, "solve", str(tmp_path / "p.npz"), "-s", "A3")[1]


def test_a_flow_that_rests_is_compared_with_no_direction(capsys, tmp_path) -> None:
    problem = TokenProblem.of(
        [[[0.0], [1.0], [-1.0]], [[0.0], [1.0], [1.5]]], [1, 1], scores=[[1.0, 0, 0], [0.2, 0.4, 0]]
    )
    problem.save(tmp_path / "p.npz")
    _, out, _ = run(capsys, "evolve", str(tmp_path / "p.npz"), "--method", "flow")
    assert "at rest" in out
    assert "angle" not in out
    alone = TokenProblem.of([[[1.0, 2.0]]], [1], scores=[[1.0]])
    alone.save(tmp_path / "one.npz")
    assert "every p selects these tokens" in run(capsys, "evolve", str(tmp_path / "one.npz"))[1]


def test_short_keys_are_followed_as_far_as_others(capsys, tmp_path) -> None:
    """Keys of 1e-25: the flow goes to 1e8 in their own unit, not to 1e8, where nothing has happened yet."""
    TokenProblem.of([[[1e-25], [0.0]]], [1], scores=[[1.0, 0.0]]).save(tmp_path / "p.npz")
    report = json.loads(run(capsys, "evolve", str(tmp_path / "p.npz"), "--method", "flow", "--json")[1])
    assert report["saturation"] == 1
    assert report["norm"] > 1e30


def test_atlas_lists_every_limit(capsys, tmp_path) -> None:
    code, out, _ = run(capsys, "atlas", "fig8", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["complete"]
    assert [limit["selected"] for limit in found["limits"]] == [[0, 0], [0, 1]]
    assert len(found["arcs"]) == 4
    random_problem(4, 5, 9, rng=np.random.default_rng(0)).save(tmp_path / "random.npz")
    code, out, _ = run(capsys, "atlas", str(tmp_path / "random.npz"), "--budget", "10", "--limit", "1")
    assert code == 1
    assert "PARTIAL" in out
    assert run(capsys, "atlas", "fig8", "--budget", "0")[0] == 2


def test_evolve_compares_with_the_certified_direction(capsys) -> None:
    code, out, _ = run(capsys, "evolve", "fig1b", "--start", "0,-1,0", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["selected"] == [1]
    assert answer["direction"]["vector"] == [1.0, 0.0, 0.0]
    assert answer["cosine"] > 0.999
    # An arc cosine of 0.999 and more keeps a third of the digits and more; a length, all.
    assert answer["angle"] == pytest.approx(np.arccos(answer["cosine"]), rel=1e-3, abs=0)
    assert answer["norm"] == pytest.approx(np.linalg.norm(answer["final"]), rel=1e-15 * 8, abs=0)
    assert answer["saturation"] > 0.999


def test_evolve_trains_head_and_prompt_together(capsys) -> None:
    answer = json.loads(run(capsys, "evolve", "fig3b", "--train", "joint", "--start=-1,0,0,-1", "--json")[1])
    assert answer["direction"]["problem"] == "relaxed"
    assert answer["cosine"] > 0.999


def test_evolve_saves_its_trajectory(capsys, tmp_path) -> None:
    code, out, err = run(
        capsys, "evolve", "fig1a", "--method", "gd", "--steps", "50", "--save", str(tmp_path / "path.npz")
    )
    assert code == 0
    assert "angle" in out
    assert "wrote" in err
    with np.load(tmp_path / "path.npz") as kept:
        assert kept["point"].shape == (51, 3)
        assert set(kept) == {"at", "point", "norm", "loss", "saturation", "settings"}


def test_evolve_without_a_direction_to_compare_with(capsys) -> None:
    answer = json.loads(run(capsys, "evolve", "fig1a", "--steps", "0", "--json")[1])
    assert answer["angle"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("solve",), "PROBLEM"),
        (("solve", "fig1b", "--select", "9"), "out of range"),
        (("solve", "fig1b", "--select", "a,b"), "--select names one token of every input"),
        (("solve", "fig1b", "--select", "0,1"), "1 integers"),
        (("solve", "nothing"), "or one of fig1a"),
        (("solve", "nothing.npz"), "no such file"),
        (("solve", "fig1b", "--nonsense"), "nonsense"),
        (("evolve", "fig1b", "--step", "-1"), "positive number"),
        (("evolve", "fig1b", "--steps", "-1"), "at least 0"),
        (("evolve", "fig1b", "--start", "1,2"), "3 numbers"),
        (("evolve", "fig1b", "--method", "sideways"), "sideways"),
        (("evolve", "fig1b", "--save", "x.csv"), "npz"),
        (("reproduce", "fig99"), "no figure 'fig99'"),
        (("reproduce", "fig1a", "--stepz", "3"), "there are --step, --steps"),
        (("reproduce", "fig1a", "--steps", "many"), "steps must be a whole number, got 'many'"),
        (("sweep", "fig1a", "--over", "steps"), "NAME=FIRST..LAST"),
        (("sweep", "fig1a", "--over", "stepz=1,2"), "no setting 'stepz'"),
        (("sweep", "fig1a", "--over", "steps=1,1"), "repeat"),
        (("sweep", "fig1a", "--over", "steps=1,2", "--address", "auto"), "--engine ray"),
        (("sweep", "fig1a", "--over", "steps=1,2", "--engine", "ray"), "ray needs the address of a cluster"),
        (("runs", "show", "nothing"), "names 0 runs"),
        (("runs", "compare", "one"), "two runs"),
        (("fly",), "fly"),
    ],
)
def test_bad_usage_is_exit_code_2_with_a_reason(capsys, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert not out


def test_reproduce_writes_tables_pictures_and_a_page(capsys, tmp_path) -> None:
    code, out, err = run(capsys, "reproduce", "fig1b", "fig4a", "--out", str(tmp_path), "--json")
    runs = json.loads(out)
    assert code == 0
    assert [run["experiment"] for run in runs] == ["fig1b", "fig4a"]
    assert all(run["verdict"] == "as expected" for run in runs)
    files = ("figures/fig1b.svg", "figures/fig1b.pdf", "figures/fig1b.png", "tables/limits.parquet", "run.json")
    for name in files:
        assert (tmp_path / runs[0]["id"] / name).stat().st_size > 0
    page = (tmp_path / "reproduction.html").read_text(encoding="utf-8")
    linked = re.findall(r'<a href="([^"#]+)"', page)
    assert f"{runs[1]['id']}/figures/fig4a.pdf" in linked
    assert all((tmp_path / place).is_file() for place in linked)
    assert "yes" in err


def test_reproduce_lists_what_there_is(capsys) -> None:
    code, out, _ = run(capsys, "reproduce", "--list")
    assert code == 0
    assert all(experiment.figure in out for experiment in EXPERIMENTS)
    code, out, _ = run(capsys, "reproduce", "fig1b", "--list")
    assert code == 0
    assert "--step " in out


def test_what_cannot_run_is_named_and_the_rest_runs(capsys, monkeypatch, tmp_path) -> None:
    def fail(self, progress=None):
        raise ArithmeticError("no luck [today]")

    monkeypatch.setattr("tokenmargin.experiments.EXPERIMENTS", (Figure1a, Figure1b, Figure1c))
    monkeypatch.setattr(Figure1a, "run", fail)
    monkeypatch.setattr(Figure1b, "needs", ("train",))
    monkeypatch.setitem(MODULES, "train", ("a_module_that_is_not_there",))
    code, out, err = run(capsys, "reproduce", "--out", str(tmp_path), "--json")
    assert code == 1
    assert [run["experiment"] for run in json.loads(out)] == ["fig1c"]
    assert "ArithmeticError: no luck [today]" in err
    assert "tokenmargin[train]" in err
    assert "1 as expected, 2 not run" in err
    page = (tmp_path / "reproduction.html").read_text(encoding="utf-8")
    assert "no luck [today]" in page
    code, _, err = run(capsys, "reproduce", "fig1b", "--out", str(tmp_path))
    assert code == 2
    assert "fig1b needs pip install 'tokenmargin[train]'" in err


def test_every_setting_is_a_flag(capsys, tmp_path) -> None:
    arguments = ("reproduce", "fig1b", "fig4a", "--steps", "60", "--plain-step=0.5", "--out", str(tmp_path), "--json")
    code, out, _ = run(capsys, *arguments)
    assert code == 1  # too few steps to align
    first, second = json.loads(out)
    assert first["config"] == {"steps": 60, "step": 0.1}
    assert second["config"]["plain_step"] == 0.5
    assert first["command"] == "tokenmargin reproduce fig1b --steps 60"


def test_no_setting_hides_behind_an_option_of_the_command() -> None:
    options = {name.rstrip("_") for verb in (reproduce, sweep) for name in inspect.signature(verb).parameters}
    for experiment in EXPERIMENTS:
        assert not options & {field.name for field in fields(experiment)}, experiment


def test_sweep_makes_one_table_and_runs_lists_shows_and_removes_it(capsys, tmp_path) -> None:
    arguments = ("sweep", "fig1b", "--over", "step=0.1,-1", "--over", "steps=1..2", "--out", str(tmp_path), "--json")
    code, out, err = run(capsys, *arguments)
    details = json.loads(out)
    assert code == 1
    assert (details["cells"], details["failed"]) == (4, 2)
    assert details["command"] == "tokenmargin sweep fig1b --over step=0.1,-1.0 --over steps=1..2"
    assert "--table failures" in err
    code, out, _ = run(capsys, "runs", "--out", str(tmp_path), "--json")
    assert [row["verdict"] for row in json.loads(out)] == ["2 of 4 failed"]
    code, out, _ = run(capsys, "runs", "show", "sweep", "--table", "failures", "--out", str(tmp_path))
    assert "step must be a positive number" in out
    assert "Traceback" in out
    assert run(capsys, "runs", "check", "--out", str(tmp_path))[:2] == (0, f"{details['id']}  whole\n")
    assert run(capsys, "runs", "remove", "sweep", "--out", str(tmp_path))[0] == 0
    assert json.loads(run(capsys, "runs", "--out", str(tmp_path), "--json")[1]) == []


def test_runs_can_be_compared(capsys, tmp_path) -> None:
    for steps in ("50", "60"):
        run(capsys, "reproduce", "fig1b", "--steps", steps, "--out", str(tmp_path))
    first, second = (row["id"] for row in json.loads(run(capsys, "runs", "--out", str(tmp_path), "--json")[1]))
    code, out, _ = run(capsys, "runs", "compare", first, second, "--out", str(tmp_path))
    assert code == 1
    assert "settings  steps: " in out
    assert "table     directions: the same, bit for bit" in out
    assert run(capsys, "runs", "compare", first, first, "--out", str(tmp_path))[0] == 0
    out = run(capsys, "runs", "show", first, "--out", str(tmp_path))[1]
    assert "starts that reach the GMM, of 6: 4\n" in out
    assert "starts from which gradient flow reaches the same limit, of 6: 6 (expected 6)" in out


def test_a_missing_extra_is_named(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "tokenmargin.report.figures", None)
    code, _, err = run(capsys, "reproduce", "fig1a", "--out", str(tmp_path))
    assert code == 2
    assert "tokenmargin[report]" in err


def test_demo_tells_its_story_and_says_where_the_page_is(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "demo", "--out", "demo", "--json")
    assert code == 0
    assert json.loads(out)["verdict"] == "as expected"
    assert "10 are proven impossible" in err
    assert "All as the theory says" in err
    assert "GMM  A1 B1  margin 0.5367" in err
    assert len(err.strip().splitlines()) < 20
    assert all((tmp_path / "demo" / name).is_file() for name in ("index.html", "explore.html", "report.html"))
    assert "explore.html" in err.split("Open in a browser:")[1].splitlines()[1]
    page = (tmp_path / "demo" / "index.html").read_text(encoding="utf-8")
    assert "The other 3 can be picked, but a token on the margin scores higher there" in page
    assert "<svg" in page
    assert "src=" not in page  # self-contained


def test_json_loads_no_experiment():
    """Writing JSON is no reason to import every figure."""
    program = (
        "import sys; from tokenmargin.cli import main; main(['atlas', 'fig1b', '--json']);"
        "sys.exit(any(name.startswith(('tokenmargin.experiments', 'rich', 'matplotlib')) for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
