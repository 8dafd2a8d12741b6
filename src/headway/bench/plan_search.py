"""Searches the fewest replicas of every layout that hold the target: branch and bound over simulations.

Layouts come in the order of their lower bounds, in waves that do not depend on the number of processes. A layout whose
bound is no better than the best answer so far is not run. What holds is taken to hold with a replica more.
"""

import math
from collections.abc import Callable, Generator, Sequence
from typing import Final, Literal

import msgspec

from headway.bench.plan_run import Judged, Sizes, Trials, Tried
from headway.sim.plan_layouts import Layout
from headway.sim.plan_params import PlanParams

WAVE: Final = 4  # layouts that are searched side by side
CLIMB_MAX: Final = 4  # sizes above the first that holds, until one is proven
State = Literal["proven", "not proven", "lost", "pruned", "fails"]
Steps = Generator[Sizes, Judged, "Answer"]


class Answer(msgspec.Struct, frozen=True):
    """What a search found of one layout. `judged`: of the sizes named, or of the last ones that failed."""

    layout: Layout
    state: State
    sizes: Sizes | None = None
    judged: Judged | None = None
    note: str = ""
    lasting: Judged | None = None  # under the longer load, of what is proven


class Watched(msgspec.Struct, frozen=True):
    """Where a search is."""

    done: int
    total: int
    best: str
    what: str


