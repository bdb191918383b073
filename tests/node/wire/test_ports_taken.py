"""All candidate ports of the leader belong to others: real sockets, a real run on this machine."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack
from pathlib import Path

from harness import submit

from launcher.report.diagnosis.why import explain
from launcher.report.model.history import read_history
from launcher.report.model.summary import summarise_history


def taken(stack: ExitStack) -> list[int]:
    """32 neighbouring ports, as few as a job may name, on all of which others listen."""
    for low in range(10240, 20000, 32):  # the kernel gives none of these to those that connect
        with ExitStack() as ours:
            try:
                for port in range(low, low + 32):
                    ours.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            stack.push(ours.pop_all())
            return list(range(low, low + 32))
    raise AssertionError("no 32 free ports in a row")


def test_a_leader_without_a_port_ends_the_run_in_one_sentence(tmp_path: Path) -> None:
    """The outcome names ports and host, ``why`` what to do; the other node leaves with it, and nothing is left."""
    with ExitStack() as stack:
        ports = taken(stack)
        limits = {"port_range": [ports[0], ports[-1]], "init_timeout_min": 3}
        run = submit(tmp_path, {}, 2, backend="local", distributed=limits, resources={"nodes": 2, "tasks_per_node": 1})
        outcome = run.wait_end()
        run.wait_no_process()

    history = read_history(run.paths)
    why = explain(history, summarise_history(history), outcome["t"])
    host = run.told("attempt_started")[0]["host"]
    assert outcome["state"] == "failed"
    assert {int(port) for port in re.findall(r"\d{5}", outcome["reason"])} <= set(ports)
    assert outcome["reason"].endswith(f" on {host}; the run cannot start.")
    assert len(run.told("decision")) == len(run.told("ended")) == 1
    assert why.sentence.startswith("Every port the leader may listen on is taken (")
    assert "distributed.port_range=" in dict(why.rows)["next"]
    assert "Traceback" not in run.agent_logs()
