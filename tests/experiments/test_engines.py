"""A sweep on a ray cluster of several nodes, one of which is killed on the way: nothing lost, nothing twice."""

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.experiments.studies import Study

from tokenmargin.experiments import Axis, Grid, RayEngine, sweep

ray = pytest.importorskip("ray", reason="ray is not installed (pip install 'tokenmargin[cluster]')")
CELLS = 90


# Ray leaves handles of its own open when it shuts down.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_node_killed_in_mid_sweep(ray_cluster, tmp_path: Path) -> None:
    machines, nodes = ray_cluster(2)
    cells = Grid(Study(pause=0.05), (Axis("seed", range(CELLS)),))
    killed = threading.Event()

    def kill_a_node(progress) -> None:
        if not killed.is_set():
            killed.set()
            machines.remove_node(nodes[0], allow_graceful=False)

    run = sweep(cells, tmp_path / "ray", engine=RayEngine(), table="draws", progress=kill_a_node)
    assert killed.is_set()
    assert run.details()["failed"] == 0
    assert Counter(run.table("draws")["cell"].tolist()) == dict.fromkeys(range(CELLS), 3)
    values = np.concatenate([cells[cell].run().tables["draws"]["value"] for cell in (0, 40, CELLS - 1)])
    kept = run.table("draws")
    np.testing.assert_array_equal(kept["value"][np.isin(kept["cell"], (0, 40, CELLS - 1))], values)


def test_no_cluster_is_started_that_others_could_reach() -> None:
    with pytest.raises(ValueError, match="ray needs the address of a cluster"):
        RayEngine().connect()
    assert not ray.is_initialized()
