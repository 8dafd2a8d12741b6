"""What could never be finished is refused at arrival (vllm#39734, vllm#52520; mini-sglang drops it silently)."""

import pytest
from tests.property.llm_world import make_limits, make_request
from tests.property.rig import Rig

from headway.core.errors import RequestError


# SPEC B1, B8
def test_a_request_larger_than_the_pool_is_refused_with_numbers_and_advice() -> None:
    rig = Rig(limits=make_limits(kv_blocks=8, max_model_len=1000))
    with pytest.raises(RequestError, match=r"req-1 needs 9 KV blocks, replica rep-0 has 8; lower max_tokens") as error:
        rig.new(20, 14)
    assert error.value.code == "unservable"
    assert rig.machine.live == 0


def test_a_request_that_just_fits_the_pool_runs_to_its_end() -> None:
    rig = Rig(limits=make_limits(kv_blocks=8, max_model_len=1000))
    rig.new(20, 13)  # the last token is never fed back
    rig.drain()
    assert rig.ended[1].output_tokens == 13


def test_a_prompt_that_leaves_no_room_to_generate_is_refused() -> None:
    rig = Rig(limits=make_limits(max_model_len=20))
    with pytest.raises(RequestError, match="20 prompt tokens, fake holds 20") as error:
        rig.new(20, 1)
    assert error.value.code == "unservable"


# test_generation_stops_at_the_bound_instead_of_stalling_mid_decode
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_generation_stops_at_the_models_length(depth: int) -> None:
    rig = Rig(limits=make_limits(max_model_len=20), async_depth=depth)
    rig.new(12, 50)
    rig.drain()
    assert rig.ended[1].output_tokens == 8
    assert rig.ended[1].reason.value == "length"


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="empty prompt"):
        Rig().add(make_request(1, ()))


def test_a_resume_with_nothing_left_to_generate_is_refused() -> None:
    with pytest.raises(RequestError, match="emitted 3 of 3"):
        Rig().add(make_request(1, (1, 2), 3), (1, 2, 3))


def test_hashes_of_another_block_size_are_refused() -> None:
    with pytest.raises(RequestError, match="block hashes for 2 full blocks of 4"):
        Rig().add(make_request(1, (1,) * 8, block_size=8))


def test_a_request_without_cache_root_runs_and_is_never_cached() -> None:
    rig = Rig()
    for number in (1, 2):
        rig.add(make_request(number, (1,) * 12, 4, root=b"", hashes=()))
        rig.drain()
    assert rig.machine.counters()["prefix_hit_tokens"] == 0
    assert rig.machine.state.pool.cached == 0