class Search:
    """The search over all layouts; `answers` has what is found so far."""

    def __init__(self, plan: PlanParams, trials: Trials, watch: Callable[[Watched], None] = lambda _: None) -> None:
        self._plan, self._trials, self._watch = plan, trials, watch
        self.answers: dict[str, Answer] = {}
        self.best: Answer | None = None

    def price(self, layout: Layout, sizes: Sequence[int]) -> float:
        """What is fewest."""
        return layout.devices(sizes) if self._plan.objective == "devices" else layout.usd_per_h(sizes)

    @property
    def cap(self) -> float:
        """What the best answer so far costs."""
        best = self.best
        return math.inf if best is None or best.sizes is None else self.price(best.layout, best.sizes)

    def run(self, layouts: Sequence[Layout]) -> None:
        """Search them all, in the order of their bounds. KeyboardInterrupt leaves what was found."""
        waiting = sorted(layouts, key=lambda one: (self.price(one, one.least), len(one.parts), one.name))
        total, width = len(waiting), 1
        while waiting:
            wave, waiting = waiting[:width], waiting[width:]
            width = min(WAVE, width * 2)
            self._wave(wave)
            best = "none" if self.best is None else f"{self.best.layout.name} {self.cap:g}"
            self._watch(Watched(total - len(waiting), total, best, wave[-1].name))

    def _wave(self, wave: Sequence[Layout]) -> None:
        cap = self.cap
        active: list[tuple[Layout, Steps, Sizes]] = []
        for layout in wave:
            if self.price(layout, layout.least) >= cap:
                self._tell(Answer(layout, "pruned", layout.least, note="its lower bound is no better"))
                continue
            steps = self._steps(layout, cap)
            self._advance(active, layout, steps, None)
        while active:
            judged = self._trials.judge([Tried(layout, sizes) for layout, _, sizes in active])
            now, active = active, []
            for (layout, steps, _), one in zip(now, judged, strict=True):
                self._advance(active, layout, steps, one)

    def _advance(
        self, active: list[tuple[Layout, Steps, Sizes]], layout: Layout, steps: Steps, judged: Judged | None
    ) -> None:
        try:
            sizes = next(steps) if judged is None else steps.send(judged)
        except StopIteration as stop:
            self._tell(stop.value)
            return
        active.append((layout, steps, sizes))

    def _tell(self, answer: Answer) -> None:
        self.answers[answer.layout.name] = answer
        if answer.state != "proven" or answer.sizes is None or answer.judged is None:
            return
        best = self.best
        if best is not None and best.judged is not None and best.judged.attainment < answer.judged.attainment:
            is_tie = self.price(answer.layout, answer.sizes) <= self.cap
            self.best = answer if is_tie else best
        if self.price(answer.layout, answer.sizes) < self.cap:
            self.best = answer

    def settle(self, layout: Layout, failed: Sizes | None) -> None:
        """Find how many a layout needs that lost: `failed` is known to be too few."""
        least = layout.least
        if failed is not None and len(least) == 1:
            known = self._trials.judge([Tried(layout, failed)])[0]
            least = failed if known.holds else (failed[0] + 1,)
        parts = tuple(msgspec.structs.replace(part, least=one) for part, one in zip(layout.parts, least, strict=True))
        again = msgspec.structs.replace(layout, parts=parts)
        active: list[tuple[Layout, Steps, Sizes]] = []
        self._advance(active, again, self._steps(again, math.inf), None)
        while active:
            (_, steps, sizes), active = active[0], []
            self._advance(active, again, steps, self._trials.judge([Tried(again, sizes)])[0])

    def mix(self, layout: Layout, start: int) -> None:
        """Search two device types together: the first began with `start` replicas, and gives them up one by one."""
        active: list[tuple[Layout, Steps, Sizes]] = []
        self._advance(active, layout, self._exchanged(layout, start), None)
        while active:
            (_, steps, sizes), active = active[0], []
            self._advance(active, layout, steps, self._trials.judge([Tried(layout, sizes)])[0])

    def _exchanged(self, layout: Layout, start: int) -> Steps:
        """Local search: one of the first type less as long as the target holds, with as few of the second as can be."""
        cap, found, last = self.cap, None, None
        for first in range(start - 1, -1, -1):
            second = self._most(layout, first, cap)
            if second < 1:
                continue
            judged = last = yield (first, second)
            if not judged.holds:
                break
            low = 0
            while second - low > 1:
                middle = (second + low) // 2
                tried = yield (first, middle)
                if tried.holds:
                    second, judged = middle, tried
                else:
                    low = middle
            found, cap = judged, self.price(layout, judged.sizes)
        if found is None:
            sizes = layout.least if last is None else last.sizes
            return Answer(layout, "lost", sizes, last, "no exchange of replicas is cheaper")
        return (yield from self._proven(layout, found, self.cap))

    # One layout

    def _steps(self, layout: Layout, cap: float) -> Steps:
        """Find the fewest replicas, none that cost more than `cap`, then climb to what is proven."""
        found = yield from self._first(layout, cap)
        if not found.holds:
            return Answer(layout, "fails" if found.error else "lost", found.sizes, found, found.error)
        return (yield from self._proven(layout, found, cap))

    def _proven(self, layout: Layout, found: Judged, cap: float) -> Steps:
        """One that holds by luck of the seeds, or only because the load ends early, is no answer."""
        first, why = found, ""
        for _ in range(CLIMB_MAX + 1):
            if found.holds and found.low >= self._plan.attainment:
                longer = self._trials.confirm(Tried(layout, found.sizes))
                least = longer.attainment if longer.seeds == 1 else longer.low
                if least >= self._plan.attainment:
                    return Answer(layout, "proven", found.sizes, found, why, longer)
                reason = f"under a load {self._plan.confirm:g} x as long it attains {longer.attainment:.1%}" + (
                    "" if longer.seeds == 1 else f", at least {least:.1%} over {longer.seeds} seeds"
                )
            else:
                reason = f"attainment {found.attainment:.1%}, at least {found.low:.1%}"
            why = f"{sizes_text(found.sizes)} is not proven: {reason}"
            sizes = self._grown(layout, found, 1)
            if self.price(layout, sizes) >= cap or layout.devices(sizes) > self._plan.devices_max:
                break
            found = yield sizes
        return Answer(layout, "not proven", first.sizes, first, why)

    def _first(self, layout: Layout, cap: float) -> Generator[Sizes, Judged, Judged]:
        """Return the fewest that hold, or the last that was tried."""
        if len(layout.parts) == 1 or layout.split is not None:
            return (yield from self._line(layout, cap))
        return (yield from self._plane(layout, cap))

    def _room(self, layout: Layout, sizes: Sequence[int], cap: float) -> bool:
        return self.price(layout, sizes) < cap - 1e-9 and layout.devices(sizes) <= self._plan.devices_max

    def _line(self, layout: Layout, cap: float) -> Generator[Sizes, Judged, Judged]:
        """One number: the cap first, where there is one; else doubling from the bound; then bisection."""
        unit = layout.split or (1,)

        def sizes(number: int) -> Sizes:
            return tuple(number * one for one in unit)

        low = max(-(-least // one) for least, one in zip(layout.least, unit, strict=True))
        most = low - 1
        while self._room(layout, sizes(most + 1), cap):
            most += 1
        if most < low:
            return Judged(sizes(low), False, False, 0.0, limit="devices")
        high, step, failed = (most if cap < math.inf else low), 1, low - 1
        found = yield sizes(high)
        while not found.holds:
            failed = high
            if high >= most:
                return found
            high = min(most, high + step)
            step *= 2
            found = yield sizes(high)
        while high - failed > 1:
            middle = (high + failed) // 2
            judged = yield sizes(middle)
            if judged.holds:
                high, found = middle, judged
            else:
                failed = middle
        return found

    def _plane(self, layout: Layout, cap: float) -> Generator[Sizes, Judged, Judged]:
        """Two numbers: grow what binds until it holds, then walk the first number and shrink the second."""
        least = layout.least
        found: Judged | None = None
        if cap == math.inf:
            found = yield from self._grow(layout, least)
            if not found.holds:
                return found
            cap = self.price(layout, found.sizes)
        last: Judged | None = None
        first = least[0]
        while (second := self._most(layout, first, cap)) >= least[1]:
            judged = last = yield (first, second)
            low = least[1] - 1
            while judged.holds and second - low > 1:
                middle = (second + low) // 2
                tried = yield (first, middle)
                if tried.holds:
                    second, judged = middle, tried
                else:
                    low = middle
            if judged.holds:
                found, cap = judged, self.price(layout, judged.sizes)
            first += 1
        return found or last or Judged(least, False, False, 0.0, limit="devices")

    def _most(self, layout: Layout, first: int, cap: float) -> int:
        """The largest second number below the cap."""
        second = layout.least[1] - 1
        while self._room(layout, (first, second + 1), cap):
            second += 1
        return second

    def _grow(self, layout: Layout, least: Sizes) -> Generator[Sizes, Judged, Judged]:
        step, sizes = 1, least
        while True:
            found = yield sizes
            if found.holds:
                return found
            sizes = self._grown(layout, found, step)
            step *= 2
            if layout.devices(sizes) > self._plan.devices_max:
                return found

    @staticmethod
    def _grown(layout: Layout, judged: Judged, step: int) -> Sizes:
        """More replicas: of all in their ratio, or of the part that binds."""
        sizes = judged.sizes
        if layout.split is not None:
            return tuple(size + step * one for size, one in zip(sizes, layout.split, strict=True))
        if len(sizes) == 1:
            return (sizes[0] + step,)
        is_first = judged.limit.startswith("TTFT") if layout.mode == "pd" else True
        return (sizes[0] + step, sizes[1]) if is_first else (sizes[0], sizes[1] + step)


def sizes_text(sizes: Sequence[int]) -> str:
    """`3`, or `2 + 1`."""
    return " + ".join(str(size) for size in sizes)
