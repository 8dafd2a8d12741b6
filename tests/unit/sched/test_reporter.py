"""What a replica learns about itself for its reports."""

from dataclasses import dataclass

import pytest

from headway.core.effects import Effect, Send, WakeAt
from headway.core.ids import NodeId
from headway.core.ledger import AccountView
from headway.core.messages import Report
from headway.core.units import NS_PER_MS, Ns
from headway.sched.reporter import Identity, Numbers, Rates, Reporter


def test_the_rate_is_what_a_token_of_a_queue_meets_and_not_a_mean_over_steps() -> None:  # SPEC A5
    rates = Rates()
    for _ in range(5):
        rates.served(2000, 100 * NS_PER_MS)
    for _ in range(50):  # prompts that are cached but for their last tokens
        rates.served(10, 10 * NS_PER_MS)
    assert rates.prefill_tokens_per_s == pytest.approx(20_000, rel=0.02)


def test_the_rate_follows_a_replica_that_became_slower() -> None:  # SPEC A5
    rates = Rates()
    for took_ms in (100, 300):
        for _ in range(100):
            rates.served(2000, took_ms * NS_PER_MS)
    assert rates.prefill_tokens_per_s == pytest.approx(2000 / 0.3, rel=0.05)


def test_steps_that_serve_nothing_of_a_queue_slow_its_rate() -> None:
    rates = Rates()
    rates.served(0, 300 * NS_PER_MS)
    assert rates.prefill_tokens_per_s == 0.0
    rates.served(1000, 100 * NS_PER_MS)
    assert rates.prefill_tokens_per_s == pytest.approx(1000 / 0.4)


# When it reports


@dataclass
class Decoding:
    """One sequence that grows by a token per step."""

    running_kv_tokens: int = 0
    waiting: int = 0
    running: int = 1
    waiting_prefill_tokens: int = 0
    kv_blocks_free: int = 9
    blocked_tokens: int = 0
    block_size: int = 16
    step_cost: None = None

    def counters(self) -> dict[str, int]:
        return {}

    def accounts(self) -> list[AccountView]:
        return []


class Replica:
    """Steps of `step_ms`, and the timer of its reporter, which may be replaced."""

    def __init__(self, step_ms: int, slack_ms: int) -> None:
        self.machine, self.rates, self.step_ms = Decoding(), Rates(), step_ms
        identity = Identity(NodeId("rep"), 1, "llm", "toy")
        self.reporter = Reporter(identity, (NodeId("front"),), 20 * NS_PER_MS, slack_ms * NS_PER_MS)
        self.reports: list[int] = []
        self.wakes: list[int] = []
        self.timers: list[int] = []

    def run(self, until_ms: int) -> None:
        """Step until then; the last step is the last thing that changes."""
        for now_ms in range(until_ms + 200):
            if now_ms in self.timers:
                self.timers.remove(now_ms)
                self.wakes.append(now_ms)
                self.reporter.woke()
                self._report(now_ms)
            if now_ms % self.step_ms == 0 and now_ms <= until_ms:
                self.machine.running_kv_tokens += 1
                self.rates.step(self.step_ms * NS_PER_MS, 0)
                self._report(now_ms)

    def _report(self, now_ms: int) -> None:
        at_ns: Ns = now_ms * NS_PER_MS
        out: list[Effect] = []
        self.reporter.report(Numbers(self.machine, self.rates, 10, is_draining=False), at_ns, out)
        for effect in out:
            if isinstance(effect, WakeAt):
                self.timers = [*([] if effect.replaces else self.timers), effect.at_ns // NS_PER_MS]
            elif isinstance(effect, Send) and isinstance(effect.message, Report):
                self.reports.append(now_ms)


def test_reports_go_out_with_steps_and_wake_nobody_by_themselves() -> None:
    # SPEC E1
    alone, riding = Replica(14, 0), Replica(14, 20)
    for replica in (alone, riding):
        replica.run(1400)
    assert len(alone.wakes) > 50
    assert riding.reports == list(range(0, 1401, 28))
    assert riding.wakes == [1440]  # behind the last of them, when nothing changes any more


def test_a_step_that_does_not_end_holds_a_report_up_only_so_long() -> None:  # SPEC A5
    replica = Replica(14, 20)
    replica.run(14)
    assert (replica.reports, replica.wakes) == ([0, 40], [40])


def test_steps_longer_than_the_interval_need_no_timer() -> None:  # SPEC E1
    replica = Replica(34, 20)
    replica.run(340)
    assert replica.reports == list(range(0, 341, 34))
    assert replica.wakes == []
    asking = Replica(34, 0)
    asking.run(340)
    assert asking.reports == replica.reports
    assert len(asking.wakes) == 11


def test_what_changes_within_a_long_step_is_told_when_the_interval_is_over() -> None:  # SPEC A5
    replica = Replica(1000, 20)
    replica.run(0)
    replica.machine.waiting = 1
    replica._report(5)
    assert replica.timers == [20]
