"""The relaying side of a gateway: who answers to a name, and where a request goes on (SPEC A6)."""

from collections.abc import Callable

import msgspec

from headway.adapters.gateway.ports import NamedModel
from headway.adapters.gateway.relay.ports import RelayModel, Usage
from headway.adapters.upstream.settings import UpstreamSettings
from headway.core.effects import End, ErrorOut
from headway.core.events import ClientGone, Event, RequestArrived, StreamClosed
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.request import FinishReason, LlmRequest, TextRequest
from headway.live.model_names import Adapter, ModelNames, Offer
from headway.live.relaying import Relaying

R = RequestId("req-1")


class FakeExchange(msgspec.Struct):
    has_begun: bool = False
    received_ns: int = 1
    body_ns: int = 2
    errors: list[ErrorOut] = []
    echoes: list[str] = []

    def fail(self, error: ErrorOut) -> None:
        self.errors.append(error)

    def echo_model(self, name: str) -> None:
        self.echoes.append(name)


class Bench:
    """Relaying before a front that only notes what it is fed."""

    def __init__(self, **fallbacks: tuple[str, ...]) -> None:
        self.events: list[Event] = []
        self.dead: set[str] = set()
        self.evidence: dict[RequestId, LlmRequest | TextRequest] = {}
        self.exchange = FakeExchange()
        names = ModelNames(["own"], {"alias": "a"}, fallbacks)
        settings = UpstreamSettings("u", "http://u:1", max_tokens_default=77)
        names.offer(NodeId("up-u"), settings, Offer({"a": "a", "b": "b"}, {"lora": Adapter("a", "lora")}))
        self.relaying = Relaying(names, lambda: 5, self._feed, lambda n: n not in self.dead, self.evidence, 99)

    def _feed(self, make: Callable[[int], Event]) -> None:
        self.events.append(make(5))

    def submit(self, model: str = "a", lora: str | None = None) -> None:
        request = TextRequest(R, TenantId("t"), ModelId(model), 10, 10, 0, lora=lora)
        self.relaying.submit(self.exchange, request)  # type: ignore[arg-type]  # what is used of one

    def end(self, code: str, transfer_to: str | None = None) -> None:
        to = None if transfer_to is None else ModelId(transfer_to)
        self.relaying.end(End(R, FinishReason.LOST, ErrorOut(503, code, "no"), transfer_to=to))

    def models(self) -> list[str]:
        return [event.request.model for event in self.events if isinstance(event, RequestArrived)]


def test_names_become_models_adapters_and_echoes() -> None:
    relaying = Bench().relaying
    assert relaying.model("a") == RelayModel(ModelId("a"), 77, 4.0)
    assert relaying.model("alias") == RelayModel(ModelId("a"), 77, 4.0, None, "a")
    assert relaying.model("lora") == RelayModel(ModelId("a"), 77, 4.0, "lora")
    assert relaying.model("own") is None
    assert relaying.model("nobody") is None


def test_a_fallback_answers_while_the_model_cannot() -> None:
    made = Bench(a=("own", "b"), own=("b",))
    made.dead = {"a", "own"}
    assert made.relaying.model("a") == RelayModel(ModelId("b"), 77, 4.0, None, "b")
    assert made.relaying.model("own") == RelayModel(ModelId("b"), 77, 4.0, None, "b")
    made.dead = {"a"}
    assert made.relaying.model("a") is None  # our own engines answer
    assert made.relaying.answering("a") == "own"
    made.dead = {"a", "own", "b"}
    assert made.relaying.answering("a") == "a"  # nobody can: the error names what was asked for


def test_a_failure_before_the_first_byte_goes_on_at_the_next_fallback() -> None:
    made = Bench(a=("own", "b"))
    made.submit()
    made.end("no_replica")
    assert made.models() == ["a", "b"]
    closed = [type(event) for event in made.events]
    assert closed == [RequestArrived, StreamClosed, RequestArrived]
    assert made.exchange.echoes == ["b"]
    made.end("no_replica")
    assert [error.code for error in made.exchange.errors] == ["no_replica"]


def test_what_has_begun_or_is_the_clients_fault_does_not_go_on() -> None:
    made = Bench(a=("b",))
    made.submit()
    made.end("deadline_passed")
    assert made.models() == ["a"]
    made.exchange.has_begun = True
    made.end("engine_lost")
    assert made.models() == ["a"]
    assert len(made.exchange.errors) == 2


def test_admission_says_where_to_go() -> None:
    made = Bench()
    made.submit()
    made.end("queue_full", transfer_to="b")
    assert made.models() == ["a", "b"]


def test_the_end_of_an_answer_is_its_calls_affair() -> None:
    made = Bench()
    made.submit()
    made.relaying.end(End(R, FinishReason.STOP))
    assert made.exchange.errors == []


def test_a_client_that_leaves_is_told_once_and_its_close_as_well() -> None:
    made = Bench()
    made.submit()
    made.relaying.gone(R)
    made.relaying.closed(R, None, 10)
    made.relaying.gone(R)
    made.relaying.closed(R, None, 10)
    assert [type(event) for event in made.events] == [RequestArrived, ClientGone, StreamClosed]
    assert made.relaying.exchange(R) is None


def test_the_directory_lists_what_can_be_asked_for() -> None:
    relaying = Bench().relaying
    assert relaying.named() == [
        NamedModel("a", "a", None, 99),
        NamedModel("b", "b", None, 99),
        NamedModel("lora", "lora", "a", 99),
        NamedModel("alias", "a", None, 99),
    ]


def test_an_alias_hides_what_an_upstream_lists_under_its_name() -> None:
    made = Bench()
    made.relaying.names.aliases = {"b": "a", "lora": "a"}
    assert [(card.id, card.root) for card in made.relaying.named()] == [("a", "a"), ("b", "a"), ("lora", "a")]


def test_ready_needs_every_model_or_what_stands_in_for_it() -> None:
    made = Bench(a=("b",))
    assert made.relaying.ready() == (True, "ready")
    made.dead = {"a"}
    assert made.relaying.ready() == (True, "ready")
    made.dead = {"b"}
    assert made.relaying.ready() == (False, "no upstream of b is well")


def test_prompts_teach_how_many_bytes_a_token_has() -> None:
    made = Bench()
    request = TextRequest(R, TenantId("t"), ModelId("a"), 1000, 10, 0)
    counted: list[tuple[str, int, int]] = []
    made.relaying.count = lambda *told: counted.append(told)
    made.relaying.answered(request, Usage(2000, 7, None, 9))
    made.relaying.answered(request, Usage(None, None, None, 9))
    assert counted == [("a", 2000, 7), ("a", 1000, 9)]  # told, else estimated
    model = made.relaying.model("a")
    assert model is not None
    assert model.bytes_per_token < 4.0
