"""What a diffusion replica computes next: the order of its queue, homogeneous batches, a few denoise steps per plan. A
batch is formed when the one before is over or gives way; it starts and ends together (SPEC F4). Who begins next is the
order policy's choice, who joins is decided by equal keys and by the predicted gain."""

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from headway.core.artifacts import StageTimes
from headway.core.decisions import ALTERNATIVES_MAX, Decision
from headway.core.errors import InvariantError
from headway.core.plans import DenoisePlan, DenoiseRow
from headway.core.reports import DenoiseCoefficients
from headway.core.request import DiffusionRequest
from headway.core.units import Ns
from headway.cost.diffusion_belief import DenoiseCost
from headway.sched.diffusion.adapters import Merged
from headway.sched.diffusion.batches import Batches, formed
from headway.sched.diffusion.holdings import Holdings
from headway.sched.diffusion.limits import Pixels, check_request
from headway.sched.diffusion.params import DiffusionParams, check, order_policy, patience_ns
from headway.sched.diffusion.preemption import Preempter
from headway.sched.diffusion.preparing import Preparing
from headway.sched.diffusion.protocols import Item, TurnPolicy, Used, Waits, batch_key
from headway.sched.diffusion.queue import WaitingLine, check_queue
from headway.sched.diffusion.warmth import Warmth


