"""Facts about the copy of the code: what is in it, what is linked, what it refuses, what it never tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from planning import PYTHON

from launcher.errors import SnapshotError
from launcher.submission.facts import code_files
from launcher.submission.facts.facts import CodeFacts
from launcher.submission.folder import snapshot


def _git(root: Path, *words: str) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
    who = ["-c", "user.name=ann", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True, env=env)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with tracked, changed, new, ignored and deleted files."""
    root = tmp_path / "repo"
    (root / "lab").mkdir(parents=True)
    _git(root, "init", "-q")
    (root / ".gitignore").write_text("data/\n*.ckpt\n")
    (root / "train.py").write_text("print(1)\n")
    (root / "lab" / "a.py").write_text("A = 1\n")
    (root / "gone.py").write_text("x\n")
    _git(root, "add", ".")
    _git(root, "commit", "-qm", "first")
    (root / "gone.py").unlink()
    (root / "train.py").write_text("print(2)\n")
    (root / "new file\nwith a line break.py").write_text("")
    (root / "data").mkdir()
    (root / "data" / "big.bin").write_bytes(b"x" * 1000)
    (root / "model.ckpt").write_text("x")
    return root


def _code(root: Path, skip: tuple[Path, ...] = ()) -> CodeFacts:
    found = code_files.listing(root, skip)
    return CodeFacts(root=str(root), files=found.files, outside=found.outside, git=found.git)


def _names(root: Path) -> set[str]:
    return {str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir() or p.is_symlink()}


def test_git_says_what_the_code_is(repo: Path, tmp_path: Path) -> None:
    """Tracked files as they are now and new ones that are not ignored; nothing ignored, nothing deleted."""
    snapshot.copy_code(_code(repo), tmp_path / "copy", ())

    assert _names(tmp_path / "copy") == {".gitignore", "train.py", "lab/a.py", "new file\nwith a line break.py"}
    assert (tmp_path / "copy" / "train.py").read_text() == "print(2)\n"


def test_a_directory_below_the_repository_is_copied_alone(repo: Path) -> None:
    """Only what lies below code.dir is listed, relative to it."""
    assert [name for name, _ in code_files.listing(repo / "lab").files] == ["a.py"]


def test_linked_directories_are_linked(repo: Path, tmp_path: Path) -> None:
    """code.link makes links to the originals, ignored or not; a missing one is refused."""
    snapshot.copy_code(_code(repo, (repo / "data",)), tmp_path / "copy", ["data"])

    assert (tmp_path / "copy" / "data").is_symlink()
    assert (tmp_path / "copy" / "data" / "big.bin").stat().st_size == 1000
    with pytest.raises(SnapshotError, match="does not exist"):
        snapshot.copy_code(_code(repo), tmp_path / "other", ["nowhere"])


