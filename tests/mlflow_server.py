"""A real MLflow server on this machine, for tests and benchmarks of trackers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIMIT_S = 300.0
"""Far above what its start takes: it fails only when something hangs."""


@contextlib.contextmanager
def _held(port: int) -> Iterator[None]:
    """Keep others from a port: bound and not listening, as the server binds it seconds after it was chosen."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
        yield


class Server:
    """An MLflow server on SQLite in a process of its own; it can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        with _held(self.port):
            self._start()

    def _start(self) -> None:
        words = ["server", "--backend-store-uri", f"sqlite:///{self.folder}/db.sqlite", "--port", str(self.port)]
        words += ["--artifacts-destination", str(self.folder / "artifacts"), "--host", "127.0.0.1", "--workers", "1"]
        env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", *words], env=env, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + LIMIT_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=2):
                    return
            except OSError:
                assert time.monotonic() < end, (self.folder / "log").read_text()
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL to every process of the server."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def client(self) -> Any:
        """The official client."""
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.uri)

    def only_run(self, name: str) -> Any:
        """The one run of an experiment."""
        client = self.client()
        found = client.search_runs([client.get_experiment_by_name(name).experiment_id])
        assert 1 == len(found), [(r.info.run_name, r.info.status) for r in found]
        return found[0]

    def points(self, run: Any, metric: str) -> list[tuple[int, float]]:
        """Every recorded point of a metric."""
        return sorted((m.step, m.value) for m in self.client().get_metric_history(run.info.run_id, metric))
