"""What went wrong is said once, in the user's words: the user's own frame first, the right kind, no hang."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew, make_spec

from launcher.run.spec import CheckpointSpec
from launcher.training.process import failure

SELDOM = CheckpointSpec(interval_min=1000)


LIBRARY = """
def caught(error):
    try:
        raise error
    except BaseException as raised:
        return raised
"""


def of_library(file: str = "torch/made_up.py") -> Callable[[BaseException], BaseException]:
    """`caught`, in a file of torch's or of another package."""
    made: dict[str, Any] = {}
    exec(compile(LIBRARY, str(Path(torch.__file__).parents[1] / file), "exec"), made)
    found: Callable[[BaseException], BaseException] = made["caught"]
    return found


def caught(error: BaseException) -> BaseException:
    """``error`` with a traceback, as if user code had raised it."""
    try:
        raise error
    except BaseException as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "kind", "victim"),
    [
        (ValueError("no"), "exception", False),
        (ModuleNotFoundError("No module named 'x'"), "import", False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.20 GiB"), "cuda_oom", False),
        (RuntimeError("CUDA error: out of memory"), "cuda_oom", False),
        (
            RuntimeError("unable to write to file </torch_2301_1804289383_0>: No space left on device (28)"),
            "shm",
            False,
        ),
        (MemoryError(), "host_memory", False),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
            "host_memory",
            False,
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full", False),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk_full", False),
        (OSError(errno.ENOENT, "No such file"), "exception", False),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:123"), "exception", True),
        (
            RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv"),
            "timeout",
            True,
        ),
        (RuntimeError("the user's request timed out"), "exception", False),
        (RuntimeError("Socket Timeout"), "timeout", False),
        (
            torch.distributed.DistNetworkError(
                "The client socket has timed out after 600000ms while trying to connect to (node1, 29500)."
            ),
            "timeout",
            True,
        ),
        (OSError(errno.ENOSPC, "No space left on device", "/dev/shm/torch_1"), "shm", False),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "exception", False),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "exception", False),
    ],
)
def test_kinds_of_failures(error: BaseException, kind: str, victim: bool) -> None:
    """Each exception of a library gets its kind, and lost connections to other ranks are told from causes."""
    told = failure.describe_error(of_library()(error))

    assert (told["kind"], told["victim"]) == (kind, victim)
    assert told["frames"][0].function == "caught"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA error: out of memory"), "exception"),
        (RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv"), "exception"),
        (RuntimeError("Connection closed by peer [10.0.0.1]:123"), "exception"),
        (MemoryError(), "host_memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full"),
    ],
)
def test_the_words_of_a_users_own_exception_mean_what_they_like(error: BaseException, kind: str) -> None:
    """An exception that the user's own ``raise`` made has its kind by its type, never by its words, and is no victim's."""
    told = failure.describe_error(caught(error))

    assert (told["kind"], told["victim"]) == (kind, False)


def failing(
    tmp_path: Path, target: str, kind: str = "task", world_size: int = 1, **params: Any
) -> tuple[dict[str, Any], str]:
    """The first ``failed`` message of a job that cannot work, and the log."""
    spec = make_spec(tmp_path / "run", target, world_size, kind=kind, checkpoint=SELDOM, params=params)
    with Crew(spec, world_size) as crew:
        _, message = crew.until(lambda rank, m: m["type"] == "failed")
        crew.finish()
        assert set(crew.exit_codes().values()) == {1}
        return message, (tmp_path / "run" / "rank-0.log").read_text()


def test_the_users_own_frame_comes_first(tmp_path: Path) -> None:
    """An exception deep in torch is told by the user's line; the log shows the traceback without the launcher's frames."""
    message, log = failing(tmp_path, "small_jobs:Net", fail_at=3)

    assert (message["exception"], message["message"], message["step"]) == ("RuntimeError", "planted failure", 3)
    assert message["frames"][0]["code"] == 'raise RuntimeError("planted failure")'
    assert message["frames"][0]["file"].endswith("small_jobs.py")
    assert "planted failure" in log
    assert "launcher/training" not in log


def test_a_failure_on_one_rank_makes_victims_of_the_others(tmp_path: Path) -> None:
    """Rank 1 fails: it says why; the others end too, each as a victim, and nobody hangs."""
    spec = make_spec(tmp_path / "run", "small_jobs:Net", 3, checkpoint=SELDOM, params={"fail_at": 2, "fail_rank": 1})
    with Crew(spec, 3) as crew:
        words = crew.finish()
        codes = crew.exit_codes()

    assert {rank: (w["message"] == "planted failure", w.get("victim", False)) for rank, w in words.items()} == {
        0: (False, True),
        1: (True, False),
        2: (False, True),
    }, crew.logs()
    assert set(codes.values()) == {1}


