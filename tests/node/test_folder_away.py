"""Parts of the node side that look into the run's folder: each waits for one that does not answer, and takes nothing for a fact."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from an_event import an_event
from away import Away

from launcher.errors import RunDirError
from launcher.node.agent import description
from launcher.node.agent.leader_search import LeaderSearch
from launcher.node.agent.membership import Doors
from launcher.node.agent.preflight import Preflight
from launcher.node.agent.read_run import read_run
from launcher.node.checkpoints import claims
from launcher.node.leader import wait_for_runs
from launcher.node.sidecars import trackers
from launcher.run import asking, event_lines
from launcher.run.after import Predecessor
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, Work


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "AGAIN_S", 0.001)


@pytest.fixture
def run(tmp_path: Path) -> tuple[RunSpec, RunPaths]:
    spec = RunSpec(
        id="r", name="r", run_dir=str(tmp_path), work=Work(kind="task", target="m:C"), batch="local", nodes=1,
        tasks_per_node=1, timeout_min=5, backend="gloo", port_range=[20000, 20031],
    )  # fmt: skip
    paths = RunPaths(tmp_path)
    spec.write(paths.spec)
    paths.secret.write_text(f"{'ab' * 32}\n")
    paths.passed.write_text('{"TOKEN": "t"}')
    return spec, paths


@pytest.mark.parametrize("what", ["spec.json", "secret", "passed.json"])
def test_an_agent_reads_its_run_with_patience(run, away: Away, what: str) -> None:
    """Variables that cannot be read at first are none that nobody has passed."""
    away.refuse(run[1].root / what, errno.ESTALE, times=3)

    assert read_run(run[1])[1:] == ("ab" * 32, {"TOKEN": "t"})
    assert len(away.refused) == 3


def test_an_agent_without_a_spec_does_not_wait(run) -> None:
    """The folder answers, and holds none: one sentence, at once."""
    run[1].spec.unlink()

    with pytest.raises(RunDirError, match=r"holds no spec\.json"):
        read_run(run[1])


def test_a_node_whose_view_comes_back_is_used(run, away: Away, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be excluded for the whole attempt; one that never sees the folder is."""
    away.refuse(run[1].spec, times=3)
    assert description._sees(run[1])

    monkeypatch.setattr(asking, "PATIENCE_S", 0.01)
    away.refuse(run[1].spec)
    assert not description._sees(run[1])


@pytest.mark.parametrize(("number", "times", "ok"), [(errno.EIO, 3, True), (errno.ENOSPC, 3, False)])
def test_the_check_of_the_folder_is_repeated(run, away: Away, number: int, times: int, ok: bool) -> None:
    """An I/O error may pass, and speaks against no node; a full disk is told at once."""
    away.refuse(run[1].root / ".preflight-0-0", number, times=times)
    check = Preflight(*run, SimpleNamespace(), node=0, attempt=0)._writes()

    assert check.ok is ok
    assert len(away.refused) == (times if ok else 1)


def test_an_agent_that_cannot_look_for_a_leader_goes_on_looking(run, away: Away) -> None:
    """`attempts` cannot be listed: no leader is known to have begun, and none to have gone."""
    claims.claim_attempt(run[1], life="l")
    search = LeaderSearch(*run, Doors(run[0], "s", "l", ["n0", "n1"], 1), {})
    assert search._claimed()

    away.refuse(run[1].attempts)
    assert not search._claimed()


def test_a_tracker_run_is_not_begun_anew(run, away: Away) -> None:
    """The tracker's memory cannot be read at first: the same tracker run goes on. So does the step it is rewound to."""
    paths = run[1]
    paths.trackers.mkdir()
    (paths.trackers / "one.json").write_text('{"id": "abc", "offset": 0}')
    away.refuse(paths.trackers / "one.json", times=3)
    feed = trackers.TrackerFeed(SimpleNamespace(name="one"), paths, print)
    assert feed.memory["id"] == "abc"

    event_lines.append(paths.events, an_event("round_started", attempt=1, round=0, resume_step=40))
    away.refuse(paths.events, times=1)
    with pytest.raises(OSError, match="Input/output"):
        trackers._resume_step(paths, [1, 0])
    assert trackers._resume_step(paths, [1, 0]) == 40


@pytest.mark.parametrize("what", ["submission.json", "outcome.json"])
def test_a_run_that_is_waited_for_is_not_taken_for_dead(run, away: Away, what: str) -> None:
    """Its controller may run, or it may have ended well: neither is known while its folder does not answer."""
    paths = run[1]
    paths.submission.write_text(f'{{"pid": {os.getpid()}, "pid_started": 1.0}}')
    assert wait_for_runs._gone(paths)

    away.refuse(paths.root / what)
    with pytest.raises(OSError, match="Input/output"):
        wait_for_runs._gone(paths)


def test_a_run_that_is_waited_for_has_so_long_to_come_back(run) -> None:
    """A folder that was removed is away for good: it ended, and not well."""
    one = Predecessor("ok", str(run[1].root / "other" / "gone"))
    since = {one.run_dir: 100.0}

    assert wait_for_runs._state(one, since, 101.0) is None
    assert wait_for_runs._state(one, since, 100.0 + asking.PATIENCE_S + 1) == "failed"
