"""Shapes of published figures (REFERENCE section 4 and 5) with the production nodes, long versions.

usage: python benchmarks/shapes.py placement TRACE [--time-scale 0.85]    Mooncake, FAST'25 fig 5 (conversation trace)
       python benchmarks/shapes.py downtime                               Llumnix, OSDI'24 fig 10
       python benchmarks/shapes.py migration [--rate 36] [--requests 2000]  Llumnix fig 11
       python benchmarks/shapes.py seen [--seeds 2]                       ranking with reports and with scraped pages

`tests/sim/test_shapes.py` has short versions. RESULTS.md has what came out, beside what was published.
"""

import argparse
from itertools import combinations, pairwise
from pathlib import Path

import msgspec

from headway.bench.run_summary import RunSummary
from headway.bench.simulated import simulate
from headway.core.decisions import Decision
from headway.core.events import MessageArrived
from headway.core.evidence import EvidenceRecord
from headway.core.ids import TransferId
from headway.core.messages import Migrate
from headway.core.units import NS_PER_MS, NS_PER_S
from headway.cost.links import Link
from headway.sched.config import FrontConfig, WorkerConfig
from headway.sched.dispatch import Patience
from headway.sched.fleet.migration import MigrationParams
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import Room
from headway.sched.transfer.outgoing import TransferParams
from headway.sched.watch import Silence
from headway.sim.catalogue import Additions
from headway.sim.clients import Stream
from headway.sim.fleet import CONTROL
from headway.sim.linear import LinearParams
from headway.sim.pools import EngineSize, Hardware, PoolParams, TruthParams
from headway.sim.scenario import NetworkSettings, Scenario
from headway.sim.sources import source_of
from headway.sim.system import System
from headway.workload.arrivals import Poisson
from headway.workload.lengths import Lengths
from headway.workload.spec import Mooncake, Synthetic

RANDOM = PolicyChoice("dynamo_kv", {"temperature": 1e9})  # its costs no longer matter
# 8192 tokens x 512 KiB in 1.68 s of blocking copy.
GLOO = Link(
    name="gloo",
    kind="network",
    peak_bytes_per_s=8e9,
    bytes_per_s=2.6e9,
    ring_bytes_per_s=2.6e9,
    latency_ns=0.0,
    devices_max=16,
    source="Llumnix OSDI'24 fig 10, blocking copy of LLaMA-7B",
    date="2024-07",
)
TOKEN_BYTES, LINK_BYTES_PER_S = 327_680, 45e9  # Llama-3.1-70B; an `ib-ndr` port
PULLING = {  # who also chooses whether a replica fetches the prefix from another one
    "mooncake, pulls": PolicyChoice("mooncake", {"pull_tokens_per_s": LINK_BYTES_PER_S / TOKEN_BYTES}),
    "cost_aware, pulls": PolicyChoice(
        "cost_aware", {"kv_pull": {"bytes_per_token": TOKEN_BYTES, "bytes_per_s": LINK_BYTES_PER_S, "fixed_s": 0.001}}
    ),
}
LLUMNIX = TransferParams(final_blocks=16, stages_max=3, timeout_s=20.0)


def front(router: PolicyChoice) -> FrontConfig:
    """Everybody is let in, placed at arrival, and never tried elsewhere because it waits long."""
    return FrontConfig(
        router=router,
        admission=PolicyChoice("open"),
        room=Room(engine_queue_ms=1e9, cold_requests=1_000_000),
        patience=Patience(silence=Silence(first_token_s=1e6)),
        in_flight_max=1_000_000,
        stream_bytes_max=1 << 40,
    )


def whole(tokens: int) -> PolicyChoice:
    """Chunks as long as a step."""
    return PolicyChoice("constant", {"tokens": tokens})


def ms(value: float | None) -> str:
    """Milliseconds for a table."""
    return "-" if value is None else f"{value:,.0f}"


# Placement


