"""What the ring is told of a relayed request."""

import json
from typing import Any

import pytest

from headway.adapters.gateway.relay.body import read_body, wrong_shape
from headway.adapters.gateway.relay.ports import RelayModel
from headway.adapters.gateway.relay.prepare import Arrival, Prepared, RelayPreparer
from headway.adapters.gateway.settings import AuthSettings, GatewaySettings, SloDefaults, TenantSettings
from headway.adapters.http1.heads import read_request
from headway.core.errors import RequestError
from headway.core.ids import ModelId
from headway.core.units import NS_PER_MS

MODEL = RelayModel(ModelId("real"), max_tokens_default=99, bytes_per_token=2.0, lora="l")


def prepared(body: dict[str, Any], lines: str = "", settings: GatewaySettings = GatewaySettings()) -> Prepared:  # noqa: B008  frozen
    raw = json.dumps({"model": "alias", **body}).encode()
    head = read_request(f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode())
    read = read_body(raw)
    assert read is not None
    preparer = RelayPreparer(settings)
    arrival = Arrival(head, raw, head.target, 10 * NS_PER_MS, 11 * NS_PER_MS)
    return preparer.prepare(arrival, read, MODEL, preparer.tenant(head))


def test_estimates_the_prompt_from_the_text() -> None:
    body = {"messages": [{"role": "user", "content": "x" * 400}]}
    request = prepared(body).request
    assert request.prompt_tokens == round(len(json.dumps(body["messages"])) / 2.0)
    assert (request.model, request.lora, request.max_tokens) == ("real", "l", 99)


def test_takes_what_decides_something_from_the_body() -> None:
    request = prepared(
        {
            "prompt": "p",
            "max_tokens": 7,
            "n": 2,
            "priority": 3,
            "session_id": "s",
            "ignore_eos": True,
            "stream": True,
            "seed": 1,
            "allow_degrade": ["max_tokens"],
            "unknown": {"passes": "through"},
        }
    ).request
    assert (request.max_tokens, request.urgency, request.session) == (14, -3, "s")
    assert (request.ignores_eos, request.is_stream, request.is_idempotent) == (True, True, True)
    assert request.allow_degrade == ("max_tokens",)


def test_promises_are_deadlines_from_the_first_byte() -> None:
    settings = GatewaySettings(slo={"/v1/chat/completions": SloDefaults(e2e_ms=500)})
    slo = prepared({"prompt": "p"}, "x-slo-ttft-ms: 20\r\n", settings).request.slo
    assert (slo.ttft_deadline_ns, slo.e2e_deadline_ns) == (30 * NS_PER_MS, 510 * NS_PER_MS)


def test_a_priority_below_the_floor_is_refused() -> None:
    settings = GatewaySettings(auth=AuthSettings(tenants={"default": TenantSettings(priority_floor=0)}))
    with pytest.raises(RequestError, match="floor"):
        prepared({"prompt": "p", "priority": -1}, settings=settings)


@pytest.mark.parametrize("field", [{"priority": 2**31}, {"priority": -(2**70)}, {"allow_degrade": ["prompt"]}])
def test_what_our_own_routes_refuse_is_refused_before_an_upstream_gets_it(field: dict[str, Any]) -> None:
    raw = json.dumps({"model": "m", "prompt": "p", **field}).encode()
    assert read_body(raw) is None
    assert wrong_shape(raw).code == "invalid_value"


def test_a_tenant_may_have_agreed_to_lose_something_for_all_its_requests() -> None:
    tenants = {"default": TenantSettings(allow_degrade=("model",))}
    settings = GatewaySettings(auth=AuthSettings(tenants=tenants))
    body = {"prompt": "p", "allow_degrade": ["max_tokens", "model"]}
    assert prepared(body, settings=settings).request.allow_degrade == ("max_tokens", "model")
    assert prepared({"prompt": "p"}, settings=settings).request.allow_degrade == ("model",)


def test_the_same_client_id_gives_different_requests() -> None:
    one, other = (prepared({"prompt": "p"}, "x-request-id: mine\r\n").request.id for _ in range(2))
    assert one != other
