"""Captured graphs of a device: whole decode steps, and the pieces between the attentions of any step (SPEC E1).

# never run on a device
"""

from collections.abc import Callable
from functools import partial

import torch

from headway.engines.llm.device import Device
from headway.engines.llm.kv import KvPool
from headway.engines.llm.model import Decoder
from headway.engines.llm.ops import Rows

# Known tokens and rows of a step of so many padded rows, in buffers that stay where they are.
Standing = Callable[[int], tuple[torch.Tensor, Rows]]


class DecodeGraphs:
    """Captured decode steps by (rows, blocks): padded rows, and KV blocks that every row's attention covers.

    `compute(rows, blocks)` is a whole step over the standing buffers, from tokens to logits.
    """

    def __init__(self, device: Device, compute: Callable[[int, int], torch.Tensor], blocks_max: int) -> None:
        self._device, self._compute = device, compute
        self._spans = _powers(blocks_max)
        self._replays: dict[tuple[int, int], Callable[[], torch.Tensor]] = {}

    def __contains__(self, rows: int) -> bool:
        return (rows, self._spans[0]) in self._replays

    @property
    def rows(self) -> list[int]:
        return sorted({rows for rows, _ in self._replays})

    def capture(self, rows: int) -> None:
        """Capture every span of `rows`, the longest first: it asks for the most memory, which the others share."""
        for blocks in reversed(self._spans):
            self._replays[rows, blocks] = self._device.capture(partial(self._compute, rows, blocks))

    def recapture(self) -> None:
        rows = self.rows
        self._replays.clear()
        for count in reversed(rows):
            self.capture(count)

    def replay(self, rows: int, blocks: int) -> torch.Tensor:
        """Logits [rows, vocab] of the step that lies in the buffers; valid until the next replay of this size."""
        return self._replays[rows, next(span for span in self._spans if span >= blocks)]()


class PieceGraphs:
    """Captured pieces by padded rows: one more than there are layers, with an attention after each but the last.

    What passes from piece to piece lies in buffers that all sizes share. A tensor that a capture had allocated would
    stay allocated for each layer of each size, and a graph captured earlier could write where it lies.
    """

    def __init__(self, device: Device, decoder: Decoder, kv: KvPool, standing: Standing, rows_max: int) -> None:
        self._device, self._decoder, self._kv, self._standing = device, decoder, kv, standing
        hidden, qkv, attended = decoder.widths
        self._residual, self._delta, self._qkv, self._attended = (
            torch.zeros(rows_max, width, device=device.where) for width in (hidden, hidden, qkv, attended)
        )
        self._replays: dict[int, list[Callable[[], torch.Tensor]]] = {}

    def __contains__(self, rows: int) -> bool:
        return rows in self._replays

    @property
    def rows(self) -> list[int]:
        return sorted(self._replays)

    def capture(self, rows: int) -> None:
        pieces = range(self._decoder.layers + 1)
        self._replays[rows] = [self._device.capture(partial(self._piece, index, rows)) for index in pieces]

    def recapture(self) -> None:
        rows = self.rows
        self._replays.clear()
        for count in reversed(rows):
            self.capture(count)

    def run(self, rows: Rows, sampled: torch.Tensor) -> torch.Tensor:
        """Logits [len(sampled), vocab] of the step that lies in the standing buffers; KV of its rows is stored."""
        count = len(rows.positions)
        *pieces, last = self._replays[count]
        for index, replay in enumerate(pieces):
            attended = self._decoder.attention(index, replay(), rows, self._kv)
            self._attended[:count].copy_(attended)
        delta = last()
        return self._decoder.logits(self._residual[sampled], delta[sampled])

    def _piece(self, index: int, count: int) -> torch.Tensor:
        """From the attention of layer `index` - 1, or from the tokens, to that of layer `index`, or to the delta."""
        decoder, residual = self._decoder, self._residual[:count]
        tokens, rows = self._standing(count)
        if index == 0:
            residual.copy_(decoder.embedded(tokens))
            delta = None
        else:
            delta = decoder.after_attention(index - 1, residual, self._attended[:count])
        if index < decoder.layers:
            return self._qkv[:count].copy_(decoder.before_attention(index, residual, delta, rows, self._kv))
        return self._delta[:count].copy_(torch.zeros_like(residual) if delta is None else delta)


def _powers(most: int) -> list[int]:
    """1, 2, 4, ... and `most`."""
    return [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent < most] + [most]
