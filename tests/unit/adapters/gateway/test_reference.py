from pathlib import Path

from headway.adapters.gateway.fields import HARMLESS, UNSUPPORTED
from headway.adapters.gateway.reference import api_reference, type_text
from headway.adapters.gateway.schema import ChatBody

PAGE = Path(__file__).parents[4] / "docs/api.md"


def test_the_page_is_the_one_in_the_tree() -> None:
    assert PAGE.read_text(encoding="utf-8") == api_reference(), (
        "run `python -m headway.adapters.gateway.reference > docs/api.md`"
    )


def test_every_field_is_on_the_page() -> None:
    page = api_reference()
    assert [name for name in (*ChatBody.__struct_fields__, *HARMLESS, *UNSUPPORTED) if f"| `{name}`" not in page] == []


def test_types_are_readable() -> None:
    schema = {"anyOf": [{"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 3}, {"type": "null"}]}
    assert type_text(schema, {}) == "list of integer (≥ 0) (items ≤ 3)"
