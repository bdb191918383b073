"""Scripts and modules run as under python or torchrun, and ``launcher.attach()`` gives them the rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew, make_spec, run, wait_for
from scripted import script, spec_of

from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec
from launcher.run.worker_texts import UNREAD, UNSAVED
from launcher.training.start.scripts import tracker_variables

LOOK = """
import atexit, dataclasses, json, multiprocessing, os, pickle, signal, sys, threading, time
from torch.utils.data import DataLoader


@dataclasses.dataclass
class Options:
    lr: float = 0.1


class Item:
    def __init__(self, n):
        self.n = n


def double(items):
    return [2 * i.n for i in items]


class Data:
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return Item(i)


def left():
    # The queues' feeder threads of a DataLoader end a moment after it.
    end = time.monotonic() + 120
    while threading.active_count() > 1 and time.monotonic() < end:
        time.sleep(0.01)
    return threading.active_count()


def look():
    return {
        "name": __name__,
        "file": __file__,
        "types": [f.type is float for f in dataclasses.fields(Options)],
        "builtins": type(__builtins__).__name__,
        "argv": sys.argv,
        "path0": sys.path[0],
        "main": sys.modules["__main__"].__dict__ is globals(),
        "threads": threading.active_count(),
        "blocked": sorted(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "term": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "method": multiprocessing.get_start_method(allow_none=True),
        "parent": multiprocessing.parent_process() is None,
        "process": multiprocessing.current_process().name,
        "pickled": pickle.loads(pickle.dumps(Item(3))).n,
        "loaded": [x for b in DataLoader(Data(), batch_size=2, num_workers=2, collate_fn=double) for x in b],
        "ours": sorted(k for k in os.environ if k.startswith("LAUNCHER_")),
        "ranks": [os.environ[k] for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE")],
        "threads_left": left(),
    }


if __name__ == "__main__":
    out = sys.argv[1]
    json.dump(look(), open(f"{out}.{os.environ.get('RANK', 0)}", "w"))
    atexit.register(lambda: open(f"{out}.exit", "w").write("ran"))
"""


def test_a_script_sees_what_python_would_show_it(tmp_path: Path) -> None:
    """Name, file, arguments, path, threads, signals, multiprocessing and loader processes are as under plain python."""
    path = script(tmp_path, LOOK)
    out = tmp_path / "seen"
    run(spec_of(tmp_path, "train.py", 2, args=[str(out), "--lr", "0.1"]), 2)
    environment = {**os.environ, "RANK": "9", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "x"}
    environment["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    command = [sys.executable, path.name, str(out), "--lr", "0.1"]
    subprocess.run(command, cwd=path.parent, env=environment, check=True, timeout=300)
    ours, plain = (json.loads(Path(f"{out}.{rank}").read_text()) for rank in (1, 9))

    assert ours.pop("ranks") == ["1", "2", "1", "127.0.0.1", "True"]
    assert ours.pop("ours") == ["LAUNCHER_ATTEMPT", "LAUNCHER_ROUND", "LAUNCHER_RUN_DIR"]
    assert [plain.pop(key) is None for key in ("ranks", "ours")] == [False, False]
    assert ours == plain
    assert Path(f"{out}.exit").read_text() == "ran"


def test_a_module_runs_as_with_dash_m(tmp_path: Path) -> None:
    """``-m package`` runs its ``__main__`` with relative imports, the working directory first on the path."""
    package = tmp_path / "code" / "lab"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("VALUE = 41\n")
    (package / "__main__.py").write_text(
        "import sys\nfrom .other import VALUE\nopen(sys.argv[1], 'w').write(f'{VALUE + 1} {__name__} {__package__} {sys.path[0]}')\n"
    )
    run(spec_of(tmp_path, "lab", kind="module", args=[str(tmp_path / "out")]), 1)

    assert (tmp_path / "out").read_text() == f"42 __main__ lab {tmp_path / 'code'}"


@pytest.mark.parametrize(
    ("text", "code", "printed"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('sorry')", 1, "sorry"),
        ("raise SystemExit(0)", 0, ""),
        ("print('done')", 0, "done"),
        ("import os; os._exit(5)", 5, ""),
    ],
)
def test_exit_codes_are_pythons(tmp_path: Path, text: str, code: int, printed: str) -> None:
    """Numbers, nothing, text and hard exits come out as python gives them."""
    script(tmp_path, text)
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        crew.finish()

        assert crew.exit_codes() == {0: code}
        assert printed in crew.logs()


@pytest.mark.parametrize("end", ["sys.exit(text)", "raise ValueError(text)", "raise KeyError(text)"])
def test_no_part_of_a_passed_value_is_told_of_a_scripts_end(tmp_path: Path, end: str) -> None:
    """A message is shortened without the values that were passed, also where the script has taken them out of its environment."""
    passed = {"DB": """pa'ss\\w0rd"xyz99"""}
    text = f"import os, sys\ntext = 'x' * 3994 + os.environ.pop('DB')\n{end}"
    script(tmp_path, text)
    with Crew(spec_of(tmp_path, "train.py", pass_names=["DB"]), 1, environment=passed) as crew:
        crew.finish()
        (failed,) = crew.messages("failed")

    assert "xxx" in failed["message"]
    assert "pa" not in failed["message"]


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("sys.exit('sorry')", 1), ("1 / 0", 1), ("pass", 0)])
def test_exit_functions_run_however_a_script_ends(tmp_path: Path, end: str, code: int) -> None:
    """As under python: threads are waited for, then exit functions run; a failure has been told before that."""
    thread = "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()"
    script(
        tmp_path,
        f"import atexit, sys, threading, time\natexit.register(lambda: print('exit function'))\n{thread}\n{end}\n",
    )
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        words = crew.finish()

        assert crew.exit_codes() == {0: code}
    assert crew.logs().index("thread") < crew.logs().index("exit function")
    if "exit" in end:
        assert (words[0]["type"], words[0]["exit_code"]) == ("failed", code)


