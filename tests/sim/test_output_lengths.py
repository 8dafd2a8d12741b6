"""Predicted output lengths in a running fleet (SPEC A3)."""

from math import ceil

import msgspec
import pytest
from tests.sim.workloads import ENGINE, VOCAB, fleet, levels, request, run, wrong

from headway.core.draw import draw_below
from headway.core.ids import TenantId
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_MS
from headway.engines.synthetic.engine import SyntheticParams
from headway.engines.synthetic.tokens import reference
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import FrontConfig
from headway.sched.registry import PolicyChoice


def of(tenant: str, place: int, stops: int) -> LlmRequest:
    """A request that ends at any of `stops` tokens: on average after VOCAB / stops."""
    item = request(f"req-{tenant}-{place}", 5 + draw_below(1, tenant, 0, place, 40), 255, place * 5 * NS_PER_MS, place)
    sampling = msgspec.structs.replace(item.sampling, stop_token_ids=tuple(range(10, 10 + stops)), seed=place)
    return msgspec.structs.replace(item, tenant=TenantId(tenant), sampling=sampling)


def test_estimates_converge_to_what_each_tenant_generates() -> None:
    requests = [of(tenant, place, stops) for place in range(150) for tenant, stops in (("short", 60), ("long", 6))]
    ran = run(fleet(), requests)
    assert wrong(ran, requests) == []
    lengths, params = ran.front.book.foresight.lengths, FrontConfig().output_length
    estimates = {}
    for tenant in ("short", "long"):
        outputs = sorted(
            len(reference(item.prompt, item.sampling, VOCAB, ENGINE.eos_token_ids)[0])
            for item in requests
            if item.tenant == tenant
        )
        estimates[tenant] = lengths.estimate(of(tenant, 999, 1))
        assert estimates[tenant] == outputs[ceil(params.quantile * len(outputs)) - 1]
    assert estimates["short"] * 4 < estimates["long"]


@pytest.mark.parametrize("predicted", [1, 100_000])
def test_a_wrong_prediction_costs_latency_and_never_memory(predicted: int) -> None:
    """The guard of capacity stands behind every estimate: blocks are counted as they are needed."""
    small = SyntheticParams(kv_blocks=40, vocab_size=VOCAB, check=True)
    requests = [
        msgspec.structs.replace(
            request(f"req-{place}", 40, 100 + draw_below(2, "o", 0, place, 100), place * NS_PER_MS, place),
            output_tokens_predicted=predicted,
        )
        for place in range(60)
    ]
    llm = LlmParams(max_seqs=16, step_tokens=512, order=PolicyChoice("shortest_predicted"))
    front = FrontConfig(router=PolicyChoice("least_tokens"))
    ran = fleet(engine=small, llm=llm, front=front)
    ran.offer(requests)
    ran.sim.run()  # every event checks that blocks add up to capacity
    assert wrong(ran, requests) == []
    assert set(levels(ran).values()) == {0}
    preemptions = [ran.sim.clients.streams[item.id].evidence.preemptions for item in requests]  # type: ignore[union-attr]  # all closed
    assert sum(preemptions) > 0  # more was let in than could grow to its end
