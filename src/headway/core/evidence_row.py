"""The record of one request as the world sees it (CONTRACT, Evidence): one shape for server, files and simulator."""

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Final, Union, get_args, get_origin, get_type_hints

import msgspec

from headway.core.decisions import Decision
from headway.core.evidence import EvidenceRecord
from headway.core.units import Ns, ms_from_ns

# What the wire calls otherwise, or shows in another unit.
_INTERNAL: Final = ("started_ns", "ended_ns")
_FIELDS: Final = tuple(name for name in EvidenceRecord.__struct_fields__ if name not in _INTERNAL)
_SHAPED: Final = ("segments", "decisions")
STARTED: Final = "started_ms"  # first byte of the request, since the run began: what a replay goes by


def evidence_row(record: EvidenceRecord) -> dict[str, object]:
    """Return the fields of a record by name, in the order of `evidence_columns`."""
    row = {name: getattr(record, name) for name in _FIELDS}
    row["decisions"] = [_decision(decision, record.started_ns) for decision in record.decisions]
    row[STARTED] = ms_from_ns(record.started_ns)
    return row


def evidence_table(records: Sequence[EvidenceRecord]) -> dict[str, list[object]]:
    """Return the rows of records as columns, which costs a fifth of building each row."""
    table: dict[str, list[object]] = {
        name: [getattr(record, name) for record in records] for name in _FIELDS if name != "decisions"
    }
    table["decisions"] = [
        [_decision(decision, record.started_ns) for decision in record.decisions] for record in records
    ]
    table[STARTED] = [ms_from_ns(record.started_ns) for record in records]
    return table


def _decision(decision: Decision, started_ns: Ns) -> dict[str, object]:
    return {
        "level": decision.level,
        "at_ms": ms_from_ns(decision.at_ns - started_ns),  # since the request's first byte
        "kind": decision.kind,
        "chosen": decision.chosen,
        "reason": decision.reason,
        "alternatives": [msgspec.structs.asdict(alternative) for alternative in decision.alternatives],
    }


def evidence_columns() -> dict[str, type]:
    """Return the plain type of every field of a row; `dict` for segments (name to ms), `list` for decisions.

    A file's columns come from here and not from its rows: those of optional fields that are empty tell no type.
    """
    hints = get_type_hints(EvidenceRecord)
    shaped: dict[str, type] = {"segments": dict, "decisions": list}
    columns = {name: shaped[name] if name in _SHAPED else plain_type(hints[name]) for name in _FIELDS}
    return {**columns, STARTED: float}


def plain_type(hint: object) -> type:
    """Return the type under an optional field or a NewType. Raises TypeError for what is not plain."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (inner for inner in get_args(hint) if inner is not NoneType)
    hint = getattr(hint, "__supertype__", hint)
    if not isinstance(hint, type):
        raise TypeError(f"evidence has a field of type {hint}, which no column holds")
    return hint
