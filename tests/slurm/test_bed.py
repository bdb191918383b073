"""The tests' own cluster and users: what they make is put back, also when somebody presses Ctrl-C or a step fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster, as_before, running, why_not

TESTS = Path(__file__).resolve().parents[1]
needs_mounts = pytest.mark.skipif(why_not() is not None, reason="mounting needs root and its capabilities")
PRIVATE = ["unshare", "--mount", "--propagation", "private"]
"""What a test mounts so is seen by nobody else, and gone with its process."""

LOOK = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import user
packages = Path(sys.argv[2])
user.slurmds = lambda cluster: {}
try:
    with user.whole_end() as stack:
        public = user.mount_points(stack)
        user.visible(None, stack, packages, public / "site-0")
        print(os.listdir(public / "site-0"))
except KeyboardInterrupt:
    print("KeyboardInterrupt")
print(os.listdir(packages), public.exists())
"""


@needs_mounts
def test_ctrl_c_while_a_user_goes_deletes_nothing_that_is_mounted(tmp_path: Path) -> None:
    """The packages are mounted for the user; Ctrl-C during umount neither ends it nor lets a removal go through the mount."""
    packages, begun, go = tmp_path / "private" / "site-packages", tmp_path / "begun", tmp_path / "go"
    packages.mkdir(parents=True)
    (packages / "torch.py").touch()
    (tmp_path / "private").chmod(0o700)
    slow = tmp_path / "umount"
    slow.write_text(f'#!/bin/sh\n: >{begun}; until [ -e {go} ]; do sleep 0.05; done; exec /bin/umount "$@"\n')
    slow.chmod(0o755)
    os.mkfifo(begun)
    words = [*PRIVATE, sys.executable, "-c", LOOK, str(TESTS), str(packages)]
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        begun.read_text()  # until umount has begun
        os.killpg(process.pid, signal.SIGINT)
        go.touch()
        said = process.communicate()[0].splitlines()

    assert said == ["['torch.py']", "KeyboardInterrupt", "['torch.py'] False"]


class Pretended(Cluster):
    """A cluster of which every verb but one works; what was done to it."""

    def __init__(self, directory: Path, fails: str) -> None:
        super().__init__(directory)
        self.done: list[str] = []
        self._fails = fails

    @property
    def version(self) -> tuple[int, ...]:
        return (22, 5, 8)

    def verb(self, *args: str, timeout: float = 300) -> str:
        self.done.append(" ".join(args))
        assert args[0] != self._fails, "did not come within 120 s"
        return ""

    def mount_disk(self, size_mb: int = 4) -> None:
        self.done.append("mount")

    def unmount_disk(self) -> None:
        self.done.append("unmount")


@pytest.mark.parametrize("fails", ["up", "nothing"])
def test_a_cluster_that_does_not_come_up_leaves_nothing(tmp_path: Path, fails: str) -> None:
    """The fixture ends what a failed `up` has started and unmounts the disk, as it does behind tests."""
    it = Pretended(tmp_path, fails)
    with contextlib.suppress(AssertionError), running(it):
        it.done.append("tests")

    assert [word for word in it.done if word != "tests"] == ["install", "down", "mount", "up", "down", "unmount"]
    assert ("tests" in it.done) == (fails == "nothing")


def test_a_host_that_cannot_be_healed_leaves_no_settings_to_the_next_test(tmp_path: Path) -> None:
    """They are put back all the same."""
    it = Pretended(tmp_path, "heal")

    def breaks_a_host() -> None:
        with as_before(it):
            it.set(JobRequeue=0)
            it.broken.add("node2")

    with pytest.raises(AssertionError, match="120 s"):
        breaks_a_host()
    assert it.settings == {}
    assert it.done[-2:] == ["heal node2", "set"]
