"""Bytes of a client to whole requests."""

import pytest

from headway.adapters.gateway.relay.reader import RequestReader
from headway.adapters.gateway.settings import LimitSettings
from headway.adapters.http1.heads import BadHead

REST = b"host: x\r\ncontent-length: 2\r\n\r\n{}"


def read(data: bytes, size: int = 1 << 20) -> RequestReader:
    reader = RequestReader(LimitSettings())
    for at in range(0, len(data), size):
        reader.add(data[at : at + size])
    return reader


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_empty_lines_before_a_request_are_skipped(size: int) -> None:
    reader, whole = RequestReader(LimitSettings()), None
    data = b"\r\n" * 7 + b"POST /v1/completions HTTP/1.1\r\n" + REST
    for at in range(0, len(data), size):
        reader.add(data[at : at + size])
        whole = reader.next()
        assert not reader.is_foreign
    assert whole is not None
    assert whole.body == b"{}"


def test_many_empty_lines_are_dropped_in_one_step() -> None:
    reader = read(b"\r\n" * 500_000)
    assert reader.next() is None
    assert reader.held == 0


def test_a_query_stays_in_the_target_and_is_no_part_of_the_route() -> None:
    whole = read(b"POST /v1/completions?api-version=1 HTTP/1.1\r\n" + REST).next()
    assert whole is not None
    assert whole.route == "/v1/completions"
    assert whole.head.target == "/v1/completions?api-version=1"


@pytest.mark.parametrize("start", [b"GET /v1/completions HTTP/1.1", b"POST /v1/completionsx HTTP/1.1", b"\r\rPOST"])
def test_what_is_not_a_generation_request_is_foreign(start: bytes) -> None:
    reader = read(start + b"\r\n" + REST)
    assert reader.next() is None
    assert reader.is_foreign


def test_a_version_that_is_not_ours_is_refused_behind_a_query() -> None:
    with pytest.raises(BadHead):
        read(b"POST /v1/completions?x HTTP/2.0\r\n" + REST).next()
