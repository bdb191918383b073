"""What a rerun's fork server depends on: the environment that its job makes, compared with the one that the server has."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.errors import RunDirError
from launcher.node.agent import reruns
from launcher.node.agent.environment import base_environment
from launcher.node.agent.reruns import differing_keys
from launcher.run.spec import RunSpec, Work
from launcher.slurm.environ import replaced_environ

SHELL = {"PATH": "/bin:/usr/bin", "HOME": "/home/ada", "SLURM_JOB_ID": "7"}


def spec(run: str, **changes: Any) -> RunSpec:
    """A run in /runs."""
    values: dict[str, Any] = {
        "id": run, "name": "toy", "run_dir": f"/runs/{run}", "work": Work(kind="script", target="train.py"), "batch": "slurm", "nodes": 2,
        "tasks_per_node": 1, "timeout_min": 60, "backend": "gloo", "python": "/env/bin/python",
    }  # fmt: skip
    return RunSpec(**{**values, **changes})


def differ(first: RunSpec, second: RunSpec, environ: dict[str, str] | None = None) -> list[str]:
    """The keys that make the second run's fork server another one."""
    before, after = base_environment(SHELL, first, {}), base_environment(environ or SHELL, second, {})
    return differing_keys(first, before, second, after)


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, []),
        ({"variables": {"OUT": "/runs/two/out", "NAME": "two"}}, []),
        ({"variables": {"OUT": "/elsewhere", "NAME": "two"}}, ["environment.variables.OUT"]),
        ({"variables": {}}, ["environment.variables.NAME", "environment.variables.OUT"]),
        ({"seed": 3}, ["seed"]),
        ({"cpus_per_task": 4}, ["resources.cpus_per_task"]),
        ({"deterministic": True}, ["deterministic"]),
        ({"interface": "ib0"}, ["distributed.interface"]),
        ({"python": "/other/bin/python"}, ["environment.python"]),
        ({"nodes": 1, "tasks_per_node": 2, "work": Work(kind="task", target="a:B")}, []),
    ],
)
def test_what_is_read_when_torch_is_imported_counts_and_nothing_else(changes: dict[str, Any], keys: list[str]) -> None:
    """Values that only name the run's own folder or id are the same; each other one is told by its key of the job."""
    first = spec("one", variables={"OUT": "/runs/one/out", "NAME": "one"})
    assert differ(first, spec("two", **{"variables": {"OUT": "/runs/two/out", "NAME": "two"}, **changes})) == keys


def test_variables_of_more_setup_lines_are_told_as_setup() -> None:
    """Nobody knows which line set what; a line that sets nothing changes nothing."""
    first = spec("one")
    assert differ(first, spec("two", setup=["module load x"]), {**SHELL, "CUDA_HOME": "/x"}) == ["environment.setup"]
    assert differ(first, spec("two", setup=["true"])) == []


def test_setup_lines_change_the_environment_and_nothing_waits_for_what_they_start() -> None:
    """A service in the background keeps its standard error open; an empty line, a comment and output do no harm."""
    lines = [
        "# a comment",
        "",
        "echo said",
        "export A=1 B='two words'",
        "unset HOME",
        "sleep 600 &",
        "export SERVICE=$!",
    ]
    found = asyncio.run(reruns._after_setup(lines, SHELL, []))

    psutil.Process(int(found["SERVICE"])).kill()  # it is there still
    assert {name: found.get(name) for name in ("A", "B", "HOME", "SLURM_JOB_ID")} == {
        "A": "1", "B": "two words", "HOME": None, "SLURM_JOB_ID": "7",
    }  # fmt: skip


def test_a_setup_that_fails_is_told_without_secrets() -> None:
    """Its last line goes into the run's outcome."""
    with pytest.raises(RunDirError) as caught:
        asyncio.run(reruns._after_setup(["echo no login with hunter22 >&2", "exit 3"], SHELL, ["hunter22"]))
    assert str(caught.value) == "environment.setup failed: no login with <redacted>"


@pytest.mark.parametrize(("limit_s", "error"), [(300.0, asyncio.CancelledError), (1.0, RunDirError)])
def test_setup_lines_that_run_on_are_ended_with_all_that_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float, error: type[BaseException]
) -> None:
    """By a cancel and at their limit. They ran in a thread, which nothing ends, and outlived the agent and its hold."""
    monkeypatch.setattr(reruns, "_SETUP_S", limit_s)
    told, started_all, wait = tmp_path / "told", asyncio.Event(), reruns._told
    os.mkfifo(told)

    async def limited(shell: subprocess.Popen[bytes]) -> bytes:
        await started_all.wait()
        return await wait(shell)

    if error is RunDirError:  # the limit counts from there on: the shell may be slow to begin
        monkeypatch.setattr(reruns, "_told", limited)

    async def run() -> list[psutil.Process]:
        setup = asyncio.ensure_future(reruns._after_setup([f"sleep 600 & echo $$ $! >{told}", "wait"], SHELL, []))
        started = [psutil.Process(int(pid)) for pid in (await asyncio.to_thread(told.read_text)).split()]
        started_all.set()
        if error is asyncio.CancelledError:
            setup.cancel()
        with pytest.raises(error):
            await setup
        return started

    assert not psutil.wait_procs(asyncio.run(run()), timeout=30)[1]


def test_editable_packages_come_from_the_reruns_own_copy(tmp_path: Path) -> None:
    """The hold's copy is of another day. The launcher itself is the hold's: it runs already."""
    hold, rerun = spec("hold"), dataclasses.replace(spec("two"), code_path=["/runs/two/code/src"])
    path = os.pathsep.join(["/runs/hold/lib", "/runs/hold/code/src", "/home/ada/python"])

    assert reruns._path(path, hold, rerun).split(os.pathsep) == [
        "/runs/hold/lib",
        "/runs/two/code/src",
        "/home/ada/python",
    ]


def test_the_process_gets_its_own_environment_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rerun's job sets is gone after it, and what it lacks is back: trackers of the next one read it."""
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("HOLDS", "offline")
    before = dict(os.environ)
    with replaced_environ({"KEPT": "1", "OWN": "2"}):
        assert dict(os.environ) == {"KEPT": "1", "OWN": "2"}
    assert dict(os.environ) == before
