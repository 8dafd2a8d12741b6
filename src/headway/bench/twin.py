"""The simulated twin of a live run: nodes of the same settings, the same requests at the times they were offered.

What live costs beside its steps is measured once, in a run of its own (`overheads`), and given to the simulation.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from headway.bench.outcome import Outcome
from headway.bench.recorded import FrontView, Recorded, WorkerView, front_view, worker_view
from headway.core.errors import ConfigError
from headway.core.events import RequestArrived
from headway.core.ids import NodeId, RequestId
from headway.core.request import LlmRequest, Slo
from headway.core.units import Ns
from headway.live.assemble import REPORT_SLACK_NS, Recipe, worker_config
from headway.live.config import Config
from headway.live.eventlog import read_log
from headway.sim.driver import Machine, SimParams
from headway.sim.fleet import FRONT, Fleet, FleetParams
from headway.sim.network import NetworkParams
from headway.sim.truth import StepTruth


class Overheads(msgspec.Struct, frozen=True):
    """What a live request pays beside its steps and its waits."""

    submit_ns: Ns  # from the front's decision to the replica
    tokens_ns: Ns  # from a step's results to the front
    edge_ns: Ns  # client, its connection and the gateway, of a request's first token, both ways together
    tail_ns: Ns  # the same, of its end


class LiveRun(msgspec.Struct, frozen=True):
    """A live run, read from the folder of its event logs."""

    recorded: Recorded
    recipes: tuple[Recipe, ...]


def read_run(folder: Path) -> LiveRun:
    """Read `telemetry.event_logs` of one run whose replicas lived once. Raises ConfigError where there is nothing."""
    recipes = []
    for path in sorted(folder.glob("*.recipe")):
        recipes.append(msgspec.msgpack.decode(path.read_bytes(), type=Recipe))
    if not recipes:
        raise ConfigError(f"{folder} holds no *.recipe: run `headway serve` with telemetry.event_logs = that folder")
    views = {
        recipe.spec.node: worker_view(read_log(folder / f"{recipe.spec.node}-{recipe.incarnation}.events"))
        for recipe in recipes
    }
    return LiveRun(Recorded(front_view(read_log(folder / f"{FRONT}.events")), views), tuple(recipes))


def fleet_params(config: Config, recipes: Sequence[Recipe], costs: Overheads) -> FleetParams:
    """Return the fleet of the simulator that a configuration and the sizes of its loaded engines describe."""
    recipe = recipes[0]
    llm, limits = recipe.spec.llm, recipe.limits
    if llm is None or limits is None:
        raise ConfigError(f"replica {recipe.spec.node} runs no language model: it has no twin")
    base = FleetParams()
    engine = msgspec.structs.replace(
        base.engine,
        model=limits.model,
        vocab_size=limits.vocab_size,
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        kv_blocks=limits.kv_blocks,
        host_slots=limits.host_slots,
        eos_token_ids=limits.eos_token_ids,
    )
    return FleetParams(
        replicas=len(recipes),
        engine=engine,
        llm=llm.scheduler,
        front=config.front,
        worker=worker_config(llm),
        migration=config.fleet.migration,
        belief=llm.cost,
        warm_up={recipe.spec.node: recipe.steps for recipe in recipes},
        listeners=recipe.spec.listeners,
        report_slack_ns=REPORT_SLACK_NS,
        sim=SimParams(network=NetworkParams(latency_ns=min(costs.submit_ns, costs.tokens_ns)), log=True),
    )


class Twin(Fleet):
    """A fleet whose steps take what a given model says."""

    def __init__(self, params: FleetParams, truth: Callable[[NodeId], StepTruth], costs: Overheads) -> None:
        """`truth` of each replica."""
        self._truth = truth
        super().__init__(params)
        more = costs.tokens_ns - costs.submit_ns
        to_front, to_replica = max(more, 0), max(-more, 0)
        self.sim.network.delay = lambda _src, dst, _at_ns: to_front if dst == FRONT else to_replica

    def machine(self, replica: NodeId) -> Machine:
        """What the simulation needs to start a replica."""
        return msgspec.structs.replace(super().machine(replica), truth=self._truth(replica))

    def recorded(self) -> Recorded:
        """Return what was decided, as a live run's logs say it."""
        log = self.sim.log
        workers = {replica: worker_view(log.of(replica)) for replica in self.replicas}
        return Recorded(front_view(log.of(FRONT)), workers)


