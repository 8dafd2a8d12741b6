"""Requests at their end: the server's evidence beside what their clients saw, and the table of a run that holds both.

Tables are made of a few hundred requests at once: numbers of each request alone cost as much as to simulate it.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

import msgspec
import numpy as np

from headway.bench.outcome import Outcome
from headway.bench.summary import Targets
from headway.core.errors import InvariantError
from headway.core.evidence import EvidenceRecord
from headway.core.evidence_row import evidence_columns, evidence_table
from headway.core.units import NS_PER_MS

Floats: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]
Ints: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Mask: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]
Column: TypeAlias = Sequence[object] | Floats | Ints
Table: TypeAlias = Mapping[str, Column]  # nan in an array: the field does not apply

TOP_SHARE: Final = 0.1  # of a request's gaps, for Mooncake's form of the time between tokens
GAP_BITS: Final = 50  # ns of a gap: 13 days
ENDS_MAX: Final = 4096  # requests of one table


class RequestEnd(msgspec.Struct, frozen=True):
    """A request that has ended. `outcome` is its client's view, `targets` what it was promised."""

    evidence: EvidenceRecord
    outcome: Outcome
    targets: Targets = Targets()
    workload: str = ""
    pool: str = ""  # that served it; empty: none did


# The client's columns, after the evidence. Gaps are times between the tokens of one request (REFERENCE 1).
CLIENT_COLUMNS: Final[Mapping[str, type]] = {
    "workload": str,
    "pool": str,
    "sent_ns": int,
    "ended_ns": int,
    "error": str,
    "wanted_tokens": int,  # of output, as the workload says; null: nobody knows
    "images": int,  # that came
    "video_s": float,  # seconds of video that came; null: none, or its frames per second are not known
    "client_ttft_ms": float,
    "client_tpot_ms": float,
    "client_e2e_ms": float,
    "itl_mean_ms": float,
    "itl_top10_ms": float,  # mean of the longest tenth
    "itl_max_ms": float,
    "met": bool,  # every target
    "met_ttft": bool,  # null: no such target
    "met_tpot": bool,
    "met_e2e": bool,
    "met_deadlines": bool,  # token n by TTFT + (n - 1) TPOT, which delaying tokens cannot game; null without both
}


def request_columns() -> dict[str, type]:
    """Return every column of a run's requests: those of a server's export, then the client's."""
    return {**evidence_columns(), **CLIENT_COLUMNS}


