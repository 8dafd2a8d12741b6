"""Requests that the simulator runs in a second of one CPU, its memory, and the same work on Vidur.

    python benchmarks/simulator.py --azure azure_conv_2023.csv --mooncake mooncake_conversation.jsonl
    HEADWAY_PEER_VIDUR=CHECKOUT HEADWAY_PEER_VIDUR_PYTHON=ENV/bin/python python benchmarks/simulator.py --azure FILE

The work: 16 replicas, Poisson arrivals at 100 requests/s, lengths of the Azure conversation trace of 2023 in order,
steps of 512 tokens and 512 sequences, step times 12.7 ms + 40 us per token for both. Every run has its own process,
because peak memory is the process's; simulators take turns, and the best of `--rounds` counts: other work on the
machine only takes time away.
"""

import argparse
import csv
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from headway.core.decisions import Decision
from headway.core.evidence import EvidenceRecord
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.ports import ModelLimits
from headway.core.request import LlmRequest, SamplingParams
from headway.core.units import NS_PER_S, ns_from_s
from headway.cost.llm import StepCost, StepCostParams
from headway.sched.config import FrontConfig, Membership, WorkerConfig
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import FrontNode, WorkerNode
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import Room
from headway.sim.clients import Stream
from headway.sim.driver import Machine, SimParams, Simulation
from headway.sim.fleet import FRONT, replica_id
from headway.sim.routing_fleet import ENGINE, FAST, RoutingFleet, RoutingFleetParams
from headway.sim.tokenless import TokenlessEngine
from headway.sim.truth import LinearTruth
from headway.workload import mooncake
from headway.workload.arrivals import poisson
from headway.workload.offered import Offered

REPLICAS, RATE, BASE_MS, TOKEN_MS = 16, 100.0, 12.7, 0.04
MODEL = ModelId("llama-3-8b")
KV_BLOCKS = 26_000  # of 16 tokens: what an A100 with 80 GB holds beside Llama-3-8B
PEER = Path(__file__).with_name("simulator_vidur.py")


class Fixed:
    """A list of lengths as a source: each request is made when it arrives."""

    def __init__(self, lengths: list[tuple[int, int]], count: int) -> None:
        self.lengths, self.count = lengths, count

    def first(self) -> Iterator[Offered]:
        """In the order of arrival."""
        rows = islice(cycle(self.lengths), self.count)
        for place, (at_ns, (prompt, output)) in enumerate(zip(poisson(RATE, self.count, seed=1), rows, strict=True)):
            sampling = SamplingParams(max_tokens=output, temperature=0, ignore_eos=True)
            name = RequestId(f"req-{place}")
            yield Offered(LlmRequest(name, TenantId("t"), MODEL, (place % 1000,) * prompt, sampling, at_ns), output)

    def after(self, request: RequestId, ended_ns: int, answer: tuple[int, ...]) -> Offered | None:
        """Nobody has more to say."""
        return None


class Counted:
    """Counts records and the decisions in them."""

    def __init__(self) -> None:
        self.records = self.routes = self.tokens = 0

    def request(self, record: EvidenceRecord, stream: Stream) -> None:
        """One is over."""
        self.records += 1
        self.routes += sum(decision.kind == "route" for decision in record.decisions)
        self.tokens += len(stream.times_ns)

    def decision(self, decision: Decision) -> None:
        """Decisions of requests come with their records."""


def lengths_of(path: Path) -> list[tuple[int, int]]:
    """Prompt and output tokens of the Azure trace."""
    rows = list(csv.reader(path.open()))[1:]
    return [(max(1, int(row[1])), max(1, int(row[2]))) for row in rows]


def build(way: argparse.Namespace, sink: Counted) -> Simulation:
    """The fleet of the comparison: production front and workers."""
    sim = Simulation(SimParams(jumps=way.jumps), sink)
    front = FrontConfig(
        router=PolicyChoice(way.router),
        admission=PolicyChoice("open"),
        room=Room(engine_queue_ms=1e9, cold_requests=1_000_000_000),
        in_flight_max=1_000_000,
        stream_bytes_max=1 << 50,
    )
    limits = ModelLimits(MODEL, 128_256, 16_384, 16, KV_BLOCKS, 16 * 131_072, 0, 32, (), "bfloat16", "none")
    llm = LlmParams(
        max_seqs=512,
        step_tokens=512,
        chunk=PolicyChoice("constant", {"tokens": 512}),
        prefix_cache=False,
        async_depth=1,
        pool=way.pool,
        decisions=False,
    )
    config = WorkerConfig(credits=1, report_interval_ms=way.report_ms)

    def worker(node: NodeId, incarnation: int) -> WorkerNode:
        machine = LlmMachine(llm, limits, StepCost(StepCostParams()), node)
        return WorkerNode(Membership(node, incarnation, (FRONT,)), machine, limits, config)

    sim.add(FRONT, Machine(lambda _: FrontNode(FRONT, front)))
    truth = LinearTruth(base_ns=BASE_MS * 1e6, token_ns=TOKEN_MS * 1e6, kv_ns=0.0)
    for place in range(REPLICAS):
        node = replica_id(place)
        sim.add(node, Machine(partial(worker, node), lambda: TokenlessEngine(sim.offers.lengths), truth))
    return sim


def steps_of(sim: Simulation) -> int:
    """Engine steps of all replicas."""
    return sum(life.executor.steps for life in sim.lives.values() if life.executor is not None)


