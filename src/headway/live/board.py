"""What the parent process knows of its replicas: phases of loading, limits, last reports, engine steps."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from headway.core.ids import NodeId
from headway.core.messages import Message, Report
from headway.core.ports import ModelLimits
from headway.core.reports import GarbageFigures, ReplicaReport, StepCoefficients
from headway.core.units import Ns, ms_from_ns
from headway.live.settling import Settled
from headway.live.stores import Timeline
from headway.live.wire import Phase, Ready, StepSpan

Tell = Callable[[NodeId, str], None]


class Known(msgspec.Struct):
    """One replica."""

    model: str
    incarnation: int = 0  # of the one that is there; 0: none is
    limits: ModelLimits | None = None
    report: ReplicaReport | None = None
    phase: tuple[str, Ns] | None = None
    load_ns: Ns = 0
    lost: str | None = None  # why it is not there
    was_ready: bool = False
    step_cost: StepCoefficients | None = None  # as its warm-up measured it
    garbage: GarbageFigures | None = None  # of the incarnation that is there
    settled: Settled | None = None  # the same, of its device's allocator


class Board:
    """Told by the supervisor (`FleetWatcher`) and by the hub; read by `Serving`."""

    def __init__(self, models: Mapping[NodeId, str], timeline: Timeline, tell: Tell) -> None:
        self.replicas = {node: Known(model) for node, model in models.items()}
        self.upstreams: dict[NodeId, ReplicaReport] = {}  # the last report of each
        self.on_ready: Callable[[], None] = lambda: None  # a model has its first replica
        self._timeline, self._tell = timeline, tell

    def phase(self, node: NodeId, phase: Phase) -> None:
        """A phase of loading."""
        known = self.replicas[node]
        if phase.done >= 1.0 or known.phase is None or known.phase[0] != phase.name:
            self._end_phase(node, known, phase.at_ns)
        if phase.done < 1.0:
            known.phase = known.phase or (phase.name, phase.at_ns)
            self._tell(node, phase.words)
        elif phase.note:
            self._tell(node, phase.note)

    def joined(self, node: NodeId, incarnation: int, ready: Ready) -> None:
        """It is ready."""
        known = self.replicas[node]
        known.incarnation, known.limits, known.load_ns, known.lost = incarnation, ready.limits, ready.load_ns, None
        known.report, known.garbage, known.step_cost = None, None, ready.step_cost
        known.was_ready, known.settled = True, ready.settled
        self._tell(node, f"ready after {ms_from_ns(ready.load_ns) / 1000:.1f} s: {known.model} is served")
        self.on_ready()

    def lost(self, node: NodeId, incarnation: int, reason: str) -> None:
        """It is gone."""
        known = self.replicas[node]
        known.incarnation, known.report, known.garbage, known.lost = 0, None, None, reason
        known.phase = known.settled = None
        self._tell(node, f"lost (incarnation {incarnation}): {reason}")

    def spans(self, node: NodeId, steps: Sequence[StepSpan]) -> None:
        """Engine steps, for the trace."""
        self._timeline.add_steps(node, steps)

    def garbage(self, node: NodeId, figures: GarbageFigures) -> None:
        """What its garbage collector took since it was ready."""
        self.replicas[node].garbage = figures

    def heard(self, src: NodeId, message: Message) -> None:
        """A message on its way to a node of this process; reports are kept."""
        if isinstance(message, Report) and message.report.role == "upstream":
            self.upstreams[src] = message.report
            return
        known = self.replicas.get(src)
        if known is not None and isinstance(message, Report) and message.report.incarnation == known.incarnation:
            self._tell_unprepared(src, known.report, message.report)
            known.report = message.report

    def _tell_unprepared(self, node: NodeId, before: ReplicaReport | None, now: ReplicaReport) -> None:
        """Nobody else may hear that what an operator asked for failed."""
        for one in now.unprepared:
            if before is None or one not in before.unprepared:
                frames = f", {one.frames} frames" if one.frames > 1 else ""
                self._tell(node, f"preparing {one.width}x{one.height}{frames} by {one.batch} failed: {one.error}")

    def forget(self, node: NodeId) -> None:
        """An upstream was taken out."""
        self.upstreams.pop(node, None)

    def step_cost(self, node: NodeId) -> StepCoefficients | None:
        """What its steps are believed to cost, as it last told; None: it serves no LLM, or is not there."""
        known = self.replicas[node]
        told = None if known.report is None else known.report.step_cost
        return told or known.step_cost

    def serving(self, model: str) -> list[NodeId]:
        """The replicas of a model that are there."""
        return [node for node, known in self.replicas.items() if known.model == model and known.incarnation]

    def has_been_ready(self, model: str) -> bool:
        """A replica of it is there, or was."""
        return any(known.was_ready for known in self.replicas.values() if known.model == model)

    def why_not(self, model: str, now_ns: Ns) -> str:
        """Why a model has no replica that is there: what the first one does since when, or how it was lost."""
        return self.doing(next(node for node, known in self.replicas.items() if known.model == model), now_ns)

    def doing(self, node: NodeId, now_ns: Ns) -> str:
        """The same of one replica."""
        known = self.replicas[node]
        if known.phase is None:
            return known.lost or "it is loading"
        name, since_ns = known.phase
        words = f"{node} has been in phase '{name}' for {ms_from_ns(now_ns - since_ns) / 1000:.0f} s"
        return words if known.lost is None else f"{words}; it starts again: {known.lost}"

    def _end_phase(self, node: NodeId, known: Known, at_ns: Ns) -> None:
        if known.phase is not None:
            name, began_ns = known.phase
            self._timeline.add_load(node, name, began_ns, at_ns)
            known.phase = None
