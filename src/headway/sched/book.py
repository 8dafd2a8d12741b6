"""The requests of one front: token cursor, leases, and the evidence at their end."""

from typing import Final

import msgspec

from headway.core.effects import Deliver, End, ErrorOut
from headway.core.errors import InvariantError
from headway.core.events import RequestArrived
from headway.core.evidence import EvidenceRecord, FrontMarks, WorkerMarks, evidence_record
from headway.core.ids import LeaseId, ModelId, NodeId, RequestId, TenantId
from headway.core.ledger import Account, Ledger
from headway.core.lifecycle import Change, RequestState
from headway.core.messages import Finished, Tokens
from headway.core.request import DiffusionRequest, FinishReason, LlmRequest, Request
from headway.core.units import Ns
from headway.sched.admission.quota import Allowance
from headway.sched.chorus import Chorus
from headway.sched.foresight import Foresight
from headway.sched.tracked import Leg as Leg
from headway.sched.tracked import Tracked as Tracked

OPEN_STATES: Final = (RequestState.DISPATCHED, RequestState.STREAMING)
_CHECKPOINTS: Final = "gateway/checkpoint_bytes"  # there once pictures have made one


class Limits(msgspec.Struct, frozen=True):
    """Capacities of the front's own accounts."""

    in_flight_max: int
    stream_bytes_max: int
    stream_bytes_per_token: int


