"""The reading verbs as users call them: output, JSON, exit codes, what they import, how soon they answer."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from in_process import launcher
from run_story import Story
from squeue import squeue_line

from launcher.cli.main import cli, main

KEYS = {
    "run",
    "name",
    "state",
    "reason",
    "backend",
    "job_id",
    "attempt",
    "round",
    "step",
    "world_size",
    "nodes",
    "started",
    "ended",
}
HEAVY = {"torch", "submitit", "omegaconf", "pydantic", "numpy", "jinja2", "rich"}


def completed(root: Path, name: str = "resnet50", tail: str = "1121-0842-k7f", **metrics: float) -> Story:
    """A run that did 100 steps."""
    story = Story(root, name, tail).submitted().wait(5).begins().wait(2).round_starts(resume_step=None).wait(3)
    story.event("first_step", step=1).wait(100).event("save_started", step=100)
    story.event("saved", step=100, seconds=1, blocked_s=0).event("attempt_ended", why="done")
    return story.outcome("completed", "All steps are done.", step=100, metrics=metrics, exit_code=0)


def failed(root: Path, tail: str = "1121-0900-m3x") -> Story:
    """A run whose second rank raised."""
    story = Story(root, "resnet50", tail).submitted().begins().round_starts().event("first_step", step=1).wait(10)
    cause = {"kind": "exception", "exception": "ValueError", "message": "bad label 11"}
    story.event("worker_failed", rank=1, host="node1", step=7, cause=cause)
    story.event("decision", evidence="worker_failed", action="fail", reason="x; stopped.")
    return story.outcome("failed", "Rank 1 on node1 raised ValueError.", step=7, exit_code=8)


def sweep(root: Path) -> None:
    """Four points with losses, the last of them failed."""
    folder = root / "lr-1121-1000-swp"
    points = []
    for i, loss in enumerate((0.5, 0.2, 0.9)):
        completed(folder, f"lr-lr{i}", f"1121-1000-swp000{i}", loss=loss)
        points.append({"run": f"lr-lr{i}-1121-1000-swp000{i}", "overrides": [f"params.lr=0.{i}"]})
    failed(folder, "1121-1000-swp0003")
    points.append({"run": "resnet50-1121-1000-swp0003", "overrides": ["params.lr=0.3"]})
    (folder / "sweep.json").write_text(json.dumps({"points": points}))


def test_status_tells_of_one_run(home: Path) -> None:
    """Text for people, every promised key for programs."""
    completed(home, loss=0.25)
    out = launcher("status", "k7f").output
    value: dict[str, Any] = json.loads(launcher("status", "k7f", "--json").output)

    assert out.startswith("resnet50-1121-0842-k7f  completed  job 482913  attempt 0, round 0\n")
    assert "  goodput  91 % useful, 5 start-up, 4 queued" in out.splitlines()
    assert set(value) >= KEYS
    assert (value["state"], value["step"], value["world_size"], value["nodes"]) == (
        "completed",
        100,
        4,
        ["node1", "node2"],
    )
    assert value["ledger"]["seconds"]["useful"] == pytest.approx(100)


def test_status_without_a_run_shows_what_is_not_over(home: Path) -> None:
    """Unfinished runs, as a list in JSON; when there are none, the newest run."""
    completed(home)
    assert [v["run"] for v in json.loads(launcher("status", "--json").output)] == ["resnet50-1121-0842-k7f"]
    Story(home, "other", "1121-1200-abc").submitted()

    assert [v["run"] for v in json.loads(launcher("status", "--json").output)] == ["other-1121-1200-abc"]


def test_status_without_a_run_leaves_out_one_that_died(home: Path) -> None:
    """It left no outcome, so it was shown for ever as one that has not ended, and the newest run was hidden."""
    died = Story(home, "died", "1121-0700-abc", batch="local").submitted(backend="local").begins()
    died.paths.submission.write_text(json.dumps({"backend": "local", "host": os.uname().nodename, "pid": 2**30}))
    completed(home)
    assert [v["state"] for v in json.loads(launcher("status", "died", "abc", "--json").output)] == ["failed", "failed"]

    assert [v["run"] for v in json.loads(launcher("status", "--json").output)] == ["resnet50-1121-0842-k7f"]


def test_a_warning_behind_the_end_opens_no_run(home: Path) -> None:
    """News that a hanging hook did not take is warned of seconds after the outcome: the run has ended all the same."""
    over = completed(home)
    over.wait(8).event("warning", text="a notification could not be sent within 8 s of the end")
    late = over.paths.outcome.stat().st_mtime + 8
    os.utime(over.paths.events, (late, late))
    Story(home, "other", "1121-1200-abc").submitted()

    assert [v["run"] for v in json.loads(launcher("status", "--json").output)] == ["other-1121-1200-abc"]
    assert json.loads(launcher("ls", "--json", "--state", "completed").output)[0]["run"] == "resnet50-1121-0842-k7f"


def test_an_unknown_run_is_one_sentence(home: Path) -> None:
    """Exit code of RunNotFoundError, no traceback."""
    completed(home)
    for verb in ("status", "why", "report", "watch"):
        done = subprocess.run(
            [sys.executable, "-m", "launcher", verb, "nonsense"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr.count("\n")) == (7, 1), done.stderr


def test_why_names_the_cause(home: Path) -> None:
    """The sentence first; the same in JSON with its kind."""
    failed(home)
    value = json.loads(launcher("why", "--json").output)

    assert launcher("why", "m3x").output.startswith("Rank 1 (node1) raised ValueError at step 7: bad label 11.\n")
    assert (value["kind"], value["rank"], value["host"], value["step"]) == ("exception", 1, "node1", 7)


def test_ls_shows_runs_and_sweeps(home: Path) -> None:
    """A line per run, one for a sweep with its points counted; a state can be asked for."""
    completed(home, loss=0.25)
    failed(home)
    sweep(home)
    lines = launcher("ls").output.splitlines()

    assert len(lines) == 3
    assert any(
        line.startswith("lr-1121-1000-swp (sweep)") and "4 points: 1 failed, 3 completed" in line for line in lines
    )
    assert any(line.startswith("resnet50-1121-0842-k7f") and "loss 0.25" in line for line in lines)
    assert {v["run"] for v in json.loads(launcher("ls", "--state", "failed", "--json").output)} == {
        "resnet50-1121-0900-m3x", "resnet50-1121-1000-swp0003",
    }  # fmt: skip


def test_a_sweeps_points_are_sorted_by_a_metric(home: Path) -> None:
    """Lowest loss first, those without the metric last; --highest turns it round."""
    sweep(home)
    lines = launcher("ls", "--sweep", "swp").output.splitlines()
    turned = launcher("ls", "--sweep", "lr-1121-1000-swp", "--metric", "loss", "--highest").output.splitlines()

    assert [line.split()[0][-1] for line in lines] == ["1", "0", "2", "3"]
    assert "params.lr=0.1" in lines[0]
    assert [line.split()[0][-1] for line in turned] == ["2", "0", "1", "3"]


def test_a_sweep_outside_the_index_is_read_by_its_path(home: Path) -> None:
    """Such as one of somebody else's, or where the home cannot be written: watch said that it had no points."""
    (home / "elsewhere").mkdir(parents=True)
    sweep(home / "elsewhere")
    path = str(home / "elsewhere" / "lr-1121-1000-swp")

    assert launcher("ls").output.startswith("no runs found")
    assert len(launcher("ls", "--sweep", path).output.splitlines()) == 4
    assert launcher("watch", path).output.splitlines()[-1].endswith("4 points: 1 failed, 3 completed")


