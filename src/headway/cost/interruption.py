"""What it takes to save a row's state and to go on from it, measured by shape (SPEC F6): the price of a preemption
whose rows leave the engine, and what is no denoising in a plan that does so."""

from collections.abc import Sequence
from typing import Final

from headway.core.artifacts import StageTimes
from headway.core.plans import DenoisePlan
from headway.core.reports import WarmShape
from headway.core.request import DenoiseShape
from headway.core.units import Ns
from headway.cost.means import Mean

_SHAPES_MAX: Final = 256  # of which the oldest is forgotten
_Key = tuple[int, int, int, int]  # height, width, frames and pictures of one row: all of their latents are saved


class Interruption:
    """One part of a price, a save or a resume."""

    def __init__(self, memory: int) -> None:
        """After `memory` measures one weighs a third."""
        self._memory = memory
        self._all = Mean(0.0)
        self._by_key: dict[_Key, Mean] = {}

    @property
    def mean_ns(self) -> float:
        """Of a row of any shape; 0: nothing measured yet."""
        return self._all.value

    def of(self, shape: DenoiseShape, pictures: int) -> Ns | None:
        """Of one row; None: no such row was measured."""
        known = self._by_key.get(_key(shape, pictures))
        return None if known is None else round(known.value)

    def observe(self, shape: DenoiseShape, pictures: int, took_ns: float) -> float | None:
        """One row took so long; return how far off what was known of its shape was."""
        key = _key(shape, pictures)
        if key not in self._by_key and len(self._by_key) >= _SHAPES_MAX:
            del self._by_key[next(iter(self._by_key))]
        known = self._by_key.setdefault(key, Mean())
        off = abs(known.value / took_ns - 1.0) if known.count else None
        known.observe(took_ns, self._memory)
        self._all.observe(took_ns, self._memory)
        return off


class InterruptionPrice:
    """Both parts. Deterministic: plain floats, no clock."""

    def __init__(self, memory: int) -> None:
        self.save, self.resume = Interruption(memory), Interruption(memory)
        self._memory = memory
        self._error = Mean()

    @property
    def error(self) -> float | None:
        """Mean relative error of what was predicted of a part, before it was measured; None: nothing to judge by."""
        return self._error.value if self._error.count else None

    def of(self, shape: DenoiseShape, pictures: int, *, is_saved: bool = False) -> Ns | None:
        """Of one row, its save left out where that is done; None until both parts were measured for such rows."""
        save, resume = self.save.of(shape, pictures), self.resume.of(shape, pictures)
        if save is None or resume is None:
            return None
        return resume + (0 if is_saved else save)

    def begin(self, shapes: Sequence[WarmShape]) -> None:
        """Take what a warm-up has measured, of one picture or video each."""
        for one in shapes:
            shape = DenoiseShape(one.height, one.width, one.frames)
            for part, took_ns in ((self.save, one.save_ns), (self.resume, one.resume_ns)):
                if took_ns > 0:
                    part.observe(shape, 1, took_ns)

    def observe(self, plan: DenoisePlan, stages: StageTimes) -> None:
        """Fold in what a plan took for checkpoints. An engine that does not tell teaches nothing."""
        pictures = {row.seq: row.pictures for row in plan.rows}
        saved = [pictures[seq] for seq in plan.save]
        begun = [new.request.n for new in plan.new if new.request.begun]
        for part, rows, took_ns in ((self.save, saved, stages.save_ns), (self.resume, begun, stages.resume_ns)):
            if rows and took_ns > 0 and plan.shape is not None:
                off = part.observe(plan.shape, rows[0], took_ns / len(rows))  # rows of a batch are alike
                if off is not None:
                    self._error.observe(off, self._memory)


def _key(shape: DenoiseShape, pictures: int) -> _Key:
    return shape.height, shape.width, shape.frames, pictures
