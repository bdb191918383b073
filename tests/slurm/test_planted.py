"""Planted failures on the real cluster: `launcher why` names the right rank, host and cause of every one.

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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster import HOSTS, Cluster
from harness import Run, submit

from launcher.report.diagnosis.why import Why, explain
from launcher.report.model.history import History, read_history
from launcher.report.model.summary import summarise_history
from launcher.run.events import Decided

CODE = Path(__file__).parent / "planted"
ROUND_S = 75.0
"""A round that has stood for so long is ended from outside: nobody has noticed its failure."""
AT_ONCE = 2
"""Runs beside each other, where each has its own."""


@pytest.fixture(scope="module")
def cases() -> Iterator[dict[str, Any]]:
    """Every case by name; their modules import torch, which most test processes do without."""
    sys.path.insert(0, str(CODE))
    try:
        import all_cases

        yield all_cases.CASES
    finally:
        sys.path.remove(str(CODE))


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
) -> dict[str, tuple[Why, float]]:
    """By case: what ``why`` said, and how many seconds after the failure. A case that ends its run is followed by another run."""
    told: dict[str, tuple[Why, float]] = {}
    left = list(names)
    while left:
        run = plant(cluster, directory / str(len(left)), loop, left, restart={"hang_floor_s": hang_floor_s})
        found = at_each_decision(run)
        assert found, run.agent_logs()
        for name, (decision, why) in zip(left, found, strict=False):
            marks = [p.stat().st_mtime for p in run.paths.root.glob(f"planted-{decision.round}-*")]
            told[name] = why, float(decision.t) - max(marks, default=0.0)
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
    if delay_s > case.soon_s:
        out.append(f"after {delay_s:.1f} s, not {case.soon_s:.0f}")
    return out


def chosen_of(names: Iterable[str]) -> list[str]:
    """All, or those that the regular expression in $PLANTED finds."""
    return [name for name in names if re.search(os.environ.get("PLANTED", ""), name)]


def absent(words: Iterable[str | tuple[str, ...]], text: str) -> list[str | tuple[str, ...]]:
    """Those of the words that the text lacks."""
    return [w for w in words if not any(one.lower() in text for one in ((w,) if isinstance(w, str) else w))]


def judge(cases: dict[str, Any], told: dict[str, tuple[Why, float]]) -> None:
    """Fail with every miss."""
    wrong = {name: found for name, (why, delay_s) in told.items() if (found := misses(cases[name], why, delay_s))}
    print(json.dumps({name: round(delay_s, 2) for name, (_, delay_s) in told.items()}))
    for name, found in wrong.items():
        print(f"{name}: {'; '.join(found)}", *told[name][0].lines(), sep="\n    ")
    print(f"{len(told) - len(wrong)} of {len(told)} right")
    assert not wrong, f"{len(wrong)} of {len(told)} wrong"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("loop", ["function", "script", "attached"])
def test_what_goes_wrong_in_workers_is_named(
    cluster: Cluster, cases: dict[str, Any], tmp_path: Path, loop: str
) -> None:
    """Kind, rank, host, the user's own words, none of a wrong story, and soon: for every case of the loop."""
    chosen = chosen_of(name for name, case in cases.items() if case.loop == loop and not (case.live or case.late))
    # Python 3.14's loaders start anew: torch's import in one takes seconds, and torch looks every 5 s for one that died.
    floor_s = 10.0 if sys.version_info >= (3, 14) else 3.0
    judge(cases, planted(cluster, tmp_path, loop, chosen, floor_s))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_hangs_are_named(cluster: Cluster, cases: dict[str, Any], tmp_path: Path) -> None:
    """The same, a run each: a hang makes the rest of its run more patient."""
    chosen = chosen_of(name for name, case in cases.items() if case.late)
    told: dict[str, tuple[Why, float]] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for found in pool.map(
            lambda name: planted(cluster, tmp_path / str(chosen.index(name)), "function", [name]), chosen
        ):
            told |= found
    judge(cases, told)


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


def wrong_in_life(case: Any, verbs: Verbs, run: Run) -> list[str]:
    """What ``why`` and ``status`` lack or have too much of while the run lives; a healthy case is looked at for as long."""
    expects = bool(case.says or case.must)
    deadline = time.monotonic() + case.soon_s
    while True:
        why, text = verbs.why(run)
        status = verbs("status", run.paths.id)
        found = [f"why: {m}" for m in misses(case, why, 0.0, run.state().get("nodes") or HOSTS)]
        found += [f"status lacks {w!r}" for w in absent(case.must, status.lower())]
        found += [f"status has {w!r}" for w in case.never if w.lower() in status.lower()]
        over = time.monotonic() > deadline
        if over or (expects and not found) or (not expects and found):
            return [f"{'; '.join(found)}\n{text}\n{status}"] if found else []
        time.sleep(1)