def test_what_a_list_leaves_out_is_shown_by_the_same_command(home: Path) -> None:
    """`ls --all` lists no points: of the command that was typed, --all lists the rest."""
    sweep(home)
    for words in (["--sweep", "swp"], ["--state", "completed"]):
        cut, whole = launcher("ls", "-n", "1", *words).output, launcher("ls", "--all", *words).output
        assert cut.splitlines()[-1] == f"{len(whole.splitlines()) - 1} more; --all lists them"


def test_no_host_of_that_kind_is_told_of_the_runs_that_were_read(home: Path) -> None:
    """Runs beyond --runs may have used the host, and a host that is not suspect was used."""
    completed(home)
    failed(home)

    assert launcher("nodes", "node9", "--runs", "1").output == "no such host in your newest 1 run\n"
    assert launcher("nodes", "--suspect").output == "no suspect host in your newest 2 runs\n"


def test_a_metric_that_no_point_has_is_an_error(home: Path) -> None:
    """It says which there are; before the first metric of all nothing can be told from a name."""
    sweep(home)
    found = CliRunner().invoke(cli, ["ls", "--sweep", "swp", "--metric", "nosuch"])

    assert (found.exit_code, "no point has 'nosuch'; they have loss." in found.output) == (2, True)


def test_a_sweep_is_a_list_however_many_points_it_has(home: Path) -> None:
    """A program that reads `status SWEEP --json` need not know their number; one RUN is an object."""
    folder = home / "one-1121-1000-swq"
    Story(folder, "one-a", "1121-1000-swq0000").submitted()
    (folder / "sweep.json").write_text(json.dumps({"points": [{"run": "one-a-1121-1000-swq0000", "overrides": []}]}))

    assert [one["sweep"] for one in json.loads(launcher("status", "swq", "--json").output)] == [None]
    assert json.loads(launcher("status", "swq0000", "--json").output)["run"] == "one-a-1121-1000-swq0000"


