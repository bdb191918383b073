"""What states are made of every day comes back equal and of its type; what cannot be loaded again is never committed."""

from __future__ import annotations

import http.client  # noqa: F401 (what a forged name goes through)
import json
import os
import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import kept_types
import pytest
import torch
from crew import Crew, make_spec, run, script_spec

from launcher.errors import CheckpointError
from launcher.run.spec import CheckpointSpec
from launcher.training.checkpoint import read, readback, write
from launcher.training.checkpoint.copies import Snapshot, sum_of_bits
from launcher.training.checkpoint.digest import digest
from launcher.training.checkpoint.plain import from_plain, to_plain

EVERY_STEP = CheckpointSpec(interval_steps=1, keep_last=1000)
SCRIPT = """
import sys
sys.path.append({folder!r})
import launcher
import kept_types
kept_types.steps(launcher.attach())
"""


def saved(tmp_path: Path, value: Any) -> Any:
    """What a file holds that ``value`` was written to, as torch alone reads it."""
    write.write_file(tmp_path / "state.pt", value, 0o600)
    return torch.load(tmp_path / "state.pt", weights_only=True, mmap=True)


@pytest.mark.parametrize("name", kept_types.KINDS)
def test_a_value_comes_back_equal_and_of_its_type(tmp_path: Path, name: str) -> None:
    """Written, read by plain torch with weights_only, made again."""
    value = kept_types.KINDS[name]

    assert kept_types.same(value, from_plain(saved(tmp_path, {"a": [value]}))["a"][0])


@pytest.mark.parametrize("kind", ["function", "script"])
def test_every_type_is_resumed_in_a_new_process(tmp_path: Path, kind: str) -> None:
    """Shared and per-rank objects of tasks' workers and attached scripts: all types in one state, saved, resumed at step 1."""
    ends = []
    for number, name in enumerate(("full", "again")):
        resume = tmp_path / "full" / "checkpoints" / "step-00000001" if number else None
        if kind == "script":
            spec = script_spec(tmp_path / name, SCRIPT.format(folder=str(Path(__file__).parents[1])), 2)
        else:
            spec = make_spec(tmp_path / name, "kept_types:steps", 2, kind="function", checkpoint=EVERY_STEP)
        ends.append(run(spec, 2, resume=resume, attempt=number))

    for rank in range(2):
        log = (tmp_path / "again" / f"rank-{rank}.log").read_text()
        assert log.splitlines() == ["shared came back: True True []", "own came back: True True []"], log
    full, again = (end.paths.checkpoint(3) for end in ends)
    assert digest(read.load_shared(full)) == digest(read.load_shared(again))
    assert not [w for end in ends for w in end.warned()]


def test_digests_of_equal_states_are_equal_in_all_processes(tmp_path: Path) -> None:
    """Sets have another order in every process (text is hashed with a seed); their digests have not."""
    code = (
        "import json, sys; sys.path[:0] = [sys.argv[1]]; import kept_types\n"
        "from launcher.training.checkpoint.digest import digest\nfrom launcher.training.checkpoint.plain import to_plain\n"
        "state = {**kept_types.KINDS, 'words': {'a', 'b', 'c', 'd'}, 'nested': [frozenset('abcd')]}\n"
        "print(json.dumps([digest(to_plain({name: state[name]})) for name in state]))"
    )
    found = []
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code, str(Path(__file__).parents[1])]
        out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        found.append(json.loads(out))

    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == len(found[0])


@pytest.mark.filterwarnings("ignore")  # torch's: quantised tensors are deprecated, CSR is a beta
@pytest.mark.parametrize("kind", ["sparse", "csr", "quantised", "conjugate", "negative"])
def test_a_tensor_of_any_layout_has_a_digest(tmp_path: Path, kind: str) -> None:
    """The drill of `launcher dry-run` compares them: it ended in torch's error, or crashed, where a state held one."""
    make: dict[str, Any] = {
        "sparse": torch.Tensor.to_sparse,
        "csr": torch.Tensor.to_sparse_csr,
        "quantised": lambda tensor: torch.quantize_per_tensor(tensor, 0.5, 0, torch.qint8),
        "conjugate": lambda tensor: (1j * tensor).conj(),
        "negative": torch._neg_view,
    }
    value, other = (make[kind](torch.eye(3) * number) for number in (1.0, 2.0))

    assert digest(saved(tmp_path, {"a": value})["a"]) == digest(value) != digest(other)
    assert kind in ("sparse", "csr") or int(sum_of_bits(value)) != int(sum_of_bits(other))


def test_a_copy_keeps_the_types(tmp_path: Path) -> None:
    """The copy that is written behind training: a defaultdict and a Counter came back as plain dicts."""
    copied = Snapshot(torch.device("cpu")).take(kept_types.KINDS)

    assert [name for name in copied if not kept_types.same(copied[name], kept_types.KINDS[name])] == []


