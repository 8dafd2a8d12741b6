"""What has run at a replica: shapes and sizes of batches of them, those of its warm-up and those met since (SPEC F8).

A size that has not run is met one at a time: of a shape that nobody has seen one request runs alone, then the next size
of batch, so that no batch forms whose memory and gain nobody has measured in any smaller one (SPEC F4).
"""

from collections.abc import Sequence
from typing import Final

from headway.core.errors import RequestError
from headway.core.reports import WarmShape
from headway.core.request import DenoiseShape, DiffusionRequest
from headway.cost.batch_sizes import batch_sizes
from headway.cost.first_runs import cold_refusal
from headway.sched.diffusion.params import shape_sides

Sides = tuple[int, int, int]  # height, width, frames
_MET_MAX: Final = 64  # shapes kept beside those of the warm-up; what was used least recently would count as new again


class Warmth:
    """`prepared`: shapes that have run in batches of all sizes up to theirs. None: of a device without warm-up."""

    def __init__(self, prepared: Sequence[WarmShape] | None = None, *, refuses_new: bool = False) -> None:
        """`refuses_new`: what has not run is not taken."""
        self.refuses_new = refuses_new
        self._knows = prepared is not None
        self._prepared = {(one.height, one.width, one.frames): one.batch for one in prepared or ()}
        self._met: dict[Sides, list[int]] = {}  # pictures of a pass
        self._ended: dict[Sides, None] = {}  # of those met, which have been decoded too
        self._told: tuple[WarmShape, ...] | None = None
        self.changes = 0

    def check(self, request: DiffusionRequest) -> None:
        """Raise RequestError for a new request of a shape that is to be refused. One begun elsewhere is taken."""
        why = cold_refusal(self.told, request) if self.refuses_new and not request.begun else None
        if why is not None:
            raise RequestError(why, code="unservable", param="size")

    def has_run(self, shape: DenoiseShape, pictures: int) -> bool:
        """True for a batch of so many pictures that is warm."""
        sides = shape_sides(shape)
        largest = self._prepared.get(sides, 0)
        is_prepared = pictures <= largest and pictures in batch_sizes(largest)
        return not self._knows or is_prepared or pictures in self._met.get(sides, ())

    def has_ended(self, shape: DenoiseShape) -> bool:
        """True for a shape that has run to its end, decode included."""
        sides = shape_sides(shape)
        return not self._knows or sides in self._prepared or sides in self._ended

    def is_warm(self, shape: DenoiseShape, pictures: int) -> bool:
        """True for a request of one pass of so many pictures, to its end."""
        return self.has_run(shape, pictures) and self.has_ended(shape)

    def prepared(self, shape: DenoiseShape, pictures: int) -> None:
        """A pass of so many pictures ran, and its decode."""
        self.ran(shape, pictures)
        self.ended(shape)

    def ended(self, shape: DenoiseShape) -> None:
        """A request of this shape is complete."""
        sides = shape_sides(shape)
        if self.has_ended(shape):
            if sides in self._ended:
                self._ended[sides] = self._ended.pop(sides)  # used last
            return
        if len(self._ended) >= _MET_MAX:
            del self._ended[next(iter(self._ended))]
        self._ended[sides] = None
        self.changes += 1

    def may_form(self, shape: DenoiseShape, size: int, each: int, cap: int) -> bool:
        """True for a batch of `size` requests for `each` pictures: one alone, one that has run, or the next to run."""
        if size == 1:
            return True
        sizes = [pictures for pictures in batch_sizes(cap) if pictures % each == 0 and pictures <= size * each]
        if not sizes or sizes[-1] != size * each:
            return False
        return all(self.has_run(shape, pictures) for pictures in sizes[:-1])

    def ran(self, shape: DenoiseShape, pictures: int) -> None:
        """A pass of so many pictures was well."""
        sides = shape_sides(shape)
        if self.has_run(shape, pictures):
            if sides in self._met:
                self._met[sides] = self._met.pop(sides)  # used last
            return
        if sides not in self._met and len(self._met) >= _MET_MAX:
            del self._met[next(iter(self._met))]
        self._met[sides] = [*self._met.pop(sides, ()), pictures]
        self._told = None
        self.changes += 1

    @property
    def told(self) -> tuple[WarmShape, ...] | None:
        """All of it, for a report: what was met stands first, used last at its end. None: nobody knows."""
        if self._told is None and self._knows:
            found = {sides: max(met) for sides, met in self._met.items()}
            found.update({sides: max(most, found.get(sides, 0)) for sides, most in self._prepared.items()})
            self._told = tuple(WarmShape(*sides, most) for sides, most in found.items())
        return self._told
