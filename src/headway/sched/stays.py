"""One request's stay at a replica, and the sums from which its evidence is cut (SPEC I1).

Sums over steps are kept once per node; a stay keeps their value when its row begins, so that a step costs nothing per
row beyond its token.
"""

import msgspec

from headway.core.decisions import Decision
from headway.core.evidence import WorkerMarks
from headway.core.ids import NodeId
from headway.core.plans import StepPlan, StepTiming
from headway.core.request import LlmRequest, Request
from headway.core.units import Ns
from headway.sched.beats import Row

DECISIONS_MAX = 64


class Sums(msgspec.Struct):
    """Running sums over the folded steps of one node."""

    steps: int = 0
    idle_gap_ns: Ns = 0
    host_ns: Ns = 0
    overlapped_ns: Ns = 0
    token_ns: Ns = 0  # device time per token

    def fold(self, tokens: int, timing: StepTiming) -> Ns:
        """Add a step; return the device time of each of its tokens."""
        each = (timing.done_ns - timing.started_ns) // (tokens or 1)
        self.steps += 1
        self.idle_gap_ns += timing.idle_gap_ns
        self.host_ns += timing.host_ns + timing.plan_ns
        self.overlapped_ns += timing.overlapped_ns
        self.token_ns += each
        return each


class Stay(Row):
    """A request as `epoch` at this replica."""

    def __init__(self, request: Request, epoch: int, front: NodeId, seq: int, at_ns: Ns) -> None:
        super().__init__()
        self.request, self.request_id = request, request.id
        self.epoch, self.front, self.seq = epoch, front, seq
        self.received_ns = at_ns
        self.scheduled_ns: Ns | None = None
        self.first_token_ns: Ns | None = None
        self.cached_tokens: int | None = None
        self.preemptions = 0
        self.handoff_ns: Ns = 0
        self.transfer_bytes = 0
        self.device_ns: Ns = 0
        self.lost_step = 0  # the last step in which its KV was thrown away
        self.decisions: list[Decision] = []
        self._earlier: WorkerMarks | None = None
        self._since: Sums | None = None  # sums when its row began
        self._total = Sums()
        self._out_ns: Ns | None = None  # without row since
        self._recompute_ns: Ns | None = None  # computing again since
        self._is_lost = False  # lost its KV, not only its row
        self._preempted_ns = self._preempted_before_ns = self._recomputed_ns = 0

    def inherit(self, marks: WorkerMarks) -> None:
        """Go on from a stay at another replica."""
        self._earlier = marks
        self.received_ns, self.scheduled_ns = marks.received_ns, marks.scheduled_ns
        self.first_token_ns, self.told_ns = marks.first_token_ns, marks.last_token_ns
        self.cached_tokens = marks.cached_tokens

    def decide(self, decision: Decision) -> None:
        """Keep a decision about this request, up to a limit."""
        if len(self.decisions) < DECISIONS_MAX:
            self.decisions.append(decision)

    def enter(self, sums: Sums, planned_ns: Ns) -> None:
        """It has a row from the next folded step on."""
        if self._since is None:
            self._since = msgspec.structs.replace(sums)
        if self._out_ns is not None:
            gone = planned_ns - self._out_ns
            if self.first_token_ns is None:
                self._preempted_before_ns += gone
            else:
                self._preempted_ns += gone
            self._out_ns = None
            if self._is_lost:
                self._recompute_ns, self._is_lost = planned_ns, False

    def exit(self, sums: Sums, planned_ns: Ns | None = None, *, is_lost: bool = False) -> None:
        """It has no row from the next folded step on; with `planned_ns` it was preempted then."""
        since = self._since
        if since is not None:
            total = self._total
            total.steps += sums.steps - since.steps
            total.idle_gap_ns += sums.idle_gap_ns - since.idle_gap_ns
            total.host_ns += sums.host_ns - since.host_ns
            total.overlapped_ns += sums.overlapped_ns - since.overlapped_ns
            self.device_ns += sums.token_ns - since.token_ns
            self._since = None
        if planned_ns is None:
            return
        if self._out_ns is None:
            self._out_ns = planned_ns
        if is_lost and not self._is_lost:
            self._is_lost = True
            self.preemptions += 1

    @property
    def is_resident(self) -> bool:
        """True when the KV of all its tokens but the last is written here."""
        return self.token_step > self.lost_step

    @property
    def resident_tokens(self) -> int:
        """Tokens whose KV is written here; 0 while it waits, prefills, or makes pictures."""
        request = self.request
        return request.prompt_tokens + len(self.outputs) if isinstance(request, LlmRequest) and self.is_resident else 0

    @property
    def outputs(self) -> list[int]:
        """Its tokens so far, those of earlier stays included."""
        return self.tokens

    def emit(self, token: int, step: int, at_ns: Ns) -> None:
        """Keep one token, sampled in `step`."""
        self.told.append(token)
        self.told_step, self.told_ns = step, at_ns
        if self.first_token_ns is None:
            self.first_token_ns = at_ns
        if self._recompute_ns is not None:
            self._recomputed_ns += at_ns - self._recompute_ns
            self._recompute_ns = None

    def marks(self, replica: NodeId, sums: Sums, at_ns: Ns) -> WorkerMarks:
        """End the row and cut the evidence, earlier stays elsewhere included."""
        self.exit(sums)
        total, earlier = self._total, self._earlier or WorkerMarks(replica, self.received_ns)
        return WorkerMarks(
            replica=replica,
            received_ns=self.received_ns,
            scheduled_ns=self.scheduled_ns,
            first_token_ns=self.first_token_ns,
            last_token_ns=self.last_token_ns,
            finished_ns=at_ns,
            preempted_ns=earlier.preempted_ns + self._preempted_ns,
            preempted_before_first_ns=earlier.preempted_before_first_ns + self._preempted_before_ns,
            preemptions=earlier.preemptions + self.preemptions,
            cached_tokens=self.cached_tokens or 0,
            steps=earlier.steps + total.steps,
            idle_gap_ns=earlier.idle_gap_ns + total.idle_gap_ns,
            host_ns=earlier.host_ns + total.host_ns,
            overlapped_ns=earlier.overlapped_ns + total.overlapped_ns,
            recompute_ns=earlier.recompute_ns + self._recomputed_ns,
            handoff_ns=earlier.handoff_ns + self.handoff_ns,
            transfer_bytes=earlier.transfer_bytes + self.transfer_bytes,
            device_ns=earlier.device_ns + self.device_ns,
            decisions=earlier.decisions + tuple(self.decisions),
        )


def fold_rows(stays: dict[int, Stay], plan: StepPlan, planned_ns: Ns, sums: Sums) -> None:
    """Who lost and who got a row in this step. Call it before the step is added to the sums."""
    for seq in plan.preempt:
        if (stay := stays.get(seq)) is not None:
            stay.exit(sums, planned_ns, is_lost=True)
    for seq in plan.pause:
        if (stay := stays.get(seq)) is not None:
            stay.exit(sums, planned_ns)
    for join in plan.join:
        if (stay := stays.get(join.seq)) is not None:
            stay.enter(sums, planned_ns)
    for chunk in plan.chunks:
        if (stay := stays.get(chunk.seq)) is not None:
            stay.enter(sums, planned_ns)
            if stay.cached_tokens is None:
                stay.cached_tokens = chunk.start


def fold_chunks(stays: dict[int, Stay], plan: StepPlan, each_ns: Ns) -> None:
    """Charge prefill tokens; a row alone counts as one token."""
    for chunk in plan.chunks:
        if (stay := stays.get(chunk.seq)) is not None:
            stay.device_ns += each_ns * (chunk.count - 1)
