"""Facts about sweeps: one array, runs of their own, code written once, quick."""

from __future__ import annotations

import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from an_event import an_event
from planning import facts

from launcher.config.load.load import LoadedJob
from launcher.errors import RunNotFoundError, StateError, SubmitError
from launcher.run import event_lines, files, index
from launcher.run.files import read_lines
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, SiteSpec
from launcher.run.state import read_submission, write_outcome
from launcher.submission import resubmit, submit
from launcher.submission.backends import slurm as slurm_backend
from launcher.submission.facts.facts import CodeFacts, Facts, SlurmFacts
from launcher.submission.resubmit import Again
from launcher.submission.sweeps import submit_sweep
from launcher.submission.sweeps.points import own_runs_of, points_of
from launcher.submission.sweeps.resubmit_points import failed_of, resubmit_points

Make = Callable[..., LoadedJob]

SBATCH = """#!/bin/bash
n=$(cat "$FAKE/calls" 2>/dev/null | wc -l)
echo "$1" >> "$FAKE/calls"
[ -e "$FAKE/fails-at-$n" ] && { echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; }
[ -e "$FAKE/lost-at-$n" ] && { touch -d @1700000000 "$(dirname "$1")"/*.pkl; echo "sbatch: error: Socket timed out" >&2; exit 1; }
echo "Submitted batch job $((100 + n))"
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pretended commands of SLURM; the folder where they write down what they saw."""
    fake = tmp_path / "fake"
    fake.mkdir()
    scancel = '#!/bin/sh\necho "$@" >> "$FAKE/cancelled"\n'
    for name, text in {"sbatch": SBATCH, "srun": "#!/bin/sh\n", "squeue": "#!/bin/sh\n", "scancel": scancel}.items():
        (fake / name).write_text(text)
        (fake / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(fake))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(slurm_backend.time, "sleep", lambda _: None)
    return fake


def _facts(tmp_path: Path, array: int = 1001) -> Facts:
    code = tmp_path / "source"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text("print(1)\n")
    return facts(
        runs_dir=str(tmp_path / "runs"),
        run_id="net-1121-0842-k7f",
        code=CodeFacts(root=str(code), files=(("train.py", 9),)),
        slurm=SlurmFacts(found=True, known=True, site=SiteSpec(), max_array_size=array),
    )


def _sweep(job: Make, **changes: object) -> LoadedJob:
    values: dict[str, object] = {"params.lr": [0.1, 0.01], "params.seed": [1, 2, 3]}
    return job(name="net", args=["--lr", "${params.lr}"], params={"lr": 0.1, "seed": 1}, sweep={**values, **changes})


def test_points_are_runs_of_their_own(job: Make, slurm: Path, tmp_path: Path) -> None:
    """One sbatch for six points; each has its own values, secret and history, and its element's job id."""
    one = submit_sweep.submit_points(_sweep(job), _facts(tmp_path), ["launcher", "submit"])
    points = points_of(one.root)
    specs = [RunSpec.read(p.spec) for p in points]

    assert len((slurm / "calls").read_text().splitlines()) == 1
    assert [s.work.args[1] for s in specs] == ["0.1"] * 3 + ["0.01"] * 3
    assert [s.id for s in specs] == [p.id for p in points]
    assert points[4].id == "net-lr0.01-seed2-" + "-".join(points[4].id.split("-")[-3:])
    assert [read_submission(p.submission)["job_id"] for p in points] == [f"100_{i}" for i in range(6)]
    assert read_submission(points[1].submission)["sweep"] == {
        "id": one.root.name,
        "overrides": ["params.lr=0.1", "params.seed=2"],
    }
    assert len({p.secret.read_text() for p in points}) == 6
    assert [e["type"] for e in read_lines(points[0].events)] == ["submitted"]
    for place, p in enumerate(points):
        with (one.root / "submitit" / f"100_{place}_submitted.pkl").open("rb") as f:
            assert pickle.load(f).function.run_dir == str(p.root)
        assert (one.root / "index-0" / str(place)).resolve() == p.root


