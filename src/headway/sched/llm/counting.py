"""A pool that counts blocks without telling them apart."""

from collections.abc import Iterable, Sequence

from headway.core.errors import InvariantError
from headway.sched.llm.pool import BlockPool


class CountingPool(BlockPool):
    """The same admission and preemption decisions without block identities: for simulations that study no cache."""

    def __init__(self, size: int) -> None:
        super().__init__(0)
        self.size = self.left = size

    @property
    def available(self) -> int:
        return self.left - self.reserved

    @property
    def used(self) -> int:
        return self.size - self.left

    def take(self, count: int) -> list[int]:
        self.left -= count
        return [0] * count

    def drop(self, blocks: Sequence[int], fence: int, done: int) -> None:
        self.epoch += 1
        if fence <= done:
            self.left += len(blocks)
            return
        self.fenced += len(blocks)
        self.fences.setdefault(fence, []).append(len(blocks))  # how many, not which

    def release(self, step: int) -> None:
        count = sum(self.fences.pop(step, ()))
        if count:
            self.epoch += 1
            self.fenced -= count
            self.left += count

    def audit(self, owned: Iterable[Sequence[int]], reserved: int) -> None:
        held = sum(len(table) for table in owned)
        if self.left + self.fenced + held != self.size or self.reserved != reserved or self.available < 0:
            raise InvariantError(
                f"{self.left} left, {self.fenced} fenced and {held} held are not {self.size}, or reserved "
                f"{self.reserved} is not {reserved}"
            )
