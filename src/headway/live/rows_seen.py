"""How many rows steps had, kept from one start of a replica to the next, and the bucket sizes that are chosen from it.

One file per replica beside the compiled kernels; a model's replicas are read together (SPEC E1).
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from headway.core.graphs import step_graphs
from headway.core.ids import ModelId, NodeId
from headway.live.spec import BucketSettings, LlmSpec, ReplicaSpec
from headway.live.wire import StepSpan
from headway.sched.executor.buckets import Buckets
from headway.sched.executor.sizes import chosen_sizes, powers

log = logging.getLogger(__name__)
_FADE: Final = 2  # at each start, what was seen before weighs so much less


class Seen(msgspec.Struct):
    """Steps by rows: those that only decode, and the others."""

    decode: dict[int, int] = {}
    mixed: dict[int, int] = {}


class RowsSeen:
    """Counts the steps of one replica, on top of what its file says of earlier runs."""

    def __init__(self, cache: str, model: ModelId, replica: NodeId) -> None:
        self._path = _folder(cache, model) / f"{replica}.json"
        before = _read(self._path)
        self._decode, self._mixed = (
            Counter({rows: count // _FADE for rows, count in steps.items() if count >= _FADE})
            for steps in (before.decode, before.mixed)
        )
        self._unsaved = 0

    def count(self, spans: Iterable[StepSpan]) -> None:
        """Take in steps that are done."""
        for span in spans:
            rows = span.decodes + span.prefill_tokens
            if rows:
                (self._mixed if span.prefill_tokens else self._decode)[rows] += 1
                self._unsaved += 1

    def save(self) -> None:
        """Write the file if there is news. A disk that refuses is told of: the next start knows less."""
        if not self._unsaved:
            return
        beside = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(msgspec.json.encode(Seen(dict(self._decode), dict(self._mixed))))
            beside.replace(self._path)
        except OSError as error:
            log.warning("rows of steps are not kept for executor.buckets.rows = auto: %s", error)
        self._unsaved = 0


def rows_seen(spec: ReplicaSpec) -> RowsSeen | None:
    """The account of a replica; None where sizes are given."""
    llm = spec.llm
    if llm is None or llm.executor.buckets.rows != "auto":
        return None
    return RowsSeen(llm.cache, spec.model, spec.node)


def seen_of(cache: str, model: ModelId) -> Seen:
    """What all replicas of the model have kept."""
    decode: Counter[int] = Counter()
    mixed: Counter[int] = Counter()
    for path in sorted(_folder(cache, model).glob("*.json")):
        seen = _read(path)
        decode.update(seen.decode)
        mixed.update(seen.mixed)
    return Seen(decode, mixed)


def ring_buckets(llm: LlmSpec, seen: Seen | None = None) -> Buckets:
    """The buckets of a replica. `rows` = auto: those that pad what was seen least, or without it powers of two."""
    settings, most = llm.executor.buckets, llm.scheduler.step_tokens
    if isinstance(settings.rows, tuple):
        return Buckets(settings.rows, settings.graph_mode)
    graphs = step_graphs(settings.graph_mode)
    padded: Counter[int] = Counter()
    if seen is not None:
        for steps, graph in ((seen.decode, graphs.decode), (seen.mixed, graphs.mixed)):
            if graph != "none" or settings.graph_mode == "none":
                padded.update({rows: count for rows, count in steps.items() if rows <= most})
    sizes = chosen_sizes(padded or dict.fromkeys(powers(most), 1), settings.sizes_max)
    return Buckets(sizes, settings.graph_mode)


def settled(spec: ReplicaSpec) -> tuple[ReplicaSpec, str]:
    """With sizes in place of auto, and how they were chosen; without words where they were given."""
    llm = spec.llm
    if llm is None or llm.executor.buckets.rows != "auto":
        return spec, ""
    seen = seen_of(llm.cache, spec.model)
    rows = ring_buckets(llm, seen).rows
    steps = sum(seen.decode.values()) + sum(seen.mixed.values())
    source = f"from {steps} steps of earlier runs" if steps else "powers of two, no step has been seen yet"
    buckets: BucketSettings = msgspec.structs.replace(llm.executor.buckets, rows=rows)
    executor = msgspec.structs.replace(llm.executor, buckets=buckets)
    settled_spec = msgspec.structs.replace(spec, llm=msgspec.structs.replace(llm, executor=executor))
    return settled_spec, f"executor.buckets.rows = {list(rows)} ({source})"


def _folder(cache: str, model: ModelId) -> Path:
    return Path(cache) / "rows" / hashlib.sha256(model.encode()).hexdigest()[:16]


def _read(path: Path) -> Seen:
    """Nothing where there is no file, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Seen)
    except (OSError, msgspec.DecodeError):
        return Seen()
