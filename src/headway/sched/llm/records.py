"""Decision records of the LLM machine (SPEC L-3). Written when something changes; a steady decode writes none."""

from headway.core.decisions import ALTERNATIVES_MAX, Alternative, Decision, Layer
from headway.sched.llm.sequence import Seq
from headway.sched.llm.state import MachineState


def record(
    m: MachineState,
    level: Layer,
    kind: str,
    chosen: str,
    reason: str,
    at_ns: int,
    seq: Seq | None = None,
    alternatives: tuple[Alternative, ...] = (),
) -> None:
    """Keep one decision until `take_decisions`."""
    request = None if seq is None else seq.request.id
    m.decisions.append(Decision(level, at_ns, kind, chosen, reason, alternatives[:ALTERNATIVES_MAX], request))
