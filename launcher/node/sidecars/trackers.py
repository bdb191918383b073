"""``python -m launcher.node.sidecars.trackers RUN_DIR [ATTEMPT]``: sends a run's metrics to its trackers.

The run's own metrics.jsonl is the source of truth; this process reads it, beside training and without slowing it. A
tracker that is slow, hangs or cannot be reached gets its rows later, in this attempt or the next. With ATTEMPT it is the
leader's child: orders come over standard input, whose end of file ends it, and answers go to standard output. Without, it
sends what is missing of a run that has ended.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.node.sidecars.sinks import About, End, MetricsRow, Sink, make_sinks
from launcher.opening import OBJECT_BYTES, open_regular, open_to_append
from launcher.redact import REDACTED, redact, redact_values, redact_words
from launcher.run import event_lines
from launcher.run.asking import load_object, patiently
from launcher.run.children import exit_now
from launcher.run.events import RoundStarted
from launcher.run.files import NO_JSON, read_object, write_atomic
from launcher.run.open_files import as_before
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import read_outcome, read_submission
from launcher.slurm.commands import spared

_POLL_S = 1.0
_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Between tries while a tracker fails; the last one again and again."""
_REST_S = 30.0
"""For what is left at the end of a run that has no leader: its nodes are held meanwhile."""
_WELL_S = 600.0
"""A tracker that has not failed for so long has its next failure told."""
_READ_BYTES = 2**18
_SETTINGS = ("seed", "deterministic", "world_size", "nodes", "tasks_per_node", "gpus_per_node", "backend")
"""Settings that decide over results: parameters of the tracker's run."""
_NICE = 5
"""Training comes first on a busy node, and yet a tracker gets its turn."""


def read_rows(path: Path, offset: int) -> list[tuple[dict[str, Any], int]]:
    """Return the whole lines of metrics.jsonl from ``offset`` on, each with the offset after it; none when there is nothing new."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            file.seek(offset)
            data = more = file.read(_READ_BYTES)
            while more and b"\n" not in more and len(data) < OBJECT_BYTES:  # a row of very many metrics
                data += (more := file.read(_READ_BYTES))
    except OSError:
        return []
    rows = []
    for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
        offset += len(line)
        try:
            value = json.loads(line)
        except NO_JSON:
            value = None
        sound = isinstance(value, dict) and isinstance(value.get("metrics"), dict)
        rows.append((value if sound else {"metrics": {}}, offset))
    return rows


class TrackerFeed(threading.Thread):
    """Feeds one sink until the attempt is over; retries after every failure and reports the first one."""

    def __init__(
        self,
        sink: Sink,
        paths: RunPaths,
        say: Callable[[str], None],
        *,
        secrets: Iterable[str] = (),
        opened: Callable[[Sink, dict[str, Any]], None] = lambda sink, memory: None,
    ) -> None:
        super().__init__(name=f"tracker-{sink.name}", daemon=True)
        self.sink = sink
        self._paths = paths
        self._say = sink.say = say
        self._secrets = list(secrets)
        self._opened = opened
        self._file = paths.trackers / f"{sink.name}.json"
        # Not lenient: without its memory the tracker would get a second run.
        self.memory = patiently(lambda: load_object(self._file, paths.root) or {}, paths.root)
        self.memory["offset"] = int(self.memory.get("offset", 0))
        self._end: End | None = None
        self._over = threading.Event()
        self._failed_at: float | None = None
        self.done = False
        """Everything has been delivered, the end included."""

    def finish(self, end: End) -> None:
        """Deliver the rest, report how the attempt ended, and stop."""
        self._end = end
        self._over.set()

    def run(self) -> None:
        """See `threading.Thread`."""
        tries = 0
        while True:
            last = self._over.is_set()
            before = self.memory["offset"]
            try:
                self.sink.open(self.memory, self._keep)
                self._opened(self.sink, self.memory)
                self._serve()
                self.done = True
                return
            except ImportError as error:
                extra = f"pip install 'ddp-launcher[{self.sink.name}]'"
                self._tell(f"tracker {self.sink.name} is not used: it is not installed here ({extra}): {error}")
                return
            except Exception as error:
                text = (redact(str(error), self._secrets).strip().splitlines() or [type(error).__name__])[0]
                text = text if len(text) <= 300 else text[:300] + "..."
                self._tell(f"tracker {self.sink.name} failed and is retried, the run continues: {text}")
            if last:
                return
            tries = 0 if self.memory["offset"] > before else tries + 1
            self._over.wait(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])

    def _serve(self) -> None:
        while True:
            end = self._end  # looked at before reading: whatever was written before the end is read
            rows = read_rows(self._paths.metrics, self.memory["offset"])
            for _, group in itertools.groupby(rows, lambda row: (row[0].get("attempt"), row[0].get("round"))):
                values, offsets = zip(*group, strict=True)
                self._deliver(list(values))
                self.memory["offset"] = offsets[-1]
                self._keep()
            if rows:
                continue
            if end is not None:
                return self.sink.close(end)
            self._over.wait(_POLL_S)

    def _deliver(self, values: list[dict[str, Any]]) -> None:
        """Deliver rows of one round; the memory changes only when the sink has taken them."""
        marks, floor = (dict(self.memory.get(name, {})) for name in ("marks", "floor"))
        before, here = self.memory.get("round"), [values[0].get("attempt"), values[0].get("round")]
        # Steps beyond the round's checkpoint are done again: take them back where possible, else skip them.
        if before != here:
            if self.sink.rewinds and before is not None:
                step = _resume_step(self._paths, here)
                if any(mark > step for mark in marks.values()):
                    self.sink.rewind(step)
                marks = {k: min(v, step) for k, v in marks.items()}
            floor = dict(marks)
        if rows := list(_fresh(values, marks, floor)):
            self.sink.write(rows)
        self.memory.update(round=here, marks=marks, floor=floor)

    def _keep(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: kept in memory, written with the next rows
            self._paths.trackers.mkdir(mode=0o750, exist_ok=True)
            write_atomic(self._file, json.dumps(self.memory) + "\n", durable=False)

    def _tell(self, text: str) -> None:
        """Say what failed, once until all has been well for a while: a server that is up and down fails every minute."""
        before, self._failed_at = self._failed_at, time.monotonic()
        if before is None or self._failed_at - before > _WELL_S:
            self._say(text)

    def shortfall(self) -> str | None:
        """Return the warning for a tracker that has not received everything in time; None when it has."""
        if self.done:
            return None
        return f"tracker {self.sink.name} has not received all metrics: `{send_rest(self._paths)}` sends the rest"


def send_rest(paths: RunPaths) -> str:
    """Return the command that sends what an ended run's trackers have not received."""
    return f"python -m launcher.node.sidecars.trackers {paths.root}"


