"""The names on the wire are those of the contract, where it lies beside the checkout."""

import re
from pathlib import Path

import pytest
from tests.unit.adapters.gateway.fakes import FakeServing, chat, get, post, toy_tokenizer

from headway.adapters.gateway.fields import HARMLESS
from headway.adapters.gateway.openapi import openapi_document
from headway.adapters.gateway.pictures.schema import EditBody
from headway.adapters.gateway.schema import ChatBody
from headway.core.evidence import EvidenceRecord

CONTRACT = Path(__file__).parents[5] / "shared/design/CONTRACT.md"
pytestmark = pytest.mark.skipif(not CONTRACT.is_file(), reason="the contract is not beside this checkout")

LATER_METRICS = {"headway_jobs"}
DIFFUSION_SEGMENTS = {"text_encode", "vae_encode", "denoise", "vae_decode", "upload", "denoise_step"}


def section(title: str) -> str:
    text = CONTRACT.read_text(encoding="utf-8")
    return next(part for part in re.split(r"^## ", text, flags=re.MULTILINE) if part.startswith(title))


def names(text: str, pattern: str) -> set[str]:
    return {name for quoted in re.findall(r"`([^`]+)`", text) for name in re.findall(pattern, quoted)}


def test_every_route_is_served() -> None:
    paths = set(openapi_document()["paths"])
    written = names(section("Routes").split("\n\n")[0], r"^(?:GET |POST )?(/[\w/{}.\[\]|]+)")
    written = {route.rpartition("/")[0] + "/" + last for route in written for last in route.split("/")[-1].split("|")}
    bare = {re.sub(r"\[.*\]", "", route) for route in written}
    promised = bare | {route.replace("[/id]", "/{id}") for route in written}
    assert {"/tokenize", "/v1/models/{id}", "/v1/images/edits", "/v1/videos/{id}/remix"} <= promised
    assert promised - paths == set()


def test_every_metric_is_exposed() -> None:
    text = get(FakeServing(toy_tokenizer()), "/metrics").body.decode()
    promised = names(section("Metrics"), r"headway_\w*[a-z]") - LATER_METRICS
    assert len(promised) > 15
    assert {name for name in promised if f"# TYPE {name} " not in text} == set()


def test_every_body_field_is_in_the_schema() -> None:
    rows = [line for line in section("Request fields").splitlines() if line.startswith("| `") and "| body" in line]
    promised = {name for row in rows if "image" not in row for name in names(row.split("|")[1], r"^\w+$")}
    assert {"priority", "cache_salt", "min_tokens"} <= promised
    assert promised - set(ChatBody.__struct_fields__) - set(HARMLESS) == set()
    painted = {name for row in rows if "image" in row for name in names(row.split("|")[1], r"^(\w+)")}
    assert {"strength", "lora", "deterministic"} <= painted
    assert painted - set(EditBody.__struct_fields__) == set()


def test_every_account_has_the_contracts_fields() -> None:
    promised = set(re.findall(r'"(\w+)"', section("Ledger").split("]}")[0])) - {"accounts", "level", "meter"}
    (account, *_) = get(FakeServing(toy_tokenizer()), "/v1/ledger").json()["accounts"]
    assert set(account) == promised


def test_every_field_of_the_evidence_is_there() -> None:
    text = section("Evidence").split("Beside them:")[1]
    promised = names(text, r"^[a-z0-9_]+$") - DIFFUSION_SEGMENTS
    assert {"ttft_ms", "replica", "decisions"} <= promised
    assert promised - set(EvidenceRecord.__struct_fields__) == set()


def test_an_answer_has_the_cached_tokens() -> None:
    usage = post(FakeServing(toy_tokenizer()), chat()).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
