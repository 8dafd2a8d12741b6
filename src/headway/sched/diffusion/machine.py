"""The toy of a diffusion replica: first come, first served by shape, a few denoise steps per plan."""

from collections.abc import Mapping, Sequence

import msgspec

from headway.core.errors import InvariantError, RequestError
from headway.core.ledger import AccountView
from headway.core.plans import DenoisePlan, DenoiseRow
from headway.core.reports import StepCoefficients
from headway.core.request import DiffusionRequest


class DiffusionParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`steps_per_plan`: a cancel waits for at most so many steps; `batch_max`: requests of one shape together."""

    steps_per_plan: int = 1
    batch_max: int = 4
    pixels_max: int = 1 << 22


class _Item(msgspec.Struct):
    request: DiffusionRequest
    done: int = 0


class DiffusionMachine:
    """One plan is open at a time. The oldest request chooses the shape; later ones of that shape join it."""

    def __init__(self, params: DiffusionParams) -> None:
        self._params = params
        self._items: dict[int, _Item] = {}
        self._last_seq = 0
        self._step = 0
        self._open: DenoisePlan | None = None
        self._leave: list[int] = []

    def add(self, request: DiffusionRequest) -> int:
        """Queue a request. Raises RequestError for a shape that never fits."""
        pixels = request.height * request.width
        if pixels > self._params.pixels_max or request.steps < 1:
            raise RequestError(
                f"request {request.id} wants {request.steps} steps at {request.height}x{request.width}; at least "
                f"1 step and at most {self._params.pixels_max} pixels are served",
                code="unservable",
            )
        self._last_seq += 1
        self._items[self._last_seq] = _Item(request)
        return self._last_seq

    def stop(self, seq: int) -> None:
        """Forget a request; its open step ends without it."""
        if self._items.pop(seq, None) is not None:
            self._leave.append(seq)

    def plan(self) -> DenoisePlan | None:
        """Plan the next denoise steps; None when one is open or nobody waits."""
        if self._open is not None or not self._items:
            return None
        oldest = next(iter(self._items.values())).request
        shape = (oldest.height, oldest.width)
        rows: list[DenoiseRow] = []
        for seq, item in self._items.items():
            request = item.request
            if (request.height, request.width) == shape and len(rows) < self._params.batch_max:
                count = min(self._params.steps_per_plan, request.steps - item.done)
                rows.append(DenoiseRow(seq, item.done, count, request.steps))
        leave, self._leave = tuple(self._leave), []
        self._open = DenoisePlan(self._step + 1, self._step, tuple(rows), *shape, leave)
        self._step += 1
        return self._open

    def done(self, step: int) -> list[DenoiseRow]:
        """Fold in a step; return the rows that are still wanted. Complete ones are over."""
        plan, self._open = self._open, None
        if plan is None or plan.step != step:
            raise InvariantError(f"denoise step {step} is done, open is {plan.step if plan else 'none'}")
        wanted = [row for row in plan.rows if row.seq in self._items]
        for row in wanted:
            self._items[row.seq].done += row.count
            if row.start + row.count == row.total:
                self.stop(row.seq)
        return wanted

    @property
    def waiting(self) -> int:
        """Requests without a finished step and without an open one."""
        return len(self._items) - self.running

    @property
    def running(self) -> int:
        """Requests that were begun."""
        opened = () if self._open is None else tuple(row.seq for row in self._open.rows)
        return sum(item.done > 0 or seq in opened for seq, item in self._items.items())

    @property
    def waiting_prefill_tokens(self) -> int:
        """Diffusion has no prompt to prefill."""
        return 0

    @property
    def running_kv_tokens(self) -> int:
        """Diffusion has no KV."""
        return 0

    @property
    def kv_blocks_free(self) -> int:
        """Diffusion has no KV."""
        return 0

    @property
    def block_size(self) -> int:
        """Diffusion has no KV."""
        return 0

    @property
    def step_cost(self) -> StepCoefficients | None:
        """The toy believes nothing."""
        return None

    def counters(self) -> Mapping[str, int]:
        """Monotonic counts."""
        return {"denoise_steps": self._step}

    def accounts(self) -> Sequence[AccountView]:
        """The toy charges nothing."""
        return ()

    def check_invariants(self) -> None:
        """Raise InvariantError when a request ran past its steps."""
        for seq, item in self._items.items():
            if item.done >= item.request.steps:
                raise InvariantError(f"sequence {seq} has {item.done} of {item.request.steps} steps and is not over")
