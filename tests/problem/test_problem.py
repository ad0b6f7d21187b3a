"""TokenProblem: validation, files, and the other views of a problem."""

import io
import json
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.rounding import of_logits, rounding

from tokenmargin.problem.instances import NAMED_PROBLEMS, figure1c, figure3b, random_problem, shared_vocabulary_problem
from tokenmargin.problem.problem_files import ProblemFileError, load_problem
from tokenmargin.problem.token_problem import TokenProblem

KEYS = np.arange(12.0).reshape(2, 3, 2)


def test_scores_are_label_times_head_on_value() -> None:
    problem = random_problem(3, 4, 5, rng=np.random.default_rng(0))
    for i, t in np.ndindex(3, 4):
        value = problem.values.tokens[i, t]
        apart = rounding(5, float(np.abs(value) @ np.abs(problem.head)))
        assert problem.scores[i, t] == pytest.approx(problem.labels[i] * value @ problem.head, rel=0, abs=apart)


def test_gram_view_has_the_same_scores_and_logits() -> None:
    problem = shared_vocabulary_problem(3, 4, 5, vocabulary=9, rng=np.random.default_rng(1))
    start = np.random.default_rng(2).standard_normal(5)
    gram = problem.as_gram(start[None])
    of_scores = rounding(5, float((np.abs(problem.values.vectors) @ np.abs(problem.head)).max()))
    np.testing.assert_allclose(gram.scores, problem.scores, rtol=0, atol=of_scores)
    apart = of_logits(problem, start) + of_logits(gram, gram.keys.unit(9))
    np.testing.assert_allclose(gram.keys.logits(gram.keys.unit(9)), problem.keys.logits(start), rtol=0, atol=apart)


def test_gram_view_of_a_problem_given_by_scores() -> None:
    problem = TokenProblem.of(KEYS, [1, -1], scores=np.ones((2, 3)))
    assert problem.as_gram().scores.tolist() == problem.scores.tolist()


def test_a_dictionary_costs_its_own_size() -> None:
    problem = shared_vocabulary_problem(1000, 20, 8, vocabulary=50, rng=np.random.default_rng(3))
    assert problem.keys.vectors.nbytes == 50 * 8 * 8


@pytest.mark.parametrize("suffix", [".npz", ".json"])
@pytest.mark.parametrize("name", sorted(NAMED_PROBLEMS))
def test_files_give_back_what_was_saved(tmp_path, suffix: str, name: str) -> None:
    problem = NAMED_PROBLEMS[name]()
    problem.save(tmp_path / f"p{suffix}")
    again = load_problem(tmp_path / f"p{suffix}")
    np.testing.assert_array_equal(again.keys.tokens, problem.keys.tokens)
    np.testing.assert_array_equal(again.values.tokens, problem.values.tokens)
    np.testing.assert_array_equal(again.scores, problem.scores)
    np.testing.assert_array_equal(again.labels, problem.labels)


def test_ragged_and_scored_problems_survive_a_file(tmp_path) -> None:
    mask = np.array([[True, True, False], [True, False, True]])
    problem = TokenProblem.of(KEYS, [1, -1], scores=KEYS[..., 0], mask=mask)
    problem.save(tmp_path / "p.npz")
    again = load_problem(tmp_path / "p.npz")
    np.testing.assert_array_equal(again.mask, mask)
    np.testing.assert_array_equal(again.scores, problem.scores)


def test_json_files_may_write_the_mask_as_numbers(tmp_path) -> None:
    content = {"keys": KEYS.tolist(), "labels": [1, -1], "head": [1, 0], "mask": [[1, 1, 0], [1, 1, 1]]}
    (tmp_path / "p.json").write_text(json.dumps(content))
    assert load_problem(tmp_path / "p.json").mask.sum() == 5


def test_padding_may_hold_anything() -> None:
    keys = KEYS.copy()
    keys[0, 2] = np.nan
    mask = np.ones((2, 3), dtype=bool)
    mask[0, 2] = False
    assert np.isfinite(TokenProblem.of(keys, [1, 1], head=[1, 1], mask=mask).scores).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [1, 1, 1], "head": [1, 0]}, r"labels must be numbers of shape \(2,\)"),
        ({"labels": [0, 1], "head": [1, 0]}, r"labels must be -1 or \+1, got 0; map 0/1 labels"),
        ({"labels": [1, np.nan], "head": [1, 0]}, "labels must be finite"),
        ({"labels": ["a", "b"], "head": [1, 0]}, "labels must be numbers"),
        ({"labels": [1, 1]}, "exactly one of head"),
        ({"labels": [1, 1], "head": [1, 0], "scores": np.ones((2, 3))}, "exactly one of head"),
        ({"labels": [1, 1], "head": [1, 0, 0]}, r"head must be numbers of shape \(2,\)"),
        ({"labels": [1, 1], "head": [1, np.inf]}, "head must be finite, got inf at 1"),
        ({"labels": [1, 1], "scores": np.ones((3, 2))}, r"scores must be numbers of shape \(n, T\) = \(2, 3\)"),
        (
            {"labels": [1, 1], "scores": np.full((2, 3), np.nan)},
            "scores must be finite, got nan for token 0",
        ),
        (
            {"labels": [1, 1], "head": [1, 0], "values": np.ones((2, 2, 2))},
            "values and keys must describe",
        ),
    ],
)
def test_bad_problems_are_refused_with_a_reason(arguments: dict, message: str) -> None:
    labels = arguments.pop("labels")
    with pytest.raises((TypeError, ValueError), match=message):
        TokenProblem.of(KEYS, labels, **arguments)


