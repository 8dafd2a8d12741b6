from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from headway.live.config import Config
from headway.live.config_layers import leaves
from headway.live.config_policies import POLICIES, choice_at
from headway.live.config_reference import REFERENCE_HEAD, policies_text, reference, sections
from headway.live.config_texts import TEXTS
from headway.live.config_words import toml_text
from headway.sched.registry import discover

PAGE = Path(__file__).parents[3] / "docs/configuration.md"


SHOWN = list(sections(Config))


class Inner(msgspec.Struct, frozen=True):
    """Inside."""

    kind: Literal["a", "b"] = "a"  # which one
    size: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Outer(msgspec.Struct, frozen=True):
    """Outside."""

    name: str  # its name
    inner: Inner = Inner()


def test_page_is_current() -> None:
    # SPEC M1
    assert PAGE.read_text(encoding="utf-8") == reference(Config, REFERENCE_HEAD), (
        "run `headway config reference > docs/configuration.md`"
    )


def test_every_key_of_the_tree_is_on_the_page() -> None:
    shown = {f"{section.name}.{row.key}".lstrip(".") for section in SHOWN for row in section.rows}
    tables = {section.name for section in SHOWN}
    assert {key for key, _ in leaves(Config())} <= shown | tables


def test_every_key_has_a_meaning() -> None:
    # SPEC M1
    assert not [f"[{section.name}] {row.key}" for section in SHOWN for row in section.rows if not row.comment.strip()]


def test_texts_from_elsewhere_are_of_keys_that_are_there() -> None:
    assert set(TEXTS) <= {f"{section.name}.{row.key}".lstrip(".") for section in SHOWN for row in section.rows}


@pytest.mark.parametrize("key", POLICIES)
def test_a_choice_shows_the_policy_that_runs_and_every_other_with_its_params(key: str) -> None:
    section = next(section for section in SHOWN if section.name == key)
    default = choice_at(Config(), key)
    assert [row.default for row in section.rows] == [toml_text(default.type), toml_text(default.params)]
    text = policies_text(POLICIES[key], key)
    for name, policy in discover(POLICIES[key]).items():
        line = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        assert all(f"`{param}`" in line for param in policy.Params.__struct_fields__)


def test_tables_of_tables_and_lists_of_tables_are_shown() -> None:
    shown = {section.name: [row.key for row in section.rows] for section in SHOWN}
    assert shown["slo.ROUTE"] == ["ttft_ms", "tpot_ms", "e2e_ms"]
    assert shown["auth.keys[]"] == ["hash", "tenant", "admin"]
    assert "## [[auth.keys]]" in PAGE.read_text(encoding="utf-8")


def test_rows_say_type_default_and_comment() -> None:
    outer, inner = sections(Outer)
    assert [(row.key, row.type, row.default, row.comment) for row in outer.rows] == [
        ("name", "text", "required", "its name")
    ]
    assert [(row.key, row.type, row.default, row.comment) for row in inner.rows] == [
        ("kind", '`"a"` or `"b"`', '"a"', "which one"),
        ("size", "integer (≥ 1) or unset", "–", ""),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (None, "–"),
        ("a", '"a"'),
        ((1, 2.5), "[1, 2.5]"),
        ({"a": 1}, "{a = 1}"),
        (Inner(), '{kind = "a"}'),
    ],
)
def test_values_are_written_as_toml(value: object, text: str) -> None:
    assert toml_text(value) == text
