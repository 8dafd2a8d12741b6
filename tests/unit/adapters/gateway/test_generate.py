"""Degraded and moved requests: what the client is told, and that a move happens once and leaves nothing behind."""

import asyncio

import msgspec
import pytest
from tests.unit.adapters.gateway.fakes import MODEL, Client, FakeServing, FakeStream, Reply, chat, toy_tokenizer

from headway.adapters.gateway.app import build_app
from headway.adapters.gateway.ports import ModelCard
from headway.adapters.gateway.settings import AuthSettings, GatewaySettings, TenantSettings
from headway.core.effects import Admitted, End, ErrorOut
from headway.core.ids import ModelId
from headway.core.request import FinishReason, LlmRequest

TOY = toy_tokenizer()
OTHER = "other"
LATE = ErrorOut(429, "slo_unattainable", "Too late.", 250)


class Guarded(FakeServing):
    """Admission that grants some models fewer tokens, and sends what is for others elsewhere."""

    def __init__(self, *, grants: int | None = None, moves: dict[str, str] | None = None) -> None:
        super().__init__(TOY, lambda request: TOY.encode("one two three", add_special_tokens=False))
        self.grants, self.moves = grants, moves or {}

    def models(self) -> list[ModelCard]:
        return [self.card, msgspec.structs.replace(self.card, id=OTHER)]

    def submit(self, request: object, received_ns: int, body_ns: int) -> FakeStream:
        assert isinstance(request, LlmRequest)
        to = self.moves.get(request.model)
        if to is not None:
            stream = super().submit(msgspec.structs.replace(request, id=request.id), received_ns, body_ns)
            stream.put(End(request.id, FinishReason.REJECTED, LATE, transfer_to=ModelId(to)))
            return stream
        stream = super().submit(request, received_ns, body_ns)
        if self.grants is not None:
            stream.put(Admitted(request.id, (("max_tokens", self.grants),)))
        return stream


def ask(serving: Guarded, settings: GatewaySettings | None = None, **fields: object) -> Reply:
    async def run() -> Reply:
        client = Client(build_app(serving, {MODEL: TOY, OTHER: TOY}, settings or GatewaySettings()))
        return await client.call("POST", "/v1/chat/completions", chat(**fields))

    return asyncio.run(run())


def test_what_was_taken_away_is_told_in_the_answer() -> None:  # SPEC A7
    degraded = ask(Guarded(grants=100), allow_degrade=["max_tokens"]).json()
    assert degraded["degraded"] == {"max_tokens": 100}
    assert "degraded" not in ask(Guarded()).json()


@pytest.mark.parametrize("fields", [{}, {"logprobs": True}, {"n": 2}])
def test_a_stream_tells_it_in_the_first_event_of_each_choice(fields: dict[str, object]) -> None:  # SPEC A7
    chunks = ask(Guarded(grants=100), stream=True, **fields).chunks
    first = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            first.setdefault(choice["index"], chunk)
    assert [chunk["degraded"] for chunk in first.values()] == [{"max_tokens": 100}] * len(first)
    assert len([chunk for chunk in chunks if "degraded" in chunk]) == len(first)
    assert ask(Guarded(), stream=True, **fields).chunks[0].keys() == chunks[-1].keys()


def test_permission_comes_from_the_body_and_from_the_tenant() -> None:  # SPEC A7
    serving = Guarded()
    tenant = TenantSettings(allow_degrade=("model",))
    ask(serving, GatewaySettings(auth=AuthSettings(tenants={"default": tenant})), allow_degrade=["max_tokens", "steps"])
    assert serving.requests[0].allow_degrade == ("max_tokens", "steps", "model")
    assert ask(serving, allow_degrade=["tokens"]).status == 400


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_admission_sends_elsewhere_is_answered_there(stream: bool) -> None:  # SPEC A7
    serving = Guarded(moves={MODEL: OTHER})
    reply = ask(serving, stream=stream)
    assert reply.status == 200
    assert [request.model for request in serving.requests] == [MODEL, OTHER]
    assert len({request.id for request in serving.requests}) == 2
    assert [request for request, _, _ in serving.closures] == [request.id for request in serving.requests]
    answer = reply.chunks[0] if stream else reply.json()
    assert answer["model"] == OTHER
    assert "degraded" not in answer
    assert reply.headers["x-headway-model"] == OTHER


def test_a_move_that_the_client_allowed_is_told_as_degraded() -> None:  # SPEC A7
    assert ask(Guarded(moves={MODEL: OTHER}), allow_degrade=["model"]).json()["degraded"] == {"model": OTHER}


@pytest.mark.parametrize("to", ["absent", OTHER])
def test_a_move_happens_once_and_else_the_refusal_stands(to: str) -> None:  # SPEC A7
    serving = Guarded(moves={MODEL: to, OTHER: MODEL})
    reply = ask(serving)
    assert (reply.status, reply.json()["error"]["code"]) == (429, "slo_unattainable")
    assert reply.headers["retry-after-ms"] == "250"
    assert reply.headers["x-should-retry"] == "true"
    assert len(serving.requests) == (1 if to == "absent" else 2)
