"""Figures 6 and 7 at a size for tests: on generated images, since CIFAR-10 is not here."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from benchmarks import gpu_vision, vision_figures
from scipy.stats import spearmanr

from tokenmargin._statistics import spearman
from tokenmargin.data.datasets import DatasetError
from tokenmargin.data.images import ImageSet, make_glyphs
from tokenmargin.experiments import command
from tokenmargin.experiments.figures.vision import Figure6, Figure7, correlation_interval
from tokenmargin.report.figures import draw

SMALL = {"images": 400, "test_images": 100, "epochs": 4, "patch": 8, "batch": 20, "rate": 3e-3}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENMARGIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_both_figures_come_from_one_run(empty_cache):
    shares: list[float] = []
    seventh = replace(Figure7.quick(), **SMALL).run(shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert seventh.tables["curves"]["epoch"].tolist() == [0, 1, 2, 3, 4]
    # The cosine of a vector with itself, in single precision.
    assert seventh.tables["curves"]["direction"][-1] == pytest.approx(1.0, rel=1e-6, abs=0)
    assert "generated images stand in" in seventh.notes[0]
    assert seventh.verdict == "stand-in"
    assert {finding.verdict for finding in seventh.findings} == {"measured"}
    assert seventh.title.endswith("(generated images standing in for CIFAR-10)")
    for table in seventh.tables.values():
        assert len({len(column) for column in table.values()}) == 1
    (folder,) = (empty_cache / "vision").iterdir()
    before = sorted(path.name for path in folder.glob("step-*"))
    sixth = replace(Figure6.quick(), **SMALL).run()
    assert sorted(path.name for path in folder.glob("step-*")) == before  # no step was taken again
    assert all((sixth.tables["maps"][name] == seventh.tables["maps"][name]).all() for name in sixth.tables["maps"])
    assert len(draw(sixth).axes) == 1 + 5 * 6  # five images, each beside its maps of five epochs
    sparsity, norm = draw(seventh).axes
    assert "sparsity" in sparsity.get_ylabel()
    assert r"\|W\|_F" in norm.get_ylabel()
    with pytest.raises(DatasetError, match="tokenmargin data get cifar10"):
        replace(Figure7.quick(), substitute=False).run()


def test_settings_are_the_printed_ones():
    paper = Figure7.paper()
    assert (paper.size, paper.epochs, paper.rate, paper.schedule, paper.patch) == ("base", 400, 3e-3, "constant", 2)
    assert paper.config().epochs == 400
    assert Figure6.short().config() == replace(gpu_vision.SHORT, precision=Figure6.short().config().precision)
    assert command(Figure7.short()) == "tokenmargin reproduce fig7 --scale short"


def test_rank_correlation_and_its_interval():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 30))
    y[:5] = y[0]  # ties
    expected = spearmanr(x, y).statistic
    assert spearman(x, y) == pytest.approx(expected, rel=1e-13, abs=0)
    rho, low, high = correlation_interval(x, y)
    # Sums of thirty products of ranks up to thirty.
    assert rho == pytest.approx(expected, rel=1e-13, abs=0)
    assert low < rho < high
    assert correlation_interval(x, np.exp(x)) == (1.0, 1.0, 1.0)
    assert np.isnan(correlation_interval(x, np.ones(30))).all()
    assert np.isnan(correlation_interval(x[:1], y[:1])).all()


def test_the_interval_covers_as_it_says():
    """Independent points: the interval should miss zero in 5 of 100 samples; 14 is four deviations (2.2) above."""
    rng = np.random.default_rng(1)
    intervals = [correlation_interval(*rng.normal(size=(2, 40)), draws=300) for _ in range(100)]
    assert sum(not low <= 0 <= high for _, low, high in intervals) <= 14


def test_the_page_of_a_study(tmp_path, capsys):
    made = make_glyphs(120, rng=np.random.default_rng(0))
    config = replace(gpu_vision.SHORT, size="nano", patch=16, epochs=2, batch=20, precision="float32")
    jobs = [gpu_vision.VisionJob("short", config), gpu_vision.VisionJob("other", replace(config, rate=1e-3))]
    out = tmp_path / "results"
    gpu_vision.run_plan(
        jobs, ImageSet(made.images, made.labels, 20), runs=tmp_path / "runs", out=out, device="cpu", budget=600.0,
        compiled=False,
    )  # fmt: skip
    assert "finished" in capsys.readouterr().out
    assert json.loads((out / "vision-short.json").read_text())["images"]["training"] == 100
    vision_figures.main(out, out=tmp_path / "docs")
    page = (tmp_path / "docs" / "vision-results.md").read_text()
    assert "## Other settings" in page
    assert {path.name for path in (tmp_path / "docs").rglob("*.*")} == {
        "vision-results.md", "vision-fig6.png", "vision-fig7.png", "vision-layers.png", "vision-curves.csv",
        "vision-heads.csv",
    }  # fmt: skip
    gpu_vision.run_plan(
        jobs, ImageSet(made.images, made.labels, 20), runs=tmp_path / "runs", out=out, device="cpu", budget=1.0,
        compiled=False,
    )  # fmt: skip
    assert "short: not started, 1 s left" in capsys.readouterr().out
