"""The bytes of a diffusion replica in the ledger (SPEC L-2): what its rows and its open plan hold of the device beside
the weights, checkpoints on the host, and the cache of prompt embeddings.

What a plan holds is predicted, not measured: the state of each row from its first plan to its end, and the larger of
forward pass and decode while a plan runs.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from headway.core.errors import InvariantError, RequestError
from headway.core.ids import LeaseId
from headway.core.ledger import Account, AccountView, Ledger
from headway.core.reports import DenoiseCoefficients, DenoiseMemory
from headway.core.request import DiffusionRequest
from headway.cost.diffusion_memory import fits, needed_bytes, pass_max, shortage, state_bytes, working_bytes
from headway.sched.diffusion.protocols import Item

_CACHE: Final = LeaseId("embeddings")


class Holdings:
    """Leases by sequence and plan; releasing one twice changes nothing."""

    def __init__(
        self,
        replica: str = "replica",
        memory: DenoiseMemory | None = None,
        cost: DenoiseCoefficients | None = None,
        cache_bytes_max: int | None = None,
    ) -> None:
        """`memory` or `cost` None: nobody knows what work holds, and nothing is refused for it. `cost`: its tokens."""
        self.memory, self._cost, self._replica = memory, cost, replica
        self._ledger = Ledger(replica)
        room = None if memory is None else memory.room
        self._device = self._ledger.open(f"device/{replica}/bytes", "bytes", room)
        self._checkpoints = self._ledger.open(f"replica/{replica}/checkpoint_bytes", "bytes", None)
        self._cached = self._ledger.open(f"replica/{replica}/embedding_bytes", "bytes", cache_bytes_max)
        self._cached.reserve(_CACHE, 0)
        self._saves = 0  # checkpoints taken: each has a lease of its own

    def check(self, request: DiffusionRequest) -> None:
        """Raise RequestError for what does not fit even alone (FramePack#25: before its steps are paid)."""
        if self.memory is not None and self._cost is not None and not self.ever_fits(request):
            raise RequestError(shortage(self.memory, self._cost, request, self._replica), code="unservable")

    def has_room(self, request: DiffusionRequest, size: int = 1, known: int = 0) -> bool:
        """True when so many such requests fit beside the rows that are held now, `known` of them among those."""
        if self.memory is None or self._cost is None:
            return True
        held = known * state_bytes(self.memory, self._cost, request)
        return self._device.can_reserve(needed_bytes(self.memory, self._cost, request, size) - held)

    def has_room_beside(self, request: DiffusionRequest, batch: Sequence[Item]) -> bool:
        """True when it fits beside the rows that are held now, and a plan of that batch beside it; and where nothing is
        held: there will never be more room."""
        if self.memory is None or self._cost is None or not self._device.used:
            return True
        working = [working_bytes(self.memory, self._cost, request)]
        if batch:
            working.append(working_bytes(self.memory, self._cost, batch[0].request, len(batch)))
        return self._device.can_reserve(state_bytes(self.memory, self._cost, request) + max(working))

    def ever_fits(self, request: DiffusionRequest) -> bool:
        """False for what has no room even alone."""
        return fits(self.memory, self._cost, request)

    def pass_max(self, request: DiffusionRequest) -> int | None:
        """Pictures of one forward pass of a request that runs alone; None: any number."""
        return None if self.memory is None or self._cost is None else pass_max(self.memory, self._cost, request)

    def fits_one_pass(self, request: DiffusionRequest) -> bool:
        """All its pictures can run in one pass; else it would run in smaller ones, and prove nothing of its size."""
        fit = self.pass_max(request)
        return self.ever_fits(request) and (fit is None or request.n <= fit)

    def enters(self, item: Item) -> None:
        """The engine holds its row from its next plan on, if it did not yet."""
        if self.memory is not None and self._cost is not None and not item.is_known:
            _take(self._device, _row(item), state_bytes(self.memory, self._cost, item.request))

    def runs(self, step: int, batch: Sequence[Item]) -> None:
        """A plan is handed over."""
        if self.memory is not None and self._cost is not None:
            amount = working_bytes(self.memory, self._cost, batch[0].request, len(batch))
            _take(self._device, _plan(step), amount)

    def ran(self, step: int) -> None:
        """The plan is over."""
        self._device.release(_plan(step))

    def keeps(self, item: Item, body: bytes) -> None:
        """Its checkpoint is kept here until it is over, in place of an older one."""
        self._give_up(item)
        self._saves += 1
        item.kept = self._saves
        _take(self._checkpoints, _saved(item), len(body))

    def leaves(self, item: Item) -> None:
        """The engine is told to forget its row, or has."""
        self._device.release(_row(item))
        item.stays += 1

    def over(self, item: Item) -> None:
        """Nothing of it is kept."""
        self.leaves(item)
        self._give_up(item)

    def caches(self, amount: int) -> None:
        """So many bytes of prompt embeddings are cached now."""
        self._cached.settle(_CACHE, amount)

    def views(self) -> tuple[AccountView, ...]:
        """For a report; what nobody predicts is not told."""
        device, cached = self._device.name, self._cached.name
        told = [view for view in self._ledger.views() if view.name != device or self.memory is not None]
        return tuple(replace(view, cache=True) if view.name == cached else view for view in told)

    def check_invariants(self, *, is_idle: bool) -> None:
        """Raise InvariantError unless every account adds up, and nothing but the cache is held where all is idle."""
        self._ledger.check()
        held = self._device.used + self._checkpoints.used
        if is_idle and held:
            raise InvariantError(f"{self._replica} has nothing to do, and its ledger holds {held} bytes")

    def _give_up(self, item: Item) -> None:
        if item.kept:
            self._checkpoints.release(_saved(item))
            item.kept = 0


def _take(account: Account, lease: LeaseId, amount: int) -> None:
    """In use at once: it was asked before whether it fits."""
    account.reserve(lease, 0)
    account.settle(lease, amount)


def _row(item: Item) -> LeaseId:
    return LeaseId(f"row-{item.seq}-{item.stays}")


def _plan(step: int) -> LeaseId:
    return LeaseId(f"plan-{step}")


def _saved(item: Item) -> LeaseId:
    return LeaseId(f"saved-{item.seq}-{item.kept}")