def test_without_git_rubbish_is_left_out(tmp_path: Path) -> None:
    """A walk leaves out caches, virtual environments, and the folder of runs."""
    root = tmp_path / "code"
    for name in (
        "train.py",
        "__pycache__/x.pyc",
        ".venv/lib/a.py",
        "env/pyvenv.cfg",
        "env/b.py",
        "pkg/m.py",
        "runs/r/code/t.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    found = code_files.listing(root, [root / "runs"])

    assert not found.git
    assert [name for name, _ in found.files] == ["pkg/m.py", "train.py"]


def test_runs_inside_the_repository_are_never_copied(repo: Path) -> None:
    """./runs is the default place, and nobody has it in .gitignore the first time."""
    (repo / "runs" / "old").mkdir(parents=True)
    (repo / "runs" / "old" / "x.py").write_text("x")

    assert not [n for n, _ in code_files.listing(repo, [repo / "runs"]).files if n.startswith("runs")]


def test_links_inside_stay_links_and_outside_files_become_files(repo: Path, tmp_path: Path) -> None:
    """A copy stands on its own: only links to directories outside remain, and they are told."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f.txt").write_text("far")
    (repo / "inside").symlink_to("lab")
    (repo / "file").symlink_to("train.py")
    (repo / "far.txt").symlink_to(tmp_path / "elsewhere" / "f.txt")
    (repo / "far").symlink_to(tmp_path / "elsewhere")
    (repo / "loop").symlink_to("loop")
    code = _code(repo)
    copy = tmp_path / "copy"
    snapshot.copy_code(code, copy, ())

    assert code.outside == (("far", str((tmp_path / "elsewhere").resolve())),)
    assert (copy / "inside").resolve() == copy / "lab"
    assert (copy / "file").resolve() == copy / "train.py"
    assert not (copy / "far.txt").is_symlink()
    assert (copy / "far" / "f.txt").read_text() == "far"


def test_a_repository_inside_the_repository_is_copied_too(repo: Path, tmp_path: Path) -> None:
    """git lists an inner repository as one entry; its files are what is wanted."""
    inner = repo / "vendored"
    inner.mkdir()
    _git(inner, "init", "-q")
    (inner / "v.py").write_text("V = 1\n")
    snapshot.copy_code(_code(repo), tmp_path / "copy", ())

    assert (tmp_path / "copy" / "vendored" / "v.py").read_text() == "V = 1\n"


@pytest.mark.parametrize(("uid", "linked"), [(1000, True), (0, False)])
def test_what_another_copy_has_is_linked_but_for_root(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, linked: bool
) -> None:
    """Equal files of two runs are one, read-only; root writes into what is read-only, and has a copy."""
    for name in ("hold", "rerun"):
        (tmp_path / name).mkdir()
    snapshot.copy_code(_code(repo), tmp_path / "hold/code", [])
    (repo / "lab" / "a.py").write_text("A = 2\n")
    monkeypatch.setattr(snapshot.os, "geteuid", lambda: uid)
    snapshot.copy_code(_code(repo), tmp_path / "rerun/code", [], like=tmp_path / "hold/code")

    files = [tmp_path / name / "code/train.py" for name in ("hold", "rerun")]
    assert (files[0].stat().st_ino == files[1].stat().st_ino) is linked
    assert (files[1].stat().st_mode & 0o222 == 0) is linked
    assert (tmp_path / "rerun/code/lab/a.py").stat().st_nlink == 1


def test_a_new_copy_gets_what_the_run_wrote_into_the_old_one(tmp_path: Path) -> None:
    """Files that were not copied there. A new file of that name stays, and nothing is written through a link of the new copy."""
    old, new, mine = tmp_path / "old", tmp_path / "new", tmp_path / "mine"
    for path, text in {
        old / "train.py": "source", old / "gone.py": "source", old / "out" / "last.pt": "the run's", old / "train.csv": "the run's",
        old / "data" / "late.txt": "the run's", old / "logs": "the run's", old / "__pycache__" / "train.pyc": "the run's",
        new / "train.py": "new source", new / "train.csv": "new source", new / "logs" / "note.txt": "new source", mine / "x": "mine",
    }.items():  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (old / "out" / "newest").symlink_to("last.pt")
    (old / "linked").symlink_to(mine)
    (new / "data").symlink_to(mine)

    snapshot.carry_over(old, {"train.py": [6, 1], "gone.py": [6, 1]}, new)

    assert {str(path.relative_to(new)): path.read_text() for path in new.rglob("*") if path.is_file()} == {
        "train.py": "new source", "train.csv": "new source", "logs/note.txt": "new source", "out/last.pt": "the run's",
        "out/newest": "the run's",
    }  # fmt: skip
    assert os.readlink(new / "out" / "newest") == "last.pt"
    assert _names(mine) == {"x"}


def test_too_much_code_is_refused_with_the_largest_named() -> None:
    """Above code.max_mb nothing is copied, and the sentence says what to do about which files."""
    code = CodeFacts(root="/c", files=(("a.bin", 150_000_000), ("b.bin", 60_000_000), ("c.py", 10)))

    with pytest.raises(SnapshotError, match=r"210 MB, more than code.max_mb=200. Largest: a.bin \(150 MB\), b.bin"):
        snapshot.check_size(code, 200)
    snapshot.check_size(code, 211)


def test_without_a_snapshot_the_directory_is_linked(repo: Path, tmp_path: Path) -> None:
    """code.snapshot=false: one link to the original."""
    snapshot.copy_code(_code(repo), tmp_path / "copy", (), snapshot=False)

    assert (tmp_path / "copy").resolve() == repo


def test_the_launchers_own_copy_can_be_imported(tmp_path: Path) -> None:
    """A run's lib holds the package: another Python process imports it from there and finds the agent's entry."""
    snapshot.copy_launcher(tmp_path / "lib")
    text = "import launcher.node.agent.entry as e; print(e.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": str(tmp_path / "lib")}, capture_output=True, text=True,
        cwd=tmp_path, check=False,
    )  # fmt: skip

    assert done.stdout.strip() == str(tmp_path / "lib/launcher/node/agent/entry.py")
    assert not list((tmp_path / "lib").rglob("__pycache__/main*.pyc"))


def test_of_a_read_only_installation_a_run_that_can_be_removed_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator's folders are 0555: the copies of them are the user's to write, and to remove."""
    package = tmp_path / "site" / "launcher"
    (package / "node").mkdir(parents=True)
    for folder in (package, package / "node"):
        (folder / "__init__.py").touch(0o444)
    for folder in (package / "node", package):
        folder.chmod(0o555)
    monkeypatch.setattr(snapshot.launcher, "__file__", str(package / "__init__.py"))
    snapshot.copy_launcher(tmp_path / "lib")

    assert [p.stat().st_mode & 0o700 for p in (tmp_path / "lib").rglob("*") if p.is_dir()] == [0o700] * 2


ARGS = ["args=[--db-password,hunter4]", "params.api_key=hunter3", "--", "--password", "hunter2", "--api-key=hunter1"]


def test_environment_json_tells_the_code_and_no_secret(repo: Path) -> None:
    """Commit and patch are there; a key in the patch, in a variable or in an address is not."""
    (repo / "train.py").write_text('API_KEY = "abcdef0123456789"\nprint(2)\n')
    _git(repo, "remote", "add", "origin", "https://ann:s3cretpass@example.org/x.git")
    code = CodeFacts(root=str(repo), git=True, commit="abc", dirty=True)
    environ = {
        "CUDA_VISIBLE_DEVICES": "0",
        "TORCH_API_TOKEN": "qwertyuiop12",
        "SLURM_JWT": "zxcvbnm98765",
        "WANDB_API_KEY": "x" * 40,
        "CONDA_AUTH": "ann:pw-of-ann",
        "PATH": "/bin",
    }
    text = json.dumps(
        snapshot.environment(
            code, PYTHON, ["launcher", "submit", "j.yaml", "params.token=abcdef123456", *ARGS], environ
        )
    )

    assert "print(2)" in text
    assert '"CUDA_VISIBLE_DEVICES": "0"' in text
    for secret in (
        "abcdef0123456789",
        "s3cretpass",
        "qwertyuiop12",
        "zxcvbnm98765",
        "x" * 40,
        "abcdef123456",
        "pw-of-ann",
        "hunter",
    ):
        assert secret not in text


def test_a_full_disk_is_told_once_when_the_launcher_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence that names one file, not the list of all that could not be copied."""

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device", target)

    monkeypatch.setattr(snapshot, "_copy_file", full)
    said = (
        rf"^{tmp_path}/lib: the launcher cannot be copied into the run: \[Errno 28\] No space left on device: '[^']+'$"
    )
    with pytest.raises(SnapshotError, match=said):
        snapshot.copy_launcher(tmp_path / "lib")
