"""Facts about estimates: what sbatch --test-only says is read, and the first to finish comes first."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from planning import facts

from launcher.cli.main import main
from launcher.config.load.load import LoadedJob
from launcher.run import index, rehearsals
from launcher.run.paths import RunPaths
from launcher.submission.plan import estimate
from launcher.submission.plan.plan import plan

SAYS = "sbatch: Job 3 to start at {} using 8 processors on nodes node[1-4] in partition main\n"


@pytest.mark.parametrize(("when", "t"), [("1795310000", 1795310000.0), ("2026-11-22T02:00:00", None)])
def test_the_start_is_read(when: str, t: float | None) -> None:
    """Epoch seconds (SLURM_TIME_FORMAT=%s) or a local time."""
    found = estimate.parse_start(SAYS.format(when))

    assert found is not None
    assert t is None or found == t


def test_a_refusal_has_no_start() -> None:
    """allocation failure: Requested node configuration is not available."""
    assert estimate.parse_start("allocation failure: Requested node configuration is not available") is None


def test_the_first_to_finish_comes_first() -> None:
    """A later start on more ranks may finish earlier; what never starts is last."""
    few = estimate.Estimate("main", 1, 4, 1000.0, "", 4000.0)
    many = estimate.Estimate("main", 4, 16, 2000.0, "", 1000.0)
    never = estimate.Estimate("main", 9, 36, None, "too many", 400.0)

    assert estimate.order([never, few, many]) == [many, few, never]


def test_speed_scales_with_ranks() -> None:
    """Twice the ranks, half the time: perfect scaling, as the table says."""
    speed = estimate.Speed("r", steps_per_s=2.0, ranks=4, total_steps=800)

    assert (speed.seconds(4), speed.seconds(8)) == (400.0, 200.0)


def test_the_speed_at_that_number_of_ranks_counts_else_the_nearest() -> None:
    """Four ranks were measured themselves; six are reckoned from eight, one from four."""
    four, eight = (estimate.Speed(f"r{n}", 1.0, n, 100) for n in (4, 8))

    assert [estimate.nearest_speed([eight, four], n) for n in (4, 6, 8, 1)] == [four, eight, eight, four]
    assert estimate.nearest_speed([], 4) is None


def test_a_rehearsal_on_real_nodes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One on this machine says nothing of a cluster's speed; the newest of the others does."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    for real, rate in ((True, 1.0), (True, 2.0), (False, 3.0)):
        rehearsals.note_rehearsal("net", real=real, ranks=2, steps_per_s=rate, total_steps=100, save_s=None)

    assert estimate.measured_speeds("net") == [estimate.Speed("a rehearsal", 2.0, 2, 100)]


def test_the_newest_run_that_measured_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of other jobs, and runs without a speed, are passed over."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    states = {"net-1120-0842-aaa": 1.0, "net-1121-0842-bbb": 2.0, "net-1122-0842-ccc": None, "lm-1122-0842-ddd": 9.0}
    for t, (run_id, rate) in enumerate(states.items()):
        paths = RunPaths(tmp_path / "runs" / run_id)
        paths.root.mkdir(parents=True)
        paths.spec.write_text("{}")
        paths.state.write_text(json.dumps({"rate": rate, "world_size": 4, "total_steps": 100}))
        index.register(paths.root)
        os.utime(index.links_dir() / run_id, (t, t), follow_symlinks=False)

    (found,) = estimate.measured_speeds("net")
    assert (found.run_id, found.steps_per_s) == ("net-1121-0842-bbb", 2.0)
    assert estimate.measured_speeds("other") == []


def test_the_script_that_is_tested_is_the_plans(
    job: Callable[..., LoadedJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch --test-only reads exactly what would be submitted, with the variables of then; nothing of it is left."""
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    said = SAYS.format(1795310000).strip()
    (tmp_path / "sbatch").write_text(
        f'#!/bin/sh\n[ -z "$SBATCH_TIMELIMIT" ] || exit 1\ncp "$2" {tmp_path}/seen; echo "$2" > {tmp_path}/where\necho "{said}" >&2\n'
    )
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    made = plan(job(), facts())

    assert estimate.ask_start(made) == (1795310000.0, "")
    assert (tmp_path / "seen").read_text() == made.sbatch
    assert not Path((tmp_path / "where").read_text().strip()).exists()


STARTS = {("idle", 1): 0, ("idle", 2): 600, ("idle", 4): 1800, ("busy", 1): 1000, ("busy", 2): 1100}
SBATCH = """\
#!/bin/bash
value() {{ sed -n "s/^#SBATCH --$1=//p" "$script"; }}
for script; do :; done
case "$(value partition) $(value nodes)" in
{cases}
*) echo "allocation failure: Requested node configuration is not available" >&2; exit 1;;
esac
"""


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, and a SLURM whose sbatch --test-only starts jobs by `STARTS`, in seconds after 2e9."""
    cases = [f'"{p} {n}") echo "{SAYS.format(2_000_000_000 + s).strip()}" >&2;;' for (p, n), s in STARTS.items()]
    commands = {"sbatch": SBATCH.format(cases="\n".join(cases))}
    for name in ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo"):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(commands.get(name, "#!/bin/sh\n"))
        path.chmod(0o755)
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    for name in ("LAUNCHER_SITE", "XDG_CONFIG_HOME", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path


@pytest.mark.torch
def test_measured_speeds_decide_what_finishes_first(login: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run on two ranks and a rehearsal on four: run times by the nearest of them, the first to end first, starts aside."""
    run = RunPaths(login / "runs" / "train-1121-0842-bbb")
    run.root.mkdir(parents=True)
    run.state.write_text(json.dumps({"rate": 0.1, "world_size": 2, "total_steps": 100}))
    rehearsals.note_rehearsal("train", real=True, ranks=4, steps_per_s=0.4, total_steps=100, save_s=None)
    words = [
        "plan",
        "train.py",
        "resources.tasks_per_node=1",
        "--estimate",
        "--nodes",
        "1,2,4",
        "--partitions",
        "idle,busy",
    ]

    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(e["partition"], e["nodes"], e["run_s"], e["scaled"]) for e in found] == [
        ("idle", 2, 1000, False), ("idle", 1, 2000, True), ("idle", 4, 250, False),
        ("busy", 2, 1000, False), ("busy", 1, 2000, True), ("busy", 4, 250, False),
    ]  # fmt: skip
    assert [e["end_t"] and e["end_t"] - 2e9 for e in found] == [1600, 2000, 2050, 2100, 3000, None]
    assert found[-1]["why"] == "allocation failure: Requested node configuration is not available"

    assert main(words) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in table[1:3]] == [["idle", "2", "2"], ["idle", "1", "1"]]
    assert " 17 min " in table[1]
    assert " ~33 min " in table[2]
    assert "never: allocation failure" in table[6]
    assert table[7] == (
        "speed from a rehearsal, train-1121-0842-bbb; ~ assumes perfect scaling from another number of ranks"
    )
