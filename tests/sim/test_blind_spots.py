"""The blind spot of each of SPEC A1's policies, beside a policy that does not have it. Same fleet, same requests."""

from collections.abc import Sequence
from statistics import mean

import msgspec
import pytest
from tests.sim.workloads import VOCAB

from headway.core.blockhash import block_hashes, cache_root
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.request import LlmRequest, SamplingParams
from headway.core.units import NS_PER_MS, NS_PER_S, Ns
from headway.engines.synthetic.engine import SyntheticParams
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import FrontConfig
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import Room
from headway.sim.driver import Machine
from headway.sim.fleet import Fleet, FleetParams
from headway.sim.truth import LinearTruth

# Replicas take whatever they are sent: late binding at the front would hide much of what a policy chose.
ROOM = Room(engine_queue_ms=1e9, cold_requests=1_000_000)
FAST = LinearTruth(base_ns=5e6, token_ns=20_000.0)
SLOW = LinearTruth(base_ns=20e6, token_ns=80_000.0)
ROOT = cache_root(model="synthetic")


class Uneven(Fleet):
    """A fleet whose replicas have truths of their own."""

    def __init__(self, params: FleetParams, truths: Sequence[LinearTruth]) -> None:
        self._truths = {NodeId(f"rep-{place}"): truth for place, truth in enumerate(truths)}
        super().__init__(msgspec.structs.replace(params, replicas=len(truths)))

    def machine(self, replica: NodeId) -> Machine:
        """As every replica's, with its own truth."""
        return msgspec.structs.replace(super().machine(replica), truth=self._truths[replica])


def ask(name: str, at_ns: Ns, prompt: int, output: int = 8, family: int | None = None, own: int = 0) -> LlmRequest:
    """A request; the last `own` tokens of a family's prompt are its own, a request without a family shares nothing."""
    number = int(name.rsplit("-", 1)[1])
    seed = (family if family is not None else 1000 + number) * 7919
    tokens = [(seed + 31 * place + place * place) % VOCAB for place in range(prompt)]
    tokens[prompt - own :] = [(number * 104_729 + 17 * place) % VOCAB for place in range(own)]
    return LlmRequest(
        RequestId(name),
        TenantId("default"),
        ModelId("synthetic"),
        tuple(tokens),
        SamplingParams(max_tokens=output, temperature=0, ignore_eos=True),
        at_ns,
        block_hashes=block_hashes(ROOT, tokens, 16),
        block_tokens=16,
        cache_root=ROOT,
        output_tokens_predicted=output,
    )


def ran(policy: str, truths: Sequence[LinearTruth], requests: Sequence[LlmRequest], kv_blocks: int = 2000) -> Uneven:
    """A fleet after it has answered everything under a policy."""
    fleet = Uneven(
        FleetParams(
            engine=SyntheticParams(kv_blocks=kv_blocks, vocab_size=VOCAB),
            llm=LlmParams(max_seqs=32, step_tokens=512),
            front=FrontConfig(router=PolicyChoice(policy), room=ROOM),
        ),
        truths,
    )
    fleet.offer(requests)
    fleet.sim.run()
    return fleet


def ttft_ms(fleet: Uneven, requests: Sequence[LlmRequest]) -> float:
    """Mean time to the first token of some requests."""
    times = [fleet.sim.clients.streams[request.id].ttft_ns for request in requests]
    return mean(time for time in times if time is not None) / NS_PER_MS


def e2e_ms(fleet: Uneven, requests: Sequence[LlmRequest]) -> float:
    """Mean time to the end of some requests."""
    streams = [fleet.sim.clients.streams[request.id] for request in requests]
    return mean(stream.ended_ns - stream.sent_ns for stream in streams if stream.ended_ns is not None) / NS_PER_MS


def cached(fleet: Uneven, requests: Sequence[LlmRequest]) -> int:
    """Prompt tokens that were not computed again."""
    ends = [fleet.sim.clients.streams[request.id].end for request in requests]
    return sum(end.cached_tokens for end in ends if end is not None)


def idle(fleet: Uneven) -> int:
    """Replicas that never computed anything."""
    workers = [fleet.worker(place).worker.machine for place in range(len(fleet.replicas))]
    return sum(not dict(machine.counters())["prompt_tokens"] for machine in workers)


# SPEC A1, each


def test_round_robin_feeds_a_slow_replica_as_much_as_a_fast_one() -> None:
    requests = [ask(f"req-{n}", n * 12 * NS_PER_MS, 128, output=16) for n in range(120)]
    blind = e2e_ms(ran("round_robin", [SLOW, FAST], requests), requests)
    sees = e2e_ms(ran("least_requests", [SLOW, FAST], requests), requests)
    assert blind > 1.5 * sees, (blind, sees)


def test_least_requests_takes_a_long_prompt_for_a_short_one() -> None:
    lengths = [1500 if n % 2 == 0 else 30 for n in range(16)]
    requests = [ask(f"req-{n}", NS_PER_S + n, length, output=2) for n, length in enumerate(lengths)]
    long = requests[::2]  # with equal counts the long ones all meet on one replica
    blind = ttft_ms(ran("least_requests", [FAST, FAST], requests), long)
    sees = ttft_ms(ran("least_tokens", [FAST, FAST], requests), long)
    assert blind > 1.5 * sees, (blind, sees)


def test_least_tokens_does_not_see_that_a_prompt_is_cached_elsewhere() -> None:
    requests = [ask(f"req-{n}", n * 30 * NS_PER_MS, 1024, family=n % 7, own=32) for n in range(84)]
    blind, sees = (
        ran(policy, [FAST, FAST, FAST], requests, kv_blocks=260) for policy in ("least_tokens", "cache_aware")
    )
    assert cached(sees, requests) > 2 * cached(blind, requests)
    assert ttft_ms(blind, requests) > 1.5 * ttft_ms(sees, requests)


@pytest.mark.parametrize("other", ["mooncake", "cost_aware"])
def test_cache_aware_stays_with_a_slow_replica_that_holds_the_prefix(other: str) -> None:
    # Two at a time, so that both replicas learn their rates.
    warm = [ask(f"req-{n}", (1 + n // 2) * NS_PER_S, 1024, family=n % 2, own=512) for n in range(4)]
    later = [ask(f"req-{n}", n * NS_PER_S, 1024, family=n % 2, own=512) for n in range(4, 24)]
    blind = ttft_ms(ran("cache_aware", [SLOW, FAST], [*warm, *later]), later)
    sees = ttft_ms(ran(other, [SLOW, FAST], [*warm, *later]), later)
    assert blind > 1.5 * sees, (blind, sees)


def test_power_of_two_leaves_a_third_replica_idle() -> None:
    requests = [ask(f"req-{n}", NS_PER_S + n, 400, output=40) for n in range(8)]
    blind, sees = (ran(policy, [FAST] * 8, requests) for policy in ("power_of_two", "least_requests"))
    assert idle(blind) > idle(sees) == 0
    assert ttft_ms(blind, requests) > 1.1 * ttft_ms(sees, requests)


def test_cost_aware_keeps_no_replica_free_for_who_comes_next() -> None:
    long = [ask(f"req-{n}", NS_PER_S + n, 4000, output=2, family=n % 2, own=3400) for n in range(12)]
    short = [ask(f"req-{20 + n}", NS_PER_S + 60 * NS_PER_MS + n, 30, output=2) for n in range(8)]
    blind = ttft_ms(ran("cost_aware", [FAST] * 4, [*long, *short]), short)
    sees = ttft_ms(ran("dualmap", [FAST] * 4, [*long, *short]), short)
    assert blind > 1.5 * sees, (blind, sees)
