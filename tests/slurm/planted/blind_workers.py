"""Blind worker cases for `launcher why`: faults planted in ranks, ordered by cause. Written without knowledge of the launcher's code."""

import argparse
import asyncio
import atexit
import concurrent.futures
import contextlib
import ctypes
import errno
import io
import json
import mmap
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from cases import attached_case, function_case, script_case
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FALSE = ["preempted", "out of memory", "timed out"]  # stories that are wrong for nearly every case here
CHILDREN = sys.version_info < (3, 14)  # later, loaders are a fork server's: torch does not learn how one ended
NO_WORDS = ["without a message", "no message"]  # wrong wherever an exception was raised with a text


def no_core():
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def die_of(number, default=True):
    """Sends this process a signal that ends it."""
    no_core()
    if default:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    time.sleep(5)


def address_space_left(mib):
    """From now on this process may map only `mib` MiB more."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (mib << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))


# ======================================================================================================================
# Exceptions: the user's own
# ======================================================================================================================


def check_label(label):
    if label > 9:
        raise ValueError(f"label {label} is not below 10")


@function_case(
    "plain ValueError on rank 1",
    kind="exception",
    rank=1,
    says=["label 11 is not below 10"],
    must=["ValueError", "check_label", "rank 1"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 1:
        check_label(11)


@function_case(
    "plain ValueError on rank 0",
    kind="exception",
    rank=0,
    says=["label 12 is not below 10"],
    must=["ValueError", "check_label", "rank 0"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 0:
        check_label(12)


@function_case(
    "same exception on both ranks",
    kind="exception",
    rank="all",
    says=["label 99 is not below 10"],
    must=["check_label"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    check_label(99)


class LabelDrift(Exception):
    def __init__(self, expected, found):
        super().__init__(f"expected {expected} classes, found {found}")


@function_case(
    "custom exception class",
    kind="exception",
    rank=0,
    says=["expected 10 classes, found 12"],
    must=["LabelDrift"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 0:
        raise LabelDrift(10, 12)


class HardStop(BaseException):
    pass


@function_case(
    "custom BaseException",
    kind="exception",
    rank=1,
    says=["fuse 3 has blown"],
    must=["HardStop"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 1:
        raise HardStop("fuse 3 has blown")


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("str is broken, too")

    __repr__ = __str__


def raise_mute():
    raise Mute("nobody can print this")


@function_case(
    "exception with broken str and repr", kind="exception", rank=1, says=["Mute"], must=["raise_mute"], never=FALSE
)
def _(worker):
    if worker.rank == 1:
        raise_mute()


@function_case(
    "message of one megabyte",
    kind="exception",
    rank=0,
    says=["huge batch 7"],
    must=["ValueError"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 0:
        raise ValueError("huge batch 7: " + "9 " * 500_000)


@function_case(
    "message of several lines",
    kind="exception",
    rank=1,
    must=["bad configuration", "depth must be odd", "width is missing"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 1:
        raise ValueError("bad configuration:\n  depth must be odd\n  width is missing")


@function_case("message in other scripts", kind="exception", rank=0, must=["größe 12", "日本"], never=FALSE + NO_WORDS)
def _(worker):
    if worker.rank == 0:
        raise ValueError("Größe 12 passt nicht zu Schlüssel 日本")


@function_case(
    "message that is no UTF-8",
    kind="exception",
    rank=1,
    says=["bad file name caf"],
    must=["ValueError"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 1:
        raise ValueError("bad file name caf" + b"\xe9".decode("utf-8", "surrogateescape") + ".txt")


def check_shapes(a, b):
    assert a.shape == b.shape


@function_case(
    "assertion without text",
    kind="exception",
    rank=1,
    says=[("AssertionError", "assert")],
    must=["check_shapes", "a.shape == b.shape"],
    never=FALSE,
)
def _(worker):
    if worker.rank == 1:
        check_shapes(torch.ones(3), torch.ones(4))


def first_batch(batches):
    return next(iter(batches))


@function_case(
    "StopIteration without text", kind="exception", rank=0, says=["StopIteration"], must=["first_batch"], never=FALSE
)
def _(worker):
    if worker.rank == 0:
        first_batch([])


def descend(depth):
    return descend(depth + 1) + 1


@function_case(
    "endless recursion",
    kind="exception",
    rank=1,
    says=["recursion"],
    must=["descend"],
    never=FALSE + ["segmentation", "SIGSEGV"],
)
def _(worker):
    if worker.rank == 1:
        descend(0)


@function_case(
    "KeyboardInterrupt raised by code",
    kind="exception",
    rank=0,
    says=["KeyboardInterrupt"],
    must=["operator pressed the red key"],
    never=FALSE + ["was cancelled"],
)
def _(worker):
    if worker.rank == 0:
        raise KeyboardInterrupt("operator pressed the red key")


@function_case(
    "note on an exception",
    kind="exception",
    rank=1,
    says=["row 5 is torn"],
    must=["part-0007.csv"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 1:
        error = ValueError("row 5 is torn")
        error.add_note("while reading part-0007.csv")
        raise error


@script_case(
    "exception in a script on rank 0",
    kind="exception",
    rank=0,
    says=["label 13 is not below 10"],
    must=["check_label"],
    never=FALSE + NO_WORDS,
)
def _(rank, world_size):
    if rank == 0:
        check_label(13)


@script_case(
    "colours in a message", kind="exception", rank=1, must=["red alert 5"], never=FALSE + ["\x1b[31m"] + NO_WORDS
)
def _(rank, world_size):
    if rank == 1:
        raise ValueError("\x1b[31mred alert 5\x1b[0m")


def print_farewell():
    for shard in range(3000):
        print("closing shard", shard, file=sys.stderr)


@script_case(
    "three thousand lines after the traceback",
    kind="exception",
    rank=0,
    says=["optimizer lost its state 8"],
    must=["KeyError"],
    never=FALSE + NO_WORDS,
)
def _(rank, world_size):
    if rank == 0:
        atexit.register(print_farewell)
        raise KeyError("optimizer lost its state 8")


@script_case(
    "exception with closed stderr",
    kind="exception",
    rank=1,
    says=["beam width 0"],
    must=["ValueError"],
    never=FALSE + NO_WORDS,
)
def _(rank, world_size):
    if rank == 1:
        os.close(2)
        raise ValueError("beam width 0")


@script_case(
    "silent excepthook",
    kind="exception",
    rank=0,
    says=["vocabulary has 0 words"],
    must=["ValueError"],
    never=FALSE + NO_WORDS,
)
def _(rank, world_size):
    if rank == 0:
        sys.excepthook = lambda *args: None
        raise ValueError("vocabulary has 0 words")


@script_case(
    "slow finally behind an exception",
    kind="exception",
    rank=1,
    says=["warm-up of 0 steps"],
    must=["ValueError"],
    never=FALSE + NO_WORDS,
)
def _(rank, world_size):
    if rank == 1:
        try:
            raise ValueError("warm-up of 0 steps")
        finally:
            time.sleep(1)


@attached_case(
    "exception in an attached script on rank 1",
    kind="exception",
    rank=1,
    says=["label 14 is not below 10"],
    must=["check_label"],
    never=FALSE + NO_WORDS,
)
def _(rank, world_size):
    if rank == 1:
        check_label(14)


@attached_case(
    "same exception on both attached ranks",
    kind="exception",
    rank="all",
    says=["label 98 is not below 10"],
    must=["check_label"],
    never=FALSE + NO_WORDS,
)
def _(rank, world_size):
    check_label(98)


# ======================================================================================================================
# Exceptions: words that mislead (all of them are the user's own sentences and mean nothing of the machine)
# ======================================================================================================================


@function_case(
    "words of collectives in a message",
    kind="exception",
    rank=1,
    says=["lock server"],
    must=["store 12 did not recv the barrier token"],
    never=["preempted", "out of memory"],
)
def _(worker):
    if worker.rank == 1:
        raise RuntimeError("timeout of the lock server: store 12 did not recv the barrier token")


@function_case(
    "words of memory in a message",
    kind="exception",
    rank=0,
    says=["deck 4 is out of memory cards"],
    never=["preempted", "timed out"],
)
def _(worker):
    if worker.rank == 0:
        raise RuntimeError("deck 4 is out of memory cards")


@function_case(
    "words of disks in a message",
    kind="exception",
    rank=1,
    says=["no space left on the board for piece 4"],
    never=FALSE + ["disk is full", "quota"],
)
def _(worker):
    if worker.rank == 1:
        raise ValueError("No space left on the board for piece 4")


@function_case(
    "words of signals in a message",
    kind="exception",
    rank=0,
    says=["solver of cell 9 got SIGKILL"],
    never=FALSE + ["rank 0 was killed"],
)
def _(worker):
    if worker.rank == 0:
        raise RuntimeError("solver of cell 9 got SIGKILL")


@function_case(
    "words of schedulers in a message",
    kind="exception",
    rank=1,
    says=["player 2 was preempted by player 3"],
    never=["slurm preempted", "out of memory", "timed out"],
)
def _(worker):
    if worker.rank == 1:
        raise RuntimeError("player 2 was preempted by player 3")


@function_case(
    "words of a broken connection in a message",
    kind="exception",
    rank=0,
    says=["feature server 7"],
    must=["rank 0"],
    never=FALSE,
)
def _(worker):
    if worker.rank == 0:
        raise RuntimeError("Connection closed by peer: feature server 7")


def ask_feature_server():
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(0.2)
        here.recv(1)


@function_case(
    "time-out of the user's own socket",
    kind="exception",
    rank=1,
    must=["ask_feature_server", "timed out"],
    never=["preempted", "out of memory"],
)
def _(worker):
    if worker.rank == 1:
        ask_feature_server()


@script_case(
    "words of a cancelled job in a message",
    kind="exception",
    rank=1,
    says=["order 8 was cancelled at the time limit"],
    never=FALSE + ["scancel"],
)
def _(rank, world_size):
    if rank == 1:
        raise RuntimeError("order 8 was cancelled at the time limit")


@script_case(
    "reset connection of the user's own",
    kind="exception",
    rank=0,
    says=["annotation server 3"],
    must=["ConnectionResetError"],
    never=FALSE,
)
def _(rank, world_size):
    if rank == 0:
        raise ConnectionResetError(errno.ECONNRESET, "annotation server 3 reset the connection")


# ======================================================================================================================
# Exceptions: nested, chained, grouped
# ======================================================================================================================


def read_age(row):
    return row["age_in_years"]


def build_batch(number):
    try:
        read_age({})
    except KeyError as error:
        raise RuntimeError(f"cannot build batch {number}") from error


@function_case(
    "exception from another",
    kind="exception",
    rank=1,
    says=[("cannot build batch 4", "age_in_years")],
    must=["cannot build batch 4", "age_in_years"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 1:
        build_batch(4)


@function_case(
    "exception while handling another",
    kind="exception",
    rank=0,
    says=[("disk 2 has vanished", "cleaning of shard 2")],
    must=["disk 2 has vanished", "cleaning of shard 2"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 0:
        try:
            raise LookupError("disk 2 has vanished")
        except LookupError:
            raise RuntimeError("cleaning of shard 2 failed")


@function_case(
    "exception from three others",
    kind="exception",
    rank=1,
    must=["row 1 is torn", "page 2 is lost", "book 3 is shut"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 1:
        try:
            try:
                raise KeyError("row 1 is torn")
            except KeyError as error:
                raise ValueError("page 2 is lost") from error
        except ValueError as error:
            raise RuntimeError("book 3 is shut") from error


@function_case(
    "group of exceptions",
    kind="exception",
    rank=0,
    must=["shards failed", "shard 2 is torn", "shard 5 is gone"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 0:
        raise ExceptionGroup("shards failed", [ValueError("shard 2 is torn"), LookupError("shard 5 is gone")])


@contextlib.contextmanager
def borrowed_model():
    try:
        yield
    finally:
        raise RuntimeError("model 6 was not given back")


@function_case(
    "exception in the exit of a context manager",
    kind="exception",
    rank=1,
    must=["model 6 was not given back", "gamma is 0", "borrowed_model"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 1:
        with borrowed_model():
            raise ValueError("gamma is 0")


@script_case(
    "exception from another in a script",
    kind="exception",
    rank=0,
    must=["cannot build batch 5", "age_in_years", "build_batch"],
    never=FALSE + NO_WORDS,
)
def _(rank, world_size):
    if rank == 0:
        build_batch(5)


# ======================================================================================================================
# Exceptions: of libraries, imports, asyncio, pools, subprocesses
# ======================================================================================================================


def project(x):
    return torch.mm(x, x)


@function_case(
    "shapes that do not fit", kind="exception", rank=0, says=["mat1 and mat2"], must=["project", "2x3"], never=FALSE
)
def _(worker):
    if worker.rank == 0:
        project(torch.ones(2, 3))


def load_teacher():
    return torch.load(io.BytesIO(b"this is no checkpoint"))


@function_case(
    "user's own file that torch cannot load",
    kind="exception",
    rank=1,
    must=["load_teacher"],
    never=FALSE + ["--unsafe-load"],
)
def _(worker):
    if worker.rank == 1:
        load_teacher()


@function_case(
    "package that is not there", kind="import", rank="all", says=["tokenizers_of_yore"], never=FALSE + NO_WORDS
)
def _(worker):
    import tokenizers_of_yore  # noqa: F401


@script_case(
    "package that is not there on rank 1", kind="import", rank=1, says=["tokenizers_of_old"], never=FALSE + NO_WORDS
)
def _(rank, world_size):
    if rank == 1:
        import tokenizers_of_old  # noqa: F401


async def fetch_slowly():
    await asyncio.wait_for(asyncio.sleep(9), 0.1)


@function_case(
    "asyncio time-out without text",
    kind="exception",
    rank=1,
    says=["TimeoutError"],
    must=["fetch_slowly"],
    never=["preempted", "out of memory"],
)
def _(worker):
    if worker.rank == 1:
        asyncio.run(fetch_slowly())


async def fetch_pages():
    await asyncio.sleep(0.05)
    raise LookupError("page 17 is not in the index")


@script_case(
    "exception in asyncio",
    kind="exception",
    rank=0,
    says=["page 17 is not in the index"],
    must=["fetch_pages"],
    never=FALSE + NO_WORDS,
)
def _(rank, world_size):
    if rank == 0:
        asyncio.run(fetch_pages())


def tokenize_with_program():
    subprocess.run(["sh", "-c", "echo merges file 3 is empty >&2; exit 9"], check=True)


@function_case(
    "program that fails",
    kind="exception",
    rank=0,
    says=["exit status 9"],
    must=["merges file 3 is empty", "tokenize_with_program"],
    never=FALSE,
)
def _(worker):
    if worker.rank == 0:
        tokenize_with_program()


def solve_with_program():
    subprocess.run(["sh", "-c", "kill -9 $$"], check=True)


@function_case(
    "program that is killed",
    kind="exception",
    rank=1,
    says=[("died with", "CalledProcessError")],
    must=["SIGKILL", "solve_with_program"],
    never=FALSE,
)
def _(worker):
    if worker.rank == 1:
        solve_with_program()


def tokenize_shard(number):
    raise ValueError(f"shard {number} has no merges")


@function_case(
    "exception in a pool of threads",
    kind="exception",
    rank=0,
    says=["shard 21 has no merges"],
    must=["tokenize_shard"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 0:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(tokenize_shard, [21]))


def parse_configuration(text):
    return json.loads(text)


@attached_case(
    "broken json on rank 0",
    kind="exception",
    rank=0,
    says=[("JSONDecodeError", "Expecting")],
    must=["parse_configuration"],
    never=FALSE,
)
def _(rank, world_size):
    if rank == 0:
        parse_configuration('{"depth": }')


# ======================================================================================================================
# Exceptions: in workers of a DataLoader
# ======================================================================================================================


class Items(Dataset):
    """Eight items, made by a function."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.make(index)


