"""The verbs of slurm/cluster."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import NoReturn

import building
import conf
import daemons
import install
import leftovers
import network
import release
from layout import HEAD, HOSTS, ClusterError, Layout, check_host, lock_file, wait_for, write_whole

_REPOSITORY = Path(__file__).resolve().parents[2]


def main(argv: list[str], usage: str) -> int:
    """Run one verb; 0, 1 when it failed, 2 when it was not understood."""
    verb, args = (argv[0], argv[1:]) if argv else ("", [])
    if verb not in VERBS:
        print(usage.strip(), file=sys.stderr if verb not in ("-h", "--help") else sys.stdout)
        return 0 if verb in ("-h", "--help") else 2
    for number in (signal.SIGTERM, signal.SIGHUP):  # what has been begun is put back, as after a Ctrl-C
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        if verb not in ("env", "install") and (reason := install.why_not()):
            raise ClusterError(reason)
        return _run(verb, args, Layout.from_environ())
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
    except BrokenPipeError:  # `cluster status | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor may the interpreter's last flush fail
        return 141  # as a shell shows a command that SIGPIPE ended
    except OSError as error:
        print(f"cluster: {error.filename or verb}: {error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"cluster: {verb} was interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    return 1


def _run(verb: str, args: list[str], layout: Layout) -> int:
    name = layout.release
    if verb == "up":
        name, args = _take_release(args, name)
    every = (verb, args) == ("down", ["--all"])
    if args and not every and verb in ("check", "up", "down", "status", "env"):
        raise ClusterError(f"{verb} takes no {args[0]!r}")
    if verb not in ("check", "up", "enter", "install", "down", "status") and not layout.conf.exists():
        raise ClusterError(f"no cluster in {layout.root}: run slurm/cluster up")
    if name and name != release.own() and verb not in ("check", "enter", "install", "down", "env"):
        _there(layout, name, [verb, *args])
    if every or verb in ("check", "enter", "env", "status", "install"):
        code = VERBS[verb](layout, args)
        sys.stdout.flush()  # here, where a reader that has left is no error
        return code
    with _held(layout):
        return VERBS[verb](layout, args)


def _take_release(args: list[str], default: str) -> tuple[str, list[str]]:
    """The value of ``--release`` and the other words."""
    if not args or args[0].partition("=")[0] != "--release":
        return default or release.own(), args
    _, eq, name = args[0].partition("=")
    rest = args[1:] if eq else args[2:]
    if not eq:
        name = args[1] if len(args) > 1 else ""
    return release.check(name), rest


def _there(layout: Layout, name: str, words: list[str]) -> NoReturn:
    """Run ``slurm/cluster`` in a release's system: its daemons see that system alone."""
    layout.root.mkdir(parents=True, exist_ok=True)
    release.enter(name, [str(_REPOSITORY / "slurm" / "cluster"), *words], also=(layout.root, _REPOSITORY))


def do_enter(layout: Layout, args: list[str]) -> int:
    """`enter`: a login host of that release; a cluster that is up is seen there."""
    name, args = _take_release(args, layout.release)
    command = args[1:] if args[:1] == ["--"] else args
    also = (_REPOSITORY,)
    if layout.release == name:
        os.environ |= {"LAUNCHER_CLUSTER_DIR": str(layout.root), "SLURM_CONF": str(layout.conf)}
        also = (_REPOSITORY, layout.root)
    release.enter(name, command or ["bash"], also=also)


def do_check(_layout: Layout, _args: list[str]) -> int:
    """`check`: `main` has said why not."""
    print("a cluster can be made here")
    return 0


def do_install(_layout: Layout, args: list[str]) -> int:
    """`install`."""
    done = install.install([*install.PACKAGES, *args])
    print(f"installed {', '.join(done)}" if done else "everything is installed")
    return 0


