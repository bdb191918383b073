"""What `environment.stage` packs: the environment, whole, and nothing that a node has already; the same files give the same archive."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import SnapshotError
from launcher.submission.facts.facts import Interpreter, StagedFiles
from launcher.submission.facts.staged_files import staged_files
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


def packed(staged: StagedFiles, tmp_path: Path) -> dict[str, tarfile.TarInfo]:
    """What the archive holds, but for the launcher."""
    path = tmp_path / "runs" / ".environments" / f"{staged.key}.tar"
    path.parent.parent.mkdir(exist_ok=True)
    archive.write(path, staged)
    with tarfile.open(path) as made:
        return {member.name: member for member in made if not member.name.startswith("lib/")}


def test_the_environment_is_packed_and_not_the_packages_that_it_does_not_see(
    python: Interpreter, tmp_path: Path
) -> None:
    """A venv's archive holds the Python that it was made from, too, without that one's own packages; links stay links."""
    staged = staged_files(python)

    names = packed(staged, tmp_path)
    assert staged.roots == (str(tmp_path / "venv"), str(tmp_path / "base"))
    assert "0/lib/site-packages/torch/__init__.py" in names
    assert "1/lib/os.py" in names
    assert names["0/bin/python"].linkname == str(tmp_path / "base" / "python")
    assert not any("unseen" in name for name in names)


def test_what_stays_where_it_is_is_told(python: Interpreter, tmp_path: Path) -> None:
    """A folder that is imported from and is not in the environment is named; the code, the launcher and the system's are not."""
    assert staged_files(python, [str(tmp_path / "code")]).outside == (str(tmp_path / "project"),)


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


def test_an_archive_is_made_once(python: Interpreter, tmp_path: Path) -> None:
    """A second submission of the same environment writes nothing; it counts as a use, by which old archives are told."""
    staged = staged_files(python)
    packed(staged, tmp_path)
    path = tmp_path / "runs" / ".environments" / f"{staged.key}.tar"
    path.write_bytes(b"as it was")
    os.utime(path, (0, 0))

    archive.write(path, staged)

    assert path.read_bytes() == b"as it was"
    assert path.stat().st_mtime > 1e9
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_archives_that_no_submission_uses_are_removed(python: Interpreter, tmp_path: Path) -> None:
    """An archive goes 30 days after its last use, and what a killed submission has left after a day."""
    folder = tmp_path / "runs" / ".environments"
    folder.mkdir(parents=True)
    days = {"old.tar": 31, "recent.tar": 29, "left.tar.99": 2, "underway.tar.98": 0.5}
    now = (tmp_path / "venv").stat().st_mtime
    for name, age in days.items():
        (folder / name).touch()
        os.utime(folder / name, (now - age * 86_400,) * 2)

    archive.write(folder / "new.tar", staged_files(python))

    assert sorted(os.listdir(folder)) == ["new.tar", "recent.tar", "underway.tar.98"]


def test_an_archive_that_does_not_fit_is_refused_with_its_size(python: Interpreter, tmp_path: Path) -> None:
    """Nothing is submitted, nothing is left, and the sentence names both sizes and the way out."""
    (tmp_path / "runs").mkdir()
    path = tmp_path / "runs" / ".environments" / "x.tar"

    with pytest.raises(
        SnapshotError, match=r"takes 1000 TB, and .* are free; free some space, or remove environment.stage"
    ):
        archive.write(path, replace(staged_files(python), size=10**15))

    assert not os.listdir(path.parent)


def test_a_file_that_goes_away_meanwhile_is_left_out(
    python: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that runs at the same time compiles modules and removes temporary files: no reason to refuse the job."""
    real = archive.members
    gone = tmp_path / "venv" / "gone"

    def members(*about: object) -> object:
        yield "0/gone", str(gone)
        yield from real(*about)  # type: ignore[arg-type]

    monkeypatch.setattr(archive, "members", members)

    assert "0/gone" not in packed(staged_files(python), tmp_path)
