"""Find out what software a host has: this one, or a compute node by a tiny job. Standard library only."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import subprocess
import time
from dataclasses import field
from pathlib import Path
from typing import Any

from launcher.errors import RunDirError
from launcher.frozen import frozen
from launcher.run.own_folder import require_safe_place
from launcher.run.units import is_job_id
from launcher.slurm.commands import ask
from launcher.slurm.environ import without_slurm
from launcher.slurm.jobs import job_views

# Run by the interpreter in question, which may have no packages. torch is found, never imported.
_LOOK = r"""
import importlib.util, json, os, re, socket, sys

def torch_facts():
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        return {}
    try:
        with open(os.path.join(list(spec.submodule_search_locations)[0], "version.py")) as f:
            said = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*= *['\"]([^'\"]+)['\"]", f.read(), re.M))
    except (OSError, ValueError):
        said = {}
    return {"torch": said.pop("__version__", "?"), **said}

def nccl(cuda):
    from importlib import metadata
    for major in sorted(("13", "12", "11"), key=lambda m: m != str(cuda).split(".")[0]):
        try:
            return {"nccl": metadata.version("nvidia-nccl-cu" + major), "nccl_cuda": major}
        except Exception:
            continue
    return {}

def driver_cuda():
    import ctypes
    number = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return "%d.%d" % (number.value // 1000, number.value % 1000 // 10) if number.value else None

def driver():
    try:
        with open("/proc/driver/nvidia/version") as f:
            words = f.readline().split()
        return next((w for w in words if w[:1].isdigit() and w.count(".") >= 1), None)
    except OSError:
        return None

def look():
    torch = torch_facts()
    return {"host": socket.gethostname(), "python": "%d.%d.%d" % sys.version_info[:3], "driver": driver(),
            "driver_cuda": driver_cuda(), **torch, **nccl(torch.get("cuda"))}
"""


@frozen(kw_only=True)
class HostSoftware:
    """An interpreter and the host it runs on; None: not there."""

    host: str = ""
    python: str = ""
    torch: str | None = None
    cuda: str | None = None
    """CUDA version that torch was built for; None: a CPU build."""
    nccl: str | None = None
    """Version of NCCL's package, the one for torch's CUDA where there are several."""
    nccl_cuda: str | None = None
    """Major version of CUDA that this package is for."""
    driver: str | None = None
    driver_cuda: str | None = None
    """The newest CUDA version that the machine's driver serves."""
    error: str = ""


@frozen(kw_only=True)
class ProbeResult:
    """What the tiny job found out."""

    ok: bool
    why: str = ""
    """One sentence when it is not `ok`."""
    seconds: float = 0.0
    """From submission to its answer."""
    look: HostSoftware = field(default_factory=HostSoftware)
    job_id: str = ""


def torch_versions() -> dict[str, str | None]:
    """Return the versions of this interpreter's torch, its CUDA and NCCL's package."""
    scope: dict[str, Any] = {}
    exec(_LOOK, scope)  # noqa: S102 (the constant above: one text for this process and for others)
    torch = scope["torch_facts"]()
    found = {**torch, **scope["nccl"](torch.get("cuda"))}
    return {name: found.get(name) for name in ("torch", "cuda", "nccl")}


def parse_software(text: str) -> HostSoftware:
    """Read what the interpreter printed; anything else is its error."""
    try:
        said = json.loads(text.strip().splitlines()[-1])
        return HostSoftware(
            **{k: v for k, v in said.items() if k in HostSoftware.__dataclass_fields__ and isinstance(v, str)}
        )
    except (ValueError, IndexError, AttributeError, TypeError, RecursionError):
        return HostSoftware(error=text.strip()[-200:] or "it printed nothing")


def software_here(python: str) -> HostSoftware:
    """Ask the interpreter ``python`` on this host."""
    try:
        done = subprocess.run(
            [python, "-c", _LOOK + "\nprint(json.dumps(look()))"], capture_output=True, text=True, errors="replace", timeout=60,
            check=False, stdin=subprocess.DEVNULL, cwd="/",  # Python looks for modules there first: here, others may have left some
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return HostSoftware(error=str(error))
    return parse_software(done.stdout) if done.returncode == 0 else HostSoftware(error=done.stderr.strip()[-200:])


def probe_node(
    folder: Path,
    python: str,
    *,
    partition: str | None = None,
    account: str | None = None,
    wait_s: float = 300.0,
) -> ProbeResult:
    """Submit a tiny job that must read a file written below ``folder`` here, and answer there.

    It is cancelled when it has not answered after ``wait_s``. Leaves nothing behind. Never raises for what SLURM or the
    file system refuse.
    """
    began = time.monotonic()
    token = secrets.token_hex(8)
    place = folder / f".doctor-{token}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_safe_place(place)  # the node runs what it finds there by its path
        place.mkdir(mode=0o700)
        (place / "token").write_text(token)
        (place / "probe.sh").write_text(_script(place, python))
    except RunDirError as error:
        return ProbeResult(ok=False, why=str(error))
    except OSError as error:
        return ProbeResult(ok=False, why=f"{folder} cannot be written here: {error.strerror}")
    job_id = ""
    try:
        options = [f"--partition={partition}"] if partition else []
        options += [f"--account={account}"] if account else []
        answer = ask(
            "sbatch", "--parsable", "--job-name=launcher-doctor", "--nodes=1", "--ntasks=1", "--time=5", *options,
            f"--output={place}/out", str(place / "probe.sh"), environ=without_slurm(os.environ),
        )  # fmt: skip
        job_id = answer.out.strip().split(";")[0] if answer.ok else ""
        if not is_job_id(job_id):
            return ProbeResult(ok=False, why=f"sbatch refused the probe: {answer.problem or answer.out.strip()}")
        found = _await(place, token, job_id, began + wait_s)
        why, look = (found, HostSoftware()) if isinstance(found, str) else ("", found)
        return ProbeResult(ok=not why, why=why, look=look, seconds=time.monotonic() - began, job_id=job_id)
    finally:
        if job_id:
            ask("scancel", job_id)
        shutil.rmtree(place, ignore_errors=True)


def _script(place: Path, python: str) -> str:
    """Return the job's script: it reads the token and writes its answer beside it by rename."""
    code = (
        f"{_LOOK}\nplace = {str(place)!r}\n"
        "found = {**look(), 'token': open(os.path.join(place, 'token')).read()}\n"
        "with open(os.path.join(place, 'answer.tmp'), 'w') as f: f.write(json.dumps(found))\n"
        "os.rename(os.path.join(place, 'answer.tmp'), os.path.join(place, 'answer'))\n"
    )
    return f"#!/bin/sh\ncd / && exec {shlex.quote(python)} -c {shlex.quote(code)}\n"


def _await(place: Path, token: str, job_id: str, end: float) -> HostSoftware | str:
    """Wait for the answer; return what the job found, or why there is none."""
    pause, view = 0.2, None
    while True:
        os.listdir(place)  # makes an NFS client look again
        if (answer := _answer(place, token)) is not None:
            return answer
        if view is not None and view.ended:
            return _why_silent(place, view.state)
        if time.monotonic() >= end:
            waiting = f"{view.state}{f' ({view.reason})' if view.reason else ''}" if view else "unknown to SLURM"
            return f"the probe has not run in time: job {job_id} is {waiting}"
        view = (job_views([job_id]) or {}).get(job_id)
        time.sleep(1.0 if view is not None and view.ended else pause)
        pause = min(5.0, pause * 1.5)


def _answer(place: Path, token: str) -> HostSoftware | None:
    try:
        text = (place / "answer").read_text()
        return parse_software(text) if json.loads(text).get("token") == token else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _why_silent(place: Path, state: str) -> str:
    try:
        said = (place / "out").read_text().strip()
    except OSError:
        said = ""
    if "No such file or directory" in said and "python" not in said.lower().split("no such file")[0][-60:]:
        return f"a compute node does not see {place.parent}: put runs_dir on a shared file system"
    if said:
        return f"the probe ended {state}: {said.splitlines()[-1][:200]}"
    return f"the probe ended {state} without output: a compute node does not see {place.parent}, or cannot write there"
