import pytest

from headway.core.errors import ConfigError
from headway.cost.efficiency import EFFICIENCIES, efficiency_of, find_efficiency


def test_every_engine_has_a_set_that_says_where_it_comes_from() -> None:
    """SPEC J3: efficiency factors per engine."""
    assert list(EFFICIENCIES) == ["vllm", "sglang", "trtllm", "headway"]
    assert [entry.name for entry in EFFICIENCIES.values() if not entry.source or len(entry.date) != 7] == []


def test_a_share_above_one_is_refused_by_key() -> None:
    with pytest.raises(ConfigError, match=r"efficiency 'mine' cannot be read: .*compute"):
        efficiency_of({"name": "mine", "compute": 1.5})


def test_an_unknown_engine_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sglang'"):
        find_efficiency("slang")
