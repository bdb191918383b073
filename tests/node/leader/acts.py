"""What simulated runs go through in several tests of the leader."""

from __future__ import annotations

import asyncio


def stop_at(w, step, signal="TERM"):
    """A script that sends the signal once somebody is at ``step``."""

    async def script():
        await w.until(lambda: any(x.entered >= step for n in w.nodes for x in n.workers))
        w.signal(signal)

    return script


def plain_script(w, seconds=1e6):
    """Workers that say nothing, live for ``seconds`` and exit 0."""
    base = w.worker_class

    class Script(base):
        async def main(self):
            self.say("phase", name="script")
            await asyncio.sleep(seconds)
            self.node.exited(self, 0, None)

    return Script


def at(w, step, act):
    """``act`` once, when somebody is at ``step``."""
    left = [act]
    w.hooks[step] = [lambda worker: left and left.pop()()]


def sizes(w):
    """The world size of each round."""
    return [e["world_size"] for e in w.events("round_started")]
