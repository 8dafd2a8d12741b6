"""Sends the messages of the webhook outbox, counts what comes of them, and tells the operator of those that fail."""

import logging
from collections.abc import Callable
from typing import Final

from yarl import URL

from headway.adapters.jobs.outbox import Hook
from headway.adapters.webhooks.send import Webhooks
from headway.core.errors import CapacityError
from headway.core.job_effects import CloseHook, PostponeHook, SendHook
from headway.core.jobs import HookAnswered, HookLost, JobEvent
from headway.core.units import NS_PER_S, Ns
from headway.live.jobs_table import Tables

log = logging.getLogger(__name__)

SAID_EVERY_NS: Final = 60 * NS_PER_S  # a line of each outcome at most so often: a dead receiver fails many messages
_WORDS: Final = {"retried": "failed and is tried again", "given_up": "is given up"}


class HookSender:
    """One per gateway. Its counts are of attempts, since the start."""

    def __init__(self, tables: Tables, client: Webhooks, feed: Callable[[Callable[[Ns], JobEvent]], None]) -> None:
        self._tables, self._client, self._feed = tables, client, feed
        self._counts = {"delivered": 0, "retried": 0, "given_up": 0}
        self._sent: dict[str, Hook] = {}  # what is on its way
        self._said_ns: dict[str, Ns] = {}
        self._unsaid = dict.fromkeys(_WORDS, 0)

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Attempts by what came of them: `delivered`, `retried`, `given_up`."""
        return tuple(self._counts.items())

    async def send(self, effect: SendHook) -> None:
        """Send it, and feed what came of it."""
        try:
            hook = await self._tables.ask(lambda: self._tables.outbox.message(effect.hook))
        except CapacityError as error:
            log.warning("webhook %s is not sent: %s", effect.hook, error)
            hook = None
        if hook is None:
            self._feed(lambda at_ns: HookLost(at_ns, "table", effect.hook))
            return
        self._sent[effect.hook] = hook
        answer = await self._client.send(hook.id, hook.tenant, hook.url, hook.body)
        self._feed(
            lambda at_ns: HookAnswered(
                at_ns, "http", effect.hook, effect.attempt, answer.status, answer.reason, answer.is_refused
            )
        )
        self._sent.pop(effect.hook, None)  # of an answer that nobody waited for any more

    def told(self, effect: CloseHook | PostponeHook, now_ns: Ns) -> None:
        """JobNode has decided what becomes of it."""
        outcome = "retried"
        if isinstance(effect, CloseHook):
            outcome = "delivered" if effect.is_delivered else "given_up"
        self._counts[outcome] += 1
        if outcome == "delivered" or (hook := self._sent.get(effect.hook)) is None:
            return
        said_ns = self._said_ns.get(outcome)
        if said_ns is not None and now_ns - said_ns < SAID_EVERY_NS:
            self._unsaid[outcome] += 1
            return
        more, self._unsaid[outcome], self._said_ns[outcome] = self._unsaid[outcome], 0, now_ns
        url = URL(hook.url)
        where = f"{url.scheme}://{url.authority}"  # a path or a query may hold what only its owner should know
        rest = f"; {more} more since the last such line" if more else ""
        text = "webhook %s of job %s to %s %s, at attempt %d: %s%s"
        log.warning(text, hook.id, hook.job, where, _WORDS[outcome], effect.attempt, effect.reason, rest)
