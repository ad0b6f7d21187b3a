"""`tokenmargin verify`: claims on the command line."""

import json

import pytest

from tokenmargin.cli import main

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def test_a_claim_on_its_own_instances(capsys):
    assert main(["verify", "B.lemma7-proof-constants", "--json"]) == 0
    reports = json.loads(capsys.readouterr().out)
    assert [(report["kind"], report["verdict"]) for report in reports] == [
        ("example", "holds"),
        ("outside", "vacuous"),
        ("refutation", "fails"),
    ]
    assert {"claim", "verdict", "slacks", "instance"} <= set(reports[0])
    numbers = {"measured", "relation", "bound", "slack", "holds", "proven", "refuted"}
    assert {"role", "name"} | numbers == set(reports[0]["slacks"][0])


def test_a_given_corpus_and_dimension(capsys):
    assert main(["verify", "A.theorem5", "--n", "2", "--T", "2", "--delta", "0.5", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "holds"
    assert "draws=6" in report["instance"]  # as many as can show a probability of at most one half
    assert "d=3.33e+44" in report["instance"]
    assert main(["verify", "A.lemma2", "--n", "4", "--T", "3", "--d", "100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == "vacuous"


@pytest.fixture
def reviews(tmp_path):
    """A corpus under Assumption 4, and one of unequal lengths that breaks it."""
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    one.write_text("text,label\ngood film the,pos\nfine film a,pos\nbad film a,neg\nbad film the,neg\n")
    other.write_text("text,label\ngood good good film,1\ngood film,1\nbad film,0\nbad bad bad bad good film,0\n")
    return str(one), str(other)


def test_a_corpus_of_ones_own(reviews, capsys):
    assert main(["verify", "A.length", "--corpus", reviews[0], "--draws", "2", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "holds"
    (length,) = (slack for slack in report["slacks"] if slack["name"] == "|p^|^2")
    # The square of a certified length, of a residual of 1e-10 at most.
    assert length["measured"] == pytest.approx(3 * 3 / 6, rel=3e-10, abs=0)
    assert main(["verify", "A.theorem5", "--corpus", reviews[1], "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "vacuous"
    broken = {slack["name"] for slack in report["slacks"] if not slack["holds"]}
    assert broken == {"sequences that break Assumption 4", "longest sequence minus shortest"}


def test_rows_of_a_corpus_that_are_left_out_are_named(tmp_path, capsys):
    texts = tmp_path / "texts.csv"
    texts.write_text("text,label\ngood film,1\n,0\nbad film,0\n")
    assert main(["verify", "--corpus", str(texts), "--json"]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out)["sequences"] == 2
    assert "1 rows left out" in found.err
    assert "line 3: no text" in found.err


def test_a_selection_of_ones_own(reviews, capsys):
    """Lemma 20 holds unless everything is selected."""
    given = ["verify", "A.lemma20", "--corpus", reviews[0], "--d", "40", "--draws", "2", "--json"]
    for selection, verdict in (("important", "holds"), ("everything", "fails"), ("random", "holds")):
        assert main([*given, "--select", selection]) == (verdict == "fails")
        (report,) = json.loads(capsys.readouterr().out)
        assert report["verdict"] == verdict
        assert selection == "random" or f"selection={selection}" in report["instance"]


def test_a_sequence_without_important_tokens_is_named(tmp_path, capsys):
    texts = tmp_path / "texts.csv"
    texts.write_text("text,label\ngood film,pos\nfilm film,pos\nfilm film,neg\n")
    given = ["verify", "A.lemma9", "--corpus", str(texts), "--d", "40", "--draws", "2"]
    assert main(given) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "sequence 1 has no completely positive or negative token" in line
    assert main([*given, "--select", "random"]) == 0


def test_the_statistics_of_a_corpus(reviews, capsys):
    assert main(["verify", "--corpus", reviews[1], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    words = {word["token"]: word for word in found["words"]}
    # One division.
    assert words["good"]["signed_frequency"] == pytest.approx(3 / 14, rel=1e-15, abs=0)
    assert words["good"]["posterior_difference"] == 0.6
    assert (words["film"]["class"], words["bad"]["class"]) == ("irrelevant", "completely negative")
    assert not found["assumption4"]
    assert [row["sequence"] for row in found["offending"]] == [0, 1, 3]
    assert main(["verify", "--corpus", reviews[0]]) == 0
    shown = capsys.readouterr().out
    assert "Assumption 4 holds" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_given_problem_as_a_table(capsys):
    assert main(["verify", "B.lemma4", "fig1c"]) == 0
    captured = capsys.readouterr()
    for words in ("B.lemma4", "holds", "lead of the optimal score", "measured", "slack", "Evidence: sampled"):
        assert words in captured.out
    assert "1 check: 1 holds" in captured.err


def test_a_problem_that_breaks_a_printed_claim(tmp_path):
    from tokenmargin.theory.paper_b.local_cone import without_neighbours

    without_neighbours().problem.save(tmp_path / "problem.json")
    given = [str(tmp_path / "problem.json"), "--select", "0,0"]
    assert main(["verify", "B.lemma7-proof-constants", *given]) == 1
    assert main(["verify", "B.lemma7", *given]) == 0  # the lemma asks for some cone, and there is one


def test_a_direction_of_ones_own(tmp_path, capsys):
    from tokenmargin.theory import claim

    claim("B.theorem4").example().problem.save(tmp_path / "problem.json")
    given = ["verify", "B.theorem4", str(tmp_path / "problem.json"), "--json", "--q"]
    assert main([*given, "1,0.5"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == "holds"
    assert main([*given, "1,0.5,2"]) == 2
    assert "2 finite numbers" in capsys.readouterr().err


def test_what_cannot_be_told_says_what_would_decide(capsys):
    assert main(["verify", "B.theorem6", "--json"]) == 0
    open_ = [report for report in json.loads(capsys.readouterr().out) if report["verdict"] == "undecided"]
    assert open_
    assert all(found["would_decide"] for report in open_ for found in report["undecided"])


def test_list(capsys):
    assert main(["verify", "--list"]) == 0
    assert "B.theorem8 (sampled)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["B.theorm3"], "did you mean"),
        (["B.theorem3", "--n", "4"], "give a file"),
        (["A.theorem5", "fig1b"], "give --corpus, or --n and --T"),
        (["A.theorem5", "--corpus", "nowhere.csv"], "no such file"),
        (["A.theorem5", "--corpus", "nowhere.csv", "--n", "4"], "leave out one"),
        (["A.theorem5", "--n", "4", "--delta", "2"], "between 0 and 1"),
        (["A.theorem5", "--n", "2", "--q", "1"], "no direction q"),
        (["A.theorem5", "--delta", "0.1"], "--delta is for a given instance"),
        (["B.theorem4", "--q", "1,0"], "--q is for a given instance"),
        (["A.theorem5", "--n", "2", "--select", "tied"], "not about the selection"),
        (["A.lemma3", "--n", "2", "--select", "0,1"], "random, tied, important, everything; got 0,1"),
        (["B.theorem3", "fig1b", "--d", "300"], "leave out --corpus"),
        (["--n", "4"], "say which claim"),
        (["A.theorem5", "--n", "3"], "n must be even"),
    ],
)
def test_bad_usage(arguments, words, capsys):
    assert main(["verify", *arguments]) == 2
    assert words in capsys.readouterr().err
