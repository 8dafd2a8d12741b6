"""Fits corrections of the roofline to measured closed loops, from coarse to fine: few rows stay near their parent."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headway.core.units import NS_PER_MS
from headway.cost.closed_loop import ClosedLoop, prefill_ns, tpot_ns
from headway.cost.deployment import Deployment
from headway.cost.measured import PRIOR, Correction, Key, find_correction, roofline_of, waits_in, waits_of
from headway.cost.nonnegative import solve_nonnegative

PARENT_ROWS: Final = 2.0  # a parent weighs as so many rows
HUBER: Final = 0.1
_REWEIGH: Final = 8


class Measurement(NamedTuple):
    """One closed loop that was measured."""

    deployment: Deployment
    engine: str
    load: ClosedLoop
    ttft_ms: float
    tpot_ms: float

    @property
    def key(self) -> Key:
        """The finest level of corrections."""
        return (self.engine, self.deployment.model.name, self.deployment.device.name, self.deployment.dtype)


def fit_corrections(measured: Sequence[Measurement]) -> dict[Key, Correction]:
    """Fit every engine, every model on it, and every device and number type of that."""
    found: dict[Key, Correction] = {}
    for length in (1, 2, 4):
        groups: dict[Key, list[Measurement]] = {}
        for one in measured:
            groups.setdefault(one.key[:length], []).append(one)
        for key, rows in sorted(groups.items()):
            found[key] = _fit(rows, _parent(key, found))
    return found


def _parent(key: Key, found: Mapping[Key, Correction]) -> Correction:
    return find_correction((*key[:-1],) if len(key) < 4 else key[:2], found)[1] if len(key) > 1 else PRIOR


def _fit(rows: Sequence[Measurement], parent: Correction) -> Correction:
    alone = [tpot_ns(roofline_of(one.deployment), one.load) / NS_PER_MS for one in rows]
    features = [(time, 1.0, float(one.load.concurrency)) for time, one in zip(alone, rows, strict=True)]
    steps = (parent.scale, parent.step_ms, parent.row_ms)
    scale, step_ms, row_ms = _near(features, [one.tpot_ms for one in rows], steps)
    prompts = [prefill_ns(roofline_of(one.deployment), one.load.prompt) / NS_PER_MS for one in rows]
    waits = [waits_of(prompt, one.load) for prompt, one in zip(prompts, rows, strict=True)]
    first = _near(waits, [one.ttft_ms for one in rows], waits_in(parent))
    return Correction(len(rows), scale, step_ms, row_ms, *first)


def _near(features: Sequence[tuple[float, ...]], targets: Sequence[float], parent: Sequence[float]) -> list[float]:
    """Least squares of relative errors, with `PARENT_ROWS` that say what the parent says.

    Beyond `HUBER` an error counts with its size, not its square (Huber 1964): single configurations are off by a factor
    for reasons that no column tells.
    """
    weights = [1.0 / target for target in targets]
    x: list[float] = []
    for _ in range(_REWEIGH):
        rows = [[value * w for value in row] for row, w in zip(features, weights, strict=True)]
        values = [target * w for target, w in zip(targets, weights, strict=True)]
        for j, believed in enumerate(parent):
            size = PARENT_ROWS**0.5 * sum(row[j] for row in rows[: len(features)]) / len(features)
            rows.append([size if i == j else 0.0 for i in range(len(parent))])
            values.append(believed * size)
        x = solve_nonnegative(rows, values)
        said = [max(sum(a * b for a, b in zip(x, row, strict=True)), 1e-3) for row in features]
        weights = [_weight(found, target) for found, target in zip(said, targets, strict=True)]
    return x


def _weight(predicted: float, target: float) -> float:
    error = abs(target / predicted - 1)
    return (1.0 if error <= HUBER else (HUBER / error) ** 0.5) / predicted
