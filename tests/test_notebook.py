"""What results look like in a notebook: one line, a table, a data frame, a picture."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from tests.oracles.rounding import rounding

import tokenmargin as tm
from tokenmargin.dynamics import cone_path, ridge_path
from tokenmargin.objective.embedding import gaussian_embeddings
from tokenmargin.problem.instances import figure3a, shared_vocabulary_problem
from tokenmargin.problem.names import input_name, parse_token, token_name

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed; it is in the extra report")
matplotlib.use("Agg")
STEP = tm.NormalizedGradientDescent(step=0.1)


def things():
    """Every kind of public object, by name."""
    problem = tm.three_limits()
    objective = tm.PromptObjective(problem)
    starts = tm.random_starts(problem, 6, rng=0)
    found = tm.atlas(problem)
    corpus = tm.selective_corpus(4, 3, rng=0)
    embeddings = gaussian_embeddings(corpus, 40, rng=0)
    high = tm.random_problem(3, 4, 6, rng=0)
    return {
        "problem": problem,
        "high problem": high,
        "gram problem": problem.as_gram(),
        "masked problem": tm.TokenProblem.of([[[1.0], [2.0]]], [1], scores=[[1.0, 0.0]], mask=[[True, False]]),
        "class problem": tm.ClassProblem.of(np.eye(6).reshape(3, 2, 6), [0, 1, 2], head=np.eye(6, 3)),
        "regression": tm.RegressionProblem.of(np.eye(4).reshape(2, 2, 4), [0.5, 2.0], head=np.ones(4)),
        "matrix problem": problem.with_matrix(np.ones(2)),
        "coordinates": problem.keys,
        "gram": problem.as_gram().keys,
        "objective": objective,
        "joint": tm.JointObjective(problem),
        "head": tm.NonlinearHead(np.tanh, np.cosh),
        "own loss": tm.CustomLoss(np.square, lambda u: 2 * u),
        "trajectory": tm.evolve(objective, STEP, steps=30, keep=("point",)),
        "trajectories": tm.evolve(objective, STEP, steps=30, start=starts, keep=("point", "loss", "weights")),
        "bare trajectory": tm.evolve(objective, STEP, steps=30, start=starts),
        "high trajectory": tm.evolve(tm.PromptObjective(high), STEP, steps=30, keep=("point",)),
        "joint trajectory": tm.evolve(tm.JointObjective(figure3a()), STEP, steps=3),
        "flow": tm.flow(objective, until_norm=100.0),
        "flow of a problem": tm.flow(problem, until_norm=10.0),
        "many": tm.evolve_many([problem], STEP, steps=5, starts=[starts]),
        "atlas": found,
        "empty atlas": tm.atlas(tm.TokenProblem.of([[[0.0], [0.0]]], [1], scores=[[1.0, 0.0]])),
        "high atlas": tm.atlas(high),
        "direction": found.limits[0],
        "solution": found.limits[0].solution,
        "infeasible": tm.max_margin(problem, [2, 0]),
        "batch": tm.max_margin_batch(problem.keys.tokens[None], np.array([[0, 0], [2, 0]])),
        "basins": tm.basins(problem, starts),
        "map": tm.basin_map(problem, resolution=5),
        "limit": tm.limit_of(problem, until_norm=1e3),
        "regularisation path": tm.regularisation_path(objective, [1.0, 10.0], rng=0, starts=2),
        "cone path": cone_path(objective, found.limits[0].solution.vector, [1.0, 10.0], width=0.1, rng=0),
        "ridge path": ridge_path(tm.JointObjective(figure3a()), [(1.0, 1.0)], rng=0, starts=2),
        "corpus": corpus,
        "embeddings": embeddings,
        "first step": tm.first_step(embeddings, 1.0),
        "claim": tm.claim("A.lemma2"),
        "report": tm.verify("A.lemma2")[0],
    }


@pytest.fixture(scope="module")
def made():
    return things()


def test_every_object_is_a_line(made):
    for name, thing in made.items():
        assert "\n" not in repr(thing), name
        assert len(repr(thing)) < 250, f"{name}: {thing!r}"
        assert "array([" not in repr(thing), name


def test_tables_become_frames_and_html(made):
    tables = [name for name, thing in made.items() if hasattr(thing, "to_frame")]
    assert len(tables) > 20
    for name in tables:
        frame = made[name].to_frame()
        rows = len(frame)
        assert list(frame.columns), name
        page = made[name]._repr_html_()
        assert page.count("<tr>") == 1 + min(rows, 10), name
        assert ("more rows" in page) == (rows > 10), name
        assert "<script" not in page


def test_a_path_that_kept_points_alone_has_their_norms():
    path = tm.evolve(tm.random_problem(2, 3, 4, rng=1), tm.NormalizedGradientDescent(0.5), steps=4, keep=("point",))
    frame = path.to_frame()
    assert frame["step"].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(frame["norm"], np.linalg.norm(path["point"], axis=1), rtol=rounding(8))


def test_an_explanation_shows_its_decision_above_the_text():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed; it is in the extra classify")
    from tokenmargin.classifier.explanation import Explanation

    nothing = {"words": (), "baseline": 0.0, "shift": 0.0, "selected": None, "span": None, "competitor": None}
    one = Explanation("a <b>", "x<y", 1.5, 0.8176, **nothing, margin=np.inf, find_tokens=tuple)
    assert one._repr_html_() == "<p><b>x&lt;y</b> (81.8%), decision +1.50<br>a &lt;b&gt;</p>"


def test_a_frame_holds_what_the_object_says(made):
    problem = made["problem"].to_frame()
    assert problem["token"].tolist() == ["A1", "A2", "A3", "A4", "B1", "B2", "B3", "B4"]
    np.testing.assert_array_equal(problem["score"], made["problem"].scores.ravel())
    assert made["class problem"].to_frame()["label"].tolist() == [0, 0, 1, 1, 2, 2]
    assert made["regression"].to_frame()["label"].tolist() == [0.5, 0.5, 2.0, 2.0]
    many = made["trajectories"].to_frame()
    assert len(many) == 31 * 6
    row = many[(many["step"] == 20) & (many["start"] == 4)]
    assert float(row["loss"].iloc[0]) == made["trajectories"]["loss"][20, 4]
    assert float(row["norm"].iloc[0]) == pytest.approx(
        np.linalg.norm(made["trajectories"]["point"][20, 4]), rel=rounding(8), abs=0
    )
    assert "weights" not in many  # not one number a run
    found = made["atlas"].to_frame()
    assert found["tokens"].tolist() == ["A1 B1", "A4 B2", "A4 B3"]
    assert found["margin"].tolist() == [limit.solution.margin for limit in made["atlas"].limits]
    assert made["infeasible"].to_frame()["farkas"].sum() == pytest.approx(1.0, rel=rounding(8), abs=0)
    # The norm is met to the tolerance of a step.
    assert made["flow"].to_frame()["norm"].iloc[-1] == pytest.approx(100.0, rel=1e-10, abs=0)
    assert made["masked problem"].to_frame()["token"].tolist() == ["A1"]
    assert len(made["empty atlas"].to_frame()) == len(made["empty atlas"].limits)


def test_frames_of_polars_where_there_is_no_pandas(made, monkeypatch):
    polars = pytest.importorskip("polars")
    monkeypatch.setitem(sys.modules, "pandas", None)
    frame = made["atlas"].to_frame()
    assert isinstance(frame, polars.DataFrame)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        made["atlas"].to_frame()


def test_everything_drawn_is_drawn_into_axes(made):
    from matplotlib import pyplot as plt

    before = dict(matplotlib.rcParams)
    drawn = (
        "problem, high problem, gram problem, masked problem, trajectory, trajectories, high trajectory, flow, atlas, "
        "high atlas, empty atlas, basins, map, limit"
    )
    for name in drawn.split(", "):
        figure, ax = plt.subplots()
        assert made[name].plot(ax) is ax, name
        assert ax.has_data() or name == "empty atlas", name
        figure.canvas.draw()
        plt.close(figure)
    own = made["problem"].plot()
    assert own.figure.get_size_inches()[0] == 3.25
    plt.close(own.figure)
    assert dict(matplotlib.rcParams) == before


def test_the_same_direction_has_the_same_colour_in_every_drawing(made):
    """A4 B3 is green in the atlas; also where it is the only limit reached, and where it has the larger basin."""
    from matplotlib import pyplot as plt

    start = made["atlas"].limits[2].solution.vector * 3
    alone = tm.evolve(tm.PromptObjective(tm.three_limits()), STEP, steps=200, start=start, keep=("point",))
    drawn = {}
    for name, thing in {"atlas": made["atlas"], "path": alone, "map": made["map"], "basins": made["basins"]}.items():
        ax = thing.plot()
        if name == "basins":
            names = [label.get_text() for label in ax.get_yticklabels()]
            drawn[name] = ax.patches[names.index("LMM A4 B3")].get_facecolor()[:3]
        else:
            handles, labels = ax.get_legend_handles_labels()
            handle = next(h for h, text in zip(handles, labels, strict=True) if "A4 B3" in text)
            shade = handle.get_color() if hasattr(handle, "get_color") else handle.get_facecolor()[0]
            drawn[name] = matplotlib.colors.to_rgb(shade)
        plt.close(ax.figure)
    assert len({tuple(np.round(shade, 6)) for shade in drawn.values()}) == 1, drawn


def test_a_path_without_points_says_how_to_keep_them(made):
    with pytest.raises(ValueError, match=r"keep=\('point',\)"):
        made["bare trajectory"].plot()


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_seed_is_as_good_as_a_generator():
    makers = (
        lambda rng: tm.random_problem(2, 3, 4, rng=rng).scores,
        lambda rng: shared_vocabulary_problem(2, 3, 4, vocabulary=5, rng=rng).scores,
        lambda rng: tm.random_starts(tm.figure1b(), 3, rng=rng),
        lambda rng: tm.evolve(tm.figure1b(), STEP, steps=3, batch=1, rng=rng).final,
        lambda rng: tm.k_level_corpus(6, rng=rng).index,
        lambda rng: tm.selective_corpus(4, 3, rng=rng).index,
        lambda rng: gaussian_embeddings(tm.selective_corpus(4, 3, rng=1), 9, rng=rng).prompt,
    )
    for make in makers:
        np.testing.assert_array_equal(make(7), make(np.random.default_rng(7)))
        for bad in (-1, 1.5, True, "0"):
            with pytest.raises(TypeError, match=r"rng must be a seed .* got"):
                make(bad)


def test_names_of_tokens_are_read_back():
    for i in (0, 25, 26, 51, 52, 701, 702, 20_000):
        assert parse_token(token_name(i, 3)) == (i, 3)
        assert re.fullmatch("[A-Z]+", input_name(i))
    for bad in ("1", "A", "A0", "1A", "", "A-1"):
        with pytest.raises(ValueError, match="named like A1"):
            parse_token(bad)


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_input_names_the_remedy():
    problem = tm.figure1b()
    with pytest.raises(ValueError, match="pad short inputs and give a mask"):
        tm.TokenProblem.of([[[0.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]]], [1, 1], head=[1.0, 0.0])
    with pytest.raises(ValueError, match=r"many classes: ClassProblem"):
        tm.TokenProblem.of(np.zeros((3, 2, 2)), [0, 1, 2], head=[1.0, 0.0])
    head = tm.NonlinearHead(lambda x: np.tanh(x).sum(-1), lambda x: np.cosh(x) ** -2)
    with pytest.raises(ValueError, match=r"must give shapes \(1,\) and \(1, 3\) .*, got \(1, 3\) and \(1, 3\)"):
        tm.HeadObjective(problem, head=tm.NonlinearHead(np.tanh, np.cosh))
    for ask in (tm.atlas, lambda item: tm.evolve_many([item], STEP, steps=1)):
        with pytest.raises(TypeError, match=r"takes a TokenProblem, got HeadObjective; .* flow\(objective\)"):
            ask(tm.HeadObjective(problem, head=head))
