import msgspec
import pytest

from headway.core.errors import ConfigError
from headway.cost.deployment import Deployment, Layout, TwoBatch
from headway.cost.devices import find_device
from headway.cost.efficiency import Efficiency, find_efficiency
from headway.cost.links import find_link
from headway.cost.llm import StepShape, pairs
from headway.cost.models_catalogue import find_model
from headway.cost.roofline import RooflineModel, contended_ns, overlapped_ns
from headway.cost.step import StepModel

PERFECT = Efficiency(
    name="perfect",
    compute=1.0,
    attention=1.0,
    memory=1.0,
    collective_floor=1.0,
    overhead_ns=0.0,
    host_base_ns=0.0,
    host_row_ns=0.0,
    experts=1.0,
    imbalance=1.0,
    source="test",
    date="2026-11",
)
SGLANG = find_efficiency("sglang")
ONE = Layout()
F, BW = 989e12, 3.35e12


def deployment(
    model: str,
    device: str = "H100-SXM",
    layout: Layout = ONE,
    dtype: str = "bfloat16",
    reach: Efficiency = PERFECT,
) -> Deployment:
    return Deployment(model=find_model(model), device=find_device(device), layout=layout, dtype=dtype, efficiency=reach)


def decode(batch: int, context: int) -> StepShape:
    return StepShape(batch, batch * context)


def prefill(tokens: int, prompts: int = 1) -> StepShape:
    return StepShape(0, 0, tokens * prompts, prompts * pairs(0, tokens), prompts, tokens * prompts)


def ms(model: StepModel, shape: StepShape) -> float:
    return model.step_ns(shape) / 1e6


def test_a_dense_step_is_the_sum_of_two_maxima() -> None:
    """REFERENCE 2, written out for a decode whose weights and KV are both bound by memory. SPEC J3."""
    model = find_model("llama-3.1-8b")
    read = 2 * (model.linear_parameters + model.head_parameters) / BW
    kv = 131_072 * 64 * 1000 / BW
    assert RooflineModel(deployment("llama-3.1-8b")).step_ns(decode(64, 1000)) == pytest.approx((read + kv) * 1e9)


def test_a_dense_prefill_pays_products_and_pairs() -> None:
    """F_lin / F + 4 L h d_h sum(s(s+1)/2) / F: both compute bound at 4096 tokens."""
    model, n = find_model("llama-3.1-8b"), 4096
    linear = (2 * model.linear_parameters * n + 2 * model.head_parameters) / F
    attention = 4 * 32 * 32 * 128 * n * (n + 1) / 2 / F
    assert RooflineModel(deployment("llama-3.1-8b")).step_ns(prefill(n)) == pytest.approx((linear + attention) * 1e9)


def test_bound_compute_hides_no_bound_attention() -> None:
    """One maximum of sums would let the spare bandwidth of prefill products hide the reading of the decodes' KV."""
    model = RooflineModel(deployment("llama-3.1-8b"))
    mixed = StepShape(64, 64 * 8000, 2048, pairs(0, 2048), 1, 2048)
    assert model.step_ns(mixed) > model.step_ns(prefill(2048)) + 131_072 * 64 * 8000 / BW * 1e9 * 0.8


def test_prefill_time_grows_faster_than_prompts() -> None:
    # inference-sim#489: cross-model step time blind to prefill length on dense models
    model = RooflineModel(deployment("llama-3.1-8b"))
    assert ms(model, prefill(32_768)) > 1.2 * 8 * ms(model, prefill(4096))


def test_a_chunk_pays_for_its_history() -> None:
    model = RooflineModel(deployment("llama-3.1-8b"))
    early = StepShape(0, 0, 512, pairs(0, 512), 1, 512)
    late = StepShape(0, 0, 512, pairs(60_000, 512), 1, 60_512)
    assert model.step_ns(late) > 1.5 * model.step_ns(early)


