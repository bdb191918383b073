"""Facts about how a user's word for a run is understood."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from modes import bound_by_modes

from launcher.cli._options import complete_run
from launcher.config.load.site_profile import user_profile
from launcher.errors import RunNotFoundError
from launcher.run import index


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A links folder and a runs folder of its own."""
    runs = tmp_path / "runs"
    runs.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(runs))
    monkeypatch.chdir(tmp_path)
    return index.links_dir(), runs


def _make(place: tuple[Path, Path], run_id: str, t: float) -> Path:
    links, runs = place
    run = runs / run_id
    run.mkdir()
    (run / "spec.json").write_text("{}")
    index.register(run)
    os.utime(links / run_id, (t, t), follow_symlinks=False)
    return run


def test_a_user_without_home_and_account_has_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, or while the directory service is away, no home is known: runs are still listed, and job files read."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # where the tests are run from, runs may lie in ./runs
    (tmp_path / "net-1121-0842-k7f").mkdir()

    assert index.links_dir() == Path("/.local/state/launcher/runs")
    assert [ref.id for ref in index.list_runs()] == ["net-1121-0842-k7f"]
    assert user_profile() == Path("/.config/launcher/site.yaml")


def test_ids_carry_name_date_and_tag() -> None:
    """An id is NAME-MMDD-HHMM-xxx, and the name comes back out of it."""
    run_id = index.new_id("my job/$(rm)", now=1_700_000_000.0, tag="k7f")

    assert index.job_name(run_id) == "my-job-rm"
    assert run_id.endswith("-k7f")


@pytest.mark.parametrize("name", ["", "///", "ü\n", "..", "-"])
def test_slug_is_never_empty_nor_a_path(name: str) -> None:
    """Hostile names become a plain word."""
    assert index.slug(name) == "job"


def test_every_way_to_name_a_run(place: tuple[Path, Path]) -> None:
    """Id, job name (newest), ending, unique prefix, path and @last all resolve."""
    old = _make(place, "resnet-1120-0900-abc", 1.0)
    new = _make(place, "resnet-1121-0842-k7f", 2.0)
    other = _make(place, "lm7b-1121-0900-xyz", 3.0)

    assert index.resolve("resnet-1120-0900-abc") == old
    assert index.resolve("resnet") == new
    assert index.resolve("k7f") == new
    assert index.resolve("lm7b-11") == other
    assert index.resolve("@last") == other
    assert index.resolve(str(old)) == old


def test_the_run_submitted_last_is_the_newest_though_the_clock_was_set_back(place: tuple[Path, Path]) -> None:
    """The older run was linked an hour "later"."""
    links, runs = place
    later = time.time() + 3600
    old = _make(place, "net-1121-0942-abc", later)
    os.utime(links / old.name, (later, later), follow_symlinks=False)

    new = runs / "net-1121-0843-k7f"
    new.mkdir()
    (new / "spec.json").write_text("{}")
    index.register(new)

    assert index.resolve("@last") == new
    assert index.resolve("net") == new


@pytest.mark.parametrize("mark", ["submission.json", "sweep.json"])
def test_without_links_the_run_submitted_last_is_the_newest(place: tuple[Path, Path], mark: str) -> None:
    """As on another login node: the leader of an older run, which still trains, changes that one's folder every second."""
    old, new = (_make(place, run_id, 1.0) for run_id in ("net-1101-0900-aaa", "net-1127-0900-bbb"))
    for t, run in ((1e9, old), (1.1e9, new)):
        index.unregister(run.name)
        (run / mark).write_text("{}")
        os.utime(run / mark, (t, t))
        os.utime(run, (2e9 - t, 2e9 - t))

    assert index.resolve("@last") == new
    assert index.resolve("net") == new


def test_several_answers_are_named(place: tuple[Path, Path]) -> None:
    """A prefix of several runs is refused with their names, a stranger with the nearest one."""
    _make(place, "resnet-1120-0900-abc", 1.0)
    _make(place, "resnet-1121-0842-k7f", 2.0)

    with pytest.raises(RunNotFoundError, match="2 runs match 'resn': resnet-1121-0842-k7f, resnet-1120-0900-abc"):
        index.resolve("resn")
    with pytest.raises(RunNotFoundError, match="did you mean resnet"):
        index.resolve("resmet")


