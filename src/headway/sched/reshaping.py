"""A diffusion replica's part of changing its shape pool: what is there ends, other sizes are prepared, then taken.

While it lasts the replica counts as draining, so that fronts send it nothing; what was under way to it before is still
taken until the preparation begins, and then goes back to its front (`draining`), which sends it elsewhere.

What it prepares before are single pictures. Once it takes the other sizes, larger batches of them run as any shape that
an operator asks for (`diffusion.preparing`).
"""

from collections.abc import Callable, Sequence

import msgspec

from headway.core.effects import Effect, RunDenoise, Send
from headway.core.events import DenoiseDone
from headway.core.ids import NodeId
from headway.core.messages import Reshape, Reshaped
from headway.core.request import DenoiseShape, DiffusionRequest
from headway.core.units import Ns
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.warming import Preparation, Stock, shapes_of


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
        machine.preparing.stock = stock

    @property
    def is_moving(self) -> bool:
        """It leaves its pool, and is in no other one yet."""
        return self._asked is not None

    @property
    def is_preparing(self) -> bool:
        """Nothing else may be planned or taken."""
        return self._preparation is not None

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
        machine = self._machine
        is_idle = not (machine.waiting or machine.running or machine.has_open or machine.preparing.is_busy)
        if asked is None or not is_idle:
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
            machine.take_pixels(message.pixels_min, message.pixels_max)
            machine.preparing.keep(message.pixels_min, message.pixels_max)
            self.prepare(shapes_of(self._stock, message.pixels_min, message.pixels_max))
            self._end(asked, at_ns, None)
        return None

    def prepare(self, shapes: Sequence[DenoiseShape], batches: Sequence[int] = ()) -> None:
        """Run these too, in batches of every size, or up to so many of each; what is not taken here is left out."""
        least, most = self._machine.pixels
        sizes = [*batches, *[None] * (len(shapes) - len(batches))]
        taken = [one for one in zip(shapes, sizes, strict=True) if least <= one[0].pixels <= (most or one[0].pixels)]
        self._machine.preparing.ask(taken)
        self._changed()

    def done(self, event: DenoiseDone) -> None:
        """A plan of the preparation is over. A shape that failed cannot be served here: the sizes stay as they were."""
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
