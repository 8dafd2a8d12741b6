"""All upstreams of a gateway: those of the configuration, and those of a file that may change while it runs."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from headway.adapters.upstream.discovery import WatchedFile
from headway.adapters.upstream.look import Look, UpstreamCard
from headway.adapters.upstream.pool import Endpoint, UpstreamPool
from headway.adapters.upstream.settings import UpstreamSettings, credentials, place_of
from headway.core.errors import ConfigError
from headway.core.ids import NodeId
from headway.live.config_models import DiscoverySettings
from headway.live.model_names import ModelNames, offer_of
from headway.live.upstream_node import UpstreamNode
from headway.live.upstream_ports import Surroundings
from headway.live.upstream_watch import UpstreamWatch

log = logging.getLogger(__name__)

Tell = Callable[[NodeId, str], None]
HAND_OVER_S: Final = 5.0
FILE: Final = NodeId("upstreams")  # who speaks when the file does


class _Member(msgspec.Struct):
    settings: UpstreamSettings
    node: UpstreamNode
    watch: UpstreamWatch


class UpstreamFleet:
    """Adds, drains and removes. A change of an upstream is its removal, and a new one of the same name."""

    def __init__(
        self,
        upstreams: Sequence[UpstreamSettings],
        discovery: DiscoverySettings,
        names: ModelNames,
        around: Surroundings,
        tell: Tell,
    ) -> None:
        self._fixed, self._discovery, self._names, self._around, self._tell = (
            tuple(upstreams), discovery, names, around, tell,
        )  # fmt: skip
        self._members: dict[str, _Member] = {}
        self._leaving: dict[asyncio.Task[None], None] = {}
        self._lives: dict[NodeId, int] = {}  # incarnations of nodes that left
        self._in_use: dict[NodeId, None] = {}  # ids of members, and of those that drain
        self._session: aiohttp.ClientSession | None = None
        self._file = None if discovery.file is None else WatchedFile(Path(discovery.file).expanduser())
        self._file_task: asyncio.Task[None] | None = None

    @property
    def nodes(self) -> tuple[UpstreamNode, ...]:
        """Every upstream that is not leaving."""
        return tuple(member.node for member in self._members.values())

    async def start(self) -> None:
        """Begin to watch. Raises ConfigError for keys and files that cannot be read now."""
        self._session = aiohttp.ClientSession()
        found = () if self._file is None else await asyncio.to_thread(self._file.changed)
        _check_credentials((*self._fixed, *(found or ())))
        self.apply(found or ())
        if self._file is not None:
            self._file_task = asyncio.get_running_loop().create_task(self._follow(self._file), name="upstreams-file")

    async def heard(self, limit_s: float) -> None:
        """Wait for the first health check of every upstream."""
        waits = [asyncio.ensure_future(member.watch.has_looked.wait()) for member in self._members.values()]
        if waits:
            _, open_ones = await asyncio.wait(waits, timeout=limit_s)
            for wait in open_ones:
                wait.cancel()

    async def stop(self) -> None:
        """End everything now."""
        tasks = [*self._leaving, *([] if self._file_task is None else [self._file_task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for member in self._members.values():
            await member.watch.stop()
            member.node.close("the gateway stops")
        self._members.clear()
        if self._session is not None:
            await self._session.close()

    def apply(self, found: Sequence[UpstreamSettings]) -> None:
        """Make the file's upstreams run beside those of the configuration."""
        wanted = {settings.name: settings for settings in self._fixed}
        for settings in found:
            if settings.name in wanted:
                self._tell(FILE, f"{settings.name!r} is in the configuration already; that one counts")
            wanted.setdefault(settings.name, settings)
        for name, member in list(self._members.items()):
            if wanted.get(name) != member.settings:
                self._remove(name)
        for name, settings in wanted.items():
            if name not in self._members:
                self._add(settings)

    def _add(self, settings: UpstreamSettings) -> None:
        try:
            authorization = credentials(settings)
        except ConfigError as error:
            self._tell(FILE, str(error))
            return
        node_id = self._free_id(settings.name)
        place = place_of(settings.url)
        endpoint = Endpoint(
            place.host,
            place.port,
            place.base,
            ssl.create_default_context() if place.is_tls else None,
            authorization or ("forward" if settings.authorization == "forward" else "none"),
        )
        assert self._session is not None  # start made it
        pool = UpstreamPool(endpoint, settings.connection, self._around.now_ns)
        node = UpstreamNode(node_id, settings, pool, self._around)
        node.lives = self._lives.pop(node_id, 0)
        self._in_use[node_id] = None
        watch = UpstreamWatch(node, Look(settings, self._session, authorization), self._listed, self._around.now_ns)
        self._members[settings.name] = _Member(settings, node, watch)
        watch.start()

    def _free_id(self, name: str) -> NodeId:
        """`up-NAME`, unless another one of that name still drains."""
        node_id, number = NodeId(f"up-{name}"), 1
        while node_id in self._in_use:
            number += 1
            node_id = NodeId(f"up-{name}~{number}")
        return node_id

    def _listed(self, node: UpstreamNode, cards: tuple[UpstreamCard, ...]) -> None:
        is_new = not node.offer.models and not node.offer.adapters
        node.offers(self._names.offer(node.id, node.settings, offer_of(node.settings, cards)))
        if is_new:
            names = ", ".join((*node.offer.models, *node.offer.adapters)) or "nothing"
            self._tell(node.id, f"{node.settings.url} serves {names}")

    def _remove(self, name: str) -> None:
        member = self._members.pop(name)
        task = asyncio.get_running_loop().create_task(self._drain(member), name=f"drain-{member.node.id}")
        self._leaving[task] = None
        task.add_done_callback(lambda done: self._leaving.pop(done, None))

    async def _drain(self, member: _Member) -> None:
        """No request is lost: those that come in its place are looked at first, and what runs there ends, as long as
        that may take (dynamo#11173)."""
        node = member.node
        await self.heard(HAND_OVER_S)
        self._tell(node.id, f"leaves; {node.in_flight} answers go on there")
        node.drain()
        self._names.withdraw(node.id)
        try:
            async with asyncio.timeout(self._discovery.drain_s):
                await node.idle()
        except TimeoutError:
            self._tell(node.id, f"{node.in_flight} answers took longer than discovery.drain_s and are cut")
        finally:
            await member.watch.stop()
            node.close("it was taken out")
            self._lives[node.id] = node.lives
            del self._in_use[node.id]

    async def _follow(self, file: WatchedFile) -> None:
        while True:
            await asyncio.sleep(self._discovery.interval_s)
            try:
                found = await asyncio.to_thread(file.changed)
                if found is not None:
                    _check_credentials(found)
                    self._tell(FILE, f"{file.path} was read again: {len(found)} upstreams")
                    self.apply(found)
            except ConfigError as error:
                log.error("%s; the upstreams stay as they were", error)
                self._tell(FILE, f"{error}; the upstreams stay as they were")
            except Exception:  # the outer loop: a file that nobody follows any more would look like one that is obeyed
                log.exception("the watch of %s broke and goes on", file.path)


def _check_credentials(upstreams: Sequence[UpstreamSettings]) -> None:
    """Raise ConfigError for a key that cannot be read: before an upstream that works is taken out for it."""
    for settings in upstreams:
        credentials(settings)
