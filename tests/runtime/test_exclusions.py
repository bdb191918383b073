"""Hosts that a run keeps its next attempt off: bounded in time, in number, and to one submission."""

from __future__ import annotations

import pytest

from launcher.run import events
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, Work
from launcher.runtime import slurm_allocation
from launcher.runtime.slurm_allocation import SlurmAllocation, excluded_before
from launcher.slurm.commands import Answer

DAY = 86400.0


def excluded(t, *hosts):
    return {"type": "excluded", "t": t, "hosts": list(hosts), "why": "x"}


def test_exclusions_age_and_end_with_the_submission():
    """Those of the last day count, older ones are known so that they are taken back, and a resubmission forgets all."""
    history = [excluded(0, "n1"), {"type": "submitted", "t": 1}, excluded(2, "n2"), excluded(DAY, "n3")]

    assert excluded_before(history, DAY + 10) == {"n2": False, "n3": True}
    assert excluded_before([*history, {"type": "submitted", "t": DAY + 1}], DAY + 10) == {}


@pytest.fixture
def allocation(tmp_path, monkeypatch):
    spec = RunSpec(
        id="r", name="r", run_dir=str(tmp_path), work=Work(kind="task", target="m:C"), batch="slurm", nodes=2,
        tasks_per_node=1, timeout_min=5, backend="gloo", control_ports=[20000],
    )  # fmt: skip
    said = []
    sinfo = "\n".join(f"n{i} {'down*' if i == 4 else 'idle'}" for i in range(5))
    monkeypatch.setattr(slurm_allocation, "ask", lambda *words, **_: Answer(words, 0, sinfo))
    monkeypatch.setattr(
        slurm_allocation.handback, "exclude", lambda job, hosts, instead_of: said.append((hosts, instead_of))
    )
    paths = RunPaths(tmp_path)
    return SlurmAllocation(spec, paths, {"SLURM_JOB_ID": "5"}), paths, said


def test_enough_hosts_are_left_whatever_was_wrong_with_them(allocation):
    """Four of five hosts are up and two are needed: two may be excluded; of three only the newest; of three new ones none."""
    slurm, paths, said = allocation
    slurm._exclude(())
    events.append(paths.events, events.event("excluded", attempt=0, hosts=["n1"], why="x"))

    slurm._exclude(("n2",))
    slurm._exclude(("n2", "n3"))
    slurm._exclude(("n0", "n2", "n3"))
    slurm._exclude(())

    assert said == [(("n2", "n1"), ("n1",)), (("n2", "n3"), ("n1",)), ((), ("n1",)), (("n1",), ("n1",))]
