"""Looks at pools now and then: what a report shows of queues, KV and load over time."""

from typing import Final

import msgspec

from headway.core.ids import NodeId
from headway.core.units import Ns, ns_from_ms
from headway.sim.system import AnyPool, System

LOOKS_MAX: Final = 512  # of one pool; then pairs are merged and the interval is twice as long


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One look at one pool, summed over its replicas; or the mean of several that are equally far apart."""

    at_ns: Ns
    pool: str
    up: int  # replicas that are there
    waiting: float
    running: float
    kv_used: float  # share of the blocks, blocks that only the prefix cache holds left out
    busy: float  # share of device time since the look before
    kv_peak: float = 0.0  # largest of the looks


class Probe:
    """Takes a sample of every pool at each interval, from the start to the last event; never more than `LOOKS_MAX`.

    It looks and changes nothing: the log is the same without it.
    """

    def __init__(self, system: System, sample_ms: float) -> None:
        self._system, self._interval_ns = system, ns_from_ms(sample_ms)
        self._busy_ns: dict[NodeId, int] = {}
        self.samples: list[Sample] = []
        self._wait()

    def _wait(self) -> None:
        self._system.sim.at(self._system.sim.now_ns + self._interval_ns, self._look)

    def _look(self, at_ns: Ns) -> None:
        self._system.sim.runs.settle()
        self.samples += [self._of(pool, at_ns) for pool in self._system.pools]
        pools = len(self._system.pools)
        if len(self.samples) >= LOOKS_MAX * pools:
            self.samples = _halved(self.samples, pools)
            self._interval_ns *= 2
        self._wait()

    def _of(self, pool: AnyPool, at_ns: Ns) -> Sample:
        waiting = running = up = free = total = busy_ns = 0
        for node in pool.replicas:
            life = self._system.sim.lives.get(node)
            if life is None:  # it has not started yet
                continue
            busy_ns += life.busy_ns - self._busy_ns.get(node, 0)
            self._busy_ns[node] = life.busy_ns
            if not life.is_alive:
                continue
            machine = self._system.numbers(node)
            up += 1
            waiting += machine.waiting
            running += machine.running
            free += machine.kv_blocks_free
            total += pool.kv_blocks
        busy = busy_ns / (self._interval_ns * max(1, up))
        kv_used = 1 - free / total if total else 0.0
        return Sample(at_ns, pool.params.name, up, waiting, running, kv_used, busy, kv_used)


def _halved(samples: list[Sample], pools: int) -> list[Sample]:
    """Merge every look with the one after it; they come pool by pool."""
    out = []
    for begin in range(0, len(samples) - pools, 2 * pools):
        for place in range(begin, begin + pools):
            first, second = samples[place], samples[place + pools]
            out.append(
                Sample(
                    second.at_ns,
                    second.pool,
                    second.up,
                    (first.waiting + second.waiting) / 2,
                    (first.running + second.running) / 2,
                    (first.kv_used + second.kv_used) / 2,
                    (first.busy + second.busy) / 2,
                    max(first.kv_peak, second.kv_peak),
                )
            )
    return out
