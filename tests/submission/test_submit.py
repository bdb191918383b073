"""Facts about handing a run over: to a pretended SLURM's commands, and to submitit's real local executor."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from an_event import an_event
from planning import facts
from squeue import squeue_line

from launcher.config.load.load import LoadedJob
from launcher.errors import CheckpointError, ConfigError, RunDirError, StateError, SubmitError
from launcher.run import event_lines, index, processes
from launcher.run.files import read_lines
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import forget_passed, read_outcome, read_submission, write_outcome
from launcher.slurm.environ import environment_for_sbatch
from launcher.submission import resubmit, submit
from launcher.submission.backends import local as local_backend
from launcher.submission.facts import code_files, gather
from launcher.submission.facts.facts import CodeFacts, Facts, Interpreter
from launcher.submission.folder import make_folder, snapshot
from launcher.submission.folder.run_folder import write_own
from launcher.submission.liveness import locate
from launcher.submission.plan.plan import plan
from launcher.submission.plan.submission_plan import SubmissionPlan

Make = Callable[..., LoadedJob]
WAIT_S = 120.0


def _facts(home: Path, **changes: object) -> Facts:
    code = home / "source"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text("print(1)\n")
    here = facts(runs_dir=str(home / "runs"), code=CodeFacts(root=str(code), files=(("train.py", 9),)), **changes)
    return replace(here, interpreter=replace(here.interpreter, path=sys.executable))


def _seen(here: Facts) -> Facts:
    """With the code as it lies there now."""
    return replace(here, code=replace(here.code, files=code_files.listing(Path(here.code.root)).files))


def _submit(loaded: LoadedJob, here: Facts) -> submit.Submitted:
    return submit.submit_run(lambda now: plan(loaded, now), here, argv=["launcher", "submit"])


def test_what_was_printed_is_what_sbatch_got(job: Make, slurm: Path, home: Path) -> None:
    """The script that sbatch read, the run's submit.sbatch and the plan's text are the same."""
    one = _submit(job(resources={"nodes": 2}, environment={"setup": ["module load x"]}), _facts(home))

    assert one.job_id == "42"
    assert (slurm / "script").read_text() == one.plan.sbatch == one.paths.sbatch.read_text()


def test_a_submitted_run_has_everything_nodes_read(
    job: Make, slurm: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec, job, code, lib, secret, passed values, history and pickle are there, private, and found by name."""
    monkeypatch.setenv("WANDB_API_KEY", "hunter2hunter2")
    one = _submit(job(environment={"pass": ["WANDB_API_KEY"]}), _facts(home))
    paths = one.paths

    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert RunSpec.read(paths.spec) == one.plan.spec
    assert (paths.code / "train.py").read_text() == "print(1)\n"
    assert (paths.lib / "launcher" / "node" / "agent" / "entry.py").is_file()
    assert (mode(paths.root), mode(paths.secret), mode(paths.passed)) == (0o700, 0o600, 0o600)
    assert len(paths.secret.read_text().strip()) == 64
    assert json.loads(paths.passed.read_text()) == {"WANDB_API_KEY": "hunter2hunter2"}
    assert [e["type"] for e in read_lines(paths.events)] == ["submitted"]
    for key in (
        "nodes",
        "spare_nodes",
        "tasks_per_node",
        "gpus_per_node",
        "cpus_per_task",
    ):  # of which its hours are told
        assert read_lines(paths.events)[0][key] == getattr(one.plan.spec, key)
    assert read_submission(paths.submission)["job_id"] == "42"
    with (paths.submitit / "42_submitted.pkl").open("rb") as f:
        assert pickle.load(f).function.run_dir == str(paths.root)
    assert index.resolve("@last") == paths.root
    told = [p for p in paths.root.rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()]
    assert told == [paths.passed]


