"""What the gateway needs of the queue of jobs: look at it, hold it, release it."""

from typing import Literal, Protocol

import msgspec

Running = Literal["finish", "checkpoint", "stop"]  # what becomes of jobs that run while their queue is paused


class Hold(msgspec.Struct, frozen=True):
    """A paused queue. `model`: `*` for every model's. `since`: Unix seconds."""

    model: str
    running: Running
    since: int


class QueueLine(msgspec.Struct, frozen=True):
    """Jobs of one model that are not over."""

    model: str
    waiting: int
    running: int


class QueueView(msgspec.Struct, frozen=True):
    """The queue of every model."""

    holds: tuple[Hold, ...] = ()
    lines: tuple[QueueLine, ...] = ()


class Queue(Protocol):
    """The queue of all tenants' jobs. `model` None: of every model."""

    async def hold(self, model: str | None, running: Running) -> QueueView:
        """Claim nothing more of it, at any gateway, until it is released; restarts change nothing. Jobs that run are
        finished, or go back into the line once saved at their next step, or unsaved at their next step, whichever
        gateway runs them."""
        ...

    async def release(self, model: str | None) -> QueueView:
        """Let it go on. RequestError 409 `queue_paused` for one model while all are held."""
        ...

    async def view(self) -> QueueView:
        """How it stands."""
        ...
