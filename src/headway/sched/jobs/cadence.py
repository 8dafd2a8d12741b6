"""How many steps lie between two checkpoints of a job."""

import math
from collections import OrderedDict
from typing import Final

from headway.core.ids import ModelId
from headway.core.jobs import JobRow
from headway.core.units import NS_PER_MS, Ns, ns_from_s
from headway.sched.jobs.params import CheckpointParams

_KEPT: Final = 256  # models whose steps and saves are remembered
_WEIGHT: Final = 4  # a new measurement counts a quarter
_STEPS_TO_SAVE: Final = 2  # the one that is under way when a job is to be saved, and the one that saves it


class Cadence:
    """Learns what steps and saves take, per model.

    Young's first-order optimum (CACM 17(9), 1974): the interval sqrt(2 * cost of a save * mean time between failures)
    makes saving and lost work cost the same. A process that ends in order saves what runs, if its steps let it: where
    they are longer than it waits, every step is saved, so that no more is lost than the one under way.
    """

    def __init__(self, params: CheckpointParams, grace_ns: Ns | None = None) -> None:
        """`grace_ns`: how long an orderly end waits."""
        self._grace_ns = grace_ns
        self._failure_ns = ns_from_s(params.failure_every_s)
        self._save_ns = round(params.save_ms * NS_PER_MS)
        self._steps: OrderedDict[ModelId, Ns] = OrderedDict()
        self._saves: OrderedDict[ModelId, Ns] = OrderedDict()

    def stepped(self, model: ModelId, step_ns: Ns) -> None:
        """One denoise step took so long."""
        _learn(self._steps, model, step_ns)

    def saved(self, model: ModelId, took_ns: Ns) -> None:
        """One checkpoint took so long to make and store."""
        _learn(self._saves, model, took_ns)

    def every(self, row: JobRow) -> int:
        """Steps between checkpoints; 0 where the rest of the job is shorter than the interval, or nobody knows how
        long a step takes."""
        left = row.steps - row.begun
        step_ns = row.estimate_ns // row.steps if row.estimate_ns else self._steps.get(row.model, 0)
        if not step_ns:
            return 0
        if self._grace_ns is not None and _STEPS_TO_SAVE * step_ns > self._grace_ns:
            return 1 if left > 1 else 0
        save_ns = self._saves.get(row.model, self._save_ns)
        interval_ns = math.isqrt(2 * save_ns * self._failure_ns)
        steps = max(1, -(-interval_ns // step_ns))
        return steps if steps < left else 0


def _learn(known: OrderedDict[ModelId, Ns], model: ModelId, value: Ns) -> None:
    before = known.pop(model, value)
    known[model] = before + (value - before) // _WEIGHT
    if len(known) > _KEPT:
        known.popitem(last=False)