class DiffusionMachine:
    """One plan is open at a time, one batch runs at a time. `belief`: None where nobody knows what steps take."""

    def __init__(
        self,
        params: DiffusionParams,
        belief: DenoiseCost | None = None,
        holdings: Holdings | None = None,
        warmth: Warmth | None = None,
    ) -> None:
        check(params, belief)
        self.params, self._belief = params, belief
        self.holdings, self.warmth = holdings or Holdings(), warmth or Warmth()
        self._pixels: Pixels = (params.pixels_min, params.pixels_max)
        order = order_policy(params, belief)
        self._line, self._batches = WaitingLine(order), Batches(params, belief, self.holdings, self.warmth)
        self.preparing = Preparing(params, belief, self._batches, order, self.warmth, self.holdings)
        self._turns = order if isinstance(order, TurnPolicy) else None
        self._preempter = Preempter(params.preempt, self._batches, belief) if params.preempt and belief else None
        self._is_saving = False  # the running batch is to make room, once it is saved
        self._interrupted: list[int] = []  # since they were last asked for
        self._preemptions = self._last_seq = self._step = 0
        self._items: dict[int, Item] = {}
        self._batch: list[Item] = []
        self._open: DenoisePlan | None = None
        self._leave: list[int] = []
        self._decisions: list[Decision] = []
        self._merged = Merged(merges=belief is not None and belief.merges)

    def add(self, request: DiffusionRequest) -> int:
        """Queue a request, from its beginning or its checkpoint. Raises RequestError for what never fits."""
        check_request(request, self.pixels)
        self.holdings.check(request)
        self.warmth.check(request)
        self._last_seq += 1
        work_ns = 0 if self._belief is None else self._belief.left_ns(request)
        item = Item(self._last_seq, request, batch_key(request), work_ns, request.begun)
        if self._turns is not None:
            self._turns.observe(Waits(item, frozenset(self._turns.party(held) for held in self._items.values())))
        self._items[item.seq] = item
        if request.checkpoint:
            self.holdings.keeps(item, request.checkpoint)
        if not self.preparing.takes(item):
            self._line.add(item)
            item.slices += self.preparing.is_open
        return item.seq

    def stop(self, seq: int) -> None:
        """Forget a request; its open step ends without it."""
        item = self._items.get(seq)
        self.over(seq)
        if item is not None and item.is_known:
            self._leave.append(seq)

    def save_next(self, seq: int) -> None:
        """Save it with its next steps, which nobody interrupts."""
        self._items[seq].is_leaving = True

    def runs(self, seq: int) -> bool:
        """It is in the batch that runs."""
        return any(item.seq == seq for item in self._batch)

    def over(self, seq: int) -> None:
        """Forget a request that the engine has forgotten: its pictures are made, or it failed there."""
        item = self._items.pop(seq, None)
        if item is not None:
            self.holdings.over(item)
            if not self._line.remove(item) and not self.preparing.remove(item):
                self._batch.remove(item)

    def plan(self, at_ns: Ns = 0) -> DenoisePlan | None:
        """Plan the next denoise steps, or a slice of a preparation; None when one is open or nobody waits."""
        self._decisions += self.preparing.take_decisions(at_ns)
        if self._open is not None:
            return None
        for item in self.preparing.now_warm():
            self._line.add(item)
        plan = self.preparing.slice(self._items.values(), self._batch, self._step)
        if plan is None and not self._batch and not len(self._line):
            return None
        self._open, self._leave = replace(plan or self._next(at_ns), leave=tuple(self._leave)), []
        self._step += 1
        return self._open

    def _next(self, at_ns: Ns) -> DenoisePlan:
        """Steps of requests: of the batch that runs, or of the next one."""
        self._is_saving = False
        is_leaving = any(item.is_leaving for item in self._batch)
        if self._batch and self._preempter is not None and len(self._line) and not is_leaving:
            self._give_way(self._preempter, at_ns)
        if not self._batch:
            self._form(at_ns)
        batch = self._batch
        count = min(self.params.steps_per_plan, batch[0].request.steps - batch[0].done)
        plan = replace(
            self._batches.plan(batch, count, self._step, is_saving=self._is_saving), merges=self._merged.take()
        )
        for item in batch:
            self.holdings.enters(item)
            item.is_known = True
        self.holdings.runs(plan.step, batch)
        return plan

    def _give_way(self, preempter: Preempter, at_ns: Ns) -> None:
        """Interrupt the batch for what is more urgent; rows that cannot stay in the engine are saved first."""
        batch, belief = self._batch, self._belief
        for item in batch:
            item.work_ns = 0 if belief is None else belief.left_ns(item.request, item.done)
        resident = sum(item.is_known for item in self._items.values()) - len(batch)
        switch = preempter.switch(batch, self._line, at_ns, resident)
        if switch is None:
            return
        if not switch.stays:
            if not all(item.is_saved for item in batch):
                self._is_saving = True
                return
            for item in batch:
                self._to_host(item)
        self._decisions += switch.decisions(batch, at_ns)
        for item in batch:
            item.preemptions += 1
            self._line.add(item)
            self._interrupted.append(item.seq)
        self._preemptions += len(batch)
        self._batch = []

    def _to_host(self, item: Item) -> None:
        """Its state is here, and not in the engine any more."""
        assert item.saved is not None  # it was asked for
        done, body = item.saved
        item.request, item.saved = replace(item.request, begun=done, checkpoint=body), None
        self.holdings.leaves(item)
        item.is_known = False
        self._leave.append(item.seq)

    def _form(self, at_ns: Ns) -> None:
        """Begin the next batch: the best of the queue that has room, and those like it that pay."""
        ranked = self._line.first(ALTERNATIVES_MAX)
        if not self._batches.has_room(ranked[0][1]):
            self._leave += self.preparing.make_way()
        head = self._batches.head(ranked[0][1], self._line, self._items.values())
        self._batch = self._batches.of(head, self._line)
        for item in self._batch:
            self._line.remove(item)
        self._merged.want(head.request.loras)
        if len(ranked) > 1:
            self._decisions.append(formed(self.params.order.type, ranked, self._batch, at_ns))

    def done(
        self,
        step: int,
        took_ns: Ns | None = None,
        failed: Collection[int] = (),
        saved: Mapping[int, bytes] | None = None,
        stages: StageTimes | None = None,
    ) -> list[DenoiseRow]:
        """Fold in a plan; return the rows that are still wanted. Complete and failed ones are over.

        `took_ns` teaches the belief, unless a row failed. `saved`: checkpoints that came.
        """
        plan, self._open = self._open, None
        if plan is None or plan.step != step:
            raise InvariantError(f"denoise step {step} is done, open is {plan.step if plan else 'none'}")
        self.holdings.ran(step)
        if self.preparing.runs(step):
            self.preparing.done(took_ns, failed)
            return []
        if self._belief is not None and took_ns is not None and not failed:
            self._belief.observe(plan, took_ns, stages)
        if not failed:
            self._batches.ran(plan)
        gone = {row.seq for row in plan.rows if row.start + row.count == row.total or row.seq in failed}
        self._leave = [seq for seq in self._leave if seq not in gone]  # the engine has forgotten them by itself
        for seq in failed:
            self.over(seq)
        wanted = [row for row in plan.rows if row.seq in self._items]
        for row in wanted:
            item = self._items[row.seq]
            item.done += row.count
            if self._is_saving and saved and row.seq in saved:
                item.saved = item.done, saved[row.seq]
                self.holdings.keeps(item, saved[row.seq])
            if self._turns is not None and took_ns is not None:
                self._turns.observe(Used(item, took_ns // len(plan.rows)))
            if row.start + row.count == row.total:
                self.over(row.seq)
        return wanted

    def fail(self, step: int) -> list[int]:
        """The plan failed, and with it the engine lost all that it held: those requests are over here."""
        plan, self._open = self._open, None
        if plan is None or plan.step != step:
            raise InvariantError(f"denoise step {step} failed, open is {plan.step if plan else 'none'}")
        self.holdings.ran(step)
        lost = [*self.preparing.fail(), *(seq for seq, item in self._items.items() if item.is_known)]
        for seq in lost:
            self.over(seq)
        self._leave, self._is_saving = [], False
        self._merged.lost()
        return lost

    def patience_ns(self, believed_ns: Ns | None = None) -> Ns | None:
        """After how long a preparation believed to take so long, or the open plan, is stuck; None: nobody can tell."""
        is_cold = self._open is None or self._open.is_cold
        if believed_ns is None and self._belief is not None and self._open is not None:
            believed_ns = self._belief.plan_ns(self._open)
        return patience_ns(self.params.watchdog, believed_ns, is_cold=is_cold)

    def take_pixels(self, least: int, most: int | None) -> None:
        """Take requests of so many pixels from now on (SPEC F5); those that are here stay."""
        self._pixels = least, most

    @property
    def open_rows(self) -> int:
        """Rows of the plan that runs, those that nobody wants any more included."""
        return 0 if self._open is None else len(self._open.rows)

    def take_decisions(self) -> list[Decision]:
        """Return what was decided since the last call."""
        out, self._decisions = self._decisions, []
        return out

    def take_interrupted(self) -> list[int]:
        """Return who was interrupted since the last call."""
        out, self._interrupted = self._interrupted, []
        return out

    @property
    def denoise_cost(self) -> DenoiseCoefficients | None:
        """What is believed of its work."""
        return None if self._belief is None else self._belief.coefficients

    @property
    def queued_work_ns(self) -> Ns:
        """Believed time until all that it holds is done, one request after the other; 0 without a belief."""
        return self._line.work_ns + self.preparing.work_ns + self._batches.left_ns(self._batch)

    @property
    def pixels(self) -> Pixels:
        """Fewest and most pixels of a request, all frames together, that it takes; None: any."""
        return self._pixels

    @property
    def has_open(self) -> bool:
        """A plan runs."""
        return self._open is not None

    @property
    def waiting(self) -> int:
        """Requests that are in no batch yet."""
        return len(self._line) + len(self.preparing.line)

    @property
    def running(self) -> int:
        """Requests of the batch that runs."""
        return len(self._batch)

    @property
    def steps(self) -> int:
        """Plans made so far."""
        return self._step

    @property
    def preemptions(self) -> int:
        """Rows interrupted so far."""
        return self._preemptions

    def check_invariants(self) -> None:
        """Raise InvariantError when it is wrong about itself."""
        check_queue(self._items, (self._line, self.preparing.line), self._batch)
        self.preparing.check()
        self.holdings.check_invariants(is_idle=not (self._items or self._open or self.preparing.is_busy))