def test_the_host_gap_is_a_term_of_its_own() -> None:
    # inference-sim#482: zero overhead between steps gave TTFT 17 to 56 % too low
    reach = msgspec.structs.replace(PERFECT, host_base_ns=1e6, host_row_ns=2e4)
    model = RooflineModel(deployment("llama-3.1-8b", reach=reach))
    assert model.host_ns(64) == 1e6 + 64 * 2e4
    assert model.step_ns(decode(8, 100)) == RooflineModel(deployment("llama-3.1-8b")).step_ns(decode(8, 100))


@pytest.mark.parametrize("layout", [Layout(), Layout(pp=4), Layout(pp=4, is_filled=True)])
def test_rows_cost_once_whatever_the_stages(layout: Layout) -> None:
    reach = msgspec.structs.replace(PERFECT, overhead_ns=1e6, row_ns=1e4)
    shape = StepShape(15, 1500, 512, pairs(0, 512), 1, 512)
    more = RooflineModel(deployment("llama-3.1-8b", layout=layout, reach=reach)).step_ns(shape)
    assert more - RooflineModel(deployment("llama-3.1-8b", layout=layout)).step_ns(shape) == pytest.approx(1e6 + 16e4)


def test_tensor_parallel_steps_pay_two_reductions_a_layer() -> None:
    """2L t_AR at the floor: 160 x 38 us for Llama-3.1-70B on 8 H100."""
    model = find_model("llama-3.1-70b")
    read = (2 * (model.linear_parameters + model.head_parameters) / 8 + 327_680 / 8 * 1000) / BW
    got = RooflineModel(deployment("llama-3.1-70b", layout=Layout(tp=8))).step_ns(decode(1, 1000))
    assert got == pytest.approx(read * 1e9 + 160 * 38_000)


def test_decode_of_70b_on_eight_h100_takes_the_published_time() -> None:
    """9.5 to 10.4 ms per token (field/papers 3); here within 10 % of its middle, with vLLM's efficiency."""
    reach = find_efficiency("vllm")
    got = ms(RooflineModel(deployment("llama-3.1-70b", layout=Layout(tp=8), reach=reach)), decode(1, 1000))
    assert got == pytest.approx(10.0, rel=0.1)


def test_wide_tp_loses_at_small_decode_batch() -> None:
    # SPEC D5
    """Fixed latency per layer: the repository's small model is slower on 8 H100 than on one, a large one is not."""
    shape = decode(1, 1000)
    small = find_model("smollm2-135m")
    assert small.heads == 9
    one, three = (RooflineModel(deployment("smollm2-135m", layout=Layout(tp=tp))) for tp in (1, 3))
    assert three.step_ns(shape) > 5 * one.step_ns(shape)
    large = [RooflineModel(deployment("llama-3.1-70b", layout=Layout(tp=tp))).step_ns(shape) for tp in (2, 4, 8)]
    assert large == sorted(large, reverse=True)
    assert large[1] * 4 < large[2] * 8  # and even there, 8 devices do less per device than 4


def test_tp_across_hosts_loses_to_tp_in_the_host_times_pp() -> None:
    # SPEC D5
    reach = find_efficiency("vllm")
    across, mixed = (
        RooflineModel(deployment("llama-3.1-70b", layout=layout, reach=reach))
        for layout in (Layout(tp=16), Layout(tp=8, pp=2))
    )
    for shape in (decode(1, 1000), decode(64, 1000), decode(256, 1000), prefill(4096)):
        assert across.step_ns(shape) > 1.1 * mixed.step_ns(shape)


