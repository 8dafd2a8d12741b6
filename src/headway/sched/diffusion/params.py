"""Settings of the diffusion machine."""

from typing import Annotated, Final, Literal

import msgspec

from headway.core.errors import ConfigError
from headway.core.request import DenoiseShape
from headway.core.units import Ns, ns_from_s
from headway.cost.diffusion_belief import DenoiseCost
from headway.sched.diffusion.protocols import OrderPolicy
from headway.sched.registry import PolicyChoice, select

ORDERS: Final = "headway.sched.diffusion.policies"

Positive = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]


class ShapeCap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A smaller batch for one shape."""

    height: Positive
    width: Positive
    batch_max: Positive
    frames: Positive = 1


class Preemption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A batch may be interrupted at a step boundary, and goes on later from where it was."""

    times_max: Annotated[int, msgspec.Meta(ge=1)] = 2  # of one request; then its batch runs to its end
    resident_max: Annotated[int, msgspec.Meta(ge=0)] = 4  # interrupted rows that stay in the engine; more are saved
    price_s: Annotated[float, msgspec.Meta(ge=0)] = 0.05  # device time lost by one interruption, until that is measured


class Watchdog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When an engine counts as stuck: its requests go on elsewhere, and its process is started anew."""

    factor: Annotated[float, msgspec.Meta(gt=1)] = 10.0  # times what its plan was believed to take
    floor_s: Annotated[float, msgspec.Meta(ge=0)] = 120.0  # but not before
    first_s: Annotated[float, msgspec.Meta(ge=0)] = 600.0  # added to the first plan of a shape: it may compile
    more_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # added; with stage processes what `stage_watchdog` may take


class StageWatchdog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a process of a stage counts as hung: it is killed and started anew. A prompt that it had fails its request,
    which goes on elsewhere; a picture or a decode, before which work was done, is done once more first."""

    factor: Annotated[float, msgspec.Meta(gt=1)] = 5.0  # times what such a call is estimated to take
    floor_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0  # but not before
    load_s: Annotated[float, msgspec.Meta(gt=0)] = 120.0  # to load its weights; its first call may take as long

    @property
    def more_s(self) -> float:
        """What a plan may take longer because one hung: it was waited for, replaced, and its work done again."""
        return 2 * self.floor_s + self.load_s


class DiffusionParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a diffusion replica computes next."""

    steps_per_plan: Positive = 1  # a cancel waits for at most so many denoise steps
    batch_max: Positive = 4  # pictures together; a request for more pictures than that runs alone
    pixels_max: Annotated[int, msgspec.Meta(ge=1)] | None = None  # of a request, all frames; unset: what fits, or any
    pixels_min: Natural = 0  # smaller ones are refused: with `pixels_max` of other replicas, pools by shape
    order: PolicyChoice = PolicyChoice("fifo")
    gain_min: Annotated[float, msgspec.Meta(ge=1)] = 1.05  # a batch must get so many times more done per second
    batch_s_max: Annotated[float, msgspec.Meta(gt=0)] | None = None  # predicted duration of a batch; unset: any
    caps: tuple[ShapeCap, ...] = ()
    batch_pixels_max: Annotated[int, msgspec.Meta(ge=1)] | None = None  # of a batch: its activations; unset: any
    preempt: Preemption | None = None  # unset: a batch that has begun runs to its end
    new_shapes: Literal["prepare", "refuse"] = "prepare"  # that have not run: between plans of others, then; or 400
    prepare_slices_max: Positive = 1  # of such preparations that a request of a warm shape may wait for, in its life
    watchdog: Watchdog | None = Watchdog()  # null: a plan may take for ever, as it may where nothing is believed


def largest_batch(params: DiffusionParams, shape: DenoiseShape) -> int:
    """Most pictures of one shape together; a request for more of them runs alone."""
    caps = [cap.batch_max for cap in params.caps if (cap.height, cap.width, cap.frames) == shape_sides(shape)]
    room = [] if params.batch_pixels_max is None else [params.batch_pixels_max // shape.pixels]
    return max(1, min([params.batch_max, *caps, *room]))


def patience_ns(watchdog: Watchdog | None, believed_ns: Ns | None, *, is_cold: bool = False) -> Ns | None:
    """How long a plan may take that is believed to take so long; None: nobody can tell."""
    if watchdog is None or believed_ns is None:
        return None
    more_s = watchdog.more_s + (watchdog.first_s if is_cold else 0.0)
    return max(ns_from_s(watchdog.floor_s), round(watchdog.factor * believed_ns)) + ns_from_s(more_s)


def shape_sides(shape: DenoiseShape) -> tuple[int, int, int]:
    """What a cap is for."""
    return shape.height, shape.width, shape.frames


def order_policy(params: DiffusionParams, belief: DenoiseCost | None) -> OrderPolicy:
    """Build the order. Raises ConfigError."""
    cls, parsed = select(ORDERS, "order", params.order, {"belief": belief is not None})
    policy: OrderPolicy = cls(parsed)
    return policy


def check(params: DiffusionParams, belief: DenoiseCost | None) -> None:
    """Raise ConfigError for what cannot work; every message names both keys."""
    if params.pixels_max is not None and params.pixels_min > params.pixels_max:
        raise ConfigError(
            f"pixels_min = {params.pixels_min} is above pixels_max = {params.pixels_max}: nothing would be served; "
            "lower pixels_min or raise pixels_max"
        )
    for cap in params.caps:
        if cap.batch_max > params.batch_max:
            raise ConfigError(
                f"caps: batch_max = {cap.batch_max} of {cap.height}x{cap.width} is above batch_max = "
                f"{params.batch_max}; a cap only lowers it: raise batch_max or lower the cap"
            )
    if params.batch_s_max is not None and belief is None:
        raise ConfigError("batch_s_max needs a belief about durations, and there is none; unset batch_s_max")
    if params.preempt is not None and belief is None:
        raise ConfigError("preempt needs a belief about durations, and there is none; unset preempt")
