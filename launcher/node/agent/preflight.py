"""Checks one node before the first round: each check has a name, a result and one sentence."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from functools import partial

import psutil

from launcher.frozen import field_values, frozen
from launcher.node.agent import description, logs
from launcher.node.agent.gpus import Gpus
from launcher.node.agent.store import first_answer
from launcher.node.forkserver.client import ForkServer, ForkServerError
from launcher.node.wire.messages import CheckResult, ChecksDone, RunChecks
from launcher.run.asking import patiently
from launcher.run.paths import RunPaths
from launcher.run.spec import CHECKED_FREE_BYTES, CHECKED_FREE_INODES, RunSpec
from launcher.run.units import size
from launcher.slurm.probe import torch_versions

ALL_REDUCE_MAIN = "launcher.training.process.all_reduce:main"
ROUND = -1
"""The number under which the store and the processes of the checks run; `end` clears it like a round."""
_SCRATCH_BYTES = 4 << 20
_LOCAL_S = 20.0
_AWAY_S = 10.0
"""A run's folder that does not answer is asked again for so long: half of what the checks may take."""
_ALL_REDUCE_S = 75.0


@frozen
class Check:
    """One check."""

    name: str
    ok: bool
    detail: str


def judge_gpus(asked: int, gpus: Gpus) -> list[Check]:
    """Check that the GPUs the job asked for are there and report no errors.

    Without the library that asks NVML, which nodes may lack, torch alone counts them (`launcher.training.process.all_reduce`).
    """
    if not gpus.installed:
        return [Check("gpus", True, "nvidia-ml-py is not installed here: only torch checks the GPUs")]
    if gpus.problem:
        return [Check("gpus", False, f"NVML does not answer: {gpus.problem}")]
    found, faults = len(gpus), gpus.faults()
    text = f"{found} of {asked} GPUs are visible" if found < asked else f"{found} GPUs are visible"
    return [
        Check("gpus", found >= asked, text),
        Check("gpu_errors", not faults, "; ".join(faults) or "no GPU reports errors"),
    ]


def judge_driver(cuda_driver: str, torch_cuda: str | None) -> Check:
    """Check that the driver's CUDA has torch's major version or a newer one. Pure."""
    if torch_cuda is None:
        return Check("driver", False, "this torch was built without CUDA")
    # within one major version every driver runs every toolkit (CUDA minor version compatibility)
    ok = int(cuda_driver.split(".")[0]) >= int(torch_cuda.split(".")[0])
    verdict = "which is enough for" if ok else "which is too old for"
    return Check("driver", ok, f"the driver offers CUDA {cuda_driver}, {verdict} torch's {torch_cuda}")


def judge_memory(asked_gb: float | None, available_bytes: int) -> list[Check]:
    """Check that the memory the job asked for is available; a tenth less passes, as kernels keep some. Pure."""
    if asked_gb is None:
        return []
    has = available_bytes / 2**30
    return [Check("memory", has >= 0.9 * asked_gb, f"{has:.1f} of the {asked_gb:g} GB asked for are available")]


def judge_disk(free_bytes: int | None, free_inodes: int | None) -> list[Check]:
    """Check that the run directory's file system has room for a checkpoint. Pure."""
    checks = []
    if free_bytes is not None:
        text = f"{size(free_bytes)} are free on the run directory's file system"
        enough = free_bytes >= CHECKED_FREE_BYTES
        checks.append(Check("disk", enough, text if enough else f"{text}; {size(CHECKED_FREE_BYTES)} are needed"))
    if free_inodes is not None:
        text = f"{free_inodes} inodes are free on the run directory's file system"
        checks.append(Check("inodes", free_inodes >= CHECKED_FREE_INODES, text))
    return checks