def test_a_scripts_exception_is_reported_and_shown_as_python_shows_it(tmp_path: Path) -> None:
    """``failed`` names the script's line; the log has python's traceback without a frame of the launcher; exit code 1."""
    script(tmp_path, "def work():\n    return 1 / 0\n\n\nwork()\n")
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        word = crew.finish()[0]

        assert crew.exit_codes() == {0: 1}
    assert (word["exception"], word["message"], word["kind"]) == ("ZeroDivisionError", "division by zero", "exception")
    assert [(f["function"], f["line"], f["code"]) for f in word["frames"]] == [
        ("work", 2, "return 1 / 0"),
        ("<module>", 5, "work()"),
    ]
    assert "ZeroDivisionError" in crew.logs()
    assert "launcher/training" not in crew.logs()


@pytest.mark.parametrize(
    ("hook", "shown"),
    [
        (
            "sys.excepthook = lambda kind, error, trace: print(kind.__name__, error, 'seen by the hook')",
            "seen by the hook",
        ),
        (
            "import torch.distributed as dist; dist.init_process_group('gloo')",
            "[rank0]: ZeroDivisionError: division by zero",
        ),
        ("sys.excepthook = lambda *_: 1 + 'x'", "Error in sys.excepthook:"),
    ],
    ids=["the script's own", "torch's", "one that fails"],
)
def test_what_nobody_caught_is_shown_by_the_excepthook(tmp_path: Path, hook: str, shown: str) -> None:
    """As Python does: rich, sentry and torch (its rank before each line) have hooks of their own; the exit code stays 1."""
    script(tmp_path, f"import sys\n{hook}\n1 / 0\n")
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        word = crew.finish()[0]

        assert crew.exit_codes() == {0: 1}
    assert word["exception"] == "ZeroDivisionError"
    log = (tmp_path / "run" / "rank-0.log").read_text()
    assert shown in log
    assert "launcher/training" not in log
    assert ("Original exception was:" in log) == shown.startswith("Error")


def test_torchruns_record_takes_nothing_from_what_is_reported(tmp_path: Path) -> None:
    """A main decorated for torchrun's error files, of which there are none here: its exception is reported like any other."""
    script(
        tmp_path,
        "from torch.distributed.elastic.multiprocessing.errors import record\n\n\n"
        "@record\ndef main():\n    return 1 / 0\n\n\nmain()\n",
    )
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        word = crew.finish()[0]

        assert crew.exit_codes() == {0: 1}
    assert (word["exception"], word["message"]) == ("ZeroDivisionError", "division by zero")
    assert ("main", 6, "return 1 / 0") in [(f["function"], f["line"], f["code"]) for f in word["frames"]]
    assert "ZeroDivisionError" in crew.logs()


