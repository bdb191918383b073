"""Facts about a job of others: it is read, and nothing that it names is run until the user vouches for it."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli.main import main
from launcher.config.document.source import Document
from launcher.config.load import load, site_profile, trust
from launcher.errors import TrustError
from launcher.submission import resubmit
from launcher.submission.facts import code_files, interpreter

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of others are made by root")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job whose Python is a program that leaves a file, current for the test; no SLURM, no other runs."""
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.delenv("LAUNCHER_SITE", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    home = tmp_path / "job"
    home.mkdir()
    (home / "train.py").write_text("print(1)\n")
    python = home / "python"
    python.write_text(f'#!/bin/sh\ntouch {tmp_path}/ran\nenv > {tmp_path}/env\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (home / "job.yaml").write_text(f"script: train.py\nenvironment:\n  python: {python}\npreflight: false\n")
    monkeypatch.chdir(home)
    return tmp_path


def _give_file(place: Path) -> str:
    os.chown(place / "job/job.yaml", NOBODY, NOBODY)
    return "job.yaml belongs to nobody"


def _give_folder(place: Path) -> str:
    os.chown(place / "job", NOBODY, NOBODY)
    return "job belongs to nobody"


def _give_script(place: Path) -> str:
    os.chown(place / "job/train.py", NOBODY, NOBODY)
    return "train.py belongs to nobody"


def _open_file(place: Path) -> str:
    (place / "job/job.yaml").chmod(0o646)
    return "job.yaml can be written by everybody"


def _open_folder(place: Path) -> str:
    (place / "job").chmod(0o1777)
    return "job can be written by everybody"


def _share_file(place: Path) -> str:
    os.chown(place / "job/job.yaml", -1, NOBODY)
    (place / "job/job.yaml").chmod(0o664)
    return "job.yaml can be written by group nogroup"


@as_root
@pytest.mark.parametrize("gift", [_give_file, _give_folder, _give_script, _open_file, _open_folder, _share_file])
@pytest.mark.parametrize("verb", ["plan", "submit", "run", "dry-run"])
def test_the_python_of_a_strangers_job_is_not_run(
    place: Path, gift: Callable[[Path], str], verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """plan prints the job without its Python's answer and says so; the verbs that run it name the owner and --trust."""
    told = gift(place)
    code = main([verb, "job.yaml", *([] if verb in ("run", "dry-run") else ["--backend", "local"])])
    seen = capsys.readouterr()

    assert not (place / "ran").exists()
    assert not list(place.glob("runs/*"))
    if verb == "plan":
        assert code == 0
        assert f"{place}/job/python, not checked from here" in seen.out
        assert f"{told}: read it before you submit it, which needs --trust" in seen.out
    else:
        assert code == TrustError.exit_code
        assert f"{told}, and what it names would run as you; read it, then add --trust" in seen.err
        assert f": launcher {verb} --trust job.yaml" in seen.err
        assert len(seen.err.splitlines()) == 1


@pytest.mark.torch
@as_root
@pytest.mark.parametrize("what", ["function: pkg.mod:work", "script: -m pkg.mod", "script: train.py"])
def test_every_file_of_the_code_counts(place: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A module deep in one's own folder that somebody else can write in is run as oneself: submit names it, plan says so."""
    (place / "job/pkg").mkdir()
    (place / "job/pkg/mod.py").write_text("def work(worker): ...\n")
    (place / "job/pkg").chmod(0o777)
    (place / "job/job.yaml").write_text(f"{what}\npreflight: false\n")

    assert main(["submit", "job.yaml", "--backend", "local"]) == TrustError.exit_code
    assert "job/pkg can be written by everybody, and what it names" in capsys.readouterr().err
    assert main(["plan", "job.yaml", "--backend", "local"]) == 0
    assert "job/pkg can be written by everybody: read it" in capsys.readouterr().out
    assert main(["plan", "--trust", "job.yaml", "--backend", "local"]) == 0
    assert "--trust" not in capsys.readouterr().out


def _remove(job: Path) -> str:
    job.unlink()
    return "job.yaml cannot be looked at any more (no such file or directory)"


def _replace_by_ones_own(job: Path) -> str:
    job.rename(job.with_name("moved"))
    job.write_text("script: train.py\n")
    return "job.yaml belongs to nobody"


def _replace_a_link(job: Path) -> str:
    """What the link led to is the user's own, and what stands in its place is not."""
    job.unlink()
    job.write_text("script: train.py\n")
    os.chown(job, NOBODY, NOBODY)
    return "job.yaml belongs to nobody"


@as_root
@pytest.mark.parametrize("exchange", [_remove, _replace_by_ones_own, _replace_a_link])
def test_a_job_belongs_to_whoever_owned_what_was_read(
    place: Path, exchange: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stranger's job file that is removed, or replaced, once it was read is in doubt as before: nothing of it is run."""
    job = place / "job/job.yaml"
    if exchange is _replace_a_link:
        job.rename(place / "own.yaml")
        job.symlink_to(place / "own.yaml")
    os.chown(job, NOBODY, NOBODY, follow_symlinks=False)
    told = []

    def read(path: Path) -> Document:
        found = site_profile.read_document(path)
        told.append(exchange(path))
        return found

    monkeypatch.setattr(load, "read_document", read)
    assert main(["run", "job.yaml"]) == TrustError.exit_code
    assert f"{told[0]}, and what it names would run as you; read it, then add --trust" in capsys.readouterr().err
    assert not (place / "ran").exists()


@as_root
def test_data_of_others_is_no_doubt(place: Path) -> None:
    """A link to a file of the team's is copied as ever, unless it is code."""
    theirs = place / "theirs.csv"
    theirs.touch()
    os.chown(theirs, NOBODY, NOBODY)
    (place / "job/data.csv").symlink_to(theirs)
    assert code_files.listing(place / "job").doubt == ""

    (place / "job/lib.py").symlink_to(theirs)
    assert code_files.listing(place / "job").doubt == f"{place}/job/lib.py belongs to nobody"


@as_root
def test_a_link_that_somebody_can_change_is_no_job_of_ones_own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that it leads to is one's own now, and another a moment later."""
    open_folder = place / "open"
    open_folder.mkdir()
    open_folder.chmod(0o1777)
    link = open_folder / "job.yaml"
    link.symlink_to(place / "job/job.yaml")
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    assert trust.doubt([link]) == f"{link} belongs to nobody"

    os.chown(link, os.geteuid(), -1, follow_symlinks=False)
    assert trust.doubt([link]) == ""  # the sticky bit keeps others from replacing it
    open_folder.chmod(0o777)
    assert trust.doubt([link]) == f"{open_folder} can be written by everybody"
    monkeypatch.chdir(open_folder)
    assert trust.doubt([Path("job.yaml")]) == f"{open_folder} can be written by everybody"


def test_an_access_control_list_opens_a_private_group(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one, the group's bits are the most that anybody named in it may do; `user:bob:rw-` is shown as rw- of the group."""
    job = place / "job/job.yaml"
    os.chown(job, -1, os.getgid())
    job.chmod(0o664)
    assert trust.doubt([job]) == ""
    entries = [(1, 6, 0xFFFFFFFF), (2, 6, 4242), (4, 4, 0xFFFFFFFF), (16, 6, 0xFFFFFFFF), (32, 4, 0xFFFFFFFF)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)  # linux/posix_acl_xattr.h
    try:
        os.setxattr(job, "system.posix_acl_access", acl)
    except OSError as error:
        pytest.skip(f"this file system has no access control lists: {error.strerror}")

    assert trust.doubt([job]) == f"{job} can be written by those in its access control list"


@as_root
@pytest.mark.torch
def test_a_job_that_is_vouched_for_is_looked_at(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--trust: its Python is asked, after a line that says so."""
    _give_file(place)

    assert main(["plan", "--trust", "job.yaml", "--backend", "local"]) == 0
    assert (place / "ran").exists()
    seen = capsys.readouterr()
    assert seen.err == f"checking {place}/job/python ...\n"
    assert "--trust" not in seen.out


@pytest.mark.torch
def test_ones_own_job_is_looked_at(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The user's own files need no word; of the launcher's own Python, which is not run, nothing is said."""
    assert main(["plan", "job.yaml", "--backend", "local"]) == 0
    assert capsys.readouterr().err == f"checking {place}/job/python ...\n"
    assert main(["plan", "job.yaml", "--backend", "local", f"environment.python={sys.executable}"]) == 0
    assert capsys.readouterr().err == ""


def test_a_private_group_may_write(place: Path) -> None:
    """Where every user has a group alone, files are made writable by it: that is nobody else."""
    os.chown(place / "job", -1, os.getgid())
    (place / "job").chmod(0o775)

    assert trust.doubt([place / "job"]) == ""


@as_root
def test_only_roots_files_are_as_good_as_ones_own() -> None:
    """For another user a job of root's is no stranger's, and that of a third user is."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    for name in ("root.yaml", "third.yaml"):
        (folder / name).touch()
    os.chown(folder / "third.yaml", 4242, 4242)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.chdir("/")
        doubts = [trust.doubt([folder / name]) for name in ("root.yaml", "third.yaml", "gone.yaml")]
        os.write(writer, json.dumps(doubts).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    shutil.rmtree(folder)
    with open(reader) as f:
        assert json.load(f) == ["", f"{folder}/third.yaml belongs to user 4242", ""]


@as_root
@pytest.mark.parametrize("goes", [False, True])
@pytest.mark.parametrize("options", [[], ["--fork", "mine"], ["--code"]])
def test_a_strangers_run_is_not_resubmitted(
    place: Path, options: list[str], goes: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run's folder given by its path holds somebody's job and code: it, and a fork of it, need --trust, also when the job goes."""
    run = place / "theirs" / "net-1121-0842-k7f"
    (run / "code").mkdir(parents=True)
    (run / "checkpoints/step-00000002").mkdir(parents=True)
    (run / "checkpoints/step-00000002/manifest.json").write_text("{}")
    (run / "code/train.py").write_text("print(1)\n")
    (run / "job.yaml").write_bytes((place / "job/job.yaml").read_bytes())
    (run / "spec.json").write_text(json.dumps({"id": run.name, "name": "net"}))
    (run / "submission.json").write_text(json.dumps({"backend": "local", "base_dir": str(place / "job")}))
    (run / "outcome.json").write_text(json.dumps({"state": "failed", "reason": "x", "step": 2}))
    os.chown(run / "job.yaml", NOBODY, NOBODY)
    told = "job.yaml belongs to nobody"
    if goes:

        def read(path: Path, most: int) -> Document:
            nonlocal told
            found = site_profile.read_document(path, most)
            told = _remove(path)
            return found

        monkeypatch.setattr(resubmit, "read_document", read)

    assert main(["resubmit", str(run), *options]) == TrustError.exit_code
    assert f"{told}, and what it names would run as you" in capsys.readouterr().err
    assert not (place / "ran").exists()


def test_the_hint_repeats_the_whole_command(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments of the script stay behind --, where --trust would be the script's."""
    (place / "job/job.yaml").chmod(0o666)

    assert main(["submit", "job.yaml", "slurm.comment=two words", "--", "--lr", "3"]) == TrustError.exit_code
    assert ": launcher submit --trust job.yaml 'slurm.comment=two words' -- --lr 3\n" in capsys.readouterr().err


def test_a_python_is_asked_with_what_it_needs_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the shell's variables it gets those that starting a Python needs, and no secret, whatever it is called."""
    kept = {"PYTHONPATH": "/x", "LD_LIBRARY_PATH": "/y", "EBPYTHONPREFIXES": "/z", "LANG": "C.UTF-8"}
    hidden = {"WANDB_API_KEY": "k", "AWS_SESSION": "s", "PYTHON_TOKEN": "t", "SSH_AUTH_SOCK": "a", "SLURM_JWT": "j"}
    for name, value in {**kept, **hidden}.items():
        monkeypatch.setenv(name, value)
    found = interpreter.ask_interpreter(str(place / "job/python"), "test", os.environ)
    given = dict(line.split("=", 1) for line in (place / "env").read_text().splitlines())

    assert found.version
    assert given.items() >= kept.items()
    assert given.keys().isdisjoint(hidden)
