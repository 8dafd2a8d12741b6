"""Rows 1 to 16 of field/simulators.md, section 4, which the fit of `vllm`'s efficiency left out. SPEC J3."""

import pytest

from headway.cost.closed_loop import ClosedLoop, prefill_ns, tpot_ns
from headway.cost.deployment import Deployment, Layout
from headway.cost.devices import find_device
from headway.cost.efficiency import find_efficiency
from headway.cost.llm import StepShape
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


def replica(model: str, device: str, tp: int, dtype: str, engine: str) -> RooflineModel:
    return RooflineModel(
        Deployment(
            model=find_model(model),
            device=find_device(device),
            layout=Layout(tp=tp),
            dtype=dtype,
            efficiency=find_efficiency(engine),
        )
    )


@pytest.mark.parametrize(
    ("model", "dtype", "device", "tp", "engine", "isl", "osl", "batch", "ttft_ms", "measured_ms"), ROWS
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
    measured_ms: float,
) -> None:
    roof = replica(model, device, tp, dtype, engine)
    assert tpot_ns(roof, ClosedLoop(isl, osl, batch)) / 1e6 == pytest.approx(measured_ms, rel=0.35)
    # The first token waits for its own prefill at least; what stands in front of the engine is in no step.
    assert 0.05 * ttft_ms < prefill_ns(roof, isl) / 1e6 < ttft_ms


def test_half_of_the_measured_rows_are_within_15_percent() -> None:
    errors = sorted(
        abs(tpot_ns(replica(model, device, tp, dtype, engine), ClosedLoop(isl, osl, batch)) / 1e6 / measured_ms - 1)
        for model, dtype, device, tp, engine, isl, osl, batch, _, measured_ms in ROWS
    )
    assert errors[len(errors) // 2] < 0.15


@pytest.mark.parametrize(
    ("model", "tp", "base", "token", "square", "within"),
    [
        ("opt-13b", 1, 18.10, 0.10191, 7.12e-6, 0.15),
        ("opt-13b", 2, 14.74, 0.06858, 2.45e-6, 0.3),
        ("opt-66b", 4, 29.44, 0.15135, 8.32e-6, 0.3),
    ],
)
def test_prefill_of_opt_takes_what_distserve_fitted(
    model: str, tp: int, base: float, token: float, square: float, within: float
) -> None:
    """REFERENCE 4 and field/papers 1.2, vLLM of 2023 on A100-80G, in ms; 512 to 2048 tokens, nothing fitted to it."""
    roof = replica(model, "A100-80G", tp, "float16", "vllm")
    for n in (512, 1024, 2048):
        assert prefill_ns(roof, n) / 1e6 == pytest.approx(base + token * n + square * n * n, rel=within)


@pytest.mark.parametrize(
    ("model", "tp", "base", "context_ms", "row"),
    [("opt-13b", 1, 19.93, 0.00063, 0.03851), ("opt-66b", 4, 30.76, 0.00045, 0.06328)],
)
def test_decode_of_opt_takes_what_distserve_fitted(
    model: str, tp: int, base: float, context_ms: float, row: float
) -> None:
    """base + per token of context + per row, b < 95, within 25 %."""
    roof = replica(model, "A100-80G", tp, "float16", "vllm")
    for batch, context in ((1, 512), (16, 512), (32, 512), (64, 256)):
        published = base + context_ms * batch * context + row * batch
        got = roof.step_ns(StepShape(batch, batch * context)) + roof.host_ns(batch)
        assert got / 1e6 == pytest.approx(published, rel=0.25)


def test_decode_of_llama_7b_on_a10_takes_what_llumnix_shows() -> None:
    """Figure 10: about 43 to 52 ms a step with a cache nearly full (REFERENCE 4); its middle +- 12 %."""
    roof = replica("llama-7b", "A10", 1, "float16", "vllm")
    for batch, context in ((4, 3000), (12, 1000), (32, 400)):
        got = roof.step_ns(StepShape(batch, batch * context)) + roof.host_ns(batch)
        assert got / 1e6 == pytest.approx(47.5, rel=0.12)