def placement(trace: Path, time_scale: float) -> None:
    """Eight prefill nodes of 8 x A100-80G with Llama-3.1-70B and 3M tokens of cache each; one token of each answer."""
    pool = PoolParams(
        replicas=8,
        model="llama-3.1-70b",
        hardware=Hardware(device="A100-80G", tp=8),
        engine=EngineSize(block_size=512, kv_blocks=5859),
        scheduler=LlmParams(step_tokens=8192, chunk=whole(8192)),
    )
    work = Mooncake(path=str(trace), max_tokens=1, time_scale=time_scale)
    print("| router | TTFT mean, ms | p50 | p99 | prefix hits | device busy |\n|---|---|---|---|---|---|")
    alone = [PolicyChoice(name) for name in ("mooncake", "cost_aware", "cache_aware", "least_tokens")]
    for name, router in (*PULLING.items(), *((choice.type, choice) for choice in alone), ("random", RANDOM)):
        found = simulate(Scenario(pools=(pool,), workload=(work,), front=front(router))).summary
        times = " | ".join(map(ms, (found.ttft_ms.mean, found.ttft_ms.p50, found.ttft_ms.p99)))
        print(f"| {name} | {times} | {found.prefix_hit_rate:.3f} | {found.pool_use['pool'].busy:.2f} |", flush=True)


# Downtime


class Kept:
    """Keeps every stream and its evidence."""

    def __init__(self) -> None:
        self.ended: list[tuple[Stream, EvidenceRecord]] = []

    def request(self, record: EvidenceRecord, stream: Stream) -> None:
        """A request is over."""
        self.ended.append((stream, record))

    def decision(self, decision: Decision) -> None:
        """Not looked at."""


