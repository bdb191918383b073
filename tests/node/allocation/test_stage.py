"""stage.sh on a node: what it unpacks is seen at the old paths, and what goes wrong costs one sentence and no run.

A script takes Python's place: it prints what it finds at its own path, and "imports torch" unless the copy is spoiled.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.node import allocation

SCRIPT = Path(allocation.__file__).parent / "stage.sh"
PYTHON = """#!/bin/sh
at=$(dirname "$0")/..
[ "$1" != -c ] || exec test ! -e "$at/spoiled"
cat "$at/says"
echo "$(id -u) $(grep CapEff /proc/self/status | cut -f 2) $LAUNCHER_STAGED"
echo "$LAUNCHER_NOT_STAGED"
"""
Enter = Callable[..., tuple[str, str, str]]


def _may_mount() -> bool:
    how = ["--mount"] if os.getuid() == 0 else ["--user", "--map-current-user", "--keep-caps", "--mount"]
    return subprocess.run(["unshare", *how, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _may_mount(), reason="this machine allows no mount namespace")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users may enter, too; pytest's own are closed."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def env(place: Path) -> Path:
    """An environment on the "shared" file system, and an archive of it that says otherwise."""
    env = place / "my env"
    (env / "bin").mkdir(parents=True)
    (env / "bin" / "python").write_text(PYTHON)
    (env / "bin" / "python").chmod(0o755)
    (env / "says").write_text("the copy\n")
    (place / "local").mkdir()
    shutil.copy(SCRIPT, place)  # where another user may read it
    with tarfile.open(place / "feed.tar", "w") as archive:
        archive.add(env, "0")
    (env / "says").write_text("the original\n")
    return env


@pytest.fixture
def enter(env: Path, place: Path) -> Enter:
    """Start Python through stage.sh as job 7; returns what it found, its uid with its rights and its copy, and the sentence."""

    def start(*before: str, local: Path = place / "local", size: int = 1000, **variables: str) -> tuple[str, str, str]:
        words = [
            "sh",
            str(place / "stage.sh"),
            "enter",
            str(place / "feed.tar"),
            str(local),
            str(size),
            f"0={env}",
            "--",
        ]
        done = subprocess.run(
            [*before, *words, str(env / "bin" / "python"), "-m", "agent"],
            env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", **variables},
            cwd=place, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        found, who, sentence = done.stdout.split("\n")[:3]
        assert not sentence or f"launcher: {sentence}" in done.stderr
        return found, who, sentence

    return start


def copy_of(place: Path, job: str = "7", uid: int | None = None) -> Path:
    """Where a job's copy is."""
    return place / "local" / f"launcher-{os.getuid() if uid is None else uid}-{job}-feed"


def test_the_copy_is_seen_at_the_environments_own_path(enter: Enter, place: Path) -> None:
    """Python and whatever it starts find the copy under the path they know; nobody else on the host does, and nobody else may read it."""
    found, who, sentence = enter()

    assert (found, sentence) == ("the copy", "")
    assert who.endswith(str(copy_of(place)))
    assert (place / "my env" / "says").read_text() == "the original\n"
    assert copy_of(place).stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="starts a process as another user")
def test_a_user_stays_who_they_are_without_more_rights(enter: Enter, place: Path) -> None:
    """In the user namespace that a mount needs, a user has their own uid, and no capability when Python starts."""
    (place / "local").chmod(0o1777)
    os.chown(place / "feed.tar", 4711, 4711)

    found, who, sentence = enter("setpriv", "--reuid=4711", "--regid=4711", "--clear-groups")

    assert (found, sentence) == ("the copy", "")
    assert who == f"4711 0000000000000000 {copy_of(place, uid=4711)}"


def test_an_agent_that_is_started_again_finds_the_copy_ready(enter: Enter, place: Path) -> None:
    """The second agent of a job unpacks nothing: it starts at once."""
    enter()
    (place / "feed.tar").unlink()

    assert enter()[0] == "the copy"


