"""How scripts end under a real agent and its fork server: as Python ends, within a limit, and with the code that they gave."""

from __future__ import annotations

import asyncio
import gzip
import os
import shelve
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from real_agents import WAIT_S, left, make_run, start, until

from launcher.run.files import read_lines
from launcher.run.paths import RunPaths
from launcher.run.spec import RestartSpec, Work
from launcher.run.state import read_outcome, read_state


def run_script(tmp_path: Path, text: str, **values: Any) -> tuple[RunPaths, str]:
    """Run a script of one node to the run's end; returns the run and what rank 0 and the agent said."""
    values = {"nodes": 1, "tasks_per_node": 1, "restart": RestartSpec(max_restarts=0), **values}
    paths = make_run(tmp_path / "run-1", "train.py", work=Work(kind="script", target="train.py"), **values)
    (paths.code / "train.py").write_text(text)
    agent = start(paths, 0)
    try:
        agent.wait(WAIT_S)
        assert left(paths) == []
    finally:
        agent.kill()
        agent.wait()
    return paths, paths.rank_log(0, 0, 0).read_text() + (paths.root / "agent-0.log").read_text()


def warnings(paths: RunPaths) -> list[str]:
    """What the history warns of."""
    return [e["text"] for e in read_lines(paths.events) if e["type"] == "warning"]


OPEN_FILES = """
import atexit, ctypes, gzip, os, shelve, sys
where = os.environ["LAUNCHER_RUN_DIR"] + "/"
{attach}
plain = open(where + "plain", "w")
plain.write("18 bytes of a log\\n")
packed = gzip.open(where + "packed", "wt")
packed.write("packed")
shelf = shelve.open(where + "shelf", writeback=True)
shelf["list"] = []
shelf["list"].append(1)
again = os.fdopen(os.dup(1), "w")
again.write("by a copy of stdout")


class Closes:
    file = os.open(where + "deleted", os.O_WRONLY | os.O_CREAT, 0o600)

    def __del__(self, write=os.write):  # Python has no ``open`` any more when it deletes what a script holds
        write(self.file, b"deleted")


closes = Closes()
atexit.register(lambda: open(where + "exit", "w").write("exit"))
libc = ctypes.CDLL(None)
stream = libc.fopen
stream.restype = ctypes.c_void_p
file = ctypes.c_void_p(stream((where + "stdio").encode(), b"w"))
libc.fputs(b"of C", file)
"""


def python_writes_gzip(folder: Path) -> bool:
    """Whether python itself ends that file: some versions since 3.13 lose it ("RuntimeError: lost gzip_file")."""
    folder.mkdir()
    (folder / "script.py").write_text(OPEN_FILES.format(attach=""))
    env = {**os.environ, "LAUNCHER_RUN_DIR": str(folder)}
    subprocess.run([sys.executable, str(folder / "script.py")], env=env, check=True, capture_output=True)
    try:
        return gzip.decompress((folder / "packed").read_bytes()) == b"packed"
    except EOFError:
        return False


@pytest.mark.parametrize("attach", ["", "import launcher; run = launcher.attach()"], ids=["plain", "attached"])
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_what_a_script_left_open_is_written(tmp_path: Path, attach: str, method: str) -> None:
    """Files, gzip, a shelf, a copy of stdout, ``__del__``, exit functions and C's streams end as under python."""
    paths, said = run_script(tmp_path, OPEN_FILES.format(attach=attach), start_method=method)
    assert (read_outcome(paths.outcome) or {})["state"] == "completed", said
    root = paths.root
    assert (root / "plain").read_text() == "18 bytes of a log\n"
    if python_writes_gzip(tmp_path / "bare"):
        assert gzip.decompress((root / "packed").read_bytes()) == b"packed"
    with shelve.open(str(root / "shelf")) as shelf:
        assert shelf["list"] == [1]
    assert "by a copy of stdout" in paths.rank_log(0, 0, 0).read_text()
    assert [(root / name).read_text() for name in ("deleted", "exit", "stdio")] == ["deleted", "exit", "of C"]
    assert warnings(paths) == []


HANGS = """
import os, time
class Hangs:
    def __del__(self):
        os.write(1, b"at the end\\n")
        time.sleep(1000)
hangs = Hangs()
"""


def test_a_rank_that_hangs_in_pythons_shutdown_is_killed_and_its_code_counts(tmp_path: Path) -> None:
    """After 20 s its stacks are in its log, it is killed, and the run is completed as the script was; one sentence says so."""
    paths, said = run_script(tmp_path, HANGS)

    assert (read_outcome(paths.outcome) or {})["state"] == "completed", said
    assert "at the end" in said
    assert "in __del__" in said
    (warning,) = warnings(paths)
    assert warning.endswith(
        "the script had ended with code 0; then its process did not end within 20 s and was killed; its stacks are in its log"
    )


def test_a_rank_that_crashes_in_pythons_shutdown_has_the_scripts_code(tmp_path: Path) -> None:
    """gloo's threads abort Python now and then when all work is done: that costs no work, and is told."""
    paths, said = run_script(tmp_path, "import os\nclass A:\n  def __del__(self, abort=os.abort): abort()\na = A()\n")

    assert (read_outcome(paths.outcome) or {})["state"] == "completed", said
    (warning,) = warnings(paths)
    assert warning.endswith("the script had ended with code 0; then its process was killed by SIGABRT")


ALONE = """
import os, time
root = os.environ["LAUNCHER_RUN_DIR"]
if os.environ["RANK"] == "0":
    while not os.path.exists(root + "/enough"):
        time.sleep(0.05)
    open(root + "/evaluated", "w").write("by rank 0")
"""


def test_a_rank_that_is_still_in_its_script_is_left_alone(tmp_path: Path) -> None:
    """Rank 0 evaluates while the others have ended: it has all the time it wants, and the picture says who has ended."""
    values = {"nodes": 1, "tasks_per_node": 3, "work": Work(kind="script", target="train.py")}
    paths = make_run(tmp_path / "run-1", "train.py", **values)
    (paths.code / "train.py").write_text(ALONE)
    agent = start(paths, 0)

    def others_ended() -> bool:
        return [r["phase"] for r in read_state(paths.state).get("ranks", [])] == ["script", "ended", "ended"]

    try:
        asyncio.run(until(others_ended))
        (paths.root / "enough").touch()
        agent.wait(WAIT_S)
        assert (read_outcome(paths.outcome) or {})["state"] == "completed"
        assert (paths.root / "evaluated").read_text() == "by rank 0"
    finally:
        agent.kill()
        agent.wait()
