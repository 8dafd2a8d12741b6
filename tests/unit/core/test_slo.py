from headway.core.request import Slo
from headway.core.slo import Targets

ALL = Targets(ttft_ms=200, tpot_ms=30, e2e_ms=5000)


def test_deadlines_count_from_when_a_request_was_sent() -> None:
    assert ALL.slo(1_000) == Slo(200_001_000, 30_000_000, 5_000_001_000)


def test_what_is_not_promised_has_no_deadline() -> None:
    assert Targets().slo(1_000) == Slo()


def test_a_picture_is_promised_its_end_only() -> None:
    assert ALL.slo(1_000, is_text=False) == Slo(e2e_deadline_ns=5_000_001_000)
