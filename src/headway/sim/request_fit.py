"""Fits step times to a per-request log: the scheduler runs inside the search, so that queueing is not fitted but run.

The whole stream of arrivals is replayed each time, as the log has it; only what happened to the first requests is
looked at. The others are the held-out half.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headway.core.errors import ConfigError
from headway.cost.fitted import Coefficients, CostFile, HeldOut
from headway.cost.fitting import error_of
from headway.cost.simplex import Point, minimise
from headway.sched.llm.params import LlmParams
from headway.sim.calibration import Origin, weights_ns
from headway.sim.engine_replay import EngineModel, EngineReplay, Served, requests_of
from headway.workload.request_logs import Logged

METRICS: Final = ("ttft", "tpot", "e2e")
REQUESTS_MIN: Final = 20
_START: Final = (1e7, 5e4, 3e4, 50.0)  # ns: a step, a prompt token, a row, a token of context; orders of magnitude
_SPREAD: Final = 0.5  # e-folds
_SPREAD_MIN: Final = 0.1
_GAIN: Final = 0.5  # a KV capacity is believed where the error falls below so much of what it was: it overfits easily


class Measured(msgspec.Struct, frozen=True):
    """Simulated and logged values of one metric, request by request, in nanoseconds."""

    simulated: list[float]
    logged: list[float]


class Engine(msgspec.Struct, frozen=True):
    """Whose log it is: its scheduler in our words (`vllm_scheduler`, or our own `alone`), and its blocks."""

    params: LlmParams
    block_size: int


class Search(msgspec.Struct, frozen=True):
    """How much is tried: `evaluations` without a KV capacity, and as many with one."""

    evaluations: int = 300
    share: float = 0.5  # of the requests, from the first on, that the fit sees


def compare(log: Sequence[Logged], served: Sequence[Served]) -> dict[str, Measured]:
    """Pair what was simulated with what was logged. TPOT = (e2e - TTFT) / (output tokens - 1)."""
    found = {name: Measured([], []) for name in METRICS}
    for one, run in zip(log, served, strict=True):
        ttft, e2e = run.first_token_ns - one.queued_ns, run.last_token_ns - one.queued_ns
        values: dict[str, tuple[float, float]] = {"ttft": (ttft, one.ttft_ns), "e2e": (e2e, one.e2e_ns)}
        if (gaps := one.output_tokens - 1) > 0:
            values["tpot"] = ((e2e - ttft) / gaps, (one.e2e_ns - one.ttft_ns) / gaps)
        for name, (simulated, logged) in values.items():
            found[name].simulated.append(simulated)
            found[name].logged.append(logged)
    return found


def errors(measured: Mapping[str, Measured]) -> dict[str, HeldOut]:
    """Errors of each metric: of the mean, of single requests, of nearest-rank percentiles."""
    return {name: _error(values) for name, values in measured.items() if values.logged}


def _error(values: Measured) -> HeldOut:
    simulated, logged = sorted(values.simulated), sorted(values.logged)
    plain = error_of(values.simulated, values.logged)
    at = [max(0, math.ceil(share * len(logged)) - 1) for share in (0.5, 0.99)]
    p50, p99 = (simulated[place] / logged[place] - 1 for place in at)
    return msgspec.structs.replace(plain, p50=p50, p99=p99)


class _Fit:
    """The search over one log."""

    def __init__(self, log: Sequence[Logged], engine: Engine, floor_ns: float) -> None:
        self._log, block = log, engine.block_size
        self.replay = EngineReplay(requests_of(log, "log"), engine.params, block)
        longest = sorted((one.prompt_tokens + one.output_tokens for one in log), reverse=True)
        # Whole blocks of as many of the longest as may run at a time: more can never be held.
        self.ample = sum(length + block for length in longest[: engine.params.max_seqs])
        self._least = longest[0] + block
        self.floor_ns = floor_ns
        self.seen = self.runs = 0

    def model(self, point: Point) -> EngineModel:
        return EngineModel(self.coefficients(point).step_ns, _no_host, self.capacity(point))

    def coefficients(self, point: Point) -> Coefficients:
        base, token, row, kv = (math.exp(min(value, 40.0)) for value in point[: len(_START)])
        return Coefficients(base_ns=self.floor_ns + base, token_ns=token, row_ns=row, kv_ns=kv)

    def capacity(self, point: Point) -> int:
        """KV tokens: the fifth parameter, where there is one."""
        if len(point) == len(_START):
            return self.ample
        return max(self._least, min(self.ample, round(math.exp(point[len(_START)]))))

    def loss(self, point: Point) -> float:
        """Errors of single requests and of the mean, over the mean, averaged over metrics, of what the fit sees.

        Where nobody queues, which step a request meets is chance; the mean tells what single requests cannot.
        """
        self.runs += 1
        served = self.replay.run(self.model(point))
        found = errors(compare(self._log[: self.seen], served[: self.seen]))
        return sum(error.mae + abs(error.mean) for error in found.values()) / len(found)


def _no_host(rows: int) -> float:  # noqa: ARG001  a request's log cannot tell host from device: it is part of the step
    return 0.0


def fit_requests(log: Sequence[Logged], engine: Engine, origin: Origin, search: Search) -> CostFile:
    """Fit a cost file to the first requests of a log and score it on the rest. Raises ConfigError for too few."""
    seen = round(len(log) * search.share)
    if seen < REQUESTS_MIN or len(log) - seen < REQUESTS_MIN:
        raise ConfigError(
            f"{origin.source} has {len(log)} requests; {2 * REQUESTS_MIN} at least, half to fit, half to score"
        )
    fit = _Fit(log, engine, weights_ns(origin.stamp))
    fit.seen = seen
    base, *others = [math.log(value) for value in _START]
    point, loss = _search(fit, [(base + shift, *others) for shift in (0.0, -1.0, 1.0)], search.evaluations)
    fit.replay.run(fit.model(point))
    held = fit.replay.ranges.kv_tokens
    capacities = [(base, *others, math.log(share * held)) for share in (0.9, 0.7, 0.55, 0.4)]
    bound, with_bound = _search(fit, capacities, search.evaluations)
    is_bound = with_bound < _GAIN * loss and fit.capacity(bound) < held
    if not is_bound and with_bound < loss:  # the same model, and the longer search
        point = min((point, bound[: len(_START)]), key=fit.loss)
    chosen = bound if is_bound else point
    served = fit.replay.run(fit.model(chosen))
    notes = [] if is_bound else [f"kv_tokens is not identified: up to {held} tokens were held and no limit was felt"]
    if fit.replay.preemptions:
        notes.append(f"the replay preempted {fit.replay.preemptions} times")
    if fit.floor_ns:
        notes.append(f"base_ns is held above {fit.floor_ns / 1e6:.1f} ms, in which the device reads the weights once")
    notes.append("single coefficients are weakly identified: the sum is fitted, its parts are no facts about a device")
    return CostFile(
        stamp=origin.stamp,
        source=origin.source,
        date=origin.date,
        coefficients=fit.coefficients(chosen),
        ranges=fit.replay.ranges,
        samples=seen,
        held_out=errors(compare(log[seen:], served[seen:])),
        kv_tokens=fit.capacity(chosen) if is_bound else None,
        notes=tuple(notes),
    )


def _search(fit: _Fit, starts: Sequence[Point], evaluations: int) -> tuple[Point, float]:
    """Begin from several points, and go on from the best one, again and again: simplices collapse early, and who meets
    which step makes the loss rough."""
    end = fit.runs + evaluations
    share = evaluations // (2 * len(starts))
    point, loss = min((minimise(fit.loss, one, _SPREAD, share) for one in starts), key=lambda it: it[1])
    spread = _SPREAD / 2
    while (left := end - fit.runs) > len(point):
        found, value = minimise(fit.loss, point, spread, left)
        point, loss = min(((point, loss), (found, value)), key=lambda it: it[1])
        spread *= -0.7 if abs(spread) > _SPREAD_MIN else -_SPREAD / _SPREAD_MIN
    return point, loss
