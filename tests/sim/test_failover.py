"""Replicas that die, fall silent and are hedged around change no token, greedy or sampled by seed (SPEC A11, B7)."""

import msgspec
import pytest
from tests.sim.workloads import fleet, levels, mix, run, wrong

from headway.core.draw import draw_below
from headway.core.ids import NodeId
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_MS
from headway.sched.dispatch import Patience
from headway.sched.fleet.breaker import BreakerParams
from headway.sched.fleet.hedge import HedgeParams
from headway.sched.nodes import FrontConfig
from headway.sched.policies import ROUTERS
from headway.sched.registry import PolicyChoice, discover
from headway.sched.router.machine import Room
from headway.sched.watch import Silence
from headway.sim.fleet import Fleet

# Replicas are silent within their normal times here, so that requests move again and again for no good reason.
RESTLESS = FrontConfig(
    patience=Patience(attempts_max=50, silence=Silence(first_token_s=0.05, replica_s=0.03, stop_s=0.02)),
    breaker=BreakerParams(faults_min=3, open_s=0.01, open_s_max=0.05),
    hedge=HedgeParams(after_ms=3, share_max=1.0),
    room=Room(engine_queue_ms=50.0, cold_requests=2),  # short queues, so that a hedge can come first
)


def sampled(requests: list[LlmRequest]) -> list[LlmRequest]:
    """Every second one by temperature and seed."""
    return [
        msgspec.structs.replace(
            item, sampling=msgspec.structs.replace(item.sampling, temperature=float(number % 2), seed=number)
        )
        for number, item in enumerate(requests)
    ]


def dying(ran: Fleet, seed: int) -> Fleet:
    """Replicas die and come back while requests run."""
    for turn in range(6):
        victim = NodeId(f"rep-{draw_below(seed, 'victim', 0, turn, 3)}")
        at_ns = (2 + 9 * turn + draw_below(seed, "when", 0, turn, 6)) * NS_PER_MS
        ran.sim.at(at_ns, lambda _, node=victim: ran.sim.kill(node))
        ran.sim.at(at_ns + 4 * NS_PER_MS, lambda _, node=victim: ran.sim.restart(node))
    return ran


@pytest.mark.parametrize("seed", range(6))
def test_streams_go_on_elsewhere_with_the_same_tokens(seed: int) -> None:
    requests = sampled(mix(30, seed=seed))
    ran = run(dying(fleet(replicas=3, front=RESTLESS), seed), requests)
    assert wrong(ran, requests) == []
    assert set(levels(ran).values()) == {0}
    assert ran.front.front.recovery.counts["resumed"] > 0


def test_these_worlds_hedge_and_give_up_on_the_silent() -> None:
    ran = run(dying(fleet(replicas=3, front=RESTLESS), 1), sampled(mix(60, seed=1, gap_ns=NS_PER_MS // 2)))
    counts = ran.front.front.recovery.counts
    assert (counts["hedged"] > 0, counts["hedge_won"] > 0, counts["silent"] > 0) == (True, True, True), counts


@pytest.mark.parametrize("router", list(discover(ROUTERS)))
@pytest.mark.parametrize("admission", ["open", "predictive"])
def test_every_policy_bears_second_legs_and_moved_requests(router: str, admission: str) -> None:  # SPEC A1, L-2
    """Policies hear of two dispatches of one request, and of the end of each."""
    requests = [msgspec.structs.replace(item, block_tokens=16) for item in sampled(mix(16, seed=7))]
    front = msgspec.structs.replace(RESTLESS, router=PolicyChoice(router), admission=PolicyChoice(admission))
    ran = run(dying(fleet(replicas=3, front=front), 7), requests)
    assert wrong(ran, requests) == []
    assert set(levels(ran).values()) == {0}
    assert ran.front.front.recovery.counts["hedged"] > 0
