"""Rows of the silicon sample (field/simulators.md, section 4) from the whole simulator, scheduler and gaps included.

vLLM plans one step at a time in them, so the pool has one credit. The fit of its efficiency has not seen these rows.
"""

import msgspec
import pytest
from tests.sim.systems import EXACT, ran

from headway.sched.config import WorkerConfig
from headway.sched.llm.params import LlmParams
from headway.sim.pools import Hardware, PoolParams
from headway.sim.scenario import Scenario
from headway.workload.lengths import Lengths
from headway.workload.spec import ClosedLoop

VLLM = msgspec.convert(
    {
        "step_tokens": 8192,
        "max_seqs": 256,
        "async_depth": 1,
        "chunk": {"type": "constant", "params": {"tokens": 8192}},
    },
    LlmParams,
)
KILO = Lengths(kind="fixed", mean=1024.0)


def tpot_ms(device: str, tp: int, clients: int) -> float:
    """Mean time per output token of Llama-3.1-70B in fp8, 1024 in and 1024 out, after the first wave."""
    pool = PoolParams(
        model="llama-3.1-70b",
        dtype="fp8",
        hardware=Hardware(device=device, tp=tp),
        truth=EXACT,
        scheduler=VLLM,
        worker=msgspec.structs.replace(WorkerConfig(), credits=1),
    )
    load = ClosedLoop(clients=clients, count=3 * clients, ramp_s=0.1 * clients, prompt=KILO, output=KILO)
    _, kept = ran(Scenario(pools=(pool,), workload=(load,)))
    spans = [stream.times_ns[-1] - stream.times_ns[0] for _, stream, _ in kept.ended[clients:]]
    return sum(spans) / len(spans) / 1023 / 1e6


@pytest.mark.parametrize(
    ("device", "tp", "clients", "measured_ms"),
    [("H100-SXM", 2, 4, 17.41), ("H100-SXM", 4, 16, 13.19), ("H100-SXM", 8, 32, 12.64), ("H200", 1, 4, 21.47)],
)
def test_time_per_token_is_what_was_measured_within_15_percent(
    device: str, tp: int, clients: int, measured_ms: float
) -> None:
    # SPEC J3
    assert tpot_ms(device, tp, clients) == pytest.approx(measured_ms, rel=0.15)
