"""The numbers of docs/figures.md are those of the figures: computed again where that takes seconds."""

from pathlib import Path

import pytest
from benchmarks import figure_table

from tokenmargin.experiments import EXPERIMENTS, record

PAGE = Path(__file__).parents[2] / "docs" / "figures.md"
QUICK = ("fig1a", "fig1b", "fig1c", "fig2", "fig3a", "fig3b", "fig3c", "fig4a", "fig4b", "fig5")


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", QUICK)
def test_the_page_has_the_numbers_of_the_run(name: str, tmp_path: Path, capsys) -> None:
    experiment = next(experiment for experiment in EXPERIMENTS if experiment.figure == name)
    details = record(experiment.quick(), tmp_path).details()
    written = figure_table.read(PAGE.read_text(encoding="utf-8"))
    assert {what for figure, what in written if figure == name} == {f["what"] for f in details["findings"]}
    for finding in details["findings"]:
        value, expected = written[name, finding["what"]]
        # Six digits are printed. Distances that are nothing but rounding differ between processors.
        assert value == pytest.approx(finding["measured"], rel=1e-3, abs=1e-10), finding["what"]
        assert expected == ("" if finding["verdict"] == "measured" else finding["expected"])
    figure_table.main(tmp_path)
    assert figure_table.read(capsys.readouterr().out).keys() == {(name, f["what"]) for f in details["findings"]}