def carry(place: Path, sbcast: str) -> str:
    """What the batch script of job 7 says, where sbcast is that shell script."""
    commands = place / "commands"
    commands.mkdir()
    (commands / "sbcast").write_text(f"#!/bin/sh\n{sbcast}\n")
    (commands / "sbcast").chmod(0o755)
    words = ["sh", str(SCRIPT), "carry", str(place / "feed.tar"), str(place / "local")]
    env = {"PATH": f"{commands}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    return subprocess.run(words, env=env, stderr=subprocess.PIPE, text=True, check=False).stderr


def test_what_sbcast_carried_is_unpacked_and_removed(env: Path, enter: Enter, place: Path) -> None:
    """The batch script sends the archive to each node's disk; the node reads that, then needs its space no longer."""
    carry(place, 'set -o noclobber\ncat "$1" >"$2"')
    carried = place / "local" / f"launcher-{os.getuid()}-7-feed.0.tar"
    assert carried.stat().st_size == (place / "feed.tar").stat().st_size
    shared = place / "feed.tar"
    shared.write_bytes(b"\0" * shared.stat().st_size)  # an empty archive: it is not what is read

    assert enter()[0] == "the copy"
    assert not carried.exists()


def test_sbcast_is_tried_once_more(enter: Enter, place: Path) -> None:
    """Beside what it has left, which it does not write over; the node reads what came whole, and removes both."""
    said = carry(
        place,
        f"echo try >>{place}/tries\n"
        '[ ! -e "$2" ] || exit 1\n'
        f'[ "$(wc -l <{place}/tries)" -gt 1 ] && exec cp "$1" "$2"\nhead -c 1000 "$1" >"$2"; exit 1',
    )
    shared = place / "feed.tar"
    shared.write_bytes(b"\0" * shared.stat().st_size)  # an empty archive: it is not what is read

    assert (place / "tries").read_text() == "try\n" * 2
    assert said == ""
    assert enter(SLURM_STEP_NUM_NODES="2000")[0] == "the copy"
    assert [path.name for path in (place / "local").iterdir()] == [copy_of(place).name]


@pytest.mark.parametrize(("code", "tries"), [(1, 2), (124, 1)])
def test_an_sbcast_that_fails_is_told(env: Path, place: Path, code: int, tries: int) -> None:
    """One sentence in the job's log. One that took ten minutes is not tried again: the nodes wait for it (timeout's status is 124)."""
    said = carry(place, f"echo try >>{place}/tries; exit {code}")

    assert said.startswith("launcher: sbcast failed; up to 32 nodes read ")
    assert (place / "tries").read_text() == "try\n" * tries


@pytest.mark.parametrize(("nodes", "takes"), [(32, True), (33, False)])
def test_many_nodes_do_not_read_the_archive_at_once(enter: Enter, place: Path, nodes: int, takes: bool) -> None:
    """What sbcast would have read once, 2,000 nodes would ask the file server for: they start without it, and say so."""
    found, _, sentence = enter(SLURM_STEP_NUM_NODES=str(nodes), SLURM_JOB_NUM_NODES="2000")

    assert found == ("the copy" if takes else "the original")
    assert (
        f"environment.stage: sbcast failed, and 33 nodes would read {place / 'feed.tar'} at once, so" in sentence
    ) is not takes


@pytest.mark.parametrize("size", ["cut", "other"])
def test_a_carried_archive_that_is_not_whole_is_not_used(enter: Enter, place: Path, size: str) -> None:
    """sbcast that was ended left a part: the archive on the shared file system is read instead."""
    carried = place / "local" / f"launcher-{os.getuid()}-7-feed.0.tar"
    carried.write_bytes((place / "feed.tar").read_bytes()[:1000] if size == "cut" else b"")

    assert enter()[0] == "the copy"


def _no_archive(place: Path) -> None:
    (place / "feed.tar").unlink()


def _broken_archive(place: Path) -> None:
    (place / "feed.tar").write_bytes(b"no archive" * 1000)


def _no_torch(place: Path) -> None:
    (place / "my env" / "spoiled").touch()
    with tarfile.open(place / "feed.tar", "w") as archive:
        archive.add(place / "my env", "0")


def _no_such_folder(place: Path) -> None:
    (place / "local").rmdir()


def _of_somebody_else(place: Path) -> None:
    (place / "elsewhere").mkdir()
    copy_of(place).symlink_to(place / "elsewhere")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_no_archive, "feed.tar, so Python"),
        (_broken_archive, "feed.tar cannot be unpacked in {local}: tar: "),
        (_no_torch, "torch cannot be imported from the copy in {local}: "),
        (_no_such_folder, "there is no folder {local} here"),
        (_of_somebody_else, "{copy} cannot be made here"),
    ],
)
def test_what_goes_wrong_is_said_and_python_starts_from_the_shared_file_system(
    enter: Enter, place: Path, spoil: Callable[[Path], None], said: str
) -> None:
    """No fault of a disk or an archive costs the run: it starts as it would have without staging. Nothing is left behind."""
    spoil(place)
    local, copy = place / "local", copy_of(place)

    found, who, sentence = enter()

    assert found == "the original"
    assert who.endswith(" ")  # LAUNCHER_STAGED is not set: the agent removes nothing
    assert said.format(local=local, copy=copy) in sentence
    assert sentence.startswith("environment.stage: ")
    assert sentence.endswith(", so Python starts from the shared file system")
    assert not copy.exists() or (copy.is_symlink() and not any((place / "elsewhere").iterdir()))


