"""A sample of the audit of claims on random instances: `python -m benchmarks.claims_audit` runs hundreds of each."""

import pytest
from benchmarks.claims_audit import audit, families
from benchmarks.theorem5_corpora import HEAD, replicate, row

from tokenmargin.theory import CLAIMS, claim
from tokenmargin.theory.paper_a.flow import MISALIGNED

SLOW = (
    "B.lemma12",
    "B.lemma13",
    *(f"D.theorem{k}{end}" for k in range(1, 6) for end in ("", "-repaired")),
)  # seconds an instance
STARTS = ("B.lemma", "C.separability", "C.rank", "D.")
QUICK = [known.name for known in CLAIMS if known.name.startswith(STARTS) and known.name not in SLOW]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", QUICK)
def test_no_claim_fails_that_is_not_listed_as_false(name):
    tally = audit(claim(name), 3, seed=1)
    assert tally.verdicts.total() == 3
    assert not tally.lies, tally.fails


def test_every_claim_of_paper_b_has_families():
    assert all(families(known) for known in CLAIMS if known.name.startswith("B."))


def test_a_replication_of_theorem_5():
    """`python -m benchmarks.theorem5_corpora` draws a hundred of each size; its table has a line for them."""
    found = replicate(2, 2, 0)
    assert found.grew
    assert found.selected
    assert found.only
    assert 0 <= found.one_minus_cosine < MISALIGNED
    cells = row(2, 2, [found]).strip("| ").split(" | ")
    assert len(cells) == len(HEAD)
    assert cells[:6] == ["2", "2", "64", "3.3e+44", "1", "1"]
