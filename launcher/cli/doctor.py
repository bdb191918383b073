"""Check this site: what SLURM allows and whether jobs will work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.config.document.schema import Job
    from launcher.report.site.findings import RunsFolder, Saves, SiteFacts


@click.command()
@click.option("--partition", metavar="P", help="Check this partition. Default: the site profile's, else SLURM's.")
@click.option("--qos", metavar="Q", help="Check this QOS, on which preemption may depend. Default: the site profile's.")
@click.option("--account", metavar="A", help="Charge --probe to this account. Default: the site profile's.")
@click.option(
    "--probe", "probing", is_flag=True, help="Submit a tiny job to check that compute nodes see the run directory."
)
@click.option("--probe-wait", metavar="S", default=300, show_default=True, help="Seconds to wait for that job.")
@click.option("--write-site", is_flag=True, help="Write your site profile from what was found.")
@click.option("--force", is_flag=True, help="Let --write-site replace a profile.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    partition: str | None, qos: str | None, account: str | None, probing: bool, probe_wait: int, write_site: bool,
    force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Check this site: what SLURM allows, what that means for jobs, and whether they will work.

    It asks SLURM three or four questions and submits nothing without --probe. Exit code 0: jobs will work; 5: they will not.
    """
    import dataclasses

    from launcher.cli._output import print_json
    from launcher.errors import SiteError
    from launcher.report.site.doctor import diagnosis_lines, examine

    facts, job = _facts(partition, qos)
    if probing:
        facts = _probed(facts, partition, account or job.slurm.account, float(probe_wait))
    diagnosis = examine(facts)
    if as_json:
        site = dataclasses.asdict(facts.site) if facts.site else None
        print_json({**diagnosis.as_json(), "policy": dataclasses.asdict(diagnosis.policy), "site": site})
    else:
        colours = {"problem": "red", "warning": "yellow"}
        head, *rest = diagnosis_lines(diagnosis)
        click.echo(click.style(head, fg="green" if diagnosis.works else "red", bold=True))
        for line in rest:
            click.echo(click.style(line, fg=colours.get(line.split(maxsplit=1)[0] if line.split() else "")))
    if write_site:
        path = _write_site(facts, force)
        click.echo(f"site profile written: {path}", err=as_json)
    return 0 if diagnosis.works else SiteError.exit_code


def _facts(partition: str | None, qos: str | None) -> tuple[SiteFacts, Job]:
    """The facts of this machine and SLURM, and an empty job with the site profile's defaults."""
    import os

    from launcher.config.load.load import site_job
    from launcher.config.load.site_profile import load_site
    from launcher.report.site.findings import SiteFacts
    from launcher.slurm.probe import software_here
    from launcher.slurm.site import ask_site, find_slurm
    from launcher.submission.facts import interpreter

    presence = find_slurm()
    site, silence = None, ""
    if presence.state == "ready":
        answer = ask_site()
        site, silence = (None, answer) if isinstance(answer, str) else (answer, "")
    profile = load_site()
    job = site_job()
    python = interpreter.find_interpreter(job.environment.python, None, os.environ)
    return SiteFacts(
        presence=presence, site=site, silence=silence, partition=partition or job.slurm.partition, qos=qos or job.slurm.qos,
        python=python.path, look=software_here(python.path), runs=_runs_folder(), saves=_saves(),
        gpu_request=profile.gpu_request, signal_lead_s=job.restart.signal_lead_s,
        debug_detail=os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL",
    ), job  # fmt: skip


def _runs_dir() -> Path:
    import os
    from pathlib import Path

    from launcher.config.load.site_profile import load_site
    from launcher.submission.facts.gather import runs_dir_of

    return runs_dir_of(None, Path.cwd(), load_site(), os.environ)[0]


def _runs_folder() -> RunsFolder:
    import os
    import shutil

    from launcher.report.site.findings import RunsFolder

    path = _runs_dir()
    there = next(p for p in (path, *path.parents) if p.is_dir())
    home = os.path.expanduser("~")
    shown = f"~{str(path)[len(home) :]}" if str(path).startswith(home + "/") else str(path)
    return RunsFolder(
        shown=shown, writable=os.access(there, os.W_OK | os.X_OK), free_bytes=shutil.disk_usage(there).free,
        filesystem=_filesystem(there),
    )  # fmt: skip


def _filesystem(path: Path) -> str:
    """The type of the file system that ``path`` is on: the longest mount point above it, the last of equal ones."""
    import psutil

    above = {str(p) for p in (path.resolve(), *path.resolve().parents)}
    try:
        mounts = [(len(m.mountpoint), m.fstype) for m in psutil.disk_partitions(all=True) if m.mountpoint in above]
    except OSError:
        return ""
    return max(reversed(mounts), key=lambda mount: mount[0], default=(0, ""))[1]


def _saves() -> Saves | None:
    """The save times of the newest runs and rehearsals."""
    import statistics

    from launcher.report.site.findings import Saves
    from launcher.run import event_lines, events, index, rehearsals
    from launcher.run.paths import RunPaths

    taken = [float(s) for e in rehearsals.read_rehearsals() if isinstance(s := e.get("save_s"), int | float)]
    for ref in reversed(index.list_runs()[-50:]):
        for e in event_lines.read(RunPaths(ref.path).events):
            if isinstance(e, events.Saved) and e.seconds is not None:
                taken.append(e.seconds)
    if not taken:
        return None
    return Saves(count=len(taken), typical_s=statistics.median(taken), worst_s=max(taken))


def _probed(facts: SiteFacts, partition: str | None, account: str | None, wait_s: float) -> SiteFacts:
    """Run the probe, by default in the profile's debug partition: it starts soonest."""
    import dataclasses

    from launcher.errors import SiteError
    from launcher.slurm.probe import probe_node

    if facts.site is None:
        raise SiteError(f"--probe needs SLURM: {facts.silence or facts.presence.reason}")
    from launcher.config.load.site_profile import load_site

    partition = partition or load_site().debug_partition or facts.partition
    click.echo(f"probing {partition or 'the default partition'} (up to {wait_s:g} s) ...", err=True)
    result = probe_node(_runs_dir(), facts.python, partition=partition, account=account, wait_s=wait_s)
    return dataclasses.replace(facts, probe=result)


def _write_site(facts: SiteFacts, force: bool) -> Path:
    """Write the site profile. Raises SiteError without SLURM, StateError when a profile exists."""
    import os
    from pathlib import Path

    from launcher.errors import RunDirError, SiteError, StateError
    from launcher.report.site.profile import site_profile
    from launcher.run.files import write_atomic

    if facts.site is None:
        raise SiteError(f"a site profile needs SLURM: {facts.silence or facts.presence.reason}")
    path = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "launcher" / "site.yaml"
    if path.exists() and not force:
        raise StateError(f"{path} exists; --force replaces it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, site_profile(facts.site, facts.partition, facts.saves), mode=0o644)
    except OSError as error:
        raise RunDirError(f"{path} cannot be written: {error.strerror}") from None
    return path
