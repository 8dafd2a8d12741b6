"""Reads what an upstream's `/metrics` says, by the names of its kind. What is missing is unknown, never zero."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

import msgspec

from headway.core.errors import HeadwayError

Kind = Literal["vllm", "sglang", "llamacpp", "tgi", "headway", "openai"]
COUNT_MAX: Final = 10_000_000  # of requests or blocks: more is no measurement

_LINE: Final = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)(?:\s+-?\d+)?\s*')
_LABEL: Final = re.compile(r'([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_NAME: Final = re.compile(rb"(?:vllm|sglang|llamacpp|tgi|headway|process)[\w:]*")
_READ: Final = frozenset(
    b"""
    headway_generation_tokens
    headway_kv_blocks
    headway_kv_blocks_used
    headway_prefix_cache_hit_tokens
    headway_prefix_cache_query_tokens
    headway_prompt_tokens
    headway_requests
    headway_requests_running
    headway_requests_waiting
    llamacpp_kv_cache_usage_ratio
    llamacpp_prompt_tokens
    llamacpp_requests_deferred
    llamacpp_requests_processing
    llamacpp_tokens_predicted
    process_start_time_seconds
    sglang_cached_tokens
    sglang_generation_tokens
    sglang_max_total_num_tokens
    sglang_num_queue_reqs
    sglang_num_requests
    sglang_num_running_reqs
    sglang_num_used_tokens
    sglang_page_size
    sglang_prompt_tokens
    sglang_token_usage
    tgi_batch_current_size
    tgi_queue_size
    tgi_request_generated_tokens_sum
    tgi_request_input_length_sum
    tgi_request_success
    vllm_cache_config_info
    vllm_generation_tokens
    vllm_gpu_cache_usage_perc
    vllm_gpu_prefix_cache_hits
    vllm_gpu_prefix_cache_queries
    vllm_kv_cache_usage_perc
    vllm_lora_requests_info
    vllm_num_requests_running
    vllm_num_requests_waiting
    vllm_prefix_cache_hits
    vllm_prefix_cache_queries
    vllm_prompt_tokens
    vllm_request_success
    """.split()
)


class ScrapeError(HeadwayError):
    """An exposition that says nothing of what was looked for."""


class Sample(msgspec.Struct, frozen=True):
    """One line of an exposition. Of a name, the colon of vLLM and SGLang is an underscore."""

    labels: Mapping[str, str]
    value: float


Samples = Mapping[str, list[Sample]]


class Scraped(msgspec.Struct, frozen=True):
    """An upstream's state as it told it. None: it does not tell."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None  # [0, 1]
    kv_blocks_total: int | None = None
    block_size: int | None = None  # tokens
    adapters: tuple[str, ...] | None = None  # LoRA names that run now
    adapters_max: int | None = None
    prompt_tokens: int | None = None  # counters, since its start
    generation_tokens: int | None = None
    requests: int | None = None
    prefix_query_tokens: int | None = None
    prefix_hit_tokens: int | None = None
    started_s: float | None = None  # Unix time of its start

    @property
    def progress(self) -> tuple[int | None, ...]:
        """The counters that move when it works; all None when it has none."""
        return self.prompt_tokens, self.generation_tokens, self.requests


def samples_of(exposition: bytes) -> Samples:
    """Every sample of a known name that is a finite number. Lines that are no samples are skipped."""
    found: dict[str, list[Sample]] = {}
    for raw in exposition.split(b"\n"):
        # Most of a page is buckets of histograms: they are passed over before anything costs time.
        head = _NAME.match(raw)
        if head is None or head[0].replace(b":", b"_", 1).removesuffix(b"_total") not in _READ:
            continue
        match = _LINE.fullmatch(raw.decode("utf-8", "replace"))
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            name = match[1].replace(":", "_", 1)
            found.setdefault(name, []).append(Sample(dict(_LABEL.findall(match[2] or "")), value))
    return found


def read(kind: Kind, exposition: bytes) -> Scraped:
    """The state of an upstream of `kind`. Raises ScrapeError when neither running nor waiting requests are told."""
    reader = _READERS.get(kind)
    if reader is None:
        raise ScrapeError(f"servers of kind {kind!r} have no metrics that are known")
    samples = samples_of(exposition)
    scraped = reader(samples)
    if scraped.running is None and scraped.waiting is None:
        raise ScrapeError(f"its metrics ({len(exposition)} bytes) have none of the names of kind {kind!r}")
    starts = [sample.value for sample in samples.get("process_start_time_seconds", ())]
    return msgspec.structs.replace(scraped, started_s=max(starts)) if starts else scraped


def _vllm(samples: Samples) -> Scraped:
    configs = samples.get("vllm_cache_config_info", [])
    sizes = [_whole(config.labels.get("block_size")) for config in configs]
    blocks = [_whole(config.labels.get("num_gpu_blocks")) for config in configs]
    adapters, adapters_max = _vllm_adapters(samples)
    return Scraped(
        running=_count(samples, "vllm_num_requests_running"),
        waiting=_count(samples, "vllm_num_requests_waiting"),
        kv_usage=_share(samples, "vllm_kv_cache_usage_perc", "vllm_gpu_cache_usage_perc"),
        kv_blocks_total=_sum_known(blocks),
        block_size=sizes[0] if sizes else None,
        adapters=adapters,
        adapters_max=adapters_max,
        prompt_tokens=_counter(samples, "vllm_prompt_tokens"),
        generation_tokens=_counter(samples, "vllm_generation_tokens"),
        requests=_counter(samples, "vllm_request_success"),
        prefix_query_tokens=_counter(samples, "vllm_prefix_cache_queries", "vllm_gpu_prefix_cache_queries"),
        prefix_hit_tokens=_counter(samples, "vllm_prefix_cache_hits", "vllm_gpu_prefix_cache_hits"),
    )


