"""The words of the captions and the tokenizer over them; and what each caption says, as targets for the encoders."""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from .scenes import BACKGROUNDS, COLOURS, RADII, RGB, SHAPES, Scene, Thing

TOKENS = 16  # the longest caption has 15, its end included
DIRECTIONS = ("still", "left", "right", "up", "down")
# "in", "sketch", "style" and "neon" wait for adapters that draw in a style.
WORDS = (
    *("<pad>", "</s>", "<unk>", "a", "on", "background", "of"),
    *sorted({*RGB, *SHAPES, *RADII, *DIRECTIONS, "above", "below", "moving", "in", "sketch", "style", "neon"}),
)
PLACE_CENTRES = ((0.5, 0.5), (0.5, 0.26), (0.5, 0.74), (0.26, 0.5), (0.74, 0.5))
SLOTS, CLASSES = 3 * len(PLACE_CENTRES) + 1, 7
SIZES = tuple(RADII)
IGNORED = -100


def new_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, lower case; what is no word of `WORDS` becomes `<unk>`."""
    t = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    t.normalizer = normalizers.Lowercase()
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=t, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=TOKENS
    )


def tokens(captions: Sequence[str]) -> Tensor:
    """`[captions, TOKENS]`"""
    said = new_tokenizer()(
        list(captions), padding="max_length", max_length=TOKENS, truncation=True, return_tensors="pt"
    )
    return said.input_ids


def place(thing: Thing) -> int:
    return min(
        range(len(PLACE_CENTRES)),
        key=lambda i: (PLACE_CENTRES[i][0] - thing.x) ** 2 + (PLACE_CENTRES[i][1] - thing.y) ** 2,
    )


def targets(scenes: Sequence[Scene], ids: Tensor) -> tuple[Tensor, Tensor]:
    """What the captions say, twice.

    For the pooled vector `[scenes, SLOTS]`: shape, colour and size at each of five places (0: nothing there), then the
    background. For every token `[scenes, TOKENS, 5]`: shape, colour, size and place of the object it belongs to, and
    the background; tokens behind the last object belong to none. What a caption leaves unsaid is a class of its own.
    """
    pooled = torch.zeros(len(scenes), SLOTS, dtype=torch.long)
    each = torch.full((len(scenes), TOKENS, 5), IGNORED)
    shape_ids = torch.tensor([WORDS.index(s) for s in SHAPES])
    for i, scene in enumerate(scenes):
        unsaid = "background" in scene.silent
        background = len(BACKGROUNDS) if unsaid else BACKGROUNDS.index(scene.background)
        ends = torch.isin(ids[i], shape_ids).nonzero().flatten().tolist()
        begin = 0
        for end, thing in zip(ends, scene.things, strict=True):
            size = len(SIZES) if "size" in scene.silent else SIZES.index(thing.size)
            said = (SHAPES.index(thing.shape), COLOURS.index(thing.colour), size)
            at = place(thing)
            pooled[i, 3 * at : 3 * at + 3] = torch.tensor(said) + 1
            each[i, begin : end + 1, :4] = torch.tensor([*said, at])
            begin = end + 1
        pooled[i, -1] = background
        each[i, :, 4] = background
    return pooled, each
