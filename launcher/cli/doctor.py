"""Check this site: what SLURM allows and whether jobs will work."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.cli._options import json_option
from launcher.errors import RunDirError, SiteError, StateError

if TYPE_CHECKING:
    from launcher.config.document.schema import Job
    from launcher.config.load.site_profile import SiteProfile
    from launcher.report.site.findings import Saves, SiteFacts
    from launcher.slurm.site import Site


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
@json_option(help="Print one JSON object.")
def command(
    partition: str | None, qos: str | None, account: str | None, probing: bool, probe_wait: int, write_site: bool,
    force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Check this site: what SLURM allows, what that means for jobs, and whether they will work.

    It asks SLURM three or four questions and submits nothing without --probe. Exit code 0: jobs will work; 5: they will not.
    """
    from launcher.cli._output import print_json
    from launcher.config.load.load import site_job
    from launcher.config.load.site_profile import load_site
    from launcher.report.site.doctor import diagnosis_lines, examine
    from launcher.slurm.probe import probe_node
    from launcher.submission.facts.gather import runs_dir_of

    profile, job = load_site(), site_job()
    runs = runs_dir_of(None, Path.cwd(), profile, os.environ)[0]
    facts = _facts(partition or job.slurm.partition, qos or job.slurm.qos, profile, job, runs)
    if probing:
        _check_slurm(facts, "--probe")
        where = partition or profile.debug_partition or facts.partition  # the debug partition starts a job soonest
        click.echo(f"probing {where or 'the default partition'} (up to {probe_wait} s) ...", err=True)
        account = account or job.slurm.account
        found = probe_node(runs, facts.python, partition=where, account=account, wait_s=float(probe_wait))
        facts = dataclasses.replace(facts, probe=found)
    diagnosis = examine(facts)
    if as_json:
        site = dataclasses.asdict(facts.site) if facts.site else None
        print_json({**diagnosis.as_json(), "policy": dataclasses.asdict(diagnosis.policy), "site": site})
    else:
        colours = {"problem": "red", "warning": "yellow"}
        head, *rest = diagnosis_lines(diagnosis)
        click.echo(click.style(head, fg="green" if diagnosis.works else "red", bold=True))
        for line in rest:
            click.echo(click.style(line, fg=colours.get("".join(line.split()[:1]))))
    if write_site:
        path = _write_site(facts, force)
        click.echo(f"site profile written: {path}", err=as_json)
    return 0 if diagnosis.works else SiteError.exit_code


def _facts(partition: str | None, qos: str | None, profile: SiteProfile, job: Job, runs: Path) -> SiteFacts:
    """Return the facts of this machine and SLURM; ``job`` is an empty one with the profile's defaults."""
    from launcher.report.site.findings import RunsFolder, SiteFacts
    from launcher.run.units import tilde
    from launcher.slurm.probe import software_here
    from launcher.slurm.site import ask_site, find_slurm
    from launcher.submission.facts import interpreter

    presence = find_slurm()
    answer = ask_site() if presence.state == "ready" else ""
    site, silence = (None, answer) if isinstance(answer, str) else (answer, "")
    python = interpreter.find_interpreter(job.environment.python, None, os.environ)
    there = next(p for p in (runs, *runs.parents) if os.path.lexists(p))
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    folder = RunsFolder(
        shown=tilde(str(runs), os.path.expanduser("~")), writable=writable,
        free_bytes=shutil.disk_usage(there).free if writable else None, filesystem=_filesystem(there),
    )  # fmt: skip
    return SiteFacts(
        presence=presence, site=site, silence=silence, partition=partition, qos=qos, python=python.path,
        look=software_here(python.path), runs=folder, saves=_saves(), gpu_request=profile.gpu_request,
        signal_lead_s=job.restart.signal_lead_s,
        debug_detail=os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL",
    )  # fmt: skip


def _check_slurm(facts: SiteFacts, what: str) -> Site:
    if facts.site is None:
        raise SiteError(f"{what} needs SLURM: {facts.silence or facts.presence.reason}")
    return facts.site


def _filesystem(path: Path) -> str:
    """Return the type of the file system that ``path`` is on: the nearest mount point above it, the last of equal ones."""
    import psutil

    here = path.resolve()
    try:
        types = {m.mountpoint: m.fstype for m in psutil.disk_partitions(all=True)}
    except OSError:
        return ""
    return next((types[str(p)] for p in (here, *here.parents) if str(p) in types), "")


def _saves() -> Saves | None:
    """Return the save times of the newest runs and rehearsals."""
    import statistics

    from launcher.report.site.findings import Saves
    from launcher.run import event_lines, events, index, rehearsals
    from launcher.run.paths import RunPaths

    taken = [float(s) for e in rehearsals.read_rehearsals() if isinstance(s := e.get("save_s"), int | float)]
    history = (e for ref in index.list_runs()[-50:] for e in event_lines.read(RunPaths(ref.path).events))
    taken += [e.seconds for e in history if isinstance(e, events.Saved) and e.seconds is not None]
    if not taken:
        return None
    return Saves(count=len(taken), typical_s=statistics.median(taken), worst_s=max(taken))


def _write_site(facts: SiteFacts, force: bool) -> Path:
    """Write the site profile. Raises SiteError without SLURM, StateError when a profile exists."""
    from launcher.config.load.site_profile import user_profile
    from launcher.report.site.profile import site_profile
    from launcher.run.files import write_atomic

    site, path = _check_slurm(facts, "a site profile"), user_profile()
    if path.exists() and not force:
        raise StateError(f"{path} exists; --force replaces it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, site_profile(site, facts.partition, facts.saves), mode=0o644)
    except OSError as error:
        raise RunDirError(f"{path} cannot be written: {error.strerror}") from None
    return path
