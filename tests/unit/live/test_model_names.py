"""Names: what upstreams list and settings say become one directory (SPEC A6)."""

import logging

import pytest

from headway.adapters.upstream.look import UpstreamCard
from headway.adapters.upstream.settings import UpstreamSettings
from headway.core.ids import NodeId
from headway.live.model_names import Adapter, ModelNames, Offer, offer_of

A, B = NodeId("up-a"), NodeId("up-b")
PLAIN = UpstreamSettings("a", "http://a:1")
NAMED = UpstreamSettings("a", "http://a:1", models={"m": "theirs"})


def card(name: str, parent: str | None = None) -> UpstreamCard:
    return UpstreamCard(name, parent)


def test_without_names_in_the_settings_all_that_is_listed_is_served() -> None:
    offer = offer_of(PLAIN, [card("x"), card("lora", "x")])
    assert offer == Offer({"x": "x"}, {"lora": Adapter("x", "lora")})
    assert offer.own_name("x", "lora") == "lora"
    assert offer.own_name("y", "lora") is None


def test_names_in_the_settings_leave_the_rest_out_and_keep_adapters_of_their_models() -> None:
    offer = offer_of(NAMED, [card("theirs"), card("other"), card("l1", "theirs"), card("l2", "other")])
    assert offer == Offer({"m": "theirs"}, {"l1": Adapter("m", "l1")})


def test_settings_may_name_an_adapter() -> None:
    settings = UpstreamSettings("a", "http://a:1", models={"m": "theirs", "tuned": "l1"})
    offer = offer_of(settings, [card("theirs"), card("l1", "theirs")])
    assert offer == Offer({"m": "theirs"}, {"tuned": Adapter("m", "l1")})


def test_an_upstream_that_lists_nothing_serves_what_the_settings_say() -> None:
    assert offer_of(NAMED, []) == Offer({"m": "theirs"})
    assert offer_of(PLAIN, []) == Offer({})


def test_a_name_of_our_own_engines_is_not_taken_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    names = ModelNames(["own"], {}, {})
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            kept = names.offer(A, PLAIN, Offer({"own": "own", "x": "x"}))
    assert kept == Offer({"x": "x"})
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_aliases_and_adapters_lead_to_a_model() -> None:
    names = ModelNames(["own"], {"alias": "x", "small": "own", "tuned": "lora"}, {})
    names.offer(A, PLAIN, Offer({"x": "x"}, {"lora": Adapter("x", "lora")}))
    asked = ("x", "alias", "lora", "tuned", "small", "nobody")
    assert [names.resolve(name) for name in asked] == [
        ("x", None),
        ("x", None),
        ("x", "lora"),
        ("x", "lora"),
        ("own", None),
        None,
    ]


def test_a_model_goes_with_its_last_upstream_and_is_remembered() -> None:
    names = ModelNames([], {}, {})
    for node in (A, B):
        names.offer(node, PLAIN, Offer({"x": "x"}))
    names.relayed["x"].bytes_per_token.observe(1000, 4.0, 2000)
    learned = names.relayed["x"].bytes_per_token.value
    names.withdraw(A)
    assert names.resolve("x") == ("x", None)
    names.withdraw(B)
    assert names.resolve("x") is None
    names.offer(B, PLAIN, Offer({"x": "x"}))
    assert names.relayed["x"].bytes_per_token.value == learned < 4.0


def test_names_that_may_stand_for_others_are_known() -> None:
    names = ModelNames([], {"alias": "x"}, {"x": ("y",)}, ["z"])
    assert names.renamed == {"x", "y", "z"}
