"""Output lengths at the front (SPEC A3): what requests are planned with, and what their ends teach."""

from typing import Final

import msgspec

from headway.core.events import RequestArrived
from headway.core.request import DiffusionRequest, FinishReason, LlmRequest, Request
from headway.cost.output_length import LengthParams, OutputLengths

# A client that left is one of its like: the replica worked for it that long. A deadline says nothing of the length.
TEACHES: Final = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED)

_NEVER: Final = 1 << 62


class Foresight:
    """Router, admission and engine orders read `output_tokens_predicted` of the request; here it is set."""

    def __init__(self, params: LengthParams) -> None:
        self.lengths = OutputLengths(params)

    def arriving(self, event: RequestArrived) -> RequestArrived:
        """Return the event with a predicted length, unless the request has one or nothing is known of its like."""
        request = self.foreseen(event.request)
        return event if request is event.request else msgspec.structs.replace(event, request=request)

    def foreseen(self, request: Request) -> Request:
        """Return the request with a predicted length, unless it has one or nothing is known of its like. A query."""
        if isinstance(request, DiffusionRequest) or request.output_tokens_predicted is not None:
            return request
        tokens = self.lengths.estimate(request)
        return request if tokens is None else msgspec.structs.replace(request, output_tokens_predicted=tokens)

    def likely(self, request: Request) -> int | None:
        """Output tokens that a client may be told: what it forces or predicts, else what came of requests with such a
        limit; None while nothing is known of them, and for pictures. A query."""
        if isinstance(request, DiffusionRequest):
            return None
        if request.ignores_eos:
            return request.max_tokens
        if request.output_tokens_predicted is not None:
            return min(request.output_tokens_predicted, request.max_tokens)
        return self.lengths.alike(request)

    def outgrown(self, request: Request, generated: int) -> Request:
        """The output is longer than predicted: return the request with what those that got so far came to."""
        if not isinstance(request, LlmRequest):
            return request  # nobody counts its tokens here
        tokens = self.lengths.estimate(request, generated)
        if tokens is None:
            tokens = min(2 * generated, request.max_tokens)
        return msgspec.structs.replace(request, output_tokens_predicted=tokens)

    def ended(self, request: Request, reason: FinishReason, output_tokens: int) -> None:
        """Learn from an output that is complete, or that its client had enough of."""
        if reason in TEACHES and not isinstance(request, DiffusionRequest):
            self.lengths.learn(request, output_tokens)


def due(request: Request) -> int:
    """Tokens after which the prediction of this request has proved too short; never, where nobody predicted."""
    predicted = request.output_tokens_predicted if isinstance(request, LlmRequest) else None
    return _NEVER if predicted is None else predicted
