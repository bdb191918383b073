"""A script as users have them, that fails on rank 1 as its arguments say, another way each round."""

import ctypes
import os
import signal
import sys
import time

hows, rank, number = sys.argv[1:], int(os.environ["RANK"]), int(os.environ["LAUNCHER_ROUND"])
how = hows[number] if number < len(hows) else ""
print("reading data", flush=True)
if rank == 0 and how:
    time.sleep(3600)
if how == "traceback":
    raise RuntimeError("shard 7 is empty")
if how == "exit":
    print("giving up: no data", flush=True)
    sys.exit(3)
if how == "segfault":
    ctypes.string_at(0)
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "import":
    import a_package_nobody_has  # noqa: F401