def test_data_cannot_be_taken_for_a_stand_in(tmp_path: Path) -> None:
    """What a user's state shares with a stand-in's looks, or was read from one, comes back as it is."""
    raw = saved(tmp_path, {"a": deque([1])})["a"]
    back = from_plain(saved(tmp_path, {"raw": raw, "same": {"type": "deque", "value": [[1], None]}}))

    assert type(back["raw"]) is OrderedDict
    assert back["raw"] == raw
    assert type(back["same"]) is dict


class Foo:
    """Of a class that no checkpoint can hold."""


def _local() -> Any:
    from dataclasses import dataclass

    @dataclass
    class Local:
        a: int = 1

    return Local()


class Cached(kept_types.Best):
    """A dataclass with an attribute that is no field."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.extra = 1


REFUSED: dict[str, tuple[Any, str]] = {
    "class": (Foo(), "test_kept_types.Foo"),
    "lock": (threading.Lock(), "_thread.lock"),
    "lambda": (defaultdict(lambda: 0), "collections.defaultdict"),
    "local dataclass": (_local(), "Local"),
    "attributes": (Cached(), "test_kept_types.Cached"),
    "object array": (__import__("numpy").array([None]), "numpy.ndarray"),
    "type": (Foo, "a type"),
    "huge int": (1 << 4096, "a int"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_loaded_is_refused_by_key_and_type(tmp_path: Path, name: str) -> None:
    """Nothing is written; the sentence names object, key and type, also inside of what can be replaced."""
    value, said = REFUSED[name]
    state = {
        "objects": {"optimizer": {"param_groups": [{"lr": 0.1}, {"params": [torch.ones(1)], "foo": deque([value])}]}}
    }

    with pytest.raises(CheckpointError) as caught:
        write.write_file(tmp_path / "state.pt", state, 0o600)
    assert str(caught.value).startswith("the state of 'optimizer': param_groups[1].foo[0] is a")
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")  # torch 2.14 tells that it does
def test_a_state_of_tensor_subclasses_is_read_back(tmp_path: Path) -> None:
    """Parameters, tensors with attributes and sparse ones pass; a subclass of the user's own is refused."""

    class Own(torch.Tensor):
        pass

    named = torch.ones(2)
    named.note = "a"  # type: ignore[attr-defined]
    saved(tmp_path, [torch.nn.Parameter(torch.ones(2)), named, torch.eye(2).to_sparse()])
    with pytest.raises(CheckpointError, match=r"\[0\] is a .*Own"):
        readback.loadable([torch.ones(2).as_subclass(Own)])


CHANGING = """
import launcher, threading
class Foo: pass
run = launcher.attach()
class State:
    held = {first}
    def state_dict(self): return {{"best": {{"foo": self.held}}}}
    def load_state_dict(self, state): pass
state = State()
run.register(model=state)
for step in run.steps(3):
    state.held = {later} if step == 1 else 1
"""
"""Its state is plain in step 0, something else in step 1, and plain again."""


RAISING = """
import launcher
class State:
    def state_dict(self):
        if run.steps_done == 2: raise ValueError("not now")
        return {}
    def load_state_dict(self, state): pass
run = launcher.attach()
run.register(**{what})
for step in run.steps(3):
    pass
"""


@pytest.mark.parametrize(
    "what", ["{'boom': State()}", "{'per_rank': True, 'boom': State()}"], ids=["shared", "per rank"]
)
def test_a_state_dict_that_raises_fails_its_save_alone(tmp_path: Path, what: str) -> None:
    """As a state that cannot be loaded: the save of step 2 names object and error, training goes on, the others count."""
    crew = run(script_spec(tmp_path / "run", RAISING.replace("{what}", what), 1), 1)

    (failed,) = crew.messages("save_failed")
    said = "the state_dict() of 'boom' fails: ValueError: not now"
    assert (failed["step"], failed["error"], failed["permanent"]) == (2, said, True)
    assert [path.name for path in crew.committed] == ["step-00000001", "step-00000003"]


def test_registering_tells_what_cannot_be_loaded(tmp_path: Path) -> None:
    """Before the first step, in a sentence with object, key and type; not after the first fault."""
    with Crew(script_spec(tmp_path / "run", CHANGING.format(first="Foo()", later="1"), 1), 1) as crew:
        word = crew.finish()[0]

    assert (word["exception"], word["step"]) == ("TypeError", 0)
    said = "worker.register(model=...): the state of 'model': best.foo is a __main__.Foo, which cannot be loaded again"
    assert word["message"].startswith(said), word["message"]


@pytest.mark.parametrize("later", ["Foo()", "threading.Lock()"])
def test_a_state_that_becomes_unloadable_fails_its_save_alone(tmp_path: Path, later: str) -> None:
    """Plain when registered: the save of step 2 fails by key and type, training goes on, those before and after count."""
    crew = run(script_spec(tmp_path / "run", CHANGING.format(first="1", later=later), 1), 1)

    (failed,) = crew.messages("save_failed")
    assert [path.name for path in crew.committed] == ["step-00000001", "step-00000003"]
    assert failed["step"] == 2
    assert failed["error"].startswith("the state of 'model': best.foo is a "), failed