def test_a_pipeline_takes_m_plus_p_minus_one_stages() -> None:
    """(m + p - 1)(t_s + t_p2p), bubble (p - 1) / (m + p - 1)."""
    shape = prefill(8192)
    whole = RooflineModel(deployment("llama-3.1-8b")).step_ns(shape)
    link = find_link("nvlink4")
    for m in (1, 2, 8):
        hop = link.latency_ns + 8192 / m * 4096 * 2 / link.bytes_per_s * 1e9
        staged = RooflineModel(deployment("llama-3.1-8b", layout=Layout(pp=4, microbatches=m))).step_ns(shape)
        # a stage has a quarter of the layers, but the last one has the head too: 2 %
        assert staged == pytest.approx((m + 3) * (whole / 4 / m + hop), rel=0.02)


def test_a_pipeline_that_never_drains_has_no_bubble() -> None:
    """m microbatches keep m stages busy: with as many as stages a step takes m turns, with fewer the way through."""
    shape = decode(256, 1000)
    times = {
        (m, filled): RooflineModel(
            deployment("llama-3.1-70b", layout=Layout(tp=4, pp=4, microbatches=m, is_filled=filled))
        ).step_ns(shape)
        for m in (1, 4, 8)
        for filled in (False, True)
    }
    assert times[1, True] == times[1, False]
    assert times[4, True] == pytest.approx(times[4, False] * 4 / 7)
    assert times[8, True] == pytest.approx(times[8, False] * 8 / 11)


def test_ring_prefill_hides_copies_behind_attention() -> None:
    """cp ranks divide a long prompt almost evenly; over slow Ethernet the copies show."""
    shape = prefill(131_072)
    one = RooflineModel(deployment("llama-3.1-8b")).step_ns(shape)
    four = deployment("llama-3.1-8b", layout=Layout(cp=4))
    assert RooflineModel(four).step_ns(shape) == pytest.approx(one / 4, rel=0.02)
    slow = msgspec.structs.replace(four, link=find_link("eth-10"))
    kv = 131_072 * 131_072 / 4 / find_link("eth-10").bytes_per_s
    assert RooflineModel(slow).step_ns(shape) == pytest.approx(one / 4 + 3 * kv * 1e9, rel=0.25)


def test_decodes_under_context_parallelism_read_a_share_and_merge() -> None:
    shape = decode(16, 100_000)
    one, four = (RooflineModel(deployment("llama-3.1-8b", layout=Layout(cp=cp))).step_ns(shape) for cp in (1, 4))
    assert one / 4 < four < one / 2


def test_experts_that_are_hit_follow_the_batch() -> None:
    """E (1 - (1 - k/E)^T): one token reads 8 of 128 experts, many read all."""
    model = find_model("qwen3-30b-a3b")
    moe = model.experts
    assert moe is not None
    whole = moe.layers * moe.experts * model.expert_parameters * 2 / BW * 1e9
    roof = RooflineModel(deployment("qwen3-30b-a3b"))
    base = 2 * (model.linear_parameters + model.head_parameters) / BW * 1e9
    assert roof.step_ns(decode(1, 1)) == pytest.approx(base + whole * 8 / 128, rel=0.01)
    assert roof.step_ns(decode(32, 1)) == pytest.approx(base + whole * (1 - (120 / 128) ** 32), rel=0.01)


def test_latent_decode_counts_both_terms() -> None:
    """MLA absorbed: 2h(576 + 512) FLOP against 1152 bytes per token and layer, 242 FLOP/B at 128 heads: below the
    ridge of an H100 (295) memory counts, on a device with half its products the products do."""
    layout = Layout(dp=8, ep=8)
    context = 80_000
    roof = deployment("deepseek-v3", layout=layout, dtype="fp8")
    grown = RooflineModel(roof).step_ns(decode(8, context)) - RooflineModel(roof).step_ns(decode(8, 0))
    assert grown == pytest.approx(61 * 1152 * context / BW * 1e9, rel=0.001)
    half = msgspec.structs.replace(roof.device, flops={"fp8": F, "bfloat16": F / 2})
    slow = msgspec.structs.replace(roof, device=half)
    grown = RooflineModel(slow).step_ns(decode(8, context)) - RooflineModel(slow).step_ns(decode(8, 0))
    assert grown == pytest.approx(61 * 2 * 128 * (576 + 512) * context / (F / 2) * 1e9, rel=0.001)


