"""Signs and sends one message (Standard Webhooks, as the `openai` client's `webhooks.unwrap` verifies)."""

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Final

import aiohttp
import msgspec

from headway.adapters.webhooks.settings import WebhookSettings, check, key_of
from headway.adapters.webhooks.target import GuardedResolver, TargetRefused, Targets
from headway.core.errors import RequestError

_REASON_MAX: Final = 300


class Answer(msgspec.Struct, frozen=True):
    """What came of it. `status` None: no answer. `is_refused`: the target is not allowed."""

    status: int | None
    reason: str
    is_refused: bool = False


def signed(secret: str, message: str, at_s: int, body: bytes) -> dict[str, str]:
    """The headers that prove who sent it."""
    content = f"{message}.{at_s}.".encode() + body
    signature = base64.b64encode(hmac.new(key_of(secret), content, hashlib.sha256).digest()).decode()
    return {"webhook-id": message, "webhook-timestamp": str(at_s), "webhook-signature": f"v1,{signature}"}


class Webhooks:
    """One client for all messages. Made inside the event loop; `close` ends it."""

    def __init__(self, settings: WebhookSettings, timeout_s: float, unix_s: Callable[[], int]) -> None:
        """Raises ConfigError."""
        check(settings)
        self._settings, self._unix_s = settings, unix_s
        self._targets = Targets(settings.allowed_networks)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    def _secret(self, tenant: str) -> str | None:
        return self._settings.secrets.get(tenant) or self._settings.secrets.get("*")

    def check(self, url: str, tenant: str) -> None:
        """Raise RequestError 400 for a target that will not be told anything."""
        if self._secret(tenant) is None:
            raise RequestError(
                f"webhook_url: nothing signs for tenant {tenant}; the operator sets jobs.webhooks.secrets",
                code="unsupported_parameter",
                param="webhook_url",
            )
        try:
            self._targets.check_url(url)
        except TargetRefused as error:
            raise RequestError(
                f"webhook_url {url[:200]!r}: {error}", code="invalid_value", param="webhook_url"
            ) from error

    async def send(self, message: str, tenant: str, url: str, body: bytes) -> Answer:
        """POST it. Nothing is raised: every failure is an Answer."""
        secret = self._secret(tenant)
        if secret is None:
            return Answer(None, "no secret signs for its tenant any more", is_refused=True)
        headers = {
            "content-type": "application/json",
            "user-agent": "headway-webhooks",
            **signed(secret, message, self._unix_s(), body),
        }
        try:
            target = self._targets.check_url(url)
            # A redirect could lead anywhere: it counts as a failure.
            async with self._opened().post(target, data=body, headers=headers, allow_redirects=False) as response:
                return Answer(response.status, f"HTTP {response.status}")
        except (TargetRefused, aiohttp.InvalidURL) as error:
            return Answer(None, str(error)[:_REASON_MAX], is_refused=True)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            return Answer(None, f"{type(error).__name__}: {error}"[:_REASON_MAX])

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            resolver = GuardedResolver(self._targets)
            connector = aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, force_close=True)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        return self._session

    async def close(self) -> None:
        """Give up what is on its way."""
        if self._session is not None:
            await self._session.close()
