"""What slurm/cluster does where there is no cluster: it is refused in one sentence, interrupted, or finds what others have left."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import COMMAND, ROOT, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason="slurm/cluster needs root and its capabilities")
Verb = Callable[..., "subprocess.CompletedProcess[str]"]
NO_CAPABILITIES = ["setpriv", "--bounding-set=-sys_admin,-net_admin,-mknod", "--inh-caps=-all"]
AS_NOBODY = "import os, sys; sys.path.insert(0, sys.argv[1]); import verbs; os.seteuid(65534); sys.exit(verbs.main(sys.argv[2:], ''))"
LIB = ROOT / "slurm" / "lib"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The directory of a cluster that is not there."""
    return tmp_path / "here"


@pytest.fixture
def verb(here: Path) -> Verb:
    """Run slurm/cluster on `here`; ``by`` stands before the command."""

    def run(*args: str, by: list[str] | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "LAUNCHER_CLUSTER_DIR": str(here), **more}
        words = [*(by or [sys.executable, str(COMMAND)]), *args]
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)

    return run


def made(here: Path) -> Path:
    """As much of a cluster as verbs look for before they act."""
    (here / "etc").mkdir(parents=True)
    (here / "etc" / "slurm.conf").write_text("\n")
    (here / "cluster.json").write_text('{"subnet": "10.128.1.0/24", "release": ""}')
    return here


def tag(here: Path) -> str:
    """What its lock and its networks are called by."""
    return hashlib.sha256(str(here.resolve()).encode()).hexdigest()[:6]


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 1 and one sentence that has these words."""
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert done.stderr.startswith("cluster: ")
    assert [word for word in words if word not in done.stderr] == [], done.stderr


@pytest.mark.parametrize("word", ["check", "up", "status", "down"])
def test_a_container_without_capabilities_is_named(verb: Verb, word: str) -> None:
    """Root in an ordinary container is told what is missing; the tests' fixture skips with these words."""
    done = verb(word, by=[*NO_CAPABILITIES, sys.executable, str(COMMAND)])

    refused(done, "privileged container (docker run --privileged)", "CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_MKNOD")


def test_status_is_not_told_to_who_cannot_see_it(verb: Verb, here: Path) -> None:
    """To an ordinary user, who sees no process of root's, every daemon would be "not running" and every host cut off."""
    made(here)

    refused(verb("status", by=[sys.executable, "-c", AS_NOBODY, str(LIB)]), "needs root (this is user 65534)")


@pytest.mark.parametrize("word", ["up", "install", "check"])
def test_another_system_than_debians_is_named(verb: Verb, tmp_path: Path, word: str) -> None:
    """Without dpkg-query and apt-get on the PATH."""
    refused(verb(word, PATH=str(tmp_path)), "needs Debian or Ubuntu")


@pytest.mark.parametrize("word", ["stop", "start", "restart"])
def test_a_daemon_has_to_be_named(verb: Verb, here: Path, word: str) -> None:
    """`stop` alone stops nothing, and does not say that it had."""
    made(here)

    refused(verb(word), "which daemon?", "slurmctld, slurmdbd", "node1")


@pytest.mark.parametrize("word", ["down", "up"])
def test_a_directory_that_is_a_file_is_refused(verb: Verb, here: Path, word: str) -> None:
    """In a sentence that names it."""
    here.touch()

    refused(verb(word), f"{here}: Not a directory")


def test_who_waits_for_another_verb_says_for_which_and_ctrl_c_ends_it(verb: Verb, here: Path) -> None:
    """Behind 2 s; without a traceback."""
    lock = Path(f"/run/lock/launcher-cluster-{tag(here)}.lock")
    lock.write_text("`up` (process 123)")
    env = {**os.environ, "LAUNCHER_CLUSTER_DIR": str(here)}
    try:
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with subprocess.Popen([COMMAND, "down"], env=env, stderr=subprocess.PIPE, text=True) as process:
                assert process.stderr is not None
                waits = process.stderr.readline()
                process.send_signal(signal.SIGINT)
                ends = process.stderr.read()
    finally:
        lock.unlink()

    assert waits == f"cluster: waiting for `up` (process 123), which holds {lock}\n"
    assert (ends, process.returncode) == ("cluster: down was interrupted\n", 130)


