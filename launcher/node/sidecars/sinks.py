"""The trackers themselves: TensorBoard, MLflow and Weights & Biases, each behind the same few calls.

They may block and they may raise: `launcher.node.sidecars.trackers` calls each in a thread of its own, in a process of its own.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import posixpath
import re
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.frozen import frozen
from launcher.run.spec import RunSpec

_REQUEST_S = 30
"""Time-out of one request to an MLflow server: beyond a slow one's ten seconds, and far below MLflow's own 120."""
_BATCH = 500
"""Metrics in one request; a server takes at most 1,000."""
_LONGEST_NAME = 250
"""Characters of the name of a metric or parameter that MLflow takes."""
_LONGEST_PARAM = 500
"""Characters of a parameter's value that every MLflow server takes."""


@frozen
class MetricsRow:
    """Numbers of one step."""

    step: int
    t: float
    """Seconds since the epoch."""
    numbers: dict[str, float]


@frozen
class End:
    """How the run, or this attempt of it, ended."""

    state: str
    """"completed", "failed", "cancelled", or "requeued": it goes on in another attempt."""
    reason: str = ""


@frozen
class About:
    """What trackers get of a run beside its metrics."""

    spec: RunSpec
    folder: Path
    """Where trackers keep their files."""
    params: dict[str, Any]
    """Parameters of the work and the settings that decide over results."""
    tags: dict[str, str]
    job: str
    """The text of job.yaml: it holds no secrets."""
    commit: str
    remote: str
    user: str

    @property
    def script(self) -> bool:
        """Whether the work is a script, which may log to the same tracker run by itself."""
        return self.spec.work.kind in ("script", "module")


Memory = dict[str, Any]
"""What a sink keeps for later attempts, written by calling ``keep``."""


class Sink:
    """One tracker."""

    name: str
    say: Callable[[str], None]
    """Warns the user of what the tracker refuses; set by who feeds it."""
    rewinds = False
    """Whether steps can be taken back, as the ones done again after a restart must be. Other sinks skip steps they have."""

    def __init__(self, about: About, settings: Mapping[str, Any]) -> None:
        self.about, self.settings = about, settings
        self.say = lambda text: None

    def open(self, memory: Memory, keep: Callable[[], None]) -> None:
        """Begin or continue the tracker run that ``memory`` knows."""

    def rewind(self, step: int) -> None:
        """Declare what was written beyond ``step`` void; called only where `rewinds` is true."""

    def write(self, rows: list[MetricsRow]) -> None:
        """Take rows in, all of them or (raising) none."""

    def close(self, end: End) -> None:
        """Finish this attempt's part."""


def make_sinks(trackers: Mapping[str, Any], about: About) -> list[Sink]:
    """Make the trackers that a job asks for. A script's own Weights & Biases run must not get a second writer."""
    kinds: tuple[type[Sink], ...] = (_TensorBoard, _MLflow) if about.script else (_TensorBoard, _MLflow, _Wandb)
    return [kind(about, trackers[kind.name] or {}) for kind in kinds if kind.name in trackers]


