"""How many replicas each pool should have (SPEC A12): grow before the wait costs half the SLO, shrink what is idle, or
what the load of a whole while would fit without.

Expected wait is queue x mean device seconds / instances, or what the learned prefill rates say if that is longer; it is
carried on by its trend over the time that a new replica takes to start. Signals only: whoever owns the machines acts.
"""

from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import Annotated, Literal

import msgspec

from headway.core.reports import PoolFigures
from headway.core.units import NS_PER_S, Ns, ns_from_s

Pool = tuple[str, str]
Wish = Literal["grow", "hold", "shrink"]


class ScalingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a pool should grow or shrink."""

    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 2.0  # between two looks
    lead_s: Annotated[float, msgspec.Meta(ge=0)] = 60.0  # that a new replica takes until it serves
    slo_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0  # time to the first token, where no request brings one
    wait_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5  # of the SLO that waiting may take
    idle_s: Annotated[float, msgspec.Meta(gt=0)] = 300.0  # without any request, before a pool shrinks
    calm_s: Annotated[float, msgspec.Meta(gt=0)] = 300.0  # as long fewer replicas must have been enough to shrink
    fit_share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.6  # of what fewer replicas carry, that the load may take
    replicas_min: Annotated[int, msgspec.Meta(ge=0)] = 1  # of every pool; 0: an idle pool may end
    replicas_max: Annotated[int, msgspec.Meta(ge=1)] = 64  # of every pool


class PoolLoad(msgspec.Struct, frozen=True):
    """One pool as it is."""

    model: str
    pool: str  # mixed, prefill, decode
    replicas: int  # that serve
    queued: int  # requests that wait for it, here and in its replicas
    running: int
    wait_s: float  # expected, of a request that comes now
    slo_s: float
    busy: float | None = None  # replicas' worth of prompts, KV or pictures that there is; None: nobody knows


class _State:
    def __init__(self, at_ns: Ns) -> None:
        self.wait_s, self.at_ns, self.busy_ns = 0.0, at_ns, at_ns
        self.wanted: int | None = None
        self.rows_max: float | None = None  # requests per replica, the fewest with which it asked for more
        self.calm_ns = at_ns  # since then it has not asked for more
        self.needed: deque[tuple[Ns, int]] = deque()  # replicas that would be enough: falling, the peak first


class Scaling:
    """Remembers per pool its last wait and since when it is idle."""

    def __init__(self, params: ScalingParams) -> None:
        self.params = params
        self._states: dict[Pool, _State] = {}

    def look(self, loads: Sequence[PoolLoad], at_ns: Ns) -> list[PoolFigures]:
        """Return what every pool should have; call it once per interval."""
        found = []
        for load in loads:
            state = self._states.setdefault((load.model, load.pool), _State(at_ns))
            predicted_s = self._predicted(state, load, at_ns)
            if load.queued or load.running:
                state.busy_ns = at_ns
            self._note(state, load, at_ns)
            state.wanted = self._wanted(state, load, predicted_s, at_ns)
            wish: Wish = "hold"
            if state.wanted != load.replicas:
                wish = "grow" if state.wanted > load.replicas else "shrink"
            if predicted_s > load.slo_s * self.params.wait_share:
                self._crowded(state, load, at_ns)
            state.wait_s, state.at_ns = load.wait_s, at_ns
            found.append(
                PoolFigures(
                    load.model, load.pool, load.replicas, state.wanted, load.queued, load.wait_s, predicted_s, wish
                )
            )
        return found

    def _note(self, state: _State, load: PoolLoad, at_ns: Ns) -> None:
        """Keep how many replicas would be enough, as far as it can be the peak of the last `calm_s`."""
        needed = load.replicas
        if load.busy is not None:
            busy = load.busy
            if state.rows_max:
                busy = max(busy, (load.running + load.queued) / state.rows_max)
            needed = ceil(busy / self.params.fit_share)
        while state.needed and state.needed[-1][1] <= needed:
            state.needed.pop()
        state.needed.append((at_ns, needed))
        while state.needed[0][0] < at_ns - ns_from_s(self.params.calm_s):
            state.needed.popleft()

    @staticmethod
    def _crowded(state: _State, load: PoolLoad, at_ns: Ns) -> None:
        """It would have more: so many requests are more than its replicas carry, whatever prompts and KV say."""
        state.calm_ns = at_ns
        if load.replicas and load.running:
            rows = load.running / load.replicas
            state.rows_max = rows if state.rows_max is None else min(rows, state.rows_max)

    def _predicted(self, state: _State, load: PoolLoad, at_ns: Ns) -> float:
        """The wait when a replica that starts now would serve, if the trend lasts; a falling wait is not trusted."""
        elapsed_s = (at_ns - state.at_ns) / NS_PER_S
        slope = (load.wait_s - state.wait_s) / elapsed_s if elapsed_s > 0 else 0.0
        return load.wait_s + max(0.0, slope) * self.params.lead_s

    def _wanted(self, state: _State, load: PoolLoad, predicted_s: float, at_ns: Ns) -> int:
        params, limit_s = self.params, load.slo_s * self.params.wait_share
        if not load.replicas:
            return max(params.replicas_min, 1 if load.queued else 0)
        if predicted_s > limit_s:
            # More than twice as many at once would trust one look too much.
            wanted = max(load.replicas + 1, min(2 * load.replicas, ceil(load.replicas * predicted_s / limit_s)))
            return max(load.replicas, min(params.replicas_max, wanted))
        if at_ns - state.busy_ns >= ns_from_s(params.idle_s):
            return max(params.replicas_min, load.replicas - 1)
        if at_ns - state.calm_ns >= ns_from_s(params.calm_s) and state.needed[0][1] < load.replicas:
            return max(params.replicas_min, load.replicas - 1)  # one a look: the next one sees what that did
        if state.wanted is not None and state.wanted > load.replicas and predicted_s > limit_s / 2:
            return state.wanted  # what was asked for is not there yet, and the wait has not halved
        return load.replicas
