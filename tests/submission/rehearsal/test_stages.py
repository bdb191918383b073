"""The nodes of a rehearsal are given back, and its step is ended, whenever Ctrl-C comes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from planning import facts

from launcher.errors import SubmitError
from launcher.submission.rehearsal import stages


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Pretend one of SLURM's commands, outside of an allocation."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)

    def pretend(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return pretend


def test_a_second_ctrl_c_leaves_no_allocation(
    command: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is on the way when the allocation is given back; the second ended scancel, which waits for a busy slurmctld."""
    command(
        "scancel",
        f"kill -INT $PPID; sleep 1; cut -d ' ' -f 6 /proc/$$/stat >{tmp_path}/session; echo $* >{tmp_path}/asked",
    )
    monkeypatch.setattr(stages, "_granted", lambda *_: "the stage")
    here, loaded = facts(backend="slurm"), SimpleNamespace()
    with pytest.raises(KeyboardInterrupt), stages.on_slurm(loaded, here, print):  # type: ignore[arg-type]
        raise KeyboardInterrupt

    assert (tmp_path / "asked").read_text() == f"--name=dry-run-{here.run_id} --user={os.getuid()}\n"
    assert int((tmp_path / "session").read_text()) != os.getsid(0), "Ctrl-C in the terminal reaches it"


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ("node[1-", "the hosts of the allocation cannot be read from SLURM_JOB_NODELIST: 'node[1-' is not a host list"),
        ("", "SLURM_JOB_ID is 7, but SLURM_JOB_NODELIST, its hosts, is not set"),
    ],
)
def test_an_allocation_whose_hosts_cannot_be_read_is_told_in_one_sentence(
    command: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, listed: str, why: str
) -> None:
    """A rehearsal and a hold inside it ended with an internal error, or went on without its hosts."""
    command("squeue", "exit 1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", listed)

    with pytest.raises(SubmitError) as caught, stages.on_slurm(SimpleNamespace(), facts(backend="slurm"), print):  # type: ignore[arg-type]
        raise AssertionError("it has begun")

    assert str(caught.value).startswith(why)


@pytest.mark.parametrize("again", [False, True])
def test_ctrl_c_while_srun_is_started_leaves_no_step(
    command: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """It was not known yet, and in a session of its own it hears no Ctrl-C: its agents ran on in the user's allocation.

    Nor does a second one, while the step is ended.
    """
    command("squeue", "echo 7.0 x")
    command("scancel", f"kill -KILL $(cat {tmp_path}/pid)")
    command("srun", "exec sleep 600")
    started: list[subprocess.Popen[bytes]] = []

    def start(words: list[str], *, real: type[subprocess.Popen[bytes]] = subprocess.Popen, **options: Any) -> Any:
        process = real(words, **options)
        if words[0] == "srun":
            started.append(process)
            (tmp_path / "pid").write_text(str(process.pid))
            os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(stages.subprocess, "Popen", start)
    spec = SimpleNamespace(nodes=1, id="x", pass_names=[])
    made = SimpleNamespace(
        submitit_dir=str(tmp_path),
        spec=spec,
        parameters={"srun_args": []},
        command="python",
        run_dir=str(tmp_path),
        python_path=[],
    )
    step = stages.Step(made, "7")  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        step.start()
    if again:
        command("squeue", "kill -INT $PPID; sleep 1; echo 7.0 x")
    with pytest.raises(KeyboardInterrupt) if again else contextlib.nullcontext():
        step.kill()

    assert started[0].poll() == -signal.SIGKILL