def azure(way: argparse.Namespace) -> dict[str, float]:
    """Run it once, in this process."""
    sink = Counted()
    sim = build(way, sink)
    sim.offer(FRONT, Fixed(lengths_of(way.azure), way.requests))
    began = time.process_time()
    assert sim.serve()
    took = time.process_time() - began
    assert sink.records == sink.routes == way.requests
    return {"seconds": took, "steps": steps_of(sim), "simulated_s": sim.now_ns / NS_PER_S, "tokens": sink.tokens}


def conversation(way: argparse.Namespace) -> dict[str, float]:
    """The whole Mooncake trace at its own times, with its prefixes: block 512, H100 TP8, Llama-3-70B."""
    rows = mooncake.read_trace(way.mooncake)[: way.rows]
    span_s = (rows[-1].timestamp - rows[0].timestamp + mooncake.QUANTUM_MS) / 1e3
    rate = sum(row.input_length for row in rows) / span_s
    part = mooncake.Slice(count=len(rows), prompt_tokens_per_s=rate)
    offered = list(mooncake.requests(rows, part, "llama-3-70b"))
    params = RoutingFleetParams((FAST,) * REPLICAS, PolicyChoice(way.router), PolicyChoice("open"), llm=ENGINE)
    fleet = RoutingFleet(params, offered)
    clients = fleet.sim.clients
    began = time.process_time()
    fleet.sim.run(
        until_ns=offered[-1].request.arrived_ns + ns_from_s(600),
        is_done=lambda: len(clients.streams) == len(offered) and not clients.open,
    )
    took = time.process_time() - began
    assert not clients.open
    return {"seconds": took, "steps": steps_of(fleet.sim), "simulated_s": fleet.sim.now_ns / NS_PER_S}


def vidur(way: argparse.Namespace, metrics: str) -> dict[str, float] | None:
    """The same work there; None without a checkout."""
    checkout, python = os.environ.get("HEADWAY_PEER_VIDUR"), os.environ.get("HEADWAY_PEER_VIDUR_PYTHON", sys.executable)
    if not checkout:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as trace:
        lines = ["arrived_at,num_prefill_tokens,num_decode_tokens"]
        for item in Fixed(lengths_of(way.azure), way.requests).first():
            arrived_s = item.request.arrived_ns / NS_PER_S
            lines.append(f"{arrived_s},{len(item.request.prompt)},{item.output_tokens}")  # type: ignore[union-attr]  # all are LlmRequests
        trace.write("\n".join(lines) + "\n")
        trace.flush()
        command = [python, str(PEER), trace.name, str(BASE_MS), str(TOKEN_MS), metrics]
        ran = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def alone(*change: str) -> dict[str, float]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], *change, "--once"]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def show(name: str, requests: int, rounds: list[dict[str, float]]) -> None:
    """Print the best of a few runs."""
    best = min(rounds, key=lambda ran: ran["seconds"])
    rss = f", peak RSS {best['rss_mb']:.0f} MB" if "rss_mb" in best else ""
    print(
        f"{name:<52} {requests / best['seconds']:8.0f} requests/CPU-s  {best['seconds']:7.2f} s  "
        f"{best['steps'] / requests:5.1f} steps/request  {best['seconds'] / best['steps'] * 1e6:6.1f} us/step{rss}",
        flush=True,
    )


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--azure", type=Path, required=True, help="AzureLLMInferenceTrace_conv.csv of 2023")
    parser.add_argument("--mooncake", type=Path, help="conversation_trace.jsonl of the FAST'25 release")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--router", default="cost_aware")
    parser.add_argument("--pool", default="blocks", choices=("blocks", "counting"))
    parser.add_argument("--report-ms", type=float, default=50.0)
    parser.add_argument("--no-jumps", dest="jumps", action="store_false")
    parser.add_argument("--trace", dest="is_trace", action="store_true", help="run the Mooncake trace")
    parser.add_argument("--rows", type=int, default=None, help="of the Mooncake trace; default: all 12,031")
    parser.add_argument("--once", action="store_true", help="run here, print JSON")
    return parser.parse_args()


def main() -> None:
    """Run one, or all in turn."""
    way = options()
    if way.once:
        gc.disable()  # nothing here makes cycles to speak of, and walking takes a few per cent
        ran = conversation(way) if way.is_trace else azure(way)
        ran["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(ran))
        return
    ways = [
        ("cost_aware, block pool, jumps, reports every 50 ms", []),
        ("cost_aware, counting pool, jumps, 50 ms", ["--pool", "counting"]),
        ("round_robin, block pool, jumps, 50 ms", ["--router", "round_robin"]),
        ("cost_aware, block pool, jumps, reports every 20 ms", ["--report-ms", "20"]),
        ("cost_aware, block pool, no jumps, 50 ms", ["--no-jumps"]),
    ]
    rounds: dict[str, list[dict[str, float]]] = {}
    for _ in range(way.rounds):
        for name, change in ways:
            rounds.setdefault(name, []).append(alone(*change))
        for metrics in ("metrics", "none"):
            found = vidur(way, metrics)
            if found is not None:
                rounds.setdefault(f"Vidur, least outstanding, {metrics}", []).append(found)
    for name, runs in rounds.items():
        show(name, way.requests, runs)
    show(
        "cost_aware, block pool, jumps, 10 times as many",
        10 * way.requests,
        [alone("--requests", str(10 * way.requests))],
    )
    if way.mooncake is not None:
        count = len(mooncake.read_trace(way.mooncake)[: way.rows])
        show("Mooncake conversation, cost_aware, prefix cache", count, [alone("--trace")])


if __name__ == "__main__":
    main()
