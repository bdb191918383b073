"""Facts about the command itself: verbs found by name, one sentence and one code for every error, nothing heavy imported."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from squeue import squeue_line

from launcher import errors
from launcher.cli import main as main_module
from launcher.cli._submitting import print_submitted
from launcher.cli.main import cli, main
from launcher.run.paths import RunPaths

VERBS = cli.list_commands(click.Context(cli))
START = [sys.executable, "-m", "launcher"]


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No runs but the test's own; no site profile; the working directory is empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("LAUNCHER_SITE", raising=False)
    monkeypatch.delenv("LAUNCHER_DEBUG", raising=False)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def _launcher(*words: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(main_module.__file__).parents[2])}
    return subprocess.run([*START, *words], capture_output=True, text=True, timeout=120, check=False, env=env)


def test_the_promised_verbs_are_there() -> None:
    """Every verb of this part is a module that is found by name."""
    assert {
        "plan",
        "submit",
        "run",
        "resubmit",
        "cancel",
        "logs",
        "clean",
        "shell",
        "completion",
        "status",
        "ls",
    } <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help of each verb names it and says what it does; the overview shows the first line of its module."""
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out

    assert f"launcher {verb}" in text
    module = importlib.import_module(f"launcher.cli.{verb.replace('-', '_')}")
    assert main_module._summary(verb) == (module.__doc__ or "").splitlines()[0] != ""


