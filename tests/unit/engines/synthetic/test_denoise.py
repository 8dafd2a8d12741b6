from headway.core.plans import DenoisePlan, DenoiseRow
from headway.engines.synthetic.denoise import DenoiserParams, SyntheticDenoiser


def plan(rows: int, steps: int, size: int) -> DenoisePlan:
    return DenoisePlan(1, 0, tuple(DenoiseRow(n, 0, steps, 10) for n in range(rows)), size, size)


def test_time_grows_with_pixels_rows_and_steps() -> None:
    denoiser = SyntheticDenoiser(DenoiserParams(step_ns=1000, pixel_ns=2.0))
    assert denoiser.batch_ns(plan(rows=1, steps=1, size=10)) == 1200
    assert denoiser.batch_ns(plan(rows=3, steps=1, size=10)) == 1600
    assert denoiser.batch_ns(plan(rows=1, steps=4, size=10)) == 4800


def test_a_batch_takes_its_time() -> None:
    denoiser = SyntheticDenoiser(DenoiserParams(step_ns=2_000_000, pixel_ns=0.0))
    timing = denoiser.run(plan(rows=1, steps=1, size=8))
    assert timing.launched_ns <= timing.started_ns
    assert timing.done_ns - timing.started_ns >= 2_000_000
