import asyncio
from collections.abc import Callable

from headway.core.artifacts import Denoised, Made, RowMade, StageTimes
from headway.core.errors import EngineError
from headway.core.events import DenoiseDone, Event, TimerFired
from headway.core.ids import TimerId
from headway.core.plans import DenoisePlan, DenoiseRow, StepTiming
from headway.core.units import Ns
from headway.live.clock import Clock
from headway.live.denoise_thread import DenoiseThread
from headway.live.wire import StepSpan

WOKE = TimerFired(3, "test", TimerId("t"))
MADE = (RowMade(1, (Made("preview", b"..."),)),)


class Denoiser:
    """Fails in the plans it is told to."""

    def __init__(self, *fails: int) -> None:
        self.fails = fails

    def run(self, plan: DenoisePlan) -> Denoised:
        if plan.step in self.fails:
            raise EngineError("the device is gone")
        timing = StepTiming(plan.step * 100, plan.step * 100, plan.step * 100 + 50)
        return Denoised(timing, StageTimes(denoise_ns=50), MADE)


def run_two(denoiser: Denoiser) -> tuple[list[DenoiseDone], list[StepSpan]]:
    """Two plans of two rows each, to their ends."""
    events: list[Event] = []
    spans: list[StepSpan] = []

    async def main() -> None:
        complete = asyncio.Event()

        def feed(make: Callable[[Ns], Event]) -> None:
            events.append(make(9))
            if len(events) == 2:
                complete.set()

        thread = DenoiseThread(denoiser, Clock(), feed, spans.append)
        for step in (1, 2):
            rows = (DenoiseRow(1, step - 1, 1, 2), DenoiseRow(2, step - 1, 1, 2))
            thread.run_denoise(DenoisePlan(step, step - 1, rows, 8, 8), WOKE, 0)
        await asyncio.wait_for(complete.wait(), 20)

    asyncio.run(main())
    return [event for event in events if isinstance(event, DenoiseDone)], spans


def test_batches_end_in_order_with_their_timing_completed() -> None:
    done, spans = run_two(Denoiser())
    assert [(event.step, event.at_ns) for event in done] == [(1, 9), (2, 9)]
    assert [(span.kind, span.decodes) for span in spans] == [("denoise", 2), ("denoise", 2)]
    assert done[1].timing.idle_gap_ns == 50


def test_what_was_made_arrives_with_the_times_of_its_stages() -> None:
    done, _ = run_two(Denoiser())
    assert done[0].made == MADE
    assert done[0].stages == StageTimes(denoise_ns=50)


def test_an_exception_ends_the_rows_of_its_plan_and_not_the_engine() -> None:  # vllm-omni#2327, #4634
    done, _ = run_two(Denoiser(1))
    assert [(failure.seq, failure.code) for failure in done[0].failed] == [(1, "engine_failed"), (2, "engine_failed")]
    assert "the device is gone" in done[0].failed[0].message
    assert done[1].failed == ()
    assert done[1].made == MADE
