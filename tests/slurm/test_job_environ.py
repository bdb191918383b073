"""SLURM's variables, read once."""

from __future__ import annotations

from launcher.slurm.environ import JobEnviron, job_environ, without_slurm


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
    """All of an allocation's variables are dropped but the one that says where the configuration is."""
    env = {"SLURM_CPU_BIND": "mask", "SLURM_CONF": "/c", "SBATCH_PARTITION": "x", "PMI_RANK": "0", "PATH": "/bin"}

    assert without_slurm(env) == {"SLURM_CONF": "/c", "PATH": "/bin"}
