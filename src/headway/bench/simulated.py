"""Runs a scenario: the nodes that serve in production, on a virtual clock, and what came of it."""

import gc
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from headway import __version__
from headway.bench.pool_use import S_PER_HOUR, pool_use
from headway.bench.results import RunWriter, Tally
from headway.bench.run_report import write_report
from headway.bench.run_summary import Closing, RunSummary
from headway.bench.seen import Audience, open_request
from headway.bench.summary import table
from headway.core.units import NS_PER_S, Ns, ns_from_s, s_from_ns
from headway.sim.probe import Probe
from headway.sim.scenario import Scenario
from headway.sim.sources import source_of
from headway.sim.system import System
from headway.workload.spec import ClosedLoop, Diffusion, Synthetic

FIRST_SLICE_NS: Final = NS_PER_S // 10
GATEWAY_BUSY_MAX: Final = 0.8  # above, its CPU is worth a line
SLICE_WALL_S: Final = 0.1  # of wall time between two looks at whether to go on


class Progress(msgspec.Struct, frozen=True):
    """Where a run is."""

    virtual_s: float
    wall_s: float
    arrived: int
    done: int
    until_s: float | None  # where it ends, if that is known
    system: System | None = None  # to look at
    requests: int | None = None  # that come in all, where the workload says how many


Watch = Callable[[Progress], bool]  # asked now and then whether to go on


class RunResult(msgspec.Struct, frozen=True):
    """A finished or interrupted run."""

    scenario: Scenario
    summary: RunSummary
    system: System
    note: str = ""  # about the files it left


def config_hash(scenario: Scenario) -> str:
    """Return what two scenarios share only when they are equal."""
    return hashlib.sha256(msgspec.json.encode(_spelled_out(scenario))).hexdigest()[:16]


def _spelled_out(value: object) -> object:
    """Every field of every struct: msgspec leaves a default out where it is the same object, not where it is equal."""
    if isinstance(value, msgspec.Struct):
        fields = {name: _spelled_out(getattr(value, name)) for name in value.__struct_fields__}
        return {"": value.__struct_config__.tag, **fields}
    if isinstance(value, Mapping):
        return {str(name): _spelled_out(value[name]) for name in sorted(value)}
    if isinstance(value, tuple | list):
        return [_spelled_out(entry) for entry in value]
    return value


def simulate(
    scenario: Scenario,
    watch: Watch | None = None,
    *,
    folder: Path | None = None,
    log: bool = False,
    tally: Tally | None = None,
) -> RunResult:
    """Simulate until every client has its answer, `sim.until_s` is over, or `watch` says no.

    `folder`: write there what the run leaves behind (`bench.results`). `log`: keep every turn of every node. `tally`:
    counts what ends, where no folder is written. Raises ConfigError for a scenario that cannot work.
    """
    tally = Tally(scenario.sim.warmup_ns) if tally is None else tally
    audience = Audience(scenario, tally)
    system = System(scenario, source_of(scenario), audience, log=log)
    if folder is None:
        return RunResult(scenario, tally.summary(_simulate(system, audience, watch)), system)
    # Only now: a scenario that cannot work leaves what an earlier run wrote there.
    with RunWriter(folder, msgspec.json.encode(scenario), warmup_ns=scenario.sim.warmup_ns) as writer:
        audience.sink = writer
        summary = writer.finish(_simulate(system, audience, watch))
        write_report(folder, writer.tally.columns)
        return RunResult(scenario, summary, system, writer.note)


def _simulate(system: System, audience: Audience, watch: Watch | None) -> Closing:
    scenario = system.scenario
    probe = Probe(system, scenario.sim.sample_ms)
    began, cpu_began = time.monotonic(), time.process_time()
    with _without_gc():
        complete = _run(system, audience, watch)
    sim, now_ns, use = system.sim, system.sim.now_ns, pool_use(system, probe.samples)
    tokens = sum(pool.counters.get("generated_tokens", 0) for pool in use.values())
    return Closing(
        virtual_s=s_from_ns(now_ns),
        unfinished=tuple(open_request(stream, now_ns) for stream in sim.clients.streams.values()),
        complete=complete,
        pool_use=use,
        samples=probe.samples,
        policies=policies(scenario),
        seed=scenario.seed,
        config_hash=config_hash(scenario),
        headway=__version__,
        wall_s=time.monotonic() - began,
        cpu_s=time.process_time() - cpu_began,
        gateway_busy=scenario.gateway.busy(sim.offers.arrived, tokens, s_from_ns(now_ns)),
        jumps=scenario.sim.jumps,
    )


