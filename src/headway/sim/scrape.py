"""A replica that is seen only through a scraped metrics page: rarely, late, and only what such pages hold."""

from typing import Final

import msgspec

from headway.core.effects import Effect, Send, WakeAt
from headway.core.events import Event, TimerFired
from headway.core.ids import NodeId, TimerId
from headway.core.messages import Report
from headway.core.ports import Node
from headway.core.reports import ReplicaReport
from headway.core.units import ns_from_s

SCRAPE: Final = TimerId("scrape")


class ScrapeParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The page is read every `interval_s`; what is read takes `delay_s` to be parsed and heard."""

    interval_s: float = 2.0
    delay_s: float = 0.2


def as_scraped(report: ReplicaReport) -> ReplicaReport:
    """Keep what vLLM and SGLang publish: waiting, running, KV usage. How many requests were sent is the gateway's."""
    return ReplicaReport(
        replica=report.replica,
        incarnation=report.incarnation,
        number=report.number,
        at_ns=report.at_ns,
        role=report.role,
        model=report.model,
        waiting=report.waiting,
        running=report.running,
        waiting_prefill_tokens=0,
        running_kv_tokens=(report.kv_blocks_total - report.kv_blocks_free) * report.block_size,
        kv_blocks_free=report.kv_blocks_free,
        kv_blocks_total=report.kv_blocks_total,
        submits_seen=report.submits_seen,
        source="scrape",
        block_size=report.block_size,
    )


class ScrapedNode:
    """Wraps a node: keeps its last report, and sends what a scrape of it would show."""

    def __init__(self, node: Node, params: ScrapeParams, offset: float) -> None:
        """`offset`: share of the interval by which this replica's page is read later than the first one's."""
        self._node = node
        self._interval_ns, self._delay_ns = ns_from_s(params.interval_s), ns_from_s(params.delay_s)
        self._first_ns = round(self._interval_ns * offset)
        self._last: dict[NodeId, ReplicaReport] = {}
        self._read: list[Send] = []  # read, not heard yet
        self._is_started = False
        self._sent = 0

    @property
    def id(self) -> NodeId:
        """The replica's."""
        return self._node.id

    @property
    def node(self) -> Node:
        """What is scraped."""
        return self._node

    def check_invariants(self) -> None:
        """Of what is scraped."""
        self._node.check_invariants()

    def handle(self, event: Event) -> list[Effect]:
        """Let the node handle everything but the timer, and hold its reports back."""
        if isinstance(event, TimerFired) and event.timer.startswith(SCRAPE):
            return self._scrape(event) if event.timer == SCRAPE else self._hear()
        effects: list[Effect] = []
        for effect in self._node.handle(event):
            if isinstance(effect, Send) and isinstance(effect.message, Report):
                self._last[effect.dst] = effect.message.report
            else:
                effects.append(effect)
        if not self._is_started:
            self._is_started = True
            effects.append(WakeAt(event.at_ns + self._first_ns, SCRAPE))
        return effects

    def _scrape(self, event: TimerFired) -> list[Effect]:
        at_ns = event.at_ns
        self._sent += 1
        for listener, report in self._last.items():
            seen = msgspec.structs.replace(as_scraped(report), number=self._sent, at_ns=at_ns)
            self._read.append(Send(listener, Report(seen)))
        return [WakeAt(at_ns + self._delay_ns, TimerId(f"{SCRAPE}d")), WakeAt(at_ns + self._interval_ns, SCRAPE)]

    def _hear(self) -> list[Effect]:
        heard: list[Effect] = [*self._read]
        self._read.clear()
        return heard