def old_checkpoint(folder: Path, value: Any) -> Path:
    """A checkpoint as an older version wrote it: by torch.save alone."""
    path = folder / "step-00000001"
    path.mkdir(parents=True)
    shared = {"format": 1, "position": {"step": 1}, "world_size": 1, "notes": {}, "objects": {"model": {"v": value}}}
    from launcher.training.ddp.randomness import rng_state

    torch.save(shared, path / "state.pt")
    torch.save({"rng": rng_state(torch.device("cpu")), "partial": {}, "objects": {}}, path / "rank-00000.pt")
    return path


OLD = """
import launcher
run = launcher.attach()
class State:
    def state_dict(self): return {"v": 1}
    def load_state_dict(self, state): print("loaded", repr(state["v"]), flush=True)
run.register(model=State())
for _ in run.steps(2): pass
"""


@pytest.mark.parametrize("unsafe", [False, True])
def test_a_checkpoint_of_an_older_version_needs_the_option(tmp_path: Path, unsafe: bool) -> None:
    """A deque that was saved as it is: the error names type and option, the option loads it with a warning."""
    path = old_checkpoint(tmp_path, deque([1]))
    with Crew(script_spec(tmp_path / "run", OLD, 1, unsafe_load=unsafe), 1, resume=path) as crew:
        word = crew.finish()[0]

    warned = [m["text"] for m in crew.messages("warning")]
    if unsafe:
        assert (word["type"], word["step"]) == ("finished", 2), crew.logs()
        assert "loaded deque([1])" in crew.logs()
        assert len(warned) == 1
        assert "collections.deque: it was unpickled in full (--unsafe-load)" in warned[0]
    else:
        assert word["exception"] == "launcher.errors.CheckpointError"
        said = "the checkpoint holds a collections.deque and cannot be loaded safely; resubmit --unsafe-load loads it"
        assert word["message"].startswith(said)
        assert word["kind"] == "unloadable"


LATE = """
import launcher
class Early:
    pass
run = launcher.attach()
class Late:
    pass
"""


@pytest.mark.parametrize("name", ["Late", "Early"])
def test_a_class_that_a_script_defines_too_late_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Unpickled in full, and not there yet: one sentence that names class and remedy, where Python's AttributeError had been."""
    made = type(name, (), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], name, made, raising=False)
    path = old_checkpoint(tmp_path, made())
    script = LATE + OLD.partition("attach()")[2]
    with Crew(script_spec(tmp_path / "run", script, 1, unsafe_load=True), 1, resume=path) as crew:
        word = crew.finish()[0]

    if name == "Early":
        assert word["type"] == "finished", crew.logs()
        return
    assert (word["exception"], word["kind"]) == ("launcher.errors.CheckpointError", "unloadable")
    assert (
        "define or import the class Late before launcher.attach(), then resubmit --code --unsafe-load"
        in word["message"]
    )


def test_a_plain_checkpoint_of_an_older_version_is_loaded(tmp_path: Path) -> None:
    """Nothing in the form has changed for states of plain values."""
    crew = run(script_spec(tmp_path / "run", OLD, 1), 1, resume=old_checkpoint(tmp_path, {"a": (1, {2})}))

    assert "loaded {'a': (1, {2})}" in crew.logs()


def stand_in(tag: str, value: Any) -> Any:
    """As somebody would forge one."""
    made = to_plain(deque())
    made.update(type=tag, value=value)
    return made


FORGED = {
    "function": ("enum", ["os", "system", "true"]),
    "class that is no enum": ("enum", ["subprocess", "Popen", "true"]),
    "class that is no dataclass": ("dataclass", ["subprocess", "Popen", {"args": "true"}]),
    "method of a dataclass": ("dataclass", ["kept_types", "Best", {"__class__": 1}]),
    "tuple": ("namedtuple", ["kept_types", "Point", [1]]),
    "factory": ("defaultdict", ["eval", {}]),
    "addresses": ("numpy array", ["|O", [1], "C", torch.zeros(8, dtype=torch.uint8)]),
    "module of the library": ("enum", ["this", "Zen", "d"]),
    "by way of another module": ("enum", ["http.client", "http.HTTPStatus", "OK"]),
    "name": ("eval", ["1"]),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_stand_in_calls_nothing(tmp_path: Path, name: str) -> None:
    """Only enums, named tuples and dataclasses are made by name, of what they have, and modules are not imported."""
    with pytest.raises((TypeError, KeyError, ValueError)):
        from_plain(saved(tmp_path, [1]) and [stand_in(*FORGED[name])], code_dir=str(tmp_path))
    assert "this" not in sys.modules


def test_classes_of_the_jobs_own_code_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that nobody imported yet: from the code of the job it is, from elsewhere on the path it is not."""
    (tmp_path / "modes_of_mine.py").write_text("import enum\nclass Mode(enum.Enum):\n    A = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    forged = stand_in("enum", ["modes_of_mine", "Mode", "A"])

    with pytest.raises(TypeError, match=r"there is no class modes_of_mine\.Mode"):
        from_plain(forged, code_dir=str(tmp_path / "elsewhere"))
    assert from_plain(forged, code_dir=str(tmp_path)).value == 1
