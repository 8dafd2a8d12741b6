"""Who runs together, and for how long: equal keys, caps per shape, a gain that pays, a duration that is bounded."""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from headway.core.decisions import Alternative, Decision
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import DiffusionRequest
from headway.core.units import NS_PER_S, Ns, s_from_ns
from headway.cost.batch_sizes import parts_of
from headway.cost.diffusion_belief import DenoiseCost
from headway.sched.diffusion.holdings import Holdings
from headway.sched.diffusion.params import DiffusionParams, largest_batch
from headway.sched.diffusion.protocols import Item, Rank
from headway.sched.diffusion.queue import WaitingLine
from headway.sched.diffusion.warmth import Warmth


class Batches:
    """Asks; it moves no request."""

    def __init__(self, params: DiffusionParams, belief: DenoiseCost | None, holdings: Holdings, warmth: Warmth) -> None:
        self._params, self._belief, self._holdings, self._warmth = params, belief, holdings, warmth

    def of(self, head: Item, line: WaitingLine) -> list[Item]:
        """The head, and as many of its key that have come as far as fit the cap, the memory, gain and duration."""
        request = head.request
        cap = largest_batch(self._params, request.shape)
        room = 1 if request.deterministic else max(1, cap // request.n)
        alike = [item for item in line.alike(head, room + 1) if item is not head]
        together = [head, *(item for item in alike if not item.request.deterministic)][:room]
        while len(together) > 1 and not (
            self._warmth.may_form(request.shape, len(together), request.n, cap)
            and self._holdings.has_room(request, len(together), sum(item.is_known for item in together))
            and self._pays(request, len(together))
        ):
            together.pop()
        return together

    def head(self, first: Item, line: WaitingLine, items: Collection[Item]) -> Item:
        """The first of the line. Where it has no room beside rows that were interrupted, the first of those goes on
        before it: that ends, or is interrupted for it and saved."""
        if self.has_room(first):
            return first
        held = [item for item in items if item.is_known]
        return line.best([item for item in held if self.has_room(item)] or held or [first])

    def plan(self, batch: Sequence[Item], count: int, step: int, *, is_saving: bool) -> DenoisePlan:
        """The next `count` steps of a batch, with the checkpoints and previews that are due."""
        return replace(
            plan_of(batch, count, step),
            new=tuple(NewDenoise(item.seq, item.request) for item in batch if not item.is_known),
            save=tuple(item.seq for item in batch if is_saving or item.saves_after(count)),
            show=tuple(item.seq for item in batch if item.shows_after(count)),
            pictures_max=self.most(batch),
            is_cold=not self.are_warm(batch, count),
        )

    def lacking(self, item: Item) -> int | None:
        """Pictures of the first pass of a request alone that has not run here, of the first of all where its decode has
        not; None: both have."""
        request = item.request
        passes = parts_of(request.n, self.most([item]))
        if not self._warmth.has_ended(request.shape):
            return passes[-1]
        return next(
            (pictures for pictures in reversed(passes) if not self._warmth.has_run(request.shape, pictures)), None
        )

    def are_warm(self, batch: Sequence[Item], count: int = 0) -> bool:
        """True when the passes of such a batch have run before, and its decode if its next `count` steps end it."""
        if count == batch[0].request.steps - batch[0].done and not self._warmth.has_ended(batch[0].request.shape):
            return False
        request, pictures = batch[0].request, batch[0].request.n * len(batch)
        passes = parts_of(pictures, self.most(batch))
        return all(self._warmth.has_run(request.shape, pictures) for pictures in passes)

    def cold_ns(self, batch: Sequence[Item]) -> Ns:
        """Believed of what its first run takes beyond its work; 0 of one that is warm."""
        return 0 if self._belief is None or self.are_warm(batch) else self._belief.first_runs.more_ns

    def ran(self, plan: DenoisePlan) -> None:
        """A plan is over, and every row of it was well."""
        if plan.shape is not None and any(row.start + row.count == row.total for row in plan.rows):
            self._warmth.ended(plan.shape)
        if plan.shape is not None and any(row.runs for row in plan.rows):
            most = plan.pictures_max or largest_batch(self._params, plan.shape)
            for pictures in parts_of(sum(row.pictures for row in plan.rows), most):
                self._warmth.ran(plan.shape, pictures)

    def most(self, batch: Sequence[Item]) -> int:
        """Pictures of one forward pass: a request for more than a batch may have, or than have room, takes several."""
        request = batch[0].request
        cap, fit = largest_batch(self._params, request.shape), self._holdings.pass_max(request)
        return cap if len(batch) > 1 or fit is None else min(cap, fit)

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
        steps, skipped = request.steps, request.skipped_steps
        rows = tuple(DenoiseRow(seq, 0, steps, steps, request.n, skipped) for seq in range(size))
        batch = DenoisePlan(0, 0, rows, request.height, request.width, shape=shape)
        return belief.plan_ns(batch) <= params.batch_s_max * NS_PER_S

    def has_room(self, item: Item) -> bool:
        """True when it fits beside the rows that are held now, of which it may be one."""
        return self._holdings.has_room(item.request, known=int(item.is_known))

    def next_ns(self, batch: Sequence[Item]) -> Ns:
        """Believed time of the next plan of a batch; 0 without a belief."""
        left = batch[0].request.steps - batch[0].done
        return (
            0 if self._belief is None else self._belief.plan_ns(plan_of(batch, min(left, self._params.steps_per_plan)))
        )

    def left_ns(self, batch: Sequence[Item]) -> Ns:
        """Believed time until a batch is over; 0 without a belief."""
        if self._belief is None or not batch:
            return 0
        left = batch[0].request.steps - batch[0].done
        return self._belief.plan_ns(plan_of(batch, left)) if left else 0


def plan_of(batch: Sequence[Item], count: int, step: int = 0) -> DenoisePlan:
    """`count` steps of every row of a batch, after `step` plans."""
    request = batch[0].request
    steps, skipped = request.steps, request.skipped_steps
    rows = tuple(DenoiseRow(item.seq, item.done, count, steps, request.n, skipped) for item in batch)
    return DenoisePlan(step + 1, step, rows, request.height, request.width, shape=request.shape)


def formed(order: str, ranked: Sequence[tuple[Rank, Item]], batch: Sequence[Item], at_ns: Ns) -> Decision:
    """A batch begins, with the first of `ranked` or what goes on before it."""
    head, first = batch[0], ranked[0][1]
    others = tuple(Alternative(item.request.id, s_from_ns(item.work_ns)) for _rank, item in ranked)
    reason = f"{order}: {s_from_ns(head.work_ns):.2f} s of work, a batch of {len(batch)}"
    if head is not first:
        reason += f"; {first.request.id} is next, and has no room beside it"
    return Decision("batch", at_ns, "batch", head.request.id, reason, others, head.request.id)
