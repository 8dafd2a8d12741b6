"""The page tells of every field that operators' answers have, and of no other (SPEC H1, H6)."""

import asyncio
import json

from tests.unit.adapters.gateway.fakes import FakeServing, get, toy_tokenizer
from tests.unit.adapters.gateway.pictures.fakes import KEYED
from tests.unit.adapters.gateway.pictures.test_usage import DAYS, A, filled

from headway.adapters.gateway.answer_fields import ANSWERS
from headway.adapters.gateway.pictures.queue import shown
from headway.adapters.gateway.queue_ports import Hold, QueueLine, QueueView
from headway.adapters.gateway.reference import api_reference


def names(answer: object) -> list[str]:
    assert isinstance(answer, dict)
    return list(answer)


# SPEC H1
def test_every_field_of_a_replica_is_on_the_page() -> None:
    (replica, *_) = get(FakeServing(toy_tokenizer()), "/v1/replicas").json()["data"]
    assert names(replica) == list(ANSWERS["GET /v1/replicas"])


# SPEC H6
def test_every_field_of_usage_is_on_the_page() -> None:
    async def ask() -> tuple[dict[str, object], str]:
        studio = filled(KEYED)
        page = (await studio.get(f"/v1/usage?{DAYS}", A)).json()
        lines = (await studio.get(f"/v1/usage/export?{DAYS}&format=jsonl", A)).body.decode()
        return page, lines.splitlines()[0]

    page, line = asyncio.run(ask())
    rows = page["data"]
    assert isinstance(rows, list)
    assert names(page) == list(ANSWERS["GET /v1/usage"])
    row = list(ANSWERS["GET /v1/usage, a row; GET /v1/usage/export, a line"])
    assert (names(rows[0]), names(json.loads(line))) == (row, row)


# SPEC H2
def test_every_field_of_the_queue_is_on_the_page() -> None:
    queue = shown(QueueView((Hold("wan", "finish", 5),), (QueueLine("wan", 1, 2),)))
    data = queue["data"]
    assert isinstance(data, list)
    assert names(queue) == list(ANSWERS["GET /v1/queue"])
    assert names(data[0]) == list(ANSWERS["GET /v1/queue, a model"])


def test_the_page_has_them_with_their_meaning() -> None:
    page = api_reference()
    for route, fields in ANSWERS.items():
        assert f"## {route}\n" in page
        assert [name for name, meaning in fields.items() if f"| `{name}` | {meaning} |" not in page] == []
