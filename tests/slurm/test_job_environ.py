"""SLURM's variables, read once."""

from __future__ import annotations

import os
from typing import Any

import pytest

from launcher.slurm.environ import JobEnviron, environment_for_sbatch, job_environ, replaced_environ, without_slurm


def test_outside_a_job_nothing_is_known() -> None:
    """No variables: no job."""
    assert job_environ({}) == JobEnviron()
    assert not job_environ({}).inside


def test_a_step_knows_its_place() -> None:
    """The step's node list comes before the job's; garbled numbers are unknown."""
    here = job_environ(
        {
            "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_STEP_NODELIST": "n[1-2]",
            "SLURM_RESTART_COUNT": "3", "SLURM_ARRAY_TASK_ID": "eight", "SLURMD_NODENAME": "n2",
        }
    )  # fmt: skip

    assert (here.own_id, here.node_list, here.node_name, here.restart_count) == ("12", "n[1-2]", "n2", 3)
    assert here.array_task_id is None


def test_an_array_element_is_asked_for_by_array_and_task() -> None:
    """The plain id of an array's last element is the array's own: it is never used."""
    assert job_environ({"SLURM_JOB_ID": "20", "SLURM_ARRAY_JOB_ID": "20", "SLURM_ARRAY_TASK_ID": "3"}).own_id == "20_3"
    assert job_environ({"SLURM_JOB_ID": "21", "SLURM_ARRAY_JOB_ID": "20", "SLURM_ARRAY_TASK_ID": "0"}).own_id == "20_0"


def test_an_allocation_does_not_leak() -> None:
    """Dropped are all of an allocation's variables but those that lead to the cluster, and what would undo the script's options."""
    kept = {"SLURM_CONF": "/c", "SLURM_CONF_SERVER": "ctl", "SLURM_JWT": "x", "SBATCH_ACCOUNT": "lab", "PATH": "/bin"}
    env = {
        **kept,
        "SLURM_CPU_BIND": "mask",
        "PMI_RANK": "0",
        "SBATCH_WAIT": "1",
        "SBATCH_NO_REQUEUE": "1",
        "SBATCH_OUTPUT": "o",
    }

    assert without_slurm(env) == kept


@pytest.mark.parametrize(
    ("parameters", "dropped"),
    [
        ({"mem": "4GB"}, ["SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_NODE"]),
        ({"gpus_per_node": 2}, ["SBATCH_GPUS", "SBATCH_GRES"]),
        ({"additional_parameters": {"gres": "gpu:2", "account": "a"}}, ["SBATCH_ACCOUNT", "SBATCH_GPUS", "SBATCH_GRES"]),
        ({}, []),
    ],
    ids=["memory", "GPUs", "an account, and GPUs as gres", "nothing"],
)  # fmt: skip
def test_what_a_job_asks_for_is_not_overridden(parameters: dict[str, Any], dropped: list[str]) -> None:
    """sbatch takes SBATCH_MEM_PER_NODE before the script's --mem, and so on: only what the script does not ask for may come from there."""
    names = ("ACCOUNT", "GPUS", "GRES", "MEM_PER_CPU", "MEM_PER_NODE")
    env = {f"SBATCH_{name}": "9" for name in names}

    assert sorted({*env} - {*environment_for_sbatch(env, parameters)}) == dropped


def test_the_environment_is_put_back_whatever_stands_in_the_other_one() -> None:
    """A value that no process may have (a NUL) is refused by Python; nothing of the other environment stays."""
    before = dict(os.environ)

    with pytest.raises(ValueError, match="null byte"), replaced_environ({"A_NEW_ONE": "1", "BAD": "x\0y"}):
        pytest.fail("it was entered")

    assert dict(os.environ) == before