def test_a_damaged_sweep_file_still_lists_its_points(home: Path) -> None:
    """Without sweep.json's list the folders themselves are the points."""
    sweep(home)
    (home / "lr-1121-1000-swp" / "sweep.json").write_text("{")

    assert len(launcher("ls", "--sweep", "swp").output.splitlines()) == 4


def test_report_writes_a_private_page(home: Path) -> None:
    """Into the named file, readable by its owner alone; two runs are compared."""
    completed(home, loss=0.25)
    failed(home)
    launcher("report", "k7f", "-o", "page.html")
    launcher("report", "k7f", "m3x", "-o", "both.html")

    assert Path("page.html").stat().st_mode & 0o777 == 0o600
    assert "<h1>resnet50-1121-0842-k7f" in Path("page.html").read_text()
    assert "2 runs compared" in Path("both.html").read_text()


def test_a_report_of_many_runs_has_a_name_that_fits(home: Path) -> None:
    """Ten runs are named, sixty are counted."""
    names = [f"m{number:02}" for number in range(60)]
    for name in names:
        Story(home, tail=f"1121-0842-{name}").submitted()
    launcher("report", *names[:10])
    launcher("report", *names)

    assert Path(f"compare-{'-'.join(names[:10])}.html").is_file()
    assert Path("compare-m00-and-59-more.html").is_file()


def test_report_shows_what_changed_since_the_previous_run(home: Path) -> None:
    """Against the run of that name submitted just before: neither an older one, nor another name's, nor a later one."""
    runs = {"resnet50-1121-0842-aaa": 0.1, "resnet50-1121-0900-bbb": 0.2, "lm-1121-0930-ccc": 9.0,
            "resnet50-1121-1000-ddd": 0.4, "resnet50-1121-1100-eee": 0.8}  # fmt: skip
    for t, (run, lr) in enumerate(runs.items()):
        name, tail = run.split("-", 1)
        paths = completed(home, name, tail).paths
        paths.job.write_text(f"name: {name}\nparams:\n  lr: {lr}\n")
        os.utime(paths.root, (t, t))
    pages = {}
    for tail in ("ddd", "aaa", "ccc"):
        launcher("report", tail, "-o", "page.html")
        pages[tail] = Path("page.html").read_text()

    assert "Changed since resnet50-1121-0900-bbb:" in pages["ddd"]
    assert re.findall(r'<span class="(?:add|del)">(.*)', pages["ddd"])[-2:] == [
        "-  lr: 0.2</span>",
        "+  lr: 0.4</span>",
    ]
    assert "Changed since" not in pages["aaa"] + pages["ccc"]


