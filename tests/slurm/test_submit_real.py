"""Facts about submitting to a real SLURM: what sbatch understood, arrays, chains, cancelling and submitting again."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from login import LIMIT_S, Login

from launcher.config.load.load import load_job
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome
from launcher.slurm.environ import environment_for_sbatch
from launcher.submission.sweeps.points import points_of

pytestmark = pytest.mark.slurm
HOSTILE = "a; $(touch pwned) `id` \"q\" 'p' \\ # ü"


def _state(paths: RunPaths) -> str:
    return str((read_outcome(paths.outcome) or {}).get("state"))


def test_sbatch_reads_every_value_as_it_was_meant(place: Login) -> None:
    """A hostile comment reaches SLURM to the letter, and nothing in it is run; the job completes on two hosts."""
    job = {"name": "plain", "script": "train.py", "args": ["a  b", "$HOME"], "preflight": False,
           "resources": {"nodes": 2, "timeout_min": 5}, "slurm": {"comment": HOSTILE}}  # fmt: skip
    (place.folder / "job.yaml").write_text(json.dumps(job))
    place.launcher("submit", "job.yaml", "--wait")
    paths = place.run("plain")
    shown = place.cluster.run(["scontrol", "show", "job", place.job_id(paths)]).stdout

    assert f"Comment={HOSTILE}" in shown
    assert f"JobName={paths.id}" in shown
    assert _state(paths) == "completed"
    assert paths.sbatch.read_text() == (paths.submitit / f"{place.job_id(paths)}_submission.sh").read_text()
    assert "said ['a  b', '$HOME']" in place.launcher("logs", paths.id).stdout
    assert not list(place.folder.rglob("pwned"))


@pytest.mark.long
def test_a_sweep_is_one_array_whose_elements_are_runs(place: Login) -> None:
    """Three points: one array job, each completes with its own value, and one can be submitted again by itself."""
    words = ["train.py", "params.lr=0.1", "preflight=false", "resources.timeout_min=5", "args=['${params.lr}']"]
    place.launcher("submit", *words, "--sweep", "params.lr=0.1,0.2,0.3", "--wait")
    sweep = place.run("train").root
    points = points_of(sweep)

    assert len({place.job_id(p).partition("_")[0] for p in points}) == 1
    assert [_state(p) for p in points] == ["completed"] * 3
    said = [place.launcher("logs", p.id).stdout.strip() for p in points]
    assert said == ["said ['0.1']", "said ['0.2']", "said ['0.3']"]
    place.launcher("resubmit", points[1].id, "params.lr=0.7", "--wait")
    assert "said ['0.7']" in place.launcher("logs", points[1].id).stdout
    assert "_" not in place.job_id(points[1])


def test_a_first_job_is_what_slurm_says_is_here(place: Login) -> None:
    """`launcher init` names the default partition, a node's GPUs and CPUs and the limit that SLURM says; plan asks for that."""
    place.cluster.set(**{"batch.MaxTime": 40})
    row = place.cluster.run(["sinfo", "--noheader", "--partition=batch", "--format=%P|%c|%G|%l"]).stdout.split()
    said = place.launcher("init")
    job = load_job(place.folder / "job.yaml", sites=[]).job
    planned = json.loads(place.launcher("plan", "job.yaml", "--json").stdout)["sbatch"]

    assert row == ["batch*|8|gpu:4|40:00"]
    assert (said.stderr, job.script, job.slurm.partition) == ("", "train.py", "batch")
    assert (job.resources.gpus_per_node, job.resources.cpus_per_task, job.resources.timeout_min) == (4, 2, 40)
    assert "other partitions: high (4 GPUs a node)" in (place.folder / "job.yaml").read_text()
    for line in ("--partition=batch", "--gpus-per-node=4", "--time=40"):
        assert f"#SBATCH {line}\n" in planned


def test_a_refusal_leaves_nothing(place: Login) -> None:
    """A partition that is not there: SLURM's words, exit code 6, no folder."""
    done = place.launcher("submit", "train.py", "slurm.partition=nowhere", ok=False)

    assert done.returncode == 6
    assert "invalid partition" in done.stderr.lower()
    assert not list(place.runs.glob("*"))


def test_a_site_that_refuses_long_jobs(place: Login) -> None:
    """EnforcePartLimits=ALL: SLURM's words, exit code 6, no folder; within the limit it is taken."""
    place.cluster.set(EnforcePartLimits="ALL", **{"batch.MaxTime": 5})
    done = place.launcher("submit", "train.py", "resources.timeout_min=30", ok=False)

    assert done.returncode == 6
    assert "time limit" in done.stderr.lower()
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(place.runs.glob("*"))
    place.launcher("submit", "train.py", "resources.timeout_min=5", "--wait")


