"""The faults that a run was given: numbered marks in its plots over time, and the table that the numbers lead to."""

from collections.abc import Sequence
from html import escape
from typing import assert_never

import msgspec

from headway.bench.charts import Mark
from headway.bench.run_view import RunView
from headway.sim.faults import FailSteps, Fault, Kill, SlowLinks, Stale, Straggle


class Shown(msgspec.Struct, frozen=True):
    """One fault. `until_s` None: for good, or over at once."""

    number: int
    kind: str
    where: str
    from_s: float
    until_s: float | None
    what: str


def faults_of(view: RunView) -> list[Shown]:
    """Return the faults of a run's scenario, in the order of their beginning."""
    faults = msgspec.convert(view.scenario.get("faults", ()), tuple[Fault, ...])
    ordered = sorted(faults, key=lambda fault: fault.at_s if isinstance(fault, Kill | FailSteps) else fault.from_s)
    return [_shown(number, fault) for number, fault in enumerate(ordered, 1)]


def _shown(number: int, fault: Fault) -> Shown:
    match fault:
        case Kill():
            back_s = None if fault.back_s is None else fault.at_s + fault.back_s
            what = "its process dies with all that it holds" + ("" if back_s is None else ", and starts again")
            return Shown(number, "kill", fault.replica, fault.at_s, back_s, what)
        case Straggle():
            what = f"steps take {fault.factor:g} times as long"
            return Shown(number, "straggle", fault.replica, fault.from_s, fault.until_s, what)
        case Stale():
            return Shown(number, "stale", fault.replica, fault.from_s, fault.until_s, "no report of it arrives")
        case SlowLinks():
            what = f"{fault.share:.0%} of the bandwidth is left, {fault.extra_ms:g} ms more per message"
            return Shown(number, "slow links", "all links between nodes", fault.from_s, fault.until_s, what)
        case FailSteps():
            what = f"the next {fault.steps} steps fail, and its KV is lost"
            return Shown(number, "failing steps", fault.replica, fault.at_s, None, what)
        case _:
            assert_never(fault)


def fault_marks(shown: Sequence[Shown], end_s: float) -> tuple[Mark, ...]:
    """Where faults begin and end, by their numbers; what lies behind the end of the run is left out."""
    marks = [Mark(fault.from_s, f"fault {fault.number}") for fault in shown]
    marks += [Mark(fault.until_s, f"{fault.number} over") for fault in shown if fault.until_s is not None]
    return tuple(mark for mark in marks if mark.at <= end_s)


def faults_table(shown: Sequence[Shown], end_s: float) -> str:
    """Return the table."""
    rows = []
    for fault in shown:
        until = "-" if fault.until_s is None else f"{fault.until_s:g}"
        late = " (after the end of the run)" if fault.from_s > end_s else ""
        what = f"<td class=text>{escape(fault.what)}{late}</td>"
        cells = f"<td class=text>{escape(fault.where)}</td><td>{fault.from_s:g}</td><td>{until}</td>"
        rows.append(f"<tr><td>{fault.number} {fault.kind}</td>{cells}{what}</tr>")
    head = "<tr><th>fault</th><th class=text>where</th><th>from, s</th><th>until, s</th><th class=text>what</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"
