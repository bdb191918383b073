"""Failures planted in runs on the real cluster, and what `launcher why` says of each.

Failures happen in few runs, a round each (a restart in place takes moments): what ``why`` says while the run stands at a decision
is read off the history up to that decision.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil
from cluster import Cluster
from harness import Run, submit

from launcher.report.diagnosis.why import Why, explain
from launcher.report.model.history import History, read_history
from launcher.report.model.summary import summarise_history
from launcher.run.events import Decided

CODE = Path(__file__).parent / "slurm" / "planted"
ROUND_S = 75.0
"""A round that has stood for so long is ended from outside: nobody has noticed its failure."""
AT_ONCE = 2
"""Runs beside each other, where each has its own."""
STANDS_STILL_S = 5.0
"""A busy machine lets a process stand still for so long: a failure is noticed that much later."""
Told = tuple[Why, float, Sequence[str]]
"""What ``why`` said of a case, how many seconds after the failure, and the hosts of the round, in order."""


def plant(
    cluster: Cluster, directory: Path, loop: str, names: list[str], world: int = 2, **more: dict[str, Any]
) -> Run:
    """Submit a run in which these cases happen, a round each."""
    job: dict[str, Any] = {
        "name": "planted", "task": None, "code": {"dir": str(CODE)}, "checkpoint": {"enabled": False, "interval_steps": None},
        "restart": {"hang_floor_s": 3.0, "max_restarts": 1000, "requeue": False},
        "resources": {"nodes": 2, "tasks_per_node": world // 2, "timeout_min": 60},
    }  # fmt: skip
    if loop == "function":
        job |= {"function": "loop_function:train", "params": {"names": names}}
    else:
        job |= {"script": f"loop_{loop}.py", "args": names}
    for section, values in more.items():
        job[section] = {**job.get(section, {}), **values}
    return submit(directory, cluster.env, world, **job)


def at_each_decision(run: Run) -> list[tuple[Decided, Why]]:
    """What ``launcher why`` says when the run stands at each of its decisions; a round that stands still for too long is killed.

    It is asked at once: the logs of old rounds are removed.
    """
    found: list[tuple[Decided, Why]] = []
    since = time.monotonic()
    while (over := run.outcome()) is None or len(found) < len(decisions(read_history(run.paths))):
        whole = read_history(run.paths)
        for event in decisions(whole)[len(found) :]:
            then = dataclasses.replace(whole, events=whole.events[: whole.events.index(event) + 1], raw_outcome=None)
            now = max(float(event.t), float(then.state.get("t", 0))) + 1
            found.append((event, explain(then, summarise_history(then, None, now), now)))
            since = time.monotonic()
        if over is None and time.monotonic() - since > ROUND_S:
            for rank in run.state().get("ranks", []):
                if rank.get("pid") and psutil.pid_exists(rank["pid"]):
                    psutil.Process(rank["pid"]).kill()
            since = time.monotonic()
        time.sleep(0.1)
    return found


def decisions(history: History) -> list[Decided]:
    """Those about something that went wrong."""
    return [event for event in history.events if isinstance(event, Decided) and event.evidence != "done"]


def planted(
    cluster: Cluster, directory: Path, loop: str, names: list[str], hang_floor_s: float = 3.0
) -> dict[str, Told]:
    """By case: what was told of it. A case that ends its run is followed by another run."""
    told: dict[str, Told] = {}
    left = list(names)
    while left:
        run = plant(cluster, directory / str(len(left)), loop, left, restart={"hang_floor_s": hang_floor_s})
        found = at_each_decision(run)
        assert found, run.agent_logs()
        for name, (decision, why) in zip(left, found, strict=False):
            marks = [p.stat().st_mtime for p in run.paths.root.glob(f"planted-{decision.round}-*")]
            ranks = [rank for one in run.told("round_started", round=decision.round) for rank in one["ranks"]]
            told[name] = why, float(decision.t) - max(marks, default=0.0), list(dict.fromkeys(r["host"] for r in ranks))
        left = left[len(found) :]
    return told


def misses(case: Any, why: Why, delay_s: float, hosts: Sequence[str] = ("node1", "node2")) -> list[str]:
    """What of a case's expectations does not hold; ``hosts`` are those of the run, in order."""
    text, sentence = "\n".join(why.lines()).lower(), why.sentence.lower()
    kinds = (case.kind,) if isinstance(case.kind, str) else case.kind
    out = []
    if kinds and why.kind and why.kind not in kinds:
        out.append(f"kind {why.kind}, not {case.kind}")
    if case.rank == "all" and not re.search(r"\b(all \d+ ranks|both ranks|every rank)", sentence):
        out.append("not told of all ranks")
    if isinstance(case.rank, int) and (named := re.search(r"\brank (\d+)", sentence, re.I)) is None:
        out.append("no rank is named")
    elif isinstance(case.rank, int) and named and int(named[1]) != case.rank:
        out.append(f"rank {named[1]} is named first")
    elif isinstance(case.rank, int) and f"({hosts[case.rank * 2 // case.world]})" not in sentence:
        out.append("its host is not named")
    out += [f"the sentence lacks {w!r}" for w in absent(case.says, sentence)]
    out += [f"the text lacks {w!r}" for w in absent(case.must, text)]
    out += [f"the text has {w!r}" for w in case.never if w.lower() in text]
    if delay_s > case.soon_s + STANDS_STILL_S:
        out.append(f"after {delay_s:.1f} s, not {case.soon_s:.0f}")
    return out


def chosen_of(names: Iterable[str]) -> list[str]:
    """All, or those that the regular expression in $PLANTED finds."""
    return [name for name in names if re.search(os.environ.get("PLANTED", ""), name)]


def absent(words: Iterable[str | tuple[str, ...]], text: str) -> list[str | tuple[str, ...]]:
    """Those of the words that the text lacks."""
    return [w for w in words if not any(one.lower() in text for one in ((w,) if isinstance(w, str) else w))]


def judge(cases: dict[str, Any], told: dict[str, Told]) -> None:
    """Fail with every miss."""
    wrong = {name: found for name, one in told.items() if (found := misses(cases[name], *one))}
    print(json.dumps({name: round(delay_s, 2) for name, (_, delay_s, _) in told.items()}))
    for name, found in wrong.items():
        print(f"{name}: {'; '.join(found)}", *told[name][0].lines(), sep="\n    ")
    print(f"{len(told) - len(wrong)} of {len(told)} right")
    assert not wrong, f"{len(wrong)} of {len(told)} wrong"


class Verbs:
    """The verbs of the launcher as a user of the test cluster runs them."""

    def __init__(self, cluster: Cluster, runs_dir: Path) -> None:
        state = {"LAUNCHER_RUNS_DIR": str(runs_dir), "XDG_STATE_HOME": str(runs_dir.parent / "state")}
        self.environment = {**os.environ, **cluster.env, **state}

    def __call__(self, *words: str) -> str:
        """Run one; returns what it printed."""
        command = [sys.executable, "-m", "launcher", *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    def why(self, run: Run) -> tuple[Why, str]:
        """What ``why`` says as values and as text."""
        text = self("why", run.paths.id)
        try:
            values = json.loads(self("why", run.paths.id, "--json"))
        except ValueError:  # there is no run: the error is one sentence
            state = "running" if "RUNNING" in text else "failed"
            return Why(run=run.paths.id, state=state, kind="", sentence=text.strip()), text
        rows = [(label, text) for label, texts in values.pop("evidence").items() for text in texts]
        return Why(**values, rows=rows), text
