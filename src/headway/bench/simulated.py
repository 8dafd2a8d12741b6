"""Runs a workload through the simulator: the nodes that serve in production, on a virtual clock."""

from headway.bench.outcome import Outcome
from headway.sim.clients import Stream
from headway.sim.fleet import Fleet, FleetParams
from headway.workload.requests import Workload, requests


def run_workload(params: FleetParams, workload: Workload) -> tuple[Fleet, list[Outcome]]:
    """Simulate until every client has its answer; return the fleet and what each client saw."""
    fleet = Fleet(params)
    engine = params.engine
    offered = list(requests(workload, engine.model, engine.vocab_size, engine.block_size))
    fleet.offer(offered)
    clients = fleet.sim.clients
    fleet.sim.run(is_done=lambda: len(clients.streams) == len(offered) and not clients.open)
    return fleet, [_outcome(clients.streams[item.id], len(item.prompt)) for item in offered]


def _outcome(stream: Stream, prompt_tokens: int) -> Outcome:
    error = None
    if stream.end is not None and stream.end.error is not None:
        error = stream.end.error.code or "error"
    ended_ns = stream.sent_ns if stream.ended_ns is None else stream.ended_ns
    return Outcome(stream.sent_ns, ended_ns, tuple(stream.times_ns), len(stream.tokens), prompt_tokens, error)
