"""What agents ask NVIDIA's driver, over a library that answers as it does (`tests.nvml`)."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pynvml
import pytest

from launcher.node.agent import description, gpus, preflight, usage
from launcher.node.agent.gpus import Gpus
from launcher.node.wire.messages import GpuError
from tests.nvml import FakeNvml


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Three devices; the third is a part of one (MIG)."""
    fake = FakeNvml(tmp_path, 3)
    fake.set(2, uuid="MIG-aa", busy=None, power=None, ecc=None, rows_pending=None, rows_failed=None)
    monkeypatch.setenv("FAKE_NVML", fake.environment["FAKE_NVML"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(fake.library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return fake


@pytest.mark.parametrize(
    ("mask", "power_w"),
    [
        (None, [100.0, 200.0, None]),
        ("", []),
        ("1, MIG-aa", [200.0, None]),
        ("GPU-1", [200.0]),
        ("GPU-0a0b,1", [100.0, 200.0]),
        ("1,-1,0", [200.0]),
        ("NoDevFiles", []),
        ("7,0", []),
    ],
)
def test_gpus_are_those_in_slurms_mask(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, mask: str | None, power_w: list[float | None]
) -> None:
    """The visible devices in the mask's order, by number or (shortened) UUID; as for CUDA, it ends at what is no device."""
    nvml.set(0, power=100_000)
    nvml.set(1, power=200_000)
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)

    assert [one.get("gpu_power_w") for one in Gpus().use()] == power_w


def test_what_a_device_does_not_report_is_left_out(nvml: FakeNvml) -> None:
    """Use, memory and power of each; a part of a device (MIG) tells its memory alone."""
    nvml.set(0, ecc=2)
    use = Gpus().use()

    assert use[0] == {"gpu_mem_bytes": 2**30, "gpu_percent": 87, "gpu_power_w": 412.3, "gpu_memory_errors": 2}
    assert use[2] == {"gpu_mem_bytes": 2**30}


def test_the_nodes_facts_name_devices_and_driver(nvml: FakeNvml) -> None:
    """Names, memory, the driver and the newest CUDA that it serves."""
    assert Gpus().describe() == {
        "gpu_numa_nodes": [-1, -1, -1],
        "gpu_names": ["NVIDIA H200"] * 3, "gpu_mem_bytes": [2**32] * 3, "driver": "550.54", "cuda_driver": "12.4",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({}, None),
        ({"ecc": 3}, "GPU 1 has 3 uncorrected memory errors since the driver was loaded"),
        ({"ecc": None, "pages": 1}, "GPU 1 has pages waiting to be retired: it needs a reset"),
        ({"rows_pending": 1}, "GPU 1 has a bad row of memory waiting to be replaced: it needs a reset"),
        ({"rows_failed": 1}, "GPU 1 has a bad row of memory that could not be replaced: it needs a repair"),
        ({"used": 3 * 2**30}, "GPU 1 already has 3.0 of 4.0 GiB in use before the run has begun"),
        ({"lost": 1}, "GPU 1 is lost: it has fallen off the bus"),
    ],
)
def test_what_is_wrong_with_a_device_is_said(nvml: FakeNvml, values: dict[str, int | None], fault: str | None) -> None:
    """One sentence for each fault; a device that does not report one kind of fault is asked for the others."""
    nvml.set(1, **values)

    assert Gpus().faults() == ([] if fault is None else [fault])


def test_errors_come_once_with_the_number_that_workers_know(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Xid is told by the device's number in the mask, not the driver's, and once."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,MIG-aa,0")  # a part of a device reports no errors
    gpus = Gpus()
    gpus.watch_errors()
    assert gpus.new_errors() == []
    nvml.set(1, xid=79, lost=1)  # it answers nothing any more

    assert [gpus.new_errors(), gpus.new_errors()] == [[(0, 79)], []]


def test_a_rank_is_shown_its_own_gpu_when_another_has_ended(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local rank 1 alone is alive: its figures are the second device's; a third rank shares the first, as its device does."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    nvml.set(0, used=0, xid=31)
    nvml.set(1, used=1)
    workers = [(rank, local_rank, os.getpid()) for local_rank, rank in enumerate((4, 5, 6))]
    sampler = usage.Sampler(lambda: workers, gpus=True)
    seen = []
    monkeypatch.setattr(sampler, "_loop", lambda look: look())  # once, not every second
    sampler._look_at_gpus()
    for _ in range(2):
        sampler._look()
        seen.append({each.rank: each.gpu_mem_bytes for each in sampler.ranks})
        del workers[0]

    assert seen == [{4: 0, 5: 1, 6: 0}, {5: 1, 6: 0}]
    assert [sampler.gpu_errors(), sampler.gpu_errors()] == [[GpuError(gpu=0, xid=31)], []]


def test_a_program_that_fails_with_every_kernel_does_not_fill_the_history(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent reports twenty errors at most."""
    sampler = usage.Sampler(list, gpus=True)
    monkeypatch.setattr(Gpus, "new_errors", lambda self: [(0, 31)] * 7)
    monkeypatch.setattr(sampler, "_loop", lambda look: [look() for _ in range(9)])
    sampler._look_at_gpus()

    assert len(sampler.gpu_errors()) == 20


def test_an_agent_tells_its_ranks_use_and_its_gpus_errors(world: Any, nvml: FakeNvml) -> None:
    """A real agent asks the library by itself: facts at hello, each rank's figures with its heartbeat, an Xid when it comes."""

    async def body(w: Any) -> None:
        w.spec(gpus_per_node=2)
        w.agent(CUDA_VISIBLE_DEVICES="0,1", **nvml.environment)
        facts = (await w.leader.heard("hello"))[0]["facts"]
        assert (facts["gpus"], facts["driver"], facts.get("gpu_problem")) == (2, "550.54", None)
        w.leader.round(0, 2, "wait")
        await w.leader.until(lambda: any(_figures(alive) == (300.0, 310.0) for alive in w.leader.all("alive")))
        nvml.set(1, xid=79)
        await w.leader.heard("gpu_error", gpu=1, xid=79)
        w.leader.tell("shutdown")
        await w.gone(w.agents[0])

    nvml.set(0, power=300_000)
    nvml.set(1, power=310_000)
    world(body)


def _figures(alive: dict[str, Any]) -> tuple[float | None, ...]:
    return tuple(rank.get("gpu_power_w") for rank in alive["ranks"])


def test_without_nvml_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library is no crash: no devices, and why."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = Gpus()

    assert (len(gpus), gpus.use(), gpus.describe(), gpus.new_errors()) == (0, [], {}, [])
    assert "pynvml" in (gpus.problem or "")
    assert not gpus.installed


def test_without_a_driver_there_is_a_reason(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bindings are there, and no driver."""
    monkeypatch.delenv("FAKE_NVML")
    gpus = Gpus()

    assert (len(gpus), gpus.installed) == (0, True)
    assert "Driver Not Loaded" in (gpus.problem or "")


def test_a_lost_device_and_one_without_memory_of_its_own_stop_no_agent(nvml: FakeNvml) -> None:
    """They answer no question, or "not supported" (unified memory): the agent died of that before it had said hello."""
    nvml.set(0, lost=1)
    nvml.set(1, used=None, total=None)
    told = description.gpu_facts()

    assert (told["gpus"], told["gpu_mem_bytes"], told["cuda_driver"]) == (3, [0, 0, 2**32], "12.4")
    assert [check.ok for check in preflight._gpus(3)][:2] == [True, False]


def test_the_numa_node_of_each_device_is_told(nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its PCI address, which sysfs writes in its own way; -1 where there is none (MIG) or the kernel does not know."""
    nvml.set(0, pci="00000000:1B:00.0")
    nvml.set(1, pci="00010000:C3:00.0")
    (tmp_path / "0000:1b:00.0").mkdir()
    (tmp_path / "0000:1b:00.0" / "numa_node").write_text("3\n")
    monkeypatch.setattr(gpus, "_PCI", tmp_path)

    assert description.gpu_facts()["gpu_numa_nodes"] == [3, -1, -1]


def test_a_driver_that_is_stuck_keeps_no_agent_from_saying_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML is asked in a thread of its own, and only for jobs with GPUs."""
    never = threading.Event()
    monkeypatch.setattr(Gpus, "describe", lambda self: never.wait() and {})

    assert description.gpu_facts(within_s=0.05) == {"gpus": 0, "gpu_problem": "NVML did not answer within 0.05 s"}
    never.set()
