"""Facts about a hostile repository: planning asks git about it, and nothing that it names is run."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.config.load.load import LoadedJob
from launcher.errors import ConfigError
from launcher.submission.facts import code_files, gather

Make = Callable[..., LoadedJob]
NOBODY = 65534

PLANTED = {
    "core.fsmonitor": "{run}",
    "core.hooksPath": "{folder}/hooks",
    "core.sshCommand": "{run}",
    "core.gitProxy": "{run}",
    "core.askPass": "{run}",
    "core.pager": "{run}",
    "core.editor": "{run}",
    "core.alternateRefsCommand": "{run}",
    "credential.helper": "!{run}",
    "pager.status": "{run}",
    "pager.diff": "{run}",
    "alias.status": "!{run}",
    "alias.ls-files": "!{run}",
    "diff.external": "{run}",
    "diff.evil.command": "{run}",
    "diff.evil.textconv": "{run}",
    "diff.submodule": "diff",
    "filter.evil.clean": "{run}",
    "filter.evil.smudge": "{run}",
    "filter.evil.required": "true",
    "filter.two.process": "{run}",
    "hook.evil.command": "{run}",
    "hook.evil.event": "post-index-change",
    "interactive.diffFilter": "{run}",
    "gpg.program": "{run}",
    "protocol.allow": "always",
    "protocol.ext.allow": "always",
    "lfs.extension.evil.clean": "{run}",
    "status.submoduleSummary": "true",
}
"""Keys that have git, or a filter of the user's own, run a program; and keys that would have it ask for one."""


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program that leaves its words in `ran`, which must not be there in the end; the user's own configuration is empty."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "home").mkdir()
    program = tmp_path / "trap"
    program.write_text(f'#!/bin/sh\necho "$0 $@" >> {tmp_path}/ran\ncat\n')
    program.chmod(0o755)
    yield program
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def _git(root: Path, *words: str) -> None:
    who = ["-c", "user.name=ann", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True)


def _repository(root: Path) -> Path:
    """A repository with a changed file for each filter."""
    root.mkdir()
    _git(root, "init", "-q")
    (root / ".gitattributes").write_text("a.py filter=evil diff=evil\nb.py filter=two\n")
    for name in ("a.py", "b.py", "train.py"):
        (root / name).write_text("x = 1\n")
    _git(root, "add", ".")
    _git(root, "commit", "-qm", "first")
    _change(root)
    return root


def _change(root: Path) -> None:
    for name in ("a.py", "b.py"):
        (root / name).write_text("x = 2\n")


def _plant(config: Path, program: Path) -> None:
    """Set every key of `PLANTED` in a repository's configuration, and make each hook the program."""
    hooks = config.parent / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-index-change", "fsmonitor-watchman", "query-watchman", "post-checkout", "reference-transaction"):
        (hooks / name).unlink(missing_ok=True)
        (hooks / name).symlink_to(program)
    for key, value in PLANTED.items():
        text = value.format(run=program, folder=config.parent)
        subprocess.run(["git", "config", "--file", str(config), key, text], check=True)


def _look(job: Make, tmp_path: Path, root: Path) -> LoadedJob:
    """Look at a code directory as `plan` does, and at its changes as `submit` does."""
    loaded = job(code={"dir": str(root)}, script="train.py")
    found = gather.code_facts(loaded, tmp_path / "runs")
    code_files.git_diff(root)
    code_files.git_remote(root)
    assert "train.py" in dict(found.files)
    return loaded


def test_no_program_that_a_repository_names_is_run(job: Make, tmp_path: Path, trap: Path) -> None:
    """Monitor, hooks, filters, drivers, pagers, helpers and aliases of a clone are set to a program: it never runs."""
    root = _repository(tmp_path / "code")
    _plant(root / ".git" / "config", trap)
    _look(job, tmp_path, root)

    assert code_files.git_dirty(root)
    assert "+x = 2" in code_files.git_diff(root)
    assert code_files.git(root, "rev-parse", "HEAD").strip()


