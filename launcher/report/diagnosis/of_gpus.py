"""What went wrong on a GPU, in words: its memory ran out, a kernel failed, or the GPU itself did; pure."""

from __future__ import annotations

import re

from launcher.report import formats
from launcher.report.diagnosis.evidence import Root
from launcher.report.diagnosis.explanation import Explain, Explanation, errors_of, last_words, what_happened
from launcher.report.model.history import History
from launcher.report.model.summary import RunSummary
from launcher.report.text.words import words
from launcher.run import events as ev


def _cuda_oom(root: Root, h: History, s: RunSummary) -> Explanation:
    said = root.trace.message if root.trace else ""
    wanted = re.search(r"[Tt]ried to allocate ([\d.]+ [KMGT]?i?B)", said)
    total = re.search(r"total capacity of ([\d.]+ [KMGT]?i?B)(?: of which ([\d.]+ [KMGT]?i?B) is free)?", said)
    parts = [f"wanted {wanted[1]}"] if wanted else []
    parts += [f"{total[2]} of {total[1]} free"] if total and total[2] else [f"of {total[1]}"] if total else []
    name = root.trace.exception if root.trace and root.trace.exception else "CUDA out of memory"
    errors = [f"{name}: {', '.join(parts)}"] if parts else errors_of(root) or last_words(root, 1)
    return Explanation(
        f"{what_happened(root, h)}.", "use a smaller batch, then: launcher resubmit {run}", errors=errors
    )


def _cuda(root: Root, h: History, s: RunSummary) -> Explanation:
    failed = [formats.clean(line, 300) for line in root.log if _ASSERTED.search(line)][-1:]
    fix = "CUDA reports errors late, maybe at another line; to find it: launcher resubmit {run} environment.variables.CUDA_LAUNCH_BLOCKING=1"
    return Explanation(
        f"{what_happened(root, h, _cuda_words(root))}.", fix, errors=[*failed, *_xids(root, h)] or last_words(root, 1)
    )


_ASSERTED = re.compile(r"thread: \[\S+\] Assertion .* failed")
"""What a kernel prints whose assertion fails, for each of its threads."""


def _gpu(root: Root, h: History, s: RunSummary) -> Explanation:
    fix = (
        f"exclude the host: launcher resubmit {{run}} slurm.exclude={root.host}"
        if root.host
        else "launcher resubmit {run}"
    )
    return Explanation(f"{what_happened(root, h, _cuda_words(root))}.", fix, errors=_xids(root, h) or errors_of(root))


def _cuda_words(root: Root) -> str | None:
    """What CUDA said, where the process told of no exception: torch's watchdog thread ended it."""
    return None if root.cause.exception else "\n".join(root.log)


def _xids(root: Root, h: History) -> list[str]:
    """What the driver reported of this host's GPUs in that round."""
    seen = [e for e in h.of(ev.XidReported) if (e.host, e.attempt, e.round) == (root.host, root.attempt, root.round)]
    return list(dict.fromkeys(words(e) for e in seen))[-3:]


OF_GPUS: dict[str, Explain] = {"cuda_oom": _cuda_oom, "cuda": _cuda, "gpu": _gpu}
