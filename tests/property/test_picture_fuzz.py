"""Whatever a client sends to the picture routes is answered with 2xx or a 4xx in OpenAI's shape, and holds nothing."""

import asyncio
import json
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.test_gateway_fuzz import JSON, TEXT
from tests.unit.adapters.gateway.fakes import Reply
from tests.unit.adapters.gateway.pictures.fakes import FILMER, PAINTER, Studio, data_url, form, picture

from headway.adapters.gateway.fields import HARMLESS
from headway.adapters.gateway.pictures.schema import NOT_SERVED, EditBody, VideoBody

PICTURE = picture()
NAMES = sorted({*EditBody.__struct_fields__, *VideoBody.__struct_fields__, *HARMLESS, *NOT_SERVED})
GOOD: dict[str, dict[str, object]] = {
    "/v1/images/generations": {"model": PAINTER, "prompt": "x"},
    "/v1/images/edits": {"model": PAINTER, "prompt": "x", "images": [{"image_url": data_url(PICTURE)}]},
    "/v1/images/variations": {"model": PAINTER, "images": [{"image_url": data_url(PICTURE)}]},
    "/v1/videos": {"model": FILMER, "prompt": "x", "seconds": "4"},
    "/v1/estimates": {"endpoint": "/v1/videos", "body": {"model": FILMER, "prompt": "x"}},
}
CHANGES = st.dictionaries(st.one_of(st.sampled_from(NAMES), TEXT), JSON, max_size=4)
VISIBLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
HEADERS = st.dictionaries(
    st.sampled_from(["prefer", "idempotency-key", "host", "content-type", "x-slo-e2e-ms"]),
    st.one_of(VISIBLE, st.sampled_from(["respond-async", "application/json", "multipart/form-data; boundary=edge"])),
    max_size=2,
)
KEYS = st.one_of(st.sampled_from(NAMES), st.text("ab[]01²٣", max_size=12), st.just("image[]"), st.just("lora[][id]"))


def ask(path: str, raw: bytes, headers: Mapping[str, str]) -> Reply:
    studio = Studio()

    async def run() -> Reply:
        return await studio.post(path, raw, headers)

    reply = asyncio.run(run())
    painter = studio.painter
    assert sorted(painter.closed_requests) == sorted(request.id for request in painter.painted)
    return reply


def check(reply: Reply) -> None:
    assert reply.complete
    if reply.status in (200, 202):
        return
    assert 400 <= reply.status < 500, reply.body
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert len(reply.body) < 4000


# SPEC H1
@given(st.sampled_from(sorted(GOOD)), CHANGES, HEADERS)
@settings(max_examples=60, deadline=None)
def test_changed_bodies_get_an_answer_or_a_4xx(path: str, changes: dict[str, object], headers: dict[str, str]) -> None:
    check(ask(path, json.dumps({**GOOD[path], **changes}).encode(), headers))


# SPEC H1, M5
@given(
    st.sampled_from(["/v1/images/edits", "/v1/images/variations", "/v1/videos"]),
    st.lists(st.tuples(KEYS, VISIBLE), max_size=5),
    st.lists(st.tuples(KEYS, st.one_of(st.just(PICTURE), st.binary(max_size=40))), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_forms_get_an_answer_or_a_4xx(path: str, fields: list[tuple[str, str]], files: list[tuple[str, bytes]]) -> None:
    check(ask(path, *form([("prompt", "x"), *fields], files)))


@given(st.integers(0, 400), st.binary(min_size=1, max_size=3))
@settings(max_examples=50, deadline=None)
def test_damaged_forms_get_an_answer_or_a_4xx(at: int, junk: bytes) -> None:
    raw, headers = form([("prompt", "x"), ("model", PAINTER), ("n", "2")], [("image", PICTURE)])
    at %= len(raw)
    check(ask("/v1/images/edits", raw[:at] + junk + raw[at + len(junk) :], headers))