def test_a_disk_without_room_is_not_filled(enter: Enter, place: Path) -> None:
    """The room is looked at before anything is written."""
    _, _, sentence = enter(size=10**15)

    assert f"{place / 'local'} has " in sentence
    assert " MB free and " in sentence


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(("job_mb", "takes"), [("100", False), ("10000", True)])
def test_a_tmpfs_counts_as_the_jobs_memory(enter: Enter, memory: Path, job_mb: str, takes: bool) -> None:
    """More than a quarter of the job's memory is not taken from the training for its environment."""
    if (
        subprocess.run(["stat", "-f", "-c", "%T", memory], capture_output=True, text=True, check=True).stdout
        != "tmpfs\n"
    ):
        pytest.skip("/dev/shm is no tmpfs here")

    found, _, sentence = enter(local=memory, size=50_000_000, SLURM_MEM_PER_NODE=job_mb)

    assert found == ("the copy" if takes else "the original")
    assert ("more than a quarter of the job's 100 MB" in sentence) is not takes


def test_a_tmpfs_may_promise_more_than_the_node_has(enter: Enter, place: Path) -> None:
    """Where the job has no limit of its own, the node's available memory counts: no node is filled by its environment."""
    folder = place / "promises"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1000T", "none", folder], check=True)
    try:
        found, _, sentence = enter(local=folder, size=10**13, SLURM_MEM_PER_NODE="0")
    finally:
        subprocess.run(["umount", folder], check=True)

    assert found == "the original"
    assert "is in memory, and 10490417 MB would be more than a quarter of the job's " in sentence


def test_what_killed_jobs_have_left_is_removed_and_what_lives_is_kept(enter: Enter, place: Path) -> None:
    """An agent holds a lock on its copy while it lives: an old copy without one is nobody's. Links are not followed."""
    left, lives, young = copy_of(place, "5"), copy_of(place, "6"), copy_of(place, "8")
    elsewhere = place / "elsewhere"
    for folder in (left, lives, young, elsewhere):
        folder.mkdir()
        (folder / "file").touch()
    copy_of(place, "4").symlink_to(elsewhere)
    old, fresh = (place / "local" / f"launcher-{os.getuid()}-{job}-feed.0.tar" for job in (2, 3))
    for path in (old, fresh):
        path.touch()
    for path in (old, left, lives):
        os.utime(path, (0, 0))
    held = os.open(lives, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)

    enter()

    os.close(held)
    assert (left.exists(), old.exists()) == (False, False)
    assert all(path.exists() for path in (lives / "file", young / "file", fresh, elsewhere / "file"))