def _run(system: System, audience: Audience, watch: Watch | None) -> bool:
    """Run slice by slice of virtual time, each about as long on the wall; False when it was told to stop.

    The end of a slice ends a jump, which shows in the log (in what its messages say at once), in nothing else: with a
    log all slices are equally long, so that one seed leaves one log however fast the machine is.
    """
    sim, until_s = system.sim, system.scenario.sim.until_s
    end_ns: Ns | None = None if until_s is None else ns_from_s(until_s)
    began, slice_ns, requests = time.monotonic(), FIRST_SLICE_NS, expected(system.scenario)
    while end_ns is None or sim.now_ns < end_ns:
        to_ns = sim.now_ns + slice_ns if end_ns is None else min(end_ns, sim.now_ns + slice_ns)
        slice_began = time.monotonic()
        if sim.serve(to_ns):
            return True
        if not sim.params.log:
            took_s = max(time.monotonic() - slice_began, 1e-6)
            slice_ns = max(1, round(slice_ns * min(4.0, max(0.25, SLICE_WALL_S / took_s))))
        if watch is not None:
            now_s, wall_s = s_from_ns(sim.now_ns), time.monotonic() - began
            if not watch(Progress(now_s, wall_s, sim.offers.arrived, audience.done, until_s, system, requests)):
                return False
    return True


def expected(scenario: Scenario) -> int | None:
    """Return how many requests a workload sends; None where only its files or the answers tell."""
    counts = [part.count for part in scenario.workload if isinstance(part, Synthetic | ClosedLoop | Diffusion)]
    return sum(counts) if len(counts) == len(scenario.workload) else None


@contextmanager
def _without_gc() -> Iterator[None]:
    """Millions of acyclic objects: walking them takes a third of the run."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def policies(scenario: Scenario) -> dict[str, str]:
    """Return which policies decide, by their key."""
    chosen = {"front.router": scenario.front.router.type, "front.admission": scenario.front.admission.type}
    for pool in scenario.pools:
        if pool.kind == "diffusion":
            chosen[f"pools.{pool.name}.diffusion.order"] = pool.diffusion.order.type
            continue
        chosen[f"pools.{pool.name}.scheduler.order"] = pool.scheduler.order.type
        chosen[f"pools.{pool.name}.scheduler.chunk"] = pool.scheduler.chunk.type
        chosen[f"pools.{pool.name}.worker.pace"] = pool.worker.pace.type
    return chosen


def _gateway_line(summary: RunSummary) -> str:
    busy = f"gateway    {summary.gateway_busy:.0%} of its CPU"
    return f"{busy}: streams of so many tokens need more of gateway.processes than it has"


def _device_line(summary: RunSummary) -> str:
    """Device time of all pools, which is what a picture or video costs."""
    spent_s = sum(use.busy * use.device_hours for use in summary.pool_use.values()) * S_PER_HOUR
    each = f", {spent_s / summary.completed:.2f} s for each that completed" if summary.completed else ""
    return f"devices    {spent_s:.1f} s of work{each}"


def run_table(summary: RunSummary) -> str:
    """Return what is printed of a run."""
    state = "" if summary.complete else ", interrupted"
    lines = [
        f"scenario   {summary.config_hash}, seed {summary.seed}, {summary.virtual_s:.2f} virtual s{state}",
        table(summary, summary.queue_ms),
        *([] if summary.has_tokens else [_device_line(summary)]),
        *([f"unfinished {summary.unfinished}: they count with their age, and as misses"] if summary.unfinished else []),
        *([_gateway_line(summary)] if summary.gateway_busy > GATEWAY_BUSY_MAX else []),
        "",
        f"{'pool':<14}{'replicas':>9}{'busy':>8}{'KV':>8}{'waiting':>9}{'steps':>9}{'preempted':>11}{'hits':>8}",
    ]
    for name, pool in summary.pool_use.items():
        counts, kv_used = pool.counters, "-" if pool.kv_used is None else f"{pool.kv_used:.1%}"
        asked, steps = counts.get("prefix_query_tokens", 0), counts.get("steps", 0) + counts.get("denoise_steps", 0)
        hits = counts.get("prefix_hit_tokens", 0) / asked if asked else 0.0
        lines.append(
            f"{name:<14}{pool.replicas:>9}{pool.busy:>8.1%}{kv_used:>8}{pool.waiting:>9.1f}"
            f"{steps:>9}{counts.get('preemptions', 0):>11}{hits:>8.1%}"
        )
    return "\n".join(lines)