def test_a_malicious_file_is_never_unpickled(tmp_path) -> None:
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "touched"), "w"))

    for bomb in (Bomb(), np.array([Bomb()], dtype=object)):
        with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
            buffer = io.BytesIO()
            if isinstance(bomb, Bomb):
                pickle.dump(bomb, buffer)
            else:
                np.lib.format.write_array(buffer, bomb, allow_pickle=True)
            archive.writestr("keys.npy", buffer.getvalue())
        with pytest.raises(ProblemFileError, match=r"p\.npz"):
            load_problem(tmp_path / "p.npz")
    assert not (tmp_path / "touched").exists()


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch) -> None:
    figure1c().save(tmp_path / "p.npz")
    monkeypatch.setattr("tokenmargin.problem.problem_files.LARGEST_FILE", 100)
    with pytest.raises(ProblemFileError, match="more than the 100 allowed"):
        load_problem(tmp_path / "p.npz")


def test_bytes_that_become_doubles_are_counted_as_doubles(tmp_path) -> None:
    """150 MB of small integers would take 4.8 GB: told from the header, before anything is unpacked."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|i1", "fortran_order": False, "shape": (150_000_000, 1, 1)})
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        archive.writestr("keys.npy", buffer.getvalue())
    with pytest.raises(ProblemFileError, match=r"takes 49\d{8} bytes in memory, more than the 4294967296 allowed"):
        load_problem(tmp_path / "p.npz")


@pytest.mark.parametrize("shape", [(300_000, 1), (100, 500)])
def test_a_problem_takes_no_more_memory_than_was_counted(tmp_path, monkeypatch, shape) -> None:
    keys = np.ones((*shape, 1), np.int8)
    np.savez(tmp_path / "p.npz", keys=keys, values=keys, labels=np.ones(shape[0]), head=np.ones(1))
    tracemalloc.start()
    load_problem(tmp_path / "p.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    monkeypatch.setattr("tokenmargin.problem.problem_files.LARGEST_FILE", peak - 1)
    with pytest.raises(ProblemFileError, match="more than the"):
        load_problem(tmp_path / "p.npz")


@given(st.data())
@settings(max_examples=60)
def test_damaged_bytes_give_a_named_error_or_the_problem(tmp_path_factory, data) -> None:
    path = tmp_path_factory.mktemp("damaged") / "p.npz"
    figure3b().save(path)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    else:
        for _ in range(data.draw(st.integers(1, 8))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        load_problem(path)
    except ProblemFileError as error:
        assert "p.npz" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.json", "{", "not valid JSON"),
        ("p.json", "[1]", "a problem is a JSON object"),
        ("p.json", "[" * 100_000, "not valid JSON"),
        ("p.json", '{"keys": [[[1]]]}', "no field 'labels'"),
        ("p.json", '{"keys": [[[1]]], "labels": [1], "heads": [1]}', "unknown field 'heads'"),
        ("p.json", '{"keys": [[[1], [2, 3]]], "labels": [1], "head": [1]}', "not a rectangular array"),
        ("p.json", '{"keys": [[["a"]]], "labels": [1], "head": [1]}', "real numbers"),
        ("p.json", '{"keys": [[[1]]], "labels": [1], "head": [1], "mask": [[2]]}', "mask must hold booleans"),
        ("p.txt", "", "ends in .npz or .json"),
        ("p.npz", "PK nothing", "not a readable .npz"),
    ],
)
def test_unreadable_files_say_why(tmp_path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ProblemFileError, match=message):
        load_problem(tmp_path / name)


def test_missing_files_and_wrong_suffixes(tmp_path) -> None:
    with pytest.raises(ProblemFileError, match="no such file"):
        load_problem(tmp_path / "none.npz")
    with pytest.raises(ValueError, match=r"ends in \.npz or \.json, got '\.csv'"):
        figure1c().save(tmp_path / "p.csv")
    with pytest.raises(TypeError, match="in coordinates can be saved"):
        figure1c().as_gram().save(tmp_path / "p.npz")
    with pytest.raises(TypeError, match="in Gram space already"):
        figure1c().as_gram().as_gram()


@pytest.mark.parametrize(("n", "T", "d"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_random_problems_need_sizes(n: int, T: int, d: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        random_problem(n, T, d, rng=np.random.default_rng(0))


def test_random_problems_lie_on_the_sphere_and_follow_their_seed() -> None:
    first, second = (random_problem(4, 6, 7, rng=np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(first.keys.vectors, second.keys.vectors)
    lengths = np.linalg.norm(first.keys.vectors, axis=1)
    np.testing.assert_allclose(lengths, 1.0, rtol=rounding(2 * first.keys.dimension))
    with pytest.raises(ValueError, match="no token twice"):
        shared_vocabulary_problem(2, 5, 3, vocabulary=4, rng=np.random.default_rng(0))


def test_tensors_that_are_no_arrays_say_what_to_do() -> None:
    torch = pytest.importorskip("torch")
    wanted = r"tokens must be a rectangular array of numbers \(.*tensor.detach\(\).numpy\(\).*\); give an array"
    with pytest.raises(ValueError, match=wanted):
        TokenProblem.of(torch.zeros(2, 3, 2, requires_grad=True), [1, 1], head=[1, 0])
    with pytest.raises(ValueError, match="BFloat16"):
        TokenProblem.of(torch.zeros(2, 3, 2, dtype=torch.bfloat16), [1, 1], head=[1, 0])
