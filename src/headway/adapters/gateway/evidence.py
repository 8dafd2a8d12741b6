"""Ledger and evidence as CONTRACT shows them on the wire."""

from collections.abc import Sequence

import msgspec

from headway.adapters.gateway.tenants import Tenant
from headway.core.decisions import Decision
from headway.core.evidence import EvidenceRecord
from headway.core.ledger import AccountView
from headway.core.units import ms_from_ns

# What the wire calls otherwise, or shows in another unit.
_INTERNAL = frozenset({"started_ns", "ended_ns", "decisions", "trace_id"})


def evidence_object(records: Sequence[EvidenceRecord], trace_id: str | None) -> dict[str, object]:
    """Return the record of a request; with several choices that of the first, and all of them under `choices`."""
    out = _record(records[0])
    out["trace_id"] = trace_id
    if len(records) > 1:
        out["choices"] = [_record(record) for record in records]
    return out


def _record(record: EvidenceRecord) -> dict[str, object]:
    out: dict[str, object] = {name: getattr(record, name) for name in record.__struct_fields__ if name not in _INTERNAL}
    out["decisions"] = [_decision(decision, record.started_ns) for decision in record.decisions]
    return out


def _decision(decision: Decision, started_ns: int) -> dict[str, object]:
    return {
        "level": decision.level,
        "at_ms": ms_from_ns(decision.at_ns - started_ns),  # since the request's first byte
        "kind": decision.kind,
        "chosen": decision.chosen,
        "reason": decision.reason,
        "alternatives": [msgspec.structs.asdict(alternative) for alternative in decision.alternatives],
    }


def ledger_object(accounts: Sequence[tuple[AccountView, float]], tenant: Tenant) -> dict[str, object]:
    """Return every account that the tenant may see: its own and those of no tenant; an admin sees all."""
    own = f"tenant/{tenant.id}/"
    return {
        "accounts": [
            {**msgspec.structs.asdict(view), "age_ms": age_ms}
            for view, age_ms in accounts
            if tenant.admin or not view.name.startswith("tenant/") or view.name.startswith(own)
        ]
    }
