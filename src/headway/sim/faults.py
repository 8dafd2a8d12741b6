"""Faults of a scenario at their times: deaths, stragglers, stale metrics, slow links, failing steps (SPEC J4).

Mispredicted lengths are the workload's (`workload.spec`); cold starts are the orchestrator's (`sim/orchestrator.py`).
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Protocol, TypeAlias

import msgspec

from headway.core.errors import ConfigError
from headway.core.ids import ModelId, NodeId
from headway.core.messages import Report
from headway.core.units import NS_PER_MS, Ns, ns_from_s
from headway.sim.driver import Simulation
from headway.sim.starts import expect

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Kill(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="kill", tag_field="kind"):
    """The process of a replica dies; what it holds is lost."""

    replica: str  # such as rep-chat-0
    at_s: Seconds
    back_s: Positive | None = None  # after so long it serves again; unset: it stays away


class Straggle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="straggle", tag_field="kind"):
    """The steps of a replica take longer for a while."""

    replica: str  # such as rep-chat-0
    from_s: Seconds
    until_s: Positive | None = None  # unset: for good
    factor: Annotated[float, msgspec.Meta(gt=1)] = 3.0


class Stale(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="stale", tag_field="kind"):
    """No report of a replica arrives for a while; its tokens do."""

    replica: str  # such as rep-chat-0
    from_s: Seconds
    until_s: Positive | None = None  # unset: for good


class SlowLinks(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="slow_links", tag_field="kind"
):
    """Every link between nodes has less of its bandwidth and more latency for a while."""

    from_s: Seconds
    until_s: Positive | None = None  # unset: for good
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1  # of the bandwidth of copies that is left
    extra_ms: Seconds = 0.0  # of latency, for messages


class FailSteps(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="fail_steps", tag_field="kind"
):
    """The device of a replica fails its next steps and loses its KV, the process lives."""

    replica: str  # such as rep-chat-0
    at_s: Seconds
    steps: Annotated[int, msgspec.Meta(ge=1)] = 1


Fault: TypeAlias = Kill | Straggle | Stale | SlowLinks | FailSteps


class Slowed(Protocol):
    """A truth that can be made slower."""

    slowdown: float


class Faults:
    """Arms every fault of a scenario in a simulation."""

    def __init__(self, sim: Simulation, truths: Mapping[NodeId, Slowed], models: Mapping[NodeId, ModelId]) -> None:
        """`truths` and `models`: of every replica that there is or can be."""
        self._sim, self._truths, self._models = sim, truths, models
        self._silent: dict[NodeId, int] = {}
        self._latency_ns: Ns = 0
        self._shares: list[float] = []

    def arm(self, faults: tuple[Fault, ...]) -> None:
        """Schedule them all. Raises ConfigError for a replica that is not there, or an end before the beginning."""
        for place, fault in enumerate(faults):
            self._check(place, fault)
            match fault:
                case Kill():
                    self._kill(fault, NodeId(fault.replica))
                case Straggle():
                    self._straggle(fault, NodeId(fault.replica))
                case Stale():
                    self._stale(fault, NodeId(fault.replica))
                case SlowLinks():
                    self._slow(fault)
                case FailSteps():
                    self._fail(fault, NodeId(fault.replica))

    def _check(self, place: int, fault: Fault) -> None:
        if not isinstance(fault, SlowLinks) and fault.replica not in self._truths:
            raise ConfigError(
                f"faults[{place}]: there is no replica {fault.replica!r}; known are {', '.join(sorted(self._truths))}"
            )
        until_s = None if isinstance(fault, Kill | FailSteps) else fault.until_s
        if until_s is not None and not isinstance(fault, Kill | FailSteps) and until_s <= fault.from_s:
            raise ConfigError(f"faults[{place}]: until_s = {until_s} is not after from_s = {fault.from_s}")

    def _between(self, fault: Straggle | Stale | SlowLinks, begin: Callable[[], None], end: Callable[[], None]) -> None:
        def change(do: Callable[[], None]) -> None:
            self._sim.runs.stop()
            do()

        self._sim.at(ns_from_s(fault.from_s), lambda _: change(begin))
        if fault.until_s is not None:
            self._sim.at(ns_from_s(fault.until_s), lambda _: change(end))

    def _kill(self, fault: Kill, node: NodeId) -> None:
        sim = self._sim

        def die(at_ns: Ns) -> None:
            life = sim.lives.get(node)
            if life is None or not life.is_alive:  # it has not started, or died before
                return
            sim.kill(node)
            if fault.back_s is not None:
                expect(sim, node, self._models[node], f"it serves again {fault.back_s:g} s after its end")
                sim.at(at_ns + ns_from_s(fault.back_s), back)

        def back(_: Ns) -> None:
            if not sim.lives[node].is_alive:
                sim.restart(node)

        sim.at(ns_from_s(fault.at_s), die)

    def _straggle(self, fault: Straggle, node: NodeId) -> None:
        truth = self._truths[node]

        def begin() -> None:
            truth.slowdown *= fault.factor

        def end() -> None:
            truth.slowdown /= fault.factor

        self._between(fault, begin, end)

    def _stale(self, fault: Stale, node: NodeId) -> None:
        silent = self._silent
        self._sim.network.drop = self._is_dropped

        def begin() -> None:
            silent[node] = silent.get(node, 0) + 1

        def end() -> None:
            silent[node] -= 1

        self._between(fault, begin, end)

    def _is_dropped(self, src: NodeId, _dst: NodeId, message: object) -> bool:
        return isinstance(message, Report) and self._silent.get(src, 0) > 0

    def _slow(self, fault: SlowLinks) -> None:
        network = self._sim.network
        extra_ns = round(fault.extra_ms * NS_PER_MS)
        if network.delay is None:
            network.delay = lambda _src, _dst, _at_ns: self._latency_ns
        if not self._shares:
            whole = network.copy_bytes_per_s
            network.copy_bytes_per_s = lambda src, dst: whole(src, dst) * min(self._shares)
            self._shares.append(1.0)

        def begin() -> None:
            self._latency_ns += extra_ns
            self._shares.append(fault.share)

        def end() -> None:
            self._latency_ns -= extra_ns
            self._shares.remove(fault.share)

        self._between(fault, begin, end)

    def _fail(self, fault: FailSteps, node: NodeId) -> None:
        def fail(_: Ns) -> None:
            life = self._sim.lives.get(node)
            if life is not None and life.is_alive and life.executor is not None:
                for _step in range(fault.steps):
                    life.executor.fail_next()

        self._sim.at(ns_from_s(fault.at_s), fail)
