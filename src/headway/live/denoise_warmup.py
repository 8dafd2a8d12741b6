"""Runs a diffusion engine before it counts as ready, and learns from it what its work takes at first (SPEC F2).

Pictures of few shapes and batches go through all stages; `cost.diffusion`'s formula is fitted to what they took. What
plans take later corrects it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from headway.core.artifacts import StageTimes
from headway.core.errors import EngineError
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.ports import DenoiseEngine
from headway.core.reports import DenoiseCoefficients
from headway.core.request import Content, DenoiseShape, DiffusionRequest
from headway.cost.diffusion import tokens_of
from headway.cost.nonnegative import solve_nonnegative

_STEPS: Final = 2  # of every measured request
_RUNS: Final = 3  # of every kind; the first is not measured
_GUIDED: Final = 2.0  # a guidance scale that takes a second pass, where the model has one


class Measured(msgspec.Struct, frozen=True):
    """One request that was run: seconds do not matter, only what they were spent on."""

    shape: DenoiseShape
    pictures: int
    text_ns: int
    step_ns: float
    decode_ns: int


class Probes(msgspec.Struct, frozen=True):
    """What is run: every shape alone, and the first in a batch of so many pictures."""

    shapes: tuple[DenoiseShape, ...]
    batch: int
    form: str  # png; mp4 of a model that makes videos
    fps: int = 0


def warm_up_denoiser(engine: DenoiseEngine, probes: Probes, start: DenoiseCoefficients) -> DenoiseCoefficients:
    """Return the cost that fits; patch, stride, text tokens and passes of `start` stay. Raises EngineError."""
    measured = [_measured(engine, probes, shape, pictures, number) for number, (shape, pictures) in _all(probes)]
    return fitted(measured, start)


def _all(probes: Probes) -> Iterator[tuple[int, tuple[DenoiseShape, int]]]:
    kinds = [(shape, 1) for shape in probes.shapes]
    if probes.batch > 1:
        kinds.insert(1, (probes.shapes[0], probes.batch))
    return enumerate(kinds)


def _measured(engine: DenoiseEngine, probes: Probes, shape: DenoiseShape, pictures: int, number: int) -> Measured:
    """The fastest of two after a first: what is compiled, allocated or read for the first time is not the work's, and
    other replicas load beside this one."""
    first = _RUNS * number
    _run(engine, _request(probes, shape, pictures, first))
    runs = [_run(engine, _request(probes, shape, pictures, first + again)) for again in range(1, _RUNS)]
    times = min(runs, key=lambda run: run.denoise_ns)
    return Measured(shape, pictures, times.text_encode_ns, times.denoise_ns / _STEPS, times.vae_decode_ns)


def _request(probes: Probes, shape: DenoiseShape, pictures: int, number: int) -> DiffusionRequest:
    return DiffusionRequest(
        id=RequestId(f"req-warm-up-{number}"),
        tenant=TenantId("warm-up"),
        model=ModelId("warm-up"),
        steps=_STEPS,
        height=shape.height,
        width=shape.width,
        seed=number,
        arrived_ns=0,
        frames=shape.frames,
        fps=probes.fps,
        guidance_scale=_GUIDED if shape.passes > 1 else 1.0,
        passes=shape.passes,
        n=pictures,
        content=Content(f"warm up {number}", form=probes.form),  # of its own: prompts may be cached
    )


def _run(engine: DenoiseEngine, request: DiffusionRequest) -> StageTimes:
    """All of its steps in one plan. Plans and sequences are numbered below 0, which no machine uses."""
    shape, number = request.shape, -1 - request.seed
    row = DenoiseRow(number, 0, _STEPS, _STEPS, request.n)
    new = (NewDenoise(number, request),)
    done = engine.run(DenoisePlan(number, number - 1, (row,), shape.height, shape.width, shape=shape, new=new))
    if done.failed or done.stages is None:
        why = done.failed[0].message if done.failed else "it does not tell what its stages take"
        size = f"{shape.width}x{shape.height}, {shape.frames} frame(s), {request.n} of them"
        raise EngineError(f"the warm-up of {size} failed: {why}")
    return done.stages


def fitted(measured: Sequence[Measured], start: DenoiseCoefficients) -> DenoiseCoefficients:
    """Return the least-squares fit of a forward pass, by relative error, and the means of the other stages."""
    rows: list[tuple[float, float, float]] = []
    for one in measured:
        tokens, forwards = tokens_of(start, one.shape), one.pictures * max(1, one.shape.passes)
        took = max(1.0, one.step_ns)
        rows.append((1.0 / took, forwards * tokens / took, forwards * tokens * tokens / took))
    fixed_ns, token_ns, pair_ns = solve_nonnegative(rows, [1.0] * len(rows))
    pixels = sum(one.shape.pixels * one.pictures for one in measured)
    prompts = sum(max(1, one.shape.passes) for one in measured)
    return msgspec.structs.replace(
        start,
        base_ns=0.0,
        floor_ns=fixed_ns,
        is_floor_hidden=False,
        token_ns=token_ns,
        pair_ns=pair_ns,
        text_ns=sum(one.text_ns for one in measured) / prompts,
        decode_ns=sum(one.decode_ns for one in measured) / pixels,
    )
