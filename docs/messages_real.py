"""Sentences that the launcher's own functions compose for docs/messages.md, called with the samples of messages_samples.yaml."""

from __future__ import annotations

import ast
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from messages_samples import GIVEN

from launcher.config.convert import convert, first_job
from launcher.config.load.load import load_job
from launcher.errors import LauncherError
from launcher.node.policy import decisions
from launcher.report.diagnosis import explanations, why
from launcher.report.diagnosis.evidence import Root
from launcher.report.model import troubles, verdict
from launcher.report.model.history import History
from launcher.report.model.pending import pending_reason
from launcher.report.model.summary import RunSummary
from launcher.report.text import status
from launcher.report.text.words import words
from launcher.run.event_parts import Cause
from launcher.run.events import Event, parse_event
from launcher.run.paths import RunPaths
from launcher.run.tracebacks import Trace
from launcher.slurm.jobs import JobView
from launcher.slurm.site import Partition
from launcher.submission.plan import limits

_RUN = GIVEN["named"]["run"]
_NOW: float = GIVEN["named"]["t"]
_JOBS = Path(__file__).with_name("messages_jobs.txt")
"""Jobs that are wrong, and scripts that are not converted whole, between lines of ---."""
_CODE = """import torch, launcher
class Net(launcher.Training):
    def __init__(self, batch_size=32, lr=0.1): ...
    def model(self): ...
    def train_data(self): ...
    def optimizer(self, model): ...
    def loss(self, model, batch): ...
class Half(launcher.Training): ...
class Bare: ...
class Module(torch.nn.Module): ...
def main(worker, batch_size, lr=0.1): ...
def open(worker, **params): ...
async def later(worker): ...
def none(worker): ...
def nothing(): ...
"""
"""train.py of the jobs."""
_SPEC = {
    "gpus_per_node": 4,
    "mem_gb": 256,
    "timeout_min": 1440,
    "restart": {"idle_timeout_min": 30, "max_total_hours": 168},
}


def _event(values: dict[str, Any]) -> Event:
    return parse_event({"t": _NOW, "attempt": 2, "round": 3, **values}, [])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _history(spec: dict[str, Any]) -> History:
    return History(RunPaths(Path("runs") / _RUN), spec=spec)


def _living(given: dict[str, Any]) -> tuple[History, RunSummary]:
    """A run as a reader sees it, with what its history tells."""
    values = dict(given)
    events = [_event(each) for each in values.pop("events", [])]
    h = History(RunPaths(Path("runs") / _RUN), events=events, state={"attempt": 2})
    vars(h)["checkpoints"] = values.pop("checkpoints", [])  # of a folder that is not there
    return h, _summary(**values)


def _statuses() -> list[str]:
    runs = [_living(values) for values in GIVEN["summaries"]]
    return [line for h, s in runs for line in status.lines(s, _NOW, wrong=troubles.troubles(h, s, _NOW))]


def _pending() -> list[str]:
    found = [pending_reason(reason, _RUN, "482913") for reason in GIVEN["pending"]]
    return [
        line
        for one in found
        if one is not None
        for line in (f"SLURM does not start job 482913: {one.means}.", f"next {one.ends}")
    ]


def _summary(**values: Any) -> RunSummary:
    head = {"run": _RUN, "name": "resnet50", "dir": f"runs/{_RUN}", "state": "running", "job_id": "482913"}
    return RunSummary(**{**head, **values})