@pytest.mark.parametrize(
    ("target", "kind", "exception", "words"),
    [
        ("no_such_module:Net", "task", "ModuleNotFoundError", "no_such_module"),
        ("small_jobs:Missing", "task", "launcher.errors.CodeError", "has no Missing"),
        ("small_jobs:numbers", "task", "TypeError", "numbers"),
        ("small_jobs:Incomplete", "task", "TypeError", "abstract"),
    ],
)
def test_wrong_names_are_told_plainly(tmp_path: Path, target: str, kind: str, exception: str, words: str) -> None:
    """A missing module or name, a class that is none, a task that lacks methods: one message each."""
    message, _ = failing(tmp_path, target, kind)

    assert message["exception"] == exception
    assert words in message["message"]


def test_a_straggler_is_waited_for_and_then_named(tmp_path: Path) -> None:
    """A rank that never comes: the others end after ``init_timeout_min`` with one sentence that names it."""
    spec = make_spec(tmp_path / "run", "small_jobs:Net", 3, checkpoint=SELDOM, init_timeout_min=0.2)
    with Crew(spec, 3, absent=(1,)) as crew:
        words = crew.finish()

    assert {rank: (w["kind"], w["message"]) for rank, w in words.items()} == dict.fromkeys(
        (0, 2), ("timeout", "rank 1 of 3 did not arrive within 0.2 min (distributed.init_timeout_min)")
    )


def test_a_collective_that_one_rank_never_joins_times_out(tmp_path: Path) -> None:
    """The group's own time-out ends a collective that waits for a rank: kind ``timeout``."""
    spec = make_spec(tmp_path / "run", "small_jobs:lonely_collective", 2, kind="function", collective_timeout_min=0.2)
    with Crew(spec, 2) as crew:
        _, message = crew.until(lambda rank, m: m["type"] == "failed")

    assert message["kind"] == "timeout", message
    assert message["frames"][0]["code"] == "torch.distributed.all_reduce(torch.ones(1))"


class Words(torch.utils.data.Dataset[int]):
    """A data set of which one sample has an unknown word."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return {"dog": 1}["cat"] if index == 5 else index


def test_an_exception_in_a_loaders_process_is_the_users() -> None:
    """torch raises it again in the rank, with the whole traceback as its message: type, message and line are those of the loader."""
    loader = torch.utils.data.DataLoader(Words(), batch_size=2, num_workers=1)
    with pytest.raises(KeyError) as raised:
        list(loader)
    told = failure.describe_error(raised.value)

    assert (told["exception"], told["message"]) == ("KeyError", "'cat' (in DataLoader worker process 0)")
    assert (told["frames"][0].function, told["frames"][0].file) == ("__getitem__", __file__)
    assert told["frames"][0].code == 'return {"dog": 1}["cat"] if index == 5 else index'


def test_what_an_exception_was_raised_from_is_told() -> None:
    """The nearest first, each in one line with the user's place; a lack of memory stays one when the user wraps it."""
    try:
        try:
            raise MemoryError("9 TiB")
        except MemoryError as error:
            raise RuntimeError("cannot make the batch") from error
    except RuntimeError as error:
        told = failure.describe_error(error)

    assert (told["kind"], told["exception"], told["message"]) == (
        "host_memory",
        "RuntimeError",
        "cannot make the batch",
    )
    (cause,) = told["caused_by"]
    assert cause.startswith(f"MemoryError: 9 TiB ({Path(__file__).name}:")


@pytest.mark.parametrize(
    ("inner", "victim"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), False),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:123"), True),
    ],
)
def test_an_exception_raised_while_handling_a_lost_peer_is_a_victims(inner: BaseException, victim: bool) -> None:
    """Where torch had lost another rank; a lost data server, whose words are the same, is a cause."""
    told: dict[str, Any] = {}
    try:
        try:
            raise of_library()(inner)
        except (OSError, RuntimeError):
            raise ValueError("the step failed")  # noqa: B904  as many scripts do
    except ValueError as error:
        told = failure.describe_error(error)

    assert told["victim"] == victim


@pytest.mark.parametrize(
    ("file", "message", "victim"),
    [
        ("hf_xet/__init__.py", "CAS service error : Reqwest Error: connection reset by peer (os error 104)", False),
        ("torch/distributed/distributed_c10d.py", "Connection reset by peer", True),
        ("torch/autograd/graph.py", "Broken pipe", True),
        ("torch/nn/modules/module.py", "Broken pipe", False),
    ],
)
def test_only_collectives_lose_ranks(file: str, message: str, victim: bool) -> None:
    """A RuntimeError is a victim's where torch's collectives raised it: an upload breaks in the same words."""
    assert failure.describe_error(of_library(file)(RuntimeError(message)))["victim"] == victim


