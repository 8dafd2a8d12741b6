"""Rows 1 to 16 of field/simulators.md, section 4, which the fit of `vllm`'s efficiency left out. SPEC J3."""

import pytest

from headway.cost.deployment import Deployment, Layout
from headway.cost.devices import find_device
from headway.cost.efficiency import find_efficiency
from headway.cost.llm import StepShape, pairs
from headway.cost.models_catalogue import find_model
from headway.cost.roofline import RooflineModel

# From aiconfigurator-core 0.12.0, Apache-2.0.
# model, dtype, device, tp, engine, input, output, concurrency, TTFT ms, TPOT ms
ROWS = [
    ("llama-3.1-70b", "fp8", "H100-SXM", 2, "vllm", 1024, 1024, 4, 121.3, 17.41),
    ("llama-3.1-70b", "fp8", "H100-SXM", 2, "vllm", 1024, 1024, 64, 415.1, 28.77),
    ("llama-3.1-70b", "fp8", "H100-SXM", 4, "vllm", 1024, 1024, 16, 121.4, 13.19),
    ("llama-3.1-70b", "fp8", "H100-SXM", 4, "vllm", 1024, 1024, 64, 256.4, 19.51),
    ("llama-3.1-70b", "fp8", "H100-SXM", 8, "vllm", 1024, 1024, 32, 124.4, 12.64),
    ("llama-3.1-70b", "fp8", "H200", 1, "vllm", 1024, 1024, 4, 202.8, 21.47),
    ("llama-3.1-70b", "fp8", "H200", 1, "vllm", 1024, 1024, 64, 729.7, 37.44),
    ("llama-3.1-70b", "fp8", "H200", 2, "vllm", 1024, 1024, 64, 417.0, 22.71),
    ("qwen3-32b", "bfloat16", "H100-SXM", 2, "vllm", 1024, 128, 8, 154.3, 18.04),
    ("qwen3-32b", "bfloat16", "H100-SXM", 2, "vllm", 1024, 128, 128, 691.7, 80.26),
    ("qwen3-32b", "bfloat16", "H100-SXM", 4, "vllm", 1024, 128, 64, 252.4, 29.23),
    ("qwen3-32b", "bfloat16", "H100-SXM", 8, "vllm", 1024, 128, 32, 141.2, 14.35),
    ("llama-3.1-8b", "bfloat16", "H100-SXM", 1, "trtllm", 1024, 128, 8, 191.0, 7.94),
    ("llama-3.1-8b", "bfloat16", "H100-SXM", 1, "trtllm", 1024, 128, 64, 176.9, 20.05),
    ("gpt-oss-120b", "bfloat16", "H200", 1, "vllm", 1024, 1024, 64, 272.7, 24.76),
    ("gpt-oss-120b", "bfloat16", "H200", 4, "vllm", 1024, 1024, 32, 84.2, 7.16),
]


@pytest.mark.parametrize(
    ("model", "dtype", "device", "tp", "engine", "isl", "osl", "batch", "ttft_ms", "tpot_ms"), ROWS
)
def test_decode_time_of_measured_silicon_within_35_percent(
    model: str,
    dtype: str,
    device: str,
    tp: int,
    engine: str,
    isl: int,
    osl: int,
    batch: int,
    ttft_ms: float,
    tpot_ms: float,
) -> None:
    """A closed loop of `batch` requests: of osl steps that a request sees, `batch` also prefill someone's prompt."""
    model_ = RooflineModel(
        Deployment(
            model=find_model(model),
            device=find_device(device),
            layout=Layout(tp=tp),
            dtype=dtype,
            efficiency=find_efficiency(engine),
        )
    )
    context = isl + osl // 2
    alone = model_.step_ns(StepShape(batch, batch * context)) + model_.host_ns(batch)
    mixed_shape = StepShape(batch - 1, (batch - 1) * context, isl, pairs(0, isl), 1, isl)
    mixed = model_.step_ns(mixed_shape) + model_.host_ns(batch)
    predicted = (alone + batch / osl * (mixed - alone)) / 1e6
    assert predicted == pytest.approx(tpot_ms, rel=0.35)
    # The first token waits for its own prefill at least; what stands in front of the engine is in no step.
    first = model_.step_ns(StepShape(0, 0, isl, pairs(0, isl), 1, isl)) / 1e6
    assert 0.05 * ttft_ms < first < ttft_ms
