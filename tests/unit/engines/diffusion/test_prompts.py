"""Tokens of prompts, and what no encoder reads of them."""

from collections.abc import Callable

import pytest
from tests.unit.engines.diffusion.asks import asked, made, video

from headway.core.artifacts import Made
from headway.core.request import Content
from headway.engines.diffusion.engine import DiffusionEngine

Make = Callable[..., DiffusionEngine]
SAID = "a red circle on a white background"
CUT = "`prompt` has 41 tokens; the text encoder T5 read only the first 16."


def last(engine: DiffusionEngine, family: str, prompt: str, **said: str) -> Made:
    if family == "wan":
        return made(engine, video(content=Content(prompt, form="mp4", **said)))[-1]
    return made(engine, asked(content=Content(prompt, **said)))[-1]


# SPEC H1
@pytest.mark.parametrize("family", ["flux", "pixart", "sd3", "wan"])
def test_a_prompt_is_as_long_as_its_words_not_as_it_is_padded(family: str, engine: Make) -> None:
    read = last(engine(family), family, SAID).read
    assert read is not None
    assert (read.tokens, read.warnings) == (8, ())  # seven words and the end


def test_of_a_template_what_is_passed_on_counts(engine: Make) -> None:
    painter = engine("qwen")
    (embedding,) = painter.stages.encode([SAID])
    read = last(painter, "qwen", SAID).read
    assert read is not None
    assert read.tokens == embedding["prompt"].shape[1]


# SPEC M3
@pytest.mark.parametrize(
    ("family", "readers"), [("flux", ("T5", "CLIP")), ("pixart", ("T5",)), ("sd3", ("T5", "CLIP")), ("wan", ("UMT5",))]
)
def test_what_is_cut_off_is_told(family: str, readers: tuple[str, ...], engine: Make) -> None:
    read = last(engine(family), family, "red " * 40).read
    assert read is not None
    assert (read.tokens, read.warnings) == (16, tuple(CUT.replace("T5", name) for name in readers))


def test_a_negative_prompt_that_is_cut_is_told_where_it_guides(engine: Make) -> None:
    read = last(engine("pixart"), "pixart", SAID, negative_prompt="blue " * 40).read
    assert read is not None
    assert (read.tokens, read.warnings) == (8, (CUT.replace("prompt", "negative_prompt"),))
