"""Which files are the code's: no run's, no secret, nothing that git ignores, whatever git and the file system do."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from modes import bound_by_modes
from planning import facts

from launcher.config.load.load import LoadedJob
from launcher.errors import ConfigError
from launcher.run.paths import RunPaths
from launcher.submission.facts import code_files
from launcher.submission.facts.gather import code_facts
from launcher.submission.folder import snapshot
from launcher.submission.plan.plan import plan

Make = Callable[..., LoadedJob]


def _git(root: Path, *words: str) -> None:
    who = ["-c", "user.name=ann", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True)


def _tree(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def _names(root: Path, *skip: Path) -> list[str]:
    return [name for name, _ in code_files.listing(root, skip).files]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository that ignores its data."""
    root = _tree(tmp_path / "code", "train.py", "data/a.bin", ".env")
    (root / ".gitignore").write_text("data/\n.env\n")
    _git(root, "init", "-q")
    _git(root, "add", ".")
    _git(root, "commit", "-qm", "first")
    return root


def test_a_submodule_that_was_not_fetched_holds_nothing(repo: Path, tmp_path: Path) -> None:
    """git, asked in its empty folder, answers for the outer repository."""
    _git(_tree(tmp_path / "other", "a.py"), "init", "-q")
    _git(tmp_path / "other", "add", ".")
    _git(tmp_path / "other", "commit", "-qm", "first")
    _git(repo, "submodule", "--quiet", "add", str(tmp_path / "other"), "sub")
    _git(repo, "commit", "-qam", "second")
    _git(tmp_path, "clone", "-q", str(repo), "clone")

    assert _names(tmp_path / "clone") == [".gitignore", ".gitmodules", "train.py"]
    assert "sub/a.py" in _names(repo)


RUNS = ("spec.json", "secret", "passed.json", "code/train.py")
SWEEP = ("sweep.json", "submitit/1_submitted.pkl", "code/train.py", "submit-0.sbatch")


@pytest.mark.parametrize("git", [True, False])
def test_no_folder_of_a_run_is_code(repo: Path, git: bool) -> None:
    """Wherever runs lie: each holds its secret and the values that were passed to it. A sweep.json of the user's own is none."""
    _tree(repo, *(f"old/net-1/{name}" for name in RUNS), *(f"lab/net-2/{name}" for name in SWEEP))
    _tree(repo, "conf/sweep.json", "conf/spec.json", "old/notes.txt")
    if not git:
        (repo / ".git").rename(repo.parent / "away")
    found = {name for name in _names(repo) if name.partition("/")[0] in ("old", "lab", "conf")}

    assert found == {"conf/sweep.json", "conf/spec.json", "old/notes.txt"}


@pytest.mark.parametrize("where", [".", ".."])
def test_runs_that_lie_in_the_code_or_above_leave_the_code(repo: Path, where: str) -> None:
    """runs_dir is the code's own folder: its runs are left out, and nothing else."""
    _tree(repo, *(f"net-1/{name}" for name in RUNS))

    assert _names(repo, (repo / where).resolve()) == [".gitignore", "train.py"]


NO_GIT = {
    "not there": (None, "git is not on the PATH"),
    "fails": ("echo 'fatal: detected dubious ownership' >&2; exit 128", "fatal: detected dubious ownership"),
    "silent": ("exit 3", "git exited with 3"),
}


