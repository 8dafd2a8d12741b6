"""One request at an upstream: what its call tells (`relay.ports.Answering`) becomes messages of the node."""

import re
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from headway.adapters.gateway.relay.ports import Health, Target, UpstreamCall, Usage
from headway.core.evidence import WorkerMarks
from headway.core.ids import NodeId, RequestId
from headway.core.messages import Finished, Refused
from headway.core.request import FinishReason, TextRequest
from headway.core.units import Ns

MODEL_KEY: Final = b'"model"'


class Owner(Protocol):
    """The node that it belongs to."""

    @property
    def id(self) -> NodeId: ...

    def now_ns(self) -> Ns: ...

    def begun(self, request: RequestId, epoch: int) -> None: ...

    def answered(self, request: TextRequest, usage: Usage) -> None: ...

    def over(self, request: RequestId, epoch: int, message: Finished | Refused, *, is_answered: bool) -> None: ...


class NodeCall:
    """Ends by exactly one Finished or Refused."""

    def __init__(self, node: Owner, request: TextRequest, epoch: int, received_ns: Ns) -> None:
        self.request = request
        self.has_begun = False
        self.upstream: UpstreamCall | None = None
        self._node, self._epoch, self._received_ns = node, epoch, received_ns

    def cancel(self) -> None:
        """Stop the upstream's work."""
        if self.upstream is not None:
            self.upstream.cancel()

    def begun(self) -> None:
        """The head is on its way to the client."""
        self.has_begun = True
        self._node.begun(self.request.id, self._epoch)

    def done(self, usage: Usage, health: Health) -> None:
        """The whole answer was handed to the exchange."""
        if health == "success":
            self._node.answered(self.request, usage)
        self.finished(FinishReason.STOP, health=health, usage=usage)

    def refused(self, status: int, retry_after_ms: int | None) -> None:
        """Back-pressure. Nothing was forwarded."""
        message = f"{self._node.id} answered {status}"
        refused = Refused(self.request.id, self._epoch, "full", message, retry_after_ms)
        self._node.over(self.request.id, self._epoch, refused, is_answered=False)

    def fault(self, reason: str) -> None:
        """It failed."""
        self.finished(FinishReason.LOST, health="fault", error=f"{self._node.id}: {reason}")

    def finished(
        self, reason: FinishReason, *, health: Health, usage: Usage | None = None, error: str | None = None
    ) -> None:
        """It is over. An upstream does not tell its queue from its prefill: both are taken as prefill."""
        node, now_ns = self._node, self._node.now_ns()
        marks = WorkerMarks(
            replica=node.id,
            received_ns=self._received_ns,
            scheduled_ns=self._received_ns,
            first_token_ns=None if usage is None else usage.first_byte_ns,
            last_token_ns=None if usage is None else usage.last_byte_ns,
            finished_ns=now_ns,
            cached_tokens=0 if usage is None else usage.cached_tokens or 0,
        )
        message = Finished(
            self.request.id,
            self._epoch,
            reason,
            0 if usage is None or health != "success" else usage.output_tokens,
            marks,
            error,
            health,
            None if usage is None else usage.prompt_tokens,
            None if usage is None else usage.cached_tokens,
        )
        node.over(self.request.id, self._epoch, message, is_answered=usage is not None and health == "success")


def target_of(body: bytes, request: TextRequest, own_name: str, is_renamed: Callable[[str], bool]) -> Target:
    """What differs from the client's JSON. It is parsed again only where it may not say what is wanted."""
    asked = request.model if request.lora is None else request.lora
    if own_name == asked and not is_renamed(asked):
        return Target()
    return Target() if is_written(body, own_name) else Target(model=own_name)


def is_written(body: bytes, name: str) -> bool:
    """True when the JSON surely names this model: inside of a text a quote is escaped, so that the only `"model"` in it
    is a key."""
    if body.count(MODEL_KEY) != 1:
        return False
    written = re.compile(rb'"model"\s*:\s*' + re.escape(msgspec.json.encode(name)))
    return written.search(body) is not None
