"""Usage over HTTP: pages, sums, prices, export, and whose it is (SPEC H6)."""

import asyncio
import csv
import io
import json
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.unit.adapters.gateway.fakes import FakeServing, get, toy_tokenizer
from tests.unit.adapters.gateway.pictures.fakes import FILMER, KEYED, PAINTER, Studio

from headway.adapters.gateway.job_ports import Usage
from headway.adapters.gateway.prices import Price
from headway.adapters.gateway.settings import GatewaySettings
from headway.core.ids import ModelId, TenantId

A, B = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}
DAYS = "first_day=2026-11-01&last_day=2026-11-30"


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def filled(settings: GatewaySettings) -> Studio:
    """Five rows of two tenants."""
    studio = Studio(settings)
    for day in ("2026-11-02", "2026-11-03"):
        for tenant in ("a", "b"):
            use = Usage(TenantId(tenant), ModelId(PAINTER), day, 3.6, images=2, requests=1)
            studio.jobs.metered.append(use)
    text = Usage(TenantId("a"), ModelId("toy"), "2026-11-03", prompt_tokens=1000, output_tokens=500, requests=4)
    studio.jobs.metered.append(text)
    return studio


def test_usage_by_day_and_tenant_with_its_price() -> None:
    # SPEC H6
    async def test() -> None:
        studio = Studio(KEYED)
        await studio.draw(A, n=2)
        await studio.draw(B)
        told = (await studio.get(f"/v1/usage?{DAYS}", A)).json()
        (row,) = told["data"]
        assert (row["tenant"], row["images"], row["gpu_seconds"]) == ("a", 2, 2.0)
        assert told["price_usd"] == pytest.approx(2.0 * 2.5 / 3600)
        assert (await studio.get(f"/v1/usage?{DAYS}&tenant=a", A)).json() == told
        other = await studio.get(f"/v1/usage?{DAYS}&tenant=b", A)
        assert (other.status, other.json()["error"]["code"]) == (403, "admin_only")

    run(test)


def test_pages_follow_each_other_and_each_tells_the_sums_of_all() -> None:
    # SPEC H6
    async def test() -> None:
        studio, after, seen = filled(GatewaySettings()), "", []
        while True:
            page = (await studio.get(f"/v1/usage?{DAYS}&limit=2{after}")).json()
            seen += [(row["day"], row["tenant"], row["model"]) for row in page["data"]]
            assert page["total"]["images"] == 8
            assert (page["total"]["requests"], page["total"]["output_tokens"]) == (8, 500)
            assert page["price_usd"] == pytest.approx(4 * 3.6 * 2.5 / 3600)
            if not page["has_more"]:
                break
            after = f"&after={page['next']}"
        assert page["next"] is None
        assert seen == sorted(seen)
        assert len(set(seen)) == len(seen) == 5
        only = (await studio.get(f"/v1/usage?{DAYS}&tenant=b&model={PAINTER}")).json()
        assert [row["day"] for row in only["data"]] == ["2026-11-02", "2026-11-03"]

    run(test)


@pytest.mark.parametrize(
    "query",
    [
        "first_day=x",
        "first_day=20261101",
        "first_day=2026-02-01&last_day=2026-01-01",
        "first_day=2020-01-01",
        "first_day=0000-01-01&last_day=0001-01-01",
        "limit=0",
        "limit=10001",
        "limit=1e3",
        "after=%2e%2e",
        "after=WzEsMiwzXQ==",  # [1,2,3]
        "frist_day=2026-11-01",
        "format=csv",  # of the export
        "limit=1&limit=2",
        "model=a%00b",
        "tenant=",
        "after=WyIwIiwiXHUwMDAwIiwibSJd",  # ["0","\\u0000","m"]
    ],
)
def test_a_query_that_means_nothing_is_refused_by_name(query: str) -> None:
    async def test() -> None:
        refused = await Studio().get(f"/v1/usage?{query}")
        assert refused.status == 400
        assert refused.json()["error"]["param"] == query.partition("=")[0]

    run(test)


