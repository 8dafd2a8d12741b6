"""Preparing a replica for sizes that it has not run: one small plan for every shape, before it takes any (SPEC F8)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.reports import DenoiseAbilities, ShapePreparation
from headway.core.request import Content, DenoiseShape, DiffusionRequest
from headway.cost.first_runs import PREPARE_STEPS

STEPS: Final = PREPARE_STEPS  # of a request that prepares, unless told otherwise
Key = tuple[DenoiseShape, int]  # of what is prepared: a shape, and pictures of a pass
_GUIDED: Final = 2.0  # a guidance scale that takes a second pass, where the model has one


class Stock(msgspec.Struct, frozen=True):
    """The shapes that a replica may be asked for, and what it can hold."""

    shapes: tuple[DenoiseShape, ...] = ()
    form: str = "png"  # mp4 of a model that makes videos
    fps: int = 0
    pixels_fit: int | None = None  # of a request, that its memory allows; None: nobody knows
    abilities: DenoiseAbilities | None = None  # what its model can be asked for; None: nobody knows


def warming(stock: Stock, shape: DenoiseShape, pictures: int, number: int, steps: int = STEPS) -> DiffusionRequest:
    """A request of such a shape that nobody asked for. Each `number` has a prompt of its own: prompts are cached."""
    return DiffusionRequest(
        id=RequestId(f"req-warm-up-{number}"),
        tenant=TenantId("warm-up"),
        model=ModelId("warm-up"),
        steps=steps,
        height=shape.height,
        width=shape.width,
        seed=number,
        arrived_ns=0,
        frames=shape.frames,
        fps=stock.fps,
        guidance_scale=_GUIDED if shape.passes > 1 else 1.0,
        passes=shape.passes,
        n=pictures,
        content=Content(f"warm up {number}", form=stock.form),
    )


def warming_plan(request: DiffusionRequest) -> DenoisePlan:
    """All of its steps at once. Plans and sequences are numbered below 0, which no machine uses."""
    shape, number = request.shape, -1 - request.seed
    row = DenoiseRow(number, 0, request.steps, request.steps, request.n)
    new = (NewDenoise(number, request),)
    return DenoisePlan(number, number - 1, (row,), shape.height, shape.width, shape=shape, new=new)


class Preparation:
    """What must run before a replica takes `pixels_min` to `pixels_max`, one plan after the other."""

    def __init__(self, stock: Stock, fresh: Sequence[DenoiseShape], first: int) -> None:
        """`fresh`: the shapes among them that have not run here. `first`: number of the first plan, from 0 up."""
        self._stock, self._left, self._number = stock, list(fresh), first
        self.open: DenoisePlan | None = None

    @property
    def is_over(self) -> bool:
        """Everything has run."""
        return self.open is None and not self._left

    def plan(self) -> DenoisePlan | None:
        """The next plan; None while one is open, or none is left."""
        if self.open is not None or not self._left:
            return None
        self.open = warming_plan(warming(self._stock, self._left.pop(0), 1, self._number))
        self._number += 1
        return self.open

    def done(self) -> None:
        """The open plan is over."""
        self.open = None


def shapes_of(stock: Stock, least: int, most: int | None) -> tuple[DenoiseShape, ...]:
    """The shapes of so many pixels, all frames."""
    return tuple(shape for shape in stock.shapes if least <= shape.pixels and (most is None or shape.pixels <= most))


def size_words(shape: DenoiseShape, pictures: int = 1) -> str:
    """For people, sides as clients name them."""
    frames = f", {shape.frames} frames" if shape.frames > 1 else ""
    return f"{shape.width}x{shape.height}{frames}" + (f" by {pictures}" if pictures > 1 else "")


def shown(
    running: tuple[Key, int] | None, waiting: Mapping[Key, int], asked: Iterable[Key]
) -> tuple[ShapePreparation, ...]:
    """For a report: what runs with its steps, what so many requests wait for, what was asked for; each once."""
    begun = {} if running is None else dict([running])
    return tuple(
        ShapePreparation(
            shape.height,
            shape.width,
            shape.frames,
            pictures,
            "running" if (shape, pictures) in begun else "queued",
            begun.get((shape, pictures), 0),
            STEPS,
            waiting.get((shape, pictures), 0),
        )
        for shape, pictures in dict.fromkeys([*begun, *waiting, *asked])
    )
