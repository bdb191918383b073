"""What srun says of tasks that ended before their agents had joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.node.allocation import early_exits
from launcher.node.allocation.early_exits import ended_tasks, read_ended
from launcher.node.allocation.start_errors import start_error
from launcher.run.batch import MARK
from launcher.run.paths import RunPaths

NAMES = ["node1", "node2", "node3", "node4"]
OLD = "launcher: start 7.0\nsrun: error: node4: task 3: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("", {}),
        ("srun: error: node2: task 1: Exited with exit code 7", {"node2": "Exited with exit code 7"}),
        ("srun: error: node2: task 1: Exited with exit code 72", {"node2": "it does not see the run's directory"}),
        ("srun: error: node[2-3]: tasks 1-2: Killed", {"node2": "Killed", "node3": "Killed"}),
        ("srun: error: task 1 launch failed: Slurmd could not connect IO", {"node2": "Slurmd could not connect IO"}),
        ("srun: error: tasks 0,2-3 launch failed: Error", {"node1": "Error", "node3": "Error", "node4": "Error"}),
        (
            "srun: error: Task launch for StepId=7.0 failed on node node3: Communication connection failure",
            {"node3": "Communication connection failure"},
        ),
        ("srun: error: node[2-: task 1: Killed", {}),
        ("srun: error: task 9 launch failed: x", {}),
        ("my program says: srun: error: node2: task 1: Killed", {}),
    ],
)
def test_tasks_that_ended_are_told_by_host(lines: str, found: dict[str, str]) -> None:
    """As SLURM 22.05 writes it (measured); earlier lives of the job in the same log do not count."""
    assert ended_tasks(f"{OLD}launcher: start 7.1\n{lines}\n", "7.1", NAMES) == found


def test_without_the_mark_of_this_life_nothing_is_known() -> None:
    """The batch script has not written it yet: what is there is of an earlier life."""
    assert ended_tasks(OLD, "7.1", NAMES) == {}


FOLLOWS = """slurmstepd-node2: error: pyxis: child 25564 failed with error code: 1
slurmstepd-node2: error: pyxis: failed to create container filesystem for image: /img/thin.sqsh
slurmstepd-node2: error: pyxis: printing enroot log file:
"""
SPANK = "slurmstepd-node2: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\n"


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("", ""),
        (f"{FOLLOWS}slurmstepd-node2: error: pyxis:     [ERROR] No such file: /img/x.sqsh\n{SPANK}", "No such file: /img/x.sqsh"),
        (f"{FOLLOWS}{SPANK}", "pyxis: failed to create container filesystem for image: /img/thin.sqsh"),
        (
            "[2026-11-25T17:57:57.215] error: pyxis: child 9 failed with error code: 1\n"
            "[2026-11-25T17:57:57.215] error: pyxis:     [ERROR] File already exists: /d/pyxis_2.0\n",
            "File already exists: /d/pyxis_2.0",
        ),
        (
            "slurmstepd-node1: error: pyxis: --container-mounts: source path does not exist: /nowhere\n"
            "slurmstepd-node1: error: pyxis: couldn't create enroot start configuration script\n"
            "slurmstepd-node1: error: pyxis:     [INFO] Extracting squashfs filesystem...\n",
            "pyxis: --container-mounts: source path does not exist: /nowhere",
        ),
        ("slurmstepd-node1: error: execve(): /bin/bash: No such file or directory\n", "execve(): /bin/bash: No such file or directory"),
        ("agent: line 3: module: command not found\nagent: line 5: /opt/p: No such file\n", "/opt/p: No such file"),
        ("FATAL:   could not open image /img/x.sif: no such file\n", "could not open image /img/x.sif: no such file"),
        ("srun: unrecognized option '--container-image=x'\n", "unrecognized option '--container-image=x'"),
        ("slurmstepd-node1: error: *** STEP 1.0 ON node1 CANCELLED ***\n" + FOLLOWS, ""),
        ("submitit INFO (x) - starting\npyxis: is a plugin\n", ""),
    ],
)  # fmt: skip
def test_why_a_task_could_not_begin(log: str, error: str) -> None:
    """As enroot, pyxis, slurmstepd, Apptainer and the shell write it; what follows from SLURM's own end is no error of the task."""
    assert start_error(log) == error


def test_the_error_of_another_hosts_container_is_told(tmp_path: Path) -> None:
    """The last lines of the host's own log; an older life's error before them does not count."""
    paths = RunPaths(tmp_path)
    paths.submitit.mkdir()
    (paths.submitit / "7_0_log.out").write_text(f"{MARK}7.1\nsrun: error: node2: task 1: Exited with exit code 1\n")
    other = paths.submitit / "7_1_log.out"
    other.write_text(f"{SPANK}starting\n{FOLLOWS}slurmstepd-node2: error: pyxis:     [ERROR] No space left\n{SPANK}")
    environ = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1", "SLURM_JOB_NODELIST": "node[1-2]"}
    assert read_ended(paths, environ) == {"node2": "Exited with exit code 1: No space left"}
    other.write_text(f"{FOLLOWS}starting\n12:00:00 agent: gone\n")
    assert read_ended(paths, environ) == {"node2": "Exited with exit code 1: gone"}


