"""What the log says of a part that is away."""

import logging

import pytest

from headway.adapters.telemetry.outages import LOG_EVERY_S, Outage


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_an_outage_is_logged_with_its_reason_now_and_then_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    # SPEC M1
    caplog.set_level(logging.INFO)
    clock = Clock()
    outage = Outage("the job table postgresql://h/db", logging.getLogger("x"), clock)
    outage.answered()
    for _ in range(50):
        outage.failed("connection refused")
    assert outage.is_on
    clock.now_s += LOG_EVERY_S
    outage.failed("connection refused")
    outage.answered()
    outage.answered()
    assert not outage.is_on
    assert [record.getMessage() for record in caplog.records] == [
        "the job table postgresql://h/db does not answer: connection refused",
        "the job table postgresql://h/db does not answer: connection refused (and 49 times since the last such line)",
        "the job table postgresql://h/db answers again",
    ]


def test_a_part_that_comes_and_goes_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage("it", logging.getLogger("x"), Clock())
    for _ in range(50):
        outage.failed("busy")
        outage.answered()
    assert [record.getMessage() for record in caplog.records] == ["it does not answer: busy", "it answers again"]
