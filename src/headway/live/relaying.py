"""`RelayServing` (adapters/gateway/relay/ports) around one FrontNode: who answers to a name, and how it ends."""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Final

import msgspec

from headway.adapters.gateway.ports import NamedModel
from headway.adapters.gateway.relay.ports import Exchange, RelayModel, Usage
from headway.core.effects import End
from headway.core.events import ClientGone, Event, RequestArrived, StreamClosed
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.reports import RateLimits
from headway.core.request import LlmRequest, TextRequest
from headway.core.units import Ns
from headway.live.model_names import ModelNames

MOVED_ON: Final = frozenset({"no_replica", "engine_lost"})  # another model may do better


class _Open(msgspec.Struct):
    exchange: Exchange
    request: TextRequest
    tried: list[str]


class Relaying:
    """Requests that an upstream answers. Called from the event loop only."""

    def __init__(
        self,
        names: ModelNames,
        now_ns: Callable[[], Ns],
        feed: Callable[[Callable[[Ns], Event]], None],
        can_serve: Callable[[str], bool],
        evidence_of: MutableMapping[RequestId, LlmRequest | TextRequest],
        created: int,
    ) -> None:
        """`evidence_of`: requests whose evidence is still to come. `created`: Unix time of the start, which clients see
        as that of a relayed model."""
        self.names, self._created = names, created
        self.count: Callable[[str, int, int], None] = _uncounted  # model, prompt tokens, output tokens
        self._now_ns, self._feed, self._can_serve, self._evidence_of = now_ns, feed, can_serve, evidence_of
        self._open: dict[RequestId, _Open] = {}
        self.limits: Callable[[TenantId], RateLimits] = lambda _: RateLimits()  # what is left of a quota

    # RelayServing

    def now_ns(self) -> Ns:
        """The run's clock."""
        return self._now_ns()

    def model(self, name: str) -> RelayModel | None:
        """How a name is relayed, or the first of its fallbacks that can answer while it cannot."""
        found = self._found(self.answering(name))
        if found is None:
            return None
        model, lora = found
        relayed = self.names.relayed[model]
        echo = None if name in (model, lora) else (lora or model)
        return RelayModel(ModelId(model), relayed.max_tokens_default, relayed.bytes_per_token.value, lora, echo)

    def answering(self, name: str) -> str:
        """The model or adapter that answers to a name now: itself, what it is an alias of, or a fallback."""
        model = self.names.aliases.get(name, name)
        fallbacks = self.names.fallbacks.get(model, ())
        if not fallbacks or self._can_serve(model):
            return model
        return next((other for other in fallbacks if self._can_serve(other)), model)

    # Directory, for what operators and clients read

    def named(self) -> Sequence[NamedModel]:
        """Relayed models, their adapters, and every alias of a model that is there."""
        names = self.names
        found = [NamedModel(name, name, created=self._created) for name in names.relayed if name not in names.aliases]
        for model, relayed in names.relayed.items():
            adapters = [name for name in relayed.adapters if name not in names.aliases]  # an alias is listed once
            found += [NamedModel(name, name, model, self._created) for name in adapters]
        for alias, model in names.aliases.items():
            if names.resolve(alias) is not None:
                found.append(NamedModel(alias, model, created=self._created))
        return found

    def ready(self) -> tuple[bool, str]:
        """Whether every relayed model, or a fallback of it, can be served now."""
        if not self.names.own and not self.names.relayed:
            return False, "no upstream has told its models yet"
        for model in self.names.relayed:
            if not self._can_serve(self.answering(model)):
                return False, f"no upstream of {model} is well"
        return True, "ready"

    def _found(self, name: str) -> tuple[str, str | None] | None:
        found = self.names.resolve(name)
        return None if found is None or found[0] in self.names.own else found

    def submit(self, exchange: Exchange, request: TextRequest) -> None:
        """Hand over a request."""
        self._open[request.id] = _Open(exchange, request, [request.lora or request.model])
        self._arrive(exchange, request)

    def _arrive(self, exchange: Exchange, request: TextRequest) -> None:
        received_ns, body_ns = exchange.received_ns, exchange.body_ns

        def arrived(at_ns: Ns) -> Event:
            self._evidence_of[request.id] = request  # not sooner: a first try of it may still have to end
            return RequestArrived(at_ns, "edge", request, received_ns, body_ns)

        self._feed(arrived)

    def gone(self, request: RequestId) -> None:
        """The client left."""
        if request in self._open:
            self._feed(lambda at_ns: ClientGone(at_ns, "edge", request))

    def closed(self, request: RequestId, first_byte_ns: Ns | None, input_bytes: int) -> None:
        """The last byte of the answer was handed to the transport, or never will be."""
        if self._open.pop(request, None) is not None:
            self._feed(lambda at_ns: StreamClosed(at_ns, "edge", request, first_byte_ns, input_bytes))

    # From the front and the nodes

    def exchange(self, request: RequestId) -> Exchange | None:
        """The client's side of an open request."""
        found = self._open.get(request)
        return None if found is None else found.exchange

    def end(self, effect: End) -> None:
        """The front is done with a request; without an error its call finishes the exchange."""
        found = self._open.get(effect.request)
        if found is None or effect.error is None:
            return
        if not found.exchange.has_begun and self._go_on(found, self._next(found, effect)):
            return
        found.exchange.fail(effect.error)

    def _next(self, found: _Open, effect: End) -> Sequence[str]:
        """Where else the request may go: where admission sends it, or to what stands in for its model."""
        if effect.transfer_to is not None:
            return (effect.transfer_to,)
        is_failed = effect.error is not None and effect.error.code in MOVED_ON
        return self.names.fallbacks.get(found.tried[0], ()) if is_failed else ()

    def _go_on(self, found: _Open, others: Sequence[str]) -> bool:
        """Submit the request to the first of them that an upstream serves now; False when there is none."""
        request = found.request
        for other in others:
            resolved = self._found(other)
            if resolved is None or other in found.tried or not self._can_serve(other):
                continue
            found.tried.append(other)
            # The first try is closed before the second one begins: both have the client's id.
            self._feed(lambda at_ns: StreamClosed(at_ns, "edge", request.id, None, 0))
            model, lora = resolved
            found.request = msgspec.structs.replace(request, model=ModelId(model), lora=lora, attempts=0)
            found.exchange.echo_model(other)
            self._arrive(found.exchange, found.request)
            return True
        return False

    def answered(self, request: TextRequest, usage: Usage) -> None:
        """An upstream's answer is whole: count its tokens, and learn from what it says of the prompt's."""
        told, relayed = usage.prompt_tokens, self.names.relayed.get(request.model)
        if told is not None and relayed is not None:
            learned = relayed.bytes_per_token
            learned.observe(request.prompt_tokens, learned.value, told)
        self.count(request.model, request.prompt_tokens if told is None else told, usage.output_tokens)

    def is_renamed(self, asked: str) -> bool:
        """Clients may have written another name: an alias, or that of a model which this one stands in for."""
        return asked in self.names.renamed


def _uncounted(_model: str, _prompt: int, _output: int) -> None:
    """Nobody counts."""