def test_the_first_day_of_all_is_a_day() -> None:
    async def test() -> None:
        told = (await Studio().get("/v1/usage?last_day=0001-01-02")).json()
        assert (told["first_day"], told["data"]) == ("0001-01-01", [])

    run(test)


def test_an_export_has_every_row_as_csv_or_as_json_lines() -> None:
    # SPEC H6
    async def test() -> None:
        studio = filled(GatewaySettings(prices=(Price(model=PAINTER, image_usd=0.5),)))
        lines = await studio.get(f"/v1/usage/export?{DAYS}&format=jsonl")
        assert lines.headers["content-type"] == "application/jsonl"
        rows = [json.loads(line) for line in lines.body.splitlines()]
        assert rows == (await studio.get(f"/v1/usage?{DAYS}")).json()["data"]
        table = await studio.get(f"/v1/usage/export?{DAYS}&tenant=b")
        assert table.headers["content-type"] == "text/csv; charset=utf-8"
        read = list(csv.DictReader(io.StringIO(table.body.decode())))
        assert [(row["day"], row["images"], row["price_usd"]) for row in read] == [
            ("2026-11-02", "2", "1.0"),
            ("2026-11-03", "2", "1.0"),
        ]
        for query in ("format=xml", "limit=3"):
            assert (await studio.get(f"/v1/usage/export?{query}")).status == 400

    run(test)


def test_a_long_export_is_read_in_pages() -> None:
    async def test() -> None:
        studio = Studio()
        for number in range(2001):
            studio.jobs.metered.append(Usage(TenantId(f"t{number:04}"), ModelId("m"), "2026-11-02", requests=1))
        body = (await studio.get(f"/v1/usage/export?{DAYS}")).body
        assert body.count(b"\r\n") == 2002
        studio.jobs.metered = studio.jobs.metered[:1000]  # a page that is full and the last one
        assert (await studio.get(f"/v1/usage/export?{DAYS}")).body.count(b"\r\n") == 1001

    run(test)


def test_prices_of_the_sheet_are_in_answers_jobs_and_estimates() -> None:
    # SPEC H6
    async def test() -> None:
        prices = (
            Price(model=PAINTER, image_usd=0.5, request_usd=0.25),
            Price(model=FILMER, frame_usd=0.125),
        )
        studio = Studio(GatewaySettings(prices=prices))
        answer = (await studio.draw(n=3)).json()
        assert answer["price_usd"] == 1.75
        film = (await studio.film(seconds="4")).json()
        assert film["price_usd"] is None
        studio.jobs.complete(film["id"], {})
        studio.jobs.change(film["id"], gpu_seconds=9.0, completed_at=1_700_000_000)
        assert (await studio.get(f"/v1/videos/{film['id']}")).json()["price_usd"] == 1.0  # 8 frames
        body = {"prompt": "x", "model": PAINTER, "n": 2}
        told = await studio.post("/v1/estimates", {"endpoint": "/v1/images/generations", "body": body})
        assert told.json()["price_usd"] == 1.25

    run(test)


def test_a_server_that_keeps_no_usage_says_so() -> None:
    refused = get(FakeServing(toy_tokenizer()), "/v1/usage")
    assert (refused.status, refused.json()["error"]["code"]) == (404, "usage_not_kept")


def test_text_is_priced_by_its_tokens() -> None:
    # SPEC H6
    async def test() -> None:
        studio = filled(msgspec.structs.replace(KEYED, prices=(Price(model="toy", output_million_usd=2000.0),)))
        told = (await studio.get(f"/v1/usage?{DAYS}&model=toy", A)).json()
        assert told["price_usd"] == pytest.approx(1.0)
        assert (await studio.get(f"/v1/usage?{DAYS}&model=toy", B)).json()["data"] == []

    run(test)
