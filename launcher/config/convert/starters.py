"""The options of torchrun, accelerate and deepspeed: which take no value, and which of them a job file leaves out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.config.convert.directives import smallest_count
from launcher.frozen import frozen

_RENDEZVOUS = {
    "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "log-dir", "tee", "t", "role", "monitor-interval", "max-restarts",
    "node-rank", "master-addr", "master-port",
}  # fmt: skip


@frozen
class _Starter:
    """A program that starts workers."""

    flags: frozenset[str]
    """Options without a value."""
    harmless: frozenset[str]
    """Options that a job file says by other means, and those that change no training."""


STARTERS = {
    "torchrun": _Starter(
        frozenset({"standalone", "m", "module", "no-python", "run-path", "use-env", "virtual-local-rank", "h", "help"}),
        frozenset({
            *_RENDEZVOUS, "nnodes", "nproc-per-node", "standalone", "start-method", "redirects", "r", "local-addr",
            "local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters", "logs-specs", "event-log-handler",
            "numa-binding", "shutdown-timeout", "run-path", "use-env",
        }),
    ),
    "accelerate": _Starter(
        frozenset({
            "m", "module", "no-python", "cpu", "multi-gpu", "tpu", "tpu-use-cluster", "tpu-use-sudo", "ipex", "use-xpu", "use-mps-device",
            "enable-cpu-affinity", "use-deepspeed", "use-fsdp", "use-megatron-lm", "use-parallelism-config", "same-network",
            "dynamo-use-fullgraph", "dynamo-use-dynamic", "dynamo-use-regional-compilation", "downcast-bf16", "debug", "quiet", "q", "h",
            "help", "tpu-cluster", "no-tpu-cluster",
        }),
        frozenset({
            *_RENDEZVOUS, "num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port", "same-network",
            "multi-gpu", "mixed-precision", "config-file", "num-cpu-threads-per-process", "enable-cpu-affinity", "debug", "quiet", "q",
            "main-training-function",
        }),
    ),
    "deepspeed": _Starter(
        frozenset({
            "module", "m", "no-python", "no-local-rank", "no-ssh", "no-ssh-check", "force-multi", "save-pid", "elastic-training",
            "bind-cores-to-rank", "h", "help",
        }),
        frozenset({
            "num-nodes", "num-gpus", "num-accelerators", "master-addr", "master-port", "node-rank", "launcher", "no-ssh", "no-ssh-check",
            "force-multi", "save-pid", "no-local-rank", "enable-each-rank-log", "ssh-port", "bind-cores-to-rank", "bind-core-list",
        }),
    ),
}  # fmt: skip
STARTING_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_ANY_GPUS = ("auto", "gpu", "cpu", "xpu")


def notes_on_settings(kind: str, settings: dict[str, str]) -> Iterator[str]:
    """Yield a sentence for every setting that a job file does not take over."""
    for name, value in settings.items():
        option = f"{kind} --{name}{' ' + value if value else ''}"
        if name in ("nproc-per-node", "num-processes", "num-gpus", "num-accelerators"):
            if smallest_count(value) is None and value not in _ANY_GPUS:
                yield f"{option}: set resources.tasks_per_node."
        elif name == "config-file":
            said = "the program gets its FSDP or DeepSpeed settings only from accelerate launch"
            yield f"accelerate's --config_file {value}: {said}; set them in the program."
        elif name == "rdzv-conf":
            if seconds := re.findall(r"(?<!\w)(?:join_)?timeout=(\d{1,9})", value):
                yield f"{option}: set distributed.init_timeout_min: {max(max(map(int, seconds)) // 60, 1)}."
        elif name not in STARTERS[kind].harmless and kind == "torchrun":
            yield f"{option}: a job file has no key for it."
        elif name not in STARTERS[kind].harmless:
            yield f"{option}: the program gets it only from {kind}; set it in the program."
    if kind == "deepspeed":
        yield "the deepspeed command: the program must call deepspeed.init_distributed() and read LOCAL_RANK."