def test_idle_ranks_run_a_dummy_forward_and_the_fullest_rank_sets_the_step() -> None:
    roof = RooflineModel(deployment("deepseek-v3", "H200", Layout(dp=8, ep=8), "fp8"))
    full, idle = decode(64, 4000), StepShape()
    assert roof.ranks_ns([full] * 8) == roof.step_ns(decode(512, 4000))
    assert roof.ranks_ns([full, *[idle] * 7]) > 0.6 * roof.ranks_ns([full] * 8)
    assert roof.ranks_ns([idle, full, *[idle] * 6]) == roof.ranks_ns([full, *[idle] * 7])


def test_a_window_bounds_what_its_layers_read() -> None:
    """gpt-oss: half of the layers look back 128 tokens."""
    roof = RooflineModel(deployment("gpt-oss-120b", "H200"))
    read = roof.step_ns(decode(64, 100_000)) - roof.step_ns(decode(64, 50_000))
    assert read == pytest.approx(73_728 / 2 * 64 * 50_000 / 4.8e12 * 1e9, rel=0.001)


def test_contention_slows_work_while_other_work_runs() -> None:
    """T' = T (1 + c min(1, T_other / T)); T = max(T'_A, T'_B) + t_sync."""
    assert contended_ns(100, 300, 0.5) == 150
    assert contended_ns(300, 100, 0.5) == 350
    assert overlapped_ns(100, 300, 0.5, 0.1, 7) == 317


def two_batch_gain(layout: Layout, shape: StepShape) -> float:
    serial = deployment("deepseek-v3", layout=layout, dtype="fp8", reach=SGLANG)
    halves = msgspec.structs.replace(serial, two_batch=TwoBatch())
    return RooflineModel(serial).step_ns(shape) / RooflineModel(halves).step_ns(shape) - 1


def test_two_batch_overlap_loses_at_small_batches_and_wins_at_large_ones() -> None:
    """SGLang, decode on EP72: -27 % at 32 tokens a device, even between 64 and 128, +25.5 % at 256 (REFERENCE 4). Only
    the contention is calibrated, and on prefill; here within 8 points, and the sign changes where theirs does."""
    layout = Layout(dp=72, ep=72)
    gain = {n: two_batch_gain(layout, decode(72 * n, 2500)) for n in (32, 64, 128, 256)}
    assert gain[32] == pytest.approx(-0.27, abs=0.08)
    assert gain[64] < 0 < gain[128]
    assert gain[256] == pytest.approx(0.255, abs=0.08)
    assert sorted(gain.values()) == list(gain.values())


def test_two_batch_overlap_gains_in_prefill_as_published() -> None:
    """+27 to 35 % at equal tokens on EP32 (REFERENCE 4): what its contention is calibrated on."""
    assert 0.27 < two_batch_gain(Layout(dp=32, ep=32), prefill(4096, 32 * 2)) < 0.35


