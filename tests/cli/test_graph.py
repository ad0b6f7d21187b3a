"""`tokenmargin graph` on toy files and on text."""

import json

import pytest

from tokenmargin.cli import main

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

TOY = {
    "sequences": [[1, 2, 3, 0], [2, 1, 0], [1, 2, 0], [3, 1, 0], [3, 2, 4]],
    "next": [1, 2, 1, 1, 3],
    "vocabulary": ["is", "good", "great", "film", "a"],
}


@pytest.fixture
def toy(tmp_path):
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(TOY))
    return path


def test_graph_as_json_and_picture(toy, tmp_path, capsys):
    picture = tmp_path / "toy.svg"
    assert main(["graph", str(toy), "--json", "--picture", str(picture)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["sequences"], report["last_tokens"], report["components_of_several"]) == (5, 2, 1)
    assert report["limit"]["certified"]
    first = report["graphs"][0]
    assert first["last"] == "is"
    assert first["components"][0]["tokens"] == ["good", "great"]
    # Newton's method to a gradient of 1e-9 or less.
    assert first["components"][0]["shares"] == pytest.approx([2 / 3, 1 / 3], rel=1e-9, abs=0)
    assert {"from": "good", "to": "film", "count": 2} in first["edges"]
    assert "good" in picture.read_text(encoding="utf-8") or picture.stat().st_size > 1000


def test_graph_in_words_fits_a_terminal(toy, capsys):
    assert main(["graph", str(toy), "--last", "a", "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "after 'a'" in out
    assert "... and 2 more components" in out
    assert max(map(len, out.splitlines())) <= 80


def test_graph_of_labelled_text(tmp_path, capsys):
    path = tmp_path / "texts.csv"
    path.write_text("text,label\na b a b a c a,pos\nb a b c b a,neg\n")
    assert main(["graph", str(path), "--window", "3"]) == 0
    assert "sequences" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "extra", "message"),
    [
        ({"sequences": [[0, 1]], "next": [2]}, [], "its next token 2 is not one of its tokens"),
        ({"sequences": [[]], "next": [0]}, [], "sequence 0 is empty"),
        (TOY, ["--last", "film"], "no sequence ends in it; most end in is, a"),
        (TOY, ["--picture", "graph.txt"], "--picture writes"),
        (TOY, ["--limit", "0"], "--limit must be at least 1"),
    ],
)
def test_bad_usage_is_one_line(tmp_path, capsys, content, extra, message):
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(content))
    assert main(["graph", str(path), *extra]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
