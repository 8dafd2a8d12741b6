"""Prometheus metrics of CONTRACT: counted at the edge, observed from evidence records, read from replica reports."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headway.adapters.telemetry.pool_metrics import pool_metrics, shape_moves
from headway.adapters.telemetry.replica_metrics import replica_metrics, step_seconds
from headway.core.evidence import EvidenceRecord
from headway.core.reports import (
    AdmissionFigures,
    PoolFigures,
    PrefixFigures,
    ReplicaFigures,
    ReplicaReport,
    ShapeMoveFigures,
)

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
# 1 ms to 60 s, five per decade: vLLM's begin at 10 ms, too coarse for small models.
BUCKETS_S: Final = (
    0.001, 0.0016, 0.0025, 0.004, 0.0063, 0.01, 0.016, 0.025, 0.04, 0.063, 0.1, 0.16, 0.25, 0.4, 0.63,
    1.0, 1.6, 2.5, 4.0, 6.3, 10.0, 16.0, 25.0, 40.0, 60.0,
)  # fmt: skip
_PREFIX: Final = (
    ("predicted_tokens", "Prompt tokens that the router took to be cached."),
    ("reported_tokens", "Prompt tokens that replicas then said were cached."),
    ("overpredicted_tokens", "Predicted beyond what was cached."),
    ("underpredicted_tokens", "Cached beyond what was predicted."),
)


class Scrape(msgspec.Struct, frozen=True):
    """Live numbers at the time of a scrape."""

    reports: Sequence[ReplicaReport] = ()
    waiting: int = 0  # in the gateway's queue
    admissions: Sequence[tuple[str, int]] = ()
    exports_lost: Sequence[tuple[str, int]] = ()
    prefixes: Sequence[PrefixFigures] = ()
    predictions: Sequence[AdmissionFigures] = ()
    recoveries: Sequence[tuple[str, int]] = ()
    replicas: Sequence[ReplicaFigures] = ()
    jobs: Sequence[tuple[str, int]] = ()
    held: Sequence[str] = ()  # queues of jobs that are paused
    webhooks: Sequence[tuple[str, int]] = ()  # attempts at delivery, by outcome
    pools: Sequence[PoolFigures] = ()
    shape_moves: Sequence[ShapeMoveFigures] = ()


class Metrics:
    """One registry. Cold requests have a class of their own in every histogram (`cold="true"`)."""

    def __init__(self, scrape: Callable[[], Scrape], *, vllm_aliases: bool = False) -> None:
        """`scrape` is called once per `render`."""
        # A series per counter that nothing reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "headway_requests", "Sequences that ended, by outcome; refused bodies count as `invalid`.", ["outcome"],
            registry=self.registry,
        )  # fmt: skip
        self._device = Counter(
            "headway_gpu_seconds", "Device seconds used.", ["tenant", "model"], registry=self.registry
        )
        self._spent: dict[tuple[str, str], Counter] = {}
        self._series: dict[tuple[Counter, str], Counter] = {}
        self._prompt = self._counter("headway_prompt_tokens", "Prompt tokens of sequences that began to answer.")
        self._generated = self._counter("headway_generation_tokens", "Tokens emitted, stop tokens included.")
        self._seconds = {
            name: Histogram(
                f"headway_request_{name}_seconds", text, ["cold"], buckets=BUCKETS_S, registry=self.registry
            )
            for name, text in (
                ("ttft", "First byte of the request to its first token at the client's stream."),
                ("tpot", "Time per output token after the first."),
                ("e2e", "First byte of the request to the last byte of its answer."),
                ("queue", "Time in all queues."),
            )
        }
        self._warm = tuple(histogram.labels("false") for histogram in self._seconds.values())
        self.registry.register(_Live(scrape, self, vllm_aliases))

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model"], registry=self.registry)

    def prompt_tokens(self, model: str, count: int) -> None:
        """Count the prompt of a sequence that began to answer."""
        self._of(self._prompt, model).inc(count)

    def generated_tokens(self, model: str, count: int) -> None:
        """Count tokens as they are emitted."""
        self._of(self._generated, model).inc(count)

    def _of(self, counter: Counter, label: str) -> Counter:
        """Return the counter's series; the library's own look-up costs twice the increment."""
        key = (counter, label)
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = counter.labels(label)
        return found

    def refused(self) -> None:
        """Count a request whose body, key or model was refused at the edge."""
        self._requests.labels("invalid").inc()

    def observe(self, record: EvidenceRecord) -> None:
        """Take the record of an ended sequence."""
        self._of(self._requests, record.outcome).inc()
        values = (record.ttft_ms, record.tpot_ms, record.e2e_ms, record.queue_wait_ms)
        series = self._cold if record.cold_start else self._warm
        for histogram, value in zip(series, values, strict=True):
            if value is not None:
                histogram.observe(value / 1000)
        if record.device_ms is not None and record.model is not None:
            self._spend(record.tenant, record.model, record.device_ms / 1000)

    def _spend(self, tenant: str, model: str, seconds: float) -> None:
        """Count device time of the model that ran."""
        found = self._spent.get((tenant, model))
        if found is None:
            found = self._spent[tenant, model] = self._device.labels(tenant, model)
        found.inc(seconds)

    @cached_property
    def _cold(self) -> tuple[Histogram, ...]:
        """The series of cold requests: not there before the first one."""
        return tuple(histogram.labels("true") for histogram in self._seconds.values())

    def render(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def own(self) -> Iterator[tuple[str, Metric]]:
        """The edge's metrics under the names that vLLM gives to the same things."""
        pairs = (
            ("vllm:time_to_first_token_seconds", self._seconds["ttft"]),
            ("vllm:request_time_per_output_token_seconds", self._seconds["tpot"]),
            ("vllm:e2e_request_latency_seconds", self._seconds["e2e"]),
            ("vllm:request_queue_time_seconds", self._seconds["queue"]),
            ("vllm:prompt_tokens", self._prompt),
            ("vllm:generation_tokens", self._generated),
        )
        for name, source in pairs:
            for metric in source.collect():
                yield name, metric