def test_an_embedded_bare_repository_runs_nothing(job: Make, tmp_path: Path, trap: Path) -> None:
    """A folder of a clone can hold a bare repository as ordinary files: git does not take it for the code's own."""
    root = _repository(tmp_path / "code")
    inner = root / "tools"
    _repository(tmp_path / "other")
    (tmp_path / "other" / ".git").rename(inner)
    (inner / "train.py").write_text("")
    _git(inner, "config", "core.bare", "false")
    _git(inner, "config", "core.worktree", "..")
    _plant(inner / "config", trap)
    with contextlib.suppress(ConfigError):  # in the words of a git that knows of such repositories
        _look(job, tmp_path, inner)
    _look(job, tmp_path, root)


@pytest.mark.parametrize("absorbed", [True, False])
def test_a_submodules_own_configuration_runs_nothing(job: Make, tmp_path: Path, trap: Path, absorbed: bool) -> None:
    """A submodule is asked as the code is; that its files differ is seen, and what is in it is listed."""
    root = _repository(tmp_path / "code")
    _repository(tmp_path / "other")
    _git(root, "submodule", "--quiet", "add", str(tmp_path / "other"), "sub")
    _git(root, "add", ".")
    _git(root, "commit", "-qm", "second")
    if not absorbed:
        (root / "sub" / ".git").unlink()
        (root / ".git" / "modules" / "sub").rename(root / "sub" / ".git")
        subprocess.run(["git", "config", "--file", root / "sub/.git/config", "--unset", "core.worktree"], check=True)
    at = root / ".git" / "modules" / "sub" if absorbed else root / "sub" / ".git"
    assert not code_files.git_dirty(root)
    _change(root / "sub")
    (root / "sub" / "a.py").write_text("x = 3\n")
    _plant(at / "config", trap)
    loaded = _look(job, tmp_path, root)

    found = gather.code_facts(loaded, tmp_path / "runs")
    assert "sub/a.py" in dict(found.files)
    assert found.dirty


