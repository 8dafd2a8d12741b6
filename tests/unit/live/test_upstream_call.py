"""When a client's JSON must be written anew for an upstream."""

import json

import pytest

from headway.adapters.gateway.relay.ports import Target
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import TextRequest
from headway.live.upstream_call import is_written, target_of

REQUEST = TextRequest(RequestId("req-1"), TenantId("t"), ModelId("m"), 1, 1, 0)


@pytest.mark.parametrize(
    ("body", "written"),
    [
        (b'{"model":"m"}', True),
        (b'{ "model" : "m" , "x": 1}', True),
        (b'{"model":"alias"}', False),
        (b'{"model":"m2"}', False),
        (json.dumps({"model": "alias", "messages": '"model":"m"'}).encode(), False),  # quotes in a text are escaped
        (b'{"model":"alias","metadata":{"model":"m"}}', False),
        (b'{"m\\u006fdel":"m"}', False),
    ],
)
def test_a_body_names_the_model_surely_or_not(body: bytes, written: bool) -> None:
    assert is_written(body, "m") is written


def test_a_name_that_no_client_can_have_changed_is_not_looked_for() -> None:
    assert target_of(b"not looked at", REQUEST, "m", lambda _: False) == Target()


def test_another_name_is_written() -> None:
    assert target_of(b'{"model":"m"}', REQUEST, "theirs", lambda _: False) == Target(model="theirs")
    assert target_of(b'{"model":"alias"}', REQUEST, "m", lambda _: True) == Target(model="m")
    assert target_of(b'{"model":"m"}', REQUEST, "m", lambda _: True) == Target()