LOST = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:123")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="ExceptionGroup is Python 3.11's")
@pytest.mark.parametrize(
    ("members", "kind", "victim"),
    [
        ([LOST], "exception", True),
        ([LOST, ValueError("bad label")], "exception", False),
        ([torch.OutOfMemoryError("CUDA out of memory")], "cuda_oom", False),
        ([RuntimeError("[gloo/x.cc:1] Timed out waiting 9ms for recv"), MemoryError()], "host_memory", False),
        ([ValueError("bad label")], "exception", False),
    ],
)
def test_a_group_is_what_its_members_are(members: list[Exception], kind: str, victim: bool) -> None:
    """It is a victim's when all members are, and has the kind of the first that has one; who waited in vain comes last."""
    group = ExceptionGroup("unhandled errors in a TaskGroup", [of_library()(one) for one in members])  # noqa: F821
    told = failure.describe_error(caught(group))

    assert (told["kind"], told["victim"]) == (kind, victim)


@pytest.mark.parametrize("exceptions", [None, ["a", "b"], 7])
def test_an_attribute_of_a_users_exception_hides_no_failure(exceptions: object) -> None:
    """``exceptions`` means an ExceptionGroup's members only where it holds exceptions."""

    class OwnError(Exception):
        pass

    error = OwnError("bad")
    error.exceptions = exceptions  # type: ignore[attr-defined]
    told = failure.describe_error(caught(error))

    assert (told["message"], told["caused_by"]) == ("bad", [])


def test_a_text_that_cannot_be_shown_hides_no_failure() -> None:
    """An exception whose ``__str__`` raises is told by its type."""

    class BrokenError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    told = failure.describe_error(caught(BrokenError()))

    assert told["message"] == "<its text cannot be shown: __str__ raised ZeroDivisionError>"


def test_notes_of_an_exception_are_told() -> None:
    """`BaseException.add_note` (Python 3.11): where the fault is, often."""
    error = ValueError("row 5 is torn")
    error.__notes__ = ["while reading part-0007.csv"]

    assert failure.describe_error(error)["message"] == "row 5 is torn\nwhile reading part-0007.csv"
    error.__notes__ = 7
    assert failure.describe_error(error)["message"] == "row 5 is torn"


@pytest.mark.parametrize("before", range(280, 302, 3))
def test_no_part_of_a_secret_is_told_where_a_text_is_shortened(before: int) -> None:
    """Of a secret across the last character that is told, of the message or of a cause, nothing stays: its beginning cannot be found."""
    error = ValueError("x" * (before + 3700) + "hunter22-hunter22")
    error.__cause__ = KeyError("x" * before + "hunter22-hunter22")
    told = failure.describe_error(error, ["hunter22-hunter22"])

    assert "hunt" not in str(told)
    assert (len(told["message"]) > 3970, told["caused_by"][0].startswith("KeyError: 'xxx")) == (True, True)


@pytest.mark.parametrize(
    ("code", "exit_code", "message"),
    [(3, 3, ""), (139, 139, ""), (None, 0, ""), (0, 0, ""), ("no width", 1, "no width")],
)
def test_a_function_that_exits_is_told_as_an_exit(code: object, exit_code: int, message: str) -> None:
    """`sys.exit` in a function ends its worker as it ends a script: by a code, or a text and code 1."""
    told = failure.describe_error(SystemExit(code))

    assert (told["kind"], told["exit_code"], told["message"]) == ("exit", exit_code, message)


def test_a_closed_standard_error_hides_no_failure() -> None:
    """What is told to the leader is what was raised, whatever becomes of the log."""
    code = """
import os, sys
from launcher.training.process import failure

class Channel:
    secrets = ()

    def send(self, message):
        os.write(1, f"{message.exception}: {message.message}".encode())

os.close(2)
try:
    raise ValueError("beam width 0")
except ValueError as error:
    failure.report(Channel(), error, 3)
os.write(1, b" and on")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)

    assert done.stdout == "ValueError: beam width 0 and on"


def test_a_key_that_the_users_own_code_waits_for_is_no_collective() -> None:
    """`store.get` of a store of the user's own raises the error with which torch's rendezvous times out."""
    store = torch.distributed.TCPStore("localhost", 0, 1, is_master=True)
    store.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(torch.distributed.DistStoreError) as raised:
        store.get("vocabulary-size")

    assert failure.describe_error(raised.value)["kind"] == "exception"