@pytest.mark.parametrize(
    ("target", "kind", "exception", "words"),
    [
        ("gone.py", "script", "launcher.errors.CodeError", "script gone.py cannot be read"),
        ("no.such", "module", "ModuleNotFoundError", "no"),
        ("broken.py", "script", "SyntaxError", "broken.py"),
    ],
)
def test_scripts_that_cannot_start_are_reported(
    tmp_path: Path, target: str, kind: str, exception: str, words: str
) -> None:
    """A missing script, a missing module and bad syntax each give one ``failed`` message."""
    script(tmp_path, "def (:\n", "broken.py")
    with Crew(spec_of(tmp_path, target, kind=kind), 1) as crew:
        word = crew.finish()[0]

    assert word["exception"] == exception
    assert words in word["message"]


def test_a_script_dies_of_term_like_any_program(tmp_path: Path) -> None:
    """TERM has its default effect; a handler of the script's own is its own."""
    script(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        crew.until(lambda rank, m: m["type"] == "phase" and m["name"] == "script")
        log = tmp_path / "run" / "rank-0.log"
        wait_for(lambda: "up" in log.read_text())
        os.kill(crew.processes[0].pid, signal.SIGTERM)

        assert crew.exit_codes() == {0: -signal.SIGTERM}


ATTACHED = """
import os, sys, time
import torch
import torch.distributed as dist
import launcher

dist.init_process_group("gloo")
run = launcher.attach()
steps, out = int(sys.argv[1]), sys.argv[2]
total = torch.zeros(1)
if run.resume_path is not None:
    total = torch.load(run.resume_path / f"part-{dist.get_rank()}.pt", weights_only=True)
    open(out, "a").write(f"resumed {run.steps_done}\\n")
while run.steps_done < steps:
    one = torch.ones(1)
    dist.all_reduce(one)
    total += one
    time.sleep(float(sys.argv[3]))
    run.step(total=total)
    if run.should_stop() or run.should_save():
        with run.save_dir() as folder:
            if folder is not None:
                torch.save(total, folder / f"part-{dist.get_rank()}.pt")
    if run.should_stop():
        dist.destroy_process_group()
        sys.exit(0)
if dist.get_rank() == 0:
    open(out, "a").write(f"total {total.item()}\\n")
dist.destroy_process_group()
"""


def test_an_attached_script_stops_saves_and_resumes(tmp_path: Path) -> None:
    """``attach``: the agreed stop through ``should_stop`` and ``save_dir`` (each rank's file committed), then a resume."""
    script(tmp_path, ATTACHED)
    out = tmp_path / "out"
    with Crew(spec_of(tmp_path, "train.py", 3, args=["100000", str(out), "0.005"]), 3) as crew:
        crew.until(lambda rank, m: m["type"] == "progress" and m["step"] > 3)
        step = crew.stop_now()
        words = crew.finish()
        assert {(w["type"], w["step"], w["saved"]) for w in words.values()} == {("stopped", step, True)}, crew.logs()
        assert set(crew.exit_codes().values()) == {0}
    path = crew.paths.checkpoint(step)
    assert sorted(p.name for p in path.glob("*.pt")) == ["part-0.pt", "part-1.pt", "part-2.pt"]
    again = run(spec_of(tmp_path, "train.py", 3, args=[str(step + 5), str(out), "0"]), 3, resume=path, attempt=1)

    assert {m["step"] for m in again.messages("finished")} == {step + 5}
    assert sorted(set(out.read_text().splitlines())) == [f"resumed {step}", f"total {3.0 * (step + 5)}"]


def test_an_attached_script_saves_when_asked(tmp_path: Path) -> None:
    """The leader's ``save_at`` shows as ``should_save`` on every rank at that step, and the folder is committed."""
    script(tmp_path, ATTACHED)
    spec = spec_of(tmp_path, "train.py", 2, args=["60", str(tmp_path / "out"), "0.001"])
    with Crew(spec, 2, first=[{"type": "save_at", "id": 1, "step": 40}]) as crew:
        assert crew.agree_save(40)
        words = crew.finish()

    assert {w["type"] for w in words.values()} == {"finished"}, crew.logs()
    assert [path.name for path in crew.committed] == ["step-00000040"]


AGAIN = """
import torch
import torch.distributed as dist
import launcher

dist.init_process_group("gloo")
run = launcher.attach()
def save(word):
    with run.save_dir() as folder:
        dist.barrier()
        torch.save(word, folder / f"part-{run.rank}.pt")
for step in run.steps(20):
    run.step()
    if run.should_save():
        save("in the loop")
save("behind it")
"""


def test_a_second_save_of_the_same_step_is_harmless(tmp_path: Path) -> None:
    """A save that was due at the last step, and the script's final one: the first counts, the leader may be committing it."""
    script(tmp_path, AGAIN)
    spec = make_spec(
        tmp_path / "run", "train.py", 2, kind="script", code_dir=str(tmp_path / "code"),
        checkpoint=CheckpointSpec(interval_steps=10),
    )  # fmt: skip
    with Crew(spec, 2) as crew:
        words = crew.finish()

        assert {w["type"] for w in words.values()} == {"finished"}, crew.logs()
    assert [path.name for path in crew.committed] == ["step-00000010", "step-00000020"]
    assert torch.load(crew.committed[-1] / "part-1.pt", weights_only=True) == "in the loop"


GOES_ON = """
import launcher, torch
run = launcher.attach()
model = torch.nn.Linear(2, 2)
run.register(model=model)
for step in run.steps():
    with torch.no_grad():
        model.weight += 1
    run.step()
for _ in range(3):
    with torch.no_grad():
        model.weight += 1
    run.step()
"""


def test_steps_after_the_agreed_stop_do_not_count(tmp_path: Path) -> None:
    """A script that does not leave at once goes past the agreed step; what was saved there, and what is told, stays."""
    script(tmp_path, GOES_ON)
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        crew.until(lambda rank, m: m["type"] == "progress" and m["step"] > 3)
        step = crew.stop_now()
        word = crew.finish()[0]

        assert (word["type"], word["step"], word["saved"]) == ("stopped", step, True), crew.logs()
        assert crew.exit_codes() == {0: 0}
    assert [path.name for path in crew.committed] == [f"step-{step:08d}"]
    assert max(m["step"] for m in crew.messages("progress")) <= step
    assert [m["step"] for m in crew.messages("shard")] == [step]


SLOW_FIRST = """
import launcher, os, time, torch
run = launcher.attach()
model = torch.nn.Linear(2, 2)
run.register(model=model)
for step in run.steps(5):
    if step == 0:
        print("in the first step", flush=True)
        while not os.path.exists(os.environ["LAUNCHER_RUN_DIR"] + "/go"):
            time.sleep(0.01)
time.sleep(0.1)
"""


def test_the_first_step_counts_from_its_beginning(tmp_path: Path) -> None:
    """A stop that comes into it ends after it, with its state saved: nobody takes the rank for one that has not begun."""
    script(tmp_path, SLOW_FIRST)
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        wait_for(lambda: "in the first step" in crew.logs())
        step = crew.stop_now()
        (tmp_path / "run" / "go").touch()
        word = crew.finish()[0]

    assert (step, word["type"], word["step"], word["saved"]) == (1, "stopped", 1, True)


def test_the_lines_behind_the_loop_are_the_scripts_own_business(tmp_path: Path) -> None:
    """A step has a learned limit; an upload behind the last one has none: the phase says which is which."""
    script(tmp_path, SLOW_FIRST)
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "go").touch()
    crew = run(spec_of(tmp_path, "train.py"), 1)

    assert [m["name"] for m in crew.messages("phase")] == ["script", "train", "save", "train", "script", "save"]