def _vllm_adapters(samples: Samples) -> tuple[tuple[str, ...] | None, int | None]:
    """Each set of adapters that ever ran has a series of its own, whose value is when it last did."""
    series = samples.get("vllm_lora_requests_info")
    if not series:
        return None, None
    latest = max(series, key=lambda sample: sample.value)
    running = latest.labels.get("running_lora_adapters", "")
    names = dict.fromkeys(name.strip() for name in running.split(",") if name.strip())
    return tuple(names), _whole(latest.labels.get("max_lora"))


def _sglang(samples: Samples) -> Scraped:
    """Ranks of a tensor- or pipeline-parallel group may tell the same: rank 0 counts. Data-parallel ranks add up."""
    first = {name: [s for s in found if _is_first_rank(s)] for name, found in samples.items()}
    page = _count(first, "sglang_page_size") or None
    tokens, used = _count(first, "sglang_max_total_num_tokens"), _count(first, "sglang_num_used_tokens")
    usage = _share(first, "sglang_token_usage")
    if usage is None and tokens and used is not None:
        usage = min(1.0, used / tokens)
    return Scraped(
        running=_count(first, "sglang_num_running_reqs"),
        waiting=_count(first, "sglang_num_queue_reqs"),
        kv_usage=usage,
        kv_blocks_total=None if tokens is None else tokens // (page or 1),
        block_size=None if tokens is None else page or 1,  # its radix cache counts single tokens
        prompt_tokens=_counter(first, "sglang_prompt_tokens"),
        generation_tokens=_counter(first, "sglang_generation_tokens"),
        requests=_counter(first, "sglang_num_requests"),
        prefix_query_tokens=_counter(first, "sglang_prompt_tokens"),
        prefix_hit_tokens=_counter(first, "sglang_cached_tokens"),
    )


def _is_first_rank(sample: Sample) -> bool:
    return all(sample.labels.get(rank, "0") == "0" for rank in ("tp_rank", "pp_rank"))


def _llamacpp(samples: Samples) -> Scraped:
    return Scraped(
        running=_count(samples, "llamacpp_requests_processing"),
        waiting=_count(samples, "llamacpp_requests_deferred"),
        kv_usage=_share(samples, "llamacpp_kv_cache_usage_ratio"),  # older servers
        prompt_tokens=_counter(samples, "llamacpp_prompt_tokens"),
        generation_tokens=_counter(samples, "llamacpp_tokens_predicted"),
    )


def _tgi(samples: Samples) -> Scraped:
    return Scraped(
        running=_count(samples, "tgi_batch_current_size"),
        waiting=_count(samples, "tgi_queue_size"),
        prompt_tokens=_counter(samples, "tgi_request_input_length_sum"),
        generation_tokens=_counter(samples, "tgi_request_generated_tokens_sum"),
        requests=_counter(samples, "tgi_request_success"),
    )


def _headway(samples: Samples) -> Scraped:
    """Its gateway's own queue waits too."""
    total, used = _count(samples, "headway_kv_blocks_total"), _count(samples, "headway_kv_blocks_used")
    return Scraped(
        running=_count(samples, "headway_requests_running"),
        waiting=_count(samples, "headway_requests_waiting"),
        kv_usage=None if not total or used is None else min(1.0, used / total),
        kv_blocks_total=total,
        prompt_tokens=_counter(samples, "headway_prompt_tokens"),
        generation_tokens=_counter(samples, "headway_generation_tokens"),
        requests=_counter(samples, "headway_requests"),
        prefix_query_tokens=_counter(samples, "headway_prefix_cache_query_tokens"),
        prefix_hit_tokens=_counter(samples, "headway_prefix_cache_hit_tokens"),
    )


_READERS: Final[Mapping[Kind, Callable[[Samples], Scraped]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llamacpp": _llamacpp,
    "tgi": _tgi,
    "headway": _headway,
}


def _values(samples: Samples, *names: str) -> Iterator[float]:
    """Values of the first of the names that is there."""
    for name in names:
        if name in samples:
            yield from (sample.value for sample in samples[name])
            return


def _count(samples: Samples, *names: str) -> int | None:
    """The sum over all series; None when it is not there, or cannot be."""
    values = list(_values(samples, *names))
    if not values or min(values) < 0 or sum(values) > COUNT_MAX:
        return None
    return round(sum(values))


def _counter(samples: Samples, *names: str) -> int | None:
    """A counter, with or without the suffix that newer clients add."""
    values = list(_values(samples, *(variant for name in names for variant in (f"{name}_total", name))))
    return round(sum(values)) if values and min(values) >= 0 else None


def _share(samples: Samples, *names: str) -> float | None:
    """The mean over all series of a share; None unless every one is in [0, 1]."""
    values = list(_values(samples, *names))
    if not values or min(values) < 0 or max(values) > 1:
        return None
    return sum(values) / len(values)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,7}", text) else None


def _sum_known(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
