"""The pictures of the full-size runs: drawn from records, of the runs that the experiments' settings name."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from benchmarks.embedding_figures import (
    FIGURES,
    draw_along,
    draw_scatter,
    load,
    print_tables,
    top_weights,
    write_tables,
)
from benchmarks.gpu_training import PLANS

from tokenmargin.experiments.figures.embeddings import FigureA1, FigureA2, FigureA3Imdb, FigureA3Yelp, FigureA4
from tokenmargin.problem.corpus import TokenCorpus

JOBS = {job.name: job for jobs in PLANS.values() for job in jobs}


@pytest.mark.parametrize("figure", [FigureA1, FigureA2, FigureA3Imdb, FigureA3Yelp, FigureA4])
def test_pictures_are_of_the_settings_of_the_experiments(figure):
    first, *_, last = (*FIGURES[figure.figure], FIGURES[figure.figure][-1])
    # The pictures are of the formulas to the letter; `paper()` takes a reading of what they leave open.
    letter = {"trained_head": True, "scaled_logits": False, "affine_norm": False}
    assert JOBS[first].config == replace(figure.paper().training_config(), **letter)
    assert JOBS[last].config == figure.tuned().training_config()
    assert JOBS[last].dataset.removesuffix("-balanced") == figure.dataset


@pytest.fixture
def folder(tmp_path):
    """Records as the study writes them, of two epochs and five tokens."""
    rng = np.random.default_rng(0)
    alignment = {"rho_v": 0.5, "rho_p": 0.25, "sign": 0.75}
    records, arrays = [], {}
    for name in {name for names in FIGURES.values() for name in names}:
        job = JOBS[name]
        metrics = [{"epoch": epoch, "loss": 0.5 / epoch, **alignment} for epoch in (1, 2)]
        final = {f"final {key}": value for key, value in {"loss": 0.25, "accuracy": 1.0, **alignment}.items()}
        record = {"name": name, "dataset": job.dataset, "config": asdict(job.config), "metrics": metrics, **final}
        records.append(record | {"status": "out of time", "seconds": 1.0, "steps": 2})
        arrays[f"{name}/scores"] = rng.standard_normal((2, 5))
        arrays[f"{job.dataset}/posterior"] = rng.uniform(-1, 1, 5)
    records.append({"name": "late", "status": "not started: out of time"})
    (tmp_path / "results-all.json").write_text(json.dumps({"machine": {}, "runs": records}))
    np.savez(tmp_path / "scores-all.npz", **arrays)
    return tmp_path


def test_pictures_and_tables_from_records(folder, capsys):
    runs, arrays = load(folder)
    names = FIGURES["A4"]
    figure = draw_scatter([runs[name] for name in names], arrays)
    assert [axes.get_ylabel() for axes in figure.subfigs[0].axes] == [rf"$\langle E_s, {name}\rangle$" for name in "pv"]
    assert len(figure.subfigs) == len(names)
    assert len(draw_along(runs).axes) == 3 * (len(FIGURES) - 1)  # the small runs have a picture of their own
    write_tables(runs, folder, "training")
    lines = (folder / "training-runs.csv").read_text().splitlines()
    assert len(lines) == 1 + len(runs)
    assert all(line.endswith("out of time,2,1,0.25,1,0.5,0.25,0.75") for line in lines[1:])
    print_tables(runs)
    assert (
        "| two-layer | yelp-balanced | rate=0.001 epochs=60 | 0.25 | 0.500 | 0.250 | 0.750 | 1, 0.5, 0.50, 0.25 |"
        in (capsys.readouterr().out)
    )


def test_top_weight_counts_all_occurrences():
    corpus = TokenCorpus.of([["a", "a", "b"], ["b"]], [1, -1])
    logits = np.log([3.0, 2.0])
    # Two exponentials, added and divided: some tens of roundings.
    np.testing.assert_allclose(top_weights(logits, corpus), [6 / 8, 1.0], rtol=1e-14)
