"""The two text encoders, and the half minute that teaches them to say what a caption means.

It stands in for the pretraining that T5 and CLIP bring along: the pooled CLIP vector must name what is at each of
five places, every T5 token the attributes of the object it belongs to. Without it the transformer has to learn to read
and to draw at once, and binds colours to the wrong object for longer.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from .captions import CLASSES, IGNORED, SLOTS, TOKENS, WORDS, targets, tokens
from .scenes import Scene, scenes, shorten
from .training import Log

WIDTH = 128


def new_t5() -> T5EncoderModel:
    return T5EncoderModel(
        T5Config(
            vocab_size=len(WORDS),
            d_model=WIDTH,
            d_kv=32,
            d_ff=2 * WIDTH,
            num_layers=2,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            pad_token_id=0,
            eos_token_id=1,
            dropout_rate=0.0,
        )
    )


def new_clip() -> CLIPTextModel:
    """Two layers: one alone pools the words at the end before any of them has met its position."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(WORDS),
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            projection_dim=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=TOKENS + 4,
            pad_token_id=0,
            bos_token_id=0,
            eos_token_id=1,
        )
    )


class Readers(nn.Module):
    """The linear heads that read the encoders' answers during pretraining; thrown away after."""

    def __init__(self) -> None:
        super().__init__()
        self.pooled, self.each = nn.Linear(WIDTH, SLOTS * CLASSES), nn.Linear(WIDTH, 5 * CLASSES)

    def forward(self, pooled: Tensor, each: Tensor) -> tuple[Tensor, Tensor]:
        return self.pooled(pooled).unflatten(-1, (SLOTS, CLASSES)), self.each(each).unflatten(-1, (5, CLASSES))


def captioned(seed: int, n: int, *, held_out: bool = False) -> list[Scene]:
    """Scenes of which some captions are shortened."""
    rng = np.random.default_rng(seed + 1_000_000)
    return [shorten(rng, s) for s in scenes(seed, n, held_out=held_out)]


def pretrain(t5: T5EncoderModel, clip: CLIPTextModel, steps: int = 500, batch: int = 64) -> None:
    log, readers = Log("text"), Readers()
    told = captioned(50, 8000)
    ids = tokens([s.caption for s in told])
    pooled, each = targets(told, ids)
    weights = [w for m in (t5, clip, readers) for w in m.parameters()]
    adam = torch.optim.AdamW(weights, lr=2e-3, betas=(0.9, 0.98))
    for i in range(steps):
        adam.param_groups[0]["lr"] = 2e-3 * min(1, (i + 1) / 30) * max(0.02, 1 - i / steps)
        rows = torch.randint(0, len(ids), (batch,))
        a, b = readers(clip(ids[rows]).pooler_output, t5(ids[rows])[0])
        loss = cross_entropy(a.flatten(0, 1), pooled[rows].flatten())
        loss = loss + cross_entropy(b.flatten(0, 2), each[rows].flatten(), ignore_index=IGNORED)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adam.step()
        if (i + 1) % 100 == 0:
            log(step=i + 1, loss=loss.item())
    log(**held_out_reading(t5, clip, readers))


@torch.inference_mode()
def held_out_reading(t5: T5EncoderModel, clip: CLIPTextModel, readers: Readers) -> dict[str, float]:
    """Shares of held-out captions that the pooled vector tells in full, and of attributes that the tokens tell."""
    told = captioned(9, 500, held_out=True)
    ids = tokens([s.caption for s in told])
    pooled, each = targets(told, ids)
    a, b = readers(clip(ids).pooler_output, t5(ids)[0])
    whole = (a.argmax(-1) == pooled).all(1).float().mean().item()
    known = each != IGNORED
    return {"captions_told": whole, "attributes_told": (b.argmax(-1) == each)[known].float().mean().item()}