def live(cluster: Cluster, directory: Path, case: Any) -> list[str]:
    """Run a live case and look at it."""
    extra = {"checkpoint": {"enabled": True, "interval_steps": 200}, "restart": {"hang_floor_s": 60.0}}
    run = plant(cluster, directory, case.loop, [case.name], case.world, **extra)
    try:
        run.wait("the first step", lambda: run.told("first_step") or run.outcome() or case.loop == "script")
        return wrong_in_life(case, Verbs(cluster, run.paths.root.parent), run)
    finally:
        cluster.run(["scancel", run.job_id], check=False)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_what_is_wrong_or_slow_is_told_while_a_run_lives(
    cluster: Cluster, cases: dict[str, Any], tmp_path: Path
) -> None:
    """NaN, slow ranks, hosts, loaders and saves are named by ``why`` and ``status``; nothing is said of healthy runs."""
    chosen = chosen_of(name for name, case in cases.items() if case.live)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda n: live(cluster, tmp_path / str(chosen.index(n)), cases[n]), chosen))
    wrong = {name: lines for name, lines in zip(chosen, found, strict=True) if lines}
    shown = "\n\n".join(f"{name}: {lines[0]}" for name, lines in wrong.items())
    print(shown, f"{len(chosen) - len(wrong)} of {len(chosen)} right", sep="\n")
    assert not wrong, f"{len(wrong)} of {len(chosen)} wrong"


class Bench:
    """The cluster as acts know it: `run` returns what the command printed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def run(self, command: list[Any]) -> str:
        """Run a command on the login host."""
        return self._cluster.run(command).stdout


def after(act: Any, cluster: Cluster, directory: Path) -> list[str]:
    """Do an act to a run; what ``why`` then lacks."""
    bench, undo = Bench(cluster), None
    try:
        if act.before:
            undo = act.how(bench, None)
        job = {"distributed": {"init_timeout_min": 0.9}, **act.job}
        job["checkpoint"] = {"enabled": True, "interval_steps": 100, **act.job.get("checkpoint", {})}
        job["restart"] = {"hang_floor_s": 10.0, "max_restarts": 5, "requeue": True, **act.job.get("restart", {})}
        run = plant(cluster, directory, "function", ["steady"] * 9, **job)
        if not act.before:
            run.wait_step(5)
            undo = act.how(bench, run)
        return _wrong_after(act, Verbs(cluster, directory / "runs"), run)
    finally:
        cluster.cancel_all()
        if callable(undo):
            undo()


def _wrong_after(act: Any, verbs: Verbs, run: Run) -> list[str]:
    hosts = run.state().get("nodes") or HOSTS
    deadline = time.monotonic() + max(act.soon_s, 180.0 if act.state == "ended" else 0.0)
    while True:
        why, text = verbs.why(run)
        found = misses(act, why, 0.0, hosts)
        if act.state == "ended" and why.state in ("pending", "running"):
            found.append(f"it is {why.state}")
        if (
            not found
            or time.monotonic() > deadline
            or (act.state == "ended" and why.state not in ("pending", "running"))
        ):
            return [f"{'; '.join(found)}\n{text}"] if found else []
        time.sleep(1)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_what_happens_from_outside_is_told(cluster: Cluster, cases: dict[str, Any], tmp_path: Path) -> None:
    """SLURM's acts, the user's and accidents: who did it, whether the run comes back, and what ends a wait."""
    import acts
    import blind_acts  # noqa: F401

    acts.act.verb = lambda bench, *words: Verbs(cluster, newest(tmp_path) / "runs")(*words)
    chosen, wrong, unfit = chosen_of(acts.ACTS), {}, {}
    for number, name in enumerate(chosen):
        try:
            found = after(acts.ACTS[name], cluster, tmp_path / f"{number:02}")
        except Exception as error:
            if str(error).startswith("precondition"):
                unfit[name] = str(error)
                continue
            found = [f"{type(error).__name__}: {error}"]
        finally:
            cluster.heal()
            cluster.restore({})
        print(f"{'wrong' if found else 'right'}: {name}", *found, flush=True)
        if found:
            wrong[name] = found
    print(f"{len(chosen) - len(wrong) - len(unfit)} of {len(chosen) - len(unfit)} right; not tried: {unfit}")
    assert not wrong, f"{len(wrong)} of {len(chosen)} wrong"


def newest(directory: Path) -> Path:
    """The folder of the act under way."""
    return max(directory.iterdir())