def deliver_rest(spec: RunSpec, paths: RunPaths, passed: Mapping[str, str]) -> None:
    """Send what trackers lack of a run that has ended without a leader, and how it ended. Never raises; the trackers' log tells of failures.

    Where this process lacks what the run's own have (outside of their container, say), nothing is sent.
    """
    if not spec.trackers:
        return
    words = as_before([spec.python or sys.executable, "-m", "launcher.node.sidecars.trackers", str(paths.root)])
    with contextlib.suppress(OSError, ValueError, TypeError):
        paths.trackers.mkdir(mode=0o750, exist_ok=True)
        with os.fdopen(open_to_append(paths.trackers / "log", 0o600), "wb") as log, spared():
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **spec.variables, **passed},
            )  # fmt: skip
        try:
            process.wait(_REST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _fresh(values: list[dict[str, Any]], marks: dict[str, int], floor: dict[str, int]) -> Iterator[MetricsRow]:
    """Yield rows without what an earlier round has delivered already, up to ``floor``; raises ``marks`` with them."""
    for value in values:
        step = value.get("step")
        if not isinstance(step, int):
            continue
        numbers = {}
        for name, number in value["metrics"].items():
            if step > floor.get(name, -1) and (plain := _number(number)) is not None:
                numbers[name] = plain
                marks[name] = max(step, marks.get(name, -1))
        if numbers:
            yield MetricsRow(step, float(value.get("t") or 0.0), numbers)


def _number(value: Any) -> float | None:
    """Return a metric as a number; the file holds infinities and NaN as words."""
    if isinstance(value, (int, float)):
        return float(value)
    return float(value) if value in ("nan", "inf", "-inf") else None


def _resume_step(paths: RunPaths, here: list[Any]) -> int:
    for event in reversed(event_lines.recall(paths.events)):
        if isinstance(event, RoundStarted) and [event.attempt, event.round] == here:
            return event.resume_step or 0
    return 0


def _about_run(spec: RunSpec, paths: RunPaths, attempt: int | None) -> About:
    """Return what trackers are told of the run."""
    made = read_object(paths.environment) or {}
    code = made.get("code") or {}
    submitted = read_submission(paths.submission)
    settings = {name: getattr(spec, name) for name in _SETTINGS}
    tags = {
        "launcher.run": spec.id,
        "launcher.job": spec.name,
        "launcher.run_dir": spec.run_dir,
        "launcher.attempt": "" if attempt is None else str(attempt),
        "launcher.job_id": os.environ.get("SLURM_JOB_ID") or str(submitted.get("job_id") or ""),
        "launcher.host": os.uname().nodename,
        "launcher.dirty": str(bool(code.get("dirty"))).lower(),
    }
    try:
        job = paths.job.read_text()
    except OSError:
        job = ""
    given, words = _flat(spec.work.params), spec.work.args
    params: dict[str, Any] = redact_values(given)
    hidden = [str(value) for name, value in given.items() if params[name] == REDACTED]
    hidden += [
        word.removeprefix(shown.removesuffix(REDACTED))
        for word, shown in zip(words, redact_words(words), strict=True)
        if shown.endswith(REDACTED)
    ]
    return About(
        spec=spec,
        folder=paths.trackers,
        params={**settings, **params},
        tags=tags,
        job=redact(job, hidden),
        commit=str(code.get("commit") or ""),
        remote=str(code.get("remote") or ""),
        user=str(submitted.get("user") or made.get("user") or ""),
    )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


class _Leader:
    """Writes JSON lines for the leader to what was standard output; the libraries' own output goes to standard error."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = list(secrets)
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def warn(self, text: str) -> None:
        """Send one sentence for the history."""
        self._tell({"warning": redact(text, self._secrets)})

    def opened(self, sink: Sink, memory: dict[str, Any]) -> None:
        """Send the variables with which a script's workers continue the same tracker run."""
        if sink.name == "mlflow":
            self._tell({"mlflow_run_id": memory["id"]})

    def _tell(self, value: dict[str, Any]) -> None:
        with self._lock:
            try:
                self._out.write(json.dumps(value) + "\n")
            except OSError:
                os._exit(1)  # the leader is gone


def main() -> int:
    """Send metrics until the attempt is over, or what is missing; returns the exit code."""
    paths = RunPaths(Path(sys.argv[1]).absolute())
    spec = RunSpec.read(paths.spec)
    attempt = int(sys.argv[2]) if len(sys.argv) > 2 else None
    about = _about_run(spec, paths, attempt)
    own = {name: os.environ[name] for name in spec.pass_names if name in os.environ}  # of an ended run the file is gone
    passed = own | patiently(lambda: load_object(paths.passed, paths.root) or {}, paths.root)
    os.environ.update({**spec.variables, **passed})
    paths.trackers.mkdir(mode=0o750, exist_ok=True)
    if attempt is None:
        return _catch_up(spec, paths, about, list(passed.values()))
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # SLURM sends its signals to every process of a step
    os.nice(_NICE)
    leader = _Leader(passed.values())
    feeds = [
        TrackerFeed(sink, paths, leader.warn, secrets=passed.values(), opened=leader.opened)
        for sink in make_sinks(spec.trackers, about)
    ]
    for feed in feeds:
        feed.start()
    threading.Thread(target=_obey, args=(feeds, leader), daemon=True).start()
    for feed in feeds:
        feed.join()
    return 0


def _obey(feeds: list[TrackerFeed], leader: _Leader) -> None:
    """Do what the leader orders: ``end`` with a state; ``late``: time is up. Its death ends standard input."""
    for line in sys.stdin:
        order = json.loads(line)
        if order["order"] == "end":
            for feed in feeds:
                feed.finish(End(order["state"], order.get("reason") or ""))
        elif order["order"] == "late":
            for text in filter(None, (feed.shortfall() for feed in feeds)):
                leader.warn(text)
            break
    os._exit(0)


def _catch_up(spec: RunSpec, paths: RunPaths, about: About, secrets: list[str]) -> int:
    outcome = read_outcome(paths.outcome)
    if outcome is None:
        print(f"{paths.root.name} has not ended: its leader still sends its metrics", file=sys.stderr)
        return 1

    def say(text: str) -> None:
        print(redact(text, secrets), file=sys.stderr)

    feeds = [TrackerFeed(sink, paths, say, secrets=secrets) for sink in make_sinks(spec.trackers, about)]
    for feed in feeds:
        feed.finish(End(str(outcome["state"]), str(outcome.get("reason") or "")))
        feed.start()
    for feed in feeds:
        feed.join()
        print(f"{feed.sink.name}: {'up to date' if feed.done else 'not delivered'}")
    return 0 if all(feed.done for feed in feeds) else 1


if __name__ == "__main__":
    exit_now(main())  # a library's exit functions may hang
