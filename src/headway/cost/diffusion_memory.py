"""What a diffusion request holds of a device's memory beside the weights, stage by stage (SPEC F4, G1).

Held from its first step to its last are latents, solver state and embeddings, and of an edit of a part its picture,
noise and mask: by the latent tokens of its pictures, embeddings whatever its size. Activations are there while a
forward pass runs, and the VAE's while it decodes, so that of the last two the larger counts:

needed = held + max(begin, step, decode), each `base + unit * (tokens, token rows, pixels)`.

Rows are those of one forward pass: both passes of a guided step are one up to so many tokens (`joined_tokens_max`), and
one after the other beyond. Before its steps a request encodes its prompt and, for an edit, its picture, once whatever
the number that is made.

In tokens like `cost.diffusion`: a forward pass holds some 19 tensors of the hidden width per token of every row at its
peak (seed 003 3, `diffusion_devices.ACTIVATION_WIDTHS`), a VAE a few hundred bytes per pixel. Of a live engine all six
numbers are fitted to peaks that its warm-up counted (`fitted`).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from headway.core.artifacts import StagePeaks
from headway.core.reports import DenoiseCoefficients, DenoiseMemory
from headway.core.request import DenoiseShape, DiffusionRequest
from headway.cost.batch_sizes import batch_sizes, rows_of
from headway.cost.diffusion import latents_of, passes_of, tokens_of
from headway.cost.nonnegative import solve_nonnegative

MIB: Final = 1 << 20
# Of a finished pixel, three colours each: the decoder's floats, twice again while they are rounded, and bytes. Only
# where tiles are decoded is the picture larger than what is decoded at once.
FRAME_BYTES: Final = 3 * (4 + 4 + 4 + 1)
SCHEDULE_BYTES: Final = 16.0  # of a request's own solver, per step: its time and noise level


class Peak(msgspec.Struct, frozen=True):
    """One request that was run, and what its stages were seen to hold."""

    shape: DenoiseShape
    pictures: int
    bytes: StagePeaks


def held_bytes(
    memory: DenoiseMemory, cost: DenoiseCoefficients, shape: DenoiseShape, pictures: int, *, is_masked: bool = False
) -> int:
    """Of one request of so many pictures, from its first step to its last. Masked: an edit of a part keeps picture and
    noise of each, and its mask."""
    latents = latents_of(cost, shape)
    kept = memory.latent_token * latents * (2 * pictures + 1) if is_masked else 0.0
    return round(memory.held_base + memory.held_token * latents * pictures + kept)


def state_bytes(memory: DenoiseMemory, cost: DenoiseCoefficients, request: DiffusionRequest) -> int:
    """Of a request, from its first step to its last."""
    is_masked = request.content.mask is not None
    return held_bytes(memory, cost, request.shape, request.n, is_masked=is_masked) + round(
        memory.held_step * request.steps
    )


def step_bytes(memory: DenoiseMemory, cost: DenoiseCoefficients, shape: DenoiseShape, pictures: int) -> int:
    """Of one forward pass of so many pictures together."""
    return round(memory.step_base + memory.step_token * _rows(memory, cost, shape, pictures))


def decode_bytes(memory: DenoiseMemory, shape: DenoiseShape, pictures: int) -> int:
    """Of the VAE decode of one request: its pictures go through it together."""
    whole = shape.pixels * pictures
    at_once = _at_once(memory.tile_pixels, shape, pictures)
    return round(memory.decode_base + memory.decode_pixel * at_once + FRAME_BYTES * (whole - at_once))


def begin_bytes(memory: DenoiseMemory, request: DiffusionRequest, size: int = 1) -> int:
    """Of encoding what a batch of `size` such requests begins from."""
    at_once = min(size, memory.encodes_max)
    pixels = request.height * request.width * at_once if request.content.pictures else 0
    return round(memory.begin_base + memory.begin_pixel * pixels)


def working_bytes(memory: DenoiseMemory, cost: DenoiseCoefficients, request: DiffusionRequest, size: int = 1) -> int:
    """Of a batch of `size` such requests, beside what each of them holds. One alone takes passes that have room."""
    shape = request.shape
    if size == 1:
        memory = msgspec.structs.replace(memory, pictures_max=pass_max(memory, cost, request))
    passes = step_bytes(memory, cost, shape, size * request.n)
    at_once = min(size, memory.decodes_max)  # beside each other, or in one pass
    joined = min(size, memory.joined_pixels_max // (shape.pixels * request.n)) if at_once == 1 else 1
    decodes = at_once * decode_bytes(memory, shape, request.n * max(1, joined))
    return max(begin_bytes(memory, request, size), passes, decodes)


def pass_max(memory: DenoiseMemory, cost: DenoiseCoefficients, request: DiffusionRequest) -> int | None:
    """Pictures of the largest forward pass that has room, where a request for several runs alone; at least 1. None: any
    number, as far as is known."""
    most = memory.pictures_max
    if memory.room is None:
        return most
    left = memory.room - state_bytes(memory, cost, request)
    sizes = batch_sizes(request.n if most is None else min(request.n, most))
    fit = [size for size in sizes if step_bytes(memory, cost, request.shape, size) <= left]
    return most if len(fit) == len(sizes) else max(fit, default=1)


def needed_bytes(memory: DenoiseMemory, cost: DenoiseCoefficients, request: DiffusionRequest, size: int = 1) -> int:
    """Of a batch of `size` such requests, at its peak."""
    return size * state_bytes(memory, cost, request) + working_bytes(memory, cost, request, size)


def fits(memory: DenoiseMemory | None, cost: DenoiseCoefficients | None, request: DiffusionRequest) -> bool:
    """False where the request alone needs more than a replica has; True where nobody can tell."""
    if memory is None or cost is None or memory.room is None:
        return True
    return needed_bytes(memory, cost, request) <= memory.room


def shortage(memory: DenoiseMemory, cost: DenoiseCoefficients, request: DiffusionRequest, where: str) -> str:
    """Say of a request that does not fit what it needs, what there is, and what to do."""
    shape, n = request.shape, request.n
    memory = msgspec.structs.replace(memory, pictures_max=pass_max(memory, cost, request))
    parts = (
        ("state", state_bytes(memory, cost, request)),
        ("encoding what it begins with", begin_bytes(memory, request)),
        ("a denoise step", step_bytes(memory, cost, shape, n)),
        ("the VAE decode", decode_bytes(memory, shape, n)),
    )
    size = f"{shape.width}x{shape.height}"
    frames = f", {shape.frames} frames" if shape.frames > 1 else ""
    smaller = [("a smaller size", True), ("fewer frames", shape.frames > 1), ("fewer pictures", n > 1)]
    advice = f"ask for {' or '.join(words for words, can_be in smaller if can_be)}"
    if parts[3][1] > max(parts[1][1], parts[2][1]):
        advice += ", or let the operator decode in (smaller) tiles: diffusion.tile_pixels"
    return (
        f"request {request.id} ({size}{frames}, {n} picture(s)) needs {needed_bytes(memory, cost, request)} bytes of "
        f"memory beside the weights ({', '.join(f'{amount} for {what}' for what, amount in parts)}); {where} has "
        f"{memory.room}: {advice}"
    )


class Limits(msgspec.Struct, frozen=True):
    """How an engine runs its stages (`DenoiseMemory`)."""

    tile_pixels: int | None = None
    joined_tokens_max: int | None = None
    decodes_max: int = 1
    joined_pixels_max: int = 0
    encodes_max: int = 1


def fitted(peaks: Sequence[Peak], cost: DenoiseCoefficients, limits: Limits | None = None) -> DenoiseMemory:
    """Least squares by relative error of what was counted, raised until no count lies above it."""
    limits = limits or Limits()
    tile_pixels, joined = limits.tile_pixels, limits.joined_tokens_max
    none = DenoiseMemory(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, tile_pixels=tile_pixels, joined_tokens_max=joined)
    latents = [float(latents_of(cost, one.shape) * one.pictures) for one in peaks]
    held = [(size, one.bytes.held_bytes) for size, one in zip(latents, peaks, strict=True)]
    step = [(_rows(none, cost, one.shape, one.pictures), one.bytes.step_bytes) for one in peaks]
    at_once = [float(_at_once(tile_pixels, one.shape, one.pictures)) for one in peaks]
    decode = [(size, _without_frames(one, tile_pixels)) for size, one in zip(at_once, peaks, strict=True)]
    begin = float(max((one.bytes.begin_bytes for one in peaks), default=0))
    found = DenoiseMemory(*_line(held), *_line(step), *_line(decode), begin_base=begin)
    return msgspec.structs.replace(
        found,
        tile_pixels=tile_pixels,
        joined_tokens_max=joined,
        decodes_max=limits.decodes_max,
        encodes_max=limits.encodes_max,
        joined_pixels_max=limits.joined_pixels_max,
        held_step=SCHEDULE_BYTES,
        latent_token=max(
            (one.bytes.latent_bytes / size for size, one in zip(latents, peaks, strict=True)), default=0.0
        ),
    )


def with_edit(memory: DenoiseMemory, edit: Peak) -> DenoiseMemory:
    """With what encoding a picture of this shape was seen to hold beyond the prompt."""
    more = max(0.0, edit.bytes.begin_bytes - memory.begin_base)
    return msgspec.structs.replace(memory, begin_pixel=more / (edit.shape.height * edit.shape.width))


def with_image_prompt(memory: DenoiseMemory, cost: DenoiseCoefficients, shown: Peak) -> DenoiseMemory:
    """With what a picture beside the words was seen to hold beyond them. It is room for all requests: the embedding is
    a few kilobytes, and its encoder's activations are those of one small picture."""
    shape = shown.shape
    held = shown.bytes.held_bytes - held_bytes(memory, cost, shape, shown.pictures)
    step = shown.bytes.step_bytes - step_bytes(memory, cost, shape, shown.pictures)
    return msgspec.structs.replace(
        memory,
        held_base=memory.held_base + max(0, held),
        step_base=memory.step_base + max(0, step),
        begin_base=max(memory.begin_base, float(shown.bytes.begin_bytes)),
    )


