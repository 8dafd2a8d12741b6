"""An upstream's answer as it comes in."""

import pytest

from headway.adapters.http1.chunks import LAST_CHUNK, framed
from headway.adapters.http1.heads import read_answer
from headway.adapters.upstream.answer import Answer, BadAnswer, HeadReader, _shown

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = b'{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}'


def fed(data: bytes, size: int) -> tuple[Answer, bytes]:
    answer, out = Answer(HeadReader()), b""
    for at in range(0, len(data), size):
        piece: bytes | None = data[at : at + size]
        assert piece is not None
        if answer.state == "head":
            piece = answer.read_head(piece)
        if piece and answer.state == "body":
            out += answer.read_body(piece)
    return answer, out


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_usage_is_read_from_the_end_however_it_is_cut(size: int) -> None:
    events = [b'data: {"choices":[]}\n\n', b'data: {"usage":null}\n\n', b'data: {"usage":%b}\n\n' % USAGE]
    body = b"".join(framed(event) for event in [*events, b"data: [DONE]\n\n"])
    answer, _ = fed(STREAM + body + LAST_CHUNK, size)
    assert answer.state == "ended"
    assert answer.is_told_over
    usage = answer.usage(5)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (9, 3, 8)
    assert usage.output_tokens == 3


def test_without_usage_the_chunks_are_counted() -> None:
    body = b"".join(framed(b"data: x\n\n") for _ in range(5)) + framed(b"data: [DONE]\n\n")
    answer, _ = fed(STREAM + body + LAST_CHUNK, 1000)
    assert answer.usage(5).output_tokens == 6


def test_text_that_looks_like_usage_is_none() -> None:
    body = b'{"choices":[{"message":{"content":"\\"usage\\":{\\"prompt_tokens\\":1}"}}]}'
    answer, _ = fed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body), 1000)
    assert answer.usage(5).prompt_tokens is None


@pytest.mark.parametrize("count", [b"-3", b"1e30", b"9007199254740993", b"true", b'"7"', b"\xff"])
def test_usage_that_cannot_be_is_counted_instead(count: bytes) -> None:
    body = b'{"usage":{"prompt_tokens":9,"completion_tokens":%b}}' % count
    answer, _ = fed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body), 1000)
    usage = answer.usage(5)
    assert (usage.prompt_tokens, usage.completion_tokens) == (None, None)
    assert usage.output_tokens == 1


def test_a_stream_that_ends_in_silence_is_no_answer() -> None:
    # semantic-router#3063
    answer, _ = fed(STREAM + framed(b"data: x\n\n") + LAST_CHUNK, 1000)
    assert not answer.is_told_over


def test_the_end_of_the_connection_ends_only_what_has_no_other_end() -> None:
    answer, out = fed(b"HTTP/1.1 200 OK\r\n\r\nabc", 1000)
    answer.closed()
    assert (answer.state, out) == ("ended", framed(b"abc"))
    for data in (b"", STREAM, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc"):
        cut, _ = fed(data, 1000)
        with pytest.raises(BadAnswer):
            cut.closed()


def test_bytes_behind_an_answer_are_not_given_on() -> None:
    answer, out = fed(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n", 1000)
    assert (out, answer.is_clean) == (b"abc", False)


def test_an_interim_answer_is_skipped() -> None:
    answer, out = fed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na", 1000)
    assert (answer.state, out) == ("ended", b"a")


@pytest.mark.parametrize("data", [b"\x00\x01", b"SSH-2.0", b"HTTP/1.1 200 OK\nx: y\n\n" + b"z" * 70_000])
def test_what_is_no_http_is_refused(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        fed(data, 1000)


def test_hop_by_hop_fields_do_not_reach_the_client() -> None:
    fields = read_answer(b"HTTP/1.1 200 OK\r\nconnection: x-own\r\nx-own: a\r\nserver: s\r\nkeep-alive: 5\r\n\r\n")
    assert _shown(fields).lines == b"HTTP/1.1 200 OK\r\nserver: s\r\ntransfer-encoding: chunked\r\n"


def test_what_the_gateway_says_itself_is_not_said_twice() -> None:
    theirs = b"".join(
        b"%b: theirs\r\n" % name
        for name in (b"Traceparent", b"x-request-id", b"x-headway-model", b"X-RateLimit-Limit-Requests", b"set-cookie")
    )
    fields = read_answer(b"HTTP/1.1 200 OK\r\n" + theirs + b"retry-after: 3\r\nx-should-retry: false\r\n\r\n")
    kept = b"retry-after: 3\r\nx-should-retry: false\r\ntransfer-encoding: chunked\r\n"
    assert _shown(fields).lines == b"HTTP/1.1 200 OK\r\n" + kept
