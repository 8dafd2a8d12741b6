"""The Wan-class video model: its text encoder and what that is taught, its transformer, its pipeline, its clips."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import UMT5Config, UMT5EncoderModel

from .captions import CLASSES, IGNORED, TOKENS, WORDS, new_tokenizer, tokens
from .clips import LAP, SIDE, clips, targets
from .oracle import Pixels
from .training import Log

READ = 128  # numbers that tell a word of a caption
WIDTH, HEADS, BLOCKS = 192, 6, 4
SHIFT = 6.0  # of the sampler; more than for pictures, since many frames tell the same


def new_text() -> UMT5EncoderModel:
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=len(WORDS),
            d_model=READ,
            d_kv=32,
            d_ff=2 * READ,
            num_layers=2,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            pad_token_id=0,
            eos_token_id=1,
            dropout_rate=0.0,
        )
    )


def new_transformer(channels: int) -> WanTransformer3DModel:
    """2.2 million weights over tokens of a lap and 16 x 16 pixels; the output begins as zero."""
    model = WanTransformer3DModel(
        patch_size=(LAP, 1, 1),
        num_attention_heads=HEADS,
        attention_head_dim=WIDTH // HEADS,
        in_channels=channels,
        out_channels=channels,
        text_dim=READ,
        freq_dim=64,
        ffn_dim=2 * WIDTH,
        num_layers=BLOCKS,
        rope_max_seq_len=256,
    )
    nn.init.zeros_(model.proj_out.weight)
    nn.init.zeros_(model.proj_out.bias)
    return model


def read(text: UMT5EncoderModel, ids: Tensor) -> Tensor:
    """`[captions, TOKENS, READ]`, zero behind each caption's end, as WanPipeline hands it on."""
    said = (ids != 0).long()
    return text(ids, said).last_hidden_state * said[..., None]


def pretrain(text: UMT5EncoderModel, steps: int = 400, batch: int = 64) -> None:
    """Teaches every token of a caption to tell the clip's shape, colour, size, direction and background."""
    log, reader = Log("video text"), nn.Linear(READ, 5 * CLASSES)
    told = clips(80, 4000, terse=0.25)
    ids = tokens([c.caption for c in told])
    each = targets(told, ids)
    weights = [*text.parameters(), *reader.parameters()]
    adam = torch.optim.AdamW(weights, lr=2e-3, betas=(0.9, 0.98))
    for i in range(steps):
        adam.param_groups[0]["lr"] = 2e-3 * min(1, (i + 1) / 30) * max(0.02, 1 - i / steps)
        rows = torch.randint(0, len(ids), (batch,))
        answers = reader(read(text, ids[rows])).unflatten(-1, (5, CLASSES))
        adam.zero_grad()
        cross_entropy(answers.flatten(0, 2), each[rows].flatten(), ignore_index=IGNORED).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adam.step()
    told = clips(81, 300, held_out=True)
    ids = tokens([c.caption for c in told])
    each = targets(told, ids)
    with torch.inference_mode():
        right = (reader(read(text, ids)).unflatten(-1, (5, CLASSES)).argmax(-1) == each)[each != IGNORED]
    log(attributes_told=right.float().mean().item())


@dataclass
class TinyWan:
    vae: AutoencoderKLWan
    text: UMT5EncoderModel
    transformer: WanTransformer3DModel

    @classmethod
    def new(cls, vae: Path) -> "TinyWan":
        autoencoder = AutoencoderKLWan.from_pretrained(vae).eval()
        return cls(autoencoder, new_text(), new_transformer(autoencoder.config.z_dim))

    @classmethod
    def load(cls, folder: Path) -> "TinyWan":
        pipe = load_pipeline(folder)
        return cls(pipe.vae, pipe.text_encoder, pipe.transformer)

    def save(self, folder: Path) -> None:
        parts = (self.vae, self.text, self.transformer)
        modes = [p.training for p in parts]
        WanPipeline(
            new_tokenizer(),
            self.text.eval(),
            self.vae.eval(),
            FlowMatchEulerDiscreteScheduler(shift=SHIFT),
            self.transformer.eval(),
        ).save_pretrained(folder)
        for part, mode in zip(parts, modes, strict=True):
            part.train(mode)