def do_up(layout: Layout, _args: list[str]) -> int:
    """`up`: nothing to do, hosts to heal, or everything anew."""
    install.install()
    if layout.release == release.own() and _head_works(layout):
        try:
            for host in _broken_hosts(layout):
                _heal(layout, host)
            daemons.wait_ready(layout, limit_s=60)
            print(f"cluster is up: {layout.root}")
            return 0
        except ClusterError as error:
            print(f"cluster: {error}; starting anew", file=sys.stderr)
    try:
        building.start_anew(layout)
    except BaseException:
        network.destroy(layout)
        raise
    print(f"cluster is up: {layout.root}")
    return 0


def _head_works(layout: Layout) -> bool:
    if not layout.meta.exists() or not layout.conf.exists() or not layout.netns_path(HEAD).exists():
        return False
    if not all(daemons.find(layout, name) for name in ("munged", "slurmctld")):
        return False
    if "is UP" not in daemons.client(layout, "scontrol", "ping", timeout=30):
        return False
    return not _accounts(layout) or bool(daemons.sacctmgr(layout, "-n", "list", "cluster"))


def _accounts(layout: Layout) -> bool:
    return "AccountingStorageType=accounting_storage/none" not in layout.conf.read_text()


def _broken_hosts(layout: Layout) -> list[str]:
    states = daemons.node_states(layout)
    return [
        host
        for host in HOSTS
        if states[host] not in (*daemons.READY, "completing")
        or not network.is_plugged(layout, host)
        or not daemons.find(layout, "slurmd", host)
    ]


def do_down(layout: Layout, args: list[str]) -> int:
    """`down`; with --all, of every cluster that tests have left."""
    if args:
        for one in leftovers.clusters():
            with _held(one):
                building.sweep(one)
            print(f"cluster is down: {one.root}")
        for name in leftovers.remove_users():
            print(f"user {name} is gone")
        return 0
    building.sweep(layout)
    print(f"cluster is down: {layout.root}")
    return 0


def _held(layout: Layout) -> contextlib.AbstractContextManager[int]:
    return lock_file(Path("/run/lock") / f"launcher-cluster-{layout.tag}.lock")


def do_status(layout: Layout, _args: list[str]) -> int:
    """`status`; the exit code says whether every host takes jobs."""
    if not layout.conf.exists():
        print(f"no cluster in {layout.root}")
        return 1
    print(f"directory  {layout.root}\nsubnet     {layout.subnet}")
    print(f"release    {layout.release}, {daemons.client(layout, 'sinfo', '--version').strip()}")
    print(f"changed    {layout.settings.read_text() if layout.settings.exists() else '{}'}")
    for name in ("munged", "mariadbd", "slurmdbd", "slurmctld"):
        print(f"{name:10} {'running' if daemons.find(layout, name) else 'not running'}")
    states = daemons.node_states(layout)
    for host in HOSTS:
        cable = "" if network.is_plugged(layout, host) else ", cut off"
        slurmd = "" if daemons.find(layout, "slurmd", host) else ", no slurmd"
        print(f"{host:10} {layout.address(host)} {states[host] or 'unknown'}{cable}{slurmd}")
    return 0 if all(state in daemons.READY for state in states.values()) else 1


def do_env(layout: Layout, _args: list[str]) -> int:
    """`env`: this machine is the login host; controller, accounting and hosts are reachable from it."""
    print(f"export LAUNCHER_CLUSTER_DIR={shlex.quote(str(layout.root))}")
    print(f"export SLURM_CONF={shlex.quote(str(layout.conf))}")
    if layout.bin.exists():
        print(f"export PATH={shlex.quote(str(layout.bin))}:$PATH")
    return 0


def do_kill(layout: Layout, args: list[str]) -> int:
    """`kill HOST`."""
    for host in _hosts(args):
        network.plug(layout, host, in_=False)
        network.kill_all([layout.netns(host)])
    return 0


