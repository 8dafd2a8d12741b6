"""What a plan holds at its peak, counted."""

from collections.abc import Callable

import torch
from tests.unit.engines.diffusion.asks import STEPS, asked, run

from headway.core.artifacts import Denoised, StagePeaks
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.engines.diffusion.engine import DiffusionEngine
from headway.engines.diffusion.peaks import TensorCount, peaks_of

KIB = 1024
Make = Callable[..., DiffusionEngine]


def counted(engine: DiffusionEngine, **fields: object) -> tuple[Denoised, StagePeaks]:
    request = asked(**fields)
    row, new = DenoiseRow(0, 0, STEPS, STEPS, request.n), NewDenoise(0, request)
    return engine.run_counted(DenoisePlan(1, 0, (row,), request.height, request.width, new=(new,)))


def test_tensors_are_counted_while_they_are_alive() -> None:
    with TensorCount() as count:
        kept = torch.zeros(KIB, dtype=torch.float32)
        assert count.lap() == (4 * KIB, 4 * KIB)
        view = kept.view(2, -1)  # the same bytes
        more = kept + 1
        del more
        assert count.lap() == (4 * KIB, 8 * KIB)
        assert count.lap() == (4 * KIB, 4 * KIB)
        del kept
        assert count.lap()[0] == 4 * KIB
        del view
        assert count.lap()[0] == 0


def test_three_laps_tell_the_stages_apart_and_fewer_tell_nothing() -> None:
    laps, host = [(10, 50), (12, 40), (0, 100)], torch.device("cpu")
    assert peaks_of(laps, torch.device("cuda")) == StagePeaks(12, 30, 88)  # its allocator sees all
    assert peaks_of(laps, host) == StagePeaks(12, 2 * 30, 2 * 88)
    assert peaks_of(laps[:1], host) == StagePeaks(0, 0, 0)


def test_a_counted_plan_makes_the_same_pictures_and_is_counted_alike_every_time(engine: Make) -> None:
    plain = run(engine("flux"), [asked()])
    done, peaks = counted(engine("flux"))
    assert done.made == plain.made
    assert counted(engine("flux"))[1] == peaks
    assert min(peaks.held_bytes, peaks.step_bytes, peaks.decode_bytes) > 0


def test_more_pictures_hold_more_in_every_stage(engine: Make) -> None:
    one, four = (counted(engine("flux"), n=n)[1] for n in (1, 4))
    assert four.held_bytes > one.held_bytes
    for fewer, more in ((one.step_bytes, four.step_bytes), (one.decode_bytes, four.decode_bytes)):
        assert 2 * fewer < more < 5 * fewer


def test_a_plan_that_is_not_counted_costs_nothing_and_prompts_are_told(engine: Make) -> None:
    painter = engine("flux")
    run(painter, [asked()])
    assert painter._laps == []
    assert run(painter, [asked()]).cached_bytes == painter.embeddings.bytes > 0
