"""What a diffusion replica computes next: the order of its queue, homogeneous batches, a few denoise steps per plan.

A batch is formed when the one before is over; it starts and ends together (SPEC F4). Who begins next is the order
policy's choice, who joins is decided by equal keys and by the predicted gain.
"""

from collections.abc import Collection

from msgspec.structs import replace

from headway.core.decisions import ALTERNATIVES_MAX, Alternative, Decision
from headway.core.errors import InvariantError, RequestError
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.reports import DenoiseCoefficients
from headway.core.request import DiffusionRequest, LoraUse
from headway.core.units import NS_PER_S, Ns, s_from_ns
from headway.cost.diffusion_belief import DenoiseCost
from headway.sched.diffusion.params import DiffusionParams, check, order_policy
from headway.sched.diffusion.protocols import Item, batch_key
from headway.sched.diffusion.queue import WaitingLine


class DiffusionMachine:
    """One plan is open at a time, one batch runs at a time. `belief`: None where nobody knows what steps take."""

    def __init__(self, params: DiffusionParams, belief: DenoiseCost | None = None) -> None:
        check(params, belief)
        self._params, self._belief = params, belief
        self._line = WaitingLine(order_policy(params, belief))
        self._caps = {(cap.height, cap.width, cap.frames): cap.batch_max for cap in params.caps}
        self._items: dict[int, Item] = {}
        self._batch: list[Item] = []
        self._last_seq = 0
        self._step = 0
        self._open: DenoisePlan | None = None
        self._leave: list[int] = []
        self._decisions: list[Decision] = []
        self._merged: tuple[LoraUse, ...] = ()  # the adapters that are in the weights
        self._merges = 0  # rewrites that the next plan begins with

    def add(self, request: DiffusionRequest) -> int:
        """Queue a request, from its beginning or its checkpoint. Raises RequestError for what never fits."""
        params, pixels = self._params, request.shape.pixels
        most = params.pixels_max
        if pixels < params.pixels_min or (most is not None and pixels > most) or request.steps < 1 or request.n < 1:
            frames = f" and {request.frames} frames" if request.frames > 1 else ""
            raise RequestError(
                f"request {request.id} wants {request.steps} steps at {request.height}x{request.width}{frames}, "
                f"{request.n} times; served are at least 1 step, 1 picture and {params.pixels_min} pixels and at most "
                f"{'any number of' if most is None else most} pixels",
                code="unservable",
            )
        if not 0 <= request.begun < request.steps:
            raise RequestError(
                f"request {request.id} has begun {request.begun} of {request.steps} steps; the last one ends with its "
                f"pictures, so that begun is at most {request.steps - 1}",
                code="unservable",
            )
        self._last_seq += 1
        work_ns = 0 if self._belief is None else self._belief.left_ns(request)
        item = Item(self._last_seq, request, batch_key(request), work_ns, request.begun)
        self._items[item.seq] = item
        self._line.add(item)
        return item.seq

    def stop(self, seq: int) -> None:
        """Forget a request; its open step ends without it."""
        item = self._items.get(seq)
        if item is None:
            return
        self.over(seq)
        if item.is_known:
            self._leave.append(seq)

    def over(self, seq: int) -> None:
        """Forget a request that the engine has forgotten: its pictures are made, or it failed there."""
        item = self._items.pop(seq, None)
        if item is not None and not self._line.remove(item):
            self._batch.remove(item)

    def plan(self, at_ns: Ns = 0) -> DenoisePlan | None:
        """Plan the next denoise steps; None when a plan is open or nobody waits. `at_ns` stamps what is decided."""
        if self._open is not None or not self._items:
            return None
        if not self._batch:
            self._form(at_ns)
        first = self._batch[0]
        count = min(self._params.steps_per_plan, first.request.steps - first.done)
        leave, self._leave = tuple(self._leave), []
        batch, plan = self._batch, self._plan(count, leave)
        self._open = replace(
            plan,
            new=tuple(NewDenoise(item.seq, item.request) for item in batch if not item.is_known),
            save=tuple(item.seq for item in batch if item.saves_after(count)),
            show=tuple(item.seq for item in batch if item.shows_after(count)),
        )
        for item in batch:
            item.is_known = True
        self._step, self._merges = self._step + 1, 0
        return self._open

    def _plan(self, count: int, leave: tuple[int, ...] = ()) -> DenoisePlan:
        request = self._batch[0].request
        rows = [DenoiseRow(item.seq, item.done, count, request.steps, request.n) for item in self._batch]
        return DenoisePlan(
            self._step + 1,
            self._step,
            tuple(rows),
            request.height,
            request.width,
            leave,
            request.shape,
            self._merges,
        )

    def _form(self, at_ns: Ns) -> None:
        """Begin the next batch: the best of the queue, and those like it that pay."""
        ranked = self._line.first(ALTERNATIVES_MAX)
        head = ranked[0][1]
        self._batch = self._joiners(head)
        for item in self._batch:
            self._line.remove(item)
        wanted = head.request.loras
        if self._belief is not None and self._belief.merges and wanted != self._merged:
            self._merges = bool(self._merged) + bool(wanted)  # out by the pristine copy, and in
            self._merged = wanted
        if len(ranked) > 1:
            work_s = s_from_ns(head.work_ns)
            reason = f"{self._params.order.type}: {work_s:.2f} s of work, a batch of {len(self._batch)}"
            others = tuple(Alternative(item.request.id, s_from_ns(item.work_ns)) for _rank, item in ranked)
            self._decisions.append(Decision("batch", at_ns, "batch", head.request.id, reason, others, head.request.id))

    def _joiners(self, head: Item) -> list[Item]:
        """The head, and as many of its key as fit the cap, the gain and the duration."""
        request, params = head.request, self._params
        cap = min(params.batch_max, self._caps.get((request.height, request.width, request.frames), params.batch_max))
        room = 1 if request.deterministic else max(1, cap // request.n)
        alike = [item for item in self._line.alike(head, room + 1) if item is not head]
        together = [head, *(item for item in alike if not item.request.deterministic)][:room]
        while len(together) > 1 and not self._pays(request, len(together)):
            together.pop()
        return together

    def _pays(self, request: DiffusionRequest, size: int) -> bool:
        """True when `size` such requests together get enough more done per second, in time (SPEC F4)."""
        belief, params = self._belief, self._params
        if belief is None:
            return True
        shape = request.shape
        if belief.gain(shape, size * request.n) < params.gain_min * belief.gain(shape, request.n):
            return False
        if params.batch_s_max is None:
            return True
        rows = tuple(DenoiseRow(seq, 0, request.steps, request.steps, request.n) for seq in range(size))
        batch = DenoisePlan(0, 0, rows, request.height, request.width, shape=shape)
        return belief.plan_ns(batch) <= params.batch_s_max * NS_PER_S

    def done(self, step: int, took_ns: Ns | None = None, failed: Collection[int] = ()) -> list[DenoiseRow]:
        """Fold in a plan; return the rows that are still wanted. Complete and failed ones are over.

        `took_ns` of the device teaches the belief, unless a row failed on the way.
        """
        plan, self._open = self._open, None
        if plan is None or plan.step != step:
            raise InvariantError(f"denoise step {step} is done, open is {plan.step if plan else 'none'}")
        if self._belief is not None and took_ns is not None and not failed:
            self._belief.observe(plan, took_ns)
        gone = {row.seq for row in plan.rows if row.start + row.count == row.total or row.seq in failed}
        self._leave = [seq for seq in self._leave if seq not in gone]  # the engine has forgotten them by itself
        for seq in failed:
            self.over(seq)
        wanted = [row for row in plan.rows if row.seq in self._items]
        for row in wanted:
            self._items[row.seq].done += row.count
            if row.start + row.count == row.total:
                self.over(row.seq)
        return wanted

    def fail(self, step: int) -> list[int]:
        """The plan failed as a whole, and with it the engine lost all that it held: those requests are over here."""
        plan, self._open = self._open, None
        if plan is None or plan.step != step:
            raise InvariantError(f"denoise step {step} failed, open is {plan.step if plan else 'none'}")
        lost = [seq for seq, item in self._items.items() if item.is_known]
        for seq in lost:
            self.over(seq)
        self._leave, self._merged = [], ()
        return lost

    @property
    def open_rows(self) -> int:
        """Rows of the plan that runs, those that nobody wants any more included."""
        return 0 if self._open is None else len(self._open.rows)

    def take_decisions(self) -> list[Decision]:
        """Return what was decided since the last call."""
        out, self._decisions = self._decisions, []
        return out

    # What reports tell

    @property
    def denoise_cost(self) -> DenoiseCoefficients | None:
        """What is believed of its work."""
        return None if self._belief is None else self._belief.coefficients

    @property
    def queued_work_ns(self) -> Ns:
        """Believed time until all that it holds is done, one request after the other; 0 without a belief."""
        belief, batch = self._belief, self._batch
        if belief is None or not batch:
            return self._line.work_ns
        left = batch[0].request.steps - batch[0].done
        return self._line.work_ns + (belief.plan_ns(self._plan(left)) if left else 0)

    @property
    def pixels(self) -> tuple[int, int | None]:
        """Fewest and most pixels of a request, all frames together, that it takes; None: any."""
        return self._params.pixels_min, self._params.pixels_max

    @property
    def waiting(self) -> int:
        """Requests that are in no batch yet."""
        return len(self._line)

    @property
    def running(self) -> int:
        """Requests of the batch that runs."""
        return len(self._batch)

    @property
    def steps(self) -> int:
        """Plans made so far."""
        return self._step

    def check_invariants(self) -> None:
        """Raise InvariantError when queue, batch and items disagree, or a request ran past its steps."""
        for seq, item in self._items.items():
            if item.done >= item.request.steps:
                raise InvariantError(f"sequence {seq} has {item.done} of {item.request.steps} steps and is not over")
        if not self._line.check() or len(self._line) + len(self._batch) != len(self._items):
            raise InvariantError(f"{len(self._line)} wait and {len(self._batch)} run of {len(self._items)} requests")
        if len({(item.key, item.done) for item in self._batch}) > 1:
            raise InvariantError("a batch holds requests of different keys or steps")
