"""What the launcher does on this machine's GPUs: every part, or those named; writes docs/gpu.md and docs/gpu.json beside it.

    python benchmarks/gpu [PART ...] [--write FOLDER] [--keep FOLDER]

Parts that are not run keep what is written of them. Without GPUs the parts run on CPUs with gloo, as far as they mean anything there,
and nothing is written unless asked for.
Exit code 1: a goal was not reached, or a part failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

from figures import Figure, page  # noqa: E402
from machine import Machine, MissingError, find  # noqa: E402
from parts import LIMIT_S, NAMES, USUAL_S  # noqa: E402

TOTAL_S = 480.0
"""For all parts: who has lent a machine knows for how long."""
LEAST_S = 20.0
"""A part for which less is left is not begun."""


def main() -> int:
    """Run the parts one after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(NAMES))
    parser.add_argument("--write", type=Path, help="where gpu.md and gpu.json go; default with GPUs: docs")
    parser.add_argument("--keep", type=Path, help="leave the parts' runs in this folder")
    parser.add_argument("--alone", nargs=2, metavar=("FIGURES", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := [name for name in given.parts if name not in NAMES]:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if given.alone:
        return alone(given.parts[0], Path(given.alone[0]), Path(given.alone[1]))
    with contextlib.nullcontext(given.keep) if given.keep else tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        machine = find(Path(folder).resolve())
        print("; ".join(f"{name}: {value}" for name, value in machine.facts.items()), flush=True)
        end = time.monotonic() + TOTAL_S
        target = given.write or (ROOT / "docs" if machine.gpus else None)
        found: list[dict[str, Any]] = []
        for name in given.parts or NAMES:
            found.append({"machine": machine.facts, **part(name, machine, end - time.monotonic())})
            if target is not None:  # after each: the machine may be taken back at any moment
                record(target, found[-1])
    bad = [one for one in found if one["error"] or any(figure["ok"] is False for figure in one["figures"])]
    tried = [one for one in found if not one["skipped"]]
    print(
        f"{len(tried) - len(bad)} of {len(tried)} parts reached their goals; {len(found) - len(tried)} skipped",
        flush=True,
    )
    return int(bool(bad))


def record(target: Path, part: dict[str, Any]) -> None:
    """Put what a part has found into gpu.json and make gpu.md of it. What it found before stays where it was skipped now."""
    path = target / "gpu.json"
    parts = {one["name"]: one for one in json.loads(path.read_text())["parts"]} if path.exists() else {}
    if not part["skipped"] or part["name"] not in parts:
        parts[part["name"]] = part
    rows = [parts[name] for name in NAMES if name in parts]
    path.write_text(json.dumps({"parts": rows}, indent=1) + "\n")
    (target / "gpu.md").write_text(page(rows))


def part(name: str, machine: Machine, left_s: float) -> dict[str, Any]:
    """Run one part in at most ``left_s``; return what it found, however it ended. On CPUs that others use its own limit does not count."""
    folder = machine.folder
    figures, own = folder / f"{name}.jsonl", folder / name
    own.mkdir(parents=True)
    figures.touch()
    print(f"\n{name}", flush=True)
    about = " ".join((importlib.import_module(f"parts.{name}").__doc__ or "").split())
    if left_s < LEAST_S:
        late = f"{max(left_s, 0):.0f} s were left of {TOTAL_S:.0f}"
        print(f"  skipped: {late}", flush=True)
        return {"name": name, "about": about, "seconds": 0.0, "figures": [], "skipped": late, "error": ""}
    began, limit_s = time.monotonic(), min(machine.pick(LIMIT_S.get(name, USUAL_S), TOTAL_S), max(left_s, 0.0))
    words = [sys.executable, str(HERE), name, "--alone", str(figures), str(own)]
    process = subprocess.Popen(words, start_new_session=True)
    try:
        code: int | None = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        code = None
    end_all(process.pid, own)
    process.wait()
    lines = [json.loads(line) for line in figures.read_text().splitlines()]
    told = {key: next((line[key] for line in lines if key in line), "") for key in ("skipped", "error")}
    if code is None:
        told["error"] = f"it was ended after {limit_s:.0f} s"
    elif code and not told["error"]:
        told["error"] = f"it ended with exit code {code}"
    if told["error"]:
        print(f"  failed: {told['error']}", flush=True)
    values = [line for line in lines if "name" in line]
    return {"name": name, "about": about, "seconds": round(time.monotonic() - began, 1), "figures": values, **told}


def end_all(session: int, folder: Path) -> None:
    """End what a part has left: its own session, and every process of its runs."""
    import psutil

    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for process in psutil.process_iter():
        try:
            if str(folder) in process.environ().get("LAUNCHER_RUNS_DIR", "") and process.pid != os.getpid():
                process.kill()
        except (psutil.Error, OSError):
            continue


def alone(name: str, figures: Path, folder: Path) -> int:
    """Be the process of one part: write each figure as it comes."""
    with figures.open("a") as file:
        try:
            for figure in importlib.import_module(f"parts.{name}").run(find(folder)):
                figure.write(file)
                print(f"  {figure.name}: {figure.shown}{_mark(figure)}", flush=True)
        except MissingError as reason:
            print(json.dumps({"skipped": str(reason)}), file=file)
            print(f"  skipped: {reason}", flush=True)
        except Exception as error:
            traceback.print_exc()
            print(json.dumps({"error": f"{type(error).__name__}: {error}".splitlines()[0]}), file=file)
            return 1
    return 0


def _mark(figure: Figure) -> str:
    goal = f" (goal: {figure.goal})" if figure.goal and figure.goal != "yes" else ""
    note = f" [{figure.note}]" if figure.note else ""
    return f"{goal}{note}" + ("  NOT REACHED" if figure.ok is False else "")


if __name__ == "__main__":
    sys.exit(main())
