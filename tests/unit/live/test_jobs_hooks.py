"""What is never delivered is told to the operator, not more often than anybody reads."""

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from headway.adapters.jobs.outbox import Hook
from headway.adapters.webhooks.send import Answer
from headway.core.job_effects import CloseHook, PostponeHook, SendHook
from headway.core.jobs import HookAnswered, JobEvent
from headway.core.units import Ns
from headway.live.jobs_hooks import SAID_EVERY_NS, HookSender

URL = "https://hooks.example:9101/secret-path?token=secret"


class Desk:
    """The borders of a sender: what is asked of the table, the receiver, and JobNode, which decides `then`."""

    def __init__(self) -> None:
        outbox = SimpleNamespace(message=lambda hook: Hook(hook, "video_1", "acme", URL, b"{}"))
        tables = SimpleNamespace(outbox=outbox, ask=self._ask)
        client = SimpleNamespace(send=self._send)
        self.sender = HookSender(tables, client, self._feed)  # type: ignore[arg-type]  # of each what is used
        self.now_ns: Ns = 0
        self.gives_up = False

    async def _ask(self, work: Callable[[], Hook]) -> Hook:
        return work()

    async def _send(self, *_: object) -> Answer:
        return Answer(302, "HTTP 302")

    def _feed(self, make: Callable[[Ns], JobEvent]) -> None:
        event = make(self.now_ns)
        assert isinstance(event, HookAnswered)
        effect: CloseHook | PostponeHook = PostponeHook(event.hook, event.attempt, 9, event.reason)
        if self.gives_up:
            effect = CloseHook(event.hook, event.attempt, False, event.reason)
        self.sender.told(effect, self.now_ns)

    def try_(self, number: int) -> None:
        asyncio.run(self.sender.send(SendHook(f"evt_{number}", 12)))


def test_a_message_that_fails_is_told_with_its_reason_and_not_with_its_path(caplog: pytest.LogCaptureFixture) -> None:
    # SPEC H2, I4
    desk = Desk()
    with caplog.at_level(logging.WARNING):
        desk.try_(1)
        desk.gives_up = True
        desk.try_(1)
    to = "webhook evt_1 of job video_1 to https://hooks.example:9101"
    assert caplog.messages == [
        f"{to} failed and is tried again, at attempt 12: HTTP 302",
        f"{to} is given up, at attempt 12: HTTP 302",
    ]
    assert desk.sender.counts() == (("delivered", 0), ("retried", 1), ("given_up", 1))


def test_many_that_fail_are_counted_and_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.gives_up = True
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            desk.try_(number)
        assert len(caplog.messages) == 1
        desk.now_ns = SAID_EVERY_NS
        desk.try_(100)
    assert caplog.messages[1].endswith("HTTP 302; 99 more since the last such line")
    assert dict(desk.sender.counts())["given_up"] == 101