@frozen
class Preflight:
    """The checks of this node."""

    spec: RunSpec
    paths: RunPaths
    server: ForkServer
    node: int
    attempt: int

    async def run(self, order: RunChecks) -> ChecksDone:
        """Run every check."""
        begun = time.monotonic()
        reduced = asyncio.ensure_future(self._all_reduce(order))
        try:
            checks = await asyncio.wait_for(asyncio.to_thread(self._look, order.names), _LOCAL_S)
        except asyncio.TimeoutError:
            checks = [Check("node", False, f"its disk, names or GPUs did not answer within {_LOCAL_S:.0f} s")]
        over_network, bandwidth = await reduced
        checks += over_network
        return ChecksDone(
            # a failed all-reduce fails on every node: it is no evidence against this one
            ok=all(check.ok for check in checks if check.name != "all_reduce"),
            seconds=round(time.monotonic() - begun, 3),
            checks=[CheckResult(**field_values(check)) for check in checks],
            bandwidth_gb_s=bandwidth,
        )

    def _look(self, names: list[str]) -> list[Check]:
        # The workers' TMPDIR, which the job may set; not gettempdir: that steps aside when /tmp is full.
        scratch = (self.server.environ.get("TMPDIR") or "/tmp", "/dev/shm")  # noqa: S108
        return [
            *(_gpus(self.spec.gpus_per_node) if self.spec.gpus_per_node else ()),
            *judge_memory(self.spec.mem_gb, int(psutil.virtual_memory().available)),
            *judge_disk(**description.disk(self.paths.root)),
            self._writes(),
            _scratch(scratch),
            _resolves(names),
        ]

    def _writes(self) -> Check:
        """Write a file durably: free space does not show quotas and read-only mounts."""
        probe = self.paths.root / f".preflight-{self.attempt}-{self.node}"

        def write() -> None:
            with probe.open("wb") as f:
                f.write(b"x" * 4096)
                f.flush()
                os.fsync(f.fileno())
            probe.unlink()

        try:
            patiently(write, self.paths.root, patience_s=_AWAY_S)
        except OSError as error:
            return Check("run_dir", False, f"the run directory cannot be written: {error.strerror or error}")
        return Check("run_dir", True, "the run directory can be written")

    async def _all_reduce(self, order: RunChecks) -> tuple[list[Check], float | None]:
        """Run a small all-reduce over one process per node, on the job's backend; return its bandwidth."""
        if order.port is None or (order.world_size == 1 and self.spec.backend != "nccl"):
            return [], None
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        log = self.paths.round_logs(self.attempt, 0) / f"preflight-{self.node}.log"
        environ = {
            "RANK": order.rank,
            "WORLD_SIZE": order.world_size,
            "LOCAL_RANK": 0,
            "MASTER_ADDR": order.names[0],
            "MASTER_PORT": order.port,
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "LAUNCHER_BACKEND": self.spec.backend,
            "LAUNCHER_GPUS_PER_NODE": self.spec.gpus_per_node,
        }
        name = "all_reduce"
        try:
            fork = partial(self.server.fork, f"preflight.{self.node}", ROUND, ALL_REDUCE_MAIN, env=environ)
            answer = await first_answer(fork, log, mine, theirs, share=self.spec.share, within_s=_ALL_REDUCE_S)
        except asyncio.TimeoutError:
            text = f"an all-reduce did not end within {_ALL_REDUCE_S:.0f} s"
        except (OSError, ValueError, ForkServerError) as error:
            lines = await asyncio.to_thread(logs.last_lines, log)
            text = f"an all-reduce failed: {lines[-1] if lines else error}"
        else:
            if "error" not in answer:
                speed = float(answer["gb_s"])
                return [
                    Check(name, True, f"an all-reduce over {order.world_size} nodes ran at {speed:.2f} GB/s")
                ], speed
            name = "device" if answer.get("local") else name
            text = f"a short all-reduce failed here: {answer['error']}"
        finally:
            mine.close()
        return [Check(name, False, text)], None


def _gpus(asked: int) -> list[Check]:
    """Ask NVML; nodes with AMD GPUs have none, and only torch checks those."""
    versions = torch_versions()
    if "rocm" in (versions["torch"] or ""):
        return [Check("gpus", True, "torch is built for ROCm: only torch checks the GPUs")]
    gpus = Gpus()
    checks = judge_gpus(asked, gpus)
    if offered := gpus.describe().get("cuda_driver"):
        checks.append(judge_driver(offered, versions["cuda"]))
    return checks


def _scratch(folders: Sequence[str]) -> Check:
    """Write to both folders: workers fail when shared memory (data loaders) or the temporary folder (libraries) is full."""
    tried = [folder for folder in folders if os.path.isdir(folder)]
    for folder in tried:
        try:
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(b"x" * _SCRATCH_BYTES)
                probe.flush()
        except OSError as error:
            return Check("scratch", False, f"{folder} cannot be written: {error.strerror or error}")
    return Check("scratch", True, f"{' and '.join(tried)} can be written")


def _resolves(names: list[str]) -> Check:
    """Check that this node can resolve the names of others."""
    wrong = [name for name in names if not description.resolve_host(name)]
    if wrong:
        return Check("names", False, f"this node cannot resolve {', '.join(wrong)}")
    return Check("names", True, f"the names of {len(names)} nodes resolve")