def test_each_points_job_file_loads_to_the_point(job: Make, slurm: Path, tmp_path: Path) -> None:
    """job.yaml of a point is the base job with the point's values, without the sweep: it can be submitted again."""
    loaded = _sweep(job)
    one = submit_sweep.submit_points(loaded, _facts(tmp_path), [])
    again = [yaml.safe_load(p.job.read_text()) for p in points_of(one.root)]
    base = {key: value for key, value in loaded.container.items() if key != "sweep"}

    assert [a["params"] for a in again] == [{"lr": lr, "seed": seed} for lr in (0.1, 0.01) for seed in (1, 2, 3)]
    assert all({**a, "params": base["params"], "name": "net"} == base for a in again)


def test_code_and_launcher_are_written_once(job: Make, slurm: Path, tmp_path: Path) -> None:
    """Points link to the sweep's copy; the script that sbatch got is each point's submit.sbatch."""
    one = submit_sweep.submit_points(_sweep(job), _facts(tmp_path), [])
    point = points_of(one.root)[3]

    assert (point.code.resolve(), point.lib.resolve()) == (one.root / "code", one.root / "lib")
    assert (point.code / "train.py").read_text() == "print(1)\n"
    assert point.sbatch.read_text() == (one.root / "submitit" / "100_submission.sh").read_text()
    assert "#SBATCH --array=0-5%6" in point.sbatch.read_text()