class _TensorBoard(Sink):
    """Writes event files record by record: a full disk raises at once, and no torn record is left behind."""

    name = "tensorboard"
    rewinds = True
    _file: Any = None
    _void: int | None = None
    """Steps from here on are void; said before the next row."""

    def open(self, memory: Memory, keep: Callable[[], None]) -> None:
        """See `Sink`. The first row makes the file, so that no empty one lies beside those of a script's own writer."""
        import tensorboard.compat.proto.event_pb2 as events
        import tensorboard.compat.proto.summary_pb2 as summaries
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._protos, self._summaries, self._writer = events, summaries, RecordWriter
        self._file, self._memory = None, memory

    def rewind(self, step: int) -> None:
        """See `Sink`."""
        self._void = step + 1 if self._void is None else min(self._void, step + 1)

    def write(self, rows: list[MetricsRow]) -> None:
        """See `Sink`."""
        if self._file is None:
            self._new_file()
        self._append(list(self._events(rows)))
        self._void, self._memory["described"] = None, True

    def _append(self, events: list[Any]) -> None:
        """Write all or none: a torn record would hide everything after it."""
        data = io.BytesIO()
        for event in events:
            self._writer(data).write(event.SerializeToString())
        whole = self._file.tell()
        try:
            if self._file.write(data.getbuffer()) < data.tell():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._file.truncate(whole)
            self._file.seek(whole)
            raise

    def _events(self, rows: list[MetricsRow]) -> Any:
        make, now = self._protos.Event, time.time()
        if self._void is not None:
            start = self._protos.SessionLog(status=self._protos.SessionLog.START)
            yield make(wall_time=now, step=self._void, session_log=start)
        if not self._memory.get("described"):
            from tensorboard.plugins.text.summary_v2 import text_pb

            listed = "\n".join(f"| {k} | {v} |" for k, v in {**self.about.params, **self.about.tags}.items())
            texts = {"job": f"```\n{self.about.job}\n```", "parameters": f"| name | value |\n|---|---|\n{listed}"}
            for tag, text in texts.items():
                yield make(wall_time=now, step=0, summary=text_pb(tag, text))
        for row in rows:
            values = [self._summaries.Summary.Value(tag=k, simple_value=v) for k, v in row.numbers.items()]
            yield make(wall_time=row.t, step=row.step, summary=self._summaries.Summary(value=values))

    def _new_file(self) -> None:
        """Make a file. TensorBoard reads files in the order of their names: seconds as its own writers have them, then finer."""
        folder = self.about.folder / "tensorboard"
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        now = time.time_ns()
        name = f"events.out.tfevents.{now // 10**9:010d}.{now % 10**9:09d}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("xb", buffering=0)
        try:
            self._append([self._protos.Event(wall_time=time.time(), file_version="brain.Event:2")])
        except OSError:
            self._file.close()
            (folder / name).unlink()  # each try makes one, and a disk may be full for days
            raise

    def close(self, end: End) -> None:
        """See `Sink`."""
        if self._file is not None:
            self._file.close()


class _MLflow(Sink):
    """One MLflow run through all attempts. Steps done again are skipped: MLflow cannot take metrics back."""

    name = "mlflow"

    def __init__(self, about: About, settings: Mapping[str, Any]) -> None:
        super().__init__(about, settings)
        self._names: dict[str, str] = {}
        """The metric's own name by the one that it has in MLflow."""
        self._refused: set[tuple[str, str]] = set()

    def open(self, memory: Memory, keep: Callable[[], None]) -> None:
        """See `Sink`."""
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # its own defaults wait for minutes
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(_REQUEST_S))
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self.settings.get("uri"))
        if "id" not in memory:
            memory["id"] = self._found_or_new()
            keep()
        else:
            self._client.update_run(memory["id"], status="RUNNING")
        self._run = str(memory["id"])
        self._names = memory.setdefault("names", self._names)
        if not memory.get("described"):
            self._describe()
            memory["described"] = True
            keep()
        self._tag_attempt()

    def _tag_attempt(self) -> None:
        tags = {**{k: self.about.tags[k] for k in _OF_ATTEMPT}, "launcher.state": "running"}
        self._client.log_batch(self._run, tags=self._tags(tags))

    def _found_or_new(self) -> str:
        """Find this run's MLflow run by its tag (its creation may have succeeded without an answer), or create it."""
        client = self._client
        key = self._experiment(self.settings.get("experiment") or self.about.spec.name)
        mine = client.search_runs([key], f"tags.`launcher.run` = '{self.about.spec.id}'", max_results=1)
        if mine:
            return str(mine[0].info.run_id)
        tags = {
            "mlflow.source.name": self.about.spec.work.target,
            "mlflow.source.type": "JOB",
            "mlflow.source.git.commit": self.about.commit,
            "mlflow.source.git.repoURL": self.about.remote,
            "mlflow.user": self.about.user,
            **self.about.tags,
        }
        run = client.create_run(key, run_name=self.about.spec.id, tags={k: v for k, v in tags.items() if v})
        return str(run.info.run_id)

    def _experiment(self, title: str) -> str:
        """Find or create the experiment. Points of a sweep that begin together all find none, and one of them creates it."""
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(title)
        if found is None:
            try:
                return str(self._client.create_experiment(title))
            except MlflowException as error:
                found = self._client.get_experiment_by_name(title)
                if found is None or error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
        return str(found.experiment_id)

    def _describe(self) -> None:
        from mlflow.entities import Param

        if not self.about.script:  # a script's own log_param of the same name with another value would fail
            names: dict[str, str] = {}
            ordered = sorted(self.about.params, key=lambda name: _allowed(name) != name)  # these keep their names
            params = [Param(_own(k, names), str(self.about.params[k])[:_LONGEST_PARAM]) for k in ordered]
            for first in range(0, len(params), 100):
                self._send("params", params[first : first + 100])
        uri = str(self._client.get_run(self._run).info.artifact_uri)
        if uri.startswith("mlflow-artifacts:"):  # others are folders or buckets that this node may not reach
            self._store_job()

    def _store_job(self) -> None:
        """Store job.yaml. A server whose store of files is out of order takes all the rest."""
        try:
            self._client.log_text(self._run, self.about.job, "job.yaml")
        except Exception as error:
            self._tag_attempt()  # raises where the whole server is away
            self.say(f"job.yaml is left out of tracker mlflow, which could not store it: {error}".splitlines()[0])

    def _tags(self, tags: Mapping[str, str]) -> list[Any]:
        from mlflow.entities import RunTag

        return [RunTag(k, v) for k, v in tags.items()]

    def write(self, rows: list[MetricsRow]) -> None:
        """See `Sink`. A batch sent twice counts once: same name, time, step and value."""
        from mlflow.entities import Metric

        metrics = [
            Metric(name, v, int(row.t * 1000), row.step)
            for row in rows
            for k, v in row.numbers.items()
            if ("metrics", name := _own(k, self._names)) not in self._refused
        ]
        for first in range(0, len(metrics), _BATCH):
            self._send("metrics", metrics[first : first + _BATCH])

    def _send(self, kind: str, batch: list[Any]) -> None:
        """Send "metrics" or "params". One that the server refuses would keep all of them away, for ever: it is left out, and named.

        It refuses another value of a parameter that it has: an earlier attempt came no further than that.
        """
        from mlflow.exceptions import MlflowException

        sent: dict[str, Any] = {kind: batch}
        try:
            self._client.log_batch(self._run, **sent)
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            names = list(dict.fromkeys(one.key for one in batch))
            if len(names) > 1:
                for name in names:
                    self._send(kind, [one for one in batch if one.key == name])
                return
            self._tag_attempt()  # raises where the whole run is refused
            self._refused.add((kind, names[0]))
            one = kind.removesuffix("s")
            self.say(f"tracker mlflow does not take the {one} {names[0]}, which is left out: {error}".splitlines()[0])

    def close(self, end: End) -> None:
        """See `Sink`."""
        said = {"launcher.state": end.state, "launcher.reason": end.reason}
        self._client.log_batch(self._run, tags=self._tags({k: v for k, v in said.items() if v}))
        if end.state == "requeued":
            self._client.update_run(self._run, status="SCHEDULED")
        else:
            status = {"completed": "FINISHED", "cancelled": "KILLED"}.get(end.state, "FAILED")
            self._client.set_terminated(self._run, status)


