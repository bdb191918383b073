"""A round's store, in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import psutil
import pytest

SERVE = "import sys; from launcher.training.process.serve_store import main; main(int(sys.argv[1]))"


@pytest.mark.torch
@pytest.mark.parametrize(("variables", "reached"), [({"LAUNCHER_STORE_LOOPBACK": "1"}, False), ({}, True)])
def test_the_store_of_a_run_on_one_machine_is_reached_from_there_alone(
    variables: dict[str, str], reached: bool
) -> None:
    """torch listens on every interface by itself; where all ranks are on this machine, the store listens on 127.0.0.1 alone."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(theirs.fileno())],
            env={**os.environ, **variables}, pass_fds=[theirs.fileno()],
        )  # fmt: skip
        port = json.loads(ours.recv(4096))["port"]
        ends = [end for end in psutil.net_connections("tcp") if end.pid == process.pid]
        addresses = {end.laddr.ip for end in ends if end.status == "LISTEN" and end.laddr.port == port}
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            pass
    assert process.wait(60) == 0
    assert addresses
    assert (addresses != {"127.0.0.1"}) == reached
