from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from headway.live.config import Config
from headway.live.config_layers import leaves
from headway.live.config_reference import REFERENCE_HEAD, reference, sections
from headway.live.config_words import toml_text

PAGE = Path(__file__).parents[3] / "docs/configuration.md"


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
    shown = {f"{section.name}.{row.key}".lstrip(".") for section in sections(Config) for row in section.rows}
    tables = {section.name for section in sections(Config)}
    assert {key for key, _ in leaves(Config())} <= shown | tables


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
