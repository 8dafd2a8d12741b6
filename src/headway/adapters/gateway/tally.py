"""What requests used, counted from their evidence by day (UTC), tenant and model (SPEC H6)."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from headway.adapters.gateway.job_ports import Place, Usage
from headway.core.evidence import EvidenceRecord
from headway.core.ids import ModelId, TenantId
from headway.core.units import NS_PER_MS, NS_PER_S, Ns, ns_from_s, s_from_ns

COUNTED: Final = (  # what a row of usage holds, after `device_ns` as `Usage` has it
    "device_ns",
    "images",
    "frames",
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
)


def day_of(unix_ns: Ns) -> str:
    """`2026-11-29`."""
    return datetime.fromtimestamp(unix_ns // NS_PER_S, UTC).date().isoformat()


def used(place: Place, counts: Mapping[str, int]) -> Usage:
    """A row as clients see it; `counts` has all of `COUNTED`."""
    day, tenant, model = place
    rest = (counts[name] for name in COUNTED[1:])
    return Usage(TenantId(tenant), ModelId(model), day, s_from_ns(counts["device_ns"]), *rest)


def counts_of(used: Usage) -> dict[str, int]:
    """The same as what is added up."""
    return {"device_ns": ns_from_s(used.gpu_seconds)} | {name: getattr(used, name) for name in COUNTED[1:]}


class Tally:
    """Sums by place."""

    def __init__(self) -> None:
        self.sums: dict[Place, dict[str, int]] = {}

    def observe(self, record: EvidenceRecord, unix_ns: Ns) -> bool:
        """A request ended. False where there is nothing to count. Of pictures this counts the device's time alone:
        those that are kept are metered with what they are, and must not come here."""
        if record.replica is None or record.model is None:
            return False
        device_ns = round((record.device_ms or 0.0) * NS_PER_MS)
        counts = dict.fromkeys(COUNTED, 0) | {"device_ns": device_ns}
        if record.prompt_tokens is not None:
            counts |= {
                "requests": 1,
                "prompt_tokens": record.prompt_tokens,
                "cached_tokens": record.cached_tokens,
                "output_tokens": record.output_tokens,
            }
        elif not device_ns:
            return False
        self.add((day_of(unix_ns), record.tenant, record.model), counts)
        return True

    def add(self, place: Place, counts: Mapping[str, int]) -> None:
        """`counts` has all of `COUNTED`."""
        before = self.sums.get(place)
        self.sums[place] = dict(counts) if before is None else {name: before[name] + counts[name] for name in COUNTED}

    def take(self) -> dict[Place, dict[str, int]]:
        """All of it, which is then forgotten here."""
        taken, self.sums = self.sums, {}
        return taken
