"""SLURM's TERM and USR2 reach every process of a step: what they do to scripts, attached or not, and to what scripts start."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest
from crew import Crew, wait_for
from scripted import script, spec_of

LOADS = """
import os, signal, sys, threading
import torch
import torch.distributed as dist
import launcher
from torch.utils.data import DataLoader


class Data(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield torch.ones(1)


def main(method, when):
    dist.init_process_group("gloo")
    loader = iter(DataLoader(Data(), batch_size=1, num_workers=2, multiprocessing_context=method, persistent_workers=True))
    if when == "after":
        del loader
    run = launcher.attach()
    if when == "after":
        loader = iter(DataLoader(Data(), batch_size=1, num_workers=2, multiprocessing_context=method))
    total = torch.zeros(1)
    run.register(total=Total(total))
    for step in run.steps():
        one = next(loader)[0]
        dist.all_reduce(one)
        total += one
    print("loop over", total.item(), run.steps_done)
    dist.destroy_process_group()


class Total:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value.copy_(state["value"])


if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def signal_everything(crew: Crew, *numbers: int) -> int:
    """What SLURM does to a step: every process of every rank gets the signals. Returns how many children there were.

    The first that is ended may have taken the others along before they are reached.
    """
    children = 0
    for process in crew.processes.values():
        below = psutil.Process(process.pid).children(recursive=True)
        children += len(below)
        for number in numbers:
            for one in [*(c.pid for c in below), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, number)
    return children


def progress(crew: Crew, beyond: int = 0) -> int:
    """Wait for a rank to be this many steps further than now."""
    first = crew.until(lambda _, m: m["type"] == "progress")[1]["step"]
    return int(crew.until(lambda _, m: m["type"] == "progress" and m["step"] > first + beyond)[1]["step"])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_attached_script_with_loaders_outlives_slurms_signals(tmp_path: Path, method: str) -> None:
    """TERM and USR2 to the script and to its loader workers, opened after `attach`: it trains on, stops and saves as agreed."""
    script(tmp_path, LOADS)
    with Crew(spec_of(tmp_path, "train.py", 2, args=[method, "after"]), 2) as crew:
        assert crew.from_all("attached")[0]["type"] == "attached"
        progress(crew, 3)
        assert signal_everything(crew, signal.SIGTERM, signal.SIGUSR2, signal.SIGTERM) >= 4
        progress(crew, 30)
        step = crew.stop_now()
        words = crew.finish()

        assert {(w["type"], w["step"], w["saved"]) for w in words.values()} == {("stopped", step, True)}, crew.logs()
        assert set(crew.exit_codes().values()) == {0}
    assert [path.name for path in crew.committed] == [f"step-{step:08d}"]
    assert f"loop over {2.0 * step} {step}" in crew.logs()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loader_workers_opened_before_attach_take_their_rank_along(tmp_path: Path, method: str) -> None:
    """They do not inherit the block: torch's own handler in them ends them, and the rank tells of it, in whatever words."""
    script(tmp_path, LOADS)
    with Crew(spec_of(tmp_path, "train.py", 1, args=[method, "before"]), 1) as crew:
        progress(crew, 3)
        signal_everything(crew, signal.SIGTERM)
        word = crew.finish()[0]

    assert word["type"] == "failed"


CHILDREN = """
import os, signal, subprocess, sys, time
import launcher
run = launcher.attach()
child = subprocess.Popen(["sleep", "1000"])
open(sys.argv[1], "w").write(str(child.pid))
for step in run.steps():
    time.sleep(0.01)
    if os.path.exists(sys.argv[1] + ".signalled"):
        break
print("child", child.poll())
child.terminate()
print("ended by", child.wait(60))
"""


def test_programs_that_an_attached_script_starts_outlive_the_signals_too(tmp_path: Path) -> None:
    """They inherit the block, not an ignored signal; ``terminate()`` ends them all the same."""
    script(tmp_path, CHILDREN)
    note = tmp_path / "child"
    with Crew(spec_of(tmp_path, "train.py", 1, args=[str(note)]), 1) as crew:
        progress(crew, 3)
        ignored = next(
            line for line in Path(f"/proc/{note.read_text()}/status").read_text().splitlines() if "SigIgn" in line
        )
        signal_everything(crew, signal.SIGTERM, signal.SIGUSR2)
        (tmp_path / "child.signalled").touch()

        assert crew.finish()[0]["type"] == "finished"
        assert crew.exit_codes() == {0: 0}
    assert "child None\nended by -9" in crew.logs()
    assert not int(ignored.split()[1], 16) & (1 << signal.SIGTERM - 1 | 1 << signal.SIGUSR2 - 1)


TAKES_BACK = """
import signal, time
import launcher
heard = []
if {early}:
    signal.signal(signal.SIGTERM, lambda *_: heard.append("TERM"))
run = launcher.attach()
if not {early}:
    signal.signal(signal.SIGTERM, lambda *_: heard.append("TERM"))
for step in run.steps():
    time.sleep(0.01)
    if heard:
        break
print("heard", heard)
"""


@pytest.mark.parametrize("early", [True, False], ids=["handler before attach", "handler after attach"])
def test_a_handler_of_the_scripts_own_is_called_attached_or_not(tmp_path: Path, early: bool) -> None:
    """`attach` leaves a handler that is there alone, and a later ``signal.signal`` takes the signal back."""
    script(tmp_path, TAKES_BACK.format(early=early))
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        progress(crew, 3)
        signal_everything(crew, signal.SIGTERM)
        crew.finish()

        assert crew.exit_codes() == {0: 0}
    assert "heard ['TERM']" in crew.logs()


def test_attach_off_the_main_thread_says_what_it_cannot_do(tmp_path: Path) -> None:
    """Handlers can be set on the main thread alone: a warning names the thread and the remedy."""
    script(tmp_path, "import launcher, threading\nt = threading.Thread(target=launcher.attach)\nt.start()\nt.join()\n")
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        crew.finish()

    (warning,) = crew.messages("warning")
    assert "launcher.attach() was not called on the main thread" in warning["text"]


SAVES_ON_USR2 = """
import os, signal, sys, time
calls = []


def save(number, frame):
    calls.append(signal.Signals(number).name)
    if {inside}:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)


signal.signal(signal.SIGUSR2, save)
if {later}:
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
print("up", flush=True)
while not calls:
    time.sleep(0.01)
time.sleep(0.3)
print("saved for", calls)
"""


@pytest.mark.parametrize("sent", ["SIGTERM", "SIGUSR2"])
@pytest.mark.parametrize("inside", [False, True], ids=["", "TERM while it saves"])
def test_a_script_that_saves_on_usr2_gets_to_it_when_term_comes(tmp_path: Path, sent: str, inside: bool) -> None:
    """It has no handler for TERM, so TERM calls the one for USR2; once, when TERM comes while that one saves."""
    script(tmp_path, SAVES_ON_USR2.format(inside=inside, later=False))
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        wait_for(lambda: "up" in crew.logs())
        os.kill(crew.processes[0].pid, signal.Signals[sent])

        assert crew.exit_codes() == {0: 0}
        crew.finish()
    assert len(crew.messages("handles_usr2")) == 1
    assert "saved for ['SIGUSR2']" in crew.logs()


LEAVES = """
import atexit, os, signal, sys, time
calls = []


def save(number, frame):
    calls.append(signal.Signals(number).name)
    sys.exit(0)


def again():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)


def last():
    again()
    print("saved for", calls)


atexit.register(last)
signal.signal(signal.SIGUSR2, save)
print("up", flush=True)
try:
    while True:
        time.sleep(0.01)
finally:
    again()
"""


def test_a_script_that_leaves_after_it_saved_does_not_save_again(tmp_path: Path) -> None:
    """SLURM's USR2 called its handler, which ended the script; the TERM that follows finds it in a ``finally``, then at its exit."""
    script(tmp_path, LEAVES)
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        wait_for(lambda: "up" in crew.logs())
        os.kill(crew.processes[0].pid, signal.SIGUSR2)

        assert crew.exit_codes() == {0: 0}
        crew.finish()
    assert "saved for ['SIGUSR2']" in crew.logs()


def test_a_script_that_lets_go_of_usr2_dies_of_term_again(tmp_path: Path) -> None:
    """Its handler for USR2 was taken back: TERM has its default effect."""
    script(tmp_path, SAVES_ON_USR2.format(inside=False, later=True))
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        wait_for(lambda: "up" in crew.logs())
        os.kill(crew.processes[0].pid, signal.SIGTERM)

        assert crew.exit_codes() == {0: -signal.SIGTERM}
        crew.finish()
    assert len(crew.messages("handles_usr2")) == 1


FORKS = """
import os, signal, sys, time
{attach}
pid = os.fork()
if pid == 0:
    signal.signal(signal.SIGUSR2, lambda *_: None)
    {child}
os.kill(pid, signal.SIGTERM) if {kill} else None
print("child", os.waitpid(pid, 0)[1])
"""


@pytest.mark.parametrize("attach", ["", "import launcher; launcher.attach()"], ids=["plain", "attached"])
@pytest.mark.parametrize("child", ["sys.exit(0)", "raise ValueError"])
def test_a_child_that_a_script_forks_does_not_speak_for_the_rank(tmp_path: Path, attach: str, child: str) -> None:
    """Its end comes back through the launcher's frames: it is neither the rank's end nor its failure."""
    script(tmp_path, FORKS.format(attach=attach, child=child, kill=False))
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        crew.finish()

        assert crew.exit_codes() == {0: 0}
    assert [m["code"] for m in crew.messages("over")] == [0]
    assert not crew.messages("failed")
    assert len(crew.messages("finished")) == bool(attach)


def test_a_child_that_attaches_hears_nothing_in_the_place_of_the_rank(tmp_path: Path) -> None:
    """It is outside the run, as a program that the script starts: it took the leader's messages, and the rank did not stop."""
    text = """
import os, time
import launcher
ready, attached = os.pipe()
alive, parent = os.pipe()
if os.fork() == 0:
    os.close(parent)
    run = launcher.attach()
    print("child", list(run.steps(2)), run.run_dir, flush=True)
    os.write(attached, b"!")
    os.read(alive, 1)  # until the parent has ended
    os._exit(0)
os.read(ready, 1)
for step in launcher.attach().steps():
    time.sleep(0.02)
"""
    script(tmp_path, text)
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        progress(crew, 3)
        step = crew.stop_now()
        word = crew.finish()[0]

        assert (word["type"], word["step"]) == ("stopped", step)
        assert "child [0, 1] None" in crew.logs()


def test_a_child_with_a_handler_for_usr2_dies_of_term(tmp_path: Path) -> None:
    """Only the script itself is asked to save by it: ``terminate()`` ends its children."""
    script(
        tmp_path,
        FORKS.format(attach="", child="time.sleep(1000)", kill=True).replace(
            "os.kill(pid", "time.sleep(0.5); os.kill(pid"
        ),
    )
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        crew.finish()

        assert crew.exit_codes() == {0: 0}
    assert f"child {int(signal.SIGTERM)}" in crew.logs()


def test_a_handler_that_python_does_not_know_stays(tmp_path: Path) -> None:
    """faulthandler's for USR2: `attach` leaves it, and the stacks are dumped."""
    text = (
        "import faulthandler, signal, time, launcher\nfaulthandler.register(signal.SIGUSR2)\nrun = launcher.attach()\n"
        "for step in run.steps(): time.sleep(0.02)\n"
    )
    script(tmp_path, text)
    log = tmp_path / "run" / "rank-0.log"
    with Crew(spec_of(tmp_path, "train.py"), 1) as crew:
        progress(crew, 3)
        signal_everything(crew, signal.SIGUSR2)
        wait_for(lambda: "most recent call first" in log.read_text())
        step = crew.stop_now()
        word = crew.finish()[0]

        assert (word["type"], word["step"]) == ("stopped", step)
        assert crew.exit_codes() == {0: 0}
