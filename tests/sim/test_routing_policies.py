"""Every routing policy in a simulated fleet, a replica of which dies and comes back."""

import msgspec
import pytest
from tests.sim.workloads import fleet, levels, request, run, wrong

from headway.core.draw import draw_below
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_MS
from headway.sched.nodes import FrontConfig
from headway.sched.policies import ROUTERS
from headway.sched.registry import PolicyChoice, discover


def conversation(place: int) -> LlmRequest:
    """One of 40 requests, four of which share the beginning of their prompts."""
    prompt, output = 16 + draw_below(0, "prompt", 0, place, 90), 1 + draw_below(0, "output", 0, place, 20)
    made = request(f"req-{place}", prompt, output, (1 + 2 * place) * NS_PER_MS, family=place // 4)
    return msgspec.structs.replace(made, block_tokens=16)


@pytest.mark.parametrize("router", list(discover(ROUTERS)))
def test_no_request_is_lost_or_wrong_when_a_replica_dies_and_comes_back(router: str) -> None:  # SPEC A1, A11
    requests = [conversation(place) for place in range(40)]
    ran = fleet(replicas=3, front=FrontConfig(router=PolicyChoice(router)))
    ran.sim.at(30 * NS_PER_MS, lambda _: ran.sim.kill(ran.replicas[1]))
    ran.sim.at(60 * NS_PER_MS, lambda _: ran.sim.restart(ran.replicas[1]))
    run(ran, requests)
    assert wrong(ran, requests) == []
    assert set(levels(ran).values()) == {0}
