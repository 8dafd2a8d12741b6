"""Watches one upstream: health checks, scrapes, its list of models. A watch that breaks is told and goes on.

production-stack#815, #680: a health loop that dies, or follows a configuration of the past, takes the fleet with it.
Each loop here belongs to one node and ends with it; what it raises is logged, and the loop goes on.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from headway.adapters.upstream.look import Unseen, UpstreamCard
from headway.adapters.upstream.scrape import Scraped
from headway.adapters.upstream.settings import WatchSettings
from headway.core.units import Ns
from headway.live.upstream_node import UpstreamNode

log = logging.getLogger(__name__)

JITTER: Final = 0.1
BROKEN_WAIT_S: Final = 1.0
START_TOLERANCE_S: Final = 1.5  # the start of a process is told rounded, by some


class Looks(Protocol):
    """How an upstream is looked at (`adapters/upstream/look.py`). Each raises Unseen."""

    async def alive(self) -> str: ...

    async def metrics(self) -> Scraped: ...

    async def models(self) -> tuple[UpstreamCard, ...]: ...


class UpstreamWatch:
    """The loops of one upstream."""

    def __init__(
        self,
        node: UpstreamNode,
        looks: Looks,
        listed: Callable[[UpstreamNode, tuple[UpstreamCard, ...]], None],
        now_ns: Callable[[], Ns],
    ) -> None:
        """`listed` hears the models of an upstream that is alive; none when it does not list them."""
        self._node, self._looks, self._listed, self._now_ns = node, looks, listed, now_ns
        self._settings: WatchSettings = node.settings.watch
        self._random = random.Random(str(node.id))
        self._tasks: list[asyncio.Task[None]] = []
        self._cards: tuple[UpstreamCard, ...] | None = None
        self._is_scrape_told = False
        self._are_models_told = False
        self._before: Scraped | None = None
        self.has_looked = asyncio.Event()  # the first health check is over

    def start(self) -> None:
        """Begin."""
        settings = self._settings
        loops: list[tuple[str, float, Callable[[], Awaitable[None]]]] = [
            ("health", settings.health_interval_s, self.probe),
            ("models", settings.models_interval_s, self.list_models),
        ]
        if self._node.settings.kind != "openai":
            loops.append(("scrape", settings.scrape_interval_s, self.scrape))
        self._tasks = [
            asyncio.get_running_loop().create_task(self._loop(what, interval_s, step), name=f"{what}-{self._node.id}")
            for what, interval_s, step in loops
        ]

    async def stop(self) -> None:
        """End every loop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _loop(self, what: str, interval_s: float, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
                wait_s = interval_s
            except Exception:  # the outer loop: an upstream that is not watched looks the same for ever
                log.exception("the %s watch of %s broke and goes on", what, self._node.id)
                wait_s = max(interval_s, BROKEN_WAIT_S)
            await asyncio.sleep(wait_s * (1.0 + JITTER * (2.0 * self._random.random() - 1.0)))

    async def probe(self) -> None:
        """One health check. The first one that goes well, with a model to serve, makes the node appear."""
        try:
            reason = await self._looks.alive()
        except Unseen as error:
            if not self._node.incarnation and not self.has_looked.is_set():
                log.warning("%s: %s; it is looked at again", self._node.id, error)
            self.has_looked.set()
            self._node.probed(False, str(error))
            return
        if not self._node.incarnation:
            if self._cards is None:
                await self.list_models()
            if self._node.offer.models or self._node.offer.adapters:
                self._node.appear()
        self._node.probed(True, reason)
        self.has_looked.set()

    async def list_models(self) -> None:
        """Look at its models. One that does not list them serves what the settings say."""
        try:
            cards = await self._looks.models()
        except Unseen as error:
            if not self._are_models_told:
                self._are_models_told = True
                log.warning("%s: %s", self._node.id, error)
            if self._cards is None and self._node.settings.models:
                self._listed(self._node, ())
            return
        self._are_models_told = False
        self._cards = cards
        self._listed(self._node, cards)

    async def scrape(self) -> None:
        """Look at its metrics. They cover what was sent before they were asked for."""
        node, covered, at_ns = self._node, self._node.load.number, self._now_ns()
        try:
            scraped = await self._looks.metrics()
        except Unseen as error:
            if node.load.scraped is not None or not self._is_scrape_told:
                log.warning("%s: %s; only own counts are used", node.id, error)
            self._is_scrape_told = True
            node.load.lost()
            node.changed()
            return
        before, self._before = self._before, scraped
        if before is not None and (reason := restart_between(before, scraped)) is not None:
            node.restarted(reason)
        was_frozen = node.load.is_frozen
        if node.load.heard(scraped, covered, at_ns):
            self._is_scrape_told = False
        elif not was_frozen:
            log.warning("%s: its metrics stand still while it answers; only own counts are used", node.id)
        node.report()


def restart_between(before: Scraped, after: Scraped) -> str | None:
    """Why another process must have answered the second scrape; None: the same one may have."""
    if before.started_s is not None and after.started_s is not None:
        if after.started_s - before.started_s > START_TOLERANCE_S:
            return f"it was started again, {after.started_s - before.started_s:.0f} s after the last time"
        return None
    for old, new in zip(before.progress, after.progress, strict=True):
        if old is not None and new is not None and new < old:
            return f"it was started again: a counter fell from {old} to {new}"
    return None