def test_sbatch_sees_a_clean_environment(job: Make, slurm: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No outer SLURM_* but SLURM_CONF, no outer ranks, no passed value, no SBATCH_* that would override the script."""
    for name in (
        "SLURM_CPU_BIND",
        "SLURM_JOB_ID",
        "RANK",
        "MASTER_ADDR",
        "LAUNCHER_RUN_DIR",
        "WANDB_API_KEY",
        "SBATCH_TIMELIMIT",
    ):
        monkeypatch.setenv(name, "leaked")
    monkeypatch.setenv("SBATCH_PARTITION", "theirs")
    monkeypatch.setenv("SBATCH_QOS", "theirs")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    _submit(job(environment={"pass": ["WANDB_API_KEY"]}, slurm={"partition": "ours"}), _facts(home))
    seen = dict(line.partition("=")[::2] for line in (slurm / "environment").read_text().splitlines())

    assert "leaked" not in seen.values()
    assert seen["SLURM_CONF"] == "/etc/slurm.conf"
    assert "SBATCH_PARTITION" not in seen
    assert seen["SBATCH_QOS"] == "theirs"  # the script says nothing of it
    assert os.environ["SLURM_JOB_ID"] == "leaked"  # this process's own environment is as it was


def test_a_refusal_is_one_sentence_and_leaves_nothing(
    job: Make, slurm: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """sbatch's words reach the user without its prefixes; no folder, no link, nothing on the screen."""
    (slurm / "says").write_text(
        "sbatch: error: Batch job submission failed: Invalid account or account/partition combination\n"
    )
    with pytest.raises(SubmitError, match=r"^sbatch refused the job: Batch job submission failed: Invalid account"):
        _submit(job(), _facts(home))

    assert list((home / "runs").iterdir()) == []
    assert index.list_runs() == []
    assert capfd.readouterr() == ("", "")


def test_a_lost_answer_is_reconciled_by_name(job: Make, slurm: Path, home: Path) -> None:
    """sbatch timed out but the job is in the queue: it is adopted, pickle included, and not submitted twice."""
    (slurm / "says").write_text("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n")
    (slurm / "queue").write_text("77\n")
    one = _submit(job(), _facts(home))

    assert one.job_id == "77"
    assert (one.paths.submitit / "77_submitted.pkl").is_file()
    assert f"--name={one.plan.spec.id}" in (slurm / "asked").read_text()
    assert (slurm / "calls").read_text() == "x\n"


def test_a_lost_answer_without_a_job_is_a_failure(job: Make, slurm: Path, home: Path) -> None:
    """sbatch timed out and nothing is in the queue: an error, nothing left."""
    (slurm / "says").write_text("sbatch: error: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(SubmitError, match="Unable to contact slurm controller"):
        _submit(job(), _facts(home))

    assert list((home / "runs").iterdir()) == []


def test_an_answer_that_cannot_be_read_is_reconciled_by_name(job: Make, slurm: Path, home: Path) -> None:
    """sbatch succeeded with words that name no job: the job is found in the queue, not called refused."""
    (slurm / "answers").write_text("something else entirely\n")
    (slurm / "queue").write_text("77\n")

    assert _submit(job(), _facts(home)).job_id == "77"


@pytest.mark.parametrize("queue", ["77\n", ""], ids=["SLURM has it", "SLURM has nothing"])
def test_a_disk_that_fills_up_as_slurm_takes_the_job_loses_none(job: Make, slurm: Path, home: Path, queue: str) -> None:
    """submitit cannot write its files beside the job's: the job is found and kept; where there is none, sbatch is not blamed."""
    (slurm / "sbatch").write_text('#!/bin/bash\nmkdir -p "${1%/*}/77_submission.sh/x"\necho "Submitted batch job 77"\n')
    (slurm / "queue").write_text(queue)
    if queue:
        one = _submit(job(), _facts(home))
        assert one.job_id == "77"
        assert (one.paths.submitit / "77_submitted.pkl").is_file()
    else:
        with pytest.raises(SubmitError, match=r"^the job was not submitted: .*77_submission\.sh"):
            _submit(job(), _facts(home))
        assert list((home / "runs").iterdir()) == []


def test_a_job_that_appears_late_is_found(job: Make, slurm: Path, home: Path) -> None:
    """A busy controller takes the job after sbatch has given up: squeue is asked again although its first answer is empty."""
    (slurm / "says").write_text("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n")
    (slurm / "squeue").write_text('#!/bin/sh\necho x >> "$FAKE/asked"\n[ $(wc -l < "$FAKE/asked") -lt 3 ] || echo 77\n')

    assert _submit(job(), _facts(home)).job_id == "77"


def test_what_is_not_known_is_not_called_refused(job: Make, slurm: Path, home: Path) -> None:
    """Neither sbatch nor squeue was answered: the sentence says so, and how to look."""
    (slurm / "says").write_text("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n")
    (slurm / "squeue").write_text(
        "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n"
    )
    with pytest.raises(
        SubmitError, match=r"^it is not known whether SLURM took the job \(sbatch: .*squeue --me --name="
    ) as caught:
        _submit(job(), _facts(home))

    assert "refused" not in str(caught.value)


@pytest.mark.parametrize("dies", [False, True], ids=["sbatch goes on", "sbatch dies"])
def test_ctrl_c_while_sbatch_works_takes_the_job_back(job: Make, slurm: Path, home: Path, *, dies: bool) -> None:
    """Ctrl-C reaches sbatch as well. Whether it dies of that or not, the job that SLURM has taken is cancelled; no folder is left."""
    end = "kill -INT $$" if dies else 'echo "Submitted batch job 77"'
    (slurm / "sbatch").write_text(f"#!/bin/bash\nkill -INT $PPID\n{end}\n")
    (slurm / "queue").write_text("77\n")
    with pytest.raises(KeyboardInterrupt):
        _submit(job(), _facts(home))

    assert (slurm / "cancelled").read_text() == "77\n"
    assert list((home / "runs").iterdir()) == []
    assert index.list_runs() == []


@pytest.mark.torch
def test_a_lost_terminal_leaves_a_run_that_is_known(job: Make, slurm: Path, home: Path) -> None:
    """ssh drops while sbatch works (HUP): the command ends by it when the run has been recorded, and no earlier."""
    (slurm / "sbatch").write_text('#!/bin/bash\nkill -HUP $PPID\necho "Submitted batch job 42"\n')
    job()  # its code
    (home / "job.yaml").write_text("script: train.py\n")
    words = [sys.executable, "-m", "launcher", "submit", "job.yaml", "--backend", "slurm", f"runs_dir={home}/runs"]
    ended = subprocess.run(words, cwd=home, capture_output=True, text=True, check=False)

    assert ended.returncode == -signal.SIGHUP, ended.stdout + ended.stderr
    (ref,) = index.list_runs()
    assert read_submission(RunPaths(ref.path).submission)["job_id"] == "42"


def test_a_job_that_cannot_be_written_down_is_taken_back(
    job: Make, slurm: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up just after sbatch: the job is cancelled, and nothing is left that nobody would find again."""

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(submit, "record", full)
    with pytest.raises(RunDirError, match="no space left on device"):
        _submit(job(), _facts(home))

    assert (slurm / "cancelled").read_text() == "42\n"
    assert list((home / "runs").iterdir()) == []


def test_names_are_claimed_once(job: Make, slurm: Path, home: Path) -> None:
    """A second submission with the same proposed id gets another one."""
    first, second = _submit(job(), _facts(home)), _submit(job(), _facts(home))

    assert first.plan.run_dir != second.plan.run_dir
    assert second.plan.spec.run_dir == second.plan.run_dir
    assert second.plan.spec.id in second.plan.sbatch


def test_a_place_that_cannot_be_written_is_one_sentence(job: Make, slurm: Path, home: Path) -> None:
    """runs_dir below a file: refused with its name, nothing submitted."""
    (home / "file").write_text("")
    with pytest.raises(RunDirError, match="set runs_dir or"):
        _submit(job(), replace(_facts(home), runs_dir=str(home / "file" / "runs")))

    assert not (slurm / "calls").exists()


def test_a_secret_that_is_none_is_made_anew(job: Make, home: Path) -> None:
    """A run's own stays as it is; an empty one, which a full disk has left, does not."""
    paths = RunPaths(home / "runs" / "a-1121-0842-k7f")
    assert make_folder.make_run_folder(paths.root)
    made = plan(job(), _facts(home), run_dir=str(paths.root))
    write_own(made, by="submit", new=True)
    first = paths.secret.read_text()
    write_own(made, by="resubmit")
    assert paths.secret.read_text() == first

    paths.secret.write_text("")
    write_own(made, by="resubmit")
    assert len(paths.secret.read_text().strip()) == 64


def test_a_shared_run_is_readable_by_the_group(job: Make, home: Path) -> None:
    """share: group makes the folder 0750 whatever the umask, and the secret stays private."""
    paths = RunPaths(home / "runs" / "a-1121-0842-k7f")
    assert make_folder.make_run_folder(paths.root, "group")
    write_own(plan(job(), _facts(home), run_dir=str(paths.root)), by="submit", new=True)

    assert stat.S_IMODE(paths.root.stat().st_mode) == 0o750
    assert stat.S_IMODE(paths.secret.stat().st_mode) == 0o600
    assert not make_folder.make_run_folder(paths.root, "group")


@pytest.fixture
def own_umask() -> Iterator[None]:
    """The usual umask 022, whatever the tests were started with."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Gives the umask 077 for a while. What Python compiles meanwhile is not kept: nobody else could read it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    @contextlib.contextmanager
    def set_umask() -> Iterator[None]:
        before = os.umask(0o077)
        try:
            yield
        finally:
            os.umask(before)

    return set_umask


def test_the_group_reads_a_shared_runs_code_and_logs_whatever_the_umask(
    job: Make, local: Callable[..., submit.Submitted], home: Path, private: Callable[[], Any]
) -> None:
    """The umask is 077, the code's files are the user's alone: what the run has of them, and its agents' logs, are not."""
    with private():
        (home / "source" / "lab").mkdir(parents=True)
        (home / "source" / "lab" / "a.py").write_text("")
        one = local(job(share="group"), code=CodeFacts(root=str(home / "source"), files=(("lab/a.py", 0),)))
        _until(lambda: read_outcome(one.paths.outcome), "the outcome")
    (log,) = one.paths.submitit.glob("*_log.out")
    found = [one.paths.code / "lab", one.paths.code / "lab" / "a.py", one.paths.lib / "launcher" / "__init__.py", log]

    assert [f"{stat.S_IMODE(path.stat().st_mode) & 0o070:o}" for path in found] == ["50", "40", "40", "40"]


def _modes(top: Path) -> dict[str, str]:
    return {str(p.relative_to(top)): f"{stat.S_IMODE(p.stat().st_mode):o}" for p in sorted(top.rglob("*"))}


def _some_closed(top: Path) -> Path:
    """A folder of code with a file, and a folder of files, that are the user's alone."""
    for name, mode in (
        (".env", 0o600),
        ("a.py", 0o644),
        ("lab/b.py", 0o640),
        ("keys/one", 0o644),
        ("keys/deep/two", 0o644),
    ):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("")
        (top / name).chmod(mode)
    (top / "keys").chmod(0o700)
    return top


@pytest.mark.torch
@pytest.mark.parametrize("later", [False, True])
def test_the_group_reads_nothing_that_the_owner_has_closed(
    job: Make, slurm: Path, home: Path, later: bool, own_umask: None
) -> None:
    """A .env of 0600 and a folder of 0700 stay closed in a run that is shared, from the first or by resubmit; the first plan says so."""
    source = _some_closed(home / "source")
    here = _facts(home)
    made = _submit(job(name="net", share="none" if later else "group"), replace(here, code=code_files.listing(source)))
    if later:
        _ended(made.paths)
        made = resubmit.resubmit(made.paths, resubmit.Again(overrides=("share=group",)))

    found = _modes(made.paths.code)
    assert {name: found[name] for name in (".env", "keys")} == {".env": "600", "keys": "700"}
    assert [found[name] for name in ("a.py", "lab", "lab/b.py")] == ["644", "755", "640"]
    told = f"share: the group will not read .env, keys of {source}: the originals are open to you alone"
    assert (told in made.plan.warnings) is not later  # a run that keeps its copy has it listed nowhere


@pytest.mark.torch
def test_sharing_a_run_opens_no_folder_of_the_users_own(job: Make, slurm: Path, home: Path, own_umask: None) -> None:
    """With code.snapshot: false the run's code is a link to the user's own folder, whose files keep their modes."""
    source = _some_closed(home / "source")
    (source / "a.py").chmod(0o604)
    here = _facts(home)
    before = _modes(source)
    first = _submit(job(name="net", code={"snapshot": False}), replace(here, code=code_files.listing(source)))
    _ended(first.paths)
    resubmit.resubmit(first.paths, resubmit.Again(overrides=("share=group",)))

    assert first.paths.code.is_symlink()
    assert _modes(source) == before


STUB = """
import json, os, signal, sys, time
class AgentMain:
    def __init__(self, run_dir): self.run_dir = run_dir
    def __call__(self):
        node = os.environ["SUBMITIT_LOCAL_GLOBALID"]
        said = []
        signal.signal(signal.SIGTERM, lambda *_: said.append("TERM"))
        print("node", node, "cuda", repr(os.environ.get("CUDA_VISIBLE_DEVICES")), flush=True)
        open(os.path.join(self.run_dir, "up-" + node), "w").close()
        while os.path.exists(os.path.join(self.run_dir, "hold")) and not said:
            time.sleep(0.02)
        if node == "0":
            state = "cancelled" if said else "completed"
            text = json.dumps({"state": state, "reason": "stub", "pid": os.getpid(), "tty": os.isatty(0)})
            with open(os.path.join(self.run_dir, "outcome.tmp"), "w") as f: f.write(text)
            os.rename(os.path.join(self.run_dir, "outcome.tmp"), os.path.join(self.run_dir, "outcome.json"))
        return 0
"""


@pytest.fixture
def local(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., submit.Submitted]]:
    """Submits to the real local executor, with a stub for the agent in the run's own lib; ends what is left."""
    started: list[submit.Submitted] = []
    copy = snapshot.copy_launcher

    def with_stub(target: Path) -> None:
        copy(target)
        (target / "launcher" / "node" / "agent" / "main.py").write_text(STUB)

    monkeypatch.setattr(snapshot, "copy_launcher", with_stub)

    def start(loaded: LoadedJob, *, hold: bool = False, **changes: object) -> submit.Submitted:
        def make(now: Facts) -> SubmissionPlan:
            return plan(loaded, now)

        here = replace(_facts(home, backend="local"), submit_dir=os.getcwd(), **changes)
        made = submit.claim_folder(make, here, lambda one: one)
        paths = RunPaths(Path(made.run_dir))
        submit.write_run(made, [])
        if hold:
            (paths.root / "hold").touch()
        one = submit.Submitted(made, submit.hand_over(made))
        submit.record(made, one.job_id, by="submit")
        started.append(one)
        return one

    yield start
    for one in started:
        (one.paths.root / "hold").unlink(missing_ok=True)
        where = locate(one.paths)
        _until(lambda where=where: not where.alive(), "the controller to end")  # type: ignore[misc]


def _until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, f"waited {WAIT_S} s for {what}"
        time.sleep(0.02)


def test_the_local_executor_runs_one_agent_per_node(job: Make, local: Callable[..., submit.Submitted]) -> None:
    """Detached: submitting returns while agents run; each simulated node is one task without GPUs; then an outcome."""
    one = local(job(resources={"nodes": 2, "spare_nodes": 1}), hold=True)
    paths = one.paths
    assert locate(paths).alive()
    _until(lambda: all((paths.root / f"up-{i}").exists() for i in range(3)), "three agents")
    (paths.root / "hold").unlink()
    _until(lambda: read_outcome(paths.outcome), "the outcome")
    _until(lambda: not locate(paths).alive(), "the controller to end")

    said = sorted(p.read_text().split("node ")[1].split("\n")[0] for p in paths.submitit.glob("*_log.out"))
    assert said == ["0 cuda ''", "1 cuda ''", "2 cuda ''"]
    assert (read_outcome(paths.outcome) or {})["tty"] is False


def test_a_run_that_is_started_inside_a_run_has_its_own_folder() -> None:
    """The folder in which the outer one was submitted is that of its setup lines alone."""
    outer = {"LAUNCHER_SUBMIT_DIR": "/outer", "LAUNCHER_RUN_DIR": "/outer/run", "PATH": "/bin"}

    assert environment_for_sbatch(outer, {}) == {"PATH": "/bin"}


def test_no_module_of_the_current_folder_is_run(
    job: Make, local: Callable[..., submit.Submitted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m` looks there first, and in /tmp anybody can leave a package; the setup lines still run there."""
    here = tmp_path / "here"
    for package in ("launcher", "submitit"):
        (here / package).mkdir(parents=True)
        (here / package / "__init__.py").write_text(f"open({str(here)!r} + '/ran', 'w')\n")
    monkeypatch.chdir(here)
    one = local(job(environment={"setup": ["pwd > was"]}))
    _until(lambda: read_outcome(one.paths.outcome), "the outcome")

    assert (here / "was").read_text() == f"{here}\n"
    assert not (here / "ran").exists()


def test_cancelling_here_reaches_the_agents(job: Make, local: Callable[..., submit.Submitted]) -> None:
    """TERM goes through the controller to every agent."""
    one = local(job(), hold=True)
    _until(lambda: (one.paths.root / "up-0").exists(), "the agent")
    locate(one.paths).cancel()
    _until(lambda: read_outcome(one.paths.outcome), "the outcome")

    assert (read_outcome(one.paths.outcome) or {})["state"] == "cancelled"


def test_a_recycled_process_id_is_no_run(home: Path) -> None:
    """A process of the same number that started at another time is somebody else's."""
    mine = os.getpid()

    assert processes.is_alive(mine, processes.mark_of(mine))
    assert not processes.is_alive(mine, "another boot/1")
    assert not processes.is_alive(mine, 1.0)
    assert not local_backend.terminate(mine, 1.0, home)


def test_a_broken_interpreter_says_so(job: Make, home: Path, local: Callable[..., submit.Submitted]) -> None:
    """An interpreter that cannot start leaves words in the agents' log, and no process."""
    broken = Interpreter(
        path="/nonexistent/python", origin="test", packages={"torch": "", "submitit": "", "psutil": ""}
    )
    made = plan(job(), replace(_facts(home, backend="local"), interpreter=broken))
    assert make_folder.make_run_folder(Path(made.run_dir))
    submit.write_run(made, [])
    pid = int(submit.hand_over(made))
    _until(lambda: not processes.is_alive(pid, None), "the controller to end")
    logs = list(Path(made.submitit_dir).glob("*_log.out"))

    assert "/nonexistent/python" in logs[0].read_text()


# --- again --------------------------------------------------------------------------------------------------------------


def _ended(paths: RunPaths, *steps: int) -> None:
    write_outcome(paths.outcome, {"state": "failed", "reason": "it broke"})
    for step in steps:
        paths.checkpoint(step).mkdir(parents=True)
        (paths.checkpoint(step) / "manifest.json").write_text("{}")


@pytest.mark.torch
def test_a_run_is_submitted_again_with_changes(job: Make, slurm: Path, home: Path) -> None:
    """Same folder, same code, changed job, the wanted step, a new entry in the history; the old outcome is gone."""
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths, 10, 20)
    (home / "source" / "train.py").write_text("print('edited since')\n")
    second = resubmit.resubmit(first.paths, resubmit.Again(overrides=("resources.nodes=3",), step=10))
    spec = RunSpec.read(first.paths.spec)

    assert (second.plan.run_dir, spec.nodes, spec.resume_step) == (first.plan.run_dir, 3, 10)
    assert (first.paths.code / "train.py").read_text() == "print(1)\n"
    assert not first.paths.outcome.exists()
    said = read_lines(first.paths.events)[-1]
    assert (said["by"], said["changes"]) == ("resubmit", ["resources.nodes=3"])
    assert len(read_submission(first.paths.submission)["submissions"]) == 2


@pytest.mark.torch
def test_setup_lines_begin_where_the_run_was_submitted_first(
    job: Make, slurm: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resubmission or a fork from the folder of another project would source that one's files of the same name."""
    first = _submit(job(name="net", environment={"setup": ["source env.sh"]}), _facts(home, submit_dir="/home/ann/net"))
    _ended(first.paths, 10)
    monkeypatch.chdir(slurm)
    again = [resubmit.resubmit(first.paths, resubmit.Again()) for _ in range(2)]
    _ended(first.paths)
    again.append(resubmit.fork(first.paths, "other", resubmit.Again()))

    assert all("cd /home/ann/net 2>/dev/null\nsource env.sh" in one.plan.command for one in again)


@pytest.mark.torch
@pytest.mark.parametrize("text", ["code.link=[data]", "code.dir=/elsewhere", "code={link: [data]}"])
def test_a_change_of_the_code_needs_fresh_code(job: Make, slurm: Path, home: Path, text: str) -> None:
    """It had changed nothing and said nothing: refused in one sentence, also by a fork, and nothing is submitted."""
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths, 10)
    for submit_again in (resubmit.resubmit, lambda paths, how: resubmit.fork(paths, "other", how)):
        with pytest.raises(ConfigError, match=rf"code\S* changes nothing without --code: {first.paths.id} keeps"):
            submit_again(first.paths, resubmit.Again(overrides=(text,)))

    assert len(read_submission(first.paths.submission)["submissions"]) == 1
    (home / "source" / "data").mkdir()
    done = resubmit.resubmit(first.paths, resubmit.Again(overrides=("code.link=[data]",), fresh_code=True))
    assert (done.paths.code / "data").is_symlink()


IDLE = [
    ("name=other", r"name changes nothing: {run} keeps its name; --fork NAME", "--fork NAME names the new run"),
    ("runs_dir=elsewhere", r"runs_dir changes nothing: {run} stays in its folder; --fork NAME", ""),
]


@pytest.mark.torch
@pytest.mark.parametrize(("text", "said", "fork_said"), IDLE)
def test_a_change_that_would_change_nothing_is_refused(
    job: Make, slurm: Path, home: Path, text: str, said: str, fork_said: str
) -> None:
    """Where a run lies and what it is called stay; a new run can lie elsewhere, and is called as --fork says."""
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths, 10)
    how = resubmit.Again(overrides=(text,))
    with pytest.raises(ConfigError, match=said.format(run=first.paths.id)):
        resubmit.resubmit(first.paths, how)
    if fork_said:
        with pytest.raises(ConfigError, match=fork_said):
            resubmit.fork(first.paths, "net2", how)
    else:
        assert resubmit.fork(first.paths, "net2", how).paths.root.parent.name == "elsewhere"


@pytest.mark.torch
def test_a_completed_run_whose_outcome_is_not_seen_yet_is_not_run_again(job: Make, slurm: Path, home: Path) -> None:
    """NFS shows a new file late: the history's last word says that nothing is left to do."""
    first = _submit(job(name="net"), _facts(home))
    event_lines.append(first.paths.events, an_event("ended", attempt=0, state="completed", reason="Done.", step=10))
    with pytest.raises(StateError, match="completed at step 10: nothing is left to do"):
        resubmit.resubmit(first.paths, resubmit.Again())


@pytest.mark.torch
def test_a_resubmission_says_that_no_saved_checkpoint_is_there(job: Make, slurm: Path, home: Path) -> None:
    """Someone deleted checkpoints/: the run begins anew, as it must, but not in silence; gone back since, it had none to lose."""
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths, 20)
    event_lines.append(first.paths.events, an_event("first_step", attempt=0, step=1))
    event_lines.append(first.paths.events, an_event("saved", attempt=0, step=20))
    said = []
    for change in (lambda: None, lambda: shutil.rmtree(first.paths.checkpoints), lambda: None):
        change()
        said.append([w for w in resubmit.resubmit(first.paths, resubmit.Again()).plan.warnings if "saved" in w])
        event_lines.append(
            first.paths.events, an_event("first_step", attempt=len(said), step=1 if len(said) > 1 else 21)
        )
        _ended(first.paths)

    lost = f"{first.paths.id} saved step 20, but no checkpoint is in {first.paths.checkpoints}: training begins from scratch"
    assert said == [[], [lost], []]


@pytest.mark.torch
def test_a_changed_after_is_waited_for(job: Make, slurm: Path, home: Path) -> None:
    """A resubmission and a fork wait for a run that has not ended; one that can never be waited for is refused."""
    first, other = _submit(job(name="net"), _facts(home)), _submit(job(name="other"), _facts(home))
    _ended(first.paths, 10)
    (slurm / "queue").write_text(squeue_line("42", "PENDING"))
    told = json.loads(first.paths.submission.read_text())
    first.paths.submission.write_text(json.dumps({**told, "job_id": "41"}))
    how = resubmit.Again(overrides=(f"after={other.paths.id}",))
    made = [resubmit.fork(first.paths, "net2", how), resubmit.resubmit(first.paths, how)]

    for one in made:
        assert [each["run_dir"] for each in RunSpec.read(one.paths.spec).after] == [str(other.paths.root)]
        assert "--dependency=afterok:42" in one.paths.sbatch.read_text()
    _ended(other.paths)
    (slurm / "queue").write_text("")
    _ended(first.paths)
    with pytest.raises(StateError, match=r"after: .*the job can never start"):
        resubmit.resubmit(first.paths, how)


@pytest.mark.torch
@pytest.mark.parametrize(("share", "modes"), [("group", (0o750, 0o750, 0o640)), ("none", (0o700, 0o700, 0o640))])
def test_a_changed_share_is_that_of_the_folder(
    job: Make, slurm: Path, home: Path, private: Callable[[], Any], share: str, modes: tuple[int, int, int]
) -> None:
    """The group can read the code that was copied under the umask 077, or nobody can enter the folder any more."""
    with private():
        (home / "source").mkdir()
        first = _submit(job(name="net", share="none" if share == "group" else "group"), _facts(home))
        _ended(first.paths)
        paths = resubmit.resubmit(first.paths, resubmit.Again(overrides=(f"share={share}",))).paths

    found = [stat.S_IMODE(path.stat().st_mode) for path in (paths.root, paths.logs, paths.code / "train.py")]
    assert tuple(found) == modes
    assert stat.S_IMODE(paths.secret.stat().st_mode) == 0o600


@pytest.mark.torch
def test_loading_unsafely_is_asked_for_each_time(job: Make, slurm: Path, home: Path) -> None:
    """`--unsafe-load` reaches resubmissions and forks, with a warning; the next resubmission is without it again."""
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths, 10)
    how = resubmit.Again(unsafe_load=True)
    made = [resubmit.fork(first.paths, "other", how), resubmit.resubmit(first.paths, how)]
    found = [RunSpec.read(one.paths.spec).unsafe_load for one in made]
    _ended(first.paths)
    then = resubmit.resubmit(first.paths, resubmit.Again())

    assert found == [True, True]
    assert all("--unsafe-load: a checkpoint that cannot" in one.plan.warnings[-1] for one in made)
    assert not RunSpec.read(first.paths.spec).unsafe_load
    assert not [text for text in then.plan.warnings if "--unsafe-load" in text]


@pytest.mark.torch
def test_code_edited_since_is_not_what_a_resubmission_runs_and_it_says_so(job: Make, slurm: Path, home: Path) -> None:
    """The run's own copy goes on; one sentence names what was edited, added or removed, and --code; without edits none."""
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths)
    same = resubmit.resubmit(first.paths, resubmit.Again())
    (home / "source" / "train.py").write_text("print('edited since')\n")
    (home / "source" / "new.py").write_text("")
    _ended(first.paths)
    other = resubmit.resubmit(first.paths, resubmit.Again())

    assert [w for w in same.plan.warnings if "own copy" in w] == []
    (said,) = [w for w in other.plan.warnings if "own copy" in w]
    assert said.startswith(f"new.py, train.py in {home / 'source'} changed since")
    assert "--code" in said


@pytest.mark.torch
def test_what_a_run_wrote_is_not_told_as_the_users_change(job: Make, slurm: Path, home: Path) -> None:
    """Files that the run made, changed or removed in its copy are not named, nor is its own folder of runs inside the code."""
    here, code = _facts(home), home / "source"
    (code / "table.csv").write_text("1\n")
    (code / "lab").mkdir()
    (code / "inside").symlink_to("lab")
    first = _submit(job(name="net"), _seen(replace(here, runs_dir=str(code / "runs"))))
    _ended(first.paths)
    copy = first.paths.code
    (copy / "outputs" / "__pycache__").mkdir(parents=True)
    (copy / "outputs" / "metrics.json").write_text("{}")
    (copy / "table.csv").write_text("1\n2\n")
    (copy / "train.py").unlink()
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "train.cpython-311.pyc").write_text("x")
    again_ = resubmit.resubmit(first.paths, resubmit.Again())

    assert [w for w in again_.plan.warnings if "own copy" in w] == []


@pytest.mark.torch
def test_what_the_user_changed_is_named_whatever_the_run_wrote(job: Make, slurm: Path, home: Path) -> None:
    """Edited, added and removed originals are named; one that was touched without an edit is not."""
    here, code = _facts(home), home / "source"
    for name in ("edited.py", "removed.py", "touched.py"):
        (code / name).write_text("x\n")
    first = _submit(job(name="net"), _seen(here))
    _ended(first.paths)
    (first.paths.code / "edited.py").write_text("the run's\n")
    (first.paths.code / "out.txt").write_text("the run's\n")
    (code / "edited.py").write_text("the user's\n")
    (code / "added.py").write_text("")
    (code / "removed.py").unlink()
    os.utime(code / "touched.py", (1, 1))
    (said,) = [w for w in resubmit.resubmit(first.paths, resubmit.Again()).plan.warnings if "own copy" in w]

    assert said.startswith(f"added.py, edited.py, removed.py in {code} changed since")


@pytest.mark.torch
def test_a_run_of_an_older_version_has_its_edits_named(job: Make, slurm: Path, home: Path) -> None:
    """Without a list of what was copied, edits and new files are named; what lies in the copy alone may be the run's."""
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths)
    first.paths.copied.unlink()
    (first.paths.code / "out.txt").write_text("the run's\n")
    same = resubmit.resubmit(first.paths, resubmit.Again())
    _ended(first.paths)
    (home / "source" / "train.py").write_text("print('edited since')\n")
    (said,) = [w for w in resubmit.resubmit(first.paths, resubmit.Again()).plan.warnings if "own copy" in w]

    assert [w for w in same.plan.warnings if "own copy" in w] == []
    assert said.startswith(f"train.py in {home / 'source'} changed since")


@pytest.mark.torch
def test_a_fork_has_no_changed_code(job: Make, slurm: Path, home: Path) -> None:
    """Its code is another run's copy; what that run writes there later is nobody's change."""
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths, 10)
    forked = resubmit.fork(first.paths, "other", resubmit.Again())
    _ended(forked.paths)
    (first.paths.code / "out.txt").write_text("the run's\n")
    again_ = resubmit.resubmit(forked.paths, resubmit.Again())

    assert [w for w in again_.plan.warnings if "own copy" in w] == []


@pytest.mark.torch
def test_a_completed_run_is_not_submitted_again_for_nothing(job: Make, slurm: Path, home: Path) -> None:
    """Unchanged, from its end, with its own code: one sentence. Changed, or from an earlier step, it is submitted."""
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths, 10)
    write_outcome(first.paths.outcome, {"state": "completed", "reason": "all 10 steps done", "step": 10})
    with pytest.raises(StateError, match="completed at step 10: nothing is left to do"):
        resubmit.resubmit(first.paths, resubmit.Again())

    assert (read_outcome(first.paths.outcome) or {})["state"] == "completed"
    assert len(read_submission(first.paths.submission)["submissions"]) == 1
    assert resubmit.resubmit(first.paths, resubmit.Again(step=10)).job_id


def test_what_can_be_done_with_a_script_that_has_completed(job: Make, slurm: Path, home: Path) -> None:
    """Its arguments are `args`, and one that counts no steps has not completed "at step 0"."""
    first = _submit(job(name="net", script="train.py"), _facts(home))
    write_outcome(first.paths.outcome, {"state": "completed", "reason": "The work is done.", "step": 0})

    with pytest.raises(StateError, match=r"completed: nothing is left to do. Change its job \(-- --epochs 20\)"):
        resubmit.resubmit(first.paths, resubmit.Again())


@pytest.mark.torch
def test_a_resubmission_is_judged_by_the_place_where_the_run_lies(
    job: Make, slurm: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by today's runs_dir: one that is full, or of which nothing is known here, keeps no run from going on; a full disk of its own does."""
    paths = _submit(job(name="net", runs_dir="$NOT_SET_ANYWHERE/runs"), _facts(home)).paths
    _ended(paths)
    assert resubmit.resubmit(paths, resubmit.Again()).plan.run_dir == str(paths.root)

    _ended(paths)
    monkeypatch.setattr(gather, "_free", lambda path: (1_000_000, None) if path == paths.root.parent else (None, None))
    with pytest.raises(RunDirError, match=f"{paths.root.parent}: 1.0 MB free"):
        resubmit.resubmit(paths, resubmit.Again())


@pytest.mark.torch
def test_a_failed_resubmission_changes_nothing(job: Make, slurm: Path, home: Path) -> None:
    """When sbatch refuses, the run has its outcome still and the history says what happened."""
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths)
    (slurm / "says").write_text("sbatch: error: no\n")
    written = [first.paths.job, first.paths.spec, first.paths.sbatch]
    before = [path.read_text() for path in written]
    with pytest.raises(SubmitError):
        resubmit.resubmit(first.paths, resubmit.Again(overrides=("resources.timeout_min=7",)))

    assert [path.read_text() for path in written] == before
    assert (read_outcome(first.paths.outcome) or {})["reason"] == "it broke"
    assert read_lines(first.paths.events)[-1]["type"] == "warning"


@pytest.mark.torch
def test_of_two_resubmissions_at_once_one_is_refused(job: Make, slurm: Path, home: Path) -> None:
    """The second command of somebody impatient finds the first at work: one job."""
    paths = _submit(job(), _facts(home)).paths
    _ended(paths, 3)
    (slurm / "sbatch").write_text('#!/bin/bash\nread <"$FAKE/pipe"\necho "Submitted batch job 43"\n')
    os.mkfifo(slurm / "pipe")
    words = [sys.executable, "-m", "launcher", "resubmit", paths.id]
    with subprocess.Popen(words, cwd=home, stdout=subprocess.PIPE, text=True) as first:
        with (slurm / "pipe").open("w") as pipe:  # the first one's sbatch is there
            with pytest.raises(StateError, match="is being resubmitted or removed by another command"):
                resubmit.resubmit(paths, resubmit.Again())
            pipe.write("go\n")
        assert first.wait(WAIT_S) == 0
    assert [one["job_id"] for one in read_submission(paths.submission)["submissions"]] == ["42", "43"]


@pytest.mark.torch
def test_a_failed_resubmission_with_fresh_code_keeps_the_old_copy(job: Make, slurm: Path, home: Path) -> None:
    """When sbatch refuses, the code and the list of what was copied are as they were; nothing else is left."""
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths)
    before, there = first.paths.copied.read_text(), {p.name for p in first.paths.root.glob("code*")}
    (home / "source" / "train.py").write_text("print('edited since')\n")
    (slurm / "says").write_text("sbatch: error: no\n")
    with pytest.raises(SubmitError):
        resubmit.resubmit(first.paths, resubmit.Again(fresh_code=True))

    assert (first.paths.code / "train.py").read_text() == "print(1)\n"
    assert first.paths.copied.read_text() == before
    assert {p.name for p in first.paths.root.glob("code*")} == there == {"code", "code.json"}


@pytest.mark.torch
def test_fresh_code_keeps_what_the_run_has_written_into_its_copy(job: Make, slurm: Path, home: Path) -> None:
    """A script's own checkpoint in a relative folder; what was source and is no more is gone."""
    (home / "old.py").write_text("")
    first = _submit(job(name="net"), replace(_facts(home), code=code_files.listing(home, [home / "runs"])))
    _ended(first.paths)
    (first.paths.code / "out").mkdir()
    (first.paths.code / "out" / "last.pt").write_text("the run's")
    assert (first.paths.code / "old.py").exists()
    (home / "old.py").unlink()

    resubmit.resubmit(first.paths, resubmit.Again(fresh_code=True))

    assert (first.paths.code / "out" / "last.pt").read_text() == "the run's"
    assert not (first.paths.code / "old.py").exists()


def test_a_run_in_the_queue_is_not_submitted_twice(job: Make, slurm: Path, home: Path) -> None:
    """While SLURM knows the job, resubmitting is refused."""
    first = _submit(job(), _facts(home))
    (slurm / "queue").write_text(squeue_line("42", "PENDING"))
    with pytest.raises(StateError, match="has not ended"):
        resubmit.resubmit(first.paths, resubmit.Again())


def test_checkpoints_that_are_not_there_are_named(job: Make, slurm: Path, home: Path) -> None:
    """--from a step without a checkpoint lists those there are; a fork needs one."""
    first = _submit(job(), _facts(home))
    _ended(first.paths, 10)
    with pytest.raises(CheckpointError, match="no checkpoint of step 7: it has those of steps 10"):
        resubmit.resubmit(first.paths, resubmit.Again(step=7))
    (first.paths.checkpoint(10) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint to fork from"):
        resubmit.fork(first.paths, "other", resubmit.Again())


@pytest.mark.torch
def test_a_fork_is_a_new_run_from_the_old_code_and_checkpoint(
    job: Make, slurm: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own folder and name; the code as the old run has it; resume names the old checkpoint."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(home / "forks"))
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths, 10, 20)
    (home / "source" / "train.py").write_text("print('edited since')\n")
    new = resubmit.fork(first.paths, "net2", resubmit.Again())

    assert new.plan.spec.name == "net2"
    assert new.plan.spec.resume == str(first.paths.checkpoint(20))
    assert new.plan.run_dir.startswith(str(home / "forks" / "net2-"))
    assert (new.paths.code / "train.py").read_text() == "print(1)\n"
    assert (read_outcome(first.paths.outcome) or {})["state"] == "failed"


@pytest.mark.torch
def test_a_fork_has_all_the_code_that_the_run_had(job: Make, slurm: Path, home: Path) -> None:
    """What a walk, or git around the run, would leave out of the copy; a file of code.link stays a link."""
    here, code = _facts(home), home / "source"
    for name in (".gitignore", "wandb/helper.py", "model.py", "big.bin"):
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).write_text("model.py\n")
    (home / "big.bin").touch()  # the job is checked before its code is known
    files = ((".gitignore", 9), ("model.py", 9), ("train.py", 9), ("wandb/helper.py", 9))
    here = replace(here, code=replace(here.code, files=files))
    first = _submit(job(name="net", code={"link": ["big.bin"]}), here)
    subprocess.run(["git", "init", "-q", str(first.paths.code)], check=True)
    _ended(first.paths, 20)
    new = resubmit.fork(first.paths, "net2", resubmit.Again())

    assert set(dict(files)) <= set(dict(new.plan.code.files))
    assert (new.paths.code / "wandb" / "helper.py").exists()
    assert (new.paths.code / "big.bin").resolve() == code / "big.bin"


@pytest.mark.torch
def test_code_that_is_copied_anew_holds_no_run(job: Make, slurm: Path, home: Path) -> None:
    """The run's own folder of runs lies in the code, and today's runs_dir elsewhere: none of it is copied, archives included."""
    here, code = _facts(home), home / "source"
    first = _submit(job(name="net", code={"dir": "source"}), replace(here, runs_dir=str(code / "old")))
    (code / "old" / ".environments-1").mkdir()
    (code / "old" / ".environments-1" / "a.tar").write_text("x")
    _ended(first.paths, 20)
    how = resubmit.Again(fresh_code=True)
    made = [resubmit.fork(first.paths, "net2", how), resubmit.resubmit(first.paths, how)]

    assert [[p.name for p in one.paths.code.iterdir()] for one in made] == [["train.py"]] * 2


@pytest.mark.torch
def test_a_run_keeps_its_copy_where_git_fails_today(
    job: Make, slurm: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is resubmitted all the same; a warning says that changes are not known."""
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths)
    (home / "source" / ".git").mkdir()
    (slurm / "git").write_text("#!/bin/sh\necho fatal: no >&2; exit 128\n")
    (slurm / "git").chmod(0o755)
    done = resubmit.resubmit(first.paths, resubmit.Again())

    assert [
        text for text in done.plan.warnings if text.startswith("whether its code has changed is not known: code.dir")
    ]


@pytest.mark.torch
def test_a_fork_that_is_resubmitted_before_its_first_checkpoint_begins_where_it_was_forked(
    job: Make, slurm: Path, home: Path
) -> None:
    """Its spec is made anew, and still names the other run's checkpoint: it would train from scratch otherwise."""
    first = _submit(job(name="net"), _facts(home))
    _ended(first.paths, 20)
    new = resubmit.fork(first.paths, "net2", resubmit.Again())
    for _ in range(2):
        _ended(new.paths)
        resubmit.resubmit(new.paths, resubmit.Again(overrides=("resources.nodes=3",)))

    spec = RunSpec.read(new.paths.spec)
    assert (spec.nodes, spec.resume) == (3, str(first.paths.checkpoint(20)))


def test_foreground_agents_end_with_their_parent(job: Make, home: Path) -> None:
    """`launcher run` killed outright takes its agents along (PDEATHSIG), so nothing trains unseen."""
    made = plan(job(), replace(_facts(home, backend="local")))
    assert make_folder.make_run_folder(Path(made.run_dir))
    pid_file = home / "pid"
    stub = home / "lib" / "launcher" / "node" / "agent"
    stub.mkdir(parents=True)
    for folder in (stub, stub.parent, stub.parent.parent):
        (folder / "__init__.py").write_text("")
    (stub / "__main__.py").write_text(
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        f"open({str(pid_file) + '.tmp'!r}, 'w').write(str(os.getpid()))\n"
        f"os.rename({str(pid_file) + '.tmp'!r}, {str(pid_file)!r})\ntime.sleep(600)\n"
    )
    (Path(made.run_dir) / "lib").symlink_to(home / "lib")
    text = (
        "import pickle, sys, time\n"
        "from launcher.submission.backends import local as local_backend\n"
        "local_backend.Foreground(pickle.load(open(sys.argv[1], 'rb'))).start()\n"
        "time.sleep(600)\n"
    )
    (home / "plan.pkl").write_bytes(pickle.dumps(made))
    env = {**os.environ, "PYTHONPATH": str(Path(local_backend.__file__).parents[3])}
    parent = subprocess.Popen([sys.executable, "-c", text, str(home / "plan.pkl")], env=env, cwd=home)
    try:
        _until(pid_file.exists, "the agent")
        agent = int(pid_file.read_text())
        started = processes.mark_of(agent)
        parent.kill()
        parent.wait()
        _until(lambda: not processes.is_alive(agent, started), "the agent to end with its parent")
    finally:
        parent.kill()
        parent.wait()
        if pid_file.exists() and processes.is_alive(int(pid_file.read_text()), None):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_passed_values_are_taken_anew_when_a_run_is_submitted_again(
    job: Make, slurm: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the shell that resubmits; what is not set there is named in a sentence. A failed resubmission leaves none behind."""
    here = _facts(home)
    monkeypatch.setattr(gather.interpreter, "find_interpreter", lambda *_, **__: here.interpreter)
    monkeypatch.setenv("A_TOKEN", "hunter1")
    monkeypatch.setenv("B_TOKEN", "hunter2")
    paths = _submit(job(name="net", environment={"pass": ["A_TOKEN", "B_TOKEN"]}), here).paths
    _ended(paths)
    forget_passed(paths)
    monkeypatch.setenv("A_TOKEN", "hunter3")
    monkeypatch.delenv("B_TOKEN")
    (slurm / "says").write_text("sbatch: error: no\n")
    with pytest.raises(SubmitError):
        resubmit.resubmit(paths, resubmit.Again())
    assert not [p for p in paths.root.rglob("*") if p.is_file() and b"hunter" in p.read_bytes()]
    (slurm / "says").unlink()
    again = resubmit.resubmit(paths, resubmit.Again(overrides=("params.api_key=hunter4",)))

    assert json.loads(paths.passed.read_text()) == {"A_TOKEN": "hunter3"}
    assert [w for w in again.plan.warnings if w.startswith("B_TOKEN is not set, but environment.pass ")]
    assert read_lines(paths.events)[-1]["changes"] == ["params.api_key=<redacted>"]
    assert RunSpec.read(paths.spec).work.params == {"api_key": "hunter4"}


def test_a_fork_has_a_name_that_a_job_may_have(
    job: Make, slurm: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anything else is refused in a sentence, before a folder is made."""
    here = _facts(home)
    monkeypatch.setattr(gather.interpreter, "find_interpreter", lambda *_, **__: here.interpreter)
    first = _submit(job(name="net"), here)
    _ended(first.paths, 10)
    for name in ("$(touch pwned)", "a b", "", "../x"):
        with pytest.raises(ConfigError, match=r"^command line: name: "):
            resubmit.fork(first.paths, name, resubmit.Again())

    assert len(list((home / "runs").iterdir())) == 1
