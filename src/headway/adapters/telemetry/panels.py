"""The graphs of the Grafana dashboard, in its order."""

from typing import Final

import msgspec


class Panel(msgspec.Struct, frozen=True):
    """One graph: its queries by legend."""

    title: str
    unit: str  # of Grafana's list
    queries: tuple[tuple[str, str], ...]  # (legend, PromQL)
    text: str = ""


def _rate(name: str, by: str) -> str:
    return f"sum by ({by}) (rate({name}[$__rate_interval]))"


def _quantiles(name: str) -> tuple[tuple[str, str], ...]:
    # Cold requests are a class of their own and never averaged with the others.
    buckets = f'sum by (le) (rate({name}_bucket{{cold="false"}}[$__rate_interval]))'
    return tuple((f"p{q}", f"histogram_quantile({q / 100:g}, {buckets})") for q in (50, 95, 99))


_TTFT: Final = "headway_request_ttft_seconds"
PANELS: Final = (
    Panel("Time to first token", "s", _quantiles(_TTFT), "Hot requests."),
    Panel("Time per output token", "s", _quantiles("headway_request_tpot_seconds"), "Hot requests."),
    Panel("End to end", "s", _quantiles("headway_request_e2e_seconds"), "Hot requests."),
    Panel("Time in queues", "s", _quantiles("headway_request_queue_seconds"), "Hot requests, all queues."),
    Panel(
        "Cold requests: time to first token",
        "s",
        (
            (
                "p95",
                f'histogram_quantile(0.95, sum by (le) (rate({_TTFT}_bucket{{cold="true"}}[$__rate_interval])))',
            ),
        ),
        "Those that waited for a model to load.",
    ),
    Panel("Requests that ended", "reqps", (("{{outcome}}", _rate("headway_requests_total", "outcome")),)),
    Panel("Admission verdicts", "reqps", (("{{verdict}}", _rate("headway_admission_total", "verdict")),)),
    Panel(
        "Admission: how its predictions hold",
        "percentunit",
        (
            ("within the bound {{promise}}", "headway_admission_prediction_coverage"),
            ("refused and would have kept its SLO", "headway_admission_false_reject_ratio"),
            ("quantile", "headway_admission_quantile"),
        ),
        "Coverage should follow the quantile.",
    ),
    Panel(
        "Sequences",
        "short",
        (
            ("running {{replica}}", "headway_requests_running"),
            ("waiting {{replica}}", "headway_requests_waiting"),
        ),
        "`gateway` is the global queue.",
    ),
    Panel(
        "Tokens",
        "short",
        (
            ("prompt {{model}}", _rate("headway_prompt_tokens_total", "model")),
            ("generated {{model}}", _rate("headway_generation_tokens_total", "model")),
        ),
        "Per second.",
    ),
    Panel("KV blocks in use", "percentunit", (("{{replica}}", "headway_kv_blocks_used / headway_kv_blocks_total"),)),
    Panel(
        "Prefix cache hits",
        "percentunit",
        (
            (
                "{{replica}}",
                f"{_rate('headway_prefix_cache_hit_tokens_total', 'replica')} / "
                f"{_rate('headway_prefix_cache_query_tokens_total', 'replica')}",
            ),
        ),
        "Share of the prompt tokens that were looked up.",
    ),
    Panel(
        "Prefix knowledge",
        "short",
        (
            ("predicted {{model}}", _rate("headway_prefix_predicted_tokens_total", "model")),
            ("reported {{model}}", _rate("headway_prefix_reported_tokens_total", "model")),
            ("predicted, not cached {{model}}", _rate("headway_prefix_overpredicted_tokens_total", "model")),
            ("cached, not predicted {{model}}", _rate("headway_prefix_underpredicted_tokens_total", "model")),
        ),
        "Cached prompt tokens per second, as the router believed and as replicas said.",
    ),
    Panel(
        "Dispatches by prefix",
        "short",
        (("{{model}} hashed {{hashed}}", _rate("headway_prefix_dispatches_total", "model, hashed")),),
        "Per second; without hashes routing cannot look at prefixes.",
    ),
    Panel(
        "Embedding cache hits",
        "short",
        (
            ("words {{replica}}", _rate("headway_text_embedding_hits_total", "replica")),
            ("pictures {{replica}}", _rate("headway_image_embedding_hits_total", "replica")),
        ),
        "Prompts and image prompts of pictures that were encoded before, per second.",
    ),
    Panel("Preemptions", "short", (("{{replica}}", _rate("headway_preemptions_total", "replica")),), "Per second."),
    Panel(
        "Padding",
        "percentunit",
        (
            (
                "{{replica}}",
                f"{_rate('headway_step_padded_rows_total', 'replica')} / {_rate('headway_step_rows_total', 'replica')}",
            ),
        ),
        "Share of the rows of steps that are padding, to bucket sizes and captured graphs.",
    ),
    Panel(
        "Engine step",
        "s",
        (
            (
                "{{replica}}",
                f"{_rate('headway_scheduler_step_seconds_sum', 'replica')} / "
                f"{_rate('headway_scheduler_step_seconds_count', 'replica')}",
            ),
        ),
        "Mean time.",
    ),
    Panel(
        "Garbage collector",
        "s",
        (
            ("longest {{replica}}", "headway_gc_pause_longest_seconds"),
            (
                "mean {{replica}} {{generation}}",
                f"{_rate('headway_gc_pause_seconds_sum', 'replica, generation')} / "
                f"{_rate('headway_gc_pause_seconds_count', 'replica, generation')}",
            ),
        ),
        "Pauses between steps. Full passes come only while nothing runs, or when none came for a quarter of an hour.",
    ),
    Panel(
        "Device seconds",
        "short",
        (("{{tenant}} {{model}}", _rate("headway_gpu_seconds_total", "tenant, model")),),
        "Per second, by the model that ran.",
    ),
    Panel("Failures met", "short", (("{{event}}", _rate("headway_recovery_total", "event")),), "Per second."),
    Panel("Usable replicas", "short", (("{{replica}}", "headway_replica_usable"),), "By state, health and breaker."),
    Panel(
        "Warm-up: passes until the allocator had settled",
        "short",
        (("{{replica}}", "headway_replica_settle_passes"),),
        "0 on devices without a caching allocator. A replica whose allocator does not settle is not ready.",
    ),
    Panel("Device memory held after warm-up", "bytes", (("{{replica}}", "headway_replica_reserved_bytes"),)),
    Panel(
        "Jobs",
        "short",
        (("{{state}}", "headway_jobs"),),
        "Videos and asynchronous pictures in the job table, by state.",
    ),
    Panel(
        "Webhooks",
        "short",
        (("{{outcome}}", _rate("headway_webhook_deliveries_total", "outcome")),),
        "Attempts per second; what is given up is told to nobody, and the log has its reason.",
    ),
    Panel(
        "Streaming sessions",
        "short",
        (
            ("open", "headway_video_sessions_open"),
            ("{{model}} chunks sent", _rate("headway_video_chunks_total", "model")),
            ("{{model}} chunks late", _rate("headway_video_chunks_late_total", "model")),
        ),
        "Chunks per second; late ones came after they were to be played.",
    ),
    Panel("Paused queues", "short", (("{{model}}", "headway_queue_paused"),), "1 while no job of a model is begun."),
    Panel(
        "Replicas: has and wants",
        "short",
        (
            ("{{model}} {{pool}} has", "headway_pool_replicas"),
            ("{{model}} {{pool}} wants", "headway_pool_replicas_wanted"),
            ("{{model}} {{pool}} wish", "headway_pool_wish"),
        ),
        "Scaling signals of every pool, with front.scaling set.",
    ),
    Panel(
        "Shape moves",
        "short",
        (("{{model}} {{outcome}}", "sum by (model, outcome) (increase(headway_shape_moves_total[1h]))"),),
        "Replicas that changed their shape pool within an hour, with fleet.shape_pools set.",
    ),
    Panel(
        "Expected wait",
        "s",
        (
            ("{{model}} {{pool}} now", "headway_pool_expected_wait_seconds"),
            ("{{model}} {{pool}} when a new one serves", "headway_pool_predicted_wait_seconds"),
        ),
        "Of a request that comes now.",
    ),
    Panel("Evidence lost", "short", (("{{sink}}", _rate("headway_evidence_lost_total", "sink")),), "Per second."),
)
