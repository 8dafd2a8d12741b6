"""What a request holds beside the weights (SPEC F4, G1)."""

import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import COST, picture

from headway.core.artifacts import StagePeaks
from headway.core.reports import DenoiseMemory
from headway.core.request import Content, DenoiseShape
from headway.cost.diffusion_memory import (
    FRAME_BYTES,
    Limits,
    Peak,
    begin_bytes,
    decode_bytes,
    fits,
    fitted,
    held_bytes,
    needed_bytes,
    shortage,
    step_bytes,
    with_edit,
    with_image_prompt,
)

# A picture of 64 x 64 has 16 tokens and 4096 pixels.
MEMORY = DenoiseMemory(100.0, 2.0, 1000.0, 5.0, 0.0, 3.0, room=50_000)
SMALL, LARGE = DenoiseShape(64, 64, passes=1), DenoiseShape(128, 128, passes=1)
STATE = 100 + 2 * 16  # of one picture of 64 px


def test_the_larger_of_step_and_decode_is_needed_beside_the_state() -> None:
    assert needed_bytes(MEMORY, COST, picture("req-1")) == STATE + 3 * 4096
    many = replace(MEMORY, step_token=5000.0)
    assert needed_bytes(many, COST, picture("req-1")) == STATE + (1000 + 5000 * 16)


def test_rows_of_a_batch_are_stepped_together_and_decoded_one_after_the_other() -> None:
    alone, three = (needed_bytes(MEMORY, COST, picture("req-1"), size) for size in (1, 3))
    assert three - alone == 2 * STATE  # the decode is the larger part, and is of one
    assert step_bytes(MEMORY, COST, SMALL, 3) == 1000 + 5 * 16 * 3
    assert step_bytes(MEMORY, COST, replace(SMALL, passes=2), 3) == 1000 + 5 * 16 * 3 * 2


def test_a_request_for_more_pictures_than_run_together_takes_several_passes() -> None:
    bounded = replace(MEMORY, pictures_max=4)
    assert step_bytes(bounded, COST, SMALL, 10) == step_bytes(MEMORY, COST, SMALL, 4)
    assert held_bytes(bounded, COST, SMALL, 10) == 100 + 2 * 16 * 10


def test_tiles_bound_what_is_decoded_at_once_and_not_the_frames_themselves() -> None:
    tiled = replace(MEMORY, tile_pixels=1024)
    assert decode_bytes(MEMORY, SMALL, 1) == 3 * 4096
    assert decode_bytes(tiled, SMALL, 1) == 3 * 1024 + FRAME_BYTES * 3072
    assert decode_bytes(tiled, DenoiseShape(64, 64, 9), 1) == 9 * decode_bytes(tiled, SMALL, 1)


# Both passes of a guided step are one forward pass up to 256 tokens only (`engines.diffusion.batch`).
def test_passes_that_run_one_after_the_other_are_not_held_together() -> None:
    guided, joined = replace(SMALL, passes=2), replace(MEMORY, joined_tokens_max=64)
    assert step_bytes(joined, COST, guided, 4) == step_bytes(MEMORY, COST, guided, 4)
    assert step_bytes(joined, COST, guided, 5) == step_bytes(MEMORY, COST, SMALL, 5)
    assert step_bytes(joined, COST, SMALL, 5) == step_bytes(MEMORY, COST, SMALL, 5)
    bounded = replace(joined, pictures_max=8)  # ten take passes of eight and of two: apart, and as one
    assert step_bytes(bounded, COST, guided, 10) == step_bytes(MEMORY, COST, SMALL, 8)


# SPEC F1, F4
def test_an_edit_holds_what_encodes_its_picture() -> None:
    memory = replace(MEMORY, begin_base=7.0, begin_pixel=9.0)
    plain = picture("req-1")
    edit = replace(plain, content=Content("x", pictures=(b"png",)))
    assert (begin_bytes(memory, plain), begin_bytes(memory, edit)) == (7, 7 + 9 * 4096)
    assert needed_bytes(memory, COST, plain) == needed_bytes(MEMORY, COST, plain)
    assert needed_bytes(memory, COST, edit, 3) == 3 * STATE + 7 + 9 * 4096  # one after the other
    assert f"{7 + 9 * 4096} for encoding" in shortage(memory, COST, edit, "rep-0")


# SPEC G1
def test_processes_of_a_stage_decode_beside_each_other() -> None:
    memory = replace(MEMORY, decodes_max=2)
    needed = [needed_bytes(memory, COST, picture("req-1"), size) for size in (1, 2, 3)]
    assert needed == [size * STATE + min(2, size) * 3 * 4096 for size in (1, 2, 3)]


# SPEC G1
def test_processes_of_a_stage_encode_pictures_beside_each_other() -> None:
    memory = replace(MEMORY, begin_base=7.0, begin_pixel=90.0, encodes_max=2)
    edit = replace(picture("req-1"), content=Content("x", pictures=(b"png",)))
    needed = [needed_bytes(memory, COST, edit, size) for size in (1, 2, 3)]
    assert needed == [size * STATE + 7 + 90 * 4096 * min(2, size) for size in (1, 2, 3)]


