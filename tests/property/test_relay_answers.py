"""Answers of upstreams against h11 as the oracle: what reaches the client is what the upstream said, or less of it.

Whatever is mutated and however it is cut: no crash, no byte that h11 does not see in the body, and an answer that we
take for complete is complete for h11 too, with the same body.
"""

import random

import h11
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.adapters.http1.chunks import framed, payload_of
from headway.adapters.upstream.answer import Answer, BadAnswer, HeadReader

EVENTS = [b'data: {"n": %d}\n\n' % n for n in range(5)] + [b"data: [DONE]\n\n"]
WHOLE = b'{"choices": [], "usage": {"prompt_tokens": 1}}'
CHUNKS = b"".join(framed(event) for event in EVENTS)
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
ANSWERS = [
    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(WHOLE), WHOLE),
    b"HTTP/1.1 200 OK\r\n\r\n" + WHOLE,
    OK + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS + b"0\r\n\r\n",
    OK + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS + b"0\r\nx: y\r\n\r\n",
    OK + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS.replace(b"\r\ndata", b";e=1\r\ndata") + b"0\r\n\r\n",
    OK + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n" + CHUNKS + b"0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: 0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 429 \r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}",
]


def by_h11(data: bytes) -> tuple[bytes, bool]:
    """The body, and whether it was complete when the connection closed."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    body, is_fed = b"", True
    try:
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA and is_fed:
                connection.receive_data(b"")
                is_fed = False
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return body, True
            elif isinstance(event, h11.ConnectionClosed) or event in (h11.NEED_DATA, h11.PAUSED):
                return body, False
    except h11.RemoteProtocolError:
        return body, False


def by_us(pieces: list[bytes]) -> tuple[bytes, bool]:
    """What the client would get, and whether the answer counts as complete when the connection closed."""
    answer, body = Answer(HeadReader()), b""
    try:
        for piece in pieces:
            if answer.state == "ended":
                break
            rest = answer.read_head(piece) if answer.state == "head" else piece
            if rest and answer.state == "body":
                part = answer.read_body(rest)
                assert answer.head is not None
                body += payload_of(part) if answer.head.framing == "chunked" else part
        answer.closed()
    except BadAnswer:
        return body, False
    return body, True


def check(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    (ours, is_whole), (theirs, is_whole_for_h11) = by_us(pieces), by_h11(data)
    assert theirs.startswith(ours) or ours.startswith(theirs), data
    if is_whole:
        assert is_whole_for_h11, data
        assert ours == theirs, data


def test_answers_split_at_every_byte_are_the_same_answers() -> None:
    for data in ANSWERS:
        whole = by_us([data])
        check([data])
        for at in range(1, len(data)):
            assert by_us([data[:at], data[at:]]) == whole, data
        assert by_us([data[at : at + 1] for at in range(len(data))]) == whole


@given(seed=st.integers(0, 2**32))
@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_mutation_makes_an_answer_that_was_not_given(seed: int) -> None:
    rng = random.Random(seed)
    out = bytearray(rng.choice(ANSWERS))
    scraps = [b"\r\n", b"\n", b"\r", b" ", b":", b";", b"0", b"1", b"\x00", b"5\r\n", b"content-length: 3\r\n"]
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(3):
            case 0:
                out[at:at] = rng.choice(scraps)
            case 1:
                del out[at : at + rng.randrange(1, 5)]
            case _:
                out[at : at + 1] = rng.choice(scraps)
    cuts = sorted(rng.randrange(len(out) + 1) for _ in range(rng.randrange(4)))
    check([bytes(out[a:b]) for a, b in zip([0, *cuts], [*cuts, len(out)], strict=True)])
