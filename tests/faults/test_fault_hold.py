"""A hold on the real cluster: its agents and its leader die, and it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import inflict
import pytest
from cluster import Cluster
from harness import digest
from held import WORLD, Held

Undisturbed = Callable[[int], str]


@pytest.fixture(scope="module")
def held(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """One hold for what does not end it."""
    made = Held(cluster, tmp_path_factory.mktemp("held"))
    yield made
    assert made.hold.outcome() is None
    made.launcher("cancel", made.hold.paths.id)
    assert made.hold.wait_end()["state"] == "cancelled"
    made.hold.wait_no_process()


def test_a_rerun_ends_as_a_run_of_its_own_does(held: Held, undisturbed: Undisturbed) -> None:
    """Bit for bit, twice in a row: nothing of the first is left in the processes that both use."""
    for _ in range(2):
        run, said = held.rerun()
        assert said.returncode == 0, said.stdout + said.stderr
        assert digest(run) == undisturbed(WORLD)
    assert "torch is imported again" not in said.stdout


def test_a_killed_agent_ends_the_rerun_and_not_the_hold(held: Held, undisturbed: Undisturbed) -> None:
    """The rerun fails and names the host; its agent is started again, and the next rerun is complete."""
    run = held.begun()
    inflict.kill_agent(held.hold, 1)
    assert run.wait_end()["state"] == "failed"
    assert held.hold.told("node_lost")[-1]["host"] in str(run.outcome())

    again, said = held.rerun()
    assert said.returncode == 0, said.stdout + said.stderr
    assert digest(again) == undisturbed(WORLD)
    assert len(held.hold.told("agent_revived")) == 1


def test_a_killed_leader_ends_the_rerun_and_not_the_hold(held: Held, undisturbed: Undisturbed) -> None:
    """The rerun's leader lived in that process: the hold's next leader writes how it ended. A failed rerun can be continued."""
    run = held.begun()
    inflict.kill_agent(held.hold, 0)
    outcome = run.wait_end()
    assert (outcome["state"], outcome["reason"]) == ("failed", "The leader of its hold died.")
    why = held.launcher("why", run.paths.id).stdout
    assert "The leader of its hold died" in why

    again, said = held.rerun()
    assert said.returncode == 0, said.stdout + said.stderr
    assert digest(again) == undisturbed(WORLD)
    assert len(held.hold.told("attempt_started")) == 1