class _Live(Collector):
    """What is read at the scrape: replica reports."""

    def __init__(self, scrape: Callable[[], Scrape], metrics: Metrics, vllm_aliases: bool) -> None:
        self._scrape, self._metrics, self._aliases = scrape, metrics, vllm_aliases

    def describe(self) -> Iterable[Metric]:
        """Nothing is scraped at registration, when no replica reports yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        scrape = self._scrape()
        yield from _gauges(scrape)
        yield from _counters(scrape)
        yield from _prefixes(scrape.prefixes)
        yield from _predictions(scrape.predictions)
        yield from replica_metrics(scrape.replicas)
        yield from pool_metrics(scrape.pools)
        yield shape_moves(scrape.shape_moves)
        yield step_seconds(scrape.reports)
        if self._aliases:
            yield from _vllm(scrape)
            for name, metric in self._metrics.own():
                yield _renamed(metric, name)


def _gauges(scrape: Scrape) -> Iterator[Metric]:
    running = _per_replica("headway_requests_running", "Sequences in the running batch.")
    waiting = _per_replica("headway_requests_waiting", "Sequences that wait; replica `gateway`: the global queue.")
    used = _per_replica("headway_kv_blocks_used", "KV blocks referenced or fenced.")
    total = _per_replica("headway_kv_blocks_total", "KV blocks.")
    waiting.add_metric(["gateway"], scrape.waiting)
    for report in scrape.reports:
        running.add_metric([report.replica], report.running)
        waiting.add_metric([report.replica], report.waiting)
        used.add_metric([report.replica], report.kv_blocks_total - report.kv_blocks_free)
        total.add_metric([report.replica], report.kv_blocks_total)
    yield from (running, waiting, used, total)


def _per_replica(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["replica"])


def _counters(scrape: Scrape) -> Iterator[Metric]:
    for name, key, text in (
        ("headway_prefix_cache_hit_tokens", "prefix_hit_tokens", "Prompt tokens found in the prefix cache."),
        ("headway_prefix_cache_query_tokens", "prefix_query_tokens", "Prompt tokens looked up in the prefix cache."),
        ("headway_preemptions", "preemptions", "Sequences preempted."),
        ("headway_text_embedding_hits", "text_cache_hits", "Prompts of pictures that were encoded before."),
        ("headway_image_embedding_hits", "image_cache_hits", "Image prompts that were encoded before."),
        ("headway_step_rows", "step_rows", "Rows that steps computed, padding included."),
        ("headway_step_padded_rows", "step_padded_rows", "Rows of padding that steps computed."),
    ):
        family = CounterMetricFamily(name, text, labels=["replica"])
        for report in scrape.reports:
            family.add_metric([report.replica], dict(report.counters).get(key, 0))
        yield family
    held = [(model, 1) for model in scrape.held]
    told = CounterMetricFamily("headway_webhook_deliveries", "Attempts to deliver a webhook.", labels=["outcome"])
    for pairs, counter in (
        (scrape.admissions, CounterMetricFamily("headway_admission", "Admission verdicts.", labels=["verdict"])),
        (scrape.jobs, GaugeMetricFamily("headway_jobs", "Rows of the job table.", labels=["state"])),
        (held, GaugeMetricFamily("headway_queue_paused", "Queues of jobs that are paused.", labels=["model"])),
        (scrape.webhooks, told),
        (scrape.exports_lost, CounterMetricFamily("headway_evidence_lost", "Lost by a sink.", labels=["sink"])),
        (scrape.recoveries, CounterMetricFamily("headway_recovery", "What failed and was met.", labels=["event"])),
    ):
        for label, count in pairs:
            counter.add_metric([label], count)
        yield counter


def _prefixes(figures: Sequence[PrefixFigures]) -> Iterator[Metric]:
    """What the gateway believed to be cached against what replicas said."""
    counts = [(f.model, (f.predicted_tokens, f.reported_tokens, f.over_tokens, f.under_tokens)) for f in figures]
    for place, (name, text) in enumerate(_PREFIX):
        family = CounterMetricFamily(f"headway_prefix_{name}", text, labels=["model"])
        for model, values in counts:
            family.add_metric([model], values[place])
        yield family
    text = "Dispatches, by whether routing could look at their prefix."
    family = CounterMetricFamily("headway_prefix_dispatches", text, labels=["model", "hashed"])
    for known in figures:
        family.add_metric([known.model, "true"], known.dispatches - known.unhashed)
        family.add_metric([known.model, "false"], known.unhashed)
    yield family


def _predictions(predictions: Sequence[AdmissionFigures]) -> Iterator[Metric]:
    coverage = GaugeMetricFamily(
        "headway_admission_prediction_coverage",
        "Share of answers within the bound that admission predicted.",
        labels=["model", "promise"],
    )
    false = GaugeMetricFamily(
        "headway_admission_false_reject_ratio",
        "Share of refused requests that would have kept their SLO, by a sample that ran all the same.",
        labels=["model"],
    )
    quantile = GaugeMetricFamily(
        "headway_admission_quantile", "Quantile at which admission predicts now.", labels=["model"]
    )
    for figures in predictions:
        for promise, share in figures.coverage:
            if share is not None:
                coverage.add_metric([figures.model, promise], share)
        if figures.false_rejects is not None:
            false.add_metric([figures.model], figures.false_rejects)
        quantile.add_metric([figures.model], figures.quantile)
    yield from (coverage, false, quantile)


def _vllm(scrape: Scrape) -> Iterator[Metric]:
    reports = scrape.reports
    free, total = sum(r.kv_blocks_free for r in reports), sum(r.kv_blocks_total for r in reports)
    gauges = (
        ("vllm:num_requests_running", sum(r.running for r in reports)),
        ("vllm:num_requests_waiting", scrape.waiting + sum(r.waiting for r in reports)),
        ("vllm:kv_cache_usage_perc", (total - free) / total if total else 0.0),
    )
    for name, value in gauges:
        yield GaugeMetricFamily(name, "Alias in vLLM's names.", value=value)
    for name, key in (
        ("vllm:prefix_cache_queries", "prefix_query_tokens"),
        ("vllm:prefix_cache_hits", "prefix_hit_tokens"),
        ("vllm:num_preemptions", "preemptions"),
    ):
        count = sum(dict(r.counters).get(key, 0) for r in reports)
        yield CounterMetricFamily(name, "Alias in vLLM's names.", value=count)


def _renamed(metric: Metric, name: str) -> Metric:
    """The same samples under another name."""
    copy = Metric(name, "Alias in vLLM's names.", metric.type)
    for sample in metric.samples:
        if not sample.name.endswith("_created"):
            copy.add_sample(name + sample.name.removeprefix(metric.name), sample.labels, sample.value)
    return copy