def read_all(make, workers):
    for _batch in DataLoader(Items(make), batch_size=2, num_workers=workers):
        pass


def decode_sample(index):
    if index == 5:
        raise ValueError(f"sample {index} has no label")
    return torch.zeros(2)


@function_case(
    "exception in a loader worker",
    kind="exception",
    rank=1,
    says=["sample 5 has no label"],
    must=["decode_sample"],
    never=FALSE + NO_WORDS,
    soon_s=15,
)
def _(worker):
    if worker.rank == 1:
        read_all(decode_sample, 1)


def caption_of(index):
    return {"image": index}["caption_of_image"]


@function_case(
    "KeyError in a loader worker",
    kind="exception",
    rank=0,
    says=["caption_of_image"],
    must=["KeyError", "caption_of"],
    never=FALSE,
    soon_s=15,
)
def _(worker):
    if worker.rank == 0:
        read_all(caption_of, 2)


class TornFile(Exception):
    def __init__(self, path, offset):
        super().__init__(f"{path} is torn at byte {offset}")


def open_torn(index):
    raise TornFile("part-0031.bin", 4096)


@script_case(
    "custom exception in a loader worker",
    kind="exception",
    rank=1,
    says=["part-0031.bin is torn at byte 4096"],
    must=["TornFile", "open_torn"],
    never=FALSE,
    soon_s=15,
)
def _(rank, world_size):
    if rank == 1:
        read_all(open_torn, 1)