FIRST = f"launcher: start 7.0\nsrun: forcing job termination\n17:01:03 keeper: The leader on n0 {early_exits.LEADER_REPLACED}\n"
SILENT = f"17:01:02 keeper: {early_exits.LEADER_SILENT} 8 s.\n17:01:03 keeper: The leader on n0 {early_exits.LEADER_REPLACED}\n"
SIGNAL = "An srun of the job received a signal (HUP or TERM), which ends its step"


@pytest.mark.parametrize(
    ("log", "how"),
    [
        ("launcher: start 7.0\n", ""),
        (FIRST, SIGNAL),
        (f"launcher: start 7.0\n{SILENT}", f"{early_exits.LEADER_SILENT} 8 s"),
        (f"{FIRST}agent 0\n{SILENT}", f"{early_exits.LEADER_SILENT} 8 s"),
        (f"{FIRST}agent 0\n17:09:03 keeper: The leader on n0 {early_exits.LEADER_REPLACED}\n", ""),
        (f"{FIRST}launcher: start 7.1\n", ""),
        (
            f"launcher: start 7.0\n17:01:03 keeper: The leader on n0 {early_exits.LEADER_REPLACED}\nsrun: forcing job termination\n",
            "",
        ),
    ],
    ids=["nothing", "its srun", "stood still", "stood still later", "died later", "another life", "its srun later"],
)
def test_how_the_leader_ended_that_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, how: str
) -> None:
    """The batch script's srun ends once, with the first leader; of later ones only what the keeper has seen is known."""
    assert early_exits.leader_end(logged(tmp_path, monkeypatch, log)) == how


def logged(folder: Path, monkeypatch: pytest.MonkeyPatch, log: str) -> RunPaths:
    """The log of job 7, which is in the life that the log names last."""
    life = "1" if log.endswith("7.1\n") else "0"
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": life}.items():
        monkeypatch.setenv(name, value)
    paths = RunPaths(folder)
    paths.submitit.mkdir()
    (paths.submitit / "7_0_log.out").write_text(log)
    return paths


@pytest.mark.parametrize("again", [False, True], ids=["this life", "an earlier life"])
def test_setup_lines_that_say_much_hide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    """`tar xvf` of a data set, some megabytes behind the mark of this life: a cancelled step and a task that ended are seen all the same."""
    much = "shard/000001.jpg\n" * 200_000
    said = f"launcher: start 7.0\n{much}srun: error: n1: task 1: Killed\n{ABORTED}"
    paths = logged(tmp_path, monkeypatch, said + "launcher: start 7.1\n" * again)
    assert early_exits.step_cancelled(paths) is not again
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[0-1]")
    assert read_ended(paths) == ({} if again else {"n1": "Killed"})


ABORTED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
STEP_ENDED = "slurmstepd-n0: error: *** STEP 7.0 ON n0 CANCELLED AT 2026-11-28T10:22:47 ***\n"
MISSING = "srun: error: _server_write write failed: Bad file descriptor\nsrun: error: Aborting, io error and missing step on node 1\n"
FORCED = f"srun: forcing job termination\n{ABORTED}"


@pytest.mark.parametrize(
    ("log", "is_cancelled"),
    [
        ("", False),
        (f"{ABORTED}{STEP_ENDED}", True),
        (ABORTED, True),
        (f"17:01:02 keeper: {early_exits.SRUN_KILLED}\n{ABORTED}{STEP_ENDED}", True),
        (f"17:01:02 keeper: {early_exits.SRUN_KILLED}\n{STEP_ENDED}", False),
        (f"{FORCED}{STEP_ENDED}", False),
        (f"{FORCED}{ABORTED}", True),
        (f"srun: error: Application launch failed: No route to host\n{ABORTED}", False),
        (f"srun: Job step 7.1 aborted before step completely launched.\n{ABORTED}", False),
        (f"srun: error: Node failure on n1\n{ABORTED}", False),
        (f"{MISSING}{ABORTED}{STEP_ENDED}", False),
        (f"{ABORTED}{STEP_ENDED}{MISSING}", True),
        (f"{ABORTED}{STEP_ENDED}launcher: start 7.1\n", False),
    ],
    ids=[
        "nothing", "cancelled", "its leader in another step", "an srun killed before", "srun killed", "srun forced", "an srun forced before",
        "not launched", "half launched", "host died", "host came back", "host came back later", "another life",
    ],
)  # fmt: skip
def test_a_cancelled_step_is_told_from_one_that_srun_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, is_cancelled: bool
) -> None:
    """By what srun names beside it; slurmstepd speaks on the first node alone, and says the same of an srun that was killed."""
    assert early_exits.step_cancelled(logged(tmp_path, monkeypatch, f"launcher: start 7.0\n{log}")) is is_cancelled
