import json

import pytest

from headway.adapters.gateway.errors import ended_without_answer, error_body, error_headers, error_out, internal_error
from headway.core.effects import ErrorOut
from headway.core.errors import CapacityError, EngineError, RequestError
from headway.core.request import FinishReason


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (RequestError("m", param="p", code="c"), 400, "invalid_request_error", "c"),
        (RequestError("m", status=401, code="invalid_api_key"), 401, "authentication_error", "invalid_api_key"),
        (RequestError("m", status=404, code="gone"), 404, "not_found_error", "gone"),
        (CapacityError("m"), 429, "rate_limit_error", "queue_full"),
        (EngineError("m"), 502, "server_error", "engine_lost"),
    ],
)
def test_every_error_has_openais_shape(
    error: RequestError | CapacityError | EngineError, status: int, kind: str, code: str | None
) -> None:
    # SPEC H1
    out = error_out(error)
    body = json.loads(error_body(out))
    param = error.param if isinstance(error, RequestError) else None
    assert (out.status, body) == (status, {"error": {"message": "m", "type": kind, "param": param, "code": code}})


def test_a_bug_tells_no_internals() -> None:
    body = error_body(internal_error())
    assert json.loads(body)["error"]["code"] == "internal_error"
    assert b"log" in body


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (ErrorOut(400, None, "m"), {}),
        (
            ErrorOut(429, "queue_full", "m", 1500),
            {"retry-after-ms": "1500", "retry-after": "2", "x-should-retry": "true"},
        ),
        (
            ErrorOut(429, "slo_unattainable", "m", 1000, waiting_helps=False),
            {"retry-after-ms": "1000", "retry-after": "1", "x-should-retry": "false"},
        ),
        (
            ErrorOut(429, "quota_exceeded", "m", 60_000),
            {"retry-after-ms": "60000", "retry-after": "60", "x-should-retry": "true"},
        ),
        (  # openai's client waits for 60 s at most, and would be back within one
            ErrorOut(429, "quota_exceeded", "m", 60_001),
            {"retry-after-ms": "60001", "retry-after": "61", "x-should-retry": "false"},
        ),
        (ErrorOut(408, "deadline_passed", "m"), {"x-should-retry": "false"}),
        (ErrorOut(502, "engine_lost", "m"), {"x-should-retry": "true"}),
        (ErrorOut(503, "no_replica", "m"), {"x-should-retry": "true"}),
        (ErrorOut(500, "internal_error", "m"), {}),
    ],
)
def test_clients_are_told_to_retry_only_when_it_can_help(error: ErrorOut, headers: dict[str, str]) -> None:
    assert {name.decode(): value.decode() for name, value in error_headers(error)} == headers


@pytest.mark.parametrize("reason", [r for r in FinishReason if r not in (FinishReason.STOP, FinishReason.LENGTH)])
def test_every_other_end_is_an_error(reason: FinishReason) -> None:
    assert ended_without_answer(reason).status >= 400