def test_what_a_partial_clone_left_out_is_not_fetched(job: Make, tmp_path: Path, trap: Path) -> None:
    """git fetches a missing object by the address that the repository names, which can be a program."""
    root = _repository(tmp_path / "code")
    blob = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD:a.py"], capture_output=True, text=True, check=True
    ).stdout.strip()
    (root / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    _plant(root / ".git" / "config", trap)
    for key, value in {
        "core.repositoryformatversion": "1", "extensions.partialClone": "origin", "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{trap}", "remote.origin.uploadpack": str(trap),
    }.items():  # fmt: skip
        _git(root, "config", key, value)
    _look(job, tmp_path, root)


def test_a_filter_of_the_users_own_is_kept(tmp_path: Path, trap: Path) -> None:
    """What the user has set for all repositories (Git LFS) is run as the user has set it, whatever the repository says."""
    root = _repository(tmp_path / "code")
    (tmp_path / "home" / ".gitconfig").write_text('[filter "evil"]\n\tclean = sed s/2/1/\n')
    (root / "b.py").write_text("x = 1\n")
    _plant(root / ".git" / "config", trap)

    assert not code_files.git_dirty(root)
    assert code_files.git_diff(root) == ""


def test_a_filter_that_cannot_be_switched_off_is_refused(job: Make, tmp_path: Path, trap: Path) -> None:
    """git reads the name of a key on its command line up to the first =: one with a = is an error, and is not run."""
    root = _repository(tmp_path / "code")
    (root / ".gitattributes").write_text("a.py filter=e=vil\n")
    _git(root, "config", "filter.e=vil.clean", str(trap))
    loaded = job(code={"dir": str(root)}, script="train.py")

    with pytest.raises(
        ConfigError, match=r"code\.dir: the git configuration of .*/code has the key 'filter\.e=vil\.clean'"
    ):
        gather.code_facts(loaded, tmp_path / "runs")


def test_a_worktree_of_a_bare_repository_is_still_code(job: Make, tmp_path: Path, trap: Path) -> None:
    """A bare repository that a .git file leads to is the user's own layout, and is asked."""
    _repository(tmp_path / "other")
    _git(tmp_path / "other", "worktree", "add", "-q", str(tmp_path / "code"))
    _git(tmp_path / "other", "config", "core.bare", "true")
    loaded = job(code={"dir": str(tmp_path / "code")}, script="train.py")
    found = gather.code_facts(loaded, tmp_path / "runs")

    assert (found.git, found.dirty, len(found.commit)) == (True, False, 40)
    assert not os.path.exists(tmp_path / "code" / ".git" / "HEAD")


@pytest.mark.parametrize("planted", ["pipe", "missing", "open", "theirs", "link", "common"])
def test_a_configuration_that_somebody_can_change_is_not_asked(tmp_path: Path, trap: Path, planted: str) -> None:
    """git reads its configuration each time anew: one that is harmless when it is looked at may name a program a moment later."""
    root = _repository(tmp_path / "code")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
    config = root / ".git" / "config"
    if planted == "pipe":
        os.mkfifo(theirs / "pipe")
        (theirs / "writer").write_text("")
        _git(root, "config", "include.path", str(theirs / "pipe"))
        writer = subprocess.Popen(["sh", "-c", f"while [ -e {theirs}/writer ]; do : > {theirs}/pipe; done"])
    elif planted == "open":
        config.chmod(0o666)
    elif planted == "missing":
        _git(root, "config", "includeIf.onbranch:main.path", str(theirs / "later"))
    elif planted == "theirs":
        _git(root, "config", "include.path", str(theirs / "config"))
    elif planted == "link":
        config.unlink()
        config.symlink_to(theirs / "config")
    else:
        (root / ".git" / "commondir").write_text(f"{theirs}\n")
        for name in ("objects", "refs"):
            (theirs / name).symlink_to(root / ".git" / name)
    if planted not in ("pipe", "open"):
        if os.geteuid():
            pytest.skip("files of others are made by root")
        os.chown(theirs / "config", NOBODY, NOBODY)
        os.chown(theirs, NOBODY, NOBODY)
    try:
        with pytest.raises(ConfigError, match=r"git takes a part of the configuration of .* from "):
            code_files.listing(root)
    finally:
        if planted == "pipe":
            (theirs / "writer").unlink()
            writer.kill()
            writer.wait()


def test_an_include_of_ones_own_is_followed(tmp_path: Path, trap: Path) -> None:
    """Many repositories keep a shared configuration beside the code; from a subfolder, too."""
    root = _repository(tmp_path / "code")
    (root / "sub").mkdir()
    (root / "sub" / "x.py").touch()
    (root / ".gitconfig").write_text("[core]\n\tabbrev = 12\n")
    _git(root, "config", "include.path", "../.gitconfig")

    assert code_files.git_dirty(root)
    assert [name for name, _ in code_files.listing(root / "sub").files] == ["x.py"]


def _refuse(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    """Have git not know an option."""
    ask = code_files._ask_git

    def older(root: Path, *args: str) -> str:
        if option in args:
            raise code_files._GitError("too old")
        return ask(root, *args)

    monkeypatch.setattr(code_files, "_ask_git", older)


def test_without_a_listing_git_is_not_asked(tmp_path: Path, trap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its configuration cannot be listed (an old git, a time-out) nothing is switched off: it is asked nothing else."""
    root = _repository(tmp_path / "code")
    _plant(root / ".git" / "config", trap)
    _refuse(monkeypatch, "--list")

    with pytest.raises(ConfigError, match="git does not tell which files are the code's: too old"):
        code_files.listing(root)


def test_a_repository_of_a_group_is_asked(tmp_path: Path, trap: Path) -> None:
    """`git init --shared`: whoever is in the group may write there, and the job needs --trust for its code alone."""
    root = _repository(tmp_path / "code")
    (root / ".git").chmod(0o2775)
    (root / ".git" / "config").chmod(0o664)

    assert code_files.git_dirty(root)


@pytest.mark.parametrize("path", ["~nobody-of-this-name/x", "/nowhere/at/all"])
def test_an_include_that_git_ignores_is_no_fault(tmp_path: Path, trap: Path, path: str) -> None:
    """A condition that does not hold here, of a file that only another machine has."""
    root = _repository(tmp_path / "code")
    _git(root, "config", "includeIf.onbranch:elsewhere.path", path)

    assert code_files.git_dirty(root)


def test_an_older_git_is_asked(tmp_path: Path, trap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.26 git does not tell to whom a part of the configuration belongs: every file of it is looked at."""
    root = _repository(tmp_path / "code")
    _plant(root / ".git" / "config", trap)
    _refuse(monkeypatch, "--show-scope")

    assert code_files.git_dirty(root)
    (root / ".git" / "config").chmod(0o666)
    with pytest.raises(ConfigError, match="can be written by everybody"):
        code_files.listing(root)
