"""`environment.stage` in a plan: what the script runs on the nodes, what the user is told, and where it is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from planning import PYTHON, facts

from launcher.config.load.load import LoadedJob
from launcher.errors import ConfigError
from launcher.submission.facts.facts import StagedFiles
from launcher.submission.plan.plan import plan
from launcher.submission.plan.submission_plan import SubmissionPlan

Make = Callable[..., LoadedJob]
STAGED = StagedFiles(
    "/scratch/ann/runs/.environments-1000",
    ("/home/ann/envs/ml", "/home/ann/py 3"),
    (),
    40_000,
    1_400_000_000,
    "feed",
    ("/home/ann/lab/src",),
)
STAGE_SH = "/scratch/ann/runs/resnet50-1121-0842-k7f/lib/launcher/node/allocation/stage.sh"


def planned(job: Make, stage: bool | str = True, staged: StagedFiles = STAGED, **more: Any) -> SubmissionPlan:
    """The plan of a job that stages its environment."""
    return plan(job(environment={"stage": stage}, **more), facts(staged=staged))


def test_the_batch_script_carries_and_every_agent_starts_from_the_copy(job: Make) -> None:
    """The archive goes out before anything starts; the first agents, and those that the keeper starts again, enter the copy."""
    made = planned(job)
    lines = made.sbatch.splitlines()
    archive = "/scratch/ann/runs/.environments-1000/feed.tar"
    enter = (
        f"/bin/sh {STAGE_SH} enter {archive} /tmp 1400000000 0=/home/ann/envs/ml '1=/home/ann/py 3' "
        "lib=/scratch/ann/runs/resnet50-1121-0842-k7f/lib -- /home/ann/envs/ml/bin/python -u -m "
    )

    carry = lines.index(f"/bin/sh {STAGE_SH} carry {archive} /tmp")
    (keeper,) = (line for line in lines if line.startswith("coproc KEEPER"))
    (srun,) = (line for line in lines if line.startswith("srun "))
    assert carry < lines.index(keeper) < lines.index(srun)
    assert f"{enter}launcher.node.agent" in keeper
    assert f"{enter}submitit.core._submit" in srun
    assert made.staged == STAGED
    assert subprocess.run(["bash", "-n"], input=made.sbatch, text=True, check=False).returncode == 0


def test_a_node_may_have_its_own_storage_elsewhere(job: Make) -> None:
    """A folder instead of true."""
    made = planned(job, "/local/scratch")

    assert " /local/scratch 1400000000 " in made.sbatch
    assert " /tmp " not in made.sbatch


@pytest.mark.parametrize("wrong", ["scratch", "/a b", 3, None, ["/tmp"], "/tmp\n"])
def test_another_value_is_refused_with_what_is_right(job: Make, wrong: object) -> None:
    """The path becomes part of a script on every node."""
    with pytest.raises(ConfigError, match="must be true, false or an absolute path without spaces and quotes"):
        job(environment={"stage": wrong})


def test_a_replacement_stages_too(job: Make) -> None:
    """The job that replaces a node runs the same script with arguments: the archive is carried to its node before its agent starts."""
    lines = planned(job, resources={"nodes": "2-4", "replace": True}).sbatch.splitlines()

    (joins,) = (line for line in lines if line.startswith("[ $# = 0 ] || exec srun"))
    assert lines.index(joins) > next(i for i, line in enumerate(lines) if " carry " in line)
    assert " enter " in joins


def test_the_plan_tells_what_is_carried_and_what_is_not(job: Make) -> None:
    """The size, the place, that a tmpfs is memory; and each folder that is read from the shared file system as before."""
    made = planned(job)

    assert any(
        "40,000 files, 1.4 GB, carried to /tmp of each node (memory, where that is a tmpfs)" in line
        for line in made.summary
    )
    assert (
        "environment.stage: /home/ann/lab/src is outside the environment and still read from the shared file system"
        in made.warnings
    )


def test_the_local_backend_stages_nothing(job: Make) -> None:
    """A rehearsal of the same job starts from the environment itself."""
    made = plan(job(environment={"stage": True}), facts(backend="local", staged=STAGED))

    assert made.staged is None
    assert not any("carried" in line or "environment.stage" in line for line in made.summary)
    assert "stage.sh" not in made.command


def test_an_environment_of_the_system_is_refused(job: Make) -> None:
    """There is nothing to carry: better said now than seen in no gain."""
    with pytest.raises(ConfigError, match="the system's own, which each node has; remove this key"):
        planned(job, staged=replace(STAGED, roots=()))


def test_a_container_is_refused(job: Make) -> None:
    """What a container imports is in its image."""
    with pytest.raises(ConfigError, match=r"environment\.stage: Python starts from the container's image"):
        job(environment={"stage": True, "container": "/img/lab.sif"})


def test_the_interpreter_is_the_one_that_was_asked(job: Make) -> None:
    """The path in the script is that of the job's interpreter, which the copy is shown at."""
    assert f"-- {PYTHON.path} " in planned(job).sbatch
