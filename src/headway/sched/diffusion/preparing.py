"""Shapes that have not run here run as work of the replica's own, off the path of requests (SPEC F8).

A preparation is a request of two steps that nobody asked for, of one shape and one size of pass. Its slices are one
denoise step each: the first encodes too, the last decodes. A slice runs between two plans of requests, and only while
none of those that could run has waited for `prepare_slices_max` of them: a request of a warm shape waits for no more in
its life, whatever is prepared. What waits for its shape stands in a line of its own, in the order of the policy, and
goes before what operators asked for. One preparation is under way at a time; one that has begun runs to its end even
where nobody waits for it any more, and holds nothing then.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import msgspec

from headway.core.decisions import Decision
from headway.core.errors import InvariantError
from headway.core.plans import DenoisePlan, NewDenoise
from headway.core.reports import ShapePreparation
from headway.core.request import DenoiseShape
from headway.core.units import Ns, s_from_ns
from headway.cost.batch_sizes import batch_sizes
from headway.cost.diffusion_belief import DenoiseCost
from headway.cost.first_runs import preparation_ns
from headway.sched.diffusion.batches import Batches, plan_of
from headway.sched.diffusion.holdings import Holdings
from headway.sched.diffusion.params import DiffusionParams, largest_batch, shape_sides
from headway.sched.diffusion.protocols import Item, OrderPolicy, batch_key
from headway.sched.diffusion.queue import WaitingLine
from headway.sched.diffusion.unprepared import Unprepared
from headway.sched.diffusion.warming import Key, Stock, shown, size_words, warming
from headway.sched.diffusion.warmth import Warmth

SHAPES_MAX: Final = 64  # that operators asked for and that have not run yet; also of those told
_PROMPT: Final = 0  # all have the same: it is encoded once


class Task(msgspec.Struct):
    """A preparation that has begun. `is_whole`: in one slice, for its state once had to make way."""

    key: Key
    item: Item
    is_whole: bool = False
    took_ns: Ns = 0
    believed_ns: Ns = 0


class Preparing:
    """Asked by the machine for a slice before every plan."""

    def __init__(
        self,
        params: DiffusionParams,
        belief: DenoiseCost | None,
        batches: Batches,
        order: OrderPolicy,
        warmth: Warmth,
        holdings: Holdings,
    ) -> None:
        self._params, self._belief, self._batches = params, belief, batches
        self._warmth, self._holdings = warmth, holdings
        self.line = WaitingLine(order)
        self.stock, self.unprepared = Stock(), Unprepared()
        self.only_for_requests = False  # what operators asked for waits
        self._waits: dict[int, Item] = {}
        self._lack: dict[int, Key | None] = {}  # of those that wait, as of `_looked` changes of what is warm
        self._asked: dict[Key, None] = {}
        self._task: Task | None = None
        self._open: DenoisePlan | None = None
        self._apart: dict[Key, None] = {}  # whose state had to make way once
        self._failed: list[tuple[int, int]] = []
        self._new: list[Item] = []  # whose decisions are due
        self._seen = self._looked = self._last = 0  # changes of what is warm, twice; the last preparation's number

    @property
    def is_busy(self) -> bool:
        """The engine holds the state of a preparation."""
        return self._task is not None

    @property
    def is_open(self) -> bool:
        """A slice runs."""
        return self._open is not None

    @property
    def is_due(self) -> bool:
        """There is something to prepare."""
        return self._task is not None or bool(self._waits) or (bool(self._asked) and not self.only_for_requests)

    @property
    def work_ns(self) -> Ns:
        """Believed time of those that wait for their shapes, and of preparing these; 0 without a belief."""
        belief = self._belief
        if belief is None or not self._waits:
            return self.line.work_ns
        cost, keys = belief.coefficients, dict.fromkeys(self._lacking(item) for item in self._waits.values())
        first_ns = round(cost.first_ns)
        return self.line.work_ns + sum(first_ns + preparation_ns(cost, *key) for key in keys if key is not None)

    def waits(self, seq: int) -> bool:
        """A request stands here until its shape has run."""
        return seq in self._waits

    def takes(self, item: Item) -> bool:
        """Keep a request whose passes or decode have not run here; False for all others."""
        if self._batches.lacking(item) is None:
            return False
        self.line.add(item)
        self._waits[item.seq] = item
        self._new.append(item)
        return True

    def remove(self, item: Item) -> bool:
        """It waits no more; False when it did not."""
        self._lack.pop(item.seq, None)
        return self._waits.pop(item.seq, None) is not None and self.line.remove(item)

    def ask(self, shapes: Sequence[tuple[DenoiseShape, int | None]]) -> None:
        """Run shapes in passes of every size up to so many pictures (None: the largest batch). What is not taken here,
        has run, can never fit or is beyond `SHAPES_MAX` is left out."""
        known = {shape for shape, _ in self._asked}
        for shape, most in shapes:
            cap = largest_batch(self._params, shape)
            if shape not in known and len(known) >= SHAPES_MAX:
                return
            for pictures in batch_sizes(min(cap, most or cap)):
                if self._warmth.is_warm(shape, pictures):
                    continue
                if self._holdings.fits_one_pass(warming(self.stock, shape, pictures, _PROMPT)):
                    self._asked[shape, pictures] = None
                    known.add(shape)
                elif pictures == 1:
                    self.unprepared.has_no_room((shape, pictures))

    def keep(self, least: int, most: int | None) -> None:
        """Forget what operators asked for of other sizes; of all frames together."""
        self._asked = {key: None for key in self._asked if least <= key[0].pixels <= (most or key[0].pixels)}

    def now_warm(self) -> list[Item]:
        """Those whose shape has run meanwhile; they wait here no more."""
        if self._seen == self._warmth.changes:
            return []
        self._seen = self._warmth.changes
        found = [item for item in self._waits.values() if self._lacking(item) is None]
        for item in found:
            self.remove(item)
        return found

    def slice(self, items: Collection[Item], batch: Sequence[Item], step: int) -> DenoisePlan | None:
        """The next slice, where one may run before the next plan of a request. `items`: all that is here, `batch`: what
        is in its steps, `step`: plans made so far."""
        if not self.is_due or any(self._is_spent(item) for item in items):
            return None
        task = self._task or self._next()
        if task is None or not self._has_room(task, batch):
            return None
        item = task.item
        count = item.request.steps if task.is_whole else 1
        new = () if item.is_known else (NewDenoise(item.seq, item.request),)
        plan = msgspec.structs.replace(
            plan_of([item], count, step), new=new, pictures_max=self._batches.most([item]), is_cold=True
        )
        self._holdings.enters(item)
        self._holdings.runs(plan.step, [item])
        item.is_known = True
        self._task, self._open = task, plan
        for other in items:
            other.slices += other.seq not in self._waits
        return plan

    def _is_spent(self, item: Item) -> bool:
        return item.slices >= self._params.prepare_slices_max and item.seq not in self._waits

    def _has_room(self, task: Task, batch: Sequence[Item]) -> bool:
        if task.item.is_known:  # its state is held; others may have begun since, and its pass needs room beside them
            return self._holdings.has_room(task.item.request, known=1)
        return not (task.is_whole and batch) and self._holdings.has_room_beside(task.item.request, batch)

    def _next(self) -> Task | None:
        """What the first of the line lacks, else the first that was asked for and has not run."""
        while not self._waits and self._asked and self._warmth.is_warm(*next(iter(self._asked))):
            del self._asked[next(iter(self._asked))]
        key = self._lacking(self.line.first(1)[0][1]) if self._waits else None
        if key is None and self._asked and not self.only_for_requests:
            key = next(iter(self._asked))
        return None if key is None else Task(key, self._item(key), key in self._apart)

    def _item(self, key: Key) -> Item:
        """Numbered below 0, as no request is."""
        self._last -= 1
        request = warming(self.stock, *key, _PROMPT)
        return Item(self._last, request, batch_key(request))

    def _lacking(self, item: Item) -> Key | None:
        if self._looked != self._warmth.changes:
            self._looked = self._warmth.changes
            self._lack.clear()
        if item.seq not in self._lack:
            pictures, shape = self._batches.lacking(item), item.request.shape
            key = DenoiseShape(shape.height, shape.width, shape.frames, shape.passes)
            self._lack[item.seq] = None if pictures is None else (key, pictures)
        return self._lack[item.seq]

    def runs(self, step: int) -> bool:
        """The open plan is a slice."""
        return self._open is not None and self._open.step == step

    def done(self, took_ns: Ns | None, seqs_failed: Collection[int]) -> None:
        """The open slice is over."""
        task, plan = self._task, self._open
        assert task is not None
        assert plan is not None
        self._open = None
        item, belief = task.item, self._belief
        if item.seq in seqs_failed:
            self._end(task)
            self._failed += [(seq, item.seq) for seq, other in self._waits.items() if self._is_for(task, other)]
            others = [key for key in self._asked if shape_sides(key[0]) == shape_sides(task.key[0])]
            for key in others:
                del self._asked[key]
            self.unprepared.failed(task.key, others)
            return
        item.done += plan.rows[0].count
        if belief is not None and took_ns is not None:
            task.took_ns, task.believed_ns = task.took_ns + took_ns, task.believed_ns + belief.plan_ns(plan)
        if item.done < item.request.steps:
            return
        self._end(task)
        if belief is not None and task.took_ns:
            belief.first_runs.observe(task.took_ns, task.believed_ns)
        self._warmth.prepared(*task.key)
        self.unprepared.over(task.key)

    def fail(self) -> list[int]:
        """The engine has lost all that it held. Return who is over with it: one of those that waited for the slice that
        failed, as its own plan would have been. For the others it begins anew: to send all away at once would open a
        breaker for one fault."""
        task, is_open, self._open = self._task, self._open is not None, None
        if task is None:
            return []
        if not is_open:  # it begins anew
            self._holdings.over(task.item)
            self._task = None
            return []
        self._end(task)
        self.unprepared.failed(task.key)
        return [seq for seq, item in self._waits.items() if self._is_for(task, item)][:1]

    def make_way(self) -> list[int]:
        """Give up what the engine holds, for a request that has no room beside it; return what the engine forgets. The
        preparation begins anew between two batches, in one slice."""
        task, self._task = self._task, None
        if task is None:
            return []
        self._holdings.over(task.item)
        self._apart = {task.key: None}
        return [task.item.seq]

    def _end(self, task: Task) -> None:
        self._holdings.over(task.item)
        self._asked.pop(task.key, None)
        self._apart.pop(task.key, None)
        self._task = None

    def _is_for(self, task: Task, item: Item) -> bool:
        key = self._lacking(item)
        return key is not None and (shape_sides(key[0]), key[1]) == (shape_sides(task.key[0]), task.key[1])

    def take_failed(self) -> list[tuple[int, int]]:
        """Who waited for a preparation that failed, and the sequence of that, since the last call."""
        out, self._failed = self._failed, []
        return out

    def take_decisions(self, at_ns: Ns) -> Iterator[Decision]:
        """Of each request that came to wait since the last call, and of what failed."""
        yield from self.unprepared.take_decisions(at_ns)
        new, self._new = self._new, []
        for item in new:
            key = self._lacking(item)
            if key is not None and item.seq in self._waits:
                words = size_words(*key)
                reason = f"{words} has not run here: it is prepared first, between the plans of other requests"
                if self._belief is not None:
                    cost = self._belief.coefficients
                    reason += f", in {s_from_ns(round(cost.first_ns) + preparation_ns(cost, *key)):.2f} s of work"
                yield Decision("batch", at_ns, "prepare", words, reason, request=item.request.id)

    def check(self) -> None:
        """Raise InvariantError where its two views of who waits differ, or a slice runs of nothing."""
        if not self.line.check() or len(self.line) != len(self._waits) or (self.is_open and self._task is None):
            raise InvariantError(f"{len(self.line)} stand in line for {len(self._waits)} that wait for their shapes")

    def told(self) -> tuple[ShapePreparation, ...]:
        """For a report: what is under way, what requests wait for, what was asked for; up to `SHAPES_MAX`."""
        waiting: dict[Key, int] = {}
        for item in self._waits.values():
            if (key := self._lacking(item)) is not None:
                waiting[key] = waiting.get(key, 0) + 1
        running = None if self._task is None else (self._task.key, self._task.item.done)
        return shown(running, waiting, self._asked)[:SHAPES_MAX]
