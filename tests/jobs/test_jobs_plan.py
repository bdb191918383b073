"""Every job that is shipped can be submitted: read, checked against its code and planned, for SLURM and for this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from planning import facts

from launcher.config.load.load import load_job
from launcher.submission.facts.gather import code_facts
from launcher.submission.plan.plan import plan

JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml"))


@pytest.mark.parametrize("backend", ["slurm", "local"])
@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.stem)
def test_every_shipped_job_is_planned_without_a_fault(job: Path, backend: str, tmp_path: Path) -> None:
    """The file loads, its code has what it names, and the plan asks for what the file says; there is nothing to warn of."""
    said = yaml.safe_load(job.read_text())
    loaded = load_job(str(job), sites=[])
    made = plan(loaded, facts(backend=backend, code=code_facts(loaded, tmp_path)))

    assert (made.spec.name, made.spec.tasks_per_node) == (said["name"], said["resources"]["tasks_per_node"])
    assert made.spec.timeout_min == said["resources"]["timeout_min"]
    saves_itself = f"{said.get('script')} must save and resume itself: launcher.attach() is not used"
    assert set(made.warnings) <= {saves_itself}
    assert bool(made.sbatch) == (backend == "slurm")
