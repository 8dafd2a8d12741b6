import json

import pytest

from headway.cli import main
from headway.cli.policies import PolicyCard, cards, describe, kinds
from headway.live.config import Config
from headway.live.config_layers import leaves


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["policies", *arguments])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_kinds_are_the_configuration_keys_that_choose_a_policy() -> None:
    chosen = {key.removesuffix(".type") for key, _ in leaves(Config()) if key.endswith(".type")}
    scenario = {"diffusion"}  # chosen by the pools of a scenario; the server has no such replicas
    assert set(kinds()) - scenario == chosen >= {"scheduler.order", "front.router", "executor.pace"}


# SPEC A1
def test_every_policy_says_what_it_sees_and_where_it_is_blind() -> None:
    shown = [card for kind, package in kinds().items() for card in cards(kind, package)]
    assert len(shown) >= len(kinds())
    assert [card.name for card in shown if not (card.sees and card.good_at and card.blind_spot)] == []


def test_one_kind_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "scheduler.order")
    assert text.startswith("scheduler.order\n")
    assert "  fcfs\n" in text
    assert "front.router" not in text.splitlines()


@pytest.mark.parametrize(
    ("asked", "shown"),
    [("order", ["scheduler.order"]), ("front", ["front.admission", "front.router"]), ("pace", ["executor.pace"])],
)
def test_a_part_of_a_key_is_a_filter(asked: str, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, asked).splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == shown


def test_an_unknown_kind_is_a_usage_error_that_names_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["policies", "llm.ordre"])
    assert stopped.value.code == 2
    assert "no policies of kind `llm.ordre`; known are diffusion, executor.pace" in capsys.readouterr().err


def test_json_holds_the_same_policies(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(printed(capsys, "--json"))
    assert {(card["kind"], card["name"]) for card in told} >= {
        ("scheduler.order", "fcfs"),
        ("front.router", "round_robin"),
    }


# SPEC A1
def test_the_routers_of_the_specification_and_their_rivals_are_there() -> None:
    shown = {card.name for card in cards("front.router", kinds()["front.router"])}
    ours = {"round_robin", "least_requests", "least_tokens", "cache_aware", "power_of_two", "cost_aware"}
    field = {"sglang_cache_aware", "dynamo_kv", "llmd_weighted", "llmd_sticky", "preble", "lmetric", "smetric"}
    assert shown >= ours | field | {"dualmap", "mooncake"}


def test_what_is_printed_of_a_policy_names_its_needs_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "front.router")
    told = text[text.index("  llmd_sticky\n") : text.index("  llmd_weighted\n")]
    assert "needs      block_hashes, hit_tokens, in_flight, prefill_tokens_per_s, uncached_in_flight" in told
    assert "affinity = 0.8, penalty_s = 18.0, peak_tokens_per_s = None" in told


def test_parameters_are_shown_with_their_defaults() -> None:
    card = PolicyCard("router", "x", "this", "that", "those", ("requests",), {"queued": "1.0", "seed": "required"})
    text = describe(card)
    assert "    needs      requests" in text
    assert "    params     queued = 1.0, seed = required" in text


def test_a_policy_without_needs_and_parameters_has_no_empty_lines() -> None:
    assert len(describe(PolicyCard("router", "x", "a", "b", "c", (), {})).splitlines()) == 4
