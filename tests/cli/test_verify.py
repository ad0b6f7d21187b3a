"""`tokenmargin verify`: claims on the command line."""

import json

import pytest

from tokenmargin.cli import main

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def test_a_claim_on_its_own_instances(capsys):
    assert main(["verify", "B.lemma7", "--json"]) == 0
    reports = json.loads(capsys.readouterr().out)
    assert [(report["kind"], report["verdict"]) for report in reports] == [
        ("example", "holds"),
        ("outside", "vacuous"),
        ("refutation", "fails"),
    ]
    assert {"claim", "verdict", "slacks", "instance"} <= set(reports[0])
    assert {"role", "name", "measured", "relation", "bound", "slack", "holds"} == set(reports[0]["slacks"][0])


def test_a_given_corpus_and_dimension(capsys):
    assert main(["verify", "A.theorem5", "--n", "2", "--T", "2", "--draws", "2", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "holds"
    assert "d=3.33e+44" in report["instance"]
    assert main(["verify", "A.lemma2", "--n", "4", "--T", "3", "--d", "100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == "vacuous"


def test_a_given_problem_as_a_table(capsys):
    assert main(["verify", "B.lemma4", "fig1c"]) == 0
    captured = capsys.readouterr()
    for words in ("B.lemma4", "holds", "lead of the optimal score", "measured", "slack", "Evidence: sampled"):
        assert words in captured.out
    assert "1 checks: 1 holds" in captured.err


def test_a_problem_that_breaks_a_printed_claim(tmp_path):
    from tokenmargin.theory.paper_b.local_cone import without_neighbours

    without_neighbours().problem.save(tmp_path / "problem.json")
    assert main(["verify", "B.lemma7", str(tmp_path / "problem.json"), "--select", "0,0"]) == 1


def test_list(capsys):
    assert main(["verify", "--list"]) == 0
    assert "B.theorem8 (sampled)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["B.theorm3"], "did you mean"),
        (["B.theorem3", "--n", "4"], "give a file"),
        (["A.theorem5", "fig1b"], "give --n and --T"),
        (["--n", "4"], "say which claim"),
        (["A.theorem5", "--n", "3"], "n must be even"),
    ],
)
def test_bad_usage(arguments, words, capsys):
    assert main(["verify", *arguments]) == 2
    assert words in capsys.readouterr().err