COUNTS = """
import launcher, sys
run = launcher.attach()
if "register" in sys.argv:
    run.register(own=Own())
for step in run.steps(4):
    run.step()
    if "fills" in sys.argv and run.should_save():
        with run.save_dir() as folder:
            (folder / "state").touch()
"""


@pytest.mark.parametrize(
    ("way", "rules", "told"),
    [
        ("nothing", {}, True),
        ("nothing", {"watch": "*.ckpt"}, False),
        ("nothing", {"enabled": False}, False),
        ("fills", {}, False),
        ("register", {}, False),
    ],
)
def test_steps_that_nobody_saves_are_told(tmp_path: Path, way: str, rules: dict[str, Any], told: bool) -> None:
    """Once, at the second step: before that the script may not have asked whether to fill a folder."""
    own = "class Own:\n    def state_dict(self): return {'a': 1}\n    def load_state_dict(self, state): pass\n"
    script(tmp_path, own + COUNTS)
    spec = make_spec(
        tmp_path / "run", "train.py", 1, kind="script", code_dir=str(tmp_path / "code"), args=[way],
        checkpoint=CheckpointSpec(interval_min=1000, **rules),
    )  # fmt: skip
    with Crew(spec, 1) as crew:
        crew.finish()

        assert crew.exit_codes() == {0: 0}, crew.logs()
    assert [word["text"] for word in crew.messages("warning")] == [UNSAVED] * told