def _allowed(name: str) -> str:
    """Return a name that MLflow takes: it refuses a whole batch for one such as acc@1, and for what would be no plain path."""
    path = posixpath.normpath("/" + re.sub(r"[^\w./ -]", "_", name)).lstrip("/.")
    return posixpath.normpath(path[:_LONGEST_NAME] or "_")


def _own(name: str, names: dict[str, str]) -> str:
    """Return a name that MLflow takes and no other one has; ``names`` has whose each is."""
    given = allowed = _allowed(name)
    for number in itertools.count(2):
        if names.setdefault(given, name) == name:
            break
        given = f"{allowed[: _LONGEST_NAME - 8]}_{number}"
    return given


_OF_ATTEMPT = ("launcher.attempt", "launcher.job_id", "launcher.host")
"""Tags that change with every attempt."""


class _Wandb(Sink):
    """One run of Weights & Biases through all attempts; wandb itself buffers on disk while its server is away."""

    name = "wandb"

    def open(self, memory: Memory, keep: Callable[[], None]) -> None:
        """See `Sink`."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        about = self.about
        more: dict[str, Any] = {"mode": self.settings["mode"]} if self.settings.get("mode") else {}
        self._run: Any = wandb.init(
            project=self.settings.get("project") or about.spec.name,
            id=memory.setdefault("id", about.spec.id),
            name=about.spec.id,
            resume="allow",
            dir=str(about.folder),
            config={**about.params, "launcher": dict(about.tags)},
            allow_val_change=True,
            settings=wandb.Settings(
                console="off",
                silent=True,
                save_code=False,
                program=about.spec.work.target,
                disable_git=True,  # this process works in the run's folder, not in the repository
                git_commit=about.commit or None,
                git_remote_url=about.remote or None,
            ),
            **more,
        )
        keep()

    def write(self, rows: list[MetricsRow]) -> None:
        """See `Sink`."""
        for row in rows:
            self._run.log(row.numbers, step=row.step)

    def close(self, end: End) -> None:
        """See `Sink`."""
        if end.reason:
            self._run.summary["launcher/reason"] = end.reason
        if end.state == "requeued":
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if end.state == "completed" else 1)