class Book:
    """All requests that this front has not yet closed, and its ledger."""

    def __init__(self, owner: str, limits: Limits, quotas: Allowance, foresight: Foresight) -> None:
        self.ledger = Ledger(owner)
        self.quotas, self.foresight = quotas, foresight
        self.requests: dict[RequestId, Tracked] = {}
        self.chorus = Chorus()
        self.stale_dropped = 0  # tokens of older epochs
        self._limits = limits
        self._in_flight = self.ledger.open("gateway/in_flight", "requests", limits.in_flight_max)
        self._stream_bytes = self.ledger.open("gateway/stream_bytes", "bytes", limits.stream_bytes_max)
        self._tenants: dict[TenantId, tuple[Account, Account]] = {}
        self._device: dict[str, tuple[int, int]] = {}  # per model, of what has ended: device us, tokens
        self._ended: dict[str, int] = {}  # per model, requests behind that

    def open(self, event: RequestArrived, device_us: int | None = None) -> tuple[Tracked, ErrorOut | None]:
        """Start a request and open its leases; an error when the front itself has no room.

        `device_us`: device time that it is believed to need; None: by its tokens, as earlier requests of its model.
        Raises InvariantError for an id that is open already.
        """
        event = self.foresight.arriving(event)
        request = event.request
        if request.id in self.requests:
            raise InvariantError(f"request {request.id} arrived twice; story: {self.requests[request.id].story}")
        tracked = Tracked(event)
        tracked.tell(event.at_ns, "arrived")
        self.requests[request.id] = tracked
        lease = LeaseId(request.id)
        for account, amount in ((self._in_flight, 1), (self._stream_bytes, self._stream_room(request))):
            if not account.reserve(lease, amount):
                return tracked, self._no_room(request, account, amount)
        reserved = tokens_reserved(request)
        spent_us, of_tokens = self._device.get(request.model, (0, 1))
        needed_us = spent_us * reserved // of_tokens if device_us is None else device_us
        error = self.quotas.take(request.id, request.tenant, reserved, needed_us, event.at_ns)
        if error is None:
            tokens_meter, device_meter = self._meters(request)
            tokens_meter.reserve(lease, reserved)
            device_meter.reserve(lease, needed_us)
            self.holds_checkpoint(tracked)
        return tracked, error

    def _stream_room(self, request: Request) -> int:
        """A relayed answer is bounded by back-pressure on its two sockets, not by the whole answer."""
        return request.max_tokens * self._limits.stream_bytes_per_token if isinstance(request, LlmRequest) else 0

    @staticmethod
    def _no_room(request: Request, account: Account, amount: int) -> ErrorOut:
        message = (
            f"request {request.id} needs {amount} {account.unit} of {account.name}, {account.free} of "
            f"{account.capacity} are free; retry later or raise the limit"
        )
        return ErrorOut(429, "queue_full", message, retry_after_ms=1000)

    def _meters(self, request: Request) -> tuple[Account, Account]:
        """The tenant's tokens and device time."""
        found = self._tenants.get(request.tenant)
        if found is None:
            name = f"tenant/{request.tenant}"
            tokens = self.ledger.open(f"{name}/tokens", "tokens", None, "meter")
            found = self._tenants[request.tenant] = tokens, self.ledger.open(f"{name}/gpu_seconds", "us", None, "meter")
        return found

    def device_seconds(self, model: ModelId) -> float:
        """Mean device seconds of the model's requests that have ended; 0 while none has."""
        spent_us, _ = self._device.get(model, (0, 0))
        return spent_us / 1e6 / self._ended[model] if model in self._ended else 0.0

    def holds_checkpoint(self, tracked: Tracked) -> None:
        """Count the newest checkpoint of a picture or video, which is kept until its request is closed."""
        amount = 0 if tracked.shown is None else tracked.shown.checkpoint_bytes
        if amount:
            lease = LeaseId(tracked.request.id)
            account = self.ledger.open(_CHECKPOINTS, "bytes", None)
            account.reserve(lease, 0)
            account.settle(lease, amount)

    def begin(self, tracked: Tracked, at_ns: Ns) -> None:
        """The first byte of a relayed answer is on its way."""
        if tracked.state is not RequestState.STREAMING:
            tracked.change(Change.TOKENS, at_ns, "the answer begins")
            self._streams_again(tracked, at_ns)
            tracked.told_ns = at_ns

    def take(self, src: NodeId, message: Tokens, at_ns: Ns) -> list[tuple[Tracked, Deliver]]:
        """Fold in the tokens of one step. Older epochs are counted and dropped; a gap raises InvariantError."""
        taken: list[tuple[Tracked, Deliver]] = []
        requests, scores, follow = self.requests, message.scores, message.follow
        rows = zip(message.requests, message.epochs, message.indices, message.tokens, strict=True)
        for place, (request, epoch, index, token) in enumerate(rows):
            tracked = requests.get(request)
            if tracked is None or tracked.is_over or tracked.owner != src or epoch < tracked.epoch:
                self.stale_dropped += 1
                continue
            emitted = tracked.told
            if index != len(emitted) or epoch != tracked.epoch:
                raise InvariantError(
                    f"request {request}: {src} sent token {index} of epoch {epoch}, the stream is at token "
                    f"{len(emitted)} of epoch {tracked.epoch}; story: {'; '.join(tracked.story)}"
                )
            if tracked.state is not RequestState.STREAMING:
                tracked.change(Change.TOKENS, at_ns, f"{src} token {index}")
                self._streams_again(tracked, at_ns)
            emitted.append(token)
            tracked.told_ns = at_ns
            score = scores[place] if scores else None
            follows = src if place in follow else None
            if follows is not None:
                self.chorus.join(src, tracked)
            taken.append((tracked, Deliver(request, index, (token,), () if score is None else (score,), follows)))
        for place, cached in message.cached:
            told = requests.get(message.requests[place])
            if told is not None and told.owner == src and message.epochs[place] == told.epoch:
                told.cached_tokens = cached
        return taken

    @staticmethod
    def _streams_again(tracked: Tracked, at_ns: Ns) -> None:
        if tracked.first_token_ns is None:
            tracked.first_token_ns = at_ns
        elif tracked.resumed_ns is not None and tracked.last_token_ns is not None:
            tracked.waited_ns += tracked.resumed_ns - tracked.last_token_ns
            tracked.recomputed_ns += at_ns - tracked.resumed_ns
            tracked.resumed_ns = None

    @staticmethod
    def require_complete(tracked: Tracked, message: Finished) -> None:
        """Raise InvariantError unless every token before this Finished was streamed."""
        if isinstance(tracked.request, LlmRequest) and message.output_tokens != len(tracked.emitted):
            raise InvariantError(
                f"request {message.request}: finished with {message.output_tokens} tokens, {len(tracked.emitted)} were "
                f"streamed; story: {'; '.join(tracked.story)}"
            )

    def end(self, tracked: Tracked, reason: FinishReason, error: ErrorOut | None, output_tokens: int) -> End:
        """Say End, once. The caller has moved the life cycle."""
        if tracked.is_over:
            raise InvariantError(f"request {tracked.request.id} ended twice; story: {'; '.join(tracked.story)}")
        tracked.part()
        tracked.is_over = True
        tracked.output_tokens = output_tokens
        self.foresight.ended(tracked.request, reason, output_tokens)
        tracked.outcome = "ok" if error is None and reason is not FinishReason.CANCELLED else str(reason)
        if error is not None and error.code is not None:
            tracked.outcome = error.code
        if tracked.transfer_to is not None:
            tracked.outcome = "transferred"
        request = tracked.request
        marks = tracked.marks if isinstance(request, DiffusionRequest) else None
        return End(request.id, reason, error, output_tokens, tracked.cached_tokens, tracked.transfer_to, marks)

    def close(self, tracked: Tracked) -> EvidenceRecord | None:
        """Settle and forget the request once End, the stream's last byte and the replica's Finished have all come."""
        closed = tracked.closed
        if not tracked.is_over or not tracked.is_worker_done or closed is None:
            return None
        request, lease, marks = tracked.request, LeaseId(tracked.request.id), _marks(tracked)
        prompt = _prompt_tokens(tracked) if tracked.dispatched_ns is not None else 0
        device_us = 0 if marks is None else marks.device_ns // 1000
        tokens_meter, device_meter = self._meters(request)
        tokens_meter.settle(lease, prompt + tracked.output_tokens)
        device_meter.settle(lease, device_us)
        self.quotas.settle(request.id, prompt + tracked.output_tokens, device_us, closed.at_ns)
        if prompt and device_us:
            spent_us, of_tokens = self._device.get(request.model, (0, 0))
            self._device[request.model] = spent_us + device_us, of_tokens + prompt + tracked.output_tokens
            self._ended[request.model] = self._ended.get(request.model, 0) + 1
        kept = self.ledger.accounts.get(_CHECKPOINTS)
        accounts = (self._in_flight, self._stream_bytes, *(() if kept is None else (kept,)))
        for account in accounts:  # a meter closes its lease when it is settled
            account.release(lease)
        del self.requests[request.id]
        arrival = tracked.arrival
        return evidence_record(
            FrontMarks(
                request=request.id,
                tenant=request.tenant,
                received_ns=arrival.received_ns,
                body_ns=arrival.body_ns,
                arrived_ns=arrival.at_ns,
                dispatched_ns=tracked.dispatched_ns,
                first_token_ns=closed.first_token_ns,
                last_token_ns=tracked.last_token_ns,
                ended_ns=closed.at_ns,
                output_tokens=tracked.output_tokens,
                input_bytes=closed.input_bytes,
                model_load_ns=tracked.model_load_ns,
                cold_start=tracked.cold_ns is not None,
                outcome=tracked.outcome,
                decisions=tuple(tracked.decisions),
                model=request.model,
                prompt_tokens=None if isinstance(request, DiffusionRequest) else _prompt_tokens(tracked),
                stored_ns=closed.stored_ns,
            ),
            marks,
        )

    def check(self) -> None:
        """Raise InvariantError unless owners, states and accounts agree."""
        self.ledger.check()
        for tracked in self.requests.values():
            is_owned = tracked.state in OPEN_STATES
            if is_owned and (tracked.owner is None or tracked.is_worker_done):
                raise InvariantError(f"request {tracked.request.id} is {tracked.state} without owner")
            if tracked.state is RequestState.QUEUED and tracked.owner is not None:
                raise InvariantError(f"request {tracked.request.id} waits but {tracked.owner} owns it")
        if self._in_flight.reserved + self._in_flight.used > len(self.requests):
            raise InvariantError(f"{self._in_flight.reserved} in flight, {len(self.requests)} open")


