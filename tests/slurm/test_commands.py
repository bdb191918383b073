"""SLURM's commands: answers are values, a busy controller is asked again, the environment does not change formats."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.slurm.commands import ask, ask_patiently, clean_environment


def fake(folder: Path, name: str, body: str) -> dict[str, str]:
    """An environment in which ``name`` is this Python program."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport os, sys\n{body}\n")
    path.chmod(0o755)
    return {**os.environ, "PATH": str(folder)}


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_missing_command_is_an_answer(on_path: Path) -> None:
    """Nothing is raised for a command that is not there, and it is not asked again."""
    answer = ask_patiently("squeue")

    assert (answer.ok, answer.missing, answer.busy) == (False, True, False)
    assert answer.problem == "squeue is not on the PATH"


def test_a_slurm_that_is_not_configured_is_told_at_once(on_path: Path) -> None:
    """Without a slurm.conf asking again helps nothing; one whose slurmctld gives it, and is away, is asked again."""
    dns = "error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\\nscontrol: error: fetch_config: DNS SRV lookup failed\\n"
    away = "scontrol: fatal: Could not establish a configuration source"
    fake(on_path, "scontrol", f"sys.exit('{dns}{away}')")
    unconfigured = ask("scontrol", "show", "config")
    fake(on_path, "scontrol", f"sys.exit('{away}')")

    assert not unconfigured.busy
    assert unconfigured.problem.startswith("scontrol finds no configuration on this machine")
    assert ask("scontrol", "show", "config").busy


def test_a_slow_command_is_ended(on_path: Path) -> None:
    """A command that does not answer in time is ended and counts as busy."""
    fake(on_path, "squeue", "import time; time.sleep(600)")
    answer = ask("squeue", timeout_s=0.5)

    assert (answer.code, answer.busy) == (None, True)
    assert "0.5 s" in answer.problem


def test_the_problem_is_slurms_words_without_prefixes(on_path: Path) -> None:
    """What a user reads has no `sbatch: error:` before it, and nothing twice."""
    fake(
        on_path,
        "sbatch",
        "sys.exit('sbatch: error: invalid partition specified: x\\nsbatch: error: Batch job submission failed')",
    )

    assert ask("sbatch").problem == "invalid partition specified: x; Batch job submission failed"


def test_a_busy_controller_is_asked_again(on_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time-out of the controller is no answer; the next one counts. The pauses between tries grow."""
    pauses: list[float] = []
    monkeypatch.setattr("launcher.slurm.commands.time.sleep", pauses.append)
    count = on_path / "count"
    fake(
        on_path,
        "squeue",
        f"n = open({str(count)!r}, 'a'); n.write('x'); n.close()\n"
        f"if os.path.getsize({str(count)!r}) < 3: sys.exit('slurm_load_jobs error: Unable to contact slurm controller (connect failure)')\n"
        "print('fine')",
    )
    answer = ask_patiently("squeue")

    assert (answer.out, count.read_text(), [s for s in pauses if s >= 1]) == ("fine\n", "xxx", [1.0, 2.0])


def test_a_steps_signals_do_not_kill_its_commands(on_path: Path) -> None:
    """TERM and USR2, which SLURM sends to every process of a step, do not end a command; the caller's mask is as before."""
    fake(on_path, "scontrol", "import signal\nfor s in (15, 12): os.kill(os.getpid(), s)\nprint('still here')")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])

    assert ask("scontrol").out == "still here\n"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_command_is_started_ends_it(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, number: int
) -> None:
    """A verb's handler raises KeyboardInterrupt: a salloc that went on behind it held nodes that nobody used."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    started: list[subprocess.Popen[str]] = []

    def start(*given: Any, real: type[subprocess.Popen[str]] = subprocess.Popen, **options: Any) -> Any:
        started.append(real(*given, **options))
        os.kill(os.getpid(), number)
        return started[0]

    request.addfinalizer(partial(signal.signal, number, signal.signal(number, interrupt)))
    monkeypatch.setattr("launcher.slurm.commands.subprocess.Popen", start)
    with pytest.raises(KeyboardInterrupt):
        ask("sleep", "600")

    assert started[0].returncode == -signal.SIGKILL


def test_a_killed_command_is_no_answer(on_path: Path) -> None:
    """A command that was killed may be asked again, and says by what."""
    fake(on_path, "scontrol", "os.kill(os.getpid(), 9)")
    answer = ask("scontrol")

    assert (answer.busy, answer.problem) == (True, "scontrol was killed by signal 9")


@pytest.mark.parametrize(
    "said",
    [
        "Rate limit exceeded, please retry later",
        "Protocol authentication error",
        'Munge encode failed: Failed to access "/run/munge/munge.socket.2"',
        "I/O error writing script/environment to file",
        "System submissions disabled",
        "Job can not be altered now, try again later",
    ],
)
def test_what_passes_is_no_refusal(on_path: Path, said: str) -> None:
    """SLURM's words for a busy controller, a restarted munged and a maintenance: asked again, they end no run."""
    fake(on_path, "sbatch", f"sys.exit({said!r})")

    assert ask("sbatch").busy


def test_a_refusal_is_not_repeated(on_path: Path) -> None:
    """What SLURM refuses it would refuse again."""
    count = on_path / "count"
    fake(on_path, "scontrol", f"open({str(count)!r}, 'a').write('x'); sys.exit('Invalid job id specified')")

    assert ask_patiently("scontrol").problem == "Invalid job id specified"
    assert count.read_text() == "x"


def test_the_users_formats_do_not_reach_the_command() -> None:
    """Variables that change what squeue prints are dropped; the cluster's configuration stays."""
    env = clean_environment(
        {
            "SQUEUE_FORMAT": "%j",
            "SACCT_FORMAT": "x",
            "SLURM_CLUSTERS": "b",
            "SLURM_CONF": "/c",
            "HOME": "/h",
            "SCANCEL_INTERACTIVE": "1",
        }
    )

    assert env == {"SLURM_CONF": "/c", "HOME": "/h", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}
