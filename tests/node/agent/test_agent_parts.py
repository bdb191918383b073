"""The agent's pure parts and small readers: environments, shares of CPUs, names, counters, verdicts."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from launcher.errors import ProtocolError, RunDirError
from launcher.node.agent import description, logs, memory, preflight
from launcher.node.agent.cpus import cpu_place, cpu_shares
from launcher.node.agent.environment import base_environment
from launcher.node.agent.gpus import Gpus
from launcher.node.agent.membership import Doors, node_index, node_names
from launcher.node.agent.read_run import read_run
from launcher.node.agent.store import Store
from launcher.node.forkserver import proctable
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, Work


def spec(**values: Any) -> RunSpec:
    """A run's spec with some values."""
    usual: dict[str, Any] = {
        "id": "r1", "name": "r", "run_dir": "/r", "work": Work(kind="function", target="x:y"), "batch": "slurm",
        "nodes": 2, "tasks_per_node": 2, "timeout_min": 5, "backend": "gloo", "port_range": [20000, 20031],
    }  # fmt: skip
    return RunSpec(**{**usual, **values})


def test_what_is_read_at_import_is_in_the_base() -> None:
    """Threads, hash seed and NCCL's error handling have torchrun's values; the job's own variables win."""
    base = base_environment({"PATH": "/bin", "OMP_NUM_THREADS": "16"}, spec(cpus_per_task=3, seed=2**32 + 5), {})
    assert base.pop("LAUNCHER_RUN_DIR", "/r") == "/r"

    assert base == {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "3",
        "PYTHONHASHSEED": "5",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "2500",
    }


def test_the_jobs_variables_and_those_passed_by_name_win() -> None:
    """`environment.variables` and `environment.pass` override what the launcher would set."""
    mine = spec(variables={"OMP_NUM_THREADS": "7", "A": "1"})
    base = base_environment({"PYTHONHASHSEED": "9"}, mine, {"KEY": "secret", "A": "2"})

    assert {k: base[k] for k in ("OMP_NUM_THREADS", "A", "KEY", "PYTHONHASHSEED")} == {
        "OMP_NUM_THREADS": "7",
        "A": "2",
        "KEY": "secret",
        "PYTHONHASHSEED": "9",
    }


def test_deterministic_jobs_have_their_variables_before_anything_is_imported() -> None:
    """cuBLAS's workspace and NCCL's algorithm are in the fork server's own environment; the job's own values win."""
    base = base_environment({}, spec(deterministic=True, variables={"NCCL_ALGO": "Tree"}), {})

    assert (base["CUBLAS_WORKSPACE_CONFIG"], base["NCCL_ALGO"]) == (":4096:8", "Tree")
    assert base_environment({}, spec(deterministic=True), {})["NCCL_ALGO"] == "Ring"
    assert "NCCL_ALGO" not in base_environment({}, spec(), {})


def test_the_named_interface_is_for_gloo_and_nccl() -> None:
    """A named interface is told to both; one that was found out only to gloo, and only where nobody set it."""
    named = base_environment({}, spec(interface="ib0"), {}, gloo_interface="eth0")
    found = base_environment({}, spec(), {}, gloo_interface="eth0")
    kept = base_environment({"GLOO_SOCKET_IFNAME": "mine"}, spec(), {}, gloo_interface="eth0")

    assert (named["GLOO_SOCKET_IFNAME"], named["NCCL_SOCKET_IFNAME"]) == ("ib0", "ib0")
    assert (found["GLOO_SOCKET_IFNAME"], found.get("NCCL_SOCKET_IFNAME")) == ("eth0", None)
    assert kept["GLOO_SOCKET_IFNAME"] == "mine"


@pytest.mark.parametrize(
    ("interface", "gloos", "address"), [("=lo", "lo", "127.0.0.1"), ("^docker0,lo", "eth0", "10.1.2.3")]
)
def test_nccls_signs_before_an_interface_are_not_told_to_gloo(interface: str, gloos: str, address: str) -> None:
    """NCCL_SOCKET_IFNAME=^docker0,lo is in many scripts, and =lo means that very name: gloo has neither, and fails with them."""
    found = description.gloo_interface(spec(interface=interface, batch="local"))
    base = base_environment({}, spec(interface=interface), {}, gloo_interface=found and "eth0")

    assert (base["NCCL_SOCKET_IFNAME"], base["GLOO_SOCKET_IFNAME"]) == (interface, gloos)
    assert description.node_address(spec(interface=interface, batch="slurm"), "h", "10.1.2.3") == address


