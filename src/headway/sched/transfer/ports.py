"""What a transfer needs of the L2 machine at its end."""

from collections.abc import Sequence
from typing import Protocol

from headway.core.request import LlmRequest
from headway.core.units import Ns


class Sequences(Protocol):
    """Blocks and sequences of one replica (`sched/llm`)."""

    def reserve_blocks(self, count: int, /) -> tuple[int, ...] | None: ...

    def pin_blocks(self, blocks: Sequence[int], /) -> None: ...

    def free_blocks(self, blocks: Sequence[int], /) -> None: ...

    def adopt(
        self, request: LlmRequest, outputs: tuple[int, ...], blocks: Sequence[int], computed: int, at_ns: Ns
    ) -> int: ...

    def table(self, seq: int, /) -> tuple[int, ...]: ...

    def freeze(self, seq: int, /) -> int | None: ...

    def thaw(self, seq: int, /) -> None: ...

    def release(self, seq: int, /) -> None: ...

    def hold_after_prefill(self, seq: int, /) -> None: ...
