"""What the diffusion machine keeps of a request, and what an order policy sees and says."""

from typing import Protocol, runtime_checkable

import msgspec

from headway.core.ids import TenantId
from headway.core.request import DiffusionRequest, LoraUse
from headway.core.units import Ns

Rank = tuple[int, ...]


class BatchKey(msgspec.Struct, frozen=True):
    """SPEC F4: requests with equal keys may share a batch, because every step of them has one shape and one policy."""

    model: str
    height: int
    width: int
    frames: int
    given_frames: int
    fps: int
    steps: int
    guidance_scale: float
    passes: int
    n: int
    reference_tokens: int
    strength: float
    loras: tuple[LoraUse, ...]
    control_nets: tuple[str, ...]
    image_prompts: int
    image_prompt_scale: float
    solver: str
    quality: str
    dtype: str


def batch_key(request: DiffusionRequest) -> BatchKey:
    """Return what a request must have in common with those that it shares a batch with."""
    return BatchKey(
        model=request.model,
        height=request.height,
        width=request.width,
        frames=request.frames,
        given_frames=request.given_frames,
        fps=request.fps,
        steps=request.steps,
        guidance_scale=request.guidance_scale,
        passes=request.passes,
        n=request.n,
        reference_tokens=request.reference_tokens,
        strength=request.strength,
        loras=request.loras,
        control_nets=request.control_nets,
        image_prompts=request.image_prompts,
        image_prompt_scale=request.image_prompt_scale,
        solver=request.solver,
        quality=request.quality,
        dtype=request.dtype,
    )


class Item(msgspec.Struct, eq=False):
    """One request at this replica. `work_ns`: believed time of it alone, from when it queued; 0 without a belief.

    `done`: steps, those of earlier replicas included. `is_known`: the engine holds its state.
    """

    seq: int
    request: DiffusionRequest
    key: BatchKey
    work_ns: Ns = 0
    done: int = 0
    is_known: bool = False
    preemptions: int = 0
    saved: tuple[int, bytes] | None = None  # steps and checkpoint, taken to make room for others
    is_leaving: bool = False  # it goes once its next steps are saved
    stays: int = 0  # times that the engine has forgotten it
    slices: int = 0  # of preparations, that it has waited for although it could run
    kept: int = 0  # number of the checkpoint that is kept here; 0: none is

    @property
    def is_saved(self) -> bool:
        """Its state of now is here too."""
        return self.saved is not None and self.saved[0] == self.done

    def saves_after(self, count: int) -> bool:
        """True when its checkpoint is due within the next `count` steps; none is taken of what is complete."""
        every, end = self.request.save_every, self.done + count
        is_due = self.is_leaving or (every > 0 and end // every > self.done // every)
        return is_due and end < self.request.steps

    def shows_after(self, count: int) -> bool:
        """True when a preview is due within the next `count` steps."""
        end = self.done + count
        return end < self.request.steps and any(self.done < step <= end for step in self.request.preview_steps)


Party = TenantId | BatchKey  # among whom turns are given


class OrderPolicy(Protocol):
    """Says who begins next, and with preemption who may interrupt whom."""

    def rank(self, item: Item) -> Rank:
        """Smallest is next. Unique, and fixed while the item waits. Writes nothing."""
        ...


class Waits(msgspec.Struct, frozen=True):
    """A request has come. `active`: parties that have requests here beside it."""

    item: Item
    active: frozenset[Party]


class Used(msgspec.Struct, frozen=True):
    """A plan is over; `device_ns` of it was this request's share."""

    item: Item
    device_ns: Ns


@runtime_checkable
class TurnPolicy(OrderPolicy, Protocol):
    """An order policy that gives turns: between parties the one with the smallest turn is next, within one the smallest
    rank."""

    def party(self, item: Item) -> Party:
        """Who takes the turn in which this request is served. Fixed while it waits."""
        ...

    def turn(self, party: Party, more_ns: Ns = 0) -> int:
        """The party's place, if it were charged so much more. Writes nothing."""
        ...

    def charge_ns(self, item: Item, device_ns: Ns) -> Ns:
        """What its party is charged for so much device time of a request. Writes nothing."""
        ...

    def observe(self, event: Waits | Used) -> None:
        """Learn. The only method that may change policy state."""
        ...
