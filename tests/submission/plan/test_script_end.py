"""The lines behind srun, run by a real bash: what the job's exit code says of the run, and a file system that is away."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.node.allocation.early_exits import _SRUN_KILLED
from launcher.run.asking import PATIENCE_S
from launcher.run.batch import COMPLETED, GONE, JUDGED
from launcher.submission.plan import around_srun


def ends(
    folder: Path, *, srun: int, says: list[int], back_after: int = 0, array: dict[str, str] | None = None
) -> tuple[int, int]:
    """The batch script's exit code and how often it slept, which takes no time here.

    ``says``: the teardown's status at each call; ``back_after``: the folder of its code is away for so many sleeps.
    """
    lib, tool = folder / "lib", folder / "python"
    (lib if not back_after else folder / "away").mkdir()
    (folder / "says").write_text("".join(f"{status}\n" for status in says))
    tool.write_text(
        f'#!/bin/bash\nstatus=$(head -n1 "{folder}/says"); sed -i 1d "{folder}/says"; exit ${{status:-1}}\n'
    )
    tool.chmod(0o755)
    slept = f"""
cut() {{ echo "$passed"; }}  # of /proc/uptime
sleep() {{
  passed=$((passed + $1)); n=$((n + 1))
  if [ $n = {back_after} ]; then mv "{folder}/away" "{lib}"; fi
}}
scontrol() {{ echo "$@" >> "{folder}/scontrol"; }}
trap 'echo $n' EXIT
n=0 passed=0
(exit {srun})
"""
    text = (
        f"{around_srun.leave_line(f'{folder}/the run')}\n"
        + slept
        + "\n".join(around_srun.teardown(f"'{folder}/the run'", str(lib), str(tool)))
    )
    job = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")} | {"SLURM_JOB_ID": "9"} | (array or {})
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False, timeout=60, env=job)
    return done.returncode, int(done.stdout.split()[-1])


@pytest.mark.parametrize("srun", [0, 1, 137])
def test_a_run_that_is_known_to_have_completed_ends_with_0(tmp_path: Path, srun: int) -> None:
    """Whatever single tasks ended with."""
    assert ends(tmp_path, srun=srun, says=[COMPLETED]) == (0, 0)


@pytest.mark.parametrize(("srun", "code"), [(0, 1), (8, 8)])
def test_a_run_that_has_not_completed_never_ends_with_0(tmp_path: Path, srun: int, code: int) -> None:
    """The leader gave it back, and every task left with 0: jobs that wait with afterok must not start."""
    assert ends(tmp_path, srun=srun, says=[JUDGED]) == (code, 0)


@pytest.mark.parametrize("status", [1, 126, 127, 137])
def test_a_teardown_that_could_not_judge_is_called_again(tmp_path: Path, status: int) -> None:
    """The run's folder or Python was away, or it was killed: the word of the next call holds."""
    assert ends(tmp_path, srun=0, says=[status, status, COMPLETED]) == (0, 2)


def test_a_folder_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    """`cd` fails three times; the teardown is not called from anywhere else."""
    assert ends(tmp_path, srun=0, says=[COMPLETED], back_after=3) == (0, 3)


@pytest.mark.parametrize("away", [True, False])
def test_a_folder_that_stays_away_is_no_success(tmp_path: Path, away: bool) -> None:
    """Bounded: after the patience of everybody else the job ends, and not with 0."""
    code, slept = ends(tmp_path, srun=0, says=[], back_after=10_000 if away else 0)

    assert code == 1
    assert PATIENCE_S / 5 <= slept <= PATIENCE_S / 5 + 1


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_the_leader_knows_to_be_gone_is_not_waited_for_again(tmp_path: Path, there: bool) -> None:
    """The leader has waited; its status is the job's. A folder that is there again is judged as ever."""
    if there:
        (tmp_path / "the run").mkdir()
        (tmp_path / "the run" / "spec.json").touch()

    assert ends(tmp_path, srun=GONE, says=[1, COMPLETED]) == ((0, 1) if there else (GONE, 0))


@pytest.mark.parametrize("array", [{}, {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}])
def test_a_folder_that_stays_away_is_told_where_slurm_shows_it(tmp_path: Path, array: dict[str, str]) -> None:
    """The log lies in that folder: the comment of this job, or of this element alone, has the sentence."""
    ends(tmp_path, srun=0, says=[], array=array)

    (said,) = (tmp_path / "scontrol").read_text().splitlines()
    assert said.startswith(f"update JobId={'7_2' if array else '9'} Comment=launcher: how the run ended is not known")
    assert f"{tmp_path}/the run is not there or does not answer" in said


def test_a_teardown_that_fails_beside_a_folder_that_is_there_blames_its_log(tmp_path: Path) -> None:
    """A Python that cannot import the teardown, for instance: the folder answers, and the comment does not say otherwise."""
    (tmp_path / "the run").mkdir()
    (tmp_path / "the run" / "spec.json").touch()
    ends(tmp_path, srun=0, says=[])

    said = (tmp_path / "scontrol").read_text()
    assert said == "update JobId=9 Comment=launcher: how the run ended is not known: the log of the job says why\n"