@pytest.mark.parametrize("facts", ["", '{"subnet": "10.128.1.0/24"}', '{"release": "trixie"}'])
def test_down_removes_a_cluster_however_little_is_known_of_it(verb: Verb, here: Path, facts: str) -> None:
    """An empty cluster.json (a full disk), one of an older version, one of an `up` that was interrupted: all follows from the path."""
    (made(here) / "cluster.json").write_text(facts)
    (here / "settings.json").touch()
    (here / "settings.new").touch()
    run = Path(f"/run/launcher-cluster-{tag(here)}")
    run.mkdir()
    done = verb("down")

    assert done.returncode == 0, done.stderr
    assert [here.exists(), run.exists()] == [False, False]


def test_status_of_a_cluster_that_is_not_whole_says_so(verb: Verb, here: Path) -> None:
    """In one sentence that tells what mends it."""
    (made(here) / "cluster.json").write_text("")

    refused(verb("status"), "is not whole: run slurm/cluster up")


@pytest.mark.parametrize("word", ["down", "up"])
@pytest.mark.parametrize("text", ['{"nodes": 3}', "nodes = 3"])
def test_a_folder_of_somebody_elses_is_left_alone(verb: Verb, here: Path, word: str, text: str) -> None:
    """A file called cluster.json makes no cluster: it must hold what slurm/cluster writes."""
    here.mkdir()
    (here / "cluster.json").write_text(text)
    (here / "etc").mkdir()

    refused(verb(word), "is not a cluster's directory and not empty")
    assert sorted(p.name for p in here.iterdir()) == ["cluster.json", "etc"]


def test_down_removes_what_the_cluster_made_alone(verb: Verb, here: Path) -> None:
    """What somebody has put into its directory stays there."""
    (made(here) / "thesis.tex").touch()

    assert verb("down").returncode == 0
    assert [p.name for p in here.iterdir()] == ["thesis.tex"]


def test_down_removes_nothing_through_a_mount(verb: Verb, here: Path, tmp_path: Path) -> None:
    """What is mounted below the directory is not the cluster's: `down` names it, and works when it is gone."""
    precious = tmp_path / "data set"
    precious.mkdir()
    (precious / "file").touch()
    (made(here) / "state" / "a b").mkdir(parents=True)
    shell = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", shell, "sh"]
    words += [str(precious), str(here / "state" / "a b"), sys.executable, str(COMMAND)]

    refused(verb("down", by=words), "state is not removed: something is mounted on", "a b")
    assert [p.name for p in precious.iterdir()] == ["file"]
    assert verb("down").returncode == 0
    assert not here.exists()


UP = """
import signal, sys
sys.path.insert(0, sys.argv[1])
import verbs
def build(layout):
    layout.root.mkdir(parents=True)
    (layout.root / "log").mkdir()
    layout.write_facts(release="")
    if sys.argv[2] == "fails":
        raise verbs.ClusterError("slurmdbd did not come within 90 s")
    signal.raise_signal(getattr(signal, sys.argv[2]))
verbs.install.install, verbs.building._build = lambda: [], build
verbs.network.destroy = lambda layout: print("ended, logs there:", (layout.root / "log").exists())
sys.exit(verbs.main(["up"], ""))
"""


@pytest.mark.parametrize(("how", "code", "builds"), [("fails", 1, 2), ("SIGTERM", 143, 1), ("SIGINT", 130, 1)])
def test_an_up_that_fails_leaves_nothing_running(verb: Verb, how: str, code: int, builds: int) -> None:
    """Also one that is interrupted: what it has started ends, and the logs are there to be read."""
    done = verb(by=[sys.executable, "-c", UP, str(LIB), how])

    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines() == ["ended, logs there: False", *["ended, logs there: True"] * builds]


SET = """
import sys
sys.path.insert(0, sys.argv[1])
import verbs
acts = sys.argv[2].split(",")
def reconfigure(layout):
    act = acts.pop(0)
    print(act, "KillWait=3" in layout.conf.read_text())
    if act == "interrupted":
        raise KeyboardInterrupt
    if act == "refused":
        raise verbs.ClusterError("slurmctld did not come within 90 s")
verbs._reconfigure, verbs.building.version = reconfigure, lambda: (22, 5, 8)
for words in sys.argv[3:]:
    try:
        print("exit", verbs.main(["set", *words.split()], ""))
    except BaseException as error:
        print(repr(error))
print((verbs.Layout.from_environ().settings).read_text())
"""
SHORT = "KillWait=3"


