"""Counting rows in place of visiting them changes nothing that anybody can see (SPEC J6)."""

from functools import cache

import pytest
from tests.sim.both_ways import Seen, run_out, without_tokens
from tests.sim.test_skeleton import SPAN, build, disturb
from tests.sim.workloads import mix

from headway.core.draw import draw_below
from headway.core.ids import RequestId
from headway.core.request import LlmRequest
from headway.sim.fleet import FRONT

COUNT = 40
SEEDS = range(9)


def offered(seed: int) -> tuple[list[LlmRequest], dict[RequestId, int]]:
    """Requests, and how long their answers get: often shorter than they may be."""
    texts = mix(COUNT, seed=seed, gap_ns=SPAN // COUNT, longest=120)
    return texts, {item.id: 1 + draw_below(seed, "length", 0, i, item.max_tokens) for i, item in enumerate(texts)}


def simulate(seed: int, *, jumps: bool, is_calm: bool) -> Seen:
    texts, lengths = offered(seed)
    ran = build(seed, jumps=jumps, check=False)
    without_tokens(ran, lengths)
    for place, item in enumerate(texts):
        leaves = 3 + draw_below(seed, "tokens", 0, place, 40) if place % 5 == 0 else None
        stops = 2 + draw_below(seed, "stops", 0, place, 40) if place % 7 == 1 else None
        ran.sim.arrive(FRONT, item, item.arrived_ns, leave_after=leaves, stop_after=stops)
    if not is_calm:
        disturb(ran, seed, list(texts))
    run_out(ran, COUNT, SPAN * 20)
    return Seen(ran)


@cache
def both(seed: int, is_calm: bool) -> tuple[Seen, Seen]:
    return simulate(seed, jumps=True, is_calm=is_calm), simulate(seed, jumps=False, is_calm=is_calm)


@pytest.mark.parametrize("is_calm", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_jumps_change_no_decision_no_record_and_no_time(seed: int, is_calm: bool) -> None:  # SPEC J6
    fast, slow = both(seed, is_calm)
    assert fast.differs_in(slow) == []


def test_the_comparison_is_between_different_ways() -> None:
    beats = [sum(message.beat >= 0 for seed in SEEDS for message in both(seed, True)[way].heard) for way in (0, 1)]
    rows = [sum(len(message.requests) for seed in SEEDS for message in both(seed, True)[way].heard) for way in (0, 1)]
    assert beats[0] > 500
    assert beats[1] == 0
    assert rows[0] < rows[1] / 2


def test_the_comparison_covers_preemption_loss_and_hand_off() -> None:
    slow = [both(seed, False)[1] for seed in SEEDS]
    counters = [count for seen in slow for count in seen.counters]
    assert sum(count["preemptions"] for count in counters) > 0
    assert sum(count["prefix_hit_tokens"] for count in counters) > 0
    assert sum(dict(seen.recovery)["resumed"] for seen in slow) > 0
    assert any(b'"kind":"handoff"' in record for seen in slow for record in seen.records)