def test_deleted_runs_are_forgotten(place: tuple[Path, Path]) -> None:
    """A link whose folder is gone is no run; unregister removes the link."""
    run = _make(place, "a-1120-0900-abc", 1.0)
    (run / "spec.json").unlink()
    run.rmdir()

    assert index.list_runs() == []
    index.unregister("a-1120-0900-abc")
    assert list(index.links_dir().iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "$(touch pwned)",
        "`touch pwned`",
        "a;touch pwned",
        "a b",
        "-rf",
        "a\nb",
        "a\x1b[31m",
        "ä",
        "*",
        "~",
        "a,b",
        "'",
        "",
    ],
)
def test_a_name_that_a_shell_would_run_is_no_runs(place: tuple[Path, Path], name: str) -> None:
    """Whoever may make folders in a shared place of runs, or links, gets no name of theirs listed or completed."""
    links, runs = place
    good = _make(place, "net-1120-0900-abc", 1.0)
    (runs / f"{name}-1120-0900-abd").mkdir()
    (links / f"{name}-1120-0900-abe").symlink_to(good)

    assert [ref.id for ref in index.list_runs(check=False)] == ["net-1120-0900-abc"]
    assert complete_run(None, None, "") == ["net-1120-0900-abc", "net", "@last"]  # type: ignore[arg-type]


def test_one_bad_entry_hides_no_run(place: tuple[Path, Path]) -> None:
    """A link that leads to itself has the name of a run: the others are listed."""
    links, runs = place
    for number in range(5):
        os.symlink(f"loop-1121-084{number}-abc", runs / f"loop-1121-084{number}-abc")
        _make(place, f"net-1121-084{number}-k7f", 1.0)
        (links / f"net-1121-084{number}-k7f").unlink()

    assert [r.id for r in index.list_runs()] == [f"net-1121-084{number}-k7f" for number in range(5)]


def test_an_empty_word_names_no_run(place: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as "$RUN" where that is not set: also in a run's folder, and where there is one run alone."""
    monkeypatch.chdir(_make(place, "net-1121-0842-k7f", 1.0))

    with pytest.raises(RunNotFoundError, match="the name of the run is empty"):
        index.resolve("")


def test_the_shortest_name_of_a_run_finds_it_alone(place: tuple[Path, Path]) -> None:
    """An ending that another run has, or that is a job's name, is none; a run that no name finds has its path."""
    alone, twin, _ = (
        _make(place, f"{name}-1121-0842-{tag}", 1.0) for name, tag in (("net", "k7f"), ("net", "abc"), ("gan", "abc"))
    )
    called = _make(place, "net-1121-0842-bert", 1.0)
    _make(place, "bert-1121-0842-x2c", 1.0)
    away = _make(place, "net-1121-0842-zzz", 1.0)
    (place[1].parent / "elsewhere").mkdir()
    away = away.rename(place[1].parent / "elsewhere" / away.name)
    index.unregister(away.name)

    found = [index.short_name(folder) for folder in (alone, twin, called, away)]
    assert found == ["k7f", twin.name, called.name, str(away)]
    assert [index.resolve(word) for word in found[:3]] == [alone, twin, called]


@pytest.mark.parametrize(
    "word", ["~nosuch", "~nosuch/runs/net", "a" * 300, f"/{'a' * 300}/net"], ids=lambda word: word[:10]
)
def test_a_word_that_is_no_path_is_no_run(place: tuple[Path, Path], word: str) -> None:
    """A home of nobody, a name longer than any: no run has that name, and nothing breaks."""
    with pytest.raises(RunNotFoundError, match="no run matches"):
        index.resolve(word)


def test_a_run_in_a_closed_folder_is_refused(place: tuple[Path, Path]) -> None:
    """By its path in one sentence; its name finds nothing."""
    run = _make(place, "net-1121-0842-k7f", 1.0)
    place[1].chmod(0)
    with (
        bound_by_modes(),
        pytest.raises(RunNotFoundError, match="permission denied: a folder above it is closed to you"),
    ):
        index.resolve(str(run))
    with bound_by_modes(), pytest.raises(RunNotFoundError, match="no run matches 'net'"):
        index.resolve("net")
    place[1].chmod(0o700)
