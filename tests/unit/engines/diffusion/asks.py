"""Requests and plans for the engine's tests."""

import io
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from headway.core.artifacts import Denoised, Made
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import Content, DiffusionRequest
from headway.engines.diffusion.engine import DiffusionEngine

STEPS = 4


def asked(**fields: Any) -> DiffusionRequest:
    """One 32 px picture in four steps, to be computed as the pipeline alone would."""
    request = DiffusionRequest(
        id=RequestId("req-1"),
        tenant=TenantId("t"),
        model=ModelId("m"),
        steps=STEPS,
        height=32,
        width=32,
        seed=5,
        arrived_ns=0,
        guidance_scale=3.0,
        deterministic=True,
        content=Content("a red circle on a white background"),
    )
    return msgspec.structs.replace(request, **fields)


def video(**fields: Any) -> DiffusionRequest:
    """Five frames at 4 per second."""
    said = Content("a red circle on a white background", form="mp4")
    return asked(**{"frames": 5, "fps": 4, "content": said, **fields})


def run(
    engine: DiffusionEngine, requests: list[DiffusionRequest], start: int = 0, count: int = STEPS, **plan: Any
) -> Denoised:
    """One plan over rows 0, 1, ...; they are new where it starts at their beginning."""
    first = requests[0]
    rows = tuple(DenoiseRow(seq, start, count, each.steps, each.n) for seq, each in enumerate(requests))
    new = tuple(NewDenoise(seq, each) for seq, each in enumerate(requests) if each.begun == start)
    return engine.run(DenoisePlan(1, 0, rows, first.height, first.width, new=new, **plan))


def made(engine: DiffusionEngine, request: DiffusionRequest, **plan: Any) -> list[Made]:
    """All that one request alone makes."""
    done = run(engine, [request], request.begun, request.steps - request.begun, **plan)
    assert not done.failed, done.failed
    return list(done.made[0].made)


def pixels(body: bytes) -> np.ndarray:
    """Of a picture."""
    return np.asarray(Image.open(io.BytesIO(body)).convert("RGB"))


def picture(size: int = 32, seed: int = 0, form: str = "PNG") -> bytes:
    """A picture of noise."""
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)).save(out, form)
    return out.getvalue()


def mask(size: int = 32, clear: int = 16) -> bytes:
    """A mask whose left part is transparent."""
    alpha = np.full((size, size, 4), 255, np.uint8)
    alpha[:, :clear, 3] = 0
    out = io.BytesIO()
    Image.fromarray(alpha).save(out, "PNG")
    return out.getvalue()
