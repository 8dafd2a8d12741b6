"""Looks at an upstream beside the token path: is it alive, what do its metrics say, which models has it."""

import logging
import re
from typing import Final

import aiohttp
import msgspec

from headway.adapters.upstream.scrape import Scraped, ScrapeError, read
from headway.adapters.upstream.settings import UpstreamSettings

log = logging.getLogger(__name__)

METRICS_BYTES_MAX: Final = 16 << 20  # a vLLM with many buckets has 200 KB
MODELS_BYTES_MAX: Final = 4 << 20
MODELS_MAX: Final = 10_000
# Names go into headers, logs and metrics.
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,256}")


class UpstreamCard(msgspec.Struct, frozen=True):
    """A model as the upstream lists it. `parent`: it is a LoRA adapter of that one."""

    id: str
    parent: str | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[UpstreamCard]


_models: Final = msgspec.json.Decoder(_ModelList)


class Unseen(Exception):
    """A look that brought nothing; the message says what was asked and what came back."""


class Look:
    """Asks one upstream. Bodies and times are bounded, redirects are not followed."""

    def __init__(self, settings: UpstreamSettings, session: aiohttp.ClientSession, authorization: str | None) -> None:
        self._settings, self._session = settings, session
        self._are_bad_names_told = False
        self._base = settings.url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=settings.watch.timeout_s)
        self._headers = {"accept-encoding": "identity"}
        if authorization is not None:
            self._headers["authorization"] = authorization

    async def alive(self) -> str:
        """What it answered to a health check. Raises Unseen when it is not well."""
        status, _ = await self._get(self._settings.watch.health_path, 1 << 16)
        if status >= 500:
            raise Unseen(f"GET {self._settings.watch.health_path}: status {status}")
        return f"status {status}"

    async def metrics(self) -> Scraped:
        """What its metrics say. Raises Unseen."""
        path = self._settings.watch.metrics_path
        status, body = await self._get(path, METRICS_BYTES_MAX)
        if status != 200:
            raise Unseen(f"GET {path}: status {status}")
        try:
            return read(self._settings.kind, body)
        except ScrapeError as error:
            raise Unseen(f"GET {path}: {error}") from None

    async def models(self) -> tuple[UpstreamCard, ...]:
        """The models that it lists, without names that nobody could use. Raises Unseen."""
        status, body = await self._get("/v1/models", MODELS_BYTES_MAX)
        if status != 200:
            raise Unseen(f"GET /v1/models: status {status}")
        try:
            cards = _models.decode(body).data
        except msgspec.DecodeError as error:
            raise Unseen(f"GET /v1/models: {error}") from None
        if len(cards) > MODELS_MAX:
            raise Unseen(f"GET /v1/models: {len(cards)} models, {MODELS_MAX} are believed at most")
        good = tuple(card for card in cards if _NAME.fullmatch(card.id))
        if len(good) < len(cards) and not self._are_bad_names_told:
            self._are_bad_names_told = True
            bad = next(card.id for card in cards if not _NAME.fullmatch(card.id))
            log.warning(
                "%s: GET /v1/models: %d names are not used: empty, over 256 characters or with control characters, as "
                "%.64r", self._settings.name, len(cards) - len(good), bad,
            )  # fmt: skip
        return good

    async def _get(self, path: str, limit: int) -> tuple[int, bytes]:
        try:
            async with self._session.get(
                self._base + path, headers=self._headers, timeout=self._timeout, allow_redirects=False
            ) as answer:
                body = bytearray()
                async for part in answer.content.iter_any():
                    body += part
                    if len(body) > limit:
                        raise Unseen(f"GET {path}: more than {limit} bytes")
                return answer.status, bytes(body)
        except TimeoutError:
            raise Unseen(f"GET {path}: no answer within {self._settings.watch.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unseen(f"GET {path}: {type(error).__name__}: {error}") from None
