"""Looks at the pools of a front now and then, and records when one should have more or fewer replicas (SPEC A12)."""

from collections.abc import Sequence
from typing import Final

from headway.core.decisions import Alternative, Decision
from headway.core.effects import Effect, Record, WakeAt
from headway.core.ids import ModelId, NodeId, TimerId
from headway.core.reports import PoolFigures
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns, ns_from_s, s_from_ns
from headway.sched.admission.queue import GlobalQueue
from headway.sched.book import Book
from headway.sched.fleet.scaling import Pool, PoolLoad, Scaling, ScalingParams
from headway.sched.router.fleet_view import Replica
from headway.sched.router.machine import PdPools, Router

SCALE_TIMER: Final = TimerId("scale")
SMOOTHING: Final = 0.9  # weight of the past in a rate of arrival, per look


class ScalingWatch:
    """Appends what must be done to `out`. It looks while there are requests, and until an idle pool has shrunk."""

    def __init__(
        self, params: ScalingParams, book: Book, router: Router, queue: GlobalQueue, pools: PdPools, out: list[Effect]
    ) -> None:
        self.figures: tuple[PoolFigures, ...] = ()
        self._scaling, self._book, self._router, self._queue = Scaling(params), book, router, queue
        self._pools, self._out = pools, out
        self._interval_ns = ns_from_s(params.interval_s)
        self._idle_ns = ns_from_s(params.idle_s) + self._interval_ns
        self._is_set = False
        self._busy_ns: Ns = 0  # when there was a request last
        self._slo_ns: dict[ModelId, Ns] = {}  # the tightest since the last look
        self._asked: dict[Pool, None] = {}  # pools that requests came for, with replicas or without
        self._wanted: dict[Pool, int] = {}
        self._come: dict[ModelId, tuple[int, int]] = {}  # requests and prompt tokens since the last look
        self._rates: dict[ModelId, tuple[float, float]] = {}  # of these per second, smoothed

    def arrived(self, request: Request, at_ns: Ns) -> None:
        """A request came: there is something to look at."""
        self._busy_ns = at_ns
        due_ns = request.slo.ttft_deadline_ns
        if due_ns is not None:
            slo_ns = max(1, due_ns - request.arrived_ns)
            self._slo_ns[request.model] = min(slo_ns, self._slo_ns.get(request.model, slo_ns))
        count, tokens = self._come.get(request.model, (0, 0))
        prompt = 0 if isinstance(request, DiffusionRequest) else request.prompt_tokens
        self._come[request.model] = count + 1, tokens + prompt
        self._asked[request.model, "prefill" if self._pools.prefill else "mixed"] = None
        self._set(at_ns)

    def _set(self, at_ns: Ns) -> None:
        if not self._is_set:
            self._is_set = True
            self._out.append(WakeAt(at_ns + self._interval_ns, SCALE_TIMER))

    def look(self, at_ns: Ns) -> None:
        """The timer fired."""
        self._is_set = False
        self._smooth()
        self.figures = tuple(self._scaling.look(self._loads(at_ns), at_ns))
        self._slo_ns.clear()
        for figures in self.figures:
            self._tell(figures, at_ns)
        if self._book.requests:
            self._busy_ns = at_ns
        if at_ns - self._busy_ns <= self._idle_ns:
            self._set(at_ns)

    def _smooth(self) -> None:
        """Rates of arrival; a fleet that did not look for a while, as nobody came, goes on where it was."""
        for model in {**self._rates, **self._come}:
            before, news = self._rates.get(model), self._come.get(model, (0, 0))
            now = news[0] / self._scaling.params.interval_s, news[1] / self._scaling.params.interval_s
            keep = 0.0 if before is None else SMOOTHING
            old = before or (0.0, 0.0)
            self._rates[model] = keep * old[0] + (1 - keep) * now[0], keep * old[1] + (1 - keep) * now[1]
        self._come.clear()

    def _busy(self, model: str, kind: str, members: Sequence[Replica], device_s: float) -> float | None:
        """Replicas' worth of load: pictures by their device time, text by its prompts or its KV, whichever is more."""
        requests_per_s, tokens_per_s = self._rates.get(ModelId(model), (0.0, 0.0))
        if members and all(replica.denoise_cost is not None for replica in members):
            return requests_per_s * device_s if device_s else None
        rates = [replica.prefill_tokens_per_s for replica in members]
        if not members or min(rates) <= 0 or not all(replica.kv_tokens_total for replica in members):
            return None
        held = sum(replica.kv_usage for replica in members)
        return held if kind == "decode" else max(held, tokens_per_s * len(rates) / sum(rates))

    def _tell(self, figures: PoolFigures, at_ns: Ns) -> None:
        pool = (figures.model, figures.pool)
        before, self._wanted[pool] = self._wanted.get(pool), figures.wanted
        if figures.wanted in (before, figures.replicas):
            return
        chosen = "grow" if figures.wanted > figures.replicas else "shrink"
        reason = (
            f"{figures.model} {figures.pool}: {figures.replicas} to {figures.wanted}; {figures.queued} wait, expected "
            f"{figures.wait_s:.3f} s, {figures.predicted_s:.3f} s when a new one would serve"
        )
        shown = (Alternative("now", figures.replicas), Alternative("wanted", figures.wanted))
        self._out.append(Record(Decision("pool", at_ns, "scale", chosen, reason, shown)))

    def _loads(self, at_ns: Ns) -> list[PoolLoad]:
        members: dict[Pool, list[Replica]] = {pool: [] for pool in self._asked}
        for replica in self._router.replicas.values():
            if replica.report is not None and not replica.is_draining:
                replica.look(at_ns)
                for model in (replica.report.model, *replica.report.models):
                    members.setdefault((model, self._pool_of(replica.id)), []).append(replica)
        return [self._load(pool, found) for pool, found in sorted(members.items())]

    def _pool_of(self, node: NodeId) -> str:
        if node in self._pools.prefill:
            return "prefill"
        return "decode" if node in self._pools.decode else "mixed"

    def _load(self, pool: Pool, members: list[Replica]) -> PoolLoad:
        model, kind = pool
        lines = [line for line in self._queue.lines() if line[1] == model] if kind != "decode" else []
        queued = sum(self._queue.length(line) for line in lines)
        tokens = sum(self._queue.tokens(line) for line in lines)
        waiting = queued + sum(replica.waiting for replica in members)
        running = sum(replica.requests for replica in members)
        rate = sum(replica.prefill_tokens_per_s for replica in members)
        prefill_s = (tokens + sum(replica.queued_tokens for replica in members)) / rate if rate > 0 else 0.0
        device_s = self._book.device_seconds(ModelId(model))
        wait_s = max(prefill_s if kind != "decode" else 0.0, waiting * device_s / max(1, len(members)))
        slo_ns = self._slo_ns.get(ModelId(model))
        slo_s = self._scaling.params.slo_s if slo_ns is None else s_from_ns(slo_ns)
        busy = self._busy(model, kind, members, device_s)
        return PoolLoad(model, kind, len(members), waiting, running, wait_s, slo_s, busy)
