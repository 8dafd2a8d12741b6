"""The rows of a step in the standing buffers of a device, as its graphs see them (SPEC E1)."""

import torch

from headway.engines.llm.batch import LEAST_ROWS
from headway.engines.llm.ops import Rows, Spans
from headway.engines.llm.sequences import SequenceTable
from headway.engines.llm.staging import Staging

PLACEHOLDER = -1  # for a token that the device knows and the host does not yet


class StandingRows:
    """Buffers for `size` rows, and the last token of every sequence, which computing itself writes."""

    def __init__(self, staging: Staging, sequences: SequenceTable, size: int, scratch_slot: int) -> None:
        self._staging, self._sequences, self._scratch_slot = staging, sequences, scratch_slot
        for name in ("tokens", "positions", "contexts", "owners"):
            staging.reserve(name, size)
        staging.reserve("tiles", size + 1)
        staging.reserve("sampled", size, dtype=torch.int64)
        staging.reserve("slots", size, dtype=torch.int64)
        staging.reserve("tables", *sequences.tables.shape)
        self.last = staging.reserve("last", sequences.capacity)
        self.numbers = torch.arange(size, device=self.last.device)
        self.idle()

    def reserve_logits(self, graph_rows: tuple[int, ...], vocab: int) -> None:
        """One buffer for the logits of all graphs."""
        self._staging.reserve("logits", max(*graph_rows, LEAST_ROWS), vocab, dtype=torch.float32)

    def idle(self) -> None:
        """Padding rows only, so that a capture writes nothing but the scratch block."""
        for name in ("tokens", "positions", "contexts", "owners"):
            self._staging.view(name, len(self.numbers)).zero_()
        self._staging.view("slots", len(self.numbers)).fill_(self._scratch_slot)

    def grow(self) -> None:
        """As many last tokens as there may be sequences; graphs captured before are void when that moves them."""
        if len(self.last) != self._sequences.capacity:
            last = self.last
            self.last = self._staging.reserve("last", self._sequences.capacity)
            self.last[: len(last)] = last

    def known(self, tokens: torch.Tensor, rows: Rows) -> torch.Tensor:
        return torch.where(tokens == PLACEHOLDER, self.last[rows.owners.long()], tokens)

    def first(self, count: int, blocks: int = 0) -> tuple[torch.Tensor, Rows]:
        """Known tokens and rows, the first `count`, as decodes within `blocks` KV blocks."""
        view = self._staging.view
        rows = Rows(
            positions=view("positions", count),
            slots=view("slots", count),
            contexts=view("contexts", count),
            owners=view("owners", count),
            tables=view("tables", self._sequences.capacity),
            tile_starts=view("tiles", count + 1),
            spans=Spans(singles=count, blocks=blocks),
        )
        return self.known(view("tokens", count), rows), rows
