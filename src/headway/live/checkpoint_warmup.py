"""What saving a request and going on from its checkpoint take of an engine, before it counts as ready (SPEC F6): the
first time of either is not the work's."""

from typing import Final

import msgspec

from headway.core.artifacts import Denoised
from headway.core.errors import EngineError
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.ports import DenoiseEngine
from headway.core.request import DiffusionRequest
from headway.core.units import Ns

_TRIES: Final = 3  # the first is not counted


def checkpoint_ns(engine: DenoiseEngine, request: DiffusionRequest) -> tuple[Ns, Ns]:
    """Of a save and of a resume of such a request of two steps or more; 0 where the engine does not tell.

    Raises EngineError where it makes no checkpoint, or cannot go on from it.
    """
    took = [_once(engine, msgspec.structs.replace(request, seed=request.seed + k)) for k in range(_TRIES)][1:]
    return min(save_ns for save_ns, _ in took), min(resume_ns for _, resume_ns in took)


def _once(engine: DenoiseEngine, request: DiffusionRequest) -> tuple[Ns, Ns]:
    """Plans and sequences are numbered below 0, which no machine uses."""
    seq, shape = -1 - request.seed, request.shape
    first = DenoiseRow(seq, 0, 1, request.steps, request.n)
    rest = DenoiseRow(seq, 1, request.steps - 1, request.steps, request.n)
    plan = DenoisePlan(seq, seq - 1, (first,), shape.height, shape.width, shape=shape, new=(NewDenoise(seq, request),))
    saved = _well(engine.run(msgspec.structs.replace(plan, save=(seq,))), request)
    bodies = [made.body for row in saved.made for made in row.made if made.kind == "checkpoint"]
    if not bodies:
        raise EngineError(f"the engine has made no checkpoint of {request.id}, which it was asked for")
    back = (NewDenoise(seq, msgspec.structs.replace(request, begun=1, checkpoint=bodies[0])),)
    done = _well(engine.run(msgspec.structs.replace(plan, rows=(rest,), leave=(seq,), new=back)), request)
    save_ns = 0 if saved.stages is None else saved.stages.save_ns
    return save_ns, 0 if done.stages is None else done.stages.resume_ns


def _well(done: Denoised, request: DiffusionRequest) -> Denoised:
    if done.failed:
        raise EngineError(f"the warm-up of a checkpoint of {request.id} failed: {done.failed[0].message}")
    return done
