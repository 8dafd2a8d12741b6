"""What an upstream's refusal means: of the replica, or of one request."""

import pytest

from headway.adapters.upstream.call import RETRY_AFTER_MS_MAX, _is_of_one_request, _retry_after_ms

SLO = b'{"error":{"message":"m","type":"rate_limit_error","param":null,"code":"slo_unattainable"}}'


@pytest.mark.parametrize(
    ("headers", "rest", "expected"),
    [
        ({"x-should-retry": "false"}, b"", True),
        ({"x-should-retry": "False"}, b"", True),
        ({"x-should-retry": "true"}, SLO, True),
        ({}, SLO.replace(b":", b": "), True),
        ({"x-should-retry": "true"}, SLO.replace(b"slo_unattainable", b"queue_full"), False),
        ({}, b"", False),
        ({}, b'{"error":{"message":"slo_unattainable","code":"queue_full"}}', False),
    ],
)
def test_only_a_refusal_of_one_request_says_nothing_of_others(
    headers: dict[str, str], rest: bytes, expected: bool
) -> None:
    assert _is_of_one_request(headers, rest) is expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "3"}, 3000),
        ({"retry-after": "3", "retry-after-ms": "20"}, 20),
        ({"retry-after": "999999"}, RETRY_AFTER_MS_MAX),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({}, None),
    ],
)
def test_no_upstream_keeps_others_out_for_longer_than_the_bound(headers: dict[str, str], expected: int | None) -> None:
    assert _retry_after_ms(headers) == expected
