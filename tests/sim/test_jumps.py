"""Counting rows in place of visiting them changes nothing that anybody can see (SPEC J6)."""

from functools import cache

import msgspec
import pytest
from tests.sim.test_skeleton import SPAN, build, disturb
from tests.sim.workloads import mix

from headway.core.draw import draw_below
from headway.core.events import MessageArrived
from headway.core.ids import RequestId
from headway.core.messages import Tokens
from headway.core.request import LlmRequest
from headway.sim.driver import Machine
from headway.sim.fleet import FRONT, Fleet
from headway.sim.tokenless import TokenlessEngine

COUNT = 40
SEEDS = range(9)


class Seen:
    """Everything that a run leaves behind, as bytes."""

    def __init__(self, ran: Fleet) -> None:
        streams = ran.sim.clients.streams
        encode = msgspec.json.Encoder().encode
        self.records = [encode(stream.evidence) for stream in streams.values()]
        self.ends = [encode(stream.end) for stream in streams.values()]
        self.tokens = {name: (stream.tokens, stream.times_ns) for name, stream in streams.items()}
        self.decisions = [encode(decision) for decision in ran.sim.clients.decisions]
        self.counters = [ran.worker(place).worker.machine.counters() for place in range(2)]
        self.busy = [life.executor.busy_ns for life in ran.sim.lives.values() if life.executor is not None]
        self.recovery = ran.front.recovery_figures()
        self.heard = [
            turn.event.message
            for turn in ran.sim.log.turns()
            if isinstance(turn.event, MessageArrived) and isinstance(turn.event.message, Tokens)
        ]


def offered(seed: int) -> tuple[list[LlmRequest], dict[RequestId, int]]:
    """Requests, and how long their answers get: often shorter than they may be."""
    texts = mix(COUNT, seed=seed, gap_ns=SPAN // COUNT, longest=120)
    return texts, {item.id: 1 + draw_below(seed, "length", 0, i, item.max_tokens) for i, item in enumerate(texts)}


def simulate(seed: int, *, jumps: bool, is_calm: bool) -> Seen:
    texts, lengths = offered(seed)
    ran = build(seed, jumps=jumps, check=False)
    for replica in ran.replicas:
        real = ran.sim._machines[replica]
        ran.sim._machines[replica] = Machine(real.build, lambda: TokenlessEngine(lengths), real.truth)
        ran.sim.restart(replica)
    for place, item in enumerate(texts):
        leaves = 3 + draw_below(seed, "tokens", 0, place, 40) if place % 5 == 0 else None
        stops = 2 + draw_below(seed, "stops", 0, place, 40) if place % 7 == 1 else None
        ran.sim.arrive(FRONT, item, item.arrived_ns, leave_after=leaves, stop_after=stops)
    if not is_calm:
        disturb(ran, seed, list(texts))
    ran.sim.run(is_done=lambda: len(ran.sim.clients.streams) == COUNT and not ran.sim.clients.open)
    ran.sim.run(until_ns=ran.sim.now_ns + SPAN * 20)
    return Seen(ran)


@cache
def both(seed: int, is_calm: bool) -> tuple[Seen, Seen]:
    return simulate(seed, jumps=True, is_calm=is_calm), simulate(seed, jumps=False, is_calm=is_calm)


@pytest.mark.parametrize("is_calm", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_jumps_change_no_decision_no_record_and_no_time(seed: int, is_calm: bool) -> None:  # SPEC J6
    fast, slow = both(seed, is_calm)
    assert fast.tokens == slow.tokens
    assert fast.ends == slow.ends
    assert fast.decisions == slow.decisions
    assert fast.records == slow.records
    assert fast.counters == slow.counters
    assert fast.busy == slow.busy
    assert fast.recovery == slow.recovery


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
