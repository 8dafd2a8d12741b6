"""What the pools of a simulation did, from the executors' clocks and the schedulers' own counters."""

from collections.abc import Sequence
from typing import Final

from headway.bench.run_summary import PoolUse
from headway.core.units import NS_PER_S
from headway.sim.orchestrator import Owned
from headway.sim.probe import Sample
from headway.sim.system import AnyPool, System

S_PER_HOUR: Final = 3600


def pool_use(system: System, samples: Sequence[Sample]) -> dict[str, PoolUse]:
    """Return what every pool did, by its name."""
    return {
        pool.params.name: _use(system, pool, held, [sample for sample in samples if sample.pool == pool.params.name])
        for pool, held in zip(system.pools, system.owned, strict=True)
    }


def _use(system: System, pool: AnyPool, held: Owned, samples: Sequence[Sample]) -> PoolUse:
    """Held are cold starts too: nobody lends a device that only loads for nothing."""
    held_ns = held.held_ns(system.sim.now_ns)
    started = [node for node in pool.replicas if node in system.sim.lives]
    replicas, busy_ns = len(started), 0
    counts: dict[str, int] = {"steps": 0}
    for node in started:
        busy_ns += system.sim.lives[node].busy_ns
        for name, value in system.counters(node).items():
            counts[name] = counts.get(name, 0) + value
    devices = replicas * pool.params.devices
    hours = held_ns / NS_PER_S / S_PER_HOUR  # of a replica
    looks = max(1, len(samples))
    has_kv = pool.params.kind == "llm"
    return PoolUse(
        replicas=replicas,
        devices=devices,
        busy=busy_ns / held_ns if held_ns else 0.0,
        kv_peak=max((sample.kv_peak for sample in samples), default=0.0) if has_kv else None,
        counters=counts,
        waiting=sum(sample.waiting for sample in samples) / looks,
        running=sum(sample.running for sample in samples) / looks,
        kv_used=sum(sample.kv_used for sample in samples) / looks if has_kv else None,
        device_hours=pool.params.devices * hours,
        cost_usd=pool.price_per_hour * hours,
    )
