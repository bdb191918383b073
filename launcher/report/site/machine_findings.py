"""What the interpreter, torch, drivers and the runs' folder mean for jobs, here and on a compute node. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.report.formats import duration
from launcher.report.site.findings import Finding, SiteFacts, note, ok, problem, warning
from launcher.run.units import size
from launcher.slurm.probe import HostSoftware
from launcher.slurm.site import Partition

_LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "ramfs")


def machine_findings(facts: SiteFacts, part: Partition | None) -> Iterator[Finding]:
    """Yield the findings about Python, the runs' folder, and the compute node that the probe saw."""
    yield from _python(facts, part)
    yield from _runs(facts)
    yield from _probe(facts)


def _python(facts: SiteFacts, part: Partition | None) -> Iterator[Finding]:
    look, who = facts.look, facts.python
    if look.error:
        yield problem("python", f"{who} cannot be used: {look.error}")
        return
    if not look.torch:
        yield problem(
            "python", f"{who} ({look.python}) has no torch. Activate your environment or set environment.python."
        )
        return
    built = f"CUDA {look.cuda}" if look.cuda else "no CUDA"
    nccl = f", NCCL {look.nccl}" if look.nccl else ""
    yield ok("python", f"{who} ({look.python}, torch {look.torch}, {built}{nccl})")
    if part and part.gpus_per_node and not look.cuda and "rocm" not in look.torch:
        yield warning("torch", f"{part.name} has GPUs, but this torch is built without CUDA: it would train on CPUs.")
    yield from _driver(look, "this machine")
    yield from _nccl(look)
    if facts.debug_detail:
        yield warning("torch", "TORCH_DISTRIBUTED_DEBUG=DETAIL is set, which crashes DDP with gloo: unset it.")


def _driver(look: HostSoftware, where: str) -> Iterator[Finding]:
    if not look.driver_cuda or not look.cuda:
        return
    if int(look.driver_cuda.split(".")[0]) < int(look.cuda.split(".")[0]):
        driver = f"the driver of {where} ({look.driver or 'of unknown version'})"
        yield problem("driver", f"torch is built for CUDA {look.cuda}, but {driver} supports CUDA {look.driver_cuda} at most: GPUs "
                                f"cannot be used. Install a torch for CUDA {look.driver_cuda}.")  # fmt: skip
    else:
        named = f" ({look.driver})" if look.driver else ""
        yield ok("driver", f"The driver of {where}{named} supports CUDA {look.driver_cuda}, enough for torch.")


def _nccl(look: HostSoftware) -> Iterator[Finding]:
    """Compare NCCL with torch: its packages for CUDA 11, 12 and 13 share a folder, and torch loads whichever is there."""
    if look.cuda and look.nccl_cuda and (major := look.cuda.split(".")[0]) != look.nccl_cuda:
        where = f" on {look.host}" if look.host else ""
        yield warning("nccl", f"torch is built for CUDA {look.cuda}, and the NCCL{where} ({look.nccl}) for CUDA {look.nccl_cuda}: "
                              f"install nvidia-nccl-cu{major} instead of nvidia-nccl-cu{look.nccl_cuda}.")  # fmt: skip


def _runs(facts: SiteFacts) -> Iterator[Finding]:
    runs = facts.runs
    if not runs.writable:
        yield problem("runs", f"{runs.shown} cannot be written.")
        return
    free = f", {size(runs.free_bytes)} free" if runs.free_bytes is not None else ""
    kind = f" on {runs.filesystem}" if runs.filesystem else ""
    yield ok("runs", f"{runs.shown}{kind}{free}")
    if facts.site is not None and facts.probe is None:
        if runs.filesystem in _LOCAL:
            disk = f"{runs.shown} is on a local disk ({runs.filesystem})"
            yield warning("runs", f"{disk}: compute nodes may not see it. launcher doctor --probe checks that.")
        else:
            yield note("runs", "launcher doctor --probe checks with a tiny job whether compute nodes see it.")


def _probe(facts: SiteFacts) -> Iterator[Finding]:
    probe = facts.probe
    if probe is None:
        return
    if not probe.ok:
        yield problem("probe", f"{probe.why[:1].upper()}{probe.why[1:].rstrip('.')}.")
        return
    there, here = probe.look, facts.look
    yield ok("probe", f"{there.host} ran a job within {duration(probe.seconds)} and sees {facts.runs.shown}.")
    if not there.torch:
        yield problem(
            "probe",
            f"On {there.host} {facts.python} has no torch, but here it has. Put the environment on a shared disk.",
        )
    elif differ := _differences(there, here):
        yield warning("probe", f"{there.host} has {differ} under the same path.")
    yield from _driver(there, there.host)
    if (there.nccl_cuda, there.cuda) != (here.nccl_cuda, here.cuda):
        yield from _nccl(there)


def _differences(there: HostSoftware, here: HostSoftware) -> str:
    """Say what a node has otherwise than this machine, "" for nothing: ranks with different NCCLs or torches do not connect."""
    rows = [
        ("Python", there.python, here.python), ("torch", there.torch, here.torch), ("CUDA", there.cuda, here.cuda),
        ("NCCL", there.nccl, here.nccl),
    ]  # fmt: skip
    return ", ".join(f"{name} {at or 'none'} (here {own or 'none'})" for name, at, own in rows if at != own)
