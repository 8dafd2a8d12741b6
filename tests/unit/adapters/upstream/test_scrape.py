"""Expositions in the names of each kind (SPEC A5): what is told is read, what is not is unknown."""

import pytest

from headway.adapters.upstream.scrape import Kind, Scraped, ScrapeError, read, samples_of

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.1
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0"} 1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="1"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+06
vllm:request_success_total{engine="0",finished_reason="stop"} 7.0
vllm:request_success_total{engine="0",finished_reason="length"} 1.0
vllm:prefix_cache_queries_total{engine="0"} 900.0
vllm:prefix_cache_hits_total{engine="0"} 300.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.0e9
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"} 2.0e9
process_start_time_seconds 1.7e+09
"""


def test_vllm_adds_up_its_engines() -> None:
    assert read("vllm", VLLM) == Scraped(
        running=4,
        waiting=2,
        kv_usage=0.3,
        kv_blocks_total=200,
        block_size=16,
        adapters=("a", "b"),
        adapters_max=4,
        prompt_tokens=1000,
        generation_tokens=1_500_000,
        requests=8,
        prefix_query_tokens=900,
        prefix_hit_tokens=300,
        started_s=1.7e9,
    )


def test_an_older_name_of_vllm_is_read() -> None:
    text = VLLM.replace(b"kv_cache_usage_perc", b"gpu_cache_usage_perc")
    assert read("vllm", text).kv_usage == 0.3


def test_sglang_counts_one_rank_of_a_group_and_adds_up_data_parallel_ones() -> None:
    text = b"""sglang:num_running_reqs{tp_rank="0",dp_rank="0"} 5
sglang:num_running_reqs{tp_rank="1",dp_rank="0"} 5
sglang:num_running_reqs{tp_rank="0",dp_rank="1"} 2
sglang:num_queue_reqs{tp_rank="0"} 1
sglang:token_usage{tp_rank="0"} 0.25
sglang:max_total_num_tokens{tp_rank="0"} 4000
sglang:cached_tokens_total{tp_rank="0"} 64
"""
    found = read("sglang", text)
    assert (found.running, found.waiting, found.kv_usage) == (7, 1, 0.25)
    assert (found.kv_blocks_total, found.block_size, found.prefix_hit_tokens) == (4000, 1, 64)
    assert found.prompt_tokens is None  # not told is not zero


@pytest.mark.parametrize(
    ("kind", "text", "running", "waiting"),
    [
        ("llamacpp", b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 4\n", 1, 4),
        ("tgi", b"tgi_queue_size 7\ntgi_batch_current_size 3\n", 3, 7),
        (
            "headway",
            b'headway_requests_running{replica="rep-0"} 2.0\nheadway_requests_running{replica="rep-1"} 3.0\n'
            b'headway_requests_waiting{replica="gateway"} 9.0\nheadway_requests_waiting{replica="rep-0"} 1.0\n',
            5,
            10,
        ),
    ],
)
def test_every_kind_has_its_names(kind: Kind, text: bytes, running: int, waiting: int) -> None:
    found = read(kind, text)
    assert (found.running, found.waiting) == (running, waiting)


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-1", b"x", b"1e300", b""])
def test_a_value_that_is_no_count_is_unknown(value: bytes) -> None:
    text = b"vllm:num_requests_running 1\nvllm:num_requests_waiting " + value + b"\n"
    assert read("vllm", text).waiting is None


def test_a_usage_outside_of_its_range_is_unknown() -> None:
    assert read("vllm", b"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 37.5\n").kv_usage is None


@pytest.mark.parametrize("text", [b"", b"\x00\xff{{{ garbage", b"<html>not found</html>", b"sglang:num_running_reqs 1"])
def test_an_exposition_without_the_names_of_its_kind_is_refused(text: bytes) -> None:
    with pytest.raises(ScrapeError, match="none of the names of kind 'vllm'"):
        read("vllm", text)


def test_a_kind_without_metrics_is_refused() -> None:
    with pytest.raises(ScrapeError, match="no metrics"):
        read("openai", VLLM)


def test_a_label_may_hold_what_ends_labels_elsewhere() -> None:
    line = rb'vllm:num_requests_running{model_name="a}b, c=\"d\" e"} 2 1700000000000'
    assert samples_of(line)["vllm_num_requests_running"][0].labels == {"model_name": r"a}b, c=\"d\" e"}
    assert read("vllm", line).running == 2
