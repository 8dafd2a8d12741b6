import pytest

from headway.core.ids import RequestId
from headway.core.plans import Chunk, NewSequence, StepPlan
from headway.core.request import SamplingParams
from headway.engines.synthetic.engine import SyntheticEngine, SyntheticParams
from headway.live.warmup import warm_up


@pytest.mark.parametrize(
    "params", [SyntheticParams(check=True), SyntheticParams(check=True, kv_blocks=2, block_size=4, max_model_len=7)]
)
def test_an_engine_is_as_new_after_its_warm_up(params: SyntheticParams) -> None:
    # SPEC E1
    warm, cold = SyntheticEngine(params), SyntheticEngine(params)
    warm_up(warm)
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
