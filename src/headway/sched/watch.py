"""What begins with every dispatch: a breaker's trial, a share of retries, the look-out for silence, a hedge's delay."""

from typing import Annotated

import msgspec

from headway.core.effects import Effect, WakeAt
from headway.core.ids import NodeId, TimerId
from headway.core.request import DiffusionRequest, LlmRequest, TextRequest
from headway.core.units import Ns, ns_from_s
from headway.sched.book import Tracked
from headway.sched.fleet.guard import Guard
from headway.sched.fleet.hedge import Hedging
from headway.sched.fleet.retry import RetryBudget


class Silence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a replica that says nothing loses its requests to others."""

    first_token_s: Annotated[float, msgspec.Meta(gt=0)] = 120.0  # after a dispatch without any answer to it
    replica_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0  # of a replica of ours that streams, about anything at all
    stop_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0  # who is told to stop is waited for; pictures: + 2 x its work
    preparing_s: Annotated[float, msgspec.Meta(ge=0)] = 600.0  # more, while the replica prepares a shape


class Watch:
    """Told of every dispatch. `heard` says when each replica last said anything."""

    def __init__(
        self, guard: Guard, budget: RetryBudget, hedging: Hedging | None, silence: Silence, out: list[Effect]
    ) -> None:
        self.guard, self.budget, self.hedging = guard, budget, hedging
        self.heard: dict[NodeId, Ns] = {}
        self._first_ns, self._replica_ns = ns_from_s(silence.first_token_s), ns_from_s(silence.replica_s)
        self._stop_ns, self._preparing_ns = ns_from_s(silence.stop_s), ns_from_s(silence.preparing_s)
        self._interval_ns = max(1, min(self._first_ns, self._replica_ns, self._stop_ns) // 8)
        self._out = out
        self._is_armed = False

    def sent(self, tracked: Tracked, replica: NodeId, at_ns: Ns) -> None:
        """A request goes to its owner."""
        request = tracked.request
        tracked.sent_ns = at_ns
        if tracked.sends == 0:
            self.budget.sent()
            if self.hedging is not None:
                self.hedging.sent()
        tracked.sends += 1
        self.guard.sent(replica, request.id, at_ns)
        self.arm(at_ns)
        if self.hedging is None or tracked.emitted or tracked.transfer is not None or not can_hedge(request):
            return
        delay_ns = None if isinstance(request, DiffusionRequest) else self.hedging.delay_ns(request.prompt_tokens)
        if delay_ns is not None:
            self._out.append(WakeAt(at_ns + delay_ns, TimerId(f"hedge:{tracked.epoch}:{request.id}")))

    def arm(self, at_ns: Ns) -> None:
        """Look for silence after a while; one timer for all requests."""
        if not self._is_armed:
            self._is_armed = True
            self._out.append(WakeAt(at_ns + self._interval_ns, TimerId("watch")))

    def fired(self) -> None:
        """The timer is gone."""
        self._is_armed = False

    def silent_for(self, tracked: Tracked, at_ns: Ns, work_ns: Ns, *, is_preparing: bool = False) -> Ns | None:
        """How long its owner has owed a word that should have come; None: it may still take its time.

        `work_ns`: what a diffusion replica had to do when it was last heard. It says nothing while denoise steps run,
        and pictures may wait for a video: silence counts from when twice that should be over. One that is told to stop
        goes on with its step, and says then what that took. `is_preparing`: it ran a shape for the first time, which
        nobody can foresee before one has been met; its own watchdog ends what is stuck.
        """
        owner = tracked.owner
        if owner is None:
            return None
        is_diffusion = isinstance(tracked.request, DiffusionRequest)
        if tracked.is_over:
            since_ns, limit_ns = tracked.stopped_ns, self._stop_ns + (2 * work_ns if is_diffusion else 0)
        elif is_diffusion:
            since_ns, limit_ns = max(self.heard.get(owner, 0), tracked.sent_ns), self._first_ns + 2 * work_ns
        elif not tracked.is_streaming:
            since_ns, limit_ns = tracked.sent_ns, self._first_ns
        elif isinstance(tracked.request, LlmRequest):
            since_ns, limit_ns = max(self.heard.get(owner, 0), tracked.sent_ns), self._replica_ns
        else:  # its tokens do not pass here: who relays them watches the connection
            return None
        limit_ns += self._preparing_ns if is_diffusion and is_preparing else 0
        return at_ns - since_ns if at_ns - since_ns >= limit_ns else None


def can_hedge(request: object) -> bool:
    """True when running it twice says the same: ours carry a seed, a relayed one must say so."""
    return isinstance(request, LlmRequest) or (isinstance(request, TextRequest) and request.is_idempotent)