def load_pipeline(folder: Path) -> WanPipeline:
    """`WanPipeline.from_pretrained`, but for the transformer: diffusers 0.42 loads one only beside `accelerate`."""
    transformer = WanTransformer3DModel.from_config(WanTransformer3DModel.load_config(folder / "transformer"))
    transformer.load_state_dict(load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors"))
    pipe = WanPipeline.from_pretrained(folder, transformer=transformer.eval())
    pipe.set_progress_bar_config(disable=True)
    return pipe


@dataclass(frozen=True)
class VideoSampling:
    frames: int = 8
    steps: int = 12
    guidance: float = 2.5
    seed: int = 0


def timesteps(t: Tensor, clips: Tensor, given: int) -> Tensor:
    """`t` `[clips]`, or one a token, 0 for the first `given` frames of `clips` `[clips, channels, frames, h, w]`.

    The class knows this form from the Wan 2.2 with one timestep per token.
    """
    if not given:
        return t
    frames, height, width = clips.shape[2:]
    each = t[:, None].repeat(1, frames // LAP * height * width)
    each[:, : given // LAP * height * width] = 0
    return each


def begin_with(pipe: WanPipeline, captions: Sequence[str], how: VideoSampling) -> Tensor:
    """The normalised latents of a first lap, as `generate` makes it."""
    return asked(pipe, captions, how, "latent")


@torch.inference_mode()
def go_on(pipe: WanPipeline, captions: Sequence[str], before: Tensor, how: VideoSampling) -> Tensor:
    """The lap after `before`, both `[clips, channels, LAP, h, w]` (normalised latents); the i-th from `seed + i`."""
    told, silence = (
        pipe.encode_prompt(list(c), do_classifier_free_guidance=False, max_sequence_length=TOKENS)[0]
        for c in (captions, [""] * len(captions))
    )
    x = torch.stack(
        [
            torch.randn(before.shape[1:], generator=torch.Generator().manual_seed(how.seed + i))
            for i in range(len(captions))
        ]
    )
    solver = FlowMatchEulerDiscreteScheduler.from_config(pipe.scheduler.config)
    solver.set_timesteps(how.steps)
    for t in solver.timesteps:
        whole = torch.cat([before, x], 2)
        at = timesteps(t.expand(len(x)), whole, LAP)
        with_words, without = (
            pipe.transformer(whole, at, said, return_dict=False)[0][:, :, LAP:] for said in (told, silence)
        )
        x = solver.step(without + how.guidance * (with_words - without), t, x, return_dict=False)[0]
    return x


@torch.inference_mode()
def seen(pipe: WanPipeline, latents: Tensor) -> list[Pixels]:
    """Frames of normalised latents, as WanPipeline decodes them."""
    config = pipe.vae.config
    mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (config.latents_mean, config.latents_std))
    video = pipe.vae.decode(latents * std + mean, return_dict=False)[0]
    return [
        (clip * 255).round().astype("uint8") for clip in pipe.video_processor.postprocess_video(video, output_type="np")
    ]


def generate(pipe: WanPipeline, captions: Sequence[str], how: VideoSampling) -> list[Pixels]:
    """One clip `[frames, SIDE, SIDE, 3]` a caption, the i-th from the noise of `seed + i`.

    WanPipeline rounds the number of frames to one more than a multiple of the autoencoder's factor in time, which is 1
    here: it always adds one.
    """
    out = asked(pipe, captions, how, "np")
    return [(clip * 255).round().astype("uint8") for clip in out]


def asked(pipe: WanPipeline, captions: Sequence[str], how: VideoSampling, form: str) -> Any:
    """What the pipeline answers, in one of its own forms."""
    return pipe(
        list(captions),
        negative_prompt=[""] * len(captions),
        height=SIDE,
        width=SIDE,
        num_frames=how.frames - 1,
        num_inference_steps=how.steps,
        guidance_scale=how.guidance,
        max_sequence_length=TOKENS,
        generator=[torch.Generator().manual_seed(how.seed + i) for i in range(len(captions))],
        output_type=form,
    ).frames