def _rows(memory: DenoiseMemory, cost: DenoiseCoefficients, shape: DenoiseShape, pictures: int) -> float:
    """Tokens of all rows of the largest forward pass."""
    passes, latents = passes_of(cost, shape), latents_of(cost, shape)
    rows = rows_of(pictures, passes, latents, memory.joined_tokens_max, memory.pictures_max)
    return float(tokens_of(cost, shape) * max(rows))


def _at_once(tile_pixels: int | None, shape: DenoiseShape, pictures: int) -> int:
    frame = shape.height * shape.width
    return (frame if tile_pixels is None else min(frame, tile_pixels)) * shape.frames * pictures


def _without_frames(one: Peak, tile_pixels: int | None) -> int:
    whole = one.shape.pixels * one.pictures
    return max(0, one.bytes.decode_bytes - FRAME_BYTES * (whole - _at_once(tile_pixels, one.shape, one.pictures)))


def _line(counted: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Base and unit. Of one size alone nothing can be told apart: all of it is taken to grow with the size."""
    seen = [(size, amount) for size, amount in counted if amount > 0]
    if not seen:
        return 0.0, 0.0
    if len({size for size, _ in seen}) == 1:
        return 0.0, max(amount / size for size, amount in seen)
    base, unit = solve_nonnegative([(1.0 / amount, size / amount) for size, amount in seen], [1.0] * len(seen))
    short = max(amount / (base + unit * size) for size, amount in seen)
    return base * max(1.0, short), unit * max(1.0, short)
