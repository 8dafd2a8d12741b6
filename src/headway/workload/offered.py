"""What a workload offers: requests with what only their future knows, and clients that go on when answered."""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

from headway.core.ids import RequestId
from headway.core.request import DiffusionRequest, LlmRequest
from headway.core.units import Ns

ANSWER_TOKEN: Final = 1  # what an answer without content consists of


class Offered(msgspec.Struct, frozen=True):
    """A request and what only its future knows. `output_tokens`: 0 for a diffusion request."""

    request: LlmRequest | DiffusionRequest
    output_tokens: int


class Source(Protocol):
    """The clients of a simulation."""

    def first(self) -> Iterator[Offered]:
        """Yield, in the order of their arrival, the requests that wait for no other. Pulled one by one while the
        simulation runs, so that memory holds what is in flight."""
        ...

    def after(self, request: RequestId, ended_ns: Ns, answer: Sequence[int] | None = None) -> Offered | None:
        """Return what the client sends next, arriving at `ended_ns` plus its think time or later; None: it is done.

        `answer`: the tokens it received, empty for a request that failed; None: as many `ANSWER_TOKEN` as were due.
        """
        ...
