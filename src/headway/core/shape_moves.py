"""What control says to a diffusion replica about sizes that it takes and prepares, and its answers (SPEC F5, F8)."""

import msgspec

from headway.core.request import DenoiseShape
from headway.core.units import Ns


class Reshape(msgspec.Struct, frozen=True, tag=True):
    """Control -> worker: take requests of so many pixels in place of those taken so far: end what is there, prepare,
    then take them."""

    number: int
    pixels_min: int
    pixels_max: int | None  # None: any
    cold_ns: Ns  # believed of the preparation


class Reshaped(msgspec.Struct, frozen=True, tag=True):
    """Worker -> control: it takes these sizes now, and preparing them took so long; or it cannot (`error`)."""

    number: int
    pixels_min: int
    pixels_max: int | None
    took_ns: Ns
    prepared: int  # shapes that were new to it; 0: it had run them all before
    error: str | None = None


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Control -> worker: run these shapes while it has time, so that none is cold. Its reports tell (`warm`)."""

    shapes: tuple[DenoiseShape, ...]
    batches: tuple[int, ...] = ()  # most pictures of a pass, of each shape; empty: of its largest batch
