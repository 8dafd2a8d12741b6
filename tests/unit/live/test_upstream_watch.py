"""The watch of one upstream: it appears when it is well, and what breaks is told and goes on."""

import asyncio

import pytest
from tests.unit.live.test_upstream_node import Bench

from headway.adapters.upstream.look import Unseen, UpstreamCard
from headway.adapters.upstream.scrape import Scraped
from headway.adapters.upstream.settings import UpstreamSettings, WatchSettings
from headway.core.messages import Probed
from headway.live.model_names import Offer, offer_of
from headway.live.upstream_node import UpstreamNode
from headway.live.upstream_watch import UpstreamWatch, restart_between

SETTINGS = UpstreamSettings("a", "http://a:1", "vllm", watch=WatchSettings(health_interval_s=0.001))


class Scripted:
    """Looks that are scripted; an exception is raised."""

    def __init__(self) -> None:
        self.health: str | Exception = "status 200"
        self.page: Scraped | Exception = Scraped(running=1, waiting=0, prompt_tokens=5)
        self.cards: tuple[UpstreamCard, ...] | Exception = (UpstreamCard("x"),)
        self.looks = 0

    async def alive(self) -> str:
        self.looks += 1
        if isinstance(self.health, Exception):
            raise self.health
        return self.health

    async def metrics(self) -> Scraped:
        if isinstance(self.page, Exception):
            raise self.page
        return self.page

    async def models(self) -> tuple[UpstreamCard, ...]:
        if isinstance(self.cards, Exception):
            raise self.cards
        return self.cards


def watched(settings: UpstreamSettings = SETTINGS) -> tuple[Bench, Scripted, UpstreamWatch]:
    made, looks = Bench(settings), Scripted()
    made.node.disappear("for the test")
    made.node.offer = Offer({})
    made.told.clear()

    def listed(node: UpstreamNode, cards: tuple[UpstreamCard, ...]) -> None:
        node.offers(offer_of(settings, cards))

    return made, looks, UpstreamWatch(made.node, looks, listed, lambda: 42)


def test_it_appears_with_its_models_at_the_first_good_check() -> None:
    async def run() -> None:
        made, looks, watch = watched()
        looks.health = Unseen("no answer")
        await watch.probe()
        assert not made.node.incarnation
        assert watch.has_looked.is_set()
        looks.health = "status 200"
        await watch.probe()
        assert made.node.incarnation
        assert made.report().model == "x"
        assert made.told[-2] == Probed(True, "status 200")

    asyncio.run(run())


def test_one_that_lists_no_models_serves_those_of_the_settings() -> None:
    async def run() -> None:
        settings = UpstreamSettings("a", "http://a:1", models={"m": "m"})
        made, looks, watch = watched(settings)
        looks.cards = Unseen("status 404")
        await watch.probe()
        assert made.report().model == "m"

    asyncio.run(run())


def test_one_without_any_model_does_not_appear() -> None:
    async def run() -> None:
        made, looks, watch = watched()
        looks.cards = Unseen("status 404")
        await watch.probe()
        assert not made.node.incarnation

    asyncio.run(run())


def test_models_that_were_listed_stay_when_a_look_fails() -> None:
    async def run() -> None:
        made, looks, watch = watched()
        await watch.probe()
        looks.cards = Unseen("timeout")
        await watch.list_models()
        assert made.report().model == "x"

    asyncio.run(run())


def test_a_scrape_covers_what_was_sent_before_it(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        made, looks, watch = watched()
        await watch.probe()
        made.submit(3, model="x")
        await watch.scrape()
        report = made.report()
        assert (report.source, report.at_ns, report.running) == ("scrape", 42, 1)
        looks.page = Unseen("status 500")
        for _ in range(3):
            await watch.scrape()
        assert made.report().source == "counted"

    asyncio.run(run())
    assert len([r for r in caplog.records if "only own counts" in r.message]) == 1


def test_a_loop_that_breaks_is_told_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    # production-stack#815, #680: the health loop dies
    async def run() -> None:
        _, looks, watch = watched()
        looks.health = ZeroDivisionError("a bug")
        watch.start()
        while not looks.looks:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not any(task.done() for task in watch._tasks)
        await watch.stop()

    asyncio.run(run())
    assert any("broke and goes on" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("before", "after", "is_other"),
    [
        (Scraped(started_s=100.0), Scraped(started_s=100.9), False),
        (Scraped(started_s=100.0), Scraped(started_s=130.0), True),
        (Scraped(started_s=100.0, requests=5), Scraped(started_s=100.0, requests=1), False),
        (Scraped(requests=5), Scraped(requests=1), True),
        (Scraped(requests=5), Scraped(requests=5), False),
        (Scraped(requests=5), Scraped(), False),
    ],
)
def test_another_process_is_told_by_its_start_or_by_a_counter_that_fell(
    before: Scraped, after: Scraped, is_other: bool
) -> None:
    assert (restart_between(before, after) is not None) is is_other
