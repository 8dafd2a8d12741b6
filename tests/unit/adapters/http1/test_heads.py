"""Heads are read strictly: what two servers could read differently is refused."""

import pytest

from headway.adapters.http1.heads import BadHead, dropped_names, read_answer, read_request

START = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


def test_reads_a_request() -> None:
    head = read_request(START + b"Content-Length: 12\r\nX-A:  one \r\nx-a: two\r\n\r\n")
    assert (head.method, head.target, head.minor, head.length) == ("POST", "/v1/completions", 1, 12)
    assert head.headers["x-a"] == "one, two"
    assert head.keep_alive


@pytest.mark.parametrize(
    ("start", "lines", "keeps"),
    [
        (START, b"connection: close\r\n", False),
        (START, b"connection: x, Close\r\n", False),
        (START.replace(b"1.1", b"1.0"), b"", False),
        (START.replace(b"1.1", b"1.0"), b"connection: Keep-Alive\r\n", True),
    ],
)
def test_knows_who_keeps_the_connection(start: bytes, lines: bytes, keeps: bool) -> None:
    assert read_request(start + lines + b"\r\n").keep_alive is keeps


@pytest.mark.parametrize(
    "lines",
    [
        b"content-length: 1\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 1\r\ncontent-length: 1\r\n",
        b"content-length: 1, 1\r\n",
        b"content-length: +1\r\n",
        b"content-length: 1000000000000000\r\n",
        b"transfer-encoding: gzip, chunked\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        b"x : y\r\n",
        b"x: a\r\n b\r\n",
        b"x: a\nb: c\r\n",
        b"x: \x00\r\n",
        b": y\r\n",
        b"x\r\n",
        b"host: y\r\n",
    ],
)
def test_refuses_what_could_be_read_differently(lines: bytes) -> None:
    with pytest.raises(BadHead):
        read_request(START + lines + b"\r\n")


def test_an_answer_without_length_ends_with_its_connection() -> None:
    answer = read_answer(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    assert (answer.length, answer.is_chunked, answer.keep_alive) == (None, False, False)


def test_an_answer_that_has_no_body_ends_at_once() -> None:
    assert read_answer(b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n").length == 0


def test_what_connection_names_ends_at_this_hop() -> None:
    head = read_request(START + b"connection: X-Own\r\n\r\n")
    assert "x-own" in dropped_names(head.headers)
