"""The public notebooks on next tokens: one draw of each; `tokenmargin reproduce ntp-global ntp-local` runs all ten."""

import pytest

from tokenmargin.experiments.figures.next_token import NextTokenGlobal, NextTokenLocal, drawn_problems

pytest.importorskip("torch", reason="the notebooks' draws are torch's")


def test_the_draws_are_the_notebooks():
    """Sequences and next tokens that both notebooks print for their first and second draws."""
    (first, _), (second, _) = drawn_problems(2, unused=1)
    assert first.tokens.reshape(6, 4).tolist()[0] == [1, 2, 5, 4]
    assert first.labels.tolist() == [1, 5, 5, 0, 1, 3]
    assert second.tokens.reshape(6, 4).tolist()[-1] == [3, 4, 0, 1]
    assert second.labels.tolist() == [5, 0, 4, 4, 0, 3]


@pytest.mark.usefixtures("unchecked_shapes")
def test_one_draw_of_each():
    result = NextTokenGlobal(draws=1).run()
    assert all(finding.holds for finding in result.findings), [f.what for f in result.findings if not f.holds]
    early = NextTokenLocal(draws=1, steps=300).run().tables["draws"]
    assert early["certified"].all()
    # Where the gradient is still long the guard does nothing: autograd and the stable direction take the same steps.
    assert early["guarded"] == pytest.approx(early["cosine"], abs=1e-6)
