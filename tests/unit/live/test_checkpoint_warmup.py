"""A replica knows what checkpoints take before it is ready."""

from collections.abc import Iterator

import msgspec
import pytest

from headway.core.artifacts import Denoised
from headway.core.errors import EngineError
from headway.core.plans import DenoisePlan
from headway.core.reports import DenoiseCoefficients, WarmShape
from headway.core.request import DenoiseShape
from headway.engines.synthetic.denoise import DenoiserParams, SyntheticDenoiser
from headway.live.checkpoint_warmup import checkpoint_ns
from headway.live.denoise_warmup import Probes, warm_up_denoiser
from headway.sched.diffusion.warming import Stock, warming

SHAPE = DenoiseShape(64, 64)
REQUEST = warming(Stock(), SHAPE, 1, 3)


class Priced(SyntheticDenoiser):
    """Its first save and resume take far longer than the next ones."""

    def __init__(self) -> None:
        super().__init__(DenoiserParams(step_ns=1))
        self._saves, self._resumes = (iter(times) for times in ((9000, 60, 50), (7000, 30, 40)))

    def run(self, plan: DenoisePlan) -> Denoised:
        done = super().run(plan)
        assert done.stages is not None
        begun = any(new.request.begun for new in plan.new)
        more = {"save_ns": _next(self._saves, bool(plan.save)), "resume_ns": _next(self._resumes, begun)}
        return msgspec.structs.replace(done, stages=msgspec.structs.replace(done.stages, **more))


def _next(times: Iterator[int], is_due: bool) -> int:
    return next(times) if is_due else 0


# SPEC F6
def test_the_first_save_and_resume_are_not_counted_and_nothing_is_kept() -> None:
    engine = Priced()
    assert checkpoint_ns(engine, REQUEST) == (50, 30)
    assert engine.held == 0


def test_the_price_of_every_warm_shape_is_known() -> None:  # SPEC F6, F8
    start = DenoiseCoefficients(0.0, 0.0, 0.0, 0.0)
    (warm,) = warm_up_denoiser(Priced(), Probes(((SHAPE, 2),), "png"), start).shapes
    assert msgspec.structs.replace(warm, first_ns=None) == WarmShape(64, 64, 1, 2, 50, 30)


def test_an_engine_that_does_not_tell_has_no_price() -> None:
    assert checkpoint_ns(SyntheticDenoiser(DenoiserParams(step_ns=1)), REQUEST) == (0, 0)


def test_an_engine_that_cannot_save_or_go_on_is_not_ready() -> None:
    class Forgetful(SyntheticDenoiser):
        def run(self, plan: DenoisePlan) -> Denoised:
            return super().run(msgspec.structs.replace(plan, save=()))

    class Spoiling(SyntheticDenoiser):
        def run(self, plan: DenoisePlan) -> Denoised:
            spoiled = [new.request.begun and msgspec.structs.replace(new.request, checkpoint=b"x") for new in plan.new]
            new = tuple(
                msgspec.structs.replace(new, request=other) if other else new
                for new, other in zip(plan.new, spoiled, strict=True)
            )
            return super().run(msgspec.structs.replace(plan, new=new))

    for engine, words in ((Forgetful, "has made no checkpoint"), (Spoiling, "checkpoint of req-warm-up-3 failed")):
        with pytest.raises(EngineError, match=words):
            checkpoint_ns(engine(DenoiserParams(step_ns=1)), REQUEST)
