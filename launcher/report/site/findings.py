"""What the doctor is told and what it finds."""

from __future__ import annotations

import math
from dataclasses import field
from functools import partial

from launcher.frozen import frozen
from launcher.slurm.probe import HostSoftware, ProbeResult
from launcher.slurm.site import Presence, Site


@frozen
class Finding:
    """One line: ``level`` is "ok", "note", "warning" or "problem" (jobs will not work)."""

    level: str
    topic: str
    text: str


ok, note, warning, problem = (partial(Finding, level) for level in ("ok", "note", "warning", "problem"))


@frozen(kw_only=True)
class Saves:
    """How many seconds this user's runs took to save."""

    count: int
    typical_s: float
    worst_s: float

    @property
    def lead_s(self) -> int:
        """The signal lead that the worst one needs: twice its time, in whole half minutes."""
        return 30 * math.ceil(2 * self.worst_s / 30)


@frozen(kw_only=True)
class RunsFolder:
    """Where runs will lie."""

    shown: str
    writable: bool = True
    free_bytes: int | None = None
    filesystem: str = ""
    """As mount calls it, e.g. nfs4, ext4."""


@frozen(kw_only=True)
class SiteFacts:
    """Everything the doctor's findings depend on."""

    presence: Presence
    site: Site | None = None
    silence: str = ""
    """Why `site` is None although SLURM is here."""
    partition: str | None = None
    """The one asked for, or the site profile's; None: the default one."""
    qos: str | None = None
    gpu_request: str = "gpus-per-node"
    """The site profile's."""
    python: str = ""
    look: HostSoftware = field(default_factory=HostSoftware)
    runs: RunsFolder = field(default_factory=lambda: RunsFolder(shown="runs"))
    saves: Saves | None = None
    probe: ProbeResult | None = None
    signal_lead_s: int = 120
    """The site profile's."""
    debug_detail: bool = False
    """TORCH_DISTRIBUTED_DEBUG is DETAIL."""