@pytest.mark.parametrize("case", NO_GIT)
def test_a_repository_that_git_does_not_tell_of_is_refused(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Its ignored data and its .env would be taken for code. Where there is no repository, the folder is walked."""
    text, words = NO_GIT[case]
    (tmp_path / "bin").mkdir()
    if text is not None:
        (tmp_path / "bin" / "git").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for root in (repo, repo / "data"):
        with pytest.raises(ConfigError, match=rf"in the repository at {repo}, and git does not tell .*: {words}$"):
            code_files.listing(root)
    (repo / ".git").rename(tmp_path / "away")

    assert not code_files.listing(repo).git


def test_a_folder_that_git_ignores_is_code_where_it_is_named(repo: Path) -> None:
    """The repository around it says nothing of what is in it: it is walked."""
    assert _names(repo / "data") == ["a.bin"]


@pytest.mark.parametrize(
    ("number", "said"), [(errno.EACCES, ""), (errno.ENOENT, ""), (errno.ELOOP, ""), (errno.EIO, "Input/output error")]
)
@pytest.mark.parametrize("git", [True, False])
def test_what_cannot_be_read_is_named_and_a_broken_disk_is_no_gap(
    job: Make, repo: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str, git: bool
) -> None:
    """A closed folder is left out in one sentence of the plan; what is gone in none; a disk that fails ends the submission."""
    _tree(repo, "closed/a.py")
    _git(repo, "add", ".")
    if not git:
        (repo / ".git").rename(repo.parent / "away")
    stat, scandir = os.stat, os.scandir

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            inside = f"{path}/" if real is scandir else str(path)
            if isinstance(path, (str, Path)) and "/closed/" in inside:
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *args, **kwargs)

        return ask

    monkeypatch.setattr(os, "stat", refusing(stat))
    monkeypatch.setattr(os, "scandir", refusing(scandir))
    loaded = job(code={"dir": str(repo)})
    if said:
        with pytest.raises(ConfigError, match=rf"closed\S* cannot be read: {said}"):
            code_facts(loaded, repo / "runs")
        return
    found = code_facts(loaded, repo / "runs")

    assert "train.py" in dict(found.files)
    told = [text for text in plan(loaded, facts(code=found)).warnings if "cannot be read" in text]
    assert [text.partition(" in ")[0] for text in told] == (
        [f"closed{'/a.py' if git else ''}"] if number == errno.EACCES else []
    )


def test_a_file_that_may_not_be_read_is_named_and_not_copied(job: Make, repo: Path) -> None:
    """The plan said nothing of it, and the submission failed: one of somebody else's, in a job that is vouched for."""
    _tree(repo, "secret.txt").joinpath("secret.txt").chmod(0)
    loaded = job(code={"dir": str(repo)})
    with bound_by_modes():
        found = code_facts(loaded, repo / "runs")
        snapshot.copy_code(found, repo.parent / "copy", [], snapshot=True, mode=0o700)

    assert sorted(os.listdir(repo.parent / "copy")) == [".gitignore", "train.py"]
    assert (
        f"secret.txt in {repo} cannot be read (permission denied) and will not be copied"
        in plan(loaded, facts(code=found)).warnings
    )


def test_a_package_of_the_users_own_may_be_called_as_a_tracker_is(tmp_path: Path) -> None:
    """Without git, a folder wandb is rubbish, and a package wandb is not."""
    root = _tree(tmp_path / "code", "wandb/run-1/log", "lab/wandb/__init__.py", "lab/wandb/a.py", "mlruns/0/meta.yaml")

    assert _names(root) == ["lab/wandb/__init__.py", "lab/wandb/a.py"]


def test_links_to_what_is_ignored_lead_to_something(job: Make, repo: Path, tmp_path: Path) -> None:
    """A link to an ignored file becomes that file; of one to an ignored folder the plan warns, unless the folder is linked."""
    (repo / "weights").symlink_to("data/a.bin")
    (repo / "latest").symlink_to("data")
    (repo / "same").symlink_to("train.py")
    found = code_facts(job(code={"dir": str(repo)}), repo / "runs")
    snapshot.copy_code(found, tmp_path / "copy", ())

    assert (tmp_path / "copy" / "weights").read_text() == "data/a.bin"
    assert os.readlink(tmp_path / "copy" / "same") == "train.py"
    loaded = job(code={"dir": str(repo)})
    said = "the link latest names data, which git ignores: it is not copied; if the job reads it, add it to code.link"
    assert said in plan(loaded, facts(code=found)).warnings

    linked = job(code={"dir": str(repo), "link": ["data"]})
    found = code_facts(linked, repo / "runs")
    snapshot.copy_code(found, tmp_path / "other", ["data"])
    assert not [text for text in plan(linked, facts(code=found)).warnings if "not copied" in text]
    assert (tmp_path / "other" / "latest" / "a.bin").read_text() == "data/a.bin"
    assert (tmp_path / "other" / "weights").is_symlink()


@pytest.fixture
def ran(repo: Path) -> RunPaths:
    """A run below the repository, with files that a walk and git would leave out, and what it wrote itself."""
    paths = RunPaths(repo / "runs" / "net-1121-0842-k7f")
    copied = ["train.py", "wandb/helper.py", "env/pyvenv.cfg", "table.pyc", "data/b.bin", "__pycache__/x.pyc"]
    _tree(paths.code, *copied, "out.txt", "wandb/run-1/log", "__pycache__/train.pyc")
    paths.copied.write_text(json.dumps({name: [1, 1] for name in copied}))
    return paths


def test_a_fork_has_all_the_code_that_the_run_had(ran: RunPaths) -> None:
    """Whatever git and a walk would leave out of the copy; of what the run wrote there, caches are left out."""
    found = code_files.listing_of_copy(ran, [Path("data")])

    assert list(dict(found.files)) == ["env/pyvenv.cfg", "out.txt", "table.pyc", "train.py", "wandb/helper.py"]
    assert not found.git
