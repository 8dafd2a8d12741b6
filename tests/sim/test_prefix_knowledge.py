"""What the front believes of every replica's prefix cache, against the caches themselves."""

import msgspec
import pytest
from tests.sim.workloads import ENGINE, ROOT, VOCAB, Fleet, fleet, request, run, wrong

from headway.core.blockhash import block_hashes
from headway.core.draw import draw_below
from headway.core.ids import NodeId, RequestId
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_MS
from headway.engines.synthetic.engine import SyntheticParams
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import FrontConfig
from headway.sched.registry import PolicyChoice


def long(count: int, seed: int) -> list[LlmRequest]:
    """Prompts of up to 600 tokens in five families: more than a small cache holds."""
    return [
        request(
            f"req-{i}",
            1 + draw_below(seed, "p", 0, i, 600),
            1 + draw_below(seed, "o", 0, i, 40),
            NS_PER_MS + i * 10 * NS_PER_MS,
            family=draw_below(seed, "f", 0, i, 5),
        )
        for i in range(count)
    ]


def held(ran: Fleet, place: int, asked: LlmRequest) -> int:
    """Prompt tokens that the cache of a replica holds, in steps of 64."""
    pool = ran.worker(place).worker.machine.state.pool  # type: ignore[attr-defined]  # the machine, not its port
    keys = asked.block_hashes[3::4]
    known = {key for key, _ in pool.index.items()}
    depth = next((i for i, key in enumerate(keys) if key not in known), len(keys))
    return min(64 * depth, (len(asked.prompt) - 1) // 16 * 16)


def believed(ran: Fleet, place: int, asked: LlmRequest) -> int:
    return ran.front.router.index.hits(asked, NodeId(ran.replicas[place]))


@pytest.mark.parametrize("kv_blocks", [60, 200])
def test_the_fronts_knowledge_is_exact_once_reports_have_come(kv_blocks: int) -> None:
    requests = long(120, seed=kv_blocks)
    small = SyntheticParams(kv_blocks=kv_blocks, vocab_size=VOCAB, check=True)
    ran = run(fleet(engine=small, front=FrontConfig(router=PolicyChoice("round_robin"))), requests)
    assert wrong(ran, requests) == []
    probes = [request(f"probe-{family}", 640, 1, 0, family) for family in range(5)]
    pairs = [(believed(ran, place, probe), held(ran, place, probe)) for probe in probes for place in range(2)]
    assert [one for one, _ in pairs] == [other for _, other in pairs]
    assert any(0 < other < 639 for _, other in pairs)
    assert ran.front.router.index.pending == 0


def test_it_stays_exact_over_an_engine_failure_and_a_restart() -> None:  # SPEC A11, dynamo#4904
    requests = long(80, seed=3)
    ran = fleet(engine=SyntheticParams(kv_blocks=200, vocab_size=VOCAB, check=True))
    ran.offer(requests)
    executor = ran.sim.lives[ran.replicas[0]].executor
    assert executor is not None
    ran.sim.at(200 * NS_PER_MS, lambda _: executor.fail_next())
    ran.sim.at(400 * NS_PER_MS, lambda _: ran.sim.kill(ran.replicas[1]))
    ran.sim.at(500 * NS_PER_MS, lambda _: ran.sim.restart(ran.replicas[1]))
    ran.sim.at(600 * NS_PER_MS, lambda _: ran.sim.kill(ran.front.id))
    ran.sim.at(650 * NS_PER_MS, lambda _: ran.sim.restart(ran.front.id))
    ran.sim.run()
    probes = [request(f"probe-{family}", 640, 1, 0, family) for family in range(5)]
    pairs = [(believed(ran, place, probe), held(ran, place, probe)) for probe in probes for place in range(2)]
    assert [one for one, _ in pairs] == [other for _, other in pairs]
    assert any(other for _, other in pairs)


def test_a_replica_without_a_cache_is_known_to_hold_nothing() -> None:
    requests = long(20, seed=4)
    ran = run(fleet(llm=LlmParams(max_seqs=16, step_tokens=512, prefix_cache=False)), requests)
    assert {believed(ran, place, item) for place in range(2) for item in requests} == {0}


def test_what_is_predicted_is_what_replicas_report() -> None:  # AMD-AGI/Infera#143
    requests = long(120, seed=9)
    ran = run(fleet(front=FrontConfig(router=PolicyChoice("least_tokens"))), requests)
    (figures,) = ran.front.prefix_figures()
    assert figures.over_tokens == 0
    assert figures.under_tokens < 64 * figures.dispatches  # an entry stands for 64 tokens, an engine's block for 16
    assert figures.predicted_tokens > 20_000


def test_the_answer_is_known_to_the_next_turn() -> None:
    first = request("req-1", 40, 200, NS_PER_MS)
    first = msgspec.structs.replace(first, sampling=msgspec.structs.replace(first.sampling, ignore_eos=True))
    ran = run(fleet(front=FrontConfig(router=PolicyChoice("cache_aware"))), [first])
    prompt = (*first.prompt, *ran.sim.clients.streams[first.id].tokens, 7, 8, 9)
    turn = msgspec.structs.replace(
        first, id=RequestId("req-2"), prompt=prompt, block_hashes=block_hashes(ROOT, prompt, ENGINE.block_size)
    )
    assert sorted(believed(ran, place, turn) for place in range(2)) == [0, 192]  # 239 tokens were fed
    ran.sim.arrive(ran.front.id, turn, ran.sim.now_ns)
    ran.sim.run()
    end = ran.sim.clients.streams[turn.id].end
    assert end is not None
    assert end.cached_tokens == 224