def test_a_lost_answer_is_found_again(place: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch's answer is lost after SLURM has taken the job: it is found by name, and runs."""
    fake = place.folder / "bin"
    fake.mkdir()
    (fake / "sbatch").write_text(
        '#!/bin/sh\n/usr/bin/sbatch "$@" >/dev/null\necho "sbatch: error: Socket timed out" >&2\nexit 1\n'
    )
    (fake / "sbatch").chmod(0o755)
    monkeypatch.setitem(place.cluster.env, "PATH", f"{fake}:{place.cluster.env['PATH']}")
    place.launcher("submit", "train.py", "preflight=false", "resources.timeout_min=5", "--wait")
    paths = place.run("train")

    assert _state(paths) == "completed"
    assert place.cluster.job(place.job_id(paths))["JobName"] == paths.id


def test_an_id_that_slurm_gave_away_again_is_not_the_runs(place: Login) -> None:
    """SLURM lost the job and its id is another job's: status says so, cancel leaves that job alone."""
    place.launcher("submit", "train.py", "preflight=false", "resources.timeout_min=5", "slurm.extra.begin=now+1hour")
    paths = place.run("train")
    before = json.loads(place.launcher("status", paths.id, "--json").stdout)
    place.cluster.run(["scancel", place.job_id(paths)])
    other = place.cluster.sbatch("--begin=now+1hour", wrap="true")
    said = json.loads(paths.submission.read_text())
    paths.submission.write_text(json.dumps({**said, "job_id": other, "submitted_t": said["submitted_t"] - 100}))
    events = [json.loads(line) for line in paths.events.read_text().splitlines()]
    paths.events.write_text("".join(json.dumps({**one, "t": one["t"] - 100}) + "\n" for one in events))
    after = json.loads(place.launcher("status", paths.id, "--json").stdout)

    assert (before["state"], before["reason"]) == ("pending", "BeginTime")
    assert (after["state"], after["reason"]) == ("failed", "SLURM no longer knows this job.")
    assert place.launcher("cancel", paths.id).stdout == f"{paths.id} is not running any more\n"
    assert place.cluster.job(other)["JobState"] == "PENDING"


def test_what_cannot_fit_is_refused_by_the_plan(place: Login) -> None:
    """Five nodes on four: an error before the queue, with the partition's name."""
    done = place.launcher("plan", "train.py", "resources.nodes=5", ok=False)

    assert done.returncode == 3
    assert "the job asks for 5 nodes (spares included)" in done.stderr


def test_submitting_from_inside_a_job_leaks_nothing(cluster: Cluster) -> None:
    """The environment for sbatch inside an allocation holds no SLURM_* but SLURM_CONF."""
    done = cluster.run(["srun", "-N1", "env", "-0"])
    inside = dict(entry.partition("=")[::2] for entry in done.stdout.split("\0") if "=" in entry)
    assert "SLURM_JOB_ID" in inside
    kept = environment_for_sbatch(inside, {})

    assert [name for name in kept if name.startswith("SLURM_")] == ["SLURM_CONF"]
    assert kept["PATH"] == os.environ.get("PATH") or kept["PATH"]


SEEN = """
import json, os, pathlib, sys, time
names = ("RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "NOTE", "PASSED")
folder = pathlib.Path(sys.argv[1])
seen = {"host": os.uname().nodename, "argv": sys.argv[2:], **{name: os.environ.get(name) for name in names}}
(folder / ("." + seen["RANK"])).write_text(json.dumps(seen))
(folder / ("." + seen["RANK"])).rename(folder / seen["RANK"])
while not (folder / "go").exists():
    time.sleep(0.05)
"""


def _seen(place: Login, folder: Path, ranks: int) -> list[dict[str, Any]]:
    """What each rank of a job that runs SEEN has found, in the order of ranks."""
    files = [folder / str(rank) for rank in range(ranks)]
    place.cluster.wait(lambda: all(f.exists() for f in files), f"{ranks} ranks", limit_s=LIMIT_S)
    return [json.loads(f.read_text()) for f in files]


def test_what_is_asked_of_slurm_is_what_the_job_gets(place: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts named out of order, GPUs within SLURM's mask beside another job's, memory, extra options, hostile values."""
    (place.folder / "seen.py").write_text(SEEN)
    monkeypatch.setitem(place.cluster.env, "PASSED", HOSTILE)
    texts = [HOSTILE, "two\nlines", "", "ü\u2028\u202e", "-- --wrap=x", "%j \\n", "x" * 20_000]
    gpus = {"gpus_per_node": 2, "cpus_per_task": 1, "mem_gb": 0.5, "timeout_min": 5}
    ids = []
    for name, nodes, hosts in (("first", 2, "node3,node2"), ("second", 1, "node2")):
        (place.folder / name).mkdir()
        job = {"name": name, "script": "seen.py", "args": [str(place.folder / name), *texts], "preflight": False,
               "resources": {**gpus, "nodes": nodes}, "environment": {"variables": {"NOTE": HOSTILE}, "pass": ["PASSED"]},
               "slurm": {"nodelist": hosts, "extra": {"nice": 7}}}  # fmt: skip
        (place.folder / f"{name}.json").write_text(json.dumps(job))
        place.launcher("submit", f"{name}.json")
        ids.append(place.job_id(place.run(name)))
    first, second = _seen(place, place.folder / "first", 4), _seen(place, place.folder / "second", 2)
    shown = place.cluster.run(["scontrol", "show", "job", ids[0]]).stdout
    for name in ("first", "second"):
        (place.folder / name / "go").touch()
    place.cluster.wait_job(ids[0], "COMPLETED", limit_s=LIMIT_S)

    assert [one["host"] for one in first] == ["node2", "node2", "node3", "node3"]
    assert {one["MASTER_ADDR"] for one in first} == {"node2"}
    assert [one["LOCAL_RANK"] for one in first] == ["0", "1", "0", "1"]
    masks = [first[0]["CUDA_VISIBLE_DEVICES"], second[0]["CUDA_VISIBLE_DEVICES"]]
    assert sorted(",".join(masks).split(",")) == ["0", "1", "2", "3"]
    assert {one["CUDA_VISIBLE_DEVICES"] for one in first[:2]} == {masks[0]}
    assert all(one["argv"] == texts for one in first)
    assert {(one["NOTE"], one["PASSED"]) for one in [*first, *second]} == {(HOSTILE, HOSTILE)}
    for said in ("NumNodes=2", "MinMemoryNode=512M", "TresPerNode=gres[:/]gpu:2", "Nice=7", "Requeue=1"):
        assert re.search(said, shown), shown
