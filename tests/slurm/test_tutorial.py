"""docs/tutorial.md, word by word, on the real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster
from tutorial import PAGE, Walk

from launcher.run.files import read_lines


@pytest.mark.slurm
def test_the_tutorial_ends_with_a_run_that_came_back(tmp_path: Path, cluster: Cluster) -> None:
    """The drill passes, the preempted run saves, is requeued and goes on at the very next step, and each verb says so."""
    walk = Walk(tmp_path, cluster.env)
    assert "passed" in walk.do("launcher dry-run fit.yaml")
    assert "submitted" in walk.do("launcher submit fit.yaml")
    walk.wait_step(50)

    walk.do('sbatch --partition=high --nodes=4 --exclusive --wrap "sleep 10"')
    end = walk.wait_end()

    assert (end["state"], end["step"]) == ("completed", 400)
    events = read_lines(walk.run.events)
    (stopped,) = (e for e in events if e["type"] == "stopped")
    first, second = (e["step"] for e in events if e["type"] == "first_step")
    assert (first, second, stopped["lost_steps"]) == (1, stopped["step"] + 1, 0)
    assert "preempted, 0 steps lost" in walk.do("launcher status @last")
    said = walk.do("launcher why @last")
    assert "The run completed after step 400, with 1 interruption. The last: SLURM preempted the run" in said
    assert ".html" in walk.do("launcher report @last")
    assert "launcher watch @last" in PAGE
