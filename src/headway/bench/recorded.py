"""What was decided in a run, by the event logs of its nodes: one reader for live runs and for simulated ones."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from headway.core.decisions import Decision
from headway.core.effects import Deliver, Effect, End, Record, RunStep, Send
from headway.core.events import Event, MessageArrived, RequestArrived, StepDone
from headway.core.ids import NodeId, RequestId
from headway.core.messages import Submit, Tokens
from headway.core.units import Ns


class Turn(Protocol):
    """One event at a node and its effects: `live.eventlog.Entry`, or `sim.eventlog.Turn`."""

    @property
    def event(self) -> Event: ...

    @property
    def effects(self) -> list[Effect]: ...


class Fate(msgspec.Struct, frozen=True):
    """Everything that was decided about one request. Equal fates: the same decisions."""

    admissions: tuple[str, ...]  # verdicts, in their order
    routes: tuple[NodeId, ...]  # replicas that it was sent to
    chunks: tuple[tuple[int, int], ...]  # (start, count) of its prefill, in every stay
    preemptions: int
    output_tokens: int
    reason: str


class FrontView(msgspec.Struct):
    """One front's log. Times by request unless said."""

    arrivals: dict[RequestId, RequestArrived] = {}  # msgspec copies the defaults
    admissions: dict[RequestId, list[str]] = {}
    routes: dict[RequestId, list[NodeId]] = {}
    submitted_ns: dict[RequestId, Ns] = {}  # the last time
    first_ns: dict[RequestId, Ns] = {}  # its first token was handed to the edge
    ends: dict[RequestId, tuple[Ns, End]] = {}
    heard_ns: dict[tuple[NodeId, int], Ns] = {}  # (replica, step): its tokens arrived


class WorkerView(msgspec.Struct):
    """One replica's log."""

    chunks: dict[RequestId, list[tuple[int, int]]] = {}  # in the order of their first chunk
    preemptions: dict[RequestId, int] = {}
    received_ns: dict[RequestId, Ns] = {}  # its Submit
    planned_ns: list[Ns] = []  # turns that made a plan
    told_ns: dict[int, Ns] = {}  # step: its results were there
    heard_ns: list[Ns] = []  # by step, in the order of `told_ns`: the node heard of it


class Recorded(msgspec.Struct, frozen=True):
    """A run. `replicas` by id."""

    front: FrontView
    replicas: Mapping[NodeId, WorkerView]

    def fates(self) -> dict[RequestId, Fate]:
        """Return what was decided, by request, in the order of their arrival."""
        return {request: self._fate(request) for request in self.front.arrivals}

    def _fate(self, request: RequestId) -> Fate:
        front, workers = self.front, self.replicas.values()
        _, end = front.ends.get(request, (0, None))
        return Fate(
            admissions=tuple(front.admissions.get(request, ())),
            routes=tuple(front.routes.get(request, ())),
            chunks=tuple(chunk for worker in workers for chunk in worker.chunks.get(request, ())),
            preemptions=sum(worker.preemptions.get(request, 0) for worker in workers),
            output_tokens=0 if end is None else end.output_tokens,
            reason="" if end is None else str(end.reason),
        )


def front_view(turns: Iterable[Turn]) -> FrontView:
    """Read a front's log."""
    view = FrontView()
    for turn in turns:
        event = turn.event
        if isinstance(event, RequestArrived):
            view.arrivals[event.request.id] = event
        elif isinstance(event, MessageArrived) and isinstance(event.message, Tokens):
            view.heard_ns.setdefault((event.src, event.message.step), event.at_ns)
        for effect in turn.effects:
            match effect:
                case Send(dst=dst, message=Submit(request=request)):
                    view.routes.setdefault(request.id, []).append(dst)
                    view.submitted_ns[request.id] = event.at_ns
                case Deliver(request=request_id):
                    view.first_ns.setdefault(request_id, event.at_ns)
                case End():
                    view.ends[effect.request] = (event.at_ns, effect)
                case Record(entry=Decision(kind="admit", request=str(request_id), chosen=chosen)):
                    view.admissions.setdefault(RequestId(request_id), []).append(chosen)
    return view


def worker_view(turns: Iterable[Turn]) -> WorkerView:
    """Read a replica's log."""
    view = WorkerView()
    names: dict[int, RequestId] = {}
    for turn in turns:
        event = turn.event
        if isinstance(event, MessageArrived) and isinstance(event.message, Submit):
            view.received_ns[event.message.request.id] = event.at_ns
        elif isinstance(event, StepDone):
            view.told_ns[event.step] = event.timing.done_ns
            view.heard_ns.append(event.at_ns)
        for effect in turn.effects:
            if not isinstance(effect, RunStep):
                continue
            plan = effect.plan
            view.planned_ns.append(event.at_ns)
            names.update((new.seq, new.request) for new in plan.new)
            for seq in plan.preempt:
                view.preemptions[names[seq]] = view.preemptions.get(names[seq], 0) + 1
            for chunk in plan.chunks:
                view.chunks.setdefault(names[chunk.seq], []).append((chunk.start, chunk.count))
    return view


def quiet_spells(front: FrontView) -> Sequence[Ns]:
    """Return when nothing was under way any more: what is decided after it depends on nothing undecided before."""
    moves = [(arrived.at_ns, 1) for arrived in front.arrivals.values()]
    moves += [(at_ns, -1) for at_ns, _ in front.ends.values()]
    open_now, out = 0, []
    for at_ns, change in sorted(moves):
        open_now += change
        if open_now == 0:
            out.append(at_ns)
    return out