def test_help_imports_no_verb_and_nothing_heavy() -> None:
    """The overview reads docstrings; torch, submitit, pydantic, omegaconf, rich and yaml stay out."""
    text = (
        "import sys; from launcher.cli.main import main; main(['--help'])\n"
        "heavy = {'torch', 'submitit', 'pydantic', 'omegaconf', 'rich', 'yaml', 'psutil', 'numpy'} & set(sys.modules)\n"
        "verbs = [m for m in sys.modules if m.startswith('launcher.cli.') and m != 'launcher.cli.main' and '._' not in m]\n"
        "print(heavy, verbs, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    assert done.stderr.strip() == "set() []"


@pytest.mark.parametrize(
    "words",
    [["plan", "train.py", "--backend", "local"], ["status"], ["ls"], ["logs", "x"], ["cancel", "x"], ["submit", "nowhere.yaml"],
     ["resubmit", "x"], ["shell", "x"], ["clean"]],
    ids=lambda w: w[0],
)  # fmt: skip
def test_no_verb_imports_torch(words: list[str]) -> None:
    """Verbs that do not train never import torch, whatever they end with."""
    Path("train.py").write_text("print(1)\n")
    text = f"import sys; from launcher.cli.main import main; main({words!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "False"


PRETENDED = {
    "sbatch": 'cp "$1" "$FAKE/script"; echo "Submitted batch job 42"',
    "squeue": 'cat "$FAKE/queue"',
    "scancel": 'echo "$@" > "$FAKE/cancelled"; : > "$FAKE/queue"',
    **dict.fromkeys(("srun", "scontrol", "sinfo", "sacct", "sacctmgr"), "exit 1"),
}
VERBS_OF_A_RUN = """
import json, sys
from pathlib import Path
from launcher.cli.main import main
from launcher.run import index
from launcher.run.paths import RunPaths

told = {}
def do(*words):
    told[words[0]] = [main(list(words)), sorted({"torch", "numpy"} & set(sys.modules))]

do("plan", "train.py", "resources.nodes=2")
do("submit", "train.py", "resources.nodes=2")
log = RunPaths(index.resolve("@last")).rank_log(0, 0, 0)
log.parent.mkdir(parents=True)
log.write_text("a line of rank 0\\n")
for verb in ("status", "ls", "logs", "why", "report", "cancel", "resubmit"):
    do(verb, *([] if verb == "ls" else ["@last"]))
print(json.dumps(told), file=sys.stderr)
"""


def test_no_verb_that_succeeds_imports_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run planned, submitted, read, cancelled and submitted again, to a pretended SLURM: no verb imports torch on its way."""
    fake = tmp_path / "fake"
    fake.mkdir()
    for name, text in PRETENDED.items():
        (fake / name).write_text(f"#!/bin/sh\n{text}\n")
        (fake / name).chmod(0o755)
    (fake / "queue").write_text(squeue_line("42", "PENDING"))
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(fake))
    Path("train.py").write_text("print(1)\n")
    done = subprocess.run([sys.executable, "-c", VERBS_OF_A_RUN], capture_output=True, text=True, check=False)

    told = json.loads(done.stderr.splitlines()[-1])
    assert told == {verb: [0, []] for verb in told}, done.stdout + done.stderr
    assert "a line of rank 0" in done.stdout
    assert "#SBATCH --nodes=2" in (fake / "script").read_text()
    assert (fake / "cancelled").read_text() == "42\n"


ERRORS = sorted(
    (e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)), key=lambda e: e.__name__
)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda e: e.__name__)
def test_errors_are_a_sentence_and_a_code(
    kind: type[errors.LauncherError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every class of the tree ends the command with its own exit code; the message goes to stderr, no traceback."""

    @cli.command("test-error")
    def failing() -> None:
        raise kind("one sentence")

    monkeypatch.setattr(type(cli), "get_command", lambda self, ctx, name: failing)
    code = main(["test-error"])
    seen = capsys.readouterr()

    assert code == kind.exit_code
    assert (seen.out, seen.err) == ("", "launcher: one sentence\n")


def test_interrupting_an_import_is_polite(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C while a class is defined, which is a RuntimeError before Python 3.12, ends a verb like at any other moment."""

    class Struck:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    @cli.command("test-import")
    def importing() -> None:
        type("Defined", (), {"field": Struck()})

    monkeypatch.setattr(type(cli), "get_command", lambda self, ctx, name: importing)
    assert main(["test-import"]) == 130
    assert capsys.readouterr().err.strip() == "stopped"


def test_a_fault_of_ours_is_told_apart(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected exception is one line that names it; LAUNCHER_DEBUG=1 shows the traceback."""

    @cli.command("test-bug")
    def failing() -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(type(cli), "get_command", lambda self, ctx, name: failing)
    assert main(["test-bug"]) == 1
    assert (
        capsys.readouterr().err
        == "launcher: internal error (ZeroDivisionError: oops); run it again with LAUNCHER_DEBUG=1 for the traceback\n"
    )
    monkeypatch.setenv("LAUNCHER_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["test-bug"])


def test_a_mistyped_verb_is_clicks_error() -> None:
    """Exit code 2 and a hint, no traceback."""
    done = _launcher("submitt")

    assert done.returncode == 2
    assert "submitt" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_polite() -> None:
    """`launcher ... | head -0` ends without a word on stderr."""
    Path("train.py").write_text("print(1)\n")
    env = {**os.environ, "PYTHONPATH": str(Path(main_module.__file__).parents[2])}
    read, write = os.pipe()
    os.close(read)
    words = [*START, "plan", "train.py", "--backend", "local"]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, check=False, env=env)
    os.close(write)

    assert done.stderr == b""
    assert done.returncode in (1, 141)  # click's own, or ours when the pipe closes later


def test_interrupting_is_polite() -> None:
    """Ctrl-C ends a waiting verb with 130 and no traceback."""
    run = Path("runs/net-1121-0842-k7f")
    (run / "logs").mkdir(parents=True)
    (run / "spec.json").write_text("{}")
    (run / "submitit").mkdir()
    submission = {"backend": "local", "pid": os.getpid(), "pid_started": None, "host": None}
    (run / "submission.json").write_text(json.dumps(submission))
    log = run / "logs/attempt-0/round-0/rank-00000.log"
    log.parent.mkdir(parents=True)
    log.write_text("first line\n")
    env = {**os.environ, "PYTHONPATH": str(Path(main_module.__file__).parents[2])}
    words = [*START, "logs", "k7f", "-f"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "first line\n"  # it follows now
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()

    assert (process.returncode, err.strip()) == (130, "stopped")


@pytest.mark.parametrize("ignored", [False, True])
def test_interrupting_the_commands_own_imports_is_polite(tmp_path: Path, ignored: bool) -> None:
    """Half a second in which Ctrl-C was a traceback; a shell shows the end by it as 130. Behind nohup or `&` it stays ignored."""
    (tmp_path / "click.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('goes on', flush=True)\nos._exit(3)\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(main_module.__file__).parents[2]}"}
    trap = "trap '' INT; " if ignored else ""
    words = ["/bin/bash", "-c", f'{trap}exec "$@"', "bash", sys.executable, "-m", "launcher", "ls"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)

    assert (done.returncode, done.stdout, done.stderr) == (
        (3, "goes on\n", "") if ignored else (-signal.SIGINT, "", "")
    )


def test_interrupting_is_polite_while_a_dataclass_is_made() -> None:
    """A KeyboardInterrupt within an exec(), where Python would end `python -m` by the signal, ends with 130 too."""
    Path("interrupted.py").write_text(
        "import sys\n"
        "from launcher.cli import main\n"
        "main.cli.main = lambda **_: exec('raise KeyboardInterrupt')\n"
        "sys.exit(main.main([]))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(main_module.__file__).parents[2])}
    words = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)

    assert (done.returncode, done.stderr) == (130, "stopped\n")


def test_plan_as_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """Overrides and the script's own arguments arrive; nothing is made on disk."""
    Path("train.py").write_text("print(1)\n")
    code = main(
        [
            "plan",
            "train.py",
            "resources.tasks_per_node=3",
            "--json",
            "--backend",
            "local",
            "--",
            "--lr",
            "0.1",
            "--",
            "x=1",
        ]
    )
    value = json.loads(capsys.readouterr().out)

    assert code == 0
    assert value["spec"]["work"] == {
        "kind": "script",
        "target": "train.py",
        "args": ["--lr", "0.1", "--", "x=1"],
        "params": {},
    }
    assert value["world_size"] == 3
    assert [p.name for p in Path().iterdir()] == ["train.py"]


def test_modules_are_named_as_python_does(capsys: pytest.CaptureFixture[str]) -> None:
    """-m MODULE stands in place of the job."""
    Path("lab").mkdir()
    Path("lab/__init__.py").touch()
    Path("lab/train.py").write_text("print(1)\n")

    assert main(["plan", "--backend", "local", "--json", "-m", "lab.train", "seed=7"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["spec"]["work"]["kind"], value["spec"]["work"]["target"], value["spec"]["seed"]) == (
        "module",
        "lab.train",
        7,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["plan"],
        ["plan", "a=1"],
        ["plan", "a.py", "--nodes", "2"],
        ["submit", "a.yaml", "then"],
        ["submit", "then", "b.yaml"],
    ],
)
def test_command_lines_that_cannot_be_read(words: list[str]) -> None:
    """Usage errors are click's: exit code 2."""
    assert main(words) == 2


def test_a_verb_that_does_not_exist_names_a_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the finger costs no look into --help."""
    assert main(["stauts"]) == 2
    assert "Did you mean status?" in capsys.readouterr().err


def test_output_that_cannot_be_written_is_told_with_its_text() -> None:
    """A full disk behind `>`: what a verb did stays done, so its words are not lost, and nothing is called an internal error."""
    env = {**os.environ, "PYTHONPATH": str(Path(main_module.__file__).parents[2])}
    with open("/dev/full", "w") as full:
        said = subprocess.run([*START, "ls"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=env)

    assert said.returncode == 1
    assert said.stderr == (
        "launcher: the output cannot be written (no space left on device); it was: no runs found; launcher submit job.yaml starts one\n"
    )


def test_a_chain_is_checked_before_its_first_job_is_queued(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault of the second job is said while nothing is submitted; words behind -- are the second job's."""
    for name in ("first", "second"):
        Path(f"{name}.py").write_text("print(1)\n")
    planned: list[object] = []
    monkeypatch.setattr("launcher.cli._submitting.submit_job", lambda loaded, *_: planned.append(loaded))

    assert main(["submit", "first.py", "then", "missing.py", "--backend", "local"]) == 4
    assert main(["submit", "first.py", "then", "second.py", "resources.tasks_per_node=0", "--backend", "local"]) == 3
    assert planned == []
    capsys.readouterr()
    Path("first.yaml").write_text("script: first.py\nargs: [--data, big]\n")
    with pytest.raises(AttributeError):  # nothing was submitted, which is all that submit_job has to tell
        cli.main(
            ["submit", "first.yaml", "then", "second.py", "--backend", "local", "--", "--lr", "3"],
            standalone_mode=False,
        )
    assert [loaded.job.args for loaded in planned] == [["--data", "big"]]


@pytest.mark.quiet
@pytest.mark.parametrize(
    ("words", "limit_s"), [(["--help"], 0.3), (["plan", "train.py", "--backend", "local"], 1.2)], ids=["help", "plan"]
)
def test_verbs_start_quickly(words: list[str], limit_s: float) -> None:
    """--help under 100 ms and plan under 400 ms: CPU time (other load does not count), limits three times that."""
    Path("train.py").write_text("print(1)\n")
    env = {**os.environ, "PYTHONPATH": str(Path(main_module.__file__).parents[2])}
    times = []
    for _ in range(15):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*START, *words], capture_output=True, check=True, env=env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    assert min(times) < limit_s


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("run train.py --max_iters=20", "launcher run train.py -- --max_iters=20"),
        ("plan train.py seed=1 --lr 3 preflight=false", "launcher plan train.py -- --lr 3"),
        ("submit --compile train.py", "launcher submit train.py -- --compile"),
        ("dry-run -m lab.train --amp preflight=false", "launcher dry-run -m lab.train -- --amp"),
        ("plan train.py -hx", "launcher plan train.py -- -x"),
        ("run train.py lr=0.5 seed=1", "launcher run train.py -- lr=0.5"),
        ("plan -m lab.train config/gpt.py model.width=8", "launcher plan -m lab.train -- config/gpt.py model.width=8"),
        ("plan train.py nodes=2", ""),
        ("plan train.py resources.node=2", ""),
        ("plan job.yaml lr=0.5", ""),
        ("plan job.yaml --lr 3", ""),
    ],
)
def test_arguments_of_a_script_are_sent_behind_the_dashes(
    words: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word that is no key or option, beside a script: the error ends with a command that hands it to the script.

    A mistyped key of the job gets no such hint, nor does a job file.
    """
    (tmp_path / "lab").mkdir()
    for name in ("train.py", "lab/__init__.py", "lab/train.py"):
        (tmp_path / name).touch()
    (tmp_path / "job.yaml").write_text("script: train.py\n")
    monkeypatch.chdir(tmp_path)

    assert main(words.split()) in (2, 3)
    said = capsys.readouterr().err
    assert said.endswith(f"Write arguments of the script after --: {hint}\n" if hint else said)
    assert ("after --" in said) == bool(hint)


def test_a_local_run_that_waits_for_another_is_not_said_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its leader waits for the run in `after`."""
    spec = SimpleNamespace(
        id="b-1121-0842-k7f", gpus_per_node=0, after=[{"kind": "ok", "run_dir": "/runs/a-1121-0800-abc"}]
    )
    plan = SimpleNamespace(spec=spec, backend="local", warnings=(), run_dir="/runs/b-1121-0842-k7f")
    print_submitted(SimpleNamespace(plan=plan, paths=RunPaths(tmp_path / spec.id), job_id=""))  # type: ignore[arg-type]

    assert capsys.readouterr().out.startswith(f"{spec.id} submitted: on this machine, waiting for a-1121-0800-abc\n")


@pytest.mark.parametrize("after", [[], ["after=first"]], ids=["without", "with"])
def test_a_hold_says_that_it_waits_for_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], after: list[str]
) -> None:
    """`after` is the job's, of which nothing runs yet; a rerun starts at once."""
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    plan = SimpleNamespace(
        spec=SimpleNamespace(id="hold-t"), backend="local", warnings=("one",), run_dir="/runs/hold-t"
    )
    one = SimpleNamespace(plan=plan, paths=RunPaths(tmp_path / "hold-t"), job_id="")
    monkeypatch.setattr("launcher.submission.reruns.submit_hold.submit_hold", lambda *_: one)
    monkeypatch.setattr("launcher.submission.liveness.locate", lambda _: SimpleNamespace(in_foreign_job=False))

    assert main(["hold", "train.py", *after]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  warning")]
    assert told == [
        "  warning  one",
        *(["  warning  after: a hold waits for no run, and neither do its reruns"] if after else []),
    ]
