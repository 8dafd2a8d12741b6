import msgspec
import pytest
from tests.sim.workloads import ENGINE, fleet, mix

from headway.core.errors import EngineError
from headway.core.ids import RequestId
from headway.core.plans import Chunk, Join, NewSequence, StepPlan
from headway.core.request import LlmRequest, SamplingParams
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice
from headway.sim.driver import Machine
from headway.sim.fleet import Fleet
from headway.sim.tokenless import TokenlessEngine


class Ran:
    """What a run decided, without the content of tokens."""

    def __init__(self, ran: Fleet) -> None:
        self.times = {name: stream.times_ns for name, stream in ran.sim.clients.streams.items()}
        self.chosen = [
            (decision.at_ns, decision.request, decision.kind, decision.chosen) for decision in ran.sim.clients.decisions
        ]
        self.counters = [dict(ran.worker(place).worker.machine.counters()) for place in range(2)]
        self.busy = [life.executor.busy_ns for life in ran.sim.lives.values() if life.executor is not None]


def offered() -> list[LlmRequest]:
    fixed = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    return [
        msgspec.structs.replace(item, sampling=msgspec.structs.replace(fixed, max_tokens=item.max_tokens))
        for item in mix(60, seed=4)
    ]


def both(kv_blocks: int) -> tuple[Ran, Ran]:
    """The same load on the engine with content and on the one without."""
    lengths = {item.id: item.max_tokens for item in offered()}
    llm = LlmParams(max_seqs=16, step_tokens=512, chunk=PolicyChoice("constant", {"tokens": 64}))
    runs: list[Ran] = []
    for is_tokenless in (False, True):
        ran = fleet(engine=msgspec.structs.replace(ENGINE, kv_blocks=kv_blocks), llm=llm)
        if is_tokenless:
            for replica in ran.replicas:
                real = ran.sim._machines[replica]
                ran.sim._machines[replica] = Machine(real.build, lambda: TokenlessEngine(lengths), real.truth)
                ran.sim.restart(replica)
        else:
            for replica in ran.replicas:
                ran.sim.restart(replica)
        ran.offer(offered())
        ran.sim.run()
        runs.append(Ran(ran))
    return runs[0], runs[1]


@pytest.mark.parametrize("kv_blocks", [200, 24])
def test_decides_as_the_engine_with_content_does(kv_blocks: int) -> None:
    real, tokenless = both(kv_blocks)
    assert tokenless.times == real.times
    assert tokenless.chosen == real.chosen
    assert tokenless.counters == real.counters
    assert tokenless.busy == real.busy


def test_the_comparison_covers_preemption_and_prefix_hits() -> None:
    real, _ = both(24)
    assert sum(counters["preemptions"] for counters in real.counters) > 0
    assert sum(counters["prefix_hit_tokens"] for counters in real.counters) > 0


def new(seq: int) -> NewSequence:
    return NewSequence(seq, RequestId("req-a"), (1, 2), (), SamplingParams(max_tokens=9))


def test_an_answer_ends_at_its_length() -> None:
    engine = TokenlessEngine({RequestId("req-a"): 2})
    first = engine.apply(StepPlan(1, 0, "prefill", new=(new(1),), chunks=(Chunk(1, 0, 2, True, (0,)),)))
    second = engine.apply(StepPlan(2, 1, "decode", join=(Join(1, step=1),), decodes=1))
    assert (first[0], first[2]) == ((1,), ())
    assert [stopped.seq for stopped in second[2]] == [1]


def test_a_plan_that_drifts_is_refused() -> None:
    with pytest.raises(EngineError, match="plan decodes 3, 0 have joined"):
        TokenlessEngine({}).apply(StepPlan(1, 0, "decode", decodes=3))