def test_status_and_page_tell_cost_and_advice(home: Path) -> None:
    """Two crashes in 90 minutes, saves of 6 s: hours paid for, when best to save and how much warning it takes, reckoned by hand.

    Young/Daly: √(2 · 6 s · 45 min) · (1 + 1/90 + 1/8100) - 6 s = 176 s between saves; 40 s of saving: twice as long a warning.
    """
    bounds = {"min_interval_min": 1, "max_interval_min": 30}
    story = (
        Story(home, gpus_per_node=2, checkpoint=bounds).submitted().begins().round_starts().event("first_step", step=1)
    )
    for step in (1800, 3600, 5400):
        story.wait(1794).event("save_started", step=step).wait(6)
        story.event("saved", step=step, seconds=40, blocked_s=6, reason="interval")
        if step < 5400:
            story.event("worker_failed", rank=1, host="node1", step=step, cause={"kind": "signal", "signal": 9})
            story.round_starts().event("first_step", step=step + 1)
    story.event("attempt_ended", why="done").outcome("completed", "All steps are done.", step=5400, exit_code=0)
    lines = launcher("status", "k7f").output.splitlines()
    value = json.loads(launcher("status", "k7f", "--json").output)
    launcher("report", "k7f", "-o", "page.html")
    page = Path("page.html").read_text()

    assert "  cost     6 GPU-h" in lines
    assert "  advice   save every 3 min; saving needs 80 s of warning" in lines
    assert (value["ledger"]["gpu_hours"], value["advice"]["failures"]) == (pytest.approx(6), 2)
    assert value["advice"]["interval_s"] == pytest.approx(180 * (1 + 1 / 90 + 1 / 8100) - 6)
    for sentence in (
        "A checkpoint pauses training for 6.0 s (median).",
        "With one interruption every 45 min, checkpoints are best 3 min apart (Young/Daly).",
        "Saving before a time limit needs 80 s of warning (restart.signal_lead_s).",
    ):
        assert sentence in page, sentence


WORDS = (["ls"], ["status"], ["status", "aaa", "bbb", "ccc"], ["report", "aaa", "bbb", "-o", "x.html"], ["why", "bbb"])


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
@pytest.mark.parametrize("known", [3, 2])
def test_slurm_is_asked_once_for_all_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], known: int
) -> None:
    """Whatever waits is in one squeue; only what slurmctld has forgotten is in one sacct; runs that are over are in none."""
    for i, tail in enumerate(("aaa", "bbb", "ccc")):
        Story(home, "net", f"1121-0842-{tail}").submitted(job_id=str(101 + i))
    completed(home)
    tools = home.parent / "tools"
    tools.mkdir()
    rows = {"squeue": "".join(squeue_line(str(j), "PENDING", r="Priority") + "\n" for j in range(101, 101 + known)),
            "sacct": "103|103|CANCELLED|0:0|1795311019|Unknown|Unknown|None assigned|None|\n"}  # fmt: skip
    for name, text in rows.items():
        (tools / name).write_text(f"#!/bin/sh\necho {name} \"$@\" >> {tools}/asked\nprintf '%s' '{text}'\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}:/usr/bin:/bin")
    said = launcher(*words).output
    asked = [line.split() for line in (tools / "asked").read_text().splitlines()]
    ids = {"report": ["101", "102"], "why": ["102"]}.get(words[0], ["101", "102", "103"])
    forgotten = ids[known:]

    assert [line[0] for line in asked] == ["squeue", "sacct"][: 2 if forgotten else 1]
    assert [sorted(w[len("--jobs=") :].split(",")) for line in asked for w in line if w.startswith("--jobs=")] == (
        [ids, forgotten] if forgotten else [ids]
    )
    assert words[0] == "report" or "Priority" in said