class Tokens:
    """When the tokens of some requests came, all in one array."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        counts = [len(outcome.times_ns) for outcome in outcomes]
        self.count = np.array(counts, dtype=np.int64)
        times = chain.from_iterable(outcome.times_ns for outcome in outcomes)
        self.times_ns = np.fromiter(times, dtype=np.int64, count=sum(counts))
        self.owner = np.repeat(np.arange(len(outcomes), dtype=np.int64), self.count)
        self.start = np.cumsum(self.count) - self.count
        is_gap = self.owner[1:] == self.owner[:-1]
        self.gaps_ns: Ints = (self.times_ns[1:] - self.times_ns[:-1])[is_gap]
        self.gap_owner: Ints = self.owner[1:][is_gap]

    def at(self, place: Ints) -> Floats:
        """Return the time of one token of each request; nan for those without tokens."""
        out = np.full(len(self.count), np.nan)
        some = self.count > 0
        out[some] = self.times_ns[place[some]]
        return out

    def gap_columns(self) -> dict[str, Floats]:
        """Return mean, mean of the longest tenth, and longest gap of each request, in milliseconds."""
        gaps, total = np.maximum(self.count - 1, 0), len(self.gaps_ns)
        if total and (int(self.gaps_ns.max()) >> GAP_BITS or len(self.count) > ENDS_MAX):
            raise InvariantError(
                f"{len(self.count)} requests with a gap of {self.gaps_ns.max()} ns are too much to sort"
            )
        ordered = np.sort(self.gap_owner << GAP_BITS | self.gaps_ns) & ((1 << GAP_BITS) - 1)
        upto = np.concatenate([[0], np.cumsum(ordered)])
        last = np.cumsum(gaps)
        top = np.minimum(gaps, np.maximum(1, np.rint(gaps * TOP_SHARE).astype(np.int64)))
        longest = ordered[np.maximum(last - 1, 0)] if total else np.zeros(len(gaps), dtype=np.int64)
        divisor = np.where(gaps > 0, gaps, np.nan) * NS_PER_MS
        return {
            "itl_mean_ms": (upto[last] - upto[last - gaps]) / divisor,
            "itl_top10_ms": (upto[last] - upto[last - top]) / (divisor / gaps.clip(1) * top.clip(1)),
            "itl_max_ms": longest / (divisor / gaps.clip(1)),
        }

    def latest(self, due_ns: Floats, each_ns: Floats) -> Floats:
        """Return how late the latest token of each request is, token n being due at `due_ns` + (n - 1) `each_ns`."""
        place = np.arange(len(self.times_ns)) - self.start[self.owner]
        late = self.times_ns - due_ns[self.owner] - place * each_ns[self.owner]
        out = np.full(len(self.count), np.nan)
        some = self.count > 0
        if some.any():
            out[some] = np.maximum.reduceat(late, self.start[some])
        return out


def table_of(ends: Sequence[RequestEnd], tokens: Tokens) -> dict[str, Column]:
    """Return the table of some requests, in the order of `request_columns`."""
    outcomes = [end.outcome for end in ends]
    sent_ns = np.array([outcome.sent_ns for outcome in outcomes], dtype=np.int64)
    ended_ns = np.array([outcome.ended_ns for outcome in outcomes], dtype=np.int64)
    output = np.array([outcome.output_tokens for outcome in outcomes], dtype=np.float64)
    first_ns, last_ns = tokens.at(tokens.start), tokens.at(tokens.start + tokens.count - 1)
    times = {
        "client_ttft_ms": (first_ns - sent_ns) / NS_PER_MS,
        "client_tpot_ms": (last_ns - first_ns) / np.where(output > 1, output - 1, np.nan) / NS_PER_MS,
        "client_e2e_ms": (ended_ns - sent_ns) / NS_PER_MS,
    }
    return {
        **evidence_table([end.evidence for end in ends]),
        "workload": [end.workload for end in ends],
        "pool": [end.pool for end in ends],
        "sent_ns": sent_ns,
        "ended_ns": ended_ns,
        "error": [outcome.error for outcome in outcomes],
        "wanted_tokens": [outcome.wanted_tokens for outcome in outcomes],
        "images": [outcome.images for outcome in outcomes],
        "video_s": np.array([outcome.video_s for outcome in outcomes], dtype=np.float64),
        **times,
        **tokens.gap_columns(),
        **_claims(ends, times, tokens, sent_ns),
    }


def _claims(
    ends: Sequence[RequestEnd], times: Mapping[str, Floats], tokens: Tokens, sent_ns: Ints
) -> dict[str, Column]:
    """Which targets were met; a request that failed, or without a token, meets none (`summary.meets`)."""
    is_whole = np.array([end.outcome.error is None for end in ends], dtype=np.bool_) & (tokens.count > 0)
    promised = {
        "ttft": np.array([end.targets.ttft_ms for end in ends], dtype=np.float64),
        "tpot": np.array([end.targets.tpot_ms for end in ends], dtype=np.float64),
        "e2e": np.array([end.targets.e2e_ms for end in ends], dtype=np.float64),
    }
    met = is_whole.copy()
    claims: dict[str, Column] = {}
    for name, target in promised.items():
        taken = np.nan_to_num(times[f"client_{name}_ms"])  # a single token has no TPOT to miss
        kept = is_whole & (np.isnan(target) | (taken <= target))
        met &= kept
        claims[f"met_{name}"] = _claimed(kept, np.isnan(target))
    late = tokens.latest(sent_ns + promised["ttft"] * NS_PER_MS, promised["tpot"] * NS_PER_MS)
    has_both = ~np.isnan(promised["ttft"]) & ~np.isnan(promised["tpot"])
    claims["met_deadlines"] = _claimed(is_whole & (np.nan_to_num(late) <= 0), ~has_both)
    return {"met": met.tolist(), **claims}


def _claimed(kept: Mask, is_none: Mask) -> list[object]:
    return [None if none else claim for claim, none in zip(kept.tolist(), is_none.tolist(), strict=True)]
