import asyncio

import pytest
from tests.unit.adapters.gateway.fakes import Reply
from tests.unit.adapters.gateway.pictures.fakes import Studio

from headway.adapters.gateway.job_ports import Body


def film(headers: dict[str, str]) -> Reply:
    async def run() -> Reply:
        studio = Studio()
        job = (await studio.film()).json()["id"]
        studio.jobs.complete(job, {("video", 0): Body("video/mp4", b"0123456789")})
        return await studio.get(f"/v1/videos/{job}/content", headers)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("asked", "body", "told"),
    [
        ("bytes=0-3", b"0123", "bytes 0-3/10"),
        ("bytes=8-", b"89", "bytes 8-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=4-400", b"456789", "bytes 4-9/10"),
        ("bytes=-400", b"0123456789", "bytes 0-9/10"),
    ],
)
def test_a_player_may_seek(asked: str, body: bytes, told: str) -> None:
    reply = film({"range": asked})
    assert (reply.status, reply.body, reply.headers["content-range"]) == (206, body, told)
    assert reply.headers["content-type"] == "video/mp4"


@pytest.mark.parametrize("asked", ["", "bytes=-", "bytes=0-1,3-4", "pages=1-2", "bytes=a-b"])
def test_what_is_no_single_range_is_ignored(asked: str) -> None:
    reply = film({"range": asked})
    assert (reply.status, reply.body, reply.headers["accept-ranges"]) == (200, b"0123456789", "bytes")


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=5-4", "bytes=-0"])
def test_a_range_outside_is_refused(asked: str) -> None:
    reply = film({"range": asked})
    assert (reply.status, reply.headers["content-range"]) == (416, "bytes */10")
    assert reply.json()["error"]["code"] == "range_not_satisfiable"
