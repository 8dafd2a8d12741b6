"""Chooses the padded size and the graph mode of a step (E1)."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from headway.core.errors import ConfigError
from headway.core.plans import StepPlan

GraphMode = Literal["none", "piecewise", "full"]


class Buckets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes that the executor prepares, and how it launches each kind of step."""

    rows: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()  # steps are padded to these; empty: they are not
    decode_graph: GraphMode = "none"  # how a step of decodes is launched; full: as one captured graph
    mixed_graph: GraphMode = "none"  # the same for a step with prefill

    def __post_init__(self) -> None:
        if list(self.rows) != sorted(set(self.rows)) or any(size < 1 for size in self.rows):
            raise ConfigError(f"buckets.rows must be ascending positive sizes, got {list(self.rows)}")
        if not self.rows and (self.decode_graph != "none" or self.mixed_graph != "none"):
            raise ConfigError("buckets.decode_graph and mixed_graph need buckets.rows: a graph is captured per size")


def smallest(rows: int, sizes: Sequence[int]) -> int:
    """Return the smallest size that holds `rows`, 0 when none does (the step then runs unpadded)."""
    place = bisect_left(sizes, rows)
    return sizes[place] if place < len(sizes) else 0


def shaped(plan: StepPlan, buckets: Buckets) -> StepPlan:
    """Return the plan with its bucket and graph mode; larger than every bucket means neither."""
    if not buckets.rows:
        return plan
    bucket = smallest(plan.decodes + len(plan.chunks), buckets.rows)
    if bucket == 0:
        return plan
    graph = buckets.decode_graph if plan.kind == "decode" else buckets.mixed_graph
    return msgspec.structs.replace(plan, bucket=bucket, graph=graph)
