"""A fleet under load while everything fails: what was sent, answered, resumed, failed cleanly, lost and wrong.

    PYTHONPATH=src:. python benchmarks/chaos.py [--seconds 120] [--clients 24] [--engines 3] [--upstreams 3] [--seed 1]
        [--hedge-ms 0]

Engines of ours and scripted upstream servers, each a process of its own, behind one gateway. Every half second or so
something goes wrong, drawn by the seed. Every answer is checked against what the undisturbed fleet says; a request is
lost when its client could not tell how it ended. Exit code 1 when any is lost or wrong.
"""

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.e2e.chaos import Fleet, Tally, bodies, engine_pids, fleet, kill

CHAT = "/v1/chat"
STREAM_FAULTS = ("reset", "truncate", "garbage", "error_event", "no_done")


class Gremlin:
    """Breaks one thing at a time."""

    def __init__(self, world: Fleet, seed: int) -> None:
        self._world, self._draw = world, random.Random(seed)
        self.done: Counter[str] = Counter()
        self._drained: str | None = None

    async def haunt(self, seconds: float) -> None:
        """Go on for so long."""
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "engine killed (-9)": self.kill_engine,
            "engine stopped for a second": self.stop_engine,
            "upstream killed (-9), back on its port": self.kill_upstream,
            "upstream stopped for two seconds": self.stop_upstream,
            "slow first bytes": lambda: self.fault("slow_first_byte", times=8, seconds=1.5),
            "half-open answers": lambda: self.fault("half_open", times=4),
            "streams cut or garbled": self.cut,
            "storm of 500": lambda: self.fault("status", times=30, status=500),
            "storm of 503": lambda: self.fault("status", times=30, status=503),
            "storm of 429": lambda: self.fault("status", times=30, status=429, retry_after="1"),
            "health flaps": lambda: self.fault("status", times=4, status=500, path="/health"),
            "metrics lie or freeze": self.lie,
            "drain, undrain": self.drain,
        }
        ends, deck = time.monotonic() + seconds, list[str]()
        while time.monotonic() < ends:
            if not deck:  # every kind comes as often as any other
                deck = sorted(kinds)
                self._draw.shuffle(deck)
            name = deck.pop()
            await kinds[name]()
            self.done[name] += 1
            await asyncio.sleep(self._draw.uniform(0.1, 0.8))
        await self.undrain()

    async def fault(self, kind: str, path: str = CHAT, **fields: object) -> None:
        """Script an upstream."""
        await self._draw.choice(self._world.upstreams).order(faults=[{"kind": kind, "path": path, **fields}])

    async def kill_engine(self) -> None:
        """Its supervisor starts another."""
        if pids := engine_pids(self._world.server):
            kill(self._draw.choice(pids))

    async def stop_engine(self) -> None:
        """It goes on where it was."""
        if pids := engine_pids(self._world.server):
            pid = self._draw.choice(pids)
            kill(pid, signal.SIGSTOP)
            await asyncio.sleep(1.0)
            kill(pid, signal.SIGCONT)

    async def kill_upstream(self) -> None:
        """A moment later it is back."""
        upstream = self._draw.choice(self._world.upstreams)
        upstream.kill()
        await asyncio.sleep(self._draw.uniform(0.0, 0.6))
        await asyncio.to_thread(upstream.start)

    async def stop_upstream(self) -> None:
        """Longer than the gateway's timeouts."""
        upstream = self._draw.choice(self._world.upstreams)
        upstream.signal(signal.SIGSTOP)
        await asyncio.sleep(2.0)
        upstream.signal(signal.SIGCONT)

    async def cut(self) -> None:
        """In the middle of streams."""
        await self.fault(self._draw.choice(STREAM_FAULTS), times=4, after=3)

    async def lie(self) -> None:
        """What /metrics says is not so."""
        lie = self._draw.choice([{"frozen": True}, {"waiting": 9000, "kv_usage": 1.0}, {"garbage": True}, {}])
        await self._draw.choice(self._world.upstreams).order(metrics=lie)

    async def drain(self) -> None:
        """Take the one out that an operator names, and bring back the last one."""
        await self.undrain()
        self._drained = self._draw.choice(sorted(self._world.replicas()))
        await asyncio.to_thread(self._world.server.call, f"/v1/replicas/{self._drained}/drain", {})

    async def undrain(self) -> None:
        """Bring back what was drained."""
        if self._drained is not None:
            await asyncio.to_thread(self._world.server.call, f"/v1/replicas/{self._drained}/undrain", {})
            self._drained = None


def report(tally: Tally, gremlin: Gremlin, recoveries: dict[str, int], seconds: float) -> None:
    """Print what happened."""
    for name, count in sorted(gremlin.done.items()):
        print(f"  {count:4d} x {name}")
    print(f"in {seconds:.0f} s, the fleet's own words: " + ", ".join(f"{k} {v}" for k, v in recoveries.items() if v))
    failed = ", ".join(f"{code} {count}" for code, count in sorted(tally.failed.items())) or "none"
    print(
        f"sent {tally.sent}, answered {tally.answered}, resumed {recoveries['resumed']}, failed cleanly "
        f"{tally.failures} ({failed}), lost {len(tally.lost)}, wrong {len(tally.wrong)}"
    )
    for story in (*tally.lost[:10], *tally.wrong[:10]):
        print(f"  ! {story}")


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--engines", type=int, default=3)
    parser.add_argument("--upstreams", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hedge-ms", type=float, default=0.0)
    options = parser.parse_args()
    hedge = [f"front.hedge={{after_ms={options.hedge_ms}}}"] if options.hedge_ms else []
    asked = bodies(48)
    with fleet(*hedge, engines=options.engines, upstreams=options.upstreams) as world:
        world.learn(asked)
        gremlin = Gremlin(world, options.seed)
        tally = world.under_load(asked, lambda: gremlin.haunt(options.seconds), options.clients)
        recoveries = world.recoveries()
        world.settle()
        report(tally, gremlin, recoveries, options.seconds)
    return int(bool(tally.lost or tally.wrong))


if __name__ == "__main__":
    sys.exit(main())