def do_cut(layout: Layout, args: list[str]) -> int:
    """`cut HOST`."""
    for host in _hosts(args):
        network.plug(layout, host, in_=False)
    return 0


def do_heal(layout: Layout, args: list[str]) -> int:
    """`heal HOST`."""
    for host in _hosts(args):
        _heal(layout, host)
    return 0


def _hosts(args: list[str]) -> list[str]:
    if not args:
        raise ClusterError(f"which host? There are {', '.join(HOSTS)}")
    return [check_host(a) for a in args]


def _heal(layout: Layout, host: str) -> None:
    network.plug(layout, host, in_=True)
    # A slurmd registers when it starts; waiting for the controller's next ping may take SlurmdTimeout.
    daemons.stop(layout, "slurmd", host)
    daemons.start_slurmd(layout, host)

    def ready() -> bool:
        state = daemons.node_states(layout)[host]
        if state.rstrip("*") in ("down", "drained", "draining", "drain", "fail"):
            daemons.client(layout, "scontrol", "update", f"NodeName={host}", "State=RESUME")
        return state in daemons.READY

    wait_for(f"{host} in service", ready, 120, 0.3)


def do_set(layout: Layout, args: list[str]) -> int:
    """`set`: reconfigure; what slurmctld reads only at its start makes it start again.

    settings.json is what slurmctld has; settings.new beside it says that a `set` has begun and was not brought to an end.
    """
    old = json.loads(layout.settings.read_text() or "{}") if layout.settings.exists() else {}
    new = {**old, **conf.parse_settings(args)} if args else {}
    begun = layout.settings.with_suffix(".new")
    if building.texts(layout, new)["slurm.conf"] == layout.conf.read_text() and not begun.exists():
        write_whole(layout.settings, json.dumps(new))
        return 0
    begun.touch()
    try:
        _apply(layout, new)
    except BaseException:
        _apply(layout, old)
        begun.unlink()
        raise
    write_whole(layout.settings, json.dumps(new))  # which renames settings.new
    return 0


def _apply(layout: Layout, settings: dict[str, str]) -> None:
    building.write_conf(layout, settings)
    _reconfigure(layout)


def _reconfigure(layout: Layout) -> None:
    daemons.stop(layout, "slurmctld", sig=signal.SIGTERM)
    daemons.start_slurmctld(layout)
    daemons.client(layout, "scontrol", "reconfigure", check=True)
    daemons.wait_ready(layout)


def do_stop(layout: Layout, args: list[str]) -> int:
    """`stop DAEMON`."""
    for daemon, host in _daemons(args):
        daemons.stop(layout, daemon, host)
    return 0


def do_start(layout: Layout, args: list[str]) -> int:
    """`start DAEMON`."""
    for daemon, host in _daemons(args):
        if daemons.find(layout, daemon, host):
            continue
        if daemon == "slurmd":
            daemons.start_slurmd(layout, host)
        else:
            {"slurmctld": daemons.start_slurmctld, "slurmdbd": daemons.start_slurmdbd}[daemon](layout)
    return 0


def do_restart(layout: Layout, args: list[str]) -> int:
    """`restart DAEMON`."""
    return do_stop(layout, args) or do_start(layout, args)


def _daemons(args: list[str]) -> list[tuple[str, str]]:
    if not args:
        raise ClusterError(f"which daemon? There are slurmctld, slurmdbd and a slurmd on each of {', '.join(HOSTS)}")
    return [(name, HEAD) if name in ("slurmctld", "slurmdbd") else ("slurmd", check_host(name)) for name in args]


VERBS = {
    "check": do_check,
    "install": do_install,
    "up": do_up,
    "enter": do_enter,
    "down": do_down,
    "status": do_status,
    "env": do_env,
    "kill": do_kill,
    "cut": do_cut,
    "heal": do_heal,
    "set": do_set,
    "stop": do_stop,
    "start": do_start,
    "restart": do_restart,
}
