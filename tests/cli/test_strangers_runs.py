"""Runs that somebody else has planted in a shared folder: seen, read by their path, never run from, signalled or taken for one's own."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from squeue import squeue_line

from launcher.cli.main import main
from launcher.cli.watch import _save_and_end
from launcher.errors import RunDirError, RunNotFoundError, StateError
from launcher.run import index
from launcher.run.own_folder import mark_of_owner, require_own
from launcher.run.paths import RunPaths
from launcher.run.processes import mark_of
from launcher.submission.folder.make_folder import make_run_folder
from launcher.submission.sweeps.points import own_runs_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
STRANGER = 65534
RUN = "net-1121-0842-zzz"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs_dir in which everybody may write, and commands of SLURM that note what they are asked."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    tools = tmp_path / "tools"
    tools.mkdir()
    job = 'for word; do case "$word" in --jobs=*) job=${word#--jobs=};; esac; done'
    known = f"{job}; echo '{squeue_line('JOB', 'RUNNING')}' | sed \"s/JOB/$job/g\""
    for name in ("squeue", "scancel", "scontrol", "sacct", "sbatch"):
        answer = known if name == "squeue" else ""
        (tools / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/asked\n{answer}\n')
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o1777)
    return tmp_path / "runs"


def plant(folder: Path, **submission: object) -> RunPaths:
    """A run that looks like one's own, whose interpreter is the attacker's program."""
    paths = RunPaths(folder)
    (paths.checkpoints / "step-00000005").mkdir(parents=True)
    (paths.checkpoints / "step-00000005" / "manifest.json").write_text("{}")
    for name in ("logs", "submitit", "code"):
        (paths.root / name).mkdir()
    (paths.code / "train.py").write_text("print(1)\n")
    evil, mark = paths.root / "evil", folder.parent.parent / "pwned"
    evil.write_text(f'#!/bin/sh\ntouch {mark}\nexec {sys.executable} "$@"\n')
    evil.chmod(0o755)
    paths.job.write_text(f"script: train.py\nenvironment:\n  python: {evil}\n  setup: ['touch {mark}']\n")
    paths.spec.write_text(json.dumps({"version": 1, "id": paths.id, "name": "net", "batch": "local"}))
    paths.events.write_text(
        json.dumps({"t": 1e9, "type": "submitted", "attempt": None, "job_id": "42", "backend": "slurm"}) + "\n"
    )
    base = {
        "backend": "slurm",
        "job_id": "42",
        "submitted_t": 1e9,
        "base_dir": str(paths.code),
        "code_root": str(paths.code),
    }
    paths.submission.write_text(json.dumps({**base, **submission}))
    give_to(paths.root, STRANGER)
    return paths


def give_to(folder: Path, user: int) -> None:
    """Make everything below somebody's."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


EXECUTING = (["resubmit", "{run}"], ["resubmit", "{run}", "--fork", "mine"], ["resubmit", "{run}", "--code"], ["cancel", "{run}"],
             ["cancel", "{run}", "--save"], ["shell", "{run}", "true"])  # fmt: skip


