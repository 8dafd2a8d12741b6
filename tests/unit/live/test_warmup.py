import pytest
from msgspec.structs import replace

from headway.core.events import StepDone
from headway.core.graphs import GraphMode
from headway.core.ids import RequestId
from headway.core.plans import Chunk, NewSequence, StepPlan, StepTiming
from headway.core.request import SamplingParams
from headway.core.units import NS_PER_MS
from headway.engines.synthetic.engine import SyntheticEngine, SyntheticParams
from headway.live.warmup import warm_up
from headway.sched.executor.buckets import Buckets


@pytest.mark.parametrize(
    "params", [SyntheticParams(check=True), SyntheticParams(check=True, kv_blocks=2, block_size=4, max_model_len=7)]
)
def test_an_engine_is_as_new_after_its_warm_up(params: SyntheticParams) -> None:
    # SPEC E1
    warm, cold = SyntheticEngine(params), SyntheticEngine(params)
    warm_up(warm, Buckets((1, 4, 64)), decodes_max=2)
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    plan = StepPlan(
        1,
        0,
        "prefill",
        new=(NewSequence(1, RequestId("req-1"), (5, 6), (), sampling),),
        chunks=(Chunk(1, 0, 2, samples=True, table=(0,)),),
        prefill_tokens=2,
    )
    assert warm.run(plan).tokens == cold.run(plan).tokens


# SPEC A7, J3
def test_measured_steps_tell_what_prompts_and_decodes_take() -> None:
    steps = warm_up(Timed(SyntheticParams(check=True)), tokens_max=128).steps
    seen = [
        (one.shape.prefill_tokens, one.shape.decodes, one.shape.kv_tokens, round(one.took_ns / 1e6)) for one in steps
    ]
    long = [(128, 0, 0, 132), (0, 1, 129, 5), (0, 1, 130, 5), (0, 1, 131, 5), (0, 1, 132, 5)]
    short = [(32, 0, 0, 36), (0, 1, 33, 5), (0, 1, 34, 5), (0, 1, 35, 5), (0, 1, 36, 5)]
    assert seen == long + short
    assert [one.shape.prefill_pairs for one in steps if one.shape.prefill_tokens] == [128 * 129 // 2, 32 * 33 // 2]


class Timed(SyntheticEngine):
    """Its steps take 4 ms and 1 ms per row."""

    def run(self, plan: StepPlan) -> StepDone:
        done = super().run(plan)
        timing = StepTiming(0, 10, 10 + (4 + plan.tokens) * NS_PER_MS)
        return replace(done, timing=timing)


class Listening(SyntheticEngine):
    """Notes what it runs."""

    def __init__(self, params: SyntheticParams) -> None:
        super().__init__(params)
        self.ran: list[tuple[str, int, str]] = []

    def run(self, plan: StepPlan) -> StepDone:
        self.ran.append((plan.kind, plan.bucket, plan.graph))
        return super().run(plan)


@pytest.mark.parametrize(
    ("mode", "of_prefill", "of_decode"),
    [("none", "none", "none"), ("full_and_piecewise", "piecewise", "full"), ("full_decode_only", None, "full")],
)
def test_every_bucket_that_a_step_can_have_is_run(mode: GraphMode, of_prefill: str | None, of_decode: str) -> None:
    # SPEC E1
    engine = Listening(SyntheticParams(check=True))
    warm_up(engine, Buckets((2, 8, 16, 512), mode), decodes_max=9)
    prefills = [] if of_prefill is None else [("prefill", size, of_prefill) for size in (512, 16, 8, 2)]
    decodes = [("decode", size, of_decode) for size in (16, 8, 2)]
    assert list(dict.fromkeys(ran for ran in engine.ran if ran[1])) == sorted(
        [*prefills, *decodes], key=lambda ran: -ran[1] + 0.5 * (ran[0] == "decode")
    )
    assert engine.ran[-1][0] == "dummy"
