"""Chooses the padded size and the graph mode of a step (E1)."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Annotated

import msgspec

from headway.core.errors import ConfigError
from headway.core.graphs import GraphMode, StepGraph, step_graphs
from headway.core.plans import StepPlan


class Buckets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes that the executor prepares, and how it launches each kind of step."""

    rows: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()  # ascending
    graph_mode: GraphMode = "none"

    def __post_init__(self) -> None:
        if list(self.rows) != sorted(set(self.rows)) or any(size < 1 for size in self.rows):
            raise ConfigError(f"buckets.rows must be ascending positive sizes, got {list(self.rows)}")
        if not self.rows and self.graph_mode != "none":
            raise ConfigError(
                f"buckets.graph_mode = {self.graph_mode} needs buckets.rows: a graph is captured per size"
            )


def smallest(rows: int, sizes: Sequence[int]) -> int:
    """Return the smallest size that holds `rows`, 0 when none does (the step then runs unpadded)."""
    place = bisect_left(sizes, rows)
    return sizes[place] if place < len(sizes) else 0


def shaped(plan: StepPlan, buckets: Buckets) -> StepPlan:
    """Return the plan with its bucket and graph mode; larger than every bucket means neither.

    Each token of a chunk is a row.
    """
    if not buckets.rows:
        return plan
    bucket = smallest(plan.tokens, buckets.rows)
    graphs = step_graphs(buckets.graph_mode)
    graph = graphs.decode if plan.kind == "decode" else graphs.mixed
    if bucket == 0 or (graph == "none" and buckets.graph_mode != "none"):
        return plan
    return msgspec.structs.replace(plan, bucket=bucket, graph=graph)


class CapturedRows(msgspec.Struct, frozen=True):
    """Sizes that an engine captures before it is ready."""

    whole: tuple[int, ...]  # as whole steps
    pieces: tuple[int, ...]  # as the pieces between attentions


def captured_rows(buckets: Buckets, decodes_max: int) -> CapturedRows:
    """Sizes that some step can have, when no step has more than `decodes_max` decodes."""
    graphs = step_graphs(buckets.graph_mode)
    decodes = buckets.rows[: bisect_left(buckets.rows, decodes_max) + 1]

    def of(how: StepGraph) -> tuple[int, ...]:
        return buckets.rows if graphs.mixed == how else decodes if graphs.decode == how else ()

    return CapturedRows(whole=of("full"), pieces=of("piecewise"))