@pytest.mark.parametrize(
    ("acts", "sets", "said"),
    [
        ("works", [SHORT, SHORT], ["works True", "exit 0", "exit 0", '{"KillWait": "3"}']),
        ("interrupted,works,works", [SHORT, SHORT], ["interrupted True", "works False", "exit 130", "works True", "exit 0"]),
        ("refused,works,works", [SHORT, SHORT], ["refused True", "works False", "exit 1", "works True", "exit 0"]),
        ("interrupted,interrupted,works", [SHORT, ""], ["interrupted True", "interrupted False", "exit 130", "works False", "exit 0"]),
        ("works,interrupted,interrupted,works", [SHORT, "", SHORT], ["works True", "exit 0", "interrupted False", "interrupted True",
            "exit 130", "works True", "exit 0"]),
    ],
    ids=["twice", "interrupted", "refused", "interrupted twice", "interrupted on the way back"],
)  # fmt: skip
def test_a_set_that_was_interrupted_is_no_set(
    verb: Verb, here: Path, acts: str, sets: list[str], said: list[str]
) -> None:
    """It puts back what was, and if that fails too the next `set` has slurmctld start, whatever the files say."""
    made(here)
    (here / "etc" / "storage.password").touch()
    (here / "settings.json").write_text("{}")
    assert verb(by=[sys.executable, "-c", SET, str(LIB), "works", ""]).stdout.startswith("works False\nexit 0")
    done = verb(by=[sys.executable, "-c", SET, str(LIB), acts, *sets])

    assert done.stdout.splitlines()[: len(said)] == said, done.stderr


STOP = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
import daemons
daemon = [subprocess.Popen(["sleep", "600"])]
def find(*_):
    there = [process.pid for process in daemon if process.poll() is None]
    if len(daemon) == 1:
        daemon.append(subprocess.Popen(["sleep", "600"]))  # it forks behind the look
    return there
daemons.find = find
try:
    daemons.stop(None, "slurmd", "node1")
    print([process.returncode for process in daemon])
finally:
    for process in daemon:
        process.kill()
"""


def test_a_daemon_that_forks_while_it_is_looked_for_ends(verb: Verb) -> None:
    """Its child, which was born behind the look, is killed too: one that has just been started becomes a daemon so."""
    done = verb(by=[sys.executable, "-c", STOP, str(LIB)])

    assert done.stdout == "[-9, -9]\n", done.stderr


ALL = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import leftovers, verbs
for name in ("_LOCKS", "_CLUSTERS", "_MOUNT_POINTS", "_HOMES"):
    setattr(leftovers, name, Path(sys.argv[2]) / name)
sys.exit(verbs.main(["down", "--all"], ""))
"""


def test_down_all_ends_what_dead_tests_have_left_alone(verb: Verb, tmp_path: Path) -> None:
    """Clusters whose lock nobody holds, and users whose test process is gone; of others nothing, nor anybody's else."""
    locks, clusters, points, homes = (tmp_path / name for name in ("_LOCKS", "_CLUSTERS", "_MOUNT_POINTS", "_HOMES"))
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    for folder in (locks, clusters, points, homes):
        folder.mkdir()
    for slot in (0, 1):
        (locks / f"launcher-cluster-tests-abc123-{slot}").touch()
        made(clusters / f"launcher-cluster-tests-abc123-{slot}")
        (clusters / f"launcher-cluster-tests-abc123-{slot}.disk").mkdir()
    (locks / "launcher-cluster-tests-abc123-2").touch()  # its directory is gone
    (clusters / "launcher-cluster").mkdir()
    for number in (dead.pid, os.getpid()):
        (points / f"lcuser{number}-x" / "python").mkdir(parents=True)
        (homes / f"lcuser{number}-y" / "runs").mkdir(parents=True)
    network = f"lc{tag(clusters / 'launcher-cluster-tests-abc123-2')}-node1"
    subprocess.run(["ip", "netns", "add", network], check=True)
    with (locks / "launcher-cluster-tests-abc123-1").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = verb(by=[sys.executable, "-c", ALL, str(LIB), str(tmp_path)])

    used, living = "launcher-cluster-tests-abc123-1", f"lcuser{os.getpid()}"
    assert done.returncode == 0, done.stderr
    assert not Path("/run/netns", network).exists()
    assert [path.name for path in locks.iterdir()] == [used]
    assert sorted(path.name for path in clusters.iterdir()) == ["launcher-cluster", used, f"{used}.disk"]
    assert [path.name for folder in (points, homes) for path in folder.iterdir()] == [f"{living}-x", f"{living}-y"]