@pytest.mark.parametrize(("python", "code"), [("exit 1", 1), (None, 1), ("exit 0", 0)])
def test_an_old_python_beside_a_container_ends_the_job_at_once(tmp_path: Path, python: str | None, code: int) -> None:
    """The submitting Python is not on the node, and the node's own is too old, or not there: not all hosts are held, to fail at the end."""
    if python is not None:
        (tmp_path / "python3").write_text(f'#!/bin/bash\n[ "$1" = -c ] && {python}\n')
        (tmp_path / "python3").chmod(0o755)
    job: Any = SimpleNamespace(environment=SimpleNamespace(container="x.sif"))
    given: Any = SimpleNamespace(launcher_python="/no/such/python")
    place: Any = SimpleNamespace(run_dir=str(tmp_path))
    lines = around_srun.courier(job, given, str(tmp_path), place, [])
    done = subprocess.run(
        ["/bin/bash", "-c", "\n".join([*lines, "wait"])], env={"PATH": str(tmp_path)}, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip

    assert done.returncode == code
    assert ("has no Python 3.10 or newer outside the container" in done.stderr) == bool(code)


def test_no_signal_ends_a_courier_while_it_starts(tmp_path: Path) -> None:
    """scancel --batch and an administrator's kill reach it, and nothing would start it again: the leader could not requeue."""
    tool = tmp_path / "python"
    tool.write_text(
        f"#!/bin/bash\nfor s in TERM USR2 USR1 HUP INT; do kill -$s $$; done\necho lives > {tmp_path}/told\n"
    )
    tool.chmod(0o755)
    job: Any = SimpleNamespace(environment=SimpleNamespace(container="x.sif"))
    given: Any = SimpleNamespace(launcher_python=str(tool))
    place: Any = SimpleNamespace(run_dir=str(tmp_path))
    lines = [around_srun.KEEP_SHELL, *around_srun.courier(job, given, str(tmp_path), place, []), "wait $courier"]
    subprocess.run(["/bin/bash", "-c", "\n".join(lines)], check=True, timeout=60)

    assert (tmp_path / "told").read_text() == "lives\n"


def script_with_keeper(folder: Path, body: str) -> Path:
    """A batch script with a stand-in for the keeper, ``body``, which notes each start; it ends when its srun, `$run`, has ended."""
    tool, script = folder / "python", folder / "slurm_script"
    tool.write_text(f"#!/bin/bash\necho start >>{folder}/starts; n=$(wc -l <{folder}/starts)\n{body}\n")
    tool.chmod(0o755)
    job: Any = SimpleNamespace(environment=SimpleNamespace(container=None))
    given: Any = SimpleNamespace(interpreter=SimpleNamespace(path=str(tool)))
    place: Any = SimpleNamespace(run_dir=str(folder))
    lines = [
        around_srun.KEEP_SHELL,
        *around_srun.keeper(job, given, str(folder), place, ["--x"], "agent"),
        'eval "$run"',
    ]
    end = around_srun.teardown(str(folder), str(folder), "true", keeper=True)
    end = end[: 1 + next(i for i, line in enumerate(end) if line.startswith("[ $kept"))]
    script.write_text("\n".join([*lines, *end, "echo ended $kept $status"]))
    return script


@pytest.mark.parametrize(
    ("body", "starts", "kept"),
    [
        ("[ $n = 3 ] || kill -KILL $$; touch there; read; exit 0", 3, 0),
        (f"[ $n = 2 ] || exit 3; touch there; read; exit {GONE}", 2, GONE),
        ("touch there; exit 1", 1, 1),
        ("[ $n = 5 ] && touch there; kill -KILL $$", 5, 137),
    ],
    ids=["killed twice", "a fault of its own", "cannot begin", "whenever it starts"],
)
def test_a_keeper_that_dies_is_started_again(tmp_path: Path, body: str, starts: int, kept: int) -> None:
    """Some times, with its input, which closes at srun's end. bash's word of it is not taken for a killed srun's."""
    script = script_with_keeper(tmp_path, body.replace("there", str(tmp_path / "there")))
    job = {**os.environ, "run": f"until [ -e {tmp_path}/there ]; do sleep 0.05; done"}
    done = subprocess.run(["/bin/bash", script], capture_output=True, text=True, env=job, check=True, timeout=60)

    assert (tmp_path / "starts").read_text().count("start") == starts
    assert done.stdout.split() == ["ended", str(kept), str(GONE if kept == GONE else 0)]
    assert done.stderr.count("Killed") == (starts - (kept == 0) if "KILL" in body else 0)
    assert not _SRUN_KILLED.search(done.stderr)


def test_a_teardown_that_has_judged_leaves_the_comment_alone(tmp_path: Path) -> None:
    """The user's own comment stays."""
    ends(tmp_path, srun=0, says=[JUDGED])

    assert not (tmp_path / "scontrol").exists()