def test_status_names_the_hosts_that_the_launcher_keeps_a_waiting_job_off(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM's Reason alone does not say who excluded them; the command that gives them back is there to be pasted."""
    story = Story(home, "net", "1121-0842-aaa").submitted(job_id="101").begins(job_id="101").wait(5)
    story.event("excluded", hosts=["node2"], why="it stopped responding").event("requeued", job_id="101", how="requeue")
    tools = home.parent / "tools"
    tools.mkdir()
    row = squeue_line("101", "PENDING", r="BadConstraints")
    (tools / "squeue").write_text(f"#!/bin/sh\necho '{row}'\n")
    (tools / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")

    said = " ".join(launcher("status").output.split())

    assert "the launcher excludes node2 (it stopped responding)" in said
    assert "scontrol update JobId=101 ExcNodeList=" in said


def test_a_picture_that_is_late_is_not_believed_before_slurm(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader was killed 6 s ago and SLURM has put the job on hold: `status` and `why` say that, not "running", and what helps."""
    story = Story(home, "net", "1121-0842-aaa").submitted(job_id="101").begins(job_id="101").wait(5)
    story.state()
    monkeypatch.setattr("time.time", lambda: story.t + 6)
    tools = home.parent / "tools"
    tools.mkdir()
    row = squeue_line("101", "PENDING", r="launch failed requeued held")
    (tools / "squeue").write_text(f"#!/bin/sh\necho '{row}'\n")
    (tools / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")

    assert "pending" in launcher("status").output
    assert "scontrol release 101" in launcher("why", "aaa").output


def on_a_terminal(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command writes to a pseudo-terminal."""
    master, slave = pty.openpty()
    with open(slave, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", terminal)
        main(words)
        terminal.flush()
        seen = os.read(master, 65536).decode()
    os.close(master)
    return seen


@pytest.mark.parametrize("words", [["ls"], ["status", "m3x"], ["why", "m3x"], ["doctor"], ["nodes"]])
def test_no_color_is_obeyed(home: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR switches colours off on a terminal, where they are on; when it is empty it says nothing (no-color.org)."""
    failed(home)
    for value, coloured in (("", True), ("0", False)):
        monkeypatch.setenv("NO_COLOR", value)
        assert ("\x1b" in on_a_terminal(words, monkeypatch)) == coloured


def test_reading_writes_nothing(home: Path) -> None:
    """No verb that reads leaves a trace in a run's directory, nor needs to write there."""
    completed(home, loss=0.25)
    failed(home)

    def stamp() -> dict[str, int]:
        return {str(p): p.stat().st_mtime_ns for p in sorted(home.rglob("*"))}

    before = stamp()
    for words in (["ls"], ["status", "k7f"], ["why", "m3x"], ["watch", "k7f"], ["report", "k7f", "-o", "x.html"]):
        launcher(*words)
    assert stamp() == before


@pytest.mark.parametrize("words", [["ls"], ["status"], ["why"], ["watch"]])
def test_reading_verbs_import_nothing_heavy(home: Path, words: list[str]) -> None:
    """No torch, nor anything else that takes long to import, for a few lines of text."""
    completed(home)
    code = "import sys; from launcher.cli.main import main; main(sys.argv[1:]); print(*{m.partition('.')[0] for m in sys.modules})"
    out = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, check=True
    ).stdout

    assert HEAVY & set(out.splitlines()[-1].split()) == set()


@pytest.mark.quiet
@pytest.mark.parametrize("words", [["ls"], ["status"], ["why"], ["watch", "@last"], ["report", "-o", "x.html"]])
def test_verbs_answer_soon(home: Path, words: list[str]) -> None:
    """On 100 runs 300 ms is the aim. Measured in processor time, three times as much: a busy machine is no fault."""
    for i in range(100):
        completed(home, f"run{i}", f"1121-0842-{i:03x}", loss=0.1)
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "launcher", *words], stdout=subprocess.DEVNULL, check=True, timeout=120)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    assert min(times) < 0.9, times
