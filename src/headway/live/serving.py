"""`Serving` (adapters/gateway/ports) around one FrontNode: requests in, streams out, and what operators read."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from headway.adapters.gateway.ports import (
    Directory,
    Estimate,
    Foresee,
    ModelCard,
    OwnModels,
    RecordSink,
    Starting,
    Stats,
    TokenStream,
    TraceShape,
)
from headway.core.decisions import Explanation
from headway.core.events import ClientGone, Event, RequestArrived, StreamClosed, TextStopped
from headway.core.evidence import EvidenceRecord
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.ledger import AccountView, Ledger
from headway.core.messages import Message, ResetPrefixCache
from headway.core.reports import AdmissionFigures, PoolFigures, PrefixFigures, RateLimits, ShapeMoveFigures
from headway.core.request import DenoiseShape, LlmRequest, Request
from headway.core.units import Ns, ms_from_ns, ns_from_s
from headway.live.board import Board
from headway.live.clock import Clock
from headway.live.estimates import estimate, foresee
from headway.live.fronts import FrontsView
from headway.live.records import Records
from headway.live.replica_desk import ReplicaDesk
from headway.live.stores import TelemetrySettings, Timeline, write_lines, write_steps, write_trace
from headway.live.streams import StreamEdge


class FrontView(Protocol):
    """What is read of the FrontNode beside its effects."""

    @property
    def id(self) -> NodeId: ...

    @property
    def ledger(self) -> Ledger: ...

    def explain(self, request: Request, at_ns: Ns) -> Explanation: ...

    def prefix_figures(self) -> Sequence[PrefixFigures]: ...

    def recovery_figures(self) -> Sequence[tuple[str, int]]: ...

    def pool_figures(self) -> Sequence[PoolFigures]: ...


class Wiring(msgspec.Struct, frozen=True):
    """How a serving reaches its front and the replicas."""

    front: FrontView
    feed: Callable[[Callable[[Ns], Event]], None]
    send: Callable[[NodeId, NodeId, Message], None]
    waiting: Callable[[], int]  # in the front's queue
    in_flight: Callable[[], int]  # that the front has not closed
    rate_limits: Callable[[TenantId, Ns], RateLimits]
    desk: ReplicaDesk
    predictions: Callable[[], Sequence[AdmissionFigures]] = tuple  # how admission's have held
    shape_moves: Callable[[], Sequence[ShapeMoveFigures]] = tuple  # of replicas between shape pools


def _unattached(request: Request) -> Explanation:
    raise RuntimeError(f"request {request.id} is explained before the serving is attached to its front")


class LiveServing:
    """One gateway's view of the system. Called from the event loop only."""

    def __init__(self, clock: Clock, board: Board, timeline: Timeline, settings: TelemetrySettings) -> None:
        """Raises ConfigError for sinks of evidence that cannot work."""
        self._clock, self._board, self._timeline = clock, board, timeline
        self.records = Records(clock, timeline, settings)
        self._resets = 0
        self._cards: tuple[ModelCard, ...] = ()
        self._wiring: Wiring | None = None
        self.rate_limits: Callable[[TenantId], RateLimits] = lambda _: RateLimits()  # what is left of a quota
        self.directory: Directory = OwnModels()  # what relays knows more names
        self.drain: Callable[[NodeId, bool], None] = lambda _replica, _is_draining: None  # nothing is there yet
        self.warm: Callable[[NodeId, tuple[DenoiseShape, ...]], None] = lambda _replica, _shapes: None
        self.able: Callable[[ModelId], int] = lambda _: 0  # replicas that may take work of a model now
        self.explain: Callable[[Request], Explanation] = _unattached
        self.foresee: Foresee = lambda request: foresee(request, board, self.explain(request))
        self.starting: Callable[[], Sequence[Starting]] = tuple  # models whose first replica is not ready yet
        self.jobs: Callable[[], Sequence[tuple[str, int]]] = tuple  # by state, where there is a job table
        self.held: Callable[[], tuple[str, ...]] = tuple  # models whose jobs are not begun
        self.webhooks: Callable[[], tuple[tuple[str, int], ...]] = tuple  # attempts, by what came of them
        self.degraded: Callable[[], Sequence[str]] = tuple  # parts of the durable side that are away
        self.fronts: Callable[[], FrontsView] = FrontsView  # of further processes; there are none
        self.edge = StreamEdge(lambda decision: self.records.decided("front", decision), self.records.ended)

    def attach(self, wiring: Wiring, cards: Sequence[ModelCard]) -> None:
        """The front is there, with the models that are loaded so far."""
        self._wiring, self._cards = wiring, tuple(cards)
        self.drain, self.warm = wiring.desk.drain, wiring.desk.warm
        self.able = lambda model: wiring.desk.able(self._board, model, self.now_ns())
        self.explain = lambda request: wiring.front.explain(request, self.now_ns())
        self.rate_limits = lambda tenant: wiring.rate_limits(tenant, self.now_ns())

    @property
    def _wired(self) -> Wiring:
        if self._wiring is None:
            raise RuntimeError("serving is used before it is attached to its front")
        return self._wiring

    # Serving: requests

    def now_ns(self) -> Ns:
        """The run's clock."""
        return self._clock.now_ns()

    def submit(self, request: Request, received_ns: Ns, body_ns: Ns) -> TokenStream:
        """Hand over a request. A refusal comes as the stream's End."""
        stream = self.edge.open(request.id)
        if isinstance(request, LlmRequest):
            self.records.requests[request.id] = request
        self._wired.feed(lambda at_ns: RequestArrived(at_ns, "edge", request, received_ns, body_ns))
        return stream

    def cancel(self, request: RequestId, *, saves: bool = False) -> None:
        """The client left. `saves`: its checkpoint comes first, if it is a picture or video that runs."""
        self._wired.feed(lambda at_ns: ClientGone(at_ns, "edge", request, saves))

    def text_stopped(self, request: RequestId, index: int) -> None:
        """A stop string was found inside token `index`."""
        self._wired.feed(lambda at_ns: TextStopped(at_ns, "edge", request, index))

    def closed(self, request: RequestId, first_token_ns: Ns | None, input_bytes: int, *, stored_ns: Ns = 0) -> None:
        """The last byte of the answer was handed to the transport."""
        self.edge.close(request)
        self._wired.feed(lambda at_ns: StreamClosed(at_ns, "edge", request, first_token_ns, input_bytes, stored_ns))

    # Serving: views

    def models(self) -> Sequence[ModelCard]:
        """Every model of our own engines that has been ready."""
        return self._cards

    def accounts(self) -> Sequence[tuple[AccountView, float]]:
        """The front's accounts as they are, those of replicas and further processes as they last told them."""
        found = [(view, 0.0) for view in self._wired.front.ledger.views()]
        now_ns = self.now_ns()
        for known in self._board.replicas.values():
            if known.report is not None:
                age_ms = ms_from_ns(now_ns - known.report.at_ns)
                found += [(view, age_ms) for view in known.report.accounts]
        found += [(view, ms_from_ns(now_ns - at_ns)) for view, at_ns in self.fronts().accounts]
        return found

    def evidence(self, request: RequestId) -> EvidenceRecord | None:
        """The record of an ended request, while it is kept."""
        return self.records.evidence.get(request)

    def on_record(self, sink: RecordSink) -> None:
        """Call `sink` with every record from now on."""
        self.records.sinks.append(sink)

    def stats(self) -> Stats:
        """Live numbers for /metrics."""
        wired = self._wired
        own = [known.report for known in self._board.replicas.values() if known.report is not None]
        reports = (*own, *self._board.upstreams.values())
        admissions = tuple(sorted(self.records.admissions.items()))
        prefixes = tuple(wired.front.prefix_figures())
        others = self.fronts()
        recoveries = dict(others.recoveries)
        for what, count in wired.front.recovery_figures():
            recoveries[what] = recoveries.get(what, 0) + count
        return Stats(
            reports=reports,
            waiting=wired.waiting() + others.waiting,
            in_flight=wired.in_flight() + others.in_flight,
            admissions=admissions,
            exports_lost=self.records.exports.lost(),
            prefixes=prefixes,
            predictions=tuple(wired.predictions()),
            jobs=tuple(self.jobs()),
            held=self.held(),
            degraded=tuple(self.degraded()),
            webhooks=self.webhooks(),
            pools=tuple(wired.front.pool_figures()),
            shape_moves=tuple(wired.shape_moves()),
            recoveries=tuple(recoveries.items()),
            replicas=wired.desk.replicas(self._board, self.now_ns()),
        )

    def ready(self) -> tuple[bool, str]:
        """Whether every model has a replica."""
        for model in dict.fromkeys(known.model for known in self._board.replicas.values()):
            if not self._board.serving(model):
                return False, f"no replica of {model} is ready: {self._board.why_not(model, self.now_ns())}"
        return self.directory.ready()

    async def reset_prefix_cache(self) -> bool:
        """Forget every unreferenced cached block; False when no replica is there.

        Messages are FIFO per pair, so every request submitted from now on finds the caches empty.
        """
        wired = self._wired
        self._resets += 1
        present = [node for node, known in self._board.replicas.items() if known.incarnation]
        for node in present:
            wired.send(wired.front.id, node, ResetPrefixCache(self._resets))
        return bool(present)

    def estimate(self, request: LlmRequest) -> Estimate:
        """Predict one sequence on the replicas as they are now."""
        return estimate(request, self._board, self.explain(request))

    async def trace(self, seconds: float, shape: TraceShape) -> bytes:
        """A Chrome/Perfetto file or JSON lines of the last `seconds`, written in a thread: streams go on meanwhile."""
        since_ns = self.now_ns() - ns_from_s(seconds)
        packed = self.records.evidence.packed()
        if shape == "jsonl":
            return await asyncio.to_thread(write_lines, packed, since_ns)
        seen = self._timeline.since(since_ns)
        if shape == "steps":
            return await asyncio.to_thread(write_steps, seen)
        return await asyncio.to_thread(write_trace, seen, packed, since_ns)