@pytest.mark.parametrize(
    ("allowed", "online", "on_node", "workers", "each", "expected"),
    [
        (range(8, 16), 64, "8", 4, 2, [[8, 9], [10, 11], [12, 13], [14, 15]]),  # confined by SLURM
        (range(8), 8, "8", 2, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),  # the whole node is ours: spare CPUs are shared out
        (range(64), 64, "8", 4, 2, None),  # nobody confines: another job would bind to the same CPUs
        (range(8), 64, "8", 4, 3, None),  # too few
        (range(2), 2, "", 2, 1, None),  # no SLURM: others use this machine too
        (range(2), 2, "8", 2, 1, None),  # SLURM believes in CPUs that are not there
    ],
)
def test_workers_are_bound_only_to_cpus_that_are_surely_the_jobs(
    allowed: Any, online: int, on_node: str, workers: int, each: int, expected: Any
) -> None:
    """Each worker gets a share of its own where SLURM confined the task or gave the whole node, and none elsewhere."""
    environ = {"SLURM_CPUS_ON_NODE": on_node} if on_node else {}

    assert cpu_shares(list(allowed), online, environ, workers=workers, cpus_per_task=each) == expected


def host_of_two_sockets(folder: Path) -> list[int]:
    """16 CPUs as Linux numbers them: 4 cores a socket, the second threads behind all first ones."""
    for cpu in range(16):
        socket, core = cpu % 8 // 4, cpu % 4
        (folder / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (folder / f"cpu{cpu}" / f"node{socket}").mkdir()
        (folder / f"cpu{cpu}" / "topology" / "physical_package_id").write_text(f"{socket}\n")
        (folder / f"cpu{cpu}" / "topology" / "core_id").write_text(f"{core}\n")
    return list(range(16))


@pytest.mark.parametrize(
    ("gpu_nodes", "expected"),
    [
        ((), [[0, 8, 1, 9], [2, 10, 3, 11], [4, 12, 5, 13], [6, 14, 7, 15]]),
        ((0, 0, 1, 1), [[0, 8, 1, 9], [2, 10, 3, 11], [4, 12, 5, 13], [6, 14, 7, 15]]),
        ((1, 1, 0, 0), [[4, 12, 5, 13], [6, 14, 7, 15], [0, 8, 1, 9], [2, 10, 3, 11]]),
        ((1, 0), [[4, 12, 5, 13], [0, 8, 1, 9], [6, 14, 7, 15], [2, 10, 3, 11]]),
        ((1, 0, -1, 0), [[0, 8, 1, 9], [2, 10, 3, 11], [4, 12, 5, 13], [6, 14, 7, 15]]),  # one is not known
    ],
)
def test_workers_get_whole_cores_near_their_gpus(
    tmp_path: Path, gpu_nodes: tuple[int, ...], expected: list[list[int]]
) -> None:
    """Slices by number gave rank 2 of 4 the second threads of rank 0's cores, on the socket away from its GPU."""
    cpus = host_of_two_sockets(tmp_path)
    shares = cpu_shares(
        cpus, 16, {"SLURM_CPUS_ON_NODE": "16"}, workers=4, cpus_per_task=4, gpu_nodes=gpu_nodes,
        place=lambda cpu: cpu_place(cpu, tmp_path),
    )  # fmt: skip

    assert shares == expected


def test_a_cpu_of_which_nothing_is_told_is_a_core_of_its_own(tmp_path: Path) -> None:
    """As in some containers: their order is that of their numbers, then."""
    assert [cpu_place(cpu, tmp_path) for cpu in (0, 7)] == [(0, 0, 0, 0), (0, 0, 7, 7)]
    assert cpu_place(0)[3] == 0


def test_nodes_have_names_and_numbers() -> None:
    """SLURM's list and task number, or on one machine names that stay distinct."""
    slurm = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NODEID": "2"}
    local = spec(batch="local", spare_nodes=1)
    names = node_names(local)

    assert (node_names(spec(), slurm), node_index(spec(), slurm)) == (["n1", "n2", "n3"], 2)
    doors = Doors(spec(), "0" * 32, "5.0", ["n1", "n2"], 1)
    assert [(doors.of(node).host, doors.of(node).address) for node in (0, 1)] == [("n1", "n1"), ("n2", "127.0.0.1")]
    assert doors.of(0).ports != doors.of(1).ports
    assert [name.split("/")[1] for name in names] == ["0", "1", "2"]
    assert node_index(local, {"SUBMITIT_LOCAL_GLOBALID": "1"}) == 1
    assert Doors(local, "0" * 32, "local.0", names, 1).of(0).address == "127.0.0.1"


def test_outside_a_job_there_is_no_number() -> None:
    """Without SLURM's variables one sentence says so."""
    with pytest.raises(ProtocolError, match="SLURM_NODEID"):
        node_index(spec(), {})
    with pytest.raises(ProtocolError, match="SLURM_JOB_NODELIST"):
        node_names(spec(), {})


@pytest.mark.parametrize(
    ("cgroup", "counter", "text"),
    [
        ("0::/slurm/job_7/step_0\n", "sys/fs/cgroup/slurm/job_7/step_0/memory.events", "low 0\noom 2\noom_kill 3\n"),
        ("9:cpu:/x\n4:memory:/slurm/job_7\n", "sys/fs/cgroup/memory/slurm/job_7/memory.oom_control", "oom_kill 3\n"),
        ("0::/gone\n", "proc/vmstat", "nr_free_pages 1\noom_kill 3\n"),
    ],
    ids=["v2", "v1", "machine"],
)
def test_kills_for_memory_are_counted(tmp_path: Path, cgroup: str, counter: str, text: str) -> None:
    """cgroup v2's events, v1's oom_control, and the machine's count where neither is told."""
    for name, content in (("proc/self/cgroup", cgroup), (counter, text)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    assert memory.kills(tmp_path) == 3


def test_no_counter_is_no_kill(tmp_path: Path) -> None:
    """Where nothing counts, nothing is claimed."""
    assert memory.kills(tmp_path) == 0


def test_a_process_name_cannot_mislead_the_table(tmp_path: Path) -> None:
    """The table reads a process whose command name holds spaces, parentheses and digits."""
    import subprocess

    script = (
        "import ctypes,sys; ctypes.CDLL(None).prctl(15, b') R 1 1 ((', 0, 0, 0); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as odd:
        assert odd.stdout is not None
        odd.stdout.readline()
        found = proctable.table()
        assert (found[odd.pid].ppid, found[odd.pid].sid) == (os.getpid(), odd.pid)
        assert odd.pid in [p.pid for p in proctable.below(os.getpid(), found)]
        assert odd.pid not in [p.pid for p in proctable.below(os.getpid(), found, spare=[odd.pid])]
        odd.kill()


def test_the_last_lines_of_this_round(tmp_path: Path) -> None:
    """Lines of an earlier life of the log, empty ones and half a character at the start are left out."""
    log = tmp_path / "rank.log"
    log.write_text("old\n")
    size = log.stat().st_size
    with log.open("a") as f:
        f.write("ü" * 40_000 + "\n\n" + "\n".join(f"line {n}" for n in range(40)) + "\n")

    lines = logs.last_lines(log, size)

    assert lines == [f"line {n}" for n in range(10, 40)]
    assert logs.last_lines(tmp_path / "none") == []


def test_the_last_lines_hold_no_part_of_a_secret(tmp_path: Path) -> None:
    """Secrets are taken out of the whole tail: before lines are cut, blank ones dropped, the last 30 chosen; half a first line goes."""
    key = "\n".join(["begin-of-key  ", "", *(f"line{n:02d}-of-key" for n in range(42))])
    log = tmp_path / "rank.log"
    log.write_text("opened: 'hunter22-hunter22'\n" + "y" * (65536 - 15) + "\nlast\n")
    assert logs.last_lines(log, secrets=["hunter22-hunter22"]) == ["y" * 2000, "last"]

    log.write_text(f"{'z' * 1990} hunter22-hunter22\n{key}\nlast\n")
    lines = logs.last_lines(log, secrets=["hunter22-hunter22", key])

    assert lines == [f"{'z' * 1990} <redacted", "<redacted>", "last"]


def test_a_last_line_that_is_longer_than_the_usual_tail(tmp_path: Path) -> None:
    """It was dropped as half a line: an error whose message shows a tensor left nothing of the traceback either."""
    log = tmp_path / "rank.log"
    log.write_text("old\n" * 9)
    size = log.stat().st_size
    with log.open("a") as f:
        f.write("Traceback\nValueError: hunter22-hunter22 " + "x" * 100_000)

    lines = logs.last_lines(log, size, secrets=["hunter22-hunter22"])

    assert lines == ["Traceback", ("ValueError: <redacted> " + "x" * 2000)[:2000]]


class FoundGpus(Gpus):
    """So many devices, with these faults."""

    def __init__(self, count: int, faults: list[str] | None = None, **how: Any) -> None:
        self._handles = [None] * count
        self._faults = faults or []
        self.problem, self.installed = how.get("problem"), how.get("installed", True)

    def faults(self) -> list[str]:
        """See `Gpus`."""
        return self._faults


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        (
            preflight.judge_gpus(4, FoundGpus(3)),
            [("gpus", False, "3 of 4 GPUs are visible"), ("gpu_errors", True, None)],
        ),
        (
            preflight.judge_gpus(2, FoundGpus(4, ["GPU 1 is ill"])),
            [("gpus", True, None), ("gpu_errors", False, "GPU 1 is ill")],
        ),
        (
            preflight.judge_gpus(1, FoundGpus(0, problem="no driver")),
            [("gpus", False, "NVML does not answer: no driver")],
        ),
        (preflight.judge_gpus(4, FoundGpus(0, problem="no module", installed=False)), [("gpus", True, None)]),
        (preflight.judge_memory(None, 0), []),
        (preflight.judge_memory(64, 60 * 2**30), [("memory", True, None)]),
        (preflight.judge_memory(64, 20 * 2**30), [("memory", False, "20.0 of the 64 GB asked for are available")]),
        (
            [preflight.judge_driver("11.4", "12.8")],
            [("driver", False, "the driver offers CUDA 11.4, which is too old for torch's 12.8")],
        ),
        ([preflight.judge_driver("12.2", "12.8")], [("driver", True, None)]),
        ([preflight.judge_driver("12.2", None)], [("driver", False, "this torch was built without CUDA")]),
        (
            preflight.judge_disk(2**29, 10),
            [
                ("disk", False, "537 MB are free on the run directory's file system; 1.1 GB are needed"),
                ("inodes", False, "10 inodes are free on the run directory's file system"),
            ],
        ),
        (preflight.judge_disk(2**40, None), [("disk", True, "1.1 TB are free on the run directory's file system")]),
    ],
)
def test_verdicts(checks: list[preflight.Check], expected: list[tuple[str, bool, str | None]]) -> None:
    """Each check judges what was found, in one sentence."""
    found = [(c.name, c.ok, c.detail) for c in checks]

    assert [(n, ok, d if e[2] else None) for (n, ok, d), e in zip(found, expected, strict=True)] == expected


def test_facts_read_torchs_versions_without_importing_it() -> None:
    """Versions come from files: torch is in none of the agent's modules."""
    import subprocess

    code = (
        "import sys; import launcher.node.agent.entry, launcher.slurm.probe as f; print(f.torch_versions()['torch']);"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("2.")


def test_a_nodes_address(tmp_path: Path) -> None:
    """One machine is 127.0.0.1; a node is reached on the interface that reaches the leader; a named one wins."""
    there = spec(run_dir=str(tmp_path))

    assert description.node_address(spec(batch="local"), "h", "10.1.2.3") == "127.0.0.1"
    assert description.node_address(there, "h", "::ffff:10.1.2.3") == "10.1.2.3"
    assert description.node_address(spec(interface="lo"), "h", "10.1.2.3") == "127.0.0.1"
    assert description.master_address(there, "no-such-host.invalid", "10.1.2.3") == "10.1.2.3"
    assert description.disk(RunPaths(tmp_path).root)["free_bytes"]


def test_a_temporary_folder_that_is_not_there_is_not_said_to_be_writable(tmp_path: Path) -> None:
    """TMPDIR may name a folder of the login host: Python takes /tmp then, and so does the check."""
    assert preflight._scratch((str(tmp_path / "none"), str(tmp_path))).detail == f"{tmp_path} can be written"


def test_the_temporary_folder_that_the_job_sets_is_checked(tmp_path: Path) -> None:
    """A node whose local disk is full is not used: `environment.variables` has TMPDIR there, and /tmp tells nothing of it."""
    scratch, runs = tmp_path / "scratch", RunPaths(tmp_path / "run")
    scratch.mkdir()
    runs.root.mkdir()
    server: Any = SimpleNamespace(environ={"TMPDIR": str(scratch)})
    found = preflight.Preflight(spec(run_dir=str(runs.root)), runs, server, node=0, attempt=0)._look([])

    assert str(scratch) in next(check.detail for check in found if check.name == "scratch")


INTERFACES = {
    "lo": ["127.0.0.1", "::1"], "idrac": ["169.254.1.2"], "virbr0": ["192.168.122.1"], "br-1f2e": ["172.18.0.1"], "eth1": ["10.9.0.1"],
    "eth0": ["10.0.0.7", "fe80::1%eth0", "2001:db8::7"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("up", "known", "address"),
    [
        (INTERFACES, {}, "10.0.0.7"),
        ({**INTERFACES, "eth0": ["fe80::1%eth0", "2001:db8::7"]}, {}, "2001:db8::7"),
        ({"lo": ["127.0.0.1"], "virbr0": ["192.168.122.1"]}, {}, "127.0.0.1"),
    ],
)
def test_the_address_of_a_node_whose_own_name_is_loopback(
    monkeypatch: pytest.MonkeyPatch, up: dict[str, list[str]], known: dict[str, str], address: str
) -> None:
    """Debian writes 127.0.1.1 for it into /etc/hosts: neither a bridge of containers nor the management's network leads to other nodes."""
    families = {True: socket.AF_INET6, False: socket.AF_INET}
    listed = {
        name: [SimpleNamespace(family=families[":" in one], address=one) for one in each] for name, each in up.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: listed)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: SimpleNamespace(isup=name != "eth1") for name in up})
    monkeypatch.setattr(description, "resolve_host", lambda name: {"n1": "127.0.1.1", **known}.get(name, ""))
    there = spec(batch="slurm")

    assert description.node_address(there, "n1", "127.0.0.1", ["n2"]) == address
    assert bool(description._warnings(lonely=address == "127.0.0.1")) is (address == "127.0.0.1")


def test_the_way_to_another_node_tells_the_address_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the routes say, and nothing is sent: this machine reaches itself from its own address."""
    own = description._of_some_interface()
    if own is None:
        pytest.skip("this machine has no network")
    monkeypatch.setattr(description, "resolve_host", lambda name: {"n1": "127.0.1.1", "n2": own}.get(name, ""))
    monkeypatch.setattr(description, "_of_some_interface", lambda: "10.9.9.9")

    assert description.node_address(spec(batch="slurm"), "n1", "127.0.0.1", ["n2"]) == own
    assert description.node_address(spec(batch="slurm"), "n1", "127.0.0.1", ["n3"]) == "10.9.9.9"


@pytest.mark.parametrize("text", ["", "\n", "ab\n", "Z" * 64])
def test_a_run_without_a_secret_does_not_start(tmp_path: Path, text: str) -> None:
    """Of an empty one, which a full disk may leave, anybody could make the keys."""
    paths = RunPaths(tmp_path)
    paths.spec.write_text("{}")
    paths.secret.write_text(text)

    with pytest.raises(RunDirError, match="secret holds no secret: resubmit the run"):
        read_run(paths)


def test_a_store_that_is_ended_as_it_starts_deafens_no_later_socket(tmp_path: Path) -> None:
    """Closed while it is waited for, its number would stay in the selector: the next socket of that number would never be heard."""

    class Silent:
        async def fork(self, *_: object, **__: object) -> int:
            return 1

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = Store(cast("Any", Silent()), "r", 0, lambda _: None, loopback=True)
        number, theirs = store._sock.fileno(), store._theirs.dup()
        starting = loop.create_task(store.start(tmp_path / "logs/0/0/store.log", share="none"))
        while not loop._selector.get_map().get(number):  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        store.end()
        if starting.done() or not store._sock._closed:  # type: ignore[attr-defined]
            await starting
        mine, other = sorted(socket.socketpair(), key=lambda one: one.fileno() != number)
        with mine, other, theirs:
            assert mine.fileno() == number
            mine.setblocking(False)
            hearing = loop.create_task(loop.sock_recv(mine, 10))
            loop.call_later(0.05, other.send, b"heard")  # what is there already needs no selector
            assert await asyncio.wait_for(hearing, 5) == b"heard"

    asyncio.run(main())
