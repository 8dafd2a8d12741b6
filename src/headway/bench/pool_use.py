"""What the pools of a simulation did, from the executors' clocks and the schedulers' own counters."""

from collections.abc import Sequence
from typing import Final

from headway.bench.run_summary import PoolUse
from headway.core.units import NS_PER_S
from headway.sim.probe import Sample
from headway.sim.system import AnyPool, System

S_PER_HOUR: Final = 3600


def pool_use(system: System, samples: Sequence[Sample]) -> dict[str, PoolUse]:
    """Return what every pool did, by its name."""
    return {
        pool.params.name: _use(system, pool, [sample for sample in samples if sample.pool == pool.params.name])
        for pool in system.pools
    }


def _use(system: System, pool: AnyPool, samples: Sequence[Sample]) -> PoolUse:
    now_ns, replicas = system.sim.now_ns, len(pool.replicas)
    busy_ns = 0
    counts: dict[str, int] = {"steps": 0}
    for node in pool.replicas:
        executor = system.sim.lives[node].executor
        if executor is not None:
            busy_ns += executor.busy_ns
        for name, value in system.counters(node).items():
            counts[name] = counts.get(name, 0) + value
    devices = replicas * pool.params.devices
    hours = now_ns / NS_PER_S / S_PER_HOUR
    looks = max(1, len(samples))
    has_kv = pool.params.kind == "llm"
    return PoolUse(
        replicas=replicas,
        devices=devices,
        busy=busy_ns / (now_ns * replicas) if now_ns else 0.0,
        kv_peak=max((sample.kv_peak for sample in samples), default=0.0) if has_kv else None,
        counters=counts,
        waiting=sum(sample.waiting for sample in samples) / looks,
        running=sum(sample.running for sample in samples) / looks,
        kv_used=sum(sample.kv_used for sample in samples) / looks if has_kv else None,
        device_hours=devices * hours,
        cost_usd=replicas * pool.price_per_hour * hours,
    )
