import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.adapters.gateway.choice import Piece, TokenLogprob, TopLogprob
from headway.adapters.gateway.prepare import Answer
from headway.adapters.gateway.render import ChunkFrame, error_event, text_logprobs, usage_of
from headway.core.effects import ErrorOut

ANSWER = Answer(
    id='chatcmpl-"quoted"', public_id="x", model='a "model"', created=7, chat=True, stream=True, n=1,
    include_usage=False, continuous_usage=False, stream_interval=1, stops=(), include_stop=False,
    stop_tokens=frozenset(), min_tokens=0, skip_special=True, logprobs=None, return_token_ids=False, echo=False,
)  # fmt: skip


def answer(**fields: object) -> Answer:
    return msgspec.structs.replace(ANSWER, **fields)


def parsed(event: bytes) -> dict:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    return json.loads(event[6:])


# SPEC H1
@given(st.text(), st.booleans(), st.booleans(), st.integers(0, 3))
@settings(deadline=None)
def test_the_rendered_frame_equals_the_encoded_struct(text: str, chat: bool, include_usage: bool, index: int) -> None:
    frame = ChunkFrame(answer(chat=chat, include_usage=include_usage))
    slow = ChunkFrame(answer(chat=chat, include_usage=include_usage, return_token_ids=True))
    quick, full = parsed(frame.text(index, Piece(text), 0, None)), parsed(slow.text(index, Piece(text), 0, None))
    assert full["choices"][0].pop("token_ids") == []
    assert quick == full
    assert quick["id"] == ANSWER.id
    assert ("usage" in quick) is include_usage


def test_a_chat_chunk_has_openais_shape() -> None:
    chunk = parsed(ChunkFrame(ANSWER).text(1, Piece("hi"), 0, None))
    assert chunk == {
        "id": ANSWER.id, "object": "chat.completion.chunk", "created": 7, "model": ANSWER.model,
        "system_fingerprint": None,
        "choices": [{"index": 1, "delta": {"content": "hi"}, "logprobs": None, "finish_reason": None}],
    }  # fmt: skip


def test_the_usage_chunk_has_no_choices() -> None:
    chunk = parsed(ChunkFrame(answer(include_usage=True)).usage(usage_of(5, 3, 2)))
    assert chunk["choices"] == []
    assert chunk["usage"] == {
        "prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip


def test_an_error_event_is_one_error_object() -> None:
    assert set(parsed(error_event(ErrorOut(502, "engine_lost", "line\nbreak")))) == {"error"}


def test_text_logprobs_are_parallel_and_hold_the_sampled_token() -> None:
    top = [TopLogprob("b", -0.1, [98])]
    out = text_logprobs([TokenLogprob("ab", -1.0, [97, 98], top), TokenLogprob("c", -2.0, [99], [])], 10)
    assert (out.tokens, out.token_logprobs, out.text_offset) == (["ab", "c"], [-1.0, -2.0], [10, 12])
    assert out.top_logprobs == [{"b": -0.1, "ab": -1.0}, {"c": -2.0}]