def downtime_ms(tokens: int, how: str) -> float:
    """How much longer than a step a client waits for the token after its request moved, or its replica died."""
    prompt, output = Lengths("fixed", tokens, longest=tokens), Lengths("fixed", 100, longest=100)
    pool = PoolParams(
        replicas=2,
        model="llama-7b",
        hardware=Hardware(device="A10"),
        engine=EngineSize(max_model_len=16_000),
        scheduler=LlmParams(step_tokens=8192, chunk=whole(8192)),
        worker=WorkerConfig(transfer=LLUMNIX if how == "live" else TransferParams(10**6, timeout_s=20.0)),
        truth=TruthParams(jitter=0.0, spread=0.0),
    )
    wanted = Scenario(
        pools=(pool,),
        workload=(Synthetic(count=1, prompt=prompt, output=output),),
        front=front(PolicyChoice("least_requests")),
        catalogue=Additions(links=(GLOO,)),
        network=NetworkSettings(kv_link=GLOO.name),
    )
    kept = Kept()
    system = System(wanted, source_of(wanted), kept)

    def move(now_ns: int) -> None:
        source, other = sorted(system.replicas, key=lambda node: not system.worker(node).worker.by_request)
        if how == "recompute":
            system.sim.kill(source)
            return
        (request,) = system.worker(source).worker.by_request
        system.sim.feed(source, MessageArrived(now_ns, "shapes", CONTROL, Migrate(request, other, TransferId("move"))))

    system.sim.at(5 * NS_PER_S // 2, move)
    system.sim.serve(None)
    ((stream, _),) = kept.ended
    gaps = sorted(later - earlier for earlier, later in pairwise(stream.times_ns))
    return (gaps[-1] - gaps[len(gaps) // 2]) / NS_PER_MS


def downtime() -> None:
    """One sequence of LLaMA-7B on A10."""
    sizes = (256, 512, 1024, 2048, 4096, 8192)
    print("| downtime, ms | " + " | ".join(map(str, sizes)) + " |\n|---|" + "---|" * len(sizes))
    for how in ("live", "blocking", "recompute"):
        print(f"| {how} | " + " | ".join(ms(downtime_ms(size, how)) for size in sizes) + " |", flush=True)


# Migration near saturation


def fleet(router: str, migration: MigrationParams | None, rate: float, count: int) -> RunSummary:
    """16 x LLaMA-7B on A10 with 13,600 tokens of KV each, lognormal lengths (theirs are Zipf) of mean 256 and 256."""
    pool = PoolParams(
        replicas=16,
        model="llama-7b",
        hardware=Hardware(device="A10"),
        engine=EngineSize(kv_blocks=850, max_model_len=12_288),
        scheduler=LlmParams(max_seqs=256, step_tokens=12_800, chunk=whole(12_800), prefix_cache=False),
        worker=WorkerConfig(transfer=LLUMNIX),
    )
    work = Synthetic(
        count=count,
        arrivals=Poisson(rate_per_s=rate),
        prompt=Lengths(mean=256, cv=2.0, longest=6144),
        output=Lengths(mean=256, cv=2.0, longest=6144),
        max_tokens=6144,
        is_cacheable=False,
    )
    wanted = Scenario(
        pools=(pool,),
        workload=(work,),
        front=front(PolicyChoice(router)),
        migration=migration,
        catalogue=Additions(links=(GLOO,)),
        network=NetworkSettings(kv_link=GLOO.name),
    )
    return simulate(wanted).summary


def migration(rate: float, count: int) -> None:
    """Load dispatch with and without migration, and dispatch in turn."""
    eager = MigrationParams(gain_tokens_min=256, gain_ratio_min=0.1, cooldown_s=0.02)
    print("| what | TTFT mean, ms | p50 | p99 | e2e mean | preemptions | moves |\n|---|---|---|---|---|---|---|")
    for name, router, params in (
        ("least_tokens, migration", "least_tokens", eager),
        ("the same, one move at a time", "least_tokens", msgspec.structs.replace(eager, moves_max=1)),
        ("the same, only to make room", "least_tokens", msgspec.structs.replace(eager, gain_tokens_min=10**6)),
        ("migration at its defaults", "least_tokens", MigrationParams()),
        ("least_tokens", "least_tokens", None),
        ("round_robin", "round_robin", None),
    ):
        found = fleet(router, params, rate, count)
        times = " | ".join(map(ms, (found.ttft_ms.mean, found.ttft_ms.p50, found.ttft_ms.p99, found.e2e_ms.mean)))
        moves = found.decisions.get("pool/migrate", 0)
        print(f"| {name} | {times} | {found.preemptions} | {moves:,} |", flush=True)


# What the router sees


def ranked(how: str, seed: int) -> dict[str, float]:
    """Mean TTFT in ms by router: four replicas near saturation, prompts of which many share a beginning."""
    pool = PoolParams(
        replicas=4,
        cost="linear",
        linear=LinearParams(step_us=5000, token_us=80),
        engine=EngineSize(kv_blocks=3000),
        seen=how,  # type: ignore[arg-type]  # one of the two
    )
    work = Synthetic(
        count=500,
        arrivals=Poisson(rate_per_s=36.0),
        prompt=Lengths(mean=1500, longest=8000),
        output=Lengths(mean=60),
        families=24,
        family_skew=0.8,
        shared_tokens=1000,
    )
    out = {}
    for router in ("mooncake", "cost_aware", "cache_aware", "least_tokens", "least_requests", "power_of_two"):
        run = Scenario(seed=seed, pools=(pool,), workload=(work,), front=front(PolicyChoice(router)))
        out[router] = simulate(run).summary.ttft_ms.mean or 0.0
    return out


def seen(seeds: int) -> None:
    """Which pairs of routers change places by more than 5 % on both sides."""
    for seed in range(seeds):
        told, scraped = ranked("report", seed), ranked("scrape", seed)
        print(f"seed {seed}: TTFT mean, ms, told / scraped")
        print("  " + ", ".join(f"{name} {ms(told[name])} / {ms(scraped[name])}" for name in told))
        for a, b in combinations(told, 2):
            if (told[a] - told[b]) * (scraped[a] - scraped[b]) < 0:
                margins = [abs(side[a] / side[b] - 1) for side in (told, scraped)]
                if min(margins) > 0.05:
                    print(f"  {a} and {b} change places")


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="what", required=True)
    part = parts.add_parser("placement")
    part.add_argument("trace", type=Path)
    part.add_argument("--time-scale", type=float, default=0.85)
    parts.add_parser("downtime")
    part = parts.add_parser("migration")
    part.add_argument("--rate", type=float, default=36.0)
    part.add_argument("--requests", type=int, default=2000)
    part = parts.add_parser("seen")
    part.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    if given.what == "placement":
        placement(given.trace, given.time_scale)
    elif given.what == "downtime":
        downtime()
    elif given.what == "migration":
        migration(given.rate, given.requests)
    else:
        seen(given.seeds)


if __name__ == "__main__":
    main()
