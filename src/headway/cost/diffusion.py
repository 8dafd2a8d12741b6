"""What a diffusion request takes, known when it arrives (SPEC F2): text, VAE encode, steps, VAE decode.

t = t_text + t_vae_encode + steps * t_forward(rows * passes) / speedup * attachments + t_vae

in tokens, not pixels: tokens = latent patches + prompt tokens + reference tokens, so that an edit whose reference is as
large as its picture doubles the tokens and quadruples the attention. A forward pass of b pictures of n tokens takes
base + token * b * n + pair * b * n^2, at least its floor; MFU(b)/MFU(1) follows from it (`gain`). The rows of a step
are pictures times passes: the two branches of guidance are a batch of two where they are small enough to share a
forward pass, and two forward passes, each with its base and floor, where the engine runs them apart.
"""

import msgspec

from headway.core.reports import DenoiseCoefficients
from headway.core.request import DenoiseShape, DiffusionRequest
from headway.core.units import NS_PER_S, Ns
from headway.cost.batch_sizes import rows_of

USD_PER_DEVICE_HOUR = 2.5  # CONTRACT, default price sheet; seed 003 9


def latents_of(cost: DenoiseCoefficients, shape: DenoiseShape) -> int:
    """Return the latent patches of one picture or video."""
    latent_frames = (shape.frames - 1) // cost.frame_stride + 1
    return -(-shape.height // cost.patch) * -(-shape.width // cost.patch) * latent_frames


def tokens_of(cost: DenoiseCoefficients, shape: DenoiseShape) -> int:
    """Return the length of the sequence of one picture or video: latent patches, prompt and references."""
    return latents_of(cost, shape) + cost.text_tokens + shape.reference_tokens


def passes_of(cost: DenoiseCoefficients, shape: DenoiseShape) -> int:
    """Return the forward passes of a step: what the request says, else the model's."""
    return shape.passes or cost.passes


def forwards_of(cost: DenoiseCoefficients, shape: DenoiseShape, pictures: int) -> list[int]:
    """Return the rows of each forward pass of one step of so many pictures."""
    passes, latents = passes_of(cost, shape), latents_of(cost, shape)
    return rows_of(pictures, passes, latents, cost.joined_tokens_max, cost.pictures_max)


def forward_ns(cost: DenoiseCoefficients, shape: DenoiseShape, rows: int) -> float:
    """Time of one forward pass of `rows` pictures, without attachments."""
    tokens = tokens_of(cost, shape)
    device_ns = cost.base_ns + rows * (cost.token_ns * tokens + cost.pair_ns * tokens * tokens)
    return max(device_ns, cost.floor_ns) if cost.is_floor_hidden else device_ns + cost.floor_ns


def step_ns(cost: DenoiseCoefficients, shape: DenoiseShape, pictures: int = 1) -> float:
    """Mean time of one denoise step: every pass of every picture, with attachments and step cache."""
    extra = 1.0 + cost.control_share * shape.control_nets + cost.lora_share * shape.loras
    extra += cost.image_prompt_share * shape.image_prompts
    return sum(forward_ns(cost, shape, rows) for rows in forwards_of(cost, shape, pictures)) * extra / cost.speedup


def encode_ns(cost: DenoiseCoefficients, shape: DenoiseShape) -> float:
    """Time before the first step: prompt (and its empty twin where there are two passes), references, image prompts."""
    return (
        cost.text_ns * passes_of(cost, shape)
        + cost.reference_ns * shape.reference_tokens
        + cost.image_prompt_ns * shape.image_prompts
    )


def begin_ns(cost: DenoiseCoefficients, request: DiffusionRequest) -> float:
    """Time to encode the picture that a request begins from, however many are made; 0 from noise."""
    return cost.begin_ns * request.height * request.width if request.content.pictures else 0.0


def decode_ns(cost: DenoiseCoefficients, shape: DenoiseShape, pictures: int = 1) -> float:
    """Time after the last step: latents to pixels, one picture after the other."""
    return cost.decode_ns * shape.pixels * pictures


def gain(cost: DenoiseCoefficients, shape: DenoiseShape, pictures: int) -> float:
    """MFU(b)/MFU(1): how much more a batch of `pictures` gets done per second than one after the other."""
    return pictures * step_ns(cost, shape) / step_ns(cost, shape, pictures)


class Stages(msgspec.Struct, frozen=True):
    """Seconds of one request alone on a replica, by stage."""

    text_encode: float
    vae_encode: float
    denoise: float
    vae_decode: float

    @property
    def total(self) -> float:
        """From the first to the last."""
        return self.text_encode + self.vae_encode + self.denoise + self.vae_decode


def stages(cost: DenoiseCoefficients, request: DiffusionRequest) -> Stages:
    """Return what each stage of a request takes."""
    shape = request.shape
    text_ns = cost.text_ns * passes_of(cost, shape) + cost.image_prompt_ns * shape.image_prompts
    return Stages(
        text_ns / NS_PER_S,
        (encode_ns(cost, shape) - text_ns + begin_ns(cost, request)) / NS_PER_S,
        (request.steps - request.skipped_steps) * step_ns(cost, shape, request.n) / NS_PER_S,
        decode_ns(cost, shape, request.n) / NS_PER_S,
    )


def left_ns(cost: DenoiseCoefficients, request: DiffusionRequest, done: int | None = None) -> Ns:
    """Return the time until a request is over that has `done` steps behind it (None: those that it came with).

    The first steps of an edit that begins from a picture are counted and not run.
    """
    shape, done = request.shape, request.begun if done is None else done
    before = 0.0 if done else encode_ns(cost, shape) + begin_ns(cost, request)
    after = decode_ns(cost, shape, request.n)
    steps = request.steps - max(done, request.skipped_steps)
    return round(before + steps * step_ns(cost, shape, request.n) + after)


class Bill(msgspec.Struct, frozen=True):
    """What a request costs, before it starts."""

    seconds: float
    gpu_seconds: float
    price_usd: float


def bill(cost: DenoiseCoefficients, request: DiffusionRequest, usd_per_hour: float = USD_PER_DEVICE_HOUR) -> Bill:
    """Return duration, GPU-seconds and price of a request."""
    seconds = stages(cost, request).total
    gpu_seconds = seconds * cost.devices
    return Bill(seconds, gpu_seconds, price_usd(gpu_seconds, usd_per_hour))


def price_usd(gpu_seconds: float, usd_per_hour: float = USD_PER_DEVICE_HOUR) -> float:
    """GPU-seconds times rate."""
    return gpu_seconds * usd_per_hour / 3600


def devices_needed(rate_per_s: float, gpu_seconds: float, load: float = 1.0) -> float:
    """SPEC F3: devices = rate * GPU-seconds per item, for a mean load of `load`. Round it up for a purchase.

    It knows no queue: at load 1 waits grow without bound, so that an SLO needs more (`headway plan`).
    """
    return rate_per_s * gpu_seconds / load