def tokens_reserved(request: Request) -> int:
    """What a request takes of its tenant's tokens until its answer is over."""
    return 0 if isinstance(request, DiffusionRequest) else request.max_tokens + request.prompt_tokens


def _prompt_tokens(tracked: Tracked) -> int:
    """What is metered: of a relayed request the upstream's count where it told one, else the estimate."""
    if isinstance(tracked.request, DiffusionRequest):
        return 0
    return tracked.request.prompt_tokens if tracked.prompt_told is None else tracked.prompt_told


def _marks(tracked: Tracked) -> WorkerMarks | None:
    """Return the last replica's marks. After a loss they begin too late: the front's own stamps stand in for the first
    token, and the gap is preempted and recomputed time, so that it never enters TPOT."""
    marks = tracked.marks
    if marks is None or tracked.dispatched_ns is None or not (tracked.waited_ns or tracked.recomputed_ns):
        return marks
    return msgspec.structs.replace(
        marks,
        received_ns=tracked.dispatched_ns,
        scheduled_ns=tracked.dispatched_ns,
        first_token_ns=tracked.first_token_ns,
        preempted_ns=marks.preempted_ns + marks.preempted_before_first_ns + tracked.waited_ns,
        preempted_before_first_ns=0,
        recompute_ns=marks.recompute_ns + tracked.recomputed_ns,
    )
