"""Scripts find what they would find under python: modules, signals, an end of their own; and the worker's own loops end them well."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from crew import Crew, make_spec, run, script_spec

BEGIN = """
import os, pathlib, time
import torch
import launcher
run = launcher.attach()
torch.manual_seed(run.rank)
model = torch.nn.Linear(4, {width})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.register(model=model, optimizer=optimizer)
def train(batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


def test_a_script_that_ends_by_os_exit_has_saved_its_last_step(tmp_path: Path) -> None:
    """What writes a checkpoint beside the script would end with it: the last planned step is saved before its loop ends."""
    text = BEGIN.format(width=1_000_000) + "for step in run.steps(3):\n    train(torch.ones(2, 4))\nos._exit(0)\n"
    with Crew(script_spec(tmp_path, text, 1), 1) as crew:
        crew.until(lambda _, message: message["type"] == "shard" and message["step"] == 3)
        assert crew.exit_codes() == {0: 0}

    assert crew.committed[-1].name == "step-00000003"


def test_batches_of_an_attached_script_end_at_the_agreed_stop(tmp_path: Path) -> None:
    """The loop leaves the script by an exception that is no failure: it has saved, and ends with 0."""
    loop = "for batch in run.batches(torch.ones(4000, 4), 4, epochs=1):\n    train(batch)\n    time.sleep(0.01)\n"
    with Crew(script_spec(tmp_path, BEGIN.format(width=4) + loop, 1), 1) as crew:
        crew.until(lambda _, message: message["type"] == "progress" and message["step"] >= 2)
        step = crew.stop_now()
        words = crew.finish()
        codes = crew.exit_codes()

    assert (words[0]["type"], words[0]["step"], words[0]["saved"], codes) == ("stopped", step, True, {0: 0})
    assert crew.messages("failed") == []


@pytest.mark.parametrize("name", ["code", "link"])
def test_a_script_in_a_subfolder_finds_packages_before_what_lies_beside_it(tmp_path: Path, name: str) -> None:
    """python has the script's own folder first: a folder `wave` at the code's root must not hide the module; the root is still there.

    Below a link (`code.snapshot: false`, or runs in a linked $SCRATCH) the root has another name than the kernel gives it.
    """
    code = tmp_path / "code"
    for folder in ("wave", "sub"):
        (code / folder).mkdir(parents=True)
    (code / "wave" / "__init__.py").touch()
    (code / "beside.py").touch()
    (code / "sub" / "train.py").write_text("import wave, beside\nopen('../found', 'w').write(wave.__file__)\n")
    (tmp_path / "link").symlink_to(code)
    run(make_spec(tmp_path, "sub/train.py", 1, kind="script", code_dir=str(tmp_path / name)), 1)

    assert (tmp_path / "found").read_text().startswith(sysconfig.get_path("stdlib"))


def test_signal_takes_keywords(tmp_path: Path) -> None:
    """signal.signal(signalnum=..., handler=...), as python's own; it is replaced to learn of USR2."""
    text = "import signal\nfor number in (signal.SIGUSR1, signal.SIGUSR2):\n    signal.signal(signalnum=number, handler=lambda *_: None)\n"
    crew = run(script_spec(tmp_path, text, 1), 1)

    assert crew.messages("handles_usr2")
