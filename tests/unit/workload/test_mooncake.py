from itertools import pairwise
from pathlib import Path

import pytest

from headway.core.blockhash import block_hashes, cache_root
from headway.core.errors import ConfigError
from headway.core.units import NS_PER_MS
from headway.workload.mooncake import (
    BLOCK_TOKENS,
    Deadlines,
    Slice,
    lru_reuse,
    prompt_of,
    read_trace,
    requests,
)

ROOT = Path(__file__).parents[3]
HEAD = ROOT / "tests/sim/mooncake_head.jsonl"  # first 300 rows; kvcache-ai/Mooncake, FAST25-release, Apache-2.0
WHOLE = ROOT.parent / "shared/data/traces/mooncake_conversation.jsonl"


def test_prompts_are_equal_exactly_as_far_as_their_hash_ids_are() -> None:
    rows = read_trace(HEAD)
    for first, second in pairwise(rows):
        shared = next(
            (i for i, (a, b) in enumerate(zip(first.hash_ids, second.hash_ids, strict=False)) if a != b),
            min(len(first.hash_ids), len(second.hash_ids)),
        )
        a, b = prompt_of(first), prompt_of(second)
        same = min(shared * BLOCK_TOKENS, len(a), len(b))
        assert a[:same] == b[:same]
        assert same in (len(a), len(b)) or a[same] != b[same]


def test_a_prompt_is_as_long_as_the_trace_says() -> None:
    for offered, row in zip(requests(read_trace(HEAD), Slice(count=50), "m"), read_trace(HEAD), strict=False):
        assert offered.request.prompt_tokens == row.input_length
        assert len(offered.request.block_hashes) == row.input_length // BLOCK_TOKENS
        assert offered.output_tokens == row.output_length


def test_block_hashes_are_those_of_the_prompt() -> None:  # SPEC B2
    request = next(requests(read_trace(HEAD), Slice(count=1), "m")).request
    assert request.block_hashes == block_hashes(cache_root(model="m"), request.prompt, BLOCK_TOKENS)


def test_the_answers_length_is_not_told() -> None:
    request = next(requests(read_trace(HEAD), Slice(count=1, max_tokens=777), "m")).request
    assert request.max_tokens == 777
    assert not request.ignores_eos
    assert request.output_tokens_predicted is None


def test_a_slice_brings_its_tokens_per_second_whatever_its_place_and_seed() -> None:
    rows = read_trace(HEAD)
    for part in (Slice(count=200, prompt_tokens_per_s=50_000.0), Slice(skip=90, count=200, seed=5)):
        offered = [item.request for item in requests(rows, part, "m")]
        span_s = (offered[-1].arrived_ns - offered[0].arrived_ns) / 1e9
        tokens = sum(request.prompt_tokens for request in offered)
        assert tokens / span_s == pytest.approx(part.prompt_tokens_per_s)


def test_bursts_of_the_traces_rounding_are_spread_and_stay_in_order() -> None:
    offered = [item.request for item in requests(read_trace(HEAD), Slice(count=300), "m")]
    times = [request.arrived_ns for request in offered]
    assert times == sorted(times)
    assert len(set(times)) == 300


def test_seeds_move_the_times_only() -> None:
    one, two = (
        [item.request for item in requests(read_trace(HEAD), Slice(count=40, seed=seed), "m")] for seed in (1, 2)
    )
    assert [request.arrived_ns for request in one] != [request.arrived_ns for request in two]
    assert [request.prompt for request in one] == [request.prompt for request in two]


def test_deadlines_grow_with_the_prompt() -> None:  # SMetric, arXiv 2607.08565
    due = Deadlines(ttft_ms=1000.0, ttft_ms_per_1k=62.5)
    assert due.ttft_ns(16_000) == 2000 * NS_PER_MS
    request = next(requests(read_trace(HEAD), Slice(count=1, deadlines=due), "m")).request
    assert request.slo.ttft_deadline_ns == request.arrived_ns + due.ttft_ns(request.prompt_tokens)


def test_a_slice_beyond_the_trace_is_refused() -> None:
    with pytest.raises(ConfigError, match="beyond the 300"):
        list(requests(read_trace(HEAD), Slice(skip=1, count=300), "m"))


def test_a_file_that_is_no_trace_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(HEAD.read_text().splitlines()[0] + "\n{}\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_trace(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "none")


@pytest.mark.skipif(not WHOLE.exists(), reason="the whole trace is not on this machine")
@pytest.mark.parametrize(
    ("tokens", "share"), [(None, 0.3664), (3_000_000, 0.1361), (10_000_000, 0.2852), (50_000_000, 0.3635)]
)
def test_reuse_of_the_whole_trace_is_the_published_one(tokens: int | None, share: float) -> None:  # REFERENCE 4
    rows = read_trace(WHOLE)
    assert lru_reuse(rows, None if tokens is None else tokens // BLOCK_TOKENS) == pytest.approx(share, abs=5e-5)