class Sent(msgspec.Struct, frozen=True):
    """A request as the gateway understood it, and when its client was to send it."""

    request: LlmRequest
    at_ns: Ns


def sent(arrivals: Iterable[RequestArrived], planned_ns: Mapping[str, Ns]) -> list[Sent]:
    """Return the requests of a live run at the times at which their clients were told to send them (by public id)."""
    out = []
    for arrived in arrivals:
        request = arrived.request
        if not isinstance(request, LlmRequest):
            raise ConfigError(f"request {request.id} runs on no engine of ours: it has no twin")
        at_ns = planned_ns[public_id(request.id)]
        moved = msgspec.structs.replace(request, arrived_ns=at_ns, slo=_moved(request.slo, at_ns - arrived.received_ns))
        out.append(Sent(moved, at_ns))
    return sorted(out, key=lambda item: item.at_ns)


def _moved(slo: Slo, by_ns: Ns) -> Slo:
    ttft, e2e = slo.ttft_deadline_ns, slo.e2e_deadline_ns
    return Slo(None if ttft is None else ttft + by_ns, slo.tpot_ns, None if e2e is None else e2e + by_ns)


def public_id(request: RequestId) -> str:
    """Return the client's `x-request-id` inside a gateway's request id (`adapters.gateway.prepare`)."""
    return request.removeprefix("req-").rsplit("-", 2)[0]


def simulate(twin: Twin, offered: Sequence[Sent], costs: Overheads) -> dict[str, Outcome]:
    """Run to the end of every request; return what the clients see, by public id."""
    clients = twin.sim.clients
    for item in offered:
        twin.sim.arrive(FRONT, item.request, item.at_ns)
    twin.sim.run(is_done=lambda: len(clients.streams) == len(offered) and not clients.open)
    out = {}
    for item in offered:
        stream = clients.streams[item.request.id]
        ended_ns = stream.sent_ns if stream.ended_ns is None else stream.ended_ns
        times = tuple(at_ns + costs.edge_ns for at_ns in stream.times_ns)
        error = None if stream.end is None or stream.end.error is None else stream.end.error.code
        tokens, prompt = len(stream.tokens), len(item.request.prompt)
        out[public_id(item.request.id)] = Outcome(item.at_ns, ended_ns + costs.tail_ns, times, tokens, prompt, error)
    return out


def overheads(run: LiveRun, outcomes: Mapping[str, Outcome]) -> Overheads:
    """Return the means of what a calibration run paid beside its steps and its waits, of the requests in `outcomes`."""
    front, replicas = run.recorded.front, run.recorded.replicas
    edges, tails = [], []
    for request, arrived in front.arrivals.items():
        seen = outcomes.get(public_id(request))
        if seen is None or seen.error is not None or seen.ttft_ns is None:
            continue
        edges.append(seen.ttft_ns - (front.first_ns[request] - arrived.at_ns))
        tails.append(seen.ended_ns - seen.sent_ns - (front.ends[request][0] - arrived.at_ns))
    return Overheads(
        submit_ns=_mean(_submits(front, replicas, outcomes)),
        tokens_ns=_mean(_tellings(front, replicas)),
        edge_ns=_mean(edges),
        tail_ns=_mean(tails),
    )


def _submits(front: FrontView, replicas: Mapping[NodeId, WorkerView], outcomes: Mapping[str, Outcome]) -> list[Ns]:
    return [
        received_ns - front.submitted_ns[request]
        for worker in replicas.values()
        for request, received_ns in worker.received_ns.items()
        if public_id(request) in outcomes
    ]


def _tellings(front: FrontView, replicas: Mapping[NodeId, WorkerView]) -> list[Ns]:
    return [
        front.heard_ns[replica, step] - told_ns
        for replica, worker in replicas.items()
        for step, told_ns in worker.told_ns.items()
        if (replica, step) in front.heard_ns
    ]


def _mean(values: Sequence[Ns]) -> Ns:
    if not values:
        raise ConfigError("the calibration run has no request that ended well: nothing can be measured from it")
    return round(statistics.fmean(values))
