"""Policy discovery."""

import re

import pytest

from headway.core.errors import ConfigError
from headway.sched.registry import PolicyChoice, class_name, discover, select

WORDS = ("queued_tokens", "queued_tokens_spread", "requests", "hit_tokens", "kv_tokens", "kv_usage", "step_ns")
CHUNKS = "headway.sched.llm.policies.chunk"


def test_finds_one_class_per_file_named_after_the_stem() -> None:
    found = discover(CHUNKS)
    assert "constant" in found
    assert all(cls.__name__ == class_name(stem) for stem, cls in found.items())


def test_underscore_files_are_no_policies() -> None:
    assert not [stem for stem in discover("headway.sched.llm.policies") if stem.startswith("_")]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"chunk\.type is 'bogus'; known are .*constant"):
        select(CHUNKS, "chunk", PolicyChoice("bogus"), {})


def test_an_unknown_parameter_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"chunk\.params of 'constant'.*`size`"):
        select(CHUNKS, "chunk", PolicyChoice("constant", {"size": 4}), {})


def test_an_unknown_parameter_leads_to_the_policy_that_has_it_or_to_the_nearest() -> None:
    routers = "headway.sched.router.policies"
    for name, hint in (("queued", "a parameter of least_tokens: set the type first"), ("decoded", "mean 'decode'?")):
        with pytest.raises(ConfigError, match=re.escape(hint)):
            select(routers, "router", PolicyChoice("cost_aware", {name: 1}), dict.fromkeys(WORDS, True))


def test_a_parameter_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"chunk\.params of 'constant'.*>= 1"):
        select(CHUNKS, "chunk", PolicyChoice("constant", {"tokens": 0}), {})