@pytest.mark.parametrize(("prompt", "tokens_per_s"), [(1024, 57_674), (2048, 54_543), (4096, 50_302)])
def test_prefill_of_deepseek_on_32_devices_has_the_published_rate(prompt: int, tokens_per_s: float) -> None:
    """SGLang large EP, per node of 8, 16k tokens a device at a time (field/papers 1.4), within 25 %: ours takes experts
    for balanced."""
    serial = deployment("deepseek-v3", layout=Layout(dp=32, ep=32), dtype="fp8", reach=SGLANG)
    roof = RooflineModel(msgspec.structs.replace(serial, two_batch=TwoBatch()))
    got = 8 * 16_384 / roof.step_ns(prefill(prompt, 32 * 16_384 // prompt)) * 1e9
    assert got == pytest.approx(tokens_per_s, rel=0.25)


def test_decode_of_deepseek_on_72_devices_has_the_published_rate() -> None:
    """SGLang large EP: 22,282 tokens per second and node of 8 at 256 requests a device, context about 2k to 3k
    (field/papers 1.4), within 25 %."""
    serial = deployment("deepseek-v3", layout=Layout(dp=72, ep=72), dtype="fp8", reach=SGLANG)
    roof = RooflineModel(msgspec.structs.replace(serial, two_batch=TwoBatch()))
    assert 8 * 256 / roof.step_ns(decode(72 * 256, 2500)) * 1e9 == pytest.approx(22_282, rel=0.25)


def test_narrow_weights_help_only_where_weights_are_read() -> None:
    wide, narrow = (RooflineModel(deployment("llama-3.1-8b", "A100-80G", dtype=dtype)) for dtype in ("bfloat16", "fp8"))
    assert narrow.step_ns(decode(1, 10)) < 0.6 * wide.step_ns(decode(1, 10))
    assert narrow.step_ns(prefill(4096)) == pytest.approx(wide.step_ns(prefill(4096)))  # no fp8 products there


def test_a_dtype_or_link_that_cannot_serve_is_refused() -> None:
    with pytest.raises(ConfigError, match="dtype 'bf16' is unknown"):
        RooflineModel(deployment("llama-3.1-8b", dtype="bf16"))
    with pytest.raises(ConfigError, match="link nvlink-bridge joins at most 2 devices, the group has 4"):
        RooflineModel(
            msgspec.structs.replace(deployment("llama-3.1-8b", layout=Layout(tp=4)), link=find_link("nvlink-bridge"))
        )


def test_context_parallel_ranks_split_the_tokens_of_experts() -> None:
    shape = prefill(65_536)
    one, four = (RooflineModel(deployment("qwen3-30b-a3b", layout=Layout(cp=cp))).step_ns(shape) for cp in (1, 4))
    assert four == pytest.approx(one / 4, rel=0.05)


LAYOUTS = [
    ("llama-3.1-8b", "H100-SXM", Layout(), "bfloat16"),
    ("llama-3.1-70b", "A100-80G", Layout(tp=4, pp=2), "bfloat16"),
    ("llama-3.1-70b", "B200", Layout(tp=2, cp=4), "fp8"),
    ("gpt-oss-120b", "H200", Layout(tp=2), "bfloat16"),
    ("deepseek-v3", "H100-SXM", Layout(dp=32, ep=32), "fp8"),
    ("mixtral-8x7b", "MI300X", Layout(tp=8, dp=2), "bfloat16"),
    ("smollm2-135m", "cpu-2core", Layout(), "float32"),
]


@pytest.mark.parametrize(("model", "device", "layout", "dtype"), LAYOUTS)
def test_more_work_never_takes_less_time(model: str, device: str, layout: Layout, dtype: str) -> None:
    """Whatever the layout: more decodes, context, prompt or history; a step with nothing to do takes time too."""
    roof = RooflineModel(deployment(model, device, layout, dtype, find_efficiency("vllm")))
    for rows in (0, 1, 7, 64, 500):
        for start, count in ((0, 0), (0, 1), (0, 512), (3000, 512), (3000, 4096)):
            chunks = 1 if count else 0
            chunk = (count, pairs(start, count), chunks, (start + count) * chunks)
            base = roof.step_ns(StepShape(rows, rows * 1000, *chunk))
            assert base > 0
            assert roof.step_ns(StepShape(rows, rows * 3000, *chunk)) >= base
            assert roof.step_ns(StepShape(rows + 1, (rows + 1) * 1000, *chunk)) >= base
            longer = (count + 64, pairs(start, count + 64), 1, start + count + 64)
            assert roof.step_ns(StepShape(rows, rows * 1000, *longer)) >= base
            if count:
                later = (count, pairs(start + 500, count), 1, start + 500 + count)
                assert roof.step_ns(StepShape(rows, rows * 1000, *later)) >= base
