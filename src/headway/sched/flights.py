"""What runs where, as this front dispatched it, and what of that will still decode at a time to come (A7b).

Admission that looks at the decode load of now lets in a wave while it is low and refuses the next one while it is
high: the load of a decode replica follows what was admitted by the time of a prefill. So the look is at its end.
"""

import msgspec

from headway.core.ids import NodeId, RequestId
from headway.core.reports import ReplicaReport
from headway.core.request import DiffusionRequest, Request
from headway.core.units import NS_PER_S, Ns
from headway.sched.admission.protocol import Outlook
from headway.sched.book import Tracked
from headway.sched.router.fleet_view import expected_output


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
        step_ns = _step_ns(report, len(flights) + others, report.running_kv_tokens)
        rows = [row for item in flights.values() if (row := _row(item, moment, step_ns)) is not None]
        count = len(rows) + others + moment.rows
        kv_tokens = sum(row.kv_tokens for row in rows) + moment.kv_tokens
        prompt = 0 if isinstance(request, DiffusionRequest) else request.prompt_tokens
        total, need = report.kv_blocks_total * report.block_size, prompt + expected_output(request)
        then_ns = _step_ns(report, count + 1, kv_tokens + prompt)
        return Outlook(
            step_seconds=then_ns / NS_PER_S,
            room_seconds=_room_ns(rows, kv_tokens + need - total, moment.until_ns) / NS_PER_S if total else 0.0,
            kv_usage=(kv_tokens + need) / total if total else 0.0,
            rows=round(count),
        )


def _step_ns(report: ReplicaReport, rows: float, kv_tokens: float) -> float:
    """A decode step of another batch: the measured one, prompts of others in it, as the belief says that it changes.

    The belief alone is a step without prompts; how much they slow it follows the load, so a correction learned under
    one load would be wrong under the next.
    """
    cost = report.step_cost
    if cost is None:
        return report.step_ns

    def believed_ns(rows: float, kv_tokens: float) -> float:
        return cost.base_ns + cost.row_ns * rows + cost.kv_ns * kv_tokens

    now_ns = believed_ns(report.running, report.running_kv_tokens)
    if not report.step_ns or now_ns <= 0:
        return believed_ns(rows, kv_tokens)
    return report.step_ns * believed_ns(rows, kv_tokens) / now_ns


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
