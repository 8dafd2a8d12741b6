"""One upstream as a node: it plays the WorkerNode's part towards the front, and an upstream server does the work.

It decides nothing: a Submit becomes a call, what the call tells becomes a message, and reports carry what was scraped
or counted, with its age.
"""

import asyncio
import logging
from typing import Final

from headway.adapters.gateway.relay.ports import Pool, Usage
from headway.adapters.upstream.load import UpstreamLoad
from headway.adapters.upstream.settings import UpstreamSettings
from headway.core.ids import NodeId, RequestId
from headway.core.messages import (
    Begun,
    Cancel,
    Drain,
    Finished,
    Held,
    Holding,
    Message,
    Probed,
    Refused,
    Report,
    Submit,
    Undrain,
    WhatDoYouHold,
)
from headway.core.reports import ReplicaReport
from headway.core.request import FinishReason, TextRequest
from headway.core.units import Ns
from headway.live.model_names import Offer
from headway.live.upstream_call import NodeCall, target_of
from headway.live.upstream_ports import Surroundings
from headway.live.wire import Envelope, Frame

log = logging.getLogger(__name__)

REPORT_S: Final = 0.02


class UpstreamNode:
    """Single-threaded; `incarnation` 0: the others do not know it."""

    def __init__(self, node: NodeId, settings: UpstreamSettings, pool: Pool, around: Surroundings) -> None:
        self.id, self.settings = node, settings
        self.incarnation = 0
        self.load = UpstreamLoad()
        self.is_draining = False  # it leaves for good
        self.is_drained = False  # an operator asked
        self.offer = Offer({})
        self._pool, self._around = pool, around
        self._calls: dict[tuple[RequestId, int], NodeCall] = {}
        self.lives = 0  # incarnations so far, of others of its name too
        self._report_number = 0
        self._reported_at = 0.0
        self._report_timer: asyncio.TimerHandle | None = None
        self._adapters_used: dict[str, None] = {}  # the last one is at the end
        self._wants_new_life: str | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Calls that run."""
        return len(self._calls)

    async def idle(self) -> None:
        """Wait until no call runs."""
        await self._idle.wait()

    # Life

    def appear(self) -> None:
        """It is there: tell everybody, with a first report."""
        if self.incarnation or self.is_draining:
            return
        self.lives += 1
        self.incarnation = self.lives
        self._around.hub.join(self.id, self.incarnation, self)
        self.report()

    def disappear(self, reason: str) -> None:
        """It is gone, with all that runs there."""
        incarnation, self.incarnation = self.incarnation, 0
        for call in list(self._calls.values()):
            call.cancel()
        self._calls.clear()
        self._idle.set()
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None
        if incarnation:
            self._around.hub.leave(self.id, incarnation, reason)

    def restarted(self, reason: str) -> None:
        """Another process answers at its address: nothing that it had cached is there. What runs there now is left in
        peace: the calls of the old process have failed by themselves."""
        self._wants_new_life = reason
        self._renew()

    def _renew(self) -> None:
        if self._wants_new_life is not None and not self._calls and self.incarnation:
            reason, self._wants_new_life = self._wants_new_life, None
            log.warning("%s: %s", self.id, reason, extra={"replica": self.id})
            self.disappear(reason)
            self.load = UpstreamLoad()  # a front numbers its Submits anew for each incarnation
            self.appear()

    def drain(self) -> None:
        """Take nothing new."""
        self.is_draining = True
        self.report()

    def close(self, reason: str) -> None:
        """For good."""
        self.disappear(reason)
        self._around.forget(self.id)
        self._pool.close()

    # From the watcher

    def offers(self, offer: Offer) -> None:
        """It serves this now."""
        if offer != self.offer:
            self.offer = offer
            self.report()

    def probed(self, ok: bool, reason: str) -> None:
        """A health check ended."""
        if self.incarnation:
            self._tell(Probed(ok, reason))

    # From the hub

    def send(self, frame: Frame) -> None:
        """A frame for this node; news of other replicas are nothing to it."""
        if not isinstance(frame, Envelope):
            return
        match frame.message:
            case Submit() as submit:
                self._submit(submit)
            case Cancel() as cancel:
                call = self._calls.get((cancel.request, cancel.epoch))
                if call is not None:
                    call.cancel()
                    call.finished(cancel.reason, health="neutral")
            case WhatDoYouHold(number):
                held = tuple(Held(request, epoch, 0) for request, epoch in self._calls)
                self._tell(Holding(number, held))
            case Drain() | Undrain():
                self.is_drained = isinstance(frame.message, Drain)
                self.report()
            case _:
                pass  # hand-offs, migration and cache orders are for engines of ours

    def _submit(self, submit: Submit) -> None:
        request, epoch = submit.request, submit.epoch
        self.load.number = max(self.load.number, submit.number)
        if not isinstance(request, TextRequest):
            message = f"{self.id} takes text only, request {request.id} is a {type(request).__name__}"
            self._tell(Refused(request.id, epoch, "unservable", message))
            return
        own_name = self.offer.own_name(request.model, request.lora)
        if self.is_drained or self.is_draining or own_name is None:
            self._tell(Refused(request.id, epoch, "draining", f"{self.id} serves {request.model} no more"))
            return
        if len(self._calls) >= self.settings.connection.connections_max:
            message = f"{self.id} has upstreams.connection.connections_max = {len(self._calls)} requests"
            self._tell(Refused(request.id, epoch, "full", message))
            return
        exchange, call = self._around.exchange(request.id), NodeCall(self, request, epoch, self._around.now_ns())
        self._calls[request.id, epoch] = call
        self._idle.clear()
        self.load.submitted(request.id, submit.number)
        if exchange is None:  # its client has left meanwhile
            call.finished(FinishReason.CANCELLED, health="neutral")
            return
        if request.lora is not None:
            self._adapters_used.pop(request.lora, None)
            self._adapters_used[request.lora] = None
        call.upstream = self._pool.start(
            exchange, target_of(exchange.body, request, own_name, self._around.is_renamed), call
        )
        self.changed()

    # Towards the front

    def _tell(self, message: Message) -> None:
        self._around.hub.receive(self.id, Envelope(self.id, self._around.front, message))

    def over(self, request: RequestId, epoch: int, message: Finished | Refused, *, is_answered: bool) -> None:
        """A call has ended."""
        del self._calls[request, epoch]
        if not self._calls:
            self._idle.set()
        self.load.ended(request, is_answered=is_answered)
        self._tell(message)
        self._renew()
        self.changed()

    def begun(self, request: RequestId, epoch: int) -> None:
        """The answer's head is on its way."""
        self._tell(Begun(request, epoch))

    def answered(self, request: TextRequest, usage: Usage) -> None:
        """The whole answer is there."""
        self._around.answered(request, usage)

    def now_ns(self) -> Ns:
        """The run's clock."""
        return self._around.now_ns()

    def changed(self) -> None:
        """Report soon: on change, and not too often."""
        if self._report_timer is None and self.incarnation:
            loop = asyncio.get_running_loop()
            wait_s = max(0.0, self._reported_at + REPORT_S - loop.time())
            self._report_timer = loop.call_later(wait_s, self.report)

    def report(self) -> None:
        """Report now."""
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None
        if self.incarnation:
            self._reported_at = asyncio.get_running_loop().time()
            self._report_number += 1
            self._tell(Report(self._state()))

    def _state(self) -> ReplicaReport:
        now_ns, scraped = self._around.now_ns(), self.load.scraped
        figures = self.load.figures(now_ns)
        if not figures.is_scraped:
            scraped = None
        names = (*self.offer.models, *self.offer.adapters)
        unbegun = sum(c.request.prompt_tokens for c in self._calls.values() if c.request.is_stream and not c.has_begun)
        total = 0 if scraped is None else scraped.kv_blocks_total or 0
        usage = None if scraped is None else scraped.kv_usage
        size = 0 if scraped is None else scraped.block_size or 0
        is_known = bool(total) and usage is not None
        return ReplicaReport(
            replica=self.id,
            incarnation=self.incarnation,
            number=self._report_number,
            at_ns=figures.at_ns,
            role="upstream",
            model=names[0] if names else "",
            waiting=figures.waiting,
            running=figures.running,
            waiting_prefill_tokens=unbegun,
            running_kv_tokens=round((usage or 0.0) * total * size) if is_known else self._own_tokens(),
            kv_blocks_free=round((1.0 - (usage or 0.0)) * total) if is_known else 0,
            kv_blocks_total=total if is_known else 0,
            submits_seen=self.load.number,
            draining=self.is_drained or self.is_draining,
            counters=self._counters(),
            models=names[1:],
            source="scrape" if figures.is_scraped else "counted",
            block_size=size,
            adapters=self._adapters(),
            adapters_max=0 if scraped is None else scraped.adapters_max or 0,
            host=self.settings.host,
        )

    def _own_tokens(self) -> int:
        return sum(call.request.prompt_tokens for call in self._calls.values())

    def _counters(self) -> tuple[tuple[str, int], ...]:
        scraped = self.load.scraped
        if scraped is None:
            return ()
        told = (("prefix_hit_tokens", scraped.prefix_hit_tokens), ("prefix_query_tokens", scraped.prefix_query_tokens))
        return tuple((name, value) for name, value in told if value is not None)

    def _adapters(self) -> tuple[str, ...]:
        """Adapters that are loaded: those that run, and the last ones that we used, as many as fit."""
        scraped = self.load.scraped
        own_names = {adapter.own_name: name for name, adapter in self.offer.adapters.items()}
        running = () if scraped is None or scraped.adapters is None else scraped.adapters
        loaded = dict.fromkeys(own_names[name] for name in running if name in own_names)
        fit = None if scraped is None else scraped.adapters_max
        for name in reversed(self._adapters_used):
            if fit is None or len(loaded) < fit:
                loaded[name] = None
        return tuple(loaded)