def _why() -> list[str]:
    out = []
    for given in GIVEN["roots"]:
        values = {"rank": 5, "host": "gpu022", "local_rank": 1, "step": 41262, "attempt": 2, "round": 3, **given}
        backend, decision = values.pop("backend", "slurm"), values.pop("decision", None)
        values["cause"] = Cause.from_wire(values.get("cause", {}), [])
        if "event" in values:
            values["event"] = _event(values["event"])
        if "trace" in values:
            values["trace"] = Trace(*values["trace"])
        if decision is not None:
            reason = f"{_capital(GIVEN['evidence'][decision])}; nothing is left to go on with."
            values["decision"] = _event({"type": "decision", "evidence": decision, "reason": reason})
        root = Root(**values)
        said = explanations.EXPLANATIONS[root.kind](root, _history(_SPEC), _summary(state="failed", backend=backend))
        out += [said.sentence, *(f"error {line}" for line in said.errors)]
        out += [f"next {said.next.replace('{run}', 'k7f')}"] if said.next else []
    return out


def _nothing_wrong() -> list[str]:
    runs = [_living(values) for values in GIVEN["summaries"]]
    found = [why._nothing_wrong(h, s, troubles.troubles(h, s, _NOW)) for h, s in runs]
    return [
        line for one in found for line in (one.sentence, *(f"next {v}" for label, v in one.rows if label == "next"))
    ]


def _verdicts() -> list[str]:
    before = [(word, waiting) for word in verdict._DEAD for waiting in (False, True)]
    jobs = [
        (JobView(job_id="1", state=word, nodes="gpu[022-023]"), waiting)
        for word, waiting in before
        if word != "COMPLETED" or not waiting
    ]
    return [verdict._dead(_history({}), *each)[1] for each in jobs]


def _limits() -> list[str]:
    spec = SimpleNamespace(
        tasks_per_node=8,
        cpus_per_task=16,
        nodes=2,
        spare_nodes=1,
        all_nodes=3,
        smallest_allocation=3,
        gpus_per_node=8,
        mem_gb=1024,
    )
    out = []
    for gpus in (0, 4):
        partition = Partition(name="gpu", nodes=2, cpus_per_node=64, gpus_per_node=gpus, mem_gb_per_node=512)
        try:
            limits.check_limits(SimpleNamespace(slurm=SimpleNamespace(gres=None)), spec, partition)  # type: ignore[arg-type]
        except LauncherError as error:
            out += str(error).splitlines()
    return out


def _decisions() -> list[str]:
    out = []
    for row in decisions.TABLE:
        kind = next((k.value for k in row.kinds if k.value in GIVEN["evidence"]), "worker_failed")
        kind = "worker_failed" if len(row.kinds) == len(decisions.Kind) else kind
        out.append(f"{_capital(GIVEN['evidence'][kind])}; {row.why}.")
    return out


def _comments(text: str) -> list[str]:
    lines = text.replace("\n#   ", " ").splitlines()
    return [line.removeprefix("# - ").removeprefix("# ").strip() for line in lines if "# " in line]


def _first_jobs() -> list[str]:
    others = ("gpu-long (4 GPUs a node)", "cpu (no GPUs)")
    site = first_job.DefaultPartition(
        partition="gpu", gpus=4, cpus=64, limit_min=1440, account_needed=True, others=others
    )
    made = first_job.first_job(("task", "train:Net"), site, "this directory and SLURM 24.05.4")
    bare = first_job.first_job(("", ""), first_job.DefaultPartition(), "this directory and no answer from SLURM")
    return [*_comments(made), *_comments(bare)]