@attached_case(
    "exception in an attached script's loader worker",
    kind="exception",
    rank=0,
    says=["sample 5 has no label"],
    must=["decode_sample"],
    never=FALSE + NO_WORDS,
    soon_s=15,
)
def _(rank, world_size):
    if rank == 0:
        read_all(decode_sample, 2)


def killed_item(index):
    os.kill(os.getpid(), signal.SIGKILL)


@function_case(
    "killed loader worker",
    kind=("exception", "signal"),
    rank=0,
    says=["worker"],
    must=["DataLoader", ("killed", "SIGKILL") if CHILDREN else "exited unexpectedly"],
    never=["preempted", "timed out"],
    soon_s=15,
)
def _(worker):
    if worker.rank == 0:
        read_all(killed_item, 1)


def leaving_item(index):
    print("decoder licence 8 has expired", file=sys.stderr, flush=True)
    os._exit(5)


@script_case(
    "loader worker that leaves",
    kind=("exception", "exit"),
    rank=1,
    must=["DataLoader", "exited unexpectedly", "decoder licence 8 has expired"],
    never=FALSE,
    soon_s=15,
)
def _(rank, world_size):
    if rank == 1:
        read_all(leaving_item, 1)


def bus_error_item(index):
    no_core()
    os.kill(os.getpid(), signal.SIGBUS)