FORGETS = """
import launcher, sys, time
run = launcher.attach()
if "asks" in sys.argv:
    run.resume_path
for step in run.steps(int(sys.argv[1])):
    time.sleep(float(sys.argv[2]))
    run.step()
    if run.should_save() or run.should_stop():
        with run.save_dir() as folder:
            (folder / "state").touch()
    if run.should_stop():
        sys.exit()
"""


@pytest.mark.parametrize("way", ["asks", "forgets"])
def test_a_folder_that_a_resume_does_not_ask_for_is_told(tmp_path: Path, way: str) -> None:
    """Steps go on from where it was saved: a script that does not read it would train new weights from there on."""
    script(tmp_path, FORGETS)
    with Crew(spec_of(tmp_path, "train.py", args=["100000", "0.005", way]), 1) as crew:
        crew.until(lambda rank, m: m["type"] == "progress" and m["step"] > 3)
        step = crew.stop_now()
        crew.finish()
    path = crew.paths.checkpoint(step)
    again = run(spec_of(tmp_path, "train.py", args=[str(step + 9), "0", way]), 1, resume=path, attempt=1)

    assert [word["text"] for word in crew.messages("warning")] == []
    assert [word["text"] for word in again.messages("warning")] == [UNREAD] * (way == "forgets")


def test_attach_does_nothing_outside_a_run(tmp_path: Path) -> None:
    """The same script under plain torchrun variables runs to its end: no saves, no stops."""
    path = script(tmp_path, ATTACHED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LAUNCHER_")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    out = tmp_path / "out"
    subprocess.run([*command, "7", str(out), "0"], env=environment, check=True, timeout=300, capture_output=True)

    assert out.read_text() == "total 14.0\n"


def test_tracker_ids_are_the_runs_own(tmp_path: Path) -> None:
    """Every life of a rank is told the same ids; only rank 0 has the run's, so that no two write one W&B run."""
    spec = make_spec(tmp_path / "run", "x.py", 2, kind="script", trackers={"wandb": {"project": "p", "mode": None}})
    paths = RunPaths(tmp_path / "run")
    first, second = (tracker_variables(spec, paths, rank) for rank in (0, 1))

    assert ("run", "run-rank1") == (first["WANDB_RUN_ID"], second["WANDB_RUN_ID"])
    assert ("allow", "p", str(paths.trackers)) == tuple(first[f"WANDB_{k}"] for k in ("RESUME", "PROJECT", "DIR"))
    assert "WANDB_MODE" not in first
    assert str(paths.trackers / "tensorboard") == first["TENSORBOARD_LOGGING_DIR"]


EXITS = """
import ctypes, launcher, operator, signal, sys, torch
run = launcher.attach()
model = torch.nn.Linear(2, 2)
run.register(model=model)
run.step()
signal.signal(signal.SIGALRM, lambda *_: sys.exit(0))
pending = ctypes.pythonapi.PyErr_SetInterruptEx
pending.argtypes = [ctypes.c_int]
list(map(pending, map(operator.floordiv, [signal.SIGALRM, 1], [1, 0])))  # see test_worker_main.py
"""


def test_a_handler_that_exits_before_the_report_makes_no_success(tmp_path: Path) -> None:
    """The script has failed: no last checkpoint, no ``finished``, exit code 1."""
    script(tmp_path, EXITS)
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        words = crew.finish()

        assert crew.exit_codes() == {0: 1}
    assert words[0]["type"] == "failed"
    assert not crew.messages("finished")