def _jobs(folder: Path) -> tuple[list[str], list[str]]:
    """What is said of wrong jobs, and of what is not converted."""
    (folder / "train.py").write_text(_CODE)
    (folder.parent / "train.py").touch()
    (folder / "broken.py").write_text("def main(:\n")
    for name in ("data", "package"):
        (folder / name).mkdir()
    (folder / "package" / "__init__.py").touch()
    wrong: list[str] = []
    made: list[str] = []
    for part in _JOBS.read_text().split("\n---\n"):
        head, _, text = part.partition("\n")
        options, place = head.removeprefix("# ").split(), folder / "job.yaml"
        text = text.replace("<ETX>", "\x03").replace("<TAB>", "\t")
        try:
            if "convert" in options:
                made += _comments(convert(text, options[-1]))
                continue
            sites = [folder / "site.yaml"] if "site" in options else []
            place.write_text("script: train.py\nslurm: {account: other}\n")
            (sites[0] if sites else place).write_text(text)
            sweep = [word.removeprefix("--sweep=") for word in options if word.startswith("--sweep=")]
            overrides = [word for word in options if word != "site" and not word.startswith("--sweep")]
            load_job(place, overrides, sites=sites, sweep=sweep)
        except LauncherError as error:
            (made if "convert" in options else wrong).extend(str(error).splitlines())
    wrong = [line.replace(f"{folder}/job.yaml", "job.yaml").replace(str(folder), "/home/ada/resnet") for line in wrong]
    return wrong, made


def rendered() -> dict[str, list[str]]:
    """Module → what its functions say."""
    with tempfile.TemporaryDirectory() as above:
        (folder := Path(above, "resnet")).mkdir()
        wrong, made = _jobs(folder)
    return {
        "config/load/load.py": wrong,
        "config/convert/__init__.py": [*made, *_first_jobs()],
        "submission/plan/limits.py": _limits(),
        "report/text/status.py": _statuses(),
        "report/model/pending.py": _pending(),
        "report/model/troubles.py": [],
        "report/text/words.py": [words(_event(values)) for values in GIVEN["events"]],
        "report/model/verdict.py": _verdicts(),
        "report/diagnosis/explanations.py": _why(),
        "report/diagnosis/why.py": _nothing_wrong(),
        "node/policy/decisions.py": _decisions(),
    }


_FRAMES: dict[str, tuple[int | str, str]] = {
    "Evidence": (1, "round 3 ended: {}"),
    "stop_wanted": (1, "round 3 ended: {}"),
    "warn": (0, "warning: {}"),
    "warning": ("text", "warning: {}"),
    "excluded": ("why", "will not use gpu022 again: {}"),
    "readmitted": ("why", "may use gpu022 again: {}"),
    "attempt_ended": ("why", "attempt 2 ended: {}"),
    "checkpoint_damaged": ("why", "checkpoint step-00041000 is damaged: {}"),
    "Check": (2, ""),
}
"""On the nodes: a function, or the type of the event that it writes; which argument is a part of a sentence; that sentence."""


def framed(place: str, call: ast.Call) -> ast.expr | None:
    """The sentence that a user sees of a part of it that is given to a call; None: the call composes none."""
    name, args = getattr(call.func, "id", "") or getattr(call.func, "attr", ""), list(call.args)
    if place.startswith("config/") and "convert" not in place and name in ("Problem", "_wrong") and len(args) >= 2:
        path = [] if isinstance(args[0], ast.Constant) and not args[0].value else [_shown(args[0]), ast.Constant(": ")]
        return ast.JoinedStr([ast.Constant("job.yaml:12:3: "), *path, _shown(args[1])])
    if not place.startswith("node/"):
        return None
    if name in ("event", "_tell"):
        name = next((a.value for a in args if isinstance(a, ast.Constant) and a.value in _FRAMES), "")
    which, sentence = _FRAMES.get(name, ("", ""))
    found = [k.value for k in call.keywords if k.arg == which]
    found += [args[which]] if isinstance(which, int) and which < len(args) else []
    if not found:
        return None
    if name == "Check":
        check = args[0].value if isinstance(args[0], ast.Constant) else "device"
        passed = isinstance(args[1], ast.Constant) and args[1].value is True
        sentence = f"gpu022: {check}: {{}}" if passed else f"node check failed: gpu022: {check} ({{}})"
    before, _, after = sentence.partition("{}")
    return ast.JoinedStr([ast.Constant(before), _shown(found[0]), ast.Constant(after)])


def _shown(node: ast.expr) -> ast.FormattedValue:
    return ast.FormattedValue(node, -1, None)
