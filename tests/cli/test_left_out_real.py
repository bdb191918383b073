"""Data that git ignores, in a real run on this machine: warned of, missed, linked by the command that `why` gives."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path


def launcher(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One verb, in the folder of the code."""
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "LAUNCHER_RUNS_DIR": str(tmp_path / "runs")}
    command = [sys.executable, "-m", "launcher", *words]
    return subprocess.run(
        command, cwd=tmp_path / "code", capture_output=True, text=True, env=env, timeout=300, check=False
    )


def test_the_command_that_why_gives_links_what_was_missed(tmp_path: Path) -> None:
    """The run warns, fails for want of its data, and completes once the line `next` of `why` has been pasted."""
    code = tmp_path / "code"
    (code / "data" / "x").mkdir(parents=True)
    (code / "data" / "x" / "a.txt").write_text("the data")
    (code / ".gitignore").write_text("data\n")
    (code / "train.py").write_text("import sys\nprint(open(sys.argv[1].partition('=')[2]).read())\n")
    subprocess.run(["git", "init", "-q", str(code)], check=True)
    job = ["preflight=false", "restart.max_restarts=0", "--", "--data=data/x/a.txt"]

    failed = launcher(tmp_path, "run", "train.py", *job)
    assert failed.returncode == 8
    assert "  warning  args name data/x/a.txt, which git ignores: it is not copied" in failed.stdout
    (line,) = [line for line in launcher(tmp_path, "why", "@last").stdout.splitlines() if line.startswith("  next")]
    words = shlex.split(line.partition("link it: launcher ")[2])
    assert words[-2:] == ["--code", "code.link=[data]"]

    done = launcher(tmp_path, *words, "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the data" in launcher(tmp_path, "logs", "@last").stdout
