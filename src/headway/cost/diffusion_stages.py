"""Whether a stage of a diffusion request should share the denoiser's devices or have its own (SPEC G1, seed 003 5).

Three rules come out of memory alone: pictures up to 1024^2 stay in one process, a video's VAE goes elsewhere, and a
request that passes several models must be split.
"""

from typing import Final, Literal

import msgspec

from headway.core.request import DenoiseShape
from headway.cost.devices import Device
from headway.cost.diffusion_devices import Execution
from headway.cost.diffusion_models import DiffusionModel

Stage = Literal["text_encode", "vae_decode"]
GIB: Final = float(1 << 30)
EMBEDDING_BYTES: Final = 4.2e6  # 512 tokens of 4096 numbers
TOKEN_BYTES: Final = 128.0  # of a latent: 2 x 2 of 16 channels in 16 bits


class Advice(msgspec.Struct, frozen=True):
    """Where one stage should run, and why."""

    stage: Stage
    is_split: bool
    reason: str

    @property
    def where(self) -> str:
        """For people."""
        return "split: processes of its own on other devices" if self.is_split else "monolith: with the denoiser"


def advise(
    model: DiffusionModel, device: Device, run: Execution, shape: DenoiseShape, models: int = 1, share: float = 0.9
) -> tuple[Advice, ...]:
    """Return where text encoding and VAE decoding of such requests should run. `models`: that a request passes;
    `share` of the device's memory may be taken."""
    if models > 1:
        reason = f"a request passes {models} models: their stages cannot be one process"
        return Advice("text_encode", True, reason), Advice("vae_decode", True, reason)
    weights = model.weight_bytes * (0.5 if run.fp8 else 1.0)
    room = share * device.memory_bytes - weights
    text = model.text_bytes
    latent_frames = (shape.frames - 1) // model.frame_stride + 1
    latent = TOKEN_BYTES * latent_frames * shape.height * shape.width / model.patch**2
    peak = model.vae_peak_bytes(shape.height, shape.width, shape.frames)
    text_splits = text > room
    left = room - (0.0 if text_splits else text)
    return (
        Advice("text_encode", text_splits, _reason("text encoders hold", text, room, EMBEDDING_BYTES)),
        Advice("vae_decode", peak > left, _reason("the VAE peaks at", peak, left, latent)),
    )


def _reason(what: str, needed: float, room: float, hop_bytes: float) -> str:
    fits = f"{what} {needed / GIB:.1f} GiB, {max(room, 0.0) / GIB:.1f} GiB are free beside the denoiser"
    if needed > room:
        return f"{fits}: pages or tiles would cost more than a hop of {hop_bytes / 1e6:.1f} MB"
    return f"{fits}: a hop would only add latency"
