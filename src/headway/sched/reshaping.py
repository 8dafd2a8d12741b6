"""A diffusion replica's part of changing its shape pool: what is there ends, other sizes are prepared, then taken.

While it lasts the replica counts as draining, so that fronts send it nothing; what was under way to it before is still
taken until the preparation begins, and then goes back to its front (`draining`), which sends it elsewhere.

What it prepares are single pictures. Once it takes the other sizes it runs larger batches of them while nobody waits,
one size after the other, so that requests wait for one such batch at most. Shapes that an operator wants prepared
(`Prepare`) run the same way, and where it is never idle between two batches of requests.
"""

from collections.abc import Callable, Sequence

import msgspec

from headway.core.effects import Effect, RunDenoise, Send
from headway.core.events import DenoiseDone
from headway.core.ids import NodeId
from headway.core.messages import Reshape, Reshaped
from headway.core.request import DenoiseShape, DiffusionRequest
from headway.core.units import Ns
from headway.cost.batch_sizes import batch_sizes
from headway.cost.diffusion import left_ns
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import largest_batch
from headway.sched.diffusion.warming import Preparation, Stock, shapes_of, warming, warming_plan


class _Asked(msgspec.Struct, frozen=True):
    src: NodeId
    message: Reshape


class Reshaping:
    """Appends what must be done to `out`, which the worker hands on."""

    def __init__(self, machine: DiffusionMachine, stock: Stock, changed: Callable[[], None], out: list[Effect]) -> None:
        """`changed`: the sizes are others, and should be reported whatever else is as it was."""
        self._machine, self._stock, self._changed, self._out = machine, stock, changed, out
        self._warm: dict[DenoiseShape, None] = dict.fromkeys(shapes_of(stock, *machine.pixels))
        self._asked: _Asked | None = None
        self._preparation: Preparation | None = None
        self._began_ns: Ns = 0
        self._has_moved = False
        self._prepared = 0
        self._plans = 0
        self._growth: list[tuple[DenoiseShape, int]] = []  # batches to run while nobody waits
        self._grows: tuple[DenoiseShape, int] | None = None  # the one that runs
        self._patience_ns: Ns | None = None
        self._asked_for: dict[DenoiseShape, None] = {}  # by an operator, of `_growth`
        self._grew_at = -1  # plans of requests that were made when the last one of those began

    @property
    def is_moving(self) -> bool:
        """It leaves its pool, and is in no other one yet."""
        return self._asked is not None

    @property
    def is_preparing(self) -> bool:
        """Nothing else may be planned or taken."""
        return self._preparation is not None

    @property
    def is_growing(self) -> bool:
        """A batch runs that nobody asked for."""
        return self._grows is not None

    def was_for(self, request: DiffusionRequest) -> bool:
        """Its sender has not heard yet of the sizes that are taken here now, and may send it elsewhere."""
        least, most = self._machine.pixels
        pixels = request.shape.pixels
        return self._has_moved and (pixels < least or (most is not None and pixels > most))

    def ask(self, src: NodeId, message: Reshape) -> None:
        """Control wants other sizes. One move at a time; what does not fit in memory is not tried."""
        if self._asked is not None:
            self._tell(_Asked(src, message), 0, 0, "it is changing its sizes already")
            return
        fit, most = self._stock.pixels_fit, message.pixels_max
        if fit is not None and (most is None or most > fit):
            self._tell(_Asked(src, message), 0, 0, f"requests of at most {fit} pixels fit in its memory")
            return
        self._asked = _Asked(src, message)

    def pump(self, at_ns: Ns) -> Ns | None:
        """Prepare as soon as nothing is there any more; return how long a plan handed over may take."""
        asked = self._asked
        if asked is None or self._machine.waiting or self._machine.running or self._machine.has_open:
            return None
        message = asked.message
        if self._preparation is None:
            wanted = shapes_of(self._stock, message.pixels_min, message.pixels_max)
            fresh = [shape for shape in wanted if shape not in self._warm]
            self._preparation, self._began_ns = Preparation(self._stock, fresh, self._plans), at_ns
            self._prepared = len(fresh)
        plan = self._preparation.plan()
        if plan is not None:
            self._plans += 1
            self._out.append(RunDenoise(plan))
            return self._machine.patience_ns(message.cold_ns)
        if self._preparation.is_over:
            self._machine.take_pixels(message.pixels_min, message.pixels_max)
            self._patience_ns = self._machine.patience_ns(message.cold_ns)
            wanted = shapes_of(self._stock, message.pixels_min, message.pixels_max)
            sizes = [(shape, batch_sizes(largest_batch(self._machine.params, shape))) for shape in wanted]
            self._growth = [(shape, pictures) for shape, each in sizes for pictures in each]
            self._asked_for.clear()
            self._end(asked, at_ns, None)
        return None

    def prepare(self, shapes: Sequence[DenoiseShape]) -> None:
        """Run these too, in batches of every size; what is not taken here, or has run, is left out."""
        machine, cost = self._machine, self._machine.denoise_cost
        least, most = machine.pixels
        for shape in shapes:
            if shape.pixels < least or (most is not None and shape.pixels > most):
                continue
            self._asked_for[shape] = None
            sizes = [(shape, pictures) for pictures in batch_sizes(largest_batch(machine.params, shape))]
            self._growth += [batch for batch in sizes if batch not in self._growth]
            if cost is not None:
                alone_ns = left_ns(cost, warming(self._stock, shape, sizes[-1][1], 0, 1)) + round(cost.first_ns)
                known_ns = self._patience_ns or 0
                self._patience_ns = max(known_ns, machine.patience_ns(alone_ns) or 0) or None

    @property
    def is_due(self) -> bool:
        """What an operator asked for runs before the batch that would be next: one has run since the last time."""
        machine = self._machine
        is_between = bool(machine.waiting) and not (machine.running or machine.has_open)
        return bool(self._asked_for) and is_between and machine.steps > self._grew_at

    def grow(self) -> Ns | None:
        """Hand over the next larger batch of a shape that was prepared alone, where nothing is there; return how long
        it may take. What has no room is left out."""
        machine = self._machine
        while self._growth and not (machine.running or machine.has_open) and (self.is_due or not machine.waiting):
            shape, pictures = self._growth.pop(0)
            if all(other != shape for other, _ in self._growth):
                self._asked_for.pop(shape, None)
            request = warming(self._stock, shape, pictures, self._plans, 1)
            if machine.warmth.has_run(shape, pictures) or not machine.holdings.has_room(request):
                continue
            self._grows = shape, pictures
            self._plans, self._grew_at = self._plans + 1, machine.steps
            self._out.append(RunDenoise(warming_plan(request)))
            return self._patience_ns
        return None

    def _grown(self, shape: DenoiseShape, pictures: int, *, is_well: bool) -> None:
        self._grows = None
        if is_well:
            self._machine.warmth.ran(shape, pictures)
            self._machine.warmth.ended(shape)
            self._changed()
        else:
            self._growth = [batch for batch in self._growth if batch[0] != shape]
            self._asked_for.pop(shape, None)

    def done(self, event: DenoiseDone) -> None:
        """A plan of the preparation is over. A shape that failed cannot be served here: the sizes stay as they were."""
        if self._grows is not None:
            self._grown(*self._grows, is_well=not event.failed)
            return
        preparation, asked = self._preparation, self._asked
        assert preparation is not None  # it planned this
        assert asked is not None
        assert preparation.open is not None
        shape = preparation.open.shape
        assert shape is not None
        preparation.done()
        if event.failed:
            self._end(asked, event.at_ns, event.failed[0].message)
        else:
            self._warm[shape] = None
            self._machine.warmth.ran(shape, 1)
            self._machine.warmth.ended(shape)

    def failed(self, at_ns: Ns, error: str) -> None:
        """The engine failed in a plan of the preparation."""
        if self._grows is not None:
            self._grown(*self._grows, is_well=False)
            return
        assert self._asked is not None  # it planned this
        self._end(self._asked, at_ns, error)

    def _end(self, asked: _Asked, at_ns: Ns, error: str | None) -> None:
        self._has_moved = self._has_moved or error is None
        took_ns, prepared = at_ns - self._began_ns, self._prepared
        self._asked = self._preparation = None
        self._changed()
        self._tell(asked, took_ns, prepared, error)

    def _tell(self, asked: _Asked, took_ns: Ns, prepared: int, error: str | None) -> None:
        message = asked.message
        least, most = message.pixels_min, message.pixels_max
        self._out.append(Send(asked.src, Reshaped(message.number, least, most, took_ns, prepared, error)))
