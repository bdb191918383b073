"""``launcher init``: a first job file, and never one lost."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from launcher.cli.init import default_partition
from launcher.cli.main import cli
from launcher.config.convert.first_job import DefaultPartition, find_work, first_job
from launcher.config.document.source import read_yaml
from launcher.config.load.load import load_job
from launcher.errors import ConfigError, StateError
from launcher.slurm.site import Partition, Site, SiteTexts, parse_site

GOLDEN = Path(__file__).parent / "golden"
SITES = sorted((Path(__file__).parents[2] / "slurm" / "sites").glob("*.txt"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, current, on a machine whose PATH has no SLURM."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def init(*words: str) -> Result:
    """Run the verb."""
    return CliRunner().invoke(cli, ["init", *words])


def test_a_script_is_converted_next_to_nothing_else(here: Path) -> None:
    """The job file is what the golden file says, readable by others, and says what to do next."""
    result = init(str(GOLDEN / "srun_per_rank.sbatch"))

    assert result.exit_code == 0, result.output
    assert "job.yaml written; check it, then: launcher plan job.yaml" in result.output
    assert (here / "job.yaml").read_text() == (GOLDEN / "srun_per_rank.sbatch.job.yaml").read_text()
    assert stat.S_IMODE((here / "job.yaml").stat().st_mode) == 0o644
    assert [p.name for p in here.iterdir()] == ["job.yaml"]


def test_nothing_is_overwritten_unasked(here: Path) -> None:
    """An existing file stays as it is unless --force is given; -o - only prints."""
    (here / "job.yaml").write_text("mine\n")
    refused = init(str(GOLDEN / "lightning.sbatch"))

    assert isinstance(refused.exception, StateError)
    assert (here / "job.yaml").read_text() == "mine\n"
    assert "script: train.py" in init(str(GOLDEN / "lightning.sbatch"), "-o", "-").output
    assert (here / "job.yaml").read_text() == "mine\n"
    (here / "link.yaml").symlink_to("elsewhere")
    assert isinstance(init(str(GOLDEN / "lightning.sbatch"), "-o", "link.yaml").exception, StateError)
    assert init(str(GOLDEN / "lightning.sbatch"), "--force").exit_code == 0
    assert "script: train.py" in (here / "job.yaml").read_text()


def test_what_cannot_be_read_or_written_is_a_sentence(here: Path) -> None:
    """A missing input, an input that is no script, and an output nobody can write end as errors of ours."""
    (here / "notes.txt").write_text("hello\n")

    script = str(GOLDEN / "lightning.sbatch")
    for words in (
        ["nope.sbatch"],
        ["notes.txt"],
        [script, "-o", "no/such/job.yaml"],
        [script, "-o", "n" * 300],
        [script, "-o", ""],
    ):
        assert isinstance(init(*words).exception, ConfigError), words
    assert str(init(script, "-o", "").exception) == "-o is empty; write a path, or - to print"
    assert not (here / "job.yaml").exists()


def test_a_first_job_is_found_in_the_directory(here: Path) -> None:
    """The written file names the directory's training code and loads as it stands."""
    (here / "helpers.py").write_text("import torch\n\n\ndef f():\n    pass\n")
    (here / "experiment.py").write_text("import torch\n\nprint(torch)\n")
    assert init().exit_code == 0

    job = load_job("job.yaml", sites=[]).job
    assert (job.script, job.resources.nodes, job.resources.tasks_per_node) == ("experiment.py", 1, 2)


def test_work_is_recognised(here: Path) -> None:
    """A Training subclass comes first, then likely names, then any script around torch; broken files are passed over."""
    assert find_work(here) == ("", "")
    (here / "broken.py").write_text("def (\n")
    (here / "zeta.py").write_text("from torch import nn\nif __name__ == '__main__':\n    pass\n")
    assert find_work(here) == ("script", "zeta.py")
    (here / "train.py").write_text("import lightning as L\nL.Trainer()\n")
    assert find_work(here) == ("script", "train.py")
    (here / "net.py").write_text("import launcher\nclass Net(launcher.Training):\n    pass\n")
    assert find_work(here) == ("task", "net:Net")


def test_the_site_fills_the_first_job() -> None:
    """GPUs, CPUs, limit and partition come from the site; the other partitions and a wanted account are said."""
    site = Site(
        version="22.05.8",
        enforces="associations,limits",
        partitions=(
            Partition(name="cpu", default=True, cpus_per_node=64),
            Partition(name="gpu", cpus_per_node=96, gpus_per_node=8, max_time_s=1800.0),
            Partition(name="down", up=False, gpus_per_node=16),
        ),
    )
    text = first_job(("script", "train.py"), default_partition(site), "x")
    data = read_yaml(text, "x").data

    assert data["resources"] == {"nodes": 1, "gpus_per_node": 8, "cpus_per_task": 12, "timeout_min": 30}
    assert data["slurm"] == {"partition": "gpu"}
    assert "cpu (no GPUs)" in text
    assert "down" not in text
    assert "slurm.account: this site requires one" in text
    assert default_partition(Site(version="1")) == DefaultPartition()


@pytest.mark.parametrize("path", SITES, ids=lambda p: p.stem)
def test_recorded_sites_make_good_first_jobs(path: Path, here: Path) -> None:
    """At every recorded site the first job loads, with all GPUs of one node of a partition that is there."""
    texts = re.split(r"^### \w+\n", path.read_text(), flags=re.MULTILINE)[1:]
    site = parse_site(SiteTexts(*texts))
    (here / "train.py").write_text("import torch\n")
    (here / "job.yaml").write_text(first_job(("script", "train.py"), default_partition(site), "a recorded site"))
    job = load_job("job.yaml", sites=[]).job
    partition = site.partition(job.slurm.partition)

    assert partition is not None
    assert job.resources.gpus_per_node == partition.gpus_per_node > 0
    assert job.resources.gpus_per_node * job.resources.cpus_per_task <= partition.cpus_per_node
    assert partition.max_time_s is None or job.resources.timeout_min * 60 <= partition.max_time_s
