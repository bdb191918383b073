"""The faults themselves: each strikes a running job as the world would, from outside."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
from cluster import Cluster
from harness import Run

AGENTS = {"submitit.core._submit", "launcher.node.agent"}


def agents(run: Run) -> dict[int, psutil.Process]:
    """The agents of the run by node, 0 the first leader's: the processes that SLURM started on the hosts."""
    found = {}
    for process in run.processes():
        with contextlib.suppress(psutil.Error, OSError):
            words = process.cmdline()
            parent = process.parent()
            if process.name() in (
                "srun",
                "bash",
                "sh",
            ):  # the batch script's srun names the module, and has node 0's variables
                continue
            if parent is not None and AGENTS & {*parent.cmdline()[:-1]} and parent.name() != "slurmstepd":
                continue
            if "submitit.core._submit" in words and "SLURM_NODEID" in (env := process.environ()):
                found[int(env["SLURM_NODEID"])] = process
            elif {"--again", "--joins"} & {*words}:
                found[int(words[words.index("--node") + 1])] = process
    return found


def those(processes: Iterable[psutil.Process], fits: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Those that fit. One that has ended since it was listed, such as a child that was about to be scontrol, does not."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if fits(process):
                found.append(process)
    return found


def keeper(run: Run) -> psutil.Process:
    """The process that starts agents again."""
    return those(run.processes(), lambda process: "launcher.node.allocation.keeper" in process.cmdline())[0]


def lose_keeper(run: Run) -> None:
    """SIGKILL the keeper, and the shell that would start another one."""
    one = keeper(run)
    for process in (one.parent(), one):
        if process is not None:
            process.kill()


def lose_agent(run: Run, node: int) -> None:
    """SIGKILL one agent whose keeper has died before: nobody starts it again."""
    lose_keeper(run)
    kill_agent(run, node)


def sruns(run: Run) -> list[psutil.Process]:
    """The sruns of the run, without their children."""
    found = those(run.processes(), lambda process: process.name() == "srun")
    pids = {process.pid for process in found}
    return those(found, lambda process: process.ppid() not in pids)


def kill_srun(run: Run) -> None:
    """The sruns die, the batch script's and the keeper's. Each has a child, which then ends the step."""
    for srun in sruns(run):
        with contextlib.suppress(psutil.NoSuchProcess):  # the one before took it along
            srun.kill()


def signal_rank(run: Run, rank: int, number: int) -> None:
    """Send a signal to one worker."""
    os.kill(int(run.rank(rank)["pid"]), number)


def kill_agent(run: Run, *nodes: int) -> None:
    """SIGKILL the agents of these nodes, in one moment, as looking for one takes a while; node 0's is the leader."""
    wanted = {*nodes}
    found = run.wait(f"the agents of {nodes}", lambda: there if wanted <= (there := agents(run)).keys() else None)
    for node in nodes:
        found[node].send_signal(signal.SIGKILL)


def kill_store(run: Run) -> None:
    """SIGKILL the process that holds the round's store."""
    signal_store(run, signal.SIGKILL)


def signal_store(run: Run, number: int) -> None:
    """Send a signal to the process that holds the round's store: the one that listens on MASTER_PORT."""
    port = run.told("round_started")[-1]["master_port"]
    ranks = {r.get("pid") for r in run.state()["ranks"]}
    for process in run.processes():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid not in ranks and port in _ports(process.pid, "0A"):
                process.send_signal(number)
                return
    raise AssertionError(f"no process listens on {port}")


def is_kept(run: Run) -> bool:
    """Whether the keeper is there and has found the leader."""
    try:
        return bool(_ports(keeper(run).pid, "01"))
    except (IndexError, OSError):
        return False


def _ports(pid: int, state: str) -> set[int]:
    """The ports of a process's TCP sockets that listen (0A) or are connected (01).

    psutil reads this process's network namespace; the run's processes live in their hosts'.
    """
    found = set()
    inodes = {os.readlink(f"/proc/{pid}/fd/{fd}")[8:-1] for fd in os.listdir(f"/proc/{pid}/fd") if _is_socket(pid, fd)}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == state and words[9] in inodes:
                found.add(int(words[1].rpartition(":")[2], 16))
    return found


def _is_socket(pid: int, fd: str) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
    return False


def preempt(cluster: Cluster, hosts: list[str], seconds: int = 2) -> str:
    """A short job of a partition with a higher priority wants these hosts."""
    nodes = ["-N", len(hosts), "-w", ",".join(hosts)]
    return cluster.sbatch("-p", "high", "--exclusive", *nodes, wrap=f"srun sleep {seconds}")


def fill(filler: Path) -> None:
    """Write a file until its disk is full."""
    with open(filler, "wb", buffering=0) as f:
        for size in (65536, 4096):
            with contextlib.suppress(OSError):
                while True:
                    f.write(b"\0" * size)


def newest_checkpoint(run: Run) -> Path:
    """The newest committed checkpoint."""
    return max(run.paths.checkpoints.glob("step-*"))


def flip_byte(path: Path) -> None:
    """Damage one byte in the middle."""
    with open(path, "r+b") as f:
        f.seek(path.stat().st_size // 2)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 0xFF]))


def truncate(path: Path) -> None:
    """Cut the file in half."""
    os.truncate(path, path.stat().st_size // 2)
