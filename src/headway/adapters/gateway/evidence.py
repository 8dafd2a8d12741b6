"""Ledger and evidence as CONTRACT shows them on the wire."""

from collections.abc import Sequence

import msgspec

from headway.adapters.gateway.tenants import Tenant
from headway.core.evidence import EvidenceRecord
from headway.core.evidence_row import evidence_row
from headway.core.ledger import AccountView


def evidence_object(records: Sequence[EvidenceRecord], trace_id: str | None) -> dict[str, object]:
    """Return the record of a request; with several choices that of the first, and all of them under `choices`."""
    rows = [evidence_row(record) for record in records]
    for row in rows:
        del row["trace_id"]  # choices share their request's
    out = dict(rows[0])
    out["trace_id"] = trace_id
    if len(rows) > 1:
        out["choices"] = rows
    return out


def attempts_object(attempts: Sequence[tuple[int, EvidenceRecord]]) -> dict[str, object]:
    """Return the record of a job's last attempt, and all of them by number under `attempts`."""
    rows: list[dict[str, object]] = [{"attempt": number, **evidence_row(record)} for number, record in attempts]
    return {**evidence_row(attempts[-1][1]), "attempts": rows}


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
