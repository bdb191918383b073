"""What runs have seen of hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from an_event import an_event
from click.testing import CliRunner

from launcher.report.model.host_records import HostTrace, gather


def ev(type_: str, t: float, **values: Any) -> dict[str, Any]:
    """An event of attempt 0."""
    return an_event(type_, t=t, attempt=0, **values)


def joined(*hosts: str) -> list[dict[str, Any]]:
    """Hosts that joined."""
    return [ev("node_joined", 1.0, node=i, host=h) for i, h in enumerate(hosts)]


def samples(count: int, **times: float) -> list[dict[str, Any]]:
    """Lines of samples.jsonl with two ranks a host."""
    ranks = [{"rank": i, "host": h, "step_time_s": t} for i, (h, t) in enumerate([*times.items()] * 2)]
    return [{"t": float(i), "ranks": ranks} for i in range(count)]


def test_each_kind_of_trouble_counts_for_its_host() -> None:
    """Lost, failed, hung, failed checks and excluded are told apart, and the latest trouble is remembered."""
    events = [
        *joined("a", "b", "c"),
        ev("worker_failed", 2.0, rank=1, host="b", cause={"kind": "signal", "text": "killed by SIGSEGV"}),
        ev("victims", 2.1, ranks=[{"rank": 0, "host": "a"}]),
        ev("node_lost", 3.0, host="b", why="silent"),
        ev("node_lost", 3.5, host="a", why="cut_off"),  # with all others
        ev("hang", 4.0, limit_s=60, laggards=[{"rank": 4, "host": "c"}, {"rank": 5, "host": "c"}]),
        ev("preflight", 5.0, ok=False, checks=[{"host": "c", "name": "disk", "ok": False, "detail": "full"}]),
        ev("excluded", 6.0, hosts=["c"], why="bad disk"),
    ]
    by_host = {r.host: r for r in gather([HostTrace("r1", events, [])])}

    a, b, c = by_host["a"], by_host["b"], by_host["c"]
    assert (a.troubles, a.last, len(a.runs)) == (0, "", 1)
    assert (b.failed, b.lost, b.last, b.last_t) == (1, 1, "lost (silent)", 3.0)
    assert (c.hung, c.checks_failed, c.excluded, c.last) == (1, 1, 1, "excluded: bad disk")


def test_a_failure_on_several_hosts_is_no_hosts_trouble() -> None:
    """The same exception on ranks of two hosts is the program's; on the two ranks of one host it is that host's."""
    wide = ev("worker_failed", 2.0, rank=0, host="a", ranks=[{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}])
    narrow = ev("worker_failed", 3.0, rank=2, host="b", ranks=[{"rank": 2, "host": "b"}, {"rank": 3, "host": "b"}])
    by_host = {r.host: r.failed for r in gather([HostTrace("r1", [*joined("a", "b"), wide, narrow], [])])}

    assert by_host == {"a": 0, "b": 1}


def test_the_most_troubled_host_comes_first_and_is_marked() -> None:
    """A host lost twice is suspect; one whose workers failed once is not."""
    events = [
        *joined("ok", "bad", "unlucky"),
        ev("worker_failed", 2.0, host="unlucky"),
        ev("node_lost", 3.0, host="bad"),
    ]
    records = gather(
        [HostTrace("r1", events, []), HostTrace("r2", [*joined("bad"), ev("node_lost", 9.0, host="bad")], [])]
    )

    assert [(r.host, r.suspect, len(r.runs)) for r in records] == [
        ("bad", True, 2),
        ("unlucky", False, 1),
        ("ok", False, 1),
    ]


def test_a_slow_host_is_found_by_its_steps() -> None:
    """A host whose steps take 30 % longer than the median rank's is slow; few samples and single hosts prove nothing."""
    slow = gather([HostTrace("r", joined("a", "b", "c"), samples(5, a=0.1, b=0.13, c=0.1))])
    few = gather([HostTrace("r", joined("a", "b", "c"), samples(2, a=0.1, b=0.13, c=0.1))])
    alone = gather([HostTrace("r", joined("a"), samples(5, a=0.1))])

    assert slow[0].host == "b"
    assert slow[0].suspect
    assert slow[0].slow_by == pytest.approx(0.3)
    assert [r.slow_by for r in few] == [None, None, None]
    assert alone[0].slow_by is None


def test_simulated_nodes_are_one_machine() -> None:
    """HOST/0 and HOST/1 of a local run are the host."""
    assert [
        r.host for r in gather([HostTrace("r", joined("vm/0", "vm/1"), samples(5, **{"vm/0": 1.0, "vm/1": 1.0}))])
    ] == ["vm"]


def test_garbled_events_are_survived() -> None:
    """Missing and foreign values count for nobody."""
    broken = [
        ev("node_joined", 1.0), ev("node_lost", 1.0, host=None), ev("hang", 1.0, laggards="all"), ev("worker_failed", 1.0),
        ev("preflight", 1.0, checks=[1, None, {"ok": False}]), ev("excluded", 1.0, hosts=None),
    ]  # fmt: skip

    assert gather([HostTrace("r", broken, [{"ranks": 3}, {"ranks": [None, {"host": "a", "step_time_s": "x"}]}])]) == []


@pytest.fixture
def two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with two runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    for name, host in (("a-1122-0100-aaa", "node1"), ("b-1122-0101-bbb", "node2")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        lines = [
            *joined(host),
            ev("node_lost", 2.0, host=host, why="silent"),
            ev("node_lost", 3.0, host="node2", why="\x1b[31m"),
        ]
        (folder / "events.jsonl").write_text("".join(json.dumps(line.raw) + "\n" for line in lines) + '{"torn')
    return tmp_path


def test_the_verb_lists_hosts(two_runs: Path) -> None:
    """A table and JSON, for all hosts or those named; nothing that an event holds reaches the terminal raw."""
    from launcher.cli.nodes import command

    table = CliRunner().invoke(command, [])
    named = CliRunner().invoke(command, ["node[1,9]", "--json"])
    bad = CliRunner().invoke(command, ["node["])
    suspect = CliRunner().invoke(command, ["--suspect", "--json"])

    lines = table.output.splitlines()
    assert lines[0].split() == ["HOST", "RUNS", "LOST", "FAILED", "HUNG", "CHECKS", "SLOW", "LATEST"]
    assert lines[1].split()[:4] == ["!", "node2", "1", "3"]
    assert "\x1b" not in table.output
    assert [r["host"] for r in json.loads(named.output)] == ["node1"]
    assert [r["host"] for r in json.loads(suspect.output)] == ["node2"]
    assert bad.exit_code == 2


def test_the_verb_imports_no_torch(two_runs: Path) -> None:
    """Looking at hosts needs no torch."""
    import subprocess

    code = "import sys; from launcher.cli.main import main; main(['nodes']); sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
