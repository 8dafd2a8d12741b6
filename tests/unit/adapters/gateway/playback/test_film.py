"""How many chunks a session has (SPEC H5)."""

import msgspec
import pytest
from tests.unit.adapters.gateway.playback.fakes import CHUNKS

from headway.adapters.gateway.playback.film import chunks_of


@pytest.mark.parametrize(
    ("seconds", "stride", "needed", "fitting"),
    [
        (0.1, 1, 1, 1),  # at least one
        (2.0, 1, 1, 1),
        (2.1, 1, 2, 1),
        (8.0, 1, 4, 4),
        (2.1, 4, 1, 1),  # the first one has 5 frames, which are 2.5 s
        (2.6, 4, 2, 1),
        (4.5, 4, 2, 2),
    ],
)
def test_a_length_is_rounded_up_to_whole_chunks_and_a_limit_down(
    seconds: float, stride: int, needed: int, fitting: int
) -> None:
    looks = msgspec.structs.replace(CHUNKS, frame_stride=stride)
    found = [chunks_of(seconds, looks, whole=whole) for whole in (False, True)]
    assert found == [needed, fitting]


def test_a_length_in_tenths_is_not_rounded_up_once_more() -> None:
    looks = msgspec.structs.replace(CHUNKS, fps=10, chunk_frames=1)
    assert chunks_of(2.3, looks, whole=False) == 23  # 2.3 * 10 is more than 23
