import asyncio
from collections.abc import Callable

from headway.core.events import DenoiseDone, Event, TimerFired
from headway.core.ids import TimerId
from headway.core.plans import DenoisePlan, DenoiseRow, StepTiming
from headway.core.units import Ns
from headway.live.clock import Clock
from headway.live.denoise_thread import DenoiseThread
from headway.live.wire import StepSpan

WOKE = TimerFired(3, "test", TimerId("t"))


class Denoiser:
    def run(self, plan: DenoisePlan) -> StepTiming:
        return StepTiming(plan.step * 100, plan.step * 100, plan.step * 100 + 50)


def test_batches_end_in_order_with_their_timing_completed() -> None:
    async def main() -> None:
        events: list[Event] = []
        spans: list[StepSpan] = []
        complete = asyncio.Event()

        def feed(make: Callable[[Ns], Event]) -> None:
            events.append(make(9))
            if len(events) == 2:
                complete.set()

        thread = DenoiseThread(Denoiser(), Clock(), feed, spans.append)
        for step in (1, 2):
            rows = (DenoiseRow(1, step - 1, 1, 2),)
            thread.run_denoise(DenoisePlan(step, step - 1, rows, 8, 8), WOKE, 0)
        await asyncio.wait_for(complete.wait(), 20)
        done = [event for event in events if isinstance(event, DenoiseDone)]
        assert [(event.step, event.at_ns) for event in done] == [(1, 9), (2, 9)]
        assert [(span.kind, span.decodes) for span in spans] == [("denoise", 1), ("denoise", 1)]
        assert done[1].timing.idle_gap_ns == 50

    asyncio.run(main())
