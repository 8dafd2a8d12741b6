import pytest

from headway.core.errors import ConfigError
from headway.core.ids import NodeId, RequestId
from headway.core.units import NS_PER_S
from headway.sched.fleet.breaker import BreakerParams, Breakers, Outcome

A = NodeId("rep-a")
PARAMS = BreakerParams(window_s=10, faults_min=3, fault_share=0.5, open_s=1, open_s_max=4)


def request(number: int) -> RequestId:
    return RequestId(f"req-{number}")


class Bench:
    """One breaker, and a clock in seconds."""

    def __init__(self, params: BreakerParams = PARAMS) -> None:
        self.breakers, self.now, self._number = Breakers(params), 0.0, 0
        self.breakers.joined(A)

    @property
    def at_ns(self) -> int:
        return round(self.now * NS_PER_S)

    @property
    def state(self) -> str:
        return self.breakers.state(A)

    @property
    def is_usable(self) -> bool:
        return self.breakers.is_usable(A, self.at_ns)

    def send(self, *, is_down: bool = False) -> RequestId:
        self._number += 1
        self.breakers.tried(A, request(self._number), is_down=is_down)
        return request(self._number)

    def end(self, *outcomes: Outcome) -> None:
        for outcome in outcomes:
            self.breakers.ended(A, self.send(), outcome, self.at_ns)


def test_opens_on_a_share_of_faults_and_a_count_of_them() -> None:  # SPEC A11
    bench = Bench()
    bench.end("fault", "fault")
    assert bench.state == "closed"
    bench.end("fault")
    assert bench.state == "open"
    assert not bench.is_usable


def test_a_smaller_share_than_asked_for_leaves_it_closed() -> None:
    bench = Bench()
    bench.end("success", "success", "success", "success", "fault", "fault", "fault")
    assert bench.state == "closed"
    bench.end("fault")
    assert bench.state == "open"


def test_client_errors_and_backpressure_never_open_it() -> None:  # SPEC A11; sglang#25811, sglang#39464
    bench = Bench()
    bench.end(*["neutral"] * 1000)
    assert bench.state == "closed"


def test_faults_older_than_the_window_are_forgotten() -> None:
    bench = Bench()
    bench.end("fault", "fault")
    bench.now = 10.5
    bench.end("fault")
    assert bench.breakers.counts(A) == (1, 0)
    assert bench.state == "closed"


def test_after_its_rest_one_request_at_a_time_tries_it() -> None:  # SPEC A11
    bench = Bench()
    bench.end("fault", "fault", "fault")
    bench.now = 0.999
    assert not bench.is_usable
    bench.now = 1.0
    assert bench.is_usable
    trial = bench.send()
    assert bench.state == "half_open"
    assert not bench.is_usable
    bench.breakers.ended(A, trial, "success", bench.at_ns)
    assert bench.state == "closed"
    assert bench.is_usable


def test_a_trial_that_ends_without_an_answer_gives_its_place_to_the_next() -> None:
    bench = Bench()
    bench.end("fault", "fault", "fault")
    bench.now = 1.0
    bench.end("neutral")
    assert bench.state == "half_open"
    assert bench.is_usable


def test_every_failed_trial_doubles_the_rest_up_to_its_bound_and_never_ends() -> None:  # SPEC A11; smg#2468
    bench = Bench()
    bench.end("fault", "fault", "fault")
    rests = []
    for _ in range(100):
        rest_ns = bench.breakers.until_ns(A) - bench.at_ns
        rests.append(rest_ns / NS_PER_S)
        bench.now += rest_ns / NS_PER_S
        assert bench.is_usable
        bench.end("fault")
    assert rests[:4] == [1, 2, 4, 4]
    assert set(rests[2:]) == {4}


def test_success_starts_the_rests_again_from_the_first() -> None:
    bench = Bench()
    bench.end("fault", "fault", "fault")
    bench.now = 1.0
    bench.end("fault")
    bench.now = 3.0
    bench.end("success", "fault", "fault", "fault")
    assert bench.breakers.until_ns(A) == 4 * NS_PER_S


def test_requests_sent_before_it_opened_change_nothing_when_they_end() -> None:
    bench = Bench()
    early = bench.send()
    bench.end("fault", "fault", "fault")
    assert not bench.breakers.ended(A, early, "success", bench.at_ns)
    assert bench.state == "open"


def test_it_may_be_a_last_resort_after_the_first_rest_only() -> None:
    bench = Bench()
    bench.end("fault", "fault", "fault")
    for now in (1.0, 3.0):
        bench.now = now
        bench.end("fault")
    assert bench.breakers.until_ns(A) == 7 * NS_PER_S
    assert bench.breakers.resort_ns(A) == 4 * NS_PER_S
    bench.now = 4.0
    bench.send()
    assert bench.breakers.resort_ns(A) is None  # one at a time


def test_bad_health_makes_every_request_a_trial() -> None:
    bench = Bench()
    bench.send(is_down=True)
    assert bench.state == "half_open"
    assert bench.breakers.resort_ns(A) is None


def test_a_restarted_instance_begins_closed() -> None:  # smg#2468
    bench = Bench()
    bench.end("fault", "fault", "fault")
    bench.breakers.left(A)
    bench.breakers.joined(A)
    assert bench.state == "closed"
    assert bench.breakers.counts(A) == (0, 0)


def test_a_rest_above_its_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"breaker\.open_s = 5\.0 is above breaker\.open_s_max = 4\.0"):
        BreakerParams(open_s=5.0, open_s_max=4.0)
