"""One request at its end: the server's evidence beside what its client saw, and the row of a run that holds both."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from headway.bench.gap_counts import GapsNs
from headway.bench.outcome import Outcome
from headway.bench.summary import Targets, meets
from headway.core.evidence import EvidenceRecord
from headway.core.evidence_row import evidence_columns, evidence_row
from headway.core.units import NS_PER_MS, Ns

TOP_SHARE: Final = 0.1  # of a request's gaps, for Mooncake's form of the time between tokens


class RequestEnd(msgspec.Struct, frozen=True):
    """A request that has ended. `outcome` is its client's view, `targets` what it was promised."""

    evidence: EvidenceRecord
    outcome: Outcome
    model: str
    targets: Targets = Targets()
    workload: str = ""
    pool: str = ""  # that served it; empty: none did


class Gaps(msgspec.Struct, frozen=True):
    """Times between the tokens of one request, in milliseconds (REFERENCE 1); the pooled form is the run's."""

    mean_ms: float
    top10_ms: float  # mean of the longest tenth
    max_ms: float


# The client's columns of a row, after the evidence.
CLIENT_COLUMNS: Final[Mapping[str, type]] = {
    "workload": str,
    "pool": str,
    "model": str,
    "prompt_tokens": int,
    "sent_ns": int,
    "ended_ns": int,
    "error": str,
    "client_ttft_ms": float,
    "client_tpot_ms": float,
    "client_e2e_ms": float,
    "itl_mean_ms": float,
    "itl_top10_ms": float,
    "itl_max_ms": float,
    "met": bool,  # every target
    "met_ttft": bool,  # null: no such target
    "met_tpot": bool,
    "met_e2e": bool,
    "met_deadlines": bool,  # token n by TTFT + (n - 1) TPOT; null without both targets
}


def request_columns() -> dict[str, type]:
    """Return every column of a run's requests: those of a server's export, then the client's."""
    return {**evidence_columns(), **CLIENT_COLUMNS}


def gaps_ns(times_ns: Sequence[Ns]) -> GapsNs:
    """Return the times between tokens; empty for fewer than two."""
    times = np.array(times_ns, dtype=np.int64)
    return times[1:] - times[:-1]


def request_row(end: RequestEnd, gaps: GapsNs) -> dict[str, object]:
    """Return the row of a request, in the order of `request_columns`."""
    outcome, targets = end.outcome, end.targets
    ttft, tpot = outcome.ttft_ns, outcome.tpot_ns
    spread = _gaps(gaps)
    return {
        **evidence_row(end.evidence),
        "workload": end.workload,
        "pool": end.pool,
        "model": end.model,
        "prompt_tokens": outcome.prompt_tokens,
        "sent_ns": outcome.sent_ns,
        "ended_ns": outcome.ended_ns,
        "error": outcome.error,
        "client_ttft_ms": None if ttft is None else ttft / NS_PER_MS,
        "client_tpot_ms": None if tpot is None else tpot / NS_PER_MS,
        "client_e2e_ms": (outcome.ended_ns - outcome.sent_ns) / NS_PER_MS,
        "itl_mean_ms": None if spread is None else spread.mean_ms,
        "itl_top10_ms": None if spread is None else spread.top10_ms,
        "itl_max_ms": None if spread is None else spread.max_ms,
        "met": meets(outcome, targets),
        "met_ttft": None if targets.ttft_ms is None else meets(outcome, Targets(ttft_ms=targets.ttft_ms)),
        "met_tpot": None if targets.tpot_ms is None else meets(outcome, Targets(tpot_ms=targets.tpot_ms)),
        "met_e2e": None if targets.e2e_ms is None else meets(outcome, Targets(e2e_ms=targets.e2e_ms)),
        "met_deadlines": meets_deadlines(outcome, targets),
    }


def _gaps(gaps: GapsNs) -> Gaps | None:
    count = len(gaps)
    if not count:
        return None
    top = max(1, round(count * TOP_SHARE))
    longest = np.partition(gaps, count - top)[count - top :]
    return Gaps(
        float(gaps.sum()) / count / NS_PER_MS, float(longest.sum()) / top / NS_PER_MS, float(gaps.max()) / NS_PER_MS
    )


def meets_deadlines(outcome: Outcome, targets: Targets) -> bool | None:
    """True when token n came by TTFT + (n - 1) TPOT, which delaying tokens cannot game; None without both targets."""
    if targets.ttft_ms is None or targets.tpot_ms is None:
        return None
    if outcome.error is not None or not outcome.times_ns:
        return False
    due_ns = outcome.sent_ns + targets.ttft_ms * NS_PER_MS
    late = np.array(outcome.times_ns, dtype=np.int64) - np.arange(len(outcome.times_ns)) * (targets.tpot_ms * NS_PER_MS)
    return bool(late.max() <= due_ns)