# SPEC F4
def test_requests_that_are_decoded_in_one_pass_hold_what_all_of_them_take() -> None:
    memory = replace(MEMORY, joined_pixels_max=2 * 4096)
    needed = [needed_bytes(memory, COST, picture("req-1"), size) for size in (1, 2, 3, 8)]
    assert needed == [size * STATE + min(2, size) * 3 * 4096 for size in (1, 2, 3, 8)]
    smaller = replace(MEMORY, joined_pixels_max=4095)
    assert needed_bytes(smaller, COST, picture("req-1"), 2) == 2 * STATE + 3 * 4096


def test_nothing_is_refused_where_nobody_can_tell() -> None:
    large = picture("req-1", size=2048)
    assert not fits(MEMORY, COST, large)
    for memory, cost in ((None, COST), (MEMORY, None), (replace(MEMORY, room=None), COST)):
        assert fits(memory, cost, large)


def test_a_shortage_says_what_is_needed_what_there_is_and_what_to_do() -> None:  # FramePack#25, ai-toolkit PR#819
    asked = picture("req-1", size=128, n=2)
    words = shortage(MEMORY, COST, asked, "rep-0")
    assert f"needs {needed_bytes(MEMORY, COST, asked)} bytes" in words
    assert f"{3 * 2 * 128 * 128} for the VAE decode" in words
    assert "rep-0 has 50000: ask for a smaller size or fewer pictures" in words
    assert "diffusion.tile_pixels" in words
    stepping = shortage(replace(MEMORY, step_token=1e6), COST, asked, "rep-0")
    assert "tile_pixels" not in stepping  # tiles would not help


def seen(shape: DenoiseShape, pictures: int) -> Peak:
    held, step = held_bytes(MEMORY, COST, shape, pictures), step_bytes(MEMORY, COST, shape, pictures)
    return Peak(shape, pictures, StagePeaks(held, step, decode_bytes(MEMORY, shape, pictures)))


def test_counts_that_follow_the_formula_are_found_again() -> None:
    found = fitted([seen(SMALL, 1), seen(LARGE, 1), seen(SMALL, 4)], COST)
    for shape, pictures in ((DenoiseShape(96, 64, passes=1), 2), (DenoiseShape(256, 256, passes=1), 1)):
        assert held_bytes(found, COST, shape, pictures) == pytest.approx(
            held_bytes(MEMORY, COST, shape, pictures), abs=2
        )
        assert step_bytes(found, COST, shape, pictures) == pytest.approx(
            step_bytes(MEMORY, COST, shape, pictures), abs=2
        )
        assert decode_bytes(found, shape, pictures) == pytest.approx(decode_bytes(MEMORY, shape, pictures), abs=2)


def test_what_begins_is_found_again_and_how_the_engine_runs_is_kept() -> None:
    peaks = [replace(seen(shape, 1), bytes=replace(seen(shape, 1).bytes, begin_bytes=70)) for shape in (SMALL, LARGE)]
    found = fitted(peaks, COST, Limits(joined_tokens_max=64, decodes_max=2, encodes_max=3))
    assert (found.begin_base, found.joined_tokens_max, found.decodes_max, found.encodes_max) == (70.0, 64, 2, 3)
    edited = with_edit(found, Peak(SMALL, 1, StagePeaks(0, 0, 0, 70 + 5 * 4096)))
    assert (edited.begin_base, edited.begin_pixel) == (70.0, 5.0)
    assert with_edit(found, Peak(SMALL, 1, StagePeaks(0, 0, 0, 60))).begin_pixel == 0.0


# SPEC F2, G2
def test_a_picture_beside_the_words_raises_what_all_requests_are_given() -> None:
    held, step = held_bytes(MEMORY, COST, SMALL, 1), step_bytes(MEMORY, COST, SMALL, 1)
    raised = with_image_prompt(MEMORY, COST, Peak(SMALL, 1, StagePeaks(held + 3, step + 5, 0, 70)))
    assert held_bytes(raised, COST, SMALL, 1) == held + 3
    assert step_bytes(raised, COST, SMALL, 1) == step + 5
    assert raised.begin_base == 70.0
    assert with_image_prompt(raised, COST, Peak(SMALL, 1, StagePeaks(held, step, 0, 60))) == raised


def test_no_count_lies_above_what_is_predicted() -> None:
    peaks = [Peak(SMALL, 1, StagePeaks(9, 900, 90)), Peak(LARGE, 1, StagePeaks(60, 2000, 100))]
    peaks.append(Peak(SMALL, 4, StagePeaks(20, 3000, 300)))
    found = fitted(peaks, COST)
    for peak in peaks:
        assert held_bytes(found, COST, peak.shape, peak.pictures) >= peak.bytes.held_bytes
        assert step_bytes(found, COST, peak.shape, peak.pictures) >= peak.bytes.step_bytes
        assert decode_bytes(found, peak.shape, peak.pictures) >= peak.bytes.decode_bytes


def test_of_one_size_alone_all_is_taken_to_grow_with_it() -> None:  # rather too much than too little
    found = fitted([Peak(SMALL, 1, StagePeaks(160, 1600, 4096))], COST)
    assert (found.held_base, found.held_token, found.step_token, found.decode_pixel) == (0.0, 10.0, 100.0, 1.0)


def test_a_stage_in_another_process_holds_nothing_here() -> None:
    found = fitted([Peak(SMALL, 1, StagePeaks(160, 1600, 0)), Peak(LARGE, 1, StagePeaks(640, 6400, 0))], COST)
    assert decode_bytes(found, LARGE, 3) == 0