@function_case(
    "bus error in a loader worker",
    kind=("shm", "exception", "signal"),
    rank=1,
    must=[
        "DataLoader",
        ("bus error", "SIGBUS", "exited unexpectedly"),
    ],  # Python 3.14's loaders are not the rank's children
    never=["preempted", "timed out"],
    soon_s=15,
)
def _(worker):
    if worker.rank == 1:
        read_all(bus_error_item, 1)


# ======================================================================================================================
# Exceptions: in hooks and finalizers
# ======================================================================================================================


def check_gradient(grad):
    raise FloatingPointError("gradient of layer 2 is not finite")


@function_case(
    "exception in a hook of the backward pass",
    kind="exception",
    rank=1,
    says=["gradient of layer 2 is not finite"],
    must=["check_gradient"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 1:
        y = torch.nn.Linear(2, 2)(torch.ones(1, 2))
        y.register_hook(check_gradient)
        y.sum().backward()


def check_activation(module, inputs, output):
    raise ArithmeticError("activation of block 3 is 0")


@function_case(
    "exception in a hook of the forward pass",
    kind="exception",
    rank=0,
    says=["activation of block 3 is 0"],
    must=["check_activation"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 0:
        layer = torch.nn.Linear(2, 2)
        layer.register_forward_hook(check_activation)
        layer(torch.ones(1, 2))


def compress_bucket(state, bucket):
    if dist.get_rank() == 1:
        raise ValueError("compression refused bucket 0")
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


@function_case(
    "exception in a communication hook of DDP",
    kind="exception",
    rank=1,
    says=["compression refused bucket 0"],
    must=["compress_bucket"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model.register_comm_hook(None, compress_bucket)
    model(torch.ones(1, 4)).sum().backward()


class Handle:
    def __del__(self):
        raise OSError("handle 3 is closed already")


@function_case(
    "exception in a finalizer and then a real one",
    kind="exception",
    rank=0,
    says=["pool 4 has no handle"],
    must=["RuntimeError"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    if worker.rank == 0:
        handle = Handle()
        del handle
        raise RuntimeError("pool 4 has no handle")


# ======================================================================================================================
# Exceptions: in threads
# ======================================================================================================================


def prefetch(shard):
    raise ValueError(f"prefetching lost shard {shard}")


def take_prefetched():
    batches = queue.Queue()
    thread = threading.Thread(target=prefetch, args=(9,))
    thread.start()
    thread.join()
    return batches.get(timeout=0.5)


@function_case(
    "dead thread and an empty queue",
    kind="exception",
    rank=1,
    says=[("Empty", "lost shard 9")],
    must=["take_prefetched", "prefetching lost shard 9"],
    never=FALSE,
)
def _(worker):
    if worker.rank == 1:
        take_prefetched()


@script_case(
    "dead thread and an exit",
    kind="exit",
    rank=0,
    must=[("code 6", "status 6", "exit(6)", "with 6"), "prefetching lost shard 11"],
    never=FALSE,
)
def _(rank, world_size):
    if rank == 0:
        thread = threading.Thread(target=prefetch, args=(11,))
        thread.start()
        thread.join()
        sys.exit(6)


@function_case(
    "thread that exits the process with eleven",
    kind="exit",
    rank=0,
    must=[("code 11", "status 11", "with 11"), "watchdog 2 gives up"],
    never=FALSE + ["SIGSEGV", "segmentation"],
)
def _(worker):
    if worker.rank == 0:

        def watchdog():
            print("watchdog 2 gives up", file=sys.stderr, flush=True)
            os._exit(11)

        threading.Thread(target=watchdog).start()
        time.sleep(5)


# ======================================================================================================================
# Exits
# ======================================================================================================================


@function_case(
    "exit with 3", kind="exit", rank=1, says=[("code 3", "status 3", "exit(3)", "with 3")], must=["rank 1"], never=FALSE
)
def _(worker):
    if worker.rank == 1:
        sys.exit(3)


@function_case("exit with a text", kind="exit", rank=0, must=["please choose a larger width"], never=FALSE + NO_WORDS)
def _(worker):
    if worker.rank == 0:
        sys.exit("please choose a larger width")


@function_case(
    "exit of the process with 0",
    kind="exit",
    rank=1,
    says=["rank 1"],
    must=[("code 0", "status 0", "with 0")],
    never=FALSE,
)
def _(worker):
    if worker.rank == 1:
        os._exit(0)


@function_case(
    "exit with 137 that no signal caused",
    kind="exit",
    rank=0,
    says=["137"],
    never=["preempted", "out of memory", "killed by SIGKILL"],
)
def _(worker):
    if worker.rank == 0:
        os._exit(137)


@function_case(
    "exit with 139 that no signal caused", kind="exit", rank=1, says=["139"], never=FALSE + ["killed by SIGSEGV"]
)
def _(worker):
    if worker.rank == 1:
        sys.exit(139)


@script_case(
    "exit of the process with 7",
    kind="exit",
    rank=1,
    says=[("code 7", "status 7", "with 7")],
    must=["licence of solver 5 not found"],
    never=FALSE,
)
def _(rank, world_size):
    if rank == 1:
        print("licence of solver 5 not found", flush=True)
        os._exit(7)


@script_case(
    "arguments that argparse refuses", kind="exit", rank=0, must=["--width", "expected one argument"], never=FALSE
)
def _(rank, world_size):
    if rank == 0:
        parser = argparse.ArgumentParser("fit.py")
        parser.add_argument("--width")
        parser.parse_args(["--width"])


@script_case(
    "early end of rank 1 with 0",
    kind=("exit", "exception", "hang", "timeout"),
    rank=1,
    says=["rank 1"],
    never=["preempted", "out of memory"],
    soon_s=30,
)
def _(rank, world_size):
    if rank == 1:
        sys.exit(0)


@script_case(
    "exit of all ranks with a text",
    kind="exit",
    rank="all",
    must=["data/index.json of version 4 is needed"],
    never=FALSE,
    soon_s=30,
)
def _(rank, world_size):
    sys.exit("data/index.json of version 4 is needed")


@script_case(
    "victim with an exception of its own",
    kind="exception",
    rank=1,
    says=["teacher 2 disagrees"],
    must=["ValueError"],
    never=FALSE,
)
def _(rank, world_size):
    if rank == 1:
        raise ValueError("teacher 2 disagrees")
    try:
        while True:
            dist.all_reduce(torch.ones(1))
            time.sleep(0.02)
    except RuntimeError as error:
        raise RuntimeError("validation on this side gave up") from error


@attached_case(
    "attached exit with 4", kind="exit", rank=1, says=[("code 4", "status 4", "exit(4)", "with 4")], never=FALSE
)
def _(rank, world_size):
    if rank == 1:
        sys.exit(4)


@attached_case(
    "attached exit of the process with 0",
    kind="exit",
    rank=0,
    says=["rank 0"],
    must=[("code 0", "status 0", "with 0")],
    never=FALSE,
)
def _(rank, world_size):
    if rank == 0:
        os._exit(0)


# ======================================================================================================================
# Signals
# ======================================================================================================================


def read_null_pointer():
    no_core()
    ctypes.string_at(0)


@function_case(
    "segmentation fault",
    kind="signal",
    rank=1,
    says=[("SIGSEGV", "segmentation")],
    must=["rank 1", "read_null_pointer"],
    never=FALSE,
)
def _(worker):
    if worker.rank == 1:
        read_null_pointer()


@function_case("abort", kind="signal", rank=0, says=[("SIGABRT", "abort")], never=FALSE)
def _(worker):
    if worker.rank == 0:
        no_core()
        os.abort()


def free_twice():
    no_core()
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    pointer = libc.malloc(64)
    libc.free(pointer)
    libc.free(pointer)


@function_case(
    "double free", kind="signal", rank=1, says=[("SIGABRT", "abort", "double free")], must=["double free"], never=FALSE
)
def _(worker):
    if worker.rank == 1:
        free_twice()


@function_case("floating point signal", kind="signal", rank=0, says=[("SIGFPE", "floating")], never=FALSE)
def _(worker):
    if worker.rank == 0:
        die_of(signal.SIGFPE, default=False)


def read_behind_the_end():
    no_core()
    with tempfile.TemporaryFile() as file:
        file.truncate(8192)
        view = mmap.mmap(file.fileno(), 8192)
        file.truncate(0)
        return view[5000]


@function_case("bus error behind the end of a file", kind="signal", rank=1, says=[("SIGBUS", "bus error")], never=FALSE)
def _(worker):
    if worker.rank == 1:
        read_behind_the_end()


@function_case("illegal instruction", kind="signal", rank=0, says=[("SIGILL", "illegal instruction")], never=FALSE)
def _(worker):
    if worker.rank == 0:
        die_of(signal.SIGILL, default=False)


@function_case("trap", kind="signal", rank=1, says=[("SIGTRAP", "trap")], never=FALSE)
def _(worker):
    if worker.rank == 1:
        die_of(signal.SIGTRAP)


@function_case("bad system call", kind="signal", rank=0, says=[("SIGSYS", "bad system call")], never=FALSE)
def _(worker):
    if worker.rank == 0:
        die_of(signal.SIGSYS)


@function_case("broken pipe signal", kind="signal", rank=1, says=[("SIGPIPE", "broken pipe")], never=FALSE)
def _(worker):
    if worker.rank == 1:
        die_of(signal.SIGPIPE)


@function_case("alarm clock", kind="signal", rank=0, says=[("SIGALRM", "alarm")], never=FALSE)
def _(worker):
    if worker.rank == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        time.sleep(5)


@function_case(
    "first user signal",
    kind="signal",
    rank=1,
    says=[("SIGUSR1", "user defined signal 1", "user-defined signal 1")],
    never=FALSE,
)
def _(worker):
    if worker.rank == 1:
        die_of(signal.SIGUSR1)


def burn_processor():
    no_core()
    os.nice(-20)  # on a busy machine, too, it has its second before the round counts as hung
    soft = int(sum(os.times()[:2])) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    while True:
        pass


@function_case("limit of processor time", kind="signal", rank=0, says=[("SIGXCPU", "cpu time")], never=FALSE)
def _(worker):
    if worker.rank == 0:
        burn_processor()


def write_too_much():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(4):
            file.write(bytes(1 << 20))


@function_case(
    "signal of the limit of file sizes",
    kind="signal",
    rank=1,
    says=[("SIGXFSZ", "file size")],
    never=FALSE + ["disk is full", "no space left"],
)
def _(worker):
    if worker.rank == 1:
        no_core()
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        write_too_much()


@function_case(
    "real-time signal", kind="signal", rank=0, says=[("SIGRTMIN", "signal 34", "real-time signal")], never=FALSE
)
def _(worker):
    if worker.rank == 0:
        die_of(signal.SIGRTMIN)


@script_case(
    "SIGKILL to itself", kind="signal", rank=1, says=["SIGKILL"], must=["rank 1"], never=["preempted", "timed out"]
)
def _(rank, world_size):
    if rank == 1:
        die_of(signal.SIGKILL, default=False)


@script_case(
    "SIGTERM to itself",
    kind=("signal", "terminated"),
    rank=0,
    says=[("SIGTERM", "terminated")],
    never=["was preempted", "out of memory", "was cancelled"],
)
def _(rank, world_size):
    if rank == 0:
        die_of(signal.SIGTERM)


@script_case("SIGHUP to itself", kind="signal", rank=1, says=[("SIGHUP", "hangup")], never=FALSE)
def _(rank, world_size):
    if rank == 1:
        die_of(signal.SIGHUP)


@script_case("SIGINT to itself", kind=("signal", "exception"), rank=0, says=[("SIGINT", "interrupt")], never=FALSE)
def _(rank, world_size):
    if rank == 0:
        die_of(signal.SIGINT)


@script_case(
    "SIGUSR2 to itself",
    kind="signal",
    rank=1,
    says=[("SIGUSR2", "user defined signal 2", "user-defined signal 2")],
    never=FALSE + ["reached its time limit"],
)
def _(rank, world_size):
    if rank == 1:
        die_of(signal.SIGUSR2)


@attached_case(
    "attached segmentation fault",
    kind="signal",
    rank=0,
    says=[("SIGSEGV", "segmentation")],
    must=["read_null_pointer"],
    never=FALSE,
)
def _(rank, world_size):
    if rank == 0:
        read_null_pointer()


@attached_case("attached SIGKILL to itself", kind="signal", rank=1, says=["SIGKILL"], never=["preempted", "timed out"])
def _(rank, world_size):
    if rank == 1:
        die_of(signal.SIGKILL, default=False)


# ======================================================================================================================
# Memory
# ======================================================================================================================


def fill_replay_buffer():
    address_space_left(256)
    return bytearray(4 << 30)


@function_case(
    "MemoryError under a limit of address space",
    kind="host_memory",
    rank=1,
    says=["memory"],
    must=["fill_replay_buffer"],
    never=["preempted", "timed out", "SIGKILL"],
)
def _(worker):
    if worker.rank == 1:
        fill_replay_buffer()


def make_table():
    import numpy

    return numpy.ones(1 << 48)


@function_case(
    "array of numpy that is too large",
    kind="host_memory",
    rank=0,
    says=["memory"],
    must=["make_table", "2.00 PiB"],
    never=["preempted", "timed out"],
)
def _(worker):
    if worker.rank == 0:
        make_table()


def make_embedding():
    return torch.empty(1 << 48)


@function_case(
    "tensor that is too large",
    kind="host_memory",
    rank=1,
    says=["memory"],
    must=["make_embedding"],
    never=["preempted", "timed out"],
)
def _(worker):
    if worker.rank == 1:
        make_embedding()


@function_case(
    "memory of a GPU",
    kind="cuda_oom",
    rank=0,
    says=["memory"],
    must=["2.75 GiB"],
    never=["preempted", "timed out", "SIGKILL"],
)
def _(worker):
    if worker.rank == 0:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.75 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.20 GiB is free. "
            "Process 4711 has 77.90 GiB memory in use."
        )


def raise_as_torch(text):
    """Changed after the first run: raised in a file of torch's, as in life. The words of the user's own `raise` are the user's."""
    path = os.path.join(os.path.dirname(torch.__file__), "multiprocessing", "reductions.py")
    exec(compile(f"raise RuntimeError({text!r})", path, "exec"))


@function_case(
    "shared memory that torch cannot write",
    kind="shm",
    rank=1,
    says=[("/dev/shm", "shared memory")],
    never=["preempted", "timed out", "quota"],
)
def _(worker):
    if worker.rank == 1:
        raise_as_torch("unable to write to file </torch_2301_1804289383_0>: No space left on device (28)")


@script_case(
    "cache in shared memory",
    kind=("shm", "disk_full"),
    rank=0,
    must=["/dev/shm/cache-7"],
    never=["preempted", "timed out"],
)
def _(rank, world_size):
    if rank == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/dev/shm/cache-7")


@attached_case(
    "attached MemoryError under a limit of address space",
    kind="host_memory",
    rank=0,
    says=["memory"],
    must=["fill_replay_buffer"],
    never=["preempted", "timed out", "SIGKILL"],
)
def _(rank, world_size):
    if rank == 0:
        fill_replay_buffer()


# ======================================================================================================================
# Hangs
# ======================================================================================================================


def spin_forever():
    while True:
        pass


@function_case(
    "endless loop in python",
    kind="hang",
    rank=1,
    late=True,
    says=["rank 1"],
    must=["spin_forever"],
    never=FALSE,
    soon_s=15,
)
def _(worker):
    if worker.rank == 1:
        spin_forever()


def sleep_forever():
    time.sleep(600)


@function_case(
    "endless sleep on rank 0",
    kind="hang",
    rank=0,
    late=True,
    says=["rank 0"],
    must=["sleep_forever"],
    never=FALSE,
    soon_s=15,
)
def _(worker):
    if worker.rank == 0:
        sleep_forever()


def take_lock_twice():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@function_case(
    "lock that is never released",
    kind="hang",
    rank=1,
    late=True,
    says=["rank 1"],
    must=["take_lock_twice"],
    never=FALSE,
    soon_s=15,
)
def _(worker):
    if worker.rank == 1:
        take_lock_twice()


def join_stuck_thread():
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    thread.join()


@function_case(
    "thread that never ends is joined",
    kind="hang",
    rank=0,
    late=True,
    says=["rank 0"],
    must=["join_stuck_thread"],
    never=FALSE,
    soon_s=15,
)
def _(worker):
    if worker.rank == 0:
        join_stuck_thread()


def wait_for_dead_producer():
    batches = queue.Queue()
    threading.Thread(target=prefetch, args=(10,)).start()
    batches.get()


@function_case(
    "queue whose producer has died",
    kind="hang",
    rank=1,
    late=True,
    says=["rank 1"],
    must=["wait_for_dead_producer", "prefetching lost shard 10"],
    never=FALSE,
    soon_s=15,
)
def _(worker):
    if worker.rank == 1:
        wait_for_dead_producer()


def wait_for_leaver():
    batches = queue.Queue()
    threading.Thread(target=sys.exit, args=("producer leaves",)).start()
    batches.get()


@function_case(
    "queue whose producer has left by SystemExit",
    kind="hang",
    rank=0,
    late=True,
    says=["rank 0"],
    must=["wait_for_leaver"],
    never=FALSE,
    soon_s=15,
)
def _(worker):
    if worker.rank == 0:
        wait_for_leaver()


def wait_for_solver():
    subprocess.run(["sleep", "600"])


@function_case(
    "program that never ends",
    kind="hang",
    rank=1,
    late=True,
    says=["rank 1"],
    must=["wait_for_solver"],
    never=FALSE,
    soon_s=15,
)
def _(worker):
    if worker.rank == 1:
        wait_for_solver()


def sleep_over_sample(index):
    time.sleep(600)


def hungry_loader():
    read_all(sleep_over_sample, 1)


@function_case(
    "loader worker that never answers",
    kind="hang",
    rank=0,
    late=True,
    says=["rank 0"],
    must=["hungry_loader", "dataloader"],
    never=FALSE,
    soon_s=15,
)
def _(worker):
    if worker.rank == 0:
        hungry_loader()


def hold_the_gil():
    ctypes.PyDLL(None).sleep(60)


@function_case(
    "C code that holds the interpreter",
    kind="hang",
    rank=1,
    late=True,
    says=["rank 1"],
    must=["hold_the_gil"],
    never=FALSE,
    soon_s=15,
)
def _(worker):
    if worker.rank == 1:
        hold_the_gil()


def wait_for_dataset():
    while not os.path.exists("/nonexistent/dataset/READY"):
        time.sleep(0.2)


@function_case(
    "all ranks wait for a file", kind="hang", rank="all", late=True, must=["wait_for_dataset"], never=FALSE, soon_s=15
)
def _(worker):
    wait_for_dataset()


def one_barrier_too_many():
    dist.barrier()


@function_case(
    "one barrier too many",
    kind="hang",
    rank=None,
    late=True,
    must=["one_barrier_too_many", "barrier", ("all_reduce", "allreduce")],
    never=FALSE,
    soon_s=15,
)
def _(worker):
    if worker.rank == 1:
        one_barrier_too_many()


def other_collective():
    dist.broadcast(torch.zeros(4), src=1)


@function_case(
    "one rank in another collective",
    kind="hang",
    rank=None,
    late=True,
    must=["other_collective", "broadcast", ("all_reduce", "allreduce")],
    never=FALSE,
    soon_s=15,
)
def _(worker):
    if worker.rank == 0:
        other_collective()


@script_case(
    "SIGSTOP to itself",
    kind="hang",
    rank=1,
    says=["rank 1"],
    must=[("stopped", "SIGSTOP", "frozen", "stands still", "suspended")],
    never=FALSE,
    soon_s=15,
)
def _(rank, world_size):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


# Before the next: a restart for a hang makes the next watch more patient.
@attached_case(
    "attached endless sleep", kind="hang", rank=1, says=["rank 1"], must=["sleep_forever"], never=FALSE, soon_s=15
)
def _(rank, world_size):
    if rank == 1:
        sleep_forever()


@attached_case(
    "attached SIGSTOP to itself",
    kind="hang",
    rank=0,
    says=["rank 0"],
    must=[("stopped", "SIGSTOP", "frozen", "stands still", "suspended")],
    never=FALSE,
    soon_s=15,
)
def _(rank, world_size):
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)


# ======================================================================================================================
# Collectives and stores
# ======================================================================================================================


def sum_of_unequal_lengths(rank):
    dist.all_reduce(torch.ones(4000 if rank == 1 else 3))


@function_case(
    "collective of unequal shapes",
    kind=("exception", "signal", "hang"),
    rank=None,
    must=[("sum_of_unequal_lengths", "preamble")],
    never=FALSE,
    soon_s=15,
)
def _(worker):
    sum_of_unequal_lengths(worker.rank)


def sum_of_unequal_types(rank):
    dist.all_reduce(torch.ones(4000, dtype=torch.float64 if rank == 0 else torch.float32))


@script_case(
    "collective of unequal types",
    kind=("exception", "signal", "hang"),
    rank=None,
    must=[("sum_of_unequal_types", "preamble")],
    never=FALSE,
    soon_s=15,
)
def _(rank, world_size):
    sum_of_unequal_types(rank)


@function_case(
    "exception amid collectives of the others",
    kind="exception",
    rank=0,
    says=["gather of shard 6 refused"],
    must=["rank 0", "ValueError"],
    never=FALSE + NO_WORDS,
)
def _(worker):
    for number in range(20):
        if worker.rank == 0 and number == 10:
            raise ValueError("gather of shard 6 refused")
        dist.all_reduce(torch.ones(1000))


def ask_own_store():
    store = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=timedelta(seconds=1))
    return store.get("vocabulary-size")


@function_case(
    "key that is missing in the user's own store",
    kind="exception",
    rank=1,
    says=["vocabulary-size"],
    must=["ask_own_store"],
    never=["preempted", "out of memory", "store is gone"],
)
def _(worker):
    if worker.rank == 1:
        ask_own_store()


def slow_shard():
    time.sleep(20)


@function_case(
    "monitored barrier that rank 1 does not pass",
    kind=("timeout", "exception"),
    rank=None,
    says=["rank 1"],
    must=[("monitored_barrier", "monitoredBarrier")],
    never=["preempted", "out of memory"],
)
def _(worker):
    if worker.rank == 1:
        slow_shard()
    else:
        dist.monitored_barrier(timeout=timedelta(seconds=1))


def sum_in_hasty_group(group):
    dist.all_reduce(torch.ones(3), group=group)


@script_case(
    "group with a time-out of a second",
    kind=("timeout", "exception", "hang"),
    rank=None,
    says=["rank 1"],
    must=["sum_in_hasty_group"],
    never=["preempted", "out of memory"],
)
def _(rank, world_size):
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 1:
        slow_shard()
    sum_in_hasty_group(group)


# ======================================================================================================================
# File systems
# ======================================================================================================================


def write_metrics():
    with open("/dev/full", "w") as file:
        file.write("loss 0.5\n")


@function_case(
    "full device",
    kind="disk_full",
    rank=0,
    says=[("no space left", "disk is full", "full")],
    must=["write_metrics"],
    never=["preempted", "out of memory", "timed out", "/dev/shm"],
)
def _(worker):
    if worker.rank == 0:
        write_metrics()


@function_case("quota used up", kind="disk_full", rank=1, says=["quota"], must=["/home/ada/curves.csv"], never=FALSE)
def _(worker):
    if worker.rank == 1:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/home/ada/curves.csv")


@function_case(
    "read-only file system",
    kind="exception",
    rank=0,
    says=["read-only"],
    must=["/archive/curves.csv"],
    never=FALSE + ["disk is full"],
)
def _(worker):
    if worker.rank == 0:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/archive/curves.csv")


@function_case(
    "limit of file sizes",
    kind="exception",
    rank=1,
    says=["file too large"],
    must=["write_too_much"],
    never=FALSE + ["disk is full", "no space left"],
)
def _(worker):
    if worker.rank == 1:
        write_too_much()


def open_many():
    top = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (top + 9, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return [open("/dev/null") for _ in range(1000)]


@function_case(
    "too many open files", kind="exception", rank=0, says=["too many open files"], must=["open_many"], never=FALSE
)
def _(worker):
    if worker.rank == 0:
        open_many()


@script_case(
    "stale file handle",
    kind=("exception", "unreadable"),
    rank=1,
    says=["stale file handle"],
    must=["/data/shard-12.tar"],
    never=FALSE,
)
def _(rank, world_size):
    if rank == 1:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/data/shard-12.tar")


def open_labels():
    return open("labels/of-nobody.csv")


@script_case(
    "file that is not there", kind="exception", rank=0, says=["labels/of-nobody.csv"], must=["open_labels"], never=FALSE
)
def _(rank, world_size):
    if rank == 0:
        open_labels()


def run_what_is_no_program():
    subprocess.run([os.path.abspath(__file__)])


@script_case(
    "program that may not be run",
    kind="exception",
    rank=1,
    says=["permission denied"],
    must=["run_what_is_no_program"],
    never=FALSE,
)
def _(rank, world_size):
    if rank == 1:
        run_what_is_no_program()


@attached_case(
    "attached full device",
    kind="disk_full",
    rank=1,
    says=[("no space left", "disk is full", "full")],
    must=["write_metrics"],
    never=["preempted", "out of memory", "timed out", "/dev/shm"],
)
def _(rank, world_size):
    if rank == 1:
        write_metrics()
