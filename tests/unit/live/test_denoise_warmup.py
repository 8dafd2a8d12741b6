"""A replica learns what its work takes before it is ready."""

import pytest

from headway.core.errors import EngineError
from headway.core.reports import DenoiseCoefficients
from headway.core.request import DenoiseShape
from headway.cost.diffusion import decode_ns, encode_ns, step_ns
from headway.engines.synthetic.denoise import DenoiserParams, SyntheticDenoiser
from headway.live.denoise_warmup import Measured, Probes, fitted, warm_up_denoiser

START = DenoiseCoefficients(1e9, 1e9, 1e9, 0.0, patch=8, text_tokens=16, passes=2)
SMALL, LARGE = DenoiseShape(64, 64, passes=2), DenoiseShape(128, 128, passes=2)
TRUE = DenoiseCoefficients(
    0.0, 5e6, 2000.0, 3.0, patch=8, text_tokens=16, passes=2, is_floor_hidden=False, text_ns=4e5, decode_ns=7.0
)


def taken(shape: DenoiseShape, pictures: int) -> Measured:
    text_ns = round(encode_ns(TRUE, shape))
    return Measured(shape, pictures, text_ns, step_ns(TRUE, shape, pictures), round(decode_ns(TRUE, shape, pictures)))


def test_what_follows_the_formula_is_found_exactly() -> None:
    # SPEC F2
    found = fitted([taken(SMALL, 1), taken(SMALL, 4), taken(LARGE, 1)], START)
    for shape, pictures in ((SMALL, 2), (LARGE, 3), (DenoiseShape(96, 64, passes=2), 1)):
        assert step_ns(found, shape, pictures) == pytest.approx(step_ns(TRUE, shape, pictures))
        assert decode_ns(found, shape, pictures) == pytest.approx(decode_ns(TRUE, shape, pictures))
        assert encode_ns(found, shape) == pytest.approx(encode_ns(TRUE, shape))


def test_one_shape_alone_gives_no_negative_cost() -> None:
    found = fitted([taken(SMALL, 1)], START)
    assert min(found.floor_ns, found.token_ns, found.pair_ns) >= 0
    assert step_ns(found, SMALL) == pytest.approx(step_ns(TRUE, SMALL))


def test_an_engine_is_run_and_keeps_nothing_of_it() -> None:
    engine = SyntheticDenoiser(DenoiserParams(step_ns=100_000, pixel_ns=0.0, encode_ns=1000, decode_ns=4096))
    shape = DenoiseShape(64, 64)
    cost = warm_up_denoiser(engine, Probes((shape,), 4, "png"), START)
    assert step_ns(cost, shape, 4) == pytest.approx(100_000)
    assert encode_ns(cost, DenoiseShape(64, 64, passes=1)) == pytest.approx(1000)
    assert engine.held == 0


def test_a_shape_that_does_not_fit_ends_the_start() -> None:
    engine = SyntheticDenoiser(DenoiserParams(step_ns=1, row_pixels_max=64 * 64))
    with pytest.raises(EngineError, match="128x128, 1 frame"):
        warm_up_denoiser(engine, Probes((SMALL, LARGE), 1, "png"), START)