def test_teardown_finds_the_elements_run(job: Make, slurm: Path, tmp_path: Path) -> None:
    """In the array's script the teardown's run folder is the element's, whatever the path holds."""
    one = (
        submit_sweep.submit_points(_sweep(job), _facts(tmp_path / "a b'c"), [])
        if (tmp_path / "a b'c").mkdir() is None
        else None
    )
    assert one is not None
    line = next(x for x in points_of(one.root)[0].sbatch.read_text().splitlines() if "allocation.teardown" in x)
    word = line.partition("launcher.node.allocation.teardown ")[2].removesuffix(' "$status"')
    done = subprocess.run(
        ["bash", "-c", f"readlink -f {word}"], env={**os.environ, "SLURM_ARRAY_TASK_ID": "4"}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip

    assert done.stdout.strip() == str(points_of(one.root)[4].root)


def test_parallelism_is_the_arrays(job: Make, slurm: Path, tmp_path: Path) -> None:
    """array_parallelism limits how many run at once."""
    one = submit_sweep.submit_points(_sweep(job, array_parallelism=2), _facts(tmp_path), [])

    assert "#SBATCH --array=0-5%2" in (one.root / "submit-0.sbatch").read_text()


def test_a_sweep_above_the_sites_limit_becomes_several_arrays(job: Make, slurm: Path, tmp_path: Path) -> None:
    """MaxArraySize 4: two arrays, every point once."""
    one = submit_sweep.submit_points(_sweep(job), _facts(tmp_path, array=4), [])

    assert one.arrays == ("100", "101")
    assert [read_submission(p.submission)["job_id"] for p in points_of(one.root)] == [
        "100_0", "100_1", "100_2", "100_3", "101_0", "101_1",
    ]  # fmt: skip
    assert (one.root / "index-1" / "1").resolve() == points_of(one.root)[5].root


def test_when_the_second_array_is_refused_the_first_is_taken_back(job: Make, slurm: Path, tmp_path: Path) -> None:
    """All or nothing: the first array is cancelled and nothing is left on disk."""
    (slurm / "fails-at-1").touch()
    with pytest.raises(SubmitError, match="QOSMaxSubmitJobPerUserLimit"):
        submit_sweep.submit_points(_sweep(job), _facts(tmp_path, array=4), [])

    assert (slurm / "cancelled").read_text() == "100\n"
    assert list((tmp_path / "runs").iterdir()) == []


def _trained_by(one: submit_sweep.SubmittedSweep) -> list[str]:
    """The run that the job of each point trains: what its element's pickle holds."""
    found = []
    for p in points_of(one.root):
        job_id = read_submission(p.submission)["job_id"]
        found.append(pickle.loads((one.root / "submitit" / f"{job_id}_submitted.pkl").read_bytes()).function.run_dir)
    return found


def test_a_sweep_whose_answer_was_lost_trains_each_points_own_run(job: Make, slurm: Path, tmp_path: Path) -> None:
    """sbatch timed out, and the file system gave all pickles one time: each element still gets the pickle of its own point."""
    (slurm / "lost-at-0").touch()
    (slurm / "squeue").write_text("#!/bin/sh\necho 77\n")
    one = submit_sweep.submit_points(_sweep(job), _facts(tmp_path), [])

    assert one.arrays == ("77",)
    assert _trained_by(one) == [str(p.root) for p in points_of(one.root)]


@pytest.mark.parametrize("taken", [True, False], ids=["slurm took it", "slurm has not taken it"])
def test_a_second_array_whose_answer_was_lost_is_not_taken_for_the_first(
    job: Make, slurm: Path, tmp_path: Path, *, taken: bool
) -> None:
    """Both arrays have the sweep's name. The one that is not known yet is adopted; where there is none, nothing is left queued."""
    (slurm / "lost-at-1").touch()
    (slurm / "squeue").write_text(f"#!/bin/sh\necho 100\necho 100\n{'echo 77' if taken else ''}\n")
    if not taken:
        with pytest.raises(SubmitError, match="Socket timed out"):
            submit_sweep.submit_points(_sweep(job), _facts(tmp_path, array=4), [])
        assert (slurm / "cancelled").read_text() == "100\n"
        return
    one = submit_sweep.submit_points(_sweep(job), _facts(tmp_path, array=4), [])

    assert one.arrays == ("100", "77")
    assert _trained_by(one) == [str(p.root) for p in points_of(one.root)]


def test_sweeps_and_points_are_found_by_name(job: Make, slurm: Path, tmp_path: Path) -> None:
    """The sweep by its ending means all points, a point by its own ending means itself."""
    one = submit_sweep.submit_points(_sweep(job), _facts(tmp_path), [])

    assert [p.id for p in own_runs_of("k7f")] == [p.id for p in points_of(one.root)]
    assert index.resolve("k7f002") == points_of(one.root)[2].root
    with pytest.raises(RunNotFoundError):
        index.resolve("k7f009")


@pytest.mark.parametrize("refused", [False, True])
def test_points_are_submitted_again_as_one_array(
    job: Make, slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """Their script is private, their passed variables are on disk before SLURM has them; a refusal leaves all as it was."""
    one = submit_sweep.submit_points(_sweep(job), _facts(tmp_path), [])
    points = points_of(one.root)[:2]
    for p in points:
        write_outcome(p.outcome, {"state": "failed"})
    if refused:
        (slurm / "fails-at-1").touch()
    monkeypatch.setattr(resubmit.Resubmission, "facts", lambda *_: _facts(tmp_path))
    synced: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(files.os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    before = {p.id: sorted((f.name, f.is_symlink() and os.readlink(f)) for f in p.root.iterdir()) for p in points}

    if refused:
        with pytest.raises(SubmitError, match="QOSMaxSubmitJobPerUserLimit"):
            resubmit_points(one.root, points, Again())
    else:
        assert [a.job_id for a in resubmit_points(one.root, points, Again())] == ["101"]

    again = one.root / "again-1"
    after = {p.id: sorted((f.name, f.is_symlink() and os.readlink(f)) for f in p.root.iterdir()) for p in points}
    assert len([name for name in synced if f"/.{points[0].passed.name}." in name]) == 2
    assert again.exists() is not refused
    assert (before == after) is refused
    assert [p.outcome.exists() for p in points] == [refused] * 2
    assert refused or stat.S_IMODE((again / "submit.sbatch").stat().st_mode) == 0o600
    assert [e["type"] for e in read_lines(points[0].events)][1:] == ["submitted", *(["warning"] if refused else [])]


def test_no_array_is_left_of_a_resubmission_that_was_killed_once_slurm_had_it(
    job: Make, slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows that array's id: the next resubmission cancels it by its name, but not one to which a point leads."""
    one = submit_sweep.submit_points(_sweep(job), _facts(tmp_path), [])
    points = points_of(one.root)[:2]
    monkeypatch.setattr(resubmit.Resubmission, "facts", lambda *_: _facts(tmp_path))
    for killed in (False, True):
        for p in points:
            write_outcome(p.outcome, {"state": "failed"})
        if not killed:
            resubmit_points(one.root, points, Again())
        elif (pid := os.fork()) == 0:
            try:
                monkeypatch.setattr(submit, "record", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
                resubmit_points(one.root, points, Again())
            finally:
                os._exit(1)
        else:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert not (slurm / "cancelled").exists()
    resubmit_points(one.root, points, Again())

    assert (slurm / "cancelled").read_text() == f"--user={os.getuid()} --name={one.root.name}-again-2\n"


def test_each_point_whose_checkpoints_are_gone_is_named(
    job: Make, slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array has one plan that is printed: it has the warnings of every point."""
    one = submit_sweep.submit_points(_sweep(job), _facts(tmp_path), [])
    points = points_of(one.root)[:2]
    event_lines.append(points[1].events, an_event("saved", attempt=0, step=20))
    for p in points:
        write_outcome(p.outcome, {"state": "failed"})
    monkeypatch.setattr(resubmit.Resubmission, "facts", lambda *_: _facts(tmp_path))
    (array,) = resubmit_points(one.root, points, Again())

    assert [w.partition(":")[0] for w in array.plan.warnings if "saved" in w] == [
        f"{points[1].id} saved step 20, but no checkpoint is in {points[1].checkpoints}"
    ]


def test_a_completed_point_whose_outcome_is_not_seen_yet_is_not_submitted_again(
    job: Make, slurm: Path, tmp_path: Path
) -> None:
    """NFS shows a new file late: its history tells how it ended. A point without a last word was killed, so it failed."""
    root = submit_sweep.submit_points(_sweep(job), _facts(tmp_path), ["launcher", "submit"]).root
    done, failed, cancelled, *killed = points_of(root)
    for paths, state in ((done, "completed"), (failed, "failed"), (cancelled, "cancelled")):
        event_lines.append(paths.events, an_event("ended", attempt=0, state=state, reason="It ended.", exit_code=0))

    assert failed_of(points_of(root)) == [failed, *killed]


def test_a_sweep_needs_slurm(job: Make, slurm: Path, tmp_path: Path) -> None:
    """Here there is no array: a sentence, and nothing on disk."""
    with pytest.raises(StateError, match="a sweep needs SLURM"):
        submit_sweep.submit_points(_sweep(job), replace(_facts(tmp_path), backend="local"), [])

    assert not (tmp_path / "runs").exists()


@pytest.mark.quiet
def test_a_thousand_points_take_seconds(job: Make, slurm: Path, tmp_path: Path) -> None:
    """1,000 points, one sbatch, under 3 s of work (limit here three times that)."""
    loaded = job(name="net", params={"seed": 0}, sweep={"params.seed": "range(1000)"})
    begun = time.process_time()  # of this process: other load on the machine does not count
    one = submit_sweep.submit_points(loaded, _facts(tmp_path), [])
    seconds = time.process_time() - begun
    print(f"1,000 points: {seconds:.2f} s of CPU", file=sys.stderr)

    assert len((slurm / "calls").read_text().splitlines()) == 1
    assert len(json.loads((one.root / "sweep.json").read_text())["points"]) == 1000
    assert RunPaths(points_of(one.root)[999].root).submission.exists()
    assert seconds < 9.0