@pytest.mark.parametrize("words", EXECUTING, ids=lambda words: " ".join(words[:1] + words[2:]))
@pytest.mark.parametrize("named", ["net", "zzz", RUN, "@last"])
def test_a_planted_run_is_not_what_a_name_means(
    shared: Path, words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither its job's name, its id, an ending nor @last leads to it, and nothing of it runs."""
    plant(shared / RUN)

    assert main([word.format(run=named) for word in words]) == 7
    assert "launcher: " in capsys.readouterr().err
    assert not (shared.parent / "pwned").exists()
    assert not (shared.parent / "asked").exists()


@pytest.mark.parametrize("words", EXECUTING, ids=lambda words: " ".join(words[:1] + words[2:]))
def test_a_strangers_run_is_not_run_by_its_path(
    shared: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence names owner and mode; nothing of it runs, and nothing is signalled."""
    paths = plant(shared / RUN)

    assert main([word.format(run=str(paths.root)) for word in words]) == 16
    assert "is owned by nobody, which a network file system or a container shows" in (said := capsys.readouterr().err)
    assert "(mode 0755), and you are root" in said
    assert said.count("\n") == 1
    assert not (shared.parent / "pwned").exists()
    assert not (shared.parent / "asked").exists()


def test_the_live_view_cancels_no_strangers_run(shared: Path) -> None:
    """Its key says the same sentence."""
    paths = plant(shared / RUN)

    assert "is owned by nobody" in _save_and_end(paths)
    assert not (shared.parent / "asked").exists()


def test_ones_own_older_run_is_meant_where_a_newer_one_is_planted(shared: Path) -> None:
    """The job's name and @last mean the newest of one's own."""
    mine = plant(shared / "net-1120-0842-abc")
    give_to(mine.root, os.geteuid())
    plant(shared / RUN)

    assert index.resolve("net") == index.resolve("@last") == mine.root
    assert [r.id for r in index.list_runs()] == [mine.id]


@pytest.mark.parametrize("link_owner", [STRANGER, 0])
def test_a_link_to_a_strangers_run_is_followed_by_no_name(shared: Path, link_owner: int) -> None:
    """In the shared folder, and in one's own index, whose folder somebody has put another in the place of."""
    aside = plant(shared.parent / "aside" / RUN)
    link = shared / RUN
    link.symlink_to(aside.root)
    os.chown(link, link_owner, link_owner, follow_symlinks=False)
    index.register(aside.root)

    assert index.list_runs() == []
    assert main(["cancel", "net"]) == 7
    assert not (shared.parent / "asked").exists()


def test_a_strangers_link_to_ones_own_run_names_nothing(shared: Path) -> None:
    """A name that another chose for one's run, to have the wrong one cancelled."""
    mine = plant(shared.parent / "aside" / "precious-1121-0842-abc")
    give_to(mine.root, os.geteuid())
    (shared / RUN).symlink_to(mine.root)
    os.chown(shared / RUN, STRANGER, STRANGER, follow_symlinks=False)

    assert main(["cancel", "net"]) == 7
    assert not (shared.parent / "asked").exists()


def test_a_strangers_link_here_is_not_what_a_name_means(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cancel digits` in a folder where somebody has made a link digits -> another run of one's own."""
    mine = plant(shared / RUN)
    give_to(mine.root, os.geteuid())
    shared.parent.chmod(0o1777)
    link = shared.parent / "digits"
    link.symlink_to(mine.root)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)

    with pytest.raises(RunNotFoundError):
        index.resolve("digits")
    os.chown(link, os.geteuid(), -1, follow_symlinks=False)
    assert index.resolve("digits") == link
    assert index.resolve("./digits") == link


def test_no_run_is_made_where_everybody_could_replace_it(shared: Path) -> None:
    """Without the sticky bit whoever may write in a folder may rename what is in it, a run of mode 0700, too."""
    shared.chmod(0o777)
    with pytest.raises(
        RunDirError, match=f"{shared} can be written by everybody, who could put another run in the place"
    ):
        make_run_folder(shared / RUN)
    mine = plant(shared / RUN)
    give_to(mine.root, os.geteuid())
    with pytest.raises(StateError, match=f"or chmod \\+t {shared}"):
        require_own(mine.root)
    require_own(mine.root, executes=False)  # it can be cancelled

    shared.chmod(0o1777)
    require_own(mine.root)
    assert make_run_folder(shared / "net-1121-0843-yyy")


def test_folders_made_for_runs_are_not_open_to_the_group(shared: Path) -> None:
    """Whatever the umask: a member of the group could replace the runs in it."""
    before = os.umask(0o002)
    try:
        assert make_run_folder(shared / "deep" / "er" / RUN)
    finally:
        os.umask(before)
    assert [oct(p.stat().st_mode & 0o777) for p in (shared / "deep", shared / "deep" / "er")] == ["0o755", "0o755"]


def test_status_and_why_say_whose_it_is(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside what of its files could not be read."""
    theirs = plant(shared / RUN)

    for verb in ("status", "why"):
        main([verb, str(theirs.root)])
        assert "the run's folder: of nobody" in capsys.readouterr().out


def test_the_list_marks_them(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ls shows whose each is; a run of one's own has no mark."""
    plant(shared / RUN)
    mine, open_ = plant(shared / "net-1120-0842-abc"), plant(shared / "net-1120-0842-opn")
    for one in (mine, open_):
        give_to(one.root, os.geteuid())
    open_.root.chmod(0o777)

    assert main(["ls"]) == 0
    said = {line.split("  ")[0] for line in capsys.readouterr().out.splitlines()}
    assert said == {f"{RUN} (of nobody)", mine.id, f"{open_.id} (others can write)"}
    assert main(["ls", "--json"]) == 0
    marks = {row["run"]: row["mark"] for row in json.loads(capsys.readouterr().out)}
    assert marks == {RUN: "of nobody", mine.id: "", open_.id: "others can write"}


def test_a_strangers_run_is_read_by_its_path(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """status, why, report and logs tell of it; its name says where it is."""
    paths = plant(shared / RUN)
    log = paths.rank_log(0, 0, 0)
    log.parent.mkdir(parents=True)
    log.write_text("step 1\n")

    for words in (["status"], ["why"], ["report", "-o", "page.html"], ["logs"]):
        assert main([words[0], str(paths.root), *words[1:]]) == 0, words
    assert "step 1\n" in capsys.readouterr().out
    assert main(["status", "net"]) == 7
    assert (
        f"'net' is a run of nobody, not yours: name it by its path, {paths.root}, to read it" in capsys.readouterr().err
    )


def test_nothing_of_a_strangers_run_is_removed(shared: Path) -> None:
    """clean takes one's own runs alone."""
    paths = plant(shared / RUN)
    paths.outcome.write_text(json.dumps({"state": "completed", "t": 1e9}))
    os.chown(paths.outcome, STRANGER, STRANGER)

    assert main(["clean", "--name", "net", "--yes"]) == 0
    assert paths.root.is_dir()


@pytest.mark.parametrize("mode", [0o770, 0o757, 0o777])
def test_nothing_is_run_from_a_folder_in_which_others_can_write(shared: Path, mode: int) -> None:
    """It is one's own, and they may have changed what it holds: the sentence says how to close it."""
    mine = plant(shared / RUN)
    give_to(mine.root, os.geteuid())
    os.chown(mine.root, -1, 65534)  # root's own group is as good as root
    mine.root.chmod(mode)

    with pytest.raises(StateError, match=rf"others can write in .*mode {mode:04o}.*chmod go-w"):
        own_runs_of("net")


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_ones_own_folder_is_run_from(shared: Path, mode: int) -> None:
    """Also where the group may read it (share: group)."""
    mine = plant(shared / RUN)
    give_to(mine.root, os.geteuid())
    os.chown(mine.root, -1, 65534)  # root's own group is as good as root
    mine.root.chmod(mode)

    assert [one.root for one in own_runs_of("net")] == [mine.root]


def test_a_point_in_a_strangers_sweep_is_not_run(shared: Path) -> None:
    """The point's code and library lie in the sweep's folder."""
    sweep = shared / "lr-1121-0900-swp"
    point = plant(sweep / "lr-0-1121-0900-swp0000")
    give_to(point.root, os.geteuid())
    (sweep / "sweep.json").write_text(json.dumps({"points": [{"run": point.id}, {"run": "../../etc"}, {"run": 3}]}))
    os.chown(sweep, STRANGER, STRANGER)

    with pytest.raises(StateError, match="owned by nobody"):
        require_own(point.root)
    with pytest.raises(StateError, match="owned by nobody"):
        own_runs_of(str(sweep))


def in_a_child(act: Callable[[], bool]) -> bool:
    """What ``act`` returns as the other user."""
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        os._exit(0 if act() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_root_is_trusted() -> None:
    """To another user a run of root's is one's own, a third one's is not, and one's own is."""
    with tempfile.TemporaryDirectory() as place:  # pytest's own is closed to others
        os.chmod(place, 0o755)
        roots, thirds, own = (Path(place, f"{name}-1121-0842-abc") for name in ("roots", "thirds", "own"))
        for folder, owner in ((roots, 0), (thirds, 4321), (own, STRANGER)):
            folder.mkdir()
            os.chown(folder, owner, owner)

        assert in_a_child(lambda: mark_of_owner(roots) == mark_of_owner(own) == "")
        assert in_a_child(lambda: mark_of_owner(thirds) == "of user 4321")


@pytest.mark.parametrize(
    "options", [[], ["--json", "-o", f"{RUN}.html"], ["-o", f"{RUN}.html"]], ids=["page", "json", "output"]
)
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_a_report_goes_where_it_says(
    shared: Path, options: list[str], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name in a shared folder is known beforehand: a planted link is not followed, a pipe not waited for."""
    mine = plant(shared / RUN)
    give_to(mine.root, os.geteuid())
    treasure, page = shared.parent / "authorized_keys", shared.parent / f"{RUN}.html"
    if kind == "pipe":
        os.mkfifo(page)
    else:
        page.symlink_to(treasure)
    if kind == "link":
        treasure.write_text("mine\n")

    assert main(["report", RUN, *options]) == 11
    assert (
        "is a link or no regular file, which the report does not replace: name another with -o"
        in capsys.readouterr().err
    )
    assert treasure.exists() is (kind == "link")
    assert kind != "link" or treasure.read_text() == "mine\n"


def test_a_report_replaces_a_report(shared: Path) -> None:
    """The page of before is no obstacle, and what another has open of it gets nothing of the new one."""
    mine, page = plant(shared / RUN), shared.parent / f"{RUN}.html"
    give_to(mine.root, os.geteuid())
    page.write_text("before")
    page.chmod(0o666)

    with page.open() as held:
        assert main(["report", RUN]) == 0
        assert held.read() == "before"
    assert page.stat().st_mode & 0o777 == 0o600


# --- what a planted submission.json cannot do, in a folder of one's own ---------------------------------------------------


@pytest.mark.parametrize(
    "job_id", ["--me", "--user=root", "42 43", "42;reboot", "\u0664\u0662", "", None, 42, "0", ["42"]]
)
def test_what_is_no_job_id_reaches_no_command(shared: Path, job_id: object) -> None:
    """Read as none, from submission.json and from events: scancel, squeue and scontrol are not called."""
    mine = plant(shared / RUN, job_id=job_id)
    event = {"t": 1e9, "type": "requeued", "attempt": 0, "how": "continuation", "job_id": job_id}
    mine.events.write_text(json.dumps(event) + "\n")
    give_to(mine.root, os.geteuid())

    for words in (["cancel", RUN], ["cancel", RUN, "--save"], ["status", RUN], ["why", RUN], ["ls"]):
        main(words)
    asked = shared.parent / "asked"
    assert not asked.exists() or ("scancel" not in (said := asked.read_text()) and str(job_id) not in said)


@pytest.mark.parametrize("job_id", ["42", "42_7", "42+1"])
def test_job_ids_of_every_form_are_passed_on(shared: Path, job_id: str) -> None:
    """A job, an array's element, a part of a heterogeneous job."""
    mine = plant(shared / RUN, job_id=job_id)
    mine.events.unlink()
    give_to(mine.root, os.geteuid())

    assert main(["cancel", RUN, "--save"]) == 0
    assert f"scancel --signal=USR2 {job_id}\n" in (shared.parent / "asked").read_text()


@pytest.mark.parametrize("started", ["right", None])
def test_a_process_of_another_program_gets_no_signal(
    shared: Path, started: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its number and the moment of its start, which everybody can read, are not enough; nor is the number alone."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
    try:
        mark = mark_of(child) if started else None
        mine = plant(shared / RUN, backend="local", job_id=str(child), pid=child, pid_started=mark, host=None)
        give_to(mine.root, os.geteuid())

        assert main(["cancel", RUN]) == 16
        assert "is not known to be this run's, so it gets no signal" in capsys.readouterr().err
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.parametrize("pid", [-1, 0, True, 2**40, "1", 1.5])
def test_a_number_that_means_many_processes_gets_no_signal(
    shared: Path, pid: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill(-1) would end everything that the user runs."""
    sent: list[object] = []
    monkeypatch.setattr(os, "kill", lambda *what: sent.append(what))
    mine = plant(shared / RUN, backend="local", job_id="7", pid=pid, pid_started=None, host=None)
    give_to(mine.root, os.geteuid())

    main(["cancel", RUN])
    main(["status", RUN])
    assert sent == []
