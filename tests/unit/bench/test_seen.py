"""What a simulated client saw of a picture or a video."""

import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import picture

from headway.bench.seen import outcome_of
from headway.core.effects import End, ErrorOut
from headway.core.request import DiffusionRequest, FinishReason
from headway.core.units import NS_PER_S
from headway.sim.clients import Stream
from headway.workload.offered import Offered

STILL = picture("img-1", n=3)
VIDEO = replace(STILL, n=1, frames=81, fps=16)


@pytest.mark.parametrize(
    ("request_", "images", "video_s"),
    [(STILL, 3, None), (VIDEO, 0, 81 / 16), (replace(VIDEO, fps=0), 0, None)],
    ids=["pictures", "video", "video without frames per second"],
)
def test_what_came_is_counted_in_its_unit(
    request_: DiffusionRequest, images: int, video_s: float | None
) -> None:  # SPEC I3
    stream = Stream(0)
    stream.end, stream.ended_ns = End(request_.id, FinishReason.STOP, None), 2 * NS_PER_S
    came = outcome_of(Offered(request_, 0), stream, 0)
    assert (came.images, came.video_s, came.times_ns) == (images, video_s, (2 * NS_PER_S,))
    stream.end = End(request_.id, FinishReason.LOST, ErrorOut(503, "lost", ""))
    lost = outcome_of(Offered(request_, 0), stream, 0)
    assert (lost.images, lost.video_s, lost.times_ns, lost.error) == (0, None, (), "lost")
