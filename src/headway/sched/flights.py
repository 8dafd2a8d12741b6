"""What runs where, as this front dispatched it, and what of that will still decode at a time to come (A7b).

Admission that looks at the decode load of now lets in a wave while it is low and refuses the next one while it is
high: the load of a decode replica follows what was admitted by the time of a prefill. So the look is at its end.
"""

from math import exp2
from typing import Final

import msgspec

from headway.core.ids import NodeId, RequestId
from headway.core.reports import ReplicaReport
from headway.core.request import DiffusionRequest, Request
from headway.core.units import NS_PER_S, Ns
from headway.sched.admission.protocol import Outlook
from headway.sched.book import Tracked
from headway.sched.router.fleet_view import expected_output

NEWS: Final = 0.05  # weight of a report in the pace of a replica
IDLE_HALF_NS: Final = NS_PER_S  # without work, half of what prompts slowed its steps is forgotten in this time


class Moment(msgspec.Struct, frozen=True):
    """A look ahead from `at_ns` to `until_ns`; `rows` with `kv_tokens` are in no flight yet and will begin by then."""

    at_ns: Ns
    until_ns: Ns
    rows: float = 0.0
    kv_tokens: float = 0.0


class _Row(msgspec.Struct, gc=False):
    ends_ns: float
    kv_tokens: float


class Flights:
    """Dispatched and unfinished requests by the replica that decodes them."""

    def __init__(self) -> None:
        self._at: dict[NodeId, dict[RequestId, Tracked]] = {}
        self._where: dict[RequestId, NodeId] = {}
        self._pace: dict[NodeId, tuple[float, Ns]] = {}  # measured step time over the believed one, smoothed; when last

    def heard(self, report: ReplicaReport, at_ns: Ns) -> None:
        """Learn how much longer steps take than a decode step of their batch is believed to.

        The belief is a step without prompts; how much they slow it follows the load, and swings from step to step. An
        answer sees many steps, so the pace is smoothed over more of them than a report is.
        """
        believed_ns = _believed_ns(report, report.running, report.running_kv_tokens)
        if report.running and report.step_ns and believed_ns > 0:
            ratio = report.step_ns / believed_ns
            known = self._paced(report, at_ns) if report.replica in self._pace or report.step_cost else ratio
            self._pace[report.replica] = known + NEWS * (ratio - known), at_ns

    def left(self, node: NodeId) -> None:
        """The replica is gone."""
        self._pace.pop(node, None)

    def _paced(self, report: ReplicaReport, at_ns: Ns) -> float:
        """The pace as of now. A replica that runs nothing tells nothing, and its prompts of then slow nobody now: what
        is left of them fades, or admission would refuse an idle replica for the crowd it had."""
        known, since_ns = self._pace.get(report.replica, (0.0 if report.step_cost is None else 1.0, at_ns))
        if report.step_cost is None or at_ns - since_ns <= IDLE_HALF_NS // 10:  # reports of one that works come sooner
            return known
        return 1.0 + (known - 1.0) * exp2(-(at_ns - since_ns) / IDLE_HALF_NS)

    def _step_ns(self, report: ReplicaReport, rows: float, kv_tokens: float, at_ns: Ns) -> float:
        return self._paced(report, at_ns) * _believed_ns(report, rows, kv_tokens)

    def begun(self, tracked: Tracked, node: NodeId) -> None:
        """The request goes to a replica that will decode it."""
        self.ended(tracked.request.id)
        self._where[tracked.request.id] = node
        self._at.setdefault(node, {})[tracked.request.id] = tracked

    def ended(self, request: RequestId) -> None:
        """The request is over, or waits again."""
        node = self._where.pop(request, None)
        if node is not None:
            del self._at[node][request]
            if not self._at[node]:
                del self._at[node]

    def __len__(self) -> int:
        return len(self._where)

    def foresee(self, request: Request, report: ReplicaReport, moment: Moment) -> Outlook:
        """How the replica will be when the request begins to decode there. O(requests in flight there)."""
        flights = self._at.get(report.replica, {})
        others = max(0, report.running + report.waiting - len(flights))  # of other fronts: taken to stay
        step_ns = self._step_ns(report, len(flights) + others, report.running_kv_tokens, moment.at_ns)
        rows = [row for item in flights.values() if (row := _row(item, moment, step_ns)) is not None]
        count = len(rows) + others + moment.rows
        kv_tokens = sum(row.kv_tokens for row in rows) + moment.kv_tokens
        prompt = 0 if isinstance(request, DiffusionRequest) else request.prompt_tokens
        total, need = report.kv_blocks_total * report.block_size, prompt + expected_output(request)
        then_ns = self._step_ns(report, count + 1, kv_tokens + prompt, moment.at_ns)
        return Outlook(
            step_seconds=then_ns / NS_PER_S,
            room_seconds=_room_ns(rows, kv_tokens + need - total, moment.until_ns) / NS_PER_S if total else 0.0,
            kv_usage=(kv_tokens + need) / total if total else 0.0,
            rows=round(count),
        )


def _believed_ns(report: ReplicaReport, rows: float, kv_tokens: float) -> float:
    cost = report.step_cost
    return 1.0 if cost is None else cost.base_ns + cost.row_ns * rows + cost.kv_ns * kv_tokens


def _row(tracked: Tracked, moment: Moment, step_ns: float) -> _Row | None:
    """Return what the flight holds at the moment; None when it has not begun to decode by then, or is over."""
    request = tracked.request
    if isinstance(request, DiffusionRequest):
        return None
    first_ns, expected = tracked.first_token_ns, expected_output(request)
    if first_ns is None:
        if tracked.prefill_due_ns > moment.until_ns:
            return None
        done, since_ns = 0, max(tracked.prefill_due_ns, moment.at_ns)
    else:
        done, since_ns = len(tracked.emitted), moment.at_ns
        if not done and step_ns > 0:  # relayed: nobody counts its tokens
            done = min(int((moment.at_ns - first_ns) / step_ns), expected)
    # One that is past its expected length may end any time, and decodes on at least one more step.
    ends_ns = since_ns + step_ns * max(1, expected - done)
    if ends_ns <= moment.until_ns:
        return None
    grown = (moment.until_ns - since_ns) / step_ns if step_ns > 0 else 0.0
    return _Row(ends_ns, request.prompt_tokens + done + grown)


def _room_ns(rows: list[_Row], lacking: float, until_ns: Ns) -> float:
    """Return how long after `until_ns` enough sequences have ended that `lacking` tokens are free."""
    if lacking <= 0:
        return 0.0
    for row in sorted(rows, key=lambda item: item.ends_ns):
        lacking -= row.kv_tokens
        if lacking <= 0:
            return max(0.0, row.ends_ns - until_ns)
    return 0.0  # not by what this front knows of: the replica itself refuses what can never fit