def test_an_archive_of_somebody_else_is_not_used(enter: Enter, place: Path) -> None:
    """Who could write it would run their Python as this user."""
    if os.getuid() != 0:
        pytest.skip("gives a file to another user")
    os.chown(place / "feed.tar", 4711, 4711)

    found, _, sentence = enter()

    assert (found, "feed.tar belongs to somebody else" in sentence) == ("the original", True)


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another group")
@pytest.mark.parametrize(
    ("mode", "group", "takes"),
    [(0o777, 0, False), (0o775, 4711, False), (0o1777, 4711, True), (0o1775, 4711, True), (0o775, 0, True), (0o757, 0, False)],
)  # fmt: skip
def test_a_folder_in_which_others_can_rename_is_not_used(
    enter: Enter, place: Path, mode: int, group: int, takes: bool
) -> None:
    """They could put their own Python in the place of the copy, or the user's own files in the place of what is removed."""
    local = place / "local"
    os.chown(local, -1, group)
    local.chmod(mode)
    left = copy_of(place, "5")
    left.mkdir()
    os.utime(left, (0, 0))

    found, _, sentence = enter()

    assert found == ("the copy" if takes else "the original")
    assert (f"{local} cannot be used: others can put another folder in the place of the copy" in sentence) is not takes
    assert (copy_of(place).exists(), left.exists()) == (takes, not takes)


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user")
@pytest.mark.parametrize("when", ["mkdir", "unshare"])
def test_a_copy_that_is_somebody_elses_once_it_is_open_is_not_used(enter: Enter, place: Path, when: str) -> None:
    """Whose it is is asked again behind each opening: before tar writes in it, and before it is mounted."""
    commands, copy = place / "commands", copy_of(place)
    commands.mkdir()
    (commands / when).write_text(f'#!/bin/sh\n{shutil.which(when)} "$@"\nchown 4711 {copy}\n')
    (commands / when).chmod(0o755)

    found, _, sentence = enter(PATH=f"{commands}:{os.environ['PATH']}")

    assert (found, f"{copy} belongs to somebody else by now" in sentence) == ("the original", True)
    assert (copy / "0").exists() == (when == "unshare")


def test_a_copy_that_was_removed_in_part_is_not_ready(enter: Enter, place: Path) -> None:
    """The mark goes first: what is left of a slow removal is unpacked over."""
    enter()
    (copy_of(place) / "ready").unlink()
    (copy_of(place) / "0" / "says").unlink()

    assert enter()[0] == "the copy"


def test_a_copy_that_another_agent_uses_outlives_a_start_that_fails(enter: Enter, place: Path) -> None:
    """A second agent that cannot start from the copy leaves it to the one that lives in it."""
    enter()
    (copy_of(place) / "0" / "spoiled").touch()
    held = os.open(copy_of(place), os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)

    found, _, sentence = enter()

    os.close(held)
    assert (found, "torch cannot be imported" in sentence) == ("the original", True)
    assert (copy_of(place) / "0" / "says").exists()


def test_another_jobs_variables_do_not_count(enter: Enter, place: Path) -> None:
    """A job that was submitted from inside another one's inherits its environment; neither its copy nor its sentence is this one's."""
    found, who, sentence = enter(LAUNCHER_STAGED="/tmp/theirs", LAUNCHER_NOT_STAGED="theirs", base="x", key="y")

    assert (found, who.split()[-1], sentence) == ("the copy", str(copy_of(place)), "")
