"""Metrics to TensorBoard, MLflow and Weights & Biases: best effort, on rank 0, in a thread of its own.

The run's own files are the source of truth. A tracker can be slow, broken or missing: training neither waits nor fails.
``trackers/ids.json`` keeps the ids of tracker runs, so that later attempts continue them.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, Protocol

from launcher.run.files import read_json, write_atomic
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec

__all__ = ["Sink", "Trackers", "mlflow_run", "open_sinks", "script_variables"]

_WAITING = 10_000
"""Rows that may wait for slow trackers; further ones are dropped."""
_FAILURES = 5
"""A tracker that fails so often in a row is left alone."""
_REQUEST_S = 5.0

Rows = list[tuple[int, float, dict[str, float]]]
"""(step, time, numbers)"""


class Sink(Protocol):
    """One tracker."""

    name: str

    def write(self, rows: Rows) -> None:
        """Take rows in; may block, may raise."""

    def close(self) -> None:
        """Finish; may block, may raise."""


class Trackers:
    """Feeds sinks from a bounded queue; call it with (step, numbers). ``opening`` makes the sinks, inside the thread."""

    def __init__(self, opening: Callable[[], list[Sink]], warn: Callable[[str], None]) -> None:
        self._opening, self._warn = opening, warn
        self._queue: queue.Queue[tuple[int, float, dict[str, float]] | None] = queue.Queue(_WAITING)
        self._failures: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="launcher-trackers", daemon=True)
        self._thread.start()

    def __call__(self, step: int, numbers: dict[str, float]) -> None:
        """Queue one row; dropped when trackers are too far behind."""
        try:
            self._queue.put_nowait((step, time.time(), numbers))
        except queue.Full:
            pass

    def close(self, limit_s: float = 10.0) -> bool:
        """Let the sinks finish for up to ``limit_s``; whether they did."""
        try:
            self._queue.put(None, timeout=limit_s)
        except queue.Full:
            return False
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            sinks = self._opening()
        except Exception as error:
            self._warn(f"no tracker could be opened: {error}")
            sinks = []
        ended = False
        while not ended:
            rows: Rows = []
            while not rows or not self._queue.empty():
                row = self._queue.get()
                if row is None:
                    ended = True
                    break
                rows.append(row)
            sinks = [sink for sink in sinks if not rows or self._try(sink, rows)]
        for sink in sinks:
            self._try(sink, None)

    def _try(self, sink: Sink, rows: Rows | None) -> bool:
        """Write rows, or close; whether the sink is to be kept."""
        try:
            if rows is None:
                sink.close()
            else:
                sink.write(rows)
            self._failures[sink.name] = 0
        except Exception as error:
            count = self._failures[sink.name] = self._failures.get(sink.name, 0) + 1
            if count == _FAILURES:
                self._warn(f"{sink.name} failed {count} times in a row and is left alone: {error}")
                return False
        return True


def open_sinks(spec: RunSpec, paths: RunPaths, resume_step: int, warn: Callable[[str], None]) -> list[Sink]:
    """The trackers the job asks for; one that cannot be opened is said and left out."""
    makers: dict[str, Callable[[], Sink]] = {
        "tensorboard": lambda: _TensorBoard(paths, resume_step),
        "mlflow": lambda: _MLflow(spec, paths),
        "wandb": lambda: _Wandb(spec, paths),
    }
    sinks = []
    for name, make in makers.items():
        if spec.trackers.get(name) in (None, False):
            continue
        try:
            sinks.append(make())
        except ImportError as error:
            warn(f"tracker {name} is left out, it is not installed (pip install 'ddp-launcher[{name}]'): {error}")
        except Exception as error:
            warn(f"tracker {name} is left out: {error}")
    return sinks


def _ids(paths: RunPaths) -> dict[str, str]:
    found = read_json(paths.trackers / "ids.json")
    return found if isinstance(found, dict) else {}


def _keep_id(paths: RunPaths, name: str, value: str) -> None:
    paths.trackers.mkdir(mode=0o700, exist_ok=True)
    write_atomic(paths.trackers / "ids.json", json.dumps({**_ids(paths), name: value}) + "\n")


def _settings(spec: RunSpec, name: str) -> dict[str, Any]:
    value = spec.trackers.get(name)
    return value if isinstance(value, dict) else {}


class _TensorBoard:
    name = "tensorboard"

    def __init__(self, paths: RunPaths, resume_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = paths.trackers / "tensorboard"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What the interrupted attempt wrote beyond the checkpoint is hidden, not shown twice.
        purge = resume_step + 1 if resume_step else None
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge)  # type: ignore[no-untyped-call]

    def write(self, rows: Rows) -> None:
        for step, at, numbers in rows:
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, step, walltime=at)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _MLflow:
    name = "mlflow"

    def __init__(self, spec: RunSpec, paths: RunPaths) -> None:
        # MLflow's own defaults wait for minutes on a server that is away.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        settings = _settings(spec, "mlflow")
        self._metric = Metric
        self._client: Any = MlflowClient(tracking_uri=settings.get("uri"))
        self._run = _ids(paths).get("mlflow") or self._new_run(settings.get("experiment") or spec.name, spec.id)
        _keep_id(paths, "mlflow", self._run)

    def _new_run(self, experiment: str, name: str) -> str:
        found = self._client.get_experiment_by_name(experiment)
        key = found.experiment_id if found else self._client.create_experiment(experiment)
        return str(self._client.create_run(key, run_name=name).info.run_id)

    def write(self, rows: Rows) -> None:
        metrics = [
            self._metric(name, value, int(at * 1000), step) for step, at, row in rows for name, value in row.items()
        ]
        for first in range(0, len(metrics), 500):  # the server takes at most 1000 at once
            self._client.log_batch(self._run, metrics=metrics[first : first + 500])

    def close(self) -> None:
        """The run stays open: a later attempt may go on with it."""


class _Wandb:
    name = "wandb"

    def __init__(self, spec: RunSpec, paths: RunPaths) -> None:
        import wandb

        settings = _settings(spec, "wandb")
        paths.trackers.mkdir(mode=0o700, exist_ok=True)
        key = _ids(paths).get("wandb") or spec.id
        self._run: Any = wandb.init(
            project=settings.get("project") or spec.name,
            mode=settings.get("mode") or "online",
            id=key,
            name=spec.id,
            resume="allow",
            dir=str(paths.trackers),
            config=dict(spec.work.params),
        )
        _keep_id(paths, "wandb", key)

    def write(self, rows: Rows) -> None:
        for step, _, numbers in rows:
            self._run.log(numbers, step=step)

    def close(self) -> None:
        self._run.finish()


def script_variables(spec: RunSpec, paths: RunPaths, rank: int) -> dict[str, str]:
    """Variables by which trackers inside a script continue the same tracker run in every attempt."""
    variables = {"WANDB_RUN_ID": _ids(paths).get("wandb") or spec.id, "WANDB_RESUME": "allow"}
    if spec.trackers.get("mlflow") is not None:
        key = _ids(paths).get("mlflow")
        if key is None and rank == 0:
            key = mlflow_run(_settings(spec, "mlflow"), spec.name, spec.id)
            if key is not None:
                _keep_id(paths, "mlflow", key)
        if key is not None:
            variables["MLFLOW_RUN_ID"] = key
    return variables


def mlflow_run(settings: dict[str, Any], experiment: str, name: str) -> str | None:
    """A new run on an MLflow server (HTTP), by its REST interface: no import of MLflow; None when there is no server."""
    uri = str(settings.get("uri") or os.environ.get("MLFLOW_TRACKING_URI") or "")
    if not uri.startswith(("http://", "https://")):
        return None
    experiment = settings.get("experiment") or experiment
    base = uri.rstrip("/") + "/api/2.0/mlflow/"
    try:
        try:
            query = urllib.parse.urlencode({"experiment_name": experiment})
            key = _ask(f"{base}experiments/get-by-name?{query}", None)["experiment"]["experiment_id"]
        except urllib.error.HTTPError:
            key = _ask(base + "experiments/create", {"name": experiment})["experiment_id"]
        body = {"experiment_id": key, "run_name": name, "start_time": int(time.time() * 1000)}
        return str(_ask(base + "runs/create", body)["run"]["info"]["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ask(url: str, body: dict[str, Any] | None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 (http or https: checked)
    with urllib.request.urlopen(request, timeout=_REQUEST_S) as answer:  # noqa: S310
        return json.load(answer)
