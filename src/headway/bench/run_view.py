"""Everything that the page of a simulated run shows, read from its folder."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from headway.bench.columns import Columns
from headway.bench.results import read_decisions, read_run, read_scenario_tree, read_series, read_summary
from headway.bench.run_summary import RunSummary
from headway.bench.series import Point
from headway.bench.summary import Targets
from headway.core.decisions import Decision

TOP_DECISIONS: Final = 16


class RunView(msgspec.Struct, frozen=True):
    """One run."""

    name: str
    summary: RunSummary
    columns: Columns
    points: Sequence[Point]
    scenario: Mapping[str, object]
    decisions: Sequence[tuple[Decision, int]]  # the first of each choice, and how often it was made

    @property
    def targets(self) -> dict[str, Targets]:
        """What was promised, by who it was promised to; everybody else is under the empty name."""
        found = {"": msgspec.convert(self.scenario.get("targets", {}), Targets)}
        workloads = self.scenario.get("workload", ())
        entries = workloads if isinstance(workloads, Sequence) and not isinstance(workloads, str) else ()
        for place, entry in enumerate(entries):
            slo = entry.get("slo") if isinstance(entry, Mapping) else None
            if isinstance(slo, Mapping) and not slo.get(
                "ttft_ms_per_1k"
            ):  # one that depends on the prompt has no place
                limits = {name: slo.get(name) for name in Targets.__struct_fields__}
                found[str(entry.get("name") or place)] = msgspec.convert(limits, Targets)
        return {name: targets for name, targets in found.items() if targets != Targets()}

    def limits(self, field: str) -> dict[str, float]:
        """Return the limits on one time that were promised, by who it was promised to."""
        limits = {name: getattr(targets, field) for name, targets in self.targets.items()}
        return {name: limit for name, limit in limits.items() if limit is not None}


def view_of(folder: Path, columns: Columns | None = None) -> RunView:
    """Read a run's folder. `columns`: of its requests, if they are at hand. Raises ConfigError for what is missing."""
    return RunView(
        name=folder.name,
        summary=read_summary(folder),
        columns=read_run(folder)[1] if columns is None else columns,
        points=read_series(folder),
        scenario=read_scenario_tree(folder),
        decisions=top_decisions(read_decisions(folder)),
    )


def top_decisions(decisions: Iterable[Decision]) -> list[tuple[Decision, int]]:
    """Return the most frequent choices, each by its first decision."""
    counts: Counter[tuple[str, str, str]] = Counter()
    first: dict[tuple[str, str, str], Decision] = {}
    for decision in decisions:
        key = (decision.level, decision.kind, decision.chosen)
        counts[key] += 1
        first.setdefault(key, decision)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [(first[key], count) for key, count in ranked[:TOP_DECISIONS]]
