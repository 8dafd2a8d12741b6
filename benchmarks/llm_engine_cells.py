"""What `llm_engine.py` measures."""

from typing import NamedTuple


class Cell(NamedTuple):
    concurrent: int
    prompt: int
    steps: int
    heavy: bool = False  # one round is enough: it lasts longer than what disturbs it

    def told(self) -> str:
        return f"{self.concurrent} x {self.prompt}"


CELLS = [Cell(1, 128, 32), Cell(8, 128, 16), Cell(1, 1024, 16), Cell(32, 128, 8, True), Cell(1, 4096, 16, True)]
QUICK = [Cell(1, 128, 16), Cell(8, 128, 8)]
NEWCOMER = (8, 128, 1024)  # while 8 of 128 decode, one of 1024 arrives
LONG = 1024  # transformers is not asked for longer prompts
