"""`Idempotency-Key` of sessions: one of a key is open at a time, and one that was played to its end is not made again.

Its chunks are not kept: a repetition is refused, never answered.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from headway.adapters.gateway.job_ports import Answers, IdempotencyKey
from headway.core.errors import RequestError
from headway.core.ids import TenantId

ELSEWHERE_S: Final = 1.0  # until a key that another gateway holds is taken for a session that is open there


class Played(msgspec.Struct, frozen=True):
    """What is kept under a key."""

    session: str
    reason: str


class Once:
    """The keys of this gateway's sessions."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._open: dict[tuple[TenantId, str], tuple[str, bytes]] = {}  # session, and the digest of its body

    async def play(
        self, tenant: TenantId, key: IdempotencyKey | None, session: str, play: Callable[[], Awaitable[str | None]]
    ) -> None:
        """`play` it, unless its key forbids it; it returns why it came to its end, None where it failed: then the next
        one with this key is played. Raises RequestError 409."""
        if key is None:
            await play()
            return
        place = tenant, key.key
        if (other := self._open.get(place)) is not None:
            raise _conflict() if other[1] != key.digest else _open(other[0])
        self._open[place] = session, key.digest
        reason: str | None = None
        is_taken = False
        try:
            await self._take(tenant, key)
            is_taken = True
            reason = await play()
        finally:
            del self._open[place]  # from here on who asks again waits for what is kept
            if is_taken and reason is None:
                await asyncio.shield(self._answers.abandon(tenant, key))
        if reason is not None:
            played = msgspec.json.encode(Played(session, reason))
            await asyncio.shield(self._answers.finish(tenant, key, played))

    async def _take(self, tenant: TenantId, key: IdempotencyKey) -> None:
        try:
            async with asyncio.timeout(ELSEWHERE_S):
                held = await self._answers.begin(tenant, key)
        except TimeoutError:
            raise _open(None) from None
        if held.answer is not None:
            played = msgspec.json.decode(held.answer, type=Played)
            message = (
                f"Session `{played.session}` of this `idempotency-key` is over ({played.reason}), and its chunks "
                "are not kept; ask with another key."
            )
            raise RequestError(message, status=409, code="session_over")


def _open(session: str | None) -> RequestError:
    which = f"Session `{session}`" if session is not None else "A session at another gateway"
    message = f"{which} is open under this `idempotency-key`; end it first, or ask with another key."
    return RequestError(message, status=409, code="session_open")


def _conflict() -> RequestError:
    message = "Another body was sent with this `idempotency-key`."
    return RequestError(message, status=409, code="idempotency_conflict")
