"""What `environment.stage` packs: the environment, whole, and nothing that a node has already; the same files give the same archive."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import SnapshotError
from launcher.submission.facts import staged_files as module
from launcher.submission.facts.facts import Interpreter, StagedFiles
from launcher.submission.facts.staged_files import folder_beside, staged_files
from launcher.submission.folder import archive


@pytest.fixture
def python(tmp_path: Path) -> Interpreter:
    """A virtual environment over a Python of the user's own, which has packages that the environment does not see."""
    venv, base = tmp_path / "venv", tmp_path / "base"
    for folder in (venv / "bin", venv / "lib" / "site-packages" / "torch", base / "lib" / "site-packages" / "unseen"):
        folder.mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(base / "python")
    (venv / "lib" / "site-packages" / "torch" / "__init__.py").write_text("version = 1\n")
    (base / "lib" / "os.py").write_text("name = 1\n")
    (base / "lib" / "site-packages" / "unseen" / "big.so").write_text("large\n")
    (tmp_path / "project").mkdir()
    (tmp_path / "code").mkdir()
    paths = (base / "lib", venv / "lib" / "site-packages", tmp_path / "project", tmp_path / "code", Path("/usr/lib"))
    return Interpreter(
        path=str(venv / "bin" / "python"), origin="test", prefixes=(str(venv), str(base)), paths=tuple(map(str, paths))
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the archives go: beside the runs."""
    (tmp_path / "runs").mkdir()
    return Path(folder_beside(tmp_path / "runs" / "run"))


def packed(staged: StagedFiles) -> dict[str, tarfile.TarInfo]:
    """What the archive holds, but for the launcher."""
    archive.write(staged)
    with tarfile.open(staged.archive) as made:
        return {member.name: member for member in made if not member.name.startswith("lib/")}


def test_the_environment_is_packed_and_not_the_packages_that_it_does_not_see(
    python: Interpreter, folder: Path, tmp_path: Path
) -> None:
    """A venv's archive holds the Python that it was made from, too, without that one's own packages; links stay links."""
    staged = staged_files(python, str(folder))

    names = packed(staged)
    assert staged.roots == (str(tmp_path / "venv"), str(tmp_path / "base"))
    assert "0/lib/site-packages/torch/__init__.py" in names
    assert "1/lib/os.py" in names
    assert names["0/bin/python"].linkname == str(tmp_path / "base" / "python")
    assert not any("unseen" in name for name in names)


def test_what_stays_where_it_is_is_told(python: Interpreter, tmp_path: Path) -> None:
    """A folder that is imported from and is not in the environment is named; the code, the launcher and the system's are not."""
    assert staged_files(python, known=[str(tmp_path / "code")]).outside == (str(tmp_path / "project"),)


def test_the_systems_own_python_is_not_packed(python: Interpreter) -> None:
    """Each node has what is below /usr."""
    staged = staged_files(
        replace(python, prefixes=("/usr",), paths=("/usr/lib/python3", "/usr/lib/python3/dist-packages"))
    )

    assert (staged.roots, staged.outside) == ((), ())


def test_a_users_own_packages_are_the_environments(python: Interpreter, tmp_path: Path) -> None:
    """~/.local's packages are imported as well: they are packed, where the interpreter looks there."""
    own = tmp_path / "home" / "site-packages"
    own.mkdir(parents=True)

    assert staged_files(replace(python, paths=(*python.paths, str(own)))).roots[-1] == str(own)


def _edit(tmp_path: Path) -> None:
    (tmp_path / "venv/lib/site-packages/torch/__init__.py").write_text("version = 2\n")


def _touch(tmp_path: Path) -> None:
    os.utime(tmp_path / "venv/lib/site-packages/torch/__init__.py", (1, 1))


def _add(tmp_path: Path) -> None:
    (tmp_path / "base" / "lib" / "new.py").touch()


def _link(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin" / "python").unlink()
    (tmp_path / "venv" / "bin" / "python").symlink_to("elsewhere")


@pytest.mark.parametrize("change", [_edit, _touch, _add, _link])
def test_another_environment_gets_another_archive(
    python: Interpreter, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """An installed, edited or compiled file makes another key: no run starts from an older environment than the user's."""
    before = staged_files(python).key
    assert staged_files(python).key == before

    change(tmp_path)

    assert staged_files(python).key != before


def test_a_compiled_module_makes_no_other_archive(python: Interpreter, tmp_path: Path) -> None:
    """Each import on the login host may compile one; when twice as many are compiled, nodes are spared compiling them."""
    cache = tmp_path / "base" / "lib" / "__pycache__"
    cache.mkdir()
    for number in range(32):
        (cache / f"m{number}.cpython-311.pyc").touch()
    before = staged_files(python).key
    (cache / "one.cpython-311.pyc").touch()
    assert staged_files(python).key == before

    for number in range(32, 1000):
        (cache / f"m{number}.cpython-311.pyc").touch()

    assert staged_files(python).key != before


def test_an_archive_is_made_once(python: Interpreter, folder: Path) -> None:
    """A second submission of the same environment writes nothing; it counts as a use, by which old archives are told."""
    staged = staged_files(python, str(folder))
    packed(staged)
    path = Path(staged.archive)
    path.write_bytes(b"as it was")
    os.utime(path, (0, 0))

    archive.write(staged)

    assert path.read_bytes() == b"as it was"
    assert path.stat().st_mtime > 1e9
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_archives_that_no_submission_uses_are_removed(python: Interpreter, folder: Path, tmp_path: Path) -> None:
    """An archive goes 30 days after its last use, and what a killed submission has left after a day."""
    folder.mkdir(mode=0o700)
    days = {"old.tar": 31, "recent.tar": 29, "left.tar.99": 2, "underway.tar.98": 0.5}
    now = (tmp_path / "venv").stat().st_mtime
    for name, age in days.items():
        (folder / name).touch()
        os.utime(folder / name, (now - age * 86_400,) * 2)

    staged = staged_files(python, str(folder))
    archive.write(staged)

    assert sorted(os.listdir(folder)) == sorted([f"{staged.key}.tar", "recent.tar", "underway.tar.98"])


def test_an_archive_that_does_not_fit_is_refused_with_its_size(python: Interpreter, folder: Path) -> None:
    """Nothing is submitted, nothing is left, and the sentence names both sizes and the way out."""
    with pytest.raises(
        SnapshotError, match=r"takes 1000 TB, and .* are free; free some space, or remove environment.stage"
    ):
        archive.write(replace(staged_files(python, str(folder)), size=10**15))

    assert not os.listdir(folder)


def test_a_file_that_goes_away_meanwhile_is_left_out(
    python: Interpreter, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that runs at the same time compiles modules and removes temporary files: no reason to refuse the job."""
    real = module.members

    def members(*about: object) -> object:
        yield "0/gone", str(tmp_path / "venv" / "gone")
        yield from real(*about)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "members", members)
    monkeypatch.setattr(archive, "members", members)

    assert "0/gone" not in packed(staged_files(python, str(folder)))


def test_an_environment_that_is_a_link_is_packed_whole(python: Interpreter, folder: Path, tmp_path: Path) -> None:
    """~/envs/ml may lead to another disk: nodes show the copy at the name that the job knows."""
    (tmp_path / "envs").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "venv")
    linked = replace(python, prefixes=(str(tmp_path / "link"), str(tmp_path / "envs" / "venv"), *python.prefixes))

    staged = staged_files(linked, str(folder))

    assert staged.roots == (str(tmp_path / "link"), str(tmp_path / "base"))
    names = packed(staged)
    assert names["0"].isdir()
    assert names["0/lib/site-packages/torch/__init__.py"].isreg()


def test_what_nodes_unpack_can_be_removed(python: Interpreter, folder: Path, tmp_path: Path) -> None:
    """A read-only installation's folders become the user's to write, on the node: its copy goes at the end."""
    (tmp_path / "base" / "lib").chmod(0o555)

    assert packed(staged_files(python, str(folder)))["1/lib"].mode & 0o700 == 0o700


@pytest.mark.parametrize(("name", "refused"), [("a.pyc", False), ("a.py", True)])
def test_what_python_compiled_for_another_user_is_left_out(
    python: Interpreter, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, refused: bool
) -> None:
    """The umask 077 of whoever imported first: Python does without such a file, and so do the nodes. A source is no such file."""
    (tmp_path / "venv" / "lib" / name).touch()
    add = archive._add

    def add_or_refuse(made: tarfile.TarFile, source: str, member: str) -> None:
        if source.endswith(f"lib/{name}"):
            raise PermissionError(13, "Permission denied", source)
        add(made, source, member)

    monkeypatch.setattr(archive, "_add", add_or_refuse)
    staged = staged_files(python, str(folder))
    if refused:
        with pytest.raises(SnapshotError, match="Permission denied"):
            archive.write(staged)
    else:
        assert "0/lib/site-packages/torch/__init__.py" in packed(staged)


@pytest.mark.parametrize("what", ["folder", "archive"])
@pytest.mark.skipif(os.getuid() != 0, reason="gives a file to another user")
def test_what_somebody_else_could_have_written_is_not_run(python: Interpreter, folder: Path, what: str) -> None:
    """In a folder of runs that many share, another user may have made it first: every node would run their Python."""
    staged = staged_files(python, str(folder))
    archive.write(staged)
    os.chown(folder if what == "folder" else staged.archive, 4711, 4711)

    with pytest.raises(SnapshotError, match="belongs to user 4711, and nodes would run the Python in it: remove it"):
        archive.write(staged)


def test_an_archive_that_everybody_could_write_is_not_used(python: Interpreter, folder: Path) -> None:
    """Nor one that leads elsewhere."""
    staged = staged_files(python, str(folder))
    archive.write(staged)
    os.chmod(staged.archive, 0o666)
    with pytest.raises(SnapshotError, match="can be written by everybody"):
        archive.write(staged)
    os.rename(staged.archive, f"{staged.archive}.old")
    os.chmod(f"{staged.archive}.old", 0o600)
    os.symlink(f"{staged.archive}.old", staged.archive)
    with pytest.raises(SnapshotError, match="is a link, and nodes would run"):
        archive.write(staged)
