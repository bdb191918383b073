"""What slurm/cluster installs and makes once: an `install` or `enter` that is interrupted or killed harms neither machine nor the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import ROOT, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason="slurm/cluster needs root and its capabilities")
Start = Callable[..., "subprocess.Popen[str]"]
INSTALL = """
import install, verbs
install._POLICY, install._LOCK = here / "policy-rc.d", here / "lock"
sys.exit(verbs.main(["install", *sys.argv[3:]], ""))
"""
MAKE = """
import release
release.CACHE, release.install, release._mirror, release._ROOM_BYTES = here / "cache", lambda packages: None, lambda: "", 1
print(release.make("potato"))
"""
BESIDE = """
import fcntl, os, subprocess, sys, time
from pathlib import Path
def mounts():
    return sum(line.split()[4] == "/run/netns" for line in Path("/proc/self/mountinfo").read_text().splitlines())
before = mounts()  # the machine's, which the next line hides
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
os.mkdir("/run/netns")
fd = os.open("/run/netns", os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
share = "import sys; sys.path.insert(0, sys.argv[1]); import release; release._share_networks()"
with subprocess.Popen([sys.executable, "-c", share, sys.argv[1]]) as process:
    while process.poll() is None and f" {process.pid} " not in Path("/proc/locks").read_text():
        time.sleep(0.01)
    waits = process.poll() is None
    subprocess.run(["mount", "--bind", "/run/netns", "/run/netns"], check=True)
    os.close(fd)
print(waits, mounts() - before)
"""
LEFT = "#!/bin/sh\n# slurm/cluster install: packages must not start services of their own\nexit 101\n"


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start a script over slurm/lib, which finds the programs of this folder first."""
    begin = "import sys; from pathlib import Path; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1]); here = Path(sys.argv[2])"

    def run(script: str, *args: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", begin + script, str(ROOT / "slurm" / "lib"), str(tmp_path), *args]
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return run


def program(path: Path, text: str) -> None:
    """A stand-in for a command."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_an_install_that_is_ended_takes_its_policy_with_it(start: Start, tmp_path: Path) -> None:
    """TERM: behind the last process of apt-get's, which would start services without; no package's service would start ever after."""
    policy, begun, go, log = (tmp_path / name for name in ("policy-rc.d", "begun", "go", "log"))
    os.mkfifo(begun)
    wait = f"until [ -e {go} ]; do sleep 0.05; done; [ -e {policy} ] && echo with policy >{log}"
    program(tmp_path / "apt-get", f"({wait}) & : >{begun}; wait")
    with start(INSTALL, "no-such-package") as process:
        begun.read_text()
        process.send_signal(signal.SIGTERM)
        go.touch()
        said = process.communicate()

    assert process.returncode == 128 + signal.SIGTERM, said
    assert log.read_text() == "with policy\n"
    assert not policy.exists()


@pytest.mark.parametrize(("text", "stays"), [(LEFT, False), ("#!/bin/sh\nexit 0\n", True)])
def test_a_policy_that_a_killed_install_left_is_removed(start: Start, tmp_path: Path, text: str, stays: bool) -> None:
    """By the next one, also where nothing is missing; the machine's own policy stays."""
    (tmp_path / "policy-rc.d").write_text(text)
    with start(INSTALL, "dpkg") as process:
        said = process.communicate()

    assert (process.returncode, (tmp_path / "policy-rc.d").exists()) == (0, stays), said


def test_a_debootstrap_that_outlives_its_enter_writes_into_no_other_system(start: Start, tmp_path: Path) -> None:
    """The next `enter` waits for it, says so, and makes a system of its own; nothing half-made is left."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    os.mkfifo(begun)
    fill = f"until [ -e {go} ]; do sleep 0.05; done; mkdir -p $root/etc/apt/apt.conf.d $root/from-$$"
    program(
        tmp_path / "debootstrap", f'for last; do [ -d "$last" ] && root=$last; done; [ -e {go} ] || : >{begun}; {fill}'
    )
    with start(MAKE) as first:
        begun.read_text()
        first.kill()
    with start(MAKE) as second:
        assert second.stderr is not None
        waits = second.stderr.readline()
        go.touch()
        said = second.communicate()

    assert "waiting for" in waits
    assert second.returncode == 0, said
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["potato"]
    assert len([*(tmp_path / "cache/potato").glob("from-*")]) == 1


def test_two_that_share_the_networks_at_once_mount_one_folder() -> None:
    """A second mount would hide the networks that exist: looking and mounting are one, also beside `ip netns add`."""
    private = ["unshare", "--mount", "--propagation", "private"]
    words = [*private, sys.executable, "-c", BESIDE, str(ROOT / "slurm" / "lib")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout == "True 1\n", done
