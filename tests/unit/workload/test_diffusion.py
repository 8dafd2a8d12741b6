"""Synthetic pictures and videos."""

from collections import Counter

import pytest
from msgspec.structs import replace

from headway.core.errors import ConfigError
from headway.core.request import DiffusionRequest
from headway.core.units import NS_PER_S
from headway.workload.arrivals import Poisson, Regular
from headway.workload.build import build
from headway.workload.diffusion import DiffusionSource
from headway.workload.mint import Served
from headway.workload.spec import Diffusion, PictureShape, SloParams, Synthetic

SERVED = [Served("llama"), Served("flux", kind="diffusion"), Served("wan", kind="diffusion")]
MIX = Diffusion(
    arrivals=Poisson(rate_per_s=5.0),
    count=2000,
    shapes=(PictureShape(share=3.0, n=2), PictureShape(share=1.0, height=480, width=832, frames=81, fps=16, loras=4)),
)


def made(spec: Diffusion, seed: int = 0) -> list[DiffusionRequest]:
    requests = [one.request for one in DiffusionSource(spec, "w", seed, SERVED).first()]
    assert all(isinstance(request, DiffusionRequest) for request in requests)
    return requests  # type: ignore[return-value]  # just checked


def test_shapes_come_in_their_shares_and_with_all_their_fields() -> None:  # SPEC J2, F1
    requests = made(MIX)
    counted = Counter(request.frames for request in requests)
    assert counted[1] / len(requests) == pytest.approx(0.75, abs=0.03)  # 3 standard deviations of 2000 draws
    still = next(request for request in requests if request.frames == 1)
    video = next(request for request in requests if request.frames == 81)
    assert (still.n, still.loras, still.model) == (2, (), "flux")
    assert (video.height, video.width, video.fps, len(video.loras)) == (480, 832, 16, 1)
    assert len({request.loras for request in requests if request.frames == 81}) == 4


def test_the_rate_is_what_was_asked_for_and_can_be_scaled() -> None:  # SPEC J2
    for scale in (1.0, 4.0):
        last = made(replace(MIX, rate_scale=scale))[-1].arrived_ns
        assert 2000 / (last / NS_PER_S) == pytest.approx(5.0 * scale, rel=0.07)  # 3 standard deviations


def test_the_same_seed_gives_the_same_requests() -> None:  # SPEC J6
    assert made(MIX, 3) == made(MIX, 3) != made(MIX, 4)


def test_a_promise_is_fixed_at_arrival() -> None:  # SPEC L-4
    spec = Diffusion(arrivals=Regular(rate_per_s=1.0), count=3, slo=SloParams(e2e_ms=5000.0), model="wan")
    for request in made(spec):
        assert request.model == "wan"
        assert request.slo.e2e_deadline_ns == request.arrived_ns + 5 * NS_PER_S


def test_what_is_asked_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="model 'llama' is served by no pool; served are: flux, wan"):
        DiffusionSource(Diffusion(model="llama"), "w", 0, SERVED)
    with pytest.raises(ConfigError, match="it needs a model of kind diffusion, which is served by no pool"):
        build([Diffusion()], 0, SERVED[:1])
    with pytest.raises(ConfigError, match="shapes is empty"):
        DiffusionSource(Diffusion(shapes=()), "w", 0, SERVED)


def test_text_and_pictures_are_merged_and_each_goes_to_its_own_kind() -> None:  # SPEC J2
    specs = [Diffusion(name="draw", count=30), Synthetic(name="write", count=30)]
    offered = list(build(specs, 0, SERVED).first())
    assert [one.request.arrived_ns for one in offered] == sorted(one.request.arrived_ns for one in offered)
    assert {(type(one.request).__name__, one.request.model) for one in offered} == {
        ("DiffusionRequest", "flux"),
        ("LlmRequest", "llama"),
    }
