from headway.adapters.gateway.evidence import evidence_object, ledger_object
from headway.adapters.gateway.tenants import Tenant
from headway.core.decisions import Alternative, Decision
from headway.core.evidence import FrontMarks, WorkerMarks, evidence_record
from headway.core.ids import NodeId, RequestId, TenantId
from headway.core.ledger import AccountView
from headway.core.units import NS_PER_MS

CONTRACT_FIELDS = [
    "segments",
    "queue_wait_ms",
    "input_transfer_bytes",
    "input_transfer_ms",
    "prefill_ms",
    "decode_ms",
    "idle_gap_ms",
    "overlap_ratio",
    "stream_output_ms",
    "transfer_bytes",
    "handoff_ms",
    "recompute_ms",
    "network_wait_ms",
    "communication_ms",
    "exposed_comm_ms",
    "model_load_ms",
    "cold_start",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "cached_tokens",
    "preemptions",
    "steps_done",
    "replica",
    "tenant",
    "decisions",
]


def record(name: str = "req-1") -> object:
    def ms(value: int) -> int:
        return value * NS_PER_MS

    decision = Decision("pool", ms(12), "route", "rep-0", "lightest", (Alternative("rep-1", 2.0),))
    worker = WorkerMarks(NodeId("rep-0"), ms(14), ms(15), ms(20), ms(30), ms(30), steps=3)
    front = FrontMarks(
        RequestId(name), TenantId("a"), ms(10), ms(11), ms(12), ms(13), ms(21), ms(31), ms(32), 3, decisions=(decision,)
    )
    return evidence_record(front, worker)


def test_every_field_of_the_contract_is_there() -> None:
    # SPEC I1
    out = evidence_object([record()], "trace")
    assert [name for name in CONTRACT_FIELDS if name not in out] == []
    assert out["trace_id"] == "trace"


def test_segments_add_up_to_e2e() -> None:
    # SPEC I2
    out = evidence_object([record()], "trace")
    assert sum(out["segments"].values()) == out["e2e_ms"] == 22


def test_decisions_tell_their_alternatives_and_when_since_arrival() -> None:
    # SPEC L-3
    (decision,) = evidence_object([record()], "trace")["decisions"]
    assert decision == {
        "level": "pool",
        "at_ms": 2.0,
        "kind": "route",
        "chosen": "rep-0",
        "reason": "lightest",
        "alternatives": [{"name": "rep-1", "score": 2.0}],
    }


def test_several_choices_are_told_beside_the_first() -> None:
    out = evidence_object([record("req-1"), record("req-2")], "trace")
    assert out["request"] == "req-1"
    assert [choice["request"] for choice in out["choices"]] == ["req-1", "req-2"]
    assert "choices" not in evidence_object([record()], "trace")


def test_an_account_has_the_contracts_fields() -> None:
    # SPEC L-2
    view = AccountView("replica/rep-0/kv_blocks", "rep-0", "blocks", "level", 64, 1, 2)
    (account,) = ledger_object([(view, 7.5)], Tenant(TenantId("a")))["accounts"]
    assert account == {
        "name": "replica/rep-0/kv_blocks", "owner": "rep-0", "unit": "blocks", "kind": "level", "capacity": 64,
        "reserved": 1, "used": 2, "cache": False, "age_ms": 7.5,
    }  # fmt: skip
