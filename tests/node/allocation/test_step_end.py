"""How the last call of a leader ends the processes that are left."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.node.allocation import slurm_allocation as slurm
from launcher.node.allocation import step_end
from launcher.node.allocation.slurm_allocation import SlurmAllocation
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, Work
from launcher.slurm.commands import Answer
from launcher.slurm.jobs import JobFacts


class World:
    """SLURM's word, srun's presence, and what was asked."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states = ["RUNNING"]
        self.has_srun = True
        self.asked: list[tuple[str, ...]] = []
        self.slept: list[float] = []
        self._now = 0.0
        self._spec = RunSpec(
            id="r", name="r", run_dir=str(tmp_path), work=Work(kind="task", target="m:C"), batch="slurm", nodes=2,
            tasks_per_node=1, timeout_min=5, backend="gloo",
        )  # fmt: skip
        monkeypatch.setattr(step_end, "end_srun", lambda environ: self.has_srun and environ["SLURM_JOB_ID"] == "5")
        monkeypatch.setattr(
            step_end, "ask", lambda *words, **_: (self.asked.append(words), Answer(words, 0, "", ""))[1]
        )
        monkeypatch.setattr(slurm, "job_facts", lambda *_, **__: self._facts())
        monkeypatch.setattr(slurm, "controller_time", lambda **_: None)
        monkeypatch.setattr(step_end.time, "sleep", self._sleep)
        monkeypatch.setattr(step_end.time, "monotonic", lambda: self._now)

    def end_step(self, step: str = "0") -> None:
        """The leader's last call, in ``step``."""
        environ = {"SLURM_JOB_ID": "5", **({"SLURM_STEP_ID": step} if step else {})}
        SlurmAllocation(self._spec, RunPaths(Path(self._spec.run_dir)), environ).end_step()

    def _facts(self) -> JobFacts | None:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return JobFacts(job_id="5", state=state, restarts=0, end_t=9e9) if state else None

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._now += seconds


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A job that goes on."""
    return World(tmp_path, monkeypatch)


def test_where_the_batch_script_ends_with_its_srun_no_step_is_killed(world: World) -> None:
    """Before 25.05.1 SLURM may drain the host of a step that is killed as its tasks end: the job's end ends the steps instead."""
    world.states = ["RUNNING", "", "COMPLETING"]

    world.end_step()

    assert world.asked == []
    assert len(world.slept) == 2


@pytest.mark.parametrize("state", ["RUNNING", ""])
def test_where_the_job_goes_on_all_the_same_its_steps_are_killed(world: World, state: str) -> None:
    """As where it was the srun of somebody's script that was killed, or SLURM does not answer: after 15 s."""
    world.states = [state]

    world.end_step()

    assert world.asked == [("scancel", "--signal=KILL", "5.0")]
    assert sum(world.slept) == pytest.approx(15, abs=0.3)


def test_where_no_srun_is_seen_agents_have_time_to_exit_and_the_own_step_is_killed_last(world: World) -> None:
    """In a container with process ids of its own; the agents have just left. The leader was started again, in step 2."""
    world.has_srun = False

    world.end_step("2")

    assert world.asked == [("scancel", "--signal=KILL", "5.0"), ("scancel", "--signal=KILL", "5.2")]
    assert sum(world.slept) == pytest.approx(2, abs=0.3)


def test_outside_a_step_nothing_is_ended(world: World) -> None:
    """A process of the batch script's own."""
    world.end_step("")

    assert world.asked == world.slept == []
