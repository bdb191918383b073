"""What a site allows and what it means for this user's runs: all findings, as a verdict and as lines. Pure."""

from __future__ import annotations

import textwrap
from dataclasses import field
from typing import Any

from launcher.frozen import field_values, frozen
from launcher.report.site.findings import Finding, SiteFacts, ok, problem
from launcher.report.site.machine_findings import machine_findings
from launcher.report.site.slurm_findings import slurm_findings
from launcher.run.spec import SiteSpec
from launcher.run.units import plural
from launcher.slurm.site import policy


@frozen(kw_only=True)
class Diagnosis:
    """What was found."""

    headline: str
    works: bool
    findings: tuple[Finding, ...]
    policy: SiteSpec = field(default_factory=SiteSpec)

    def as_json(self) -> dict[str, Any]:
        """Return the value for --json."""
        findings = [field_values(f) for f in self.findings]
        return {"works": self.works, "headline": self.headline, "findings": findings}


def examine(facts: SiteFacts) -> Diagnosis:
    """Return all findings, in the order in which they are read."""
    site, part, spec = facts.site, None, SiteSpec()
    findings = [_presence(facts)]
    if site is not None:
        part = site.partition(facts.partition)
        spec = policy(site, facts.partition, facts.qos)
        findings += slurm_findings(facts, site, part, spec)
    findings += machine_findings(facts, part)
    bad = sum(f.level == "problem" for f in findings)
    return Diagnosis(headline=_headline(facts, bad), works=not bad, findings=tuple(findings), policy=spec)


def _headline(facts: SiteFacts, bad: int) -> str:
    if facts.presence.state == "none":
        return (
            "no SLURM here, and jobs will not run on this machine" if bad else "no SLURM here: jobs run on this machine"
        )
    name = f"SLURM {facts.site.version} on {facts.site.cluster}" if facts.site else "SLURM"
    return f"{name}: " + (f"jobs will not work ({plural(bad, 'problem')})" if bad else "jobs will work")


def _presence(facts: SiteFacts) -> Finding:
    if facts.presence.state == "traces":
        return problem("slurm", facts.presence.reason)
    if facts.presence.state == "ready" and facts.site is None:
        return problem("slurm", facts.silence or "SLURM does not answer.")
    return ok("slurm", facts.presence.reason)


def diagnosis_lines(diagnosis: Diagnosis, width: int = 80) -> list[str]:
    """Return lines of at most ``width`` columns: the headline, then what was found, warnings and problems last."""
    lines = textwrap.wrap(diagnosis.headline, width)
    bad = {"warning": 1, "problem": 2}
    previous = ""
    for f in sorted(diagnosis.findings, key=lambda f: bad.get(f.level, 0)):
        head, text = (f.level, f"{f.topic}: {f.text}") if f.level in bad else (f.topic, f.text)
        head, previous = "" if head == previous else head, f.topic
        lines += textwrap.wrap(
            text, width, initial_indent=f"  {head:<11}", subsequent_indent=" " * 13, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
    return lines
