"""Judges predictions of closed loops against measured TTFT and TPOT. Called by `fidelity.py silicon`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from silicon_rows import RULES, Row, read

from headway.cost.measured import Correction, Key, predict
from headway.cost.measured_fit import Measurement, fit_corrections

TRUSTED = 0.25  # 9 of 10 within so much, and at least so many rows:
ROWS_MIN = 5


def measurement(row: Row) -> Measurement:
    return Measurement(row.deployment(), row.engine, row.load, row.ttft_ms, row.tpot_ms)


def judge(path: Path, known: Mapping[Key, Correction]) -> None:
    """Print errors of the corrections that are shipped on every usable row."""
    rows = _usable(path)
    _table([(row, known) for row in rows])


def split(path: Path) -> None:
    """Print errors of each half of the configurations under a fit to the other half."""
    rows = _usable(path)
    halves = [[row for row in rows if row.is_first is first] for first in (True, False)]
    fits = [fit_corrections([measurement(row) for row in half]) for half in halves]
    print(f"two halves of {len(halves[0])} and {len(halves[1])} rows, each judged by a fit to the other\n")
    _table([(row, fit) for half, fit in zip(halves, reversed(fits), strict=True) for row in half])


def leave_out(path: Path, what: Literal["model", "device"]) -> None:
    """Print errors on each model, or device, under a fit to all others."""
    rows = _usable(path)
    judged: list[tuple[Row, Mapping[Key, Correction]]] = []
    for name in sorted({getattr(row, what) for row in rows}):
        fit = fit_corrections([measurement(row) for row in rows if getattr(row, what) != name])
        judged += [(row, fit) for row in rows if getattr(row, what) == name]
    _table(judged)


def _usable(path: Path) -> list[Row]:
    rows, left_out = read(path)
    told = ", ".join(f"{count} {why}" for why, count in left_out.most_common())
    configurations = len({row.configuration for row in rows})
    print(f"{path.name}: {len(rows)} rows of {configurations} configurations are used; left out: {told}\n")
    return rows


def _table(rows: Sequence[tuple[Row, Mapping[Key, Correction]]]) -> None:
    groups: dict[tuple[str, str, str, str], list[tuple[float, float, int]]] = {}
    for row, known in rows:
        found = predict(row.deployment(), row.engine, row.load, known)
        errors = (found.tpot_ms / row.tpot_ms - 1, found.ttft_ms / row.ttft_ms - 1, len(found.near))
        for group in (
            ("all", "", "", ""),
            (row.engine, "all", "", ""),
            (row.engine, row.model, row.device, row.dtype),
        ):
            groups.setdefault(group, []).append(errors)
    print("| engine | model | device | type | n | TPOT median, p90, bias | TTFT median, p90, bias | |")
    print("|---|---|---|---|---|---|---|---|")
    for group in sorted(groups, key=lambda g: (g[0] != "all", g[0], g[1] != "all", g)):
        errors_of = groups[group]
        doubts = "" if "all" in group else _doubts(errors_of)
        tpot, ttft = [e[0] for e in errors_of], [e[1] for e in errors_of]
        print(f"| {' | '.join(group)} | {len(tpot)} | {_shown(tpot)} | {_shown(ttft)} | {doubts} |")


def _shown(errors: Sequence[float]) -> str:
    sizes, signed = sorted(map(abs, errors)), sorted(errors)
    return f"{_rank(sizes, 0.5):.1%}, {_rank(sizes, 0.9):.1%}, {_rank(signed, 0.5):+.1%}"


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _doubts(errors: Sequence[tuple[float, float, int]]) -> str:
    doubts = []
    if min(near for _, _, near in errors) < 4:
        doubts.append("no rows of its own in the fit")
    if len(errors) < ROWS_MIN:
        doubts.append("few rows")
    for name, place in (("TPOT", 0), ("TTFT", 1)):
        if _rank(sorted(abs(one[place]) for one in errors), 0.9) > TRUSTED:
            doubts.append(f"do not trust {name}")
    return "; ".join(doubts)


def write(path: Path, out: Path) -> None:
    """Fit every usable row and write the corrections as the module that the product ships."""
    rows, _ = read(path)
    found = fit_corrections([measurement(row) for row in rows])
    lines = [
        '"""Corrections fitted to published closed loops.',
        "",
        "Written by `python benchmarks/fidelity.py silicon FILE --write MODULE`, from systems/silicon_sample.csv of",
        "aiconfigurator-core 0.12.0 (PyPI, Apache-2.0), the half of its configurations that is open here:",
        f"{len(rows)} rows, filtered as `benchmarks/silicon_rows.py` says. How far off such a fit is on configurations",
        "that it has not seen: docs/simulator.md, Accuracy.",
        '"""',
        "",
        "from collections.abc import Mapping",
        "from typing import Final",
        "",
        "from headway.cost.measured import Correction, Key",
        "",
        "# rows, scale, step ms, row ms; base ms, prompt, crowd, text ms, texts ms",
        "CORRECTIONS: Final[Mapping[Key, Correction]] = {",
    ]
    for key, one in found.items():
        numbers = (one.scale, one.step_ms, one.row_ms, one.base_ms, one.prompt, one.crowd, one.text_ms, one.texts_ms)
        lines.append(f"    {_tuple(key)}: Correction({one.rows}, {', '.join(f'{n:.4g}' for n in numbers)}),")
    out.write_text("\n".join([*lines, "}"]) + "\n")


def _tuple(key: Key) -> str:
    inside = ", ".join(f'"{part}"' for part in key)
    return f"({inside},)" if len(key) == 1 else f"({inside})"


def rules() -> str:
    return RULES
