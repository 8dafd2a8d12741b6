from collections.abc import Iterator, Mapping

from tests.unit.adapters.gateway.fakes import FakeServing, get, toy_tokenizer

from headway.adapters.gateway.fields import HARMLESS, UNSUPPORTED
from headway.adapters.gateway.openapi import openapi_document
from headway.adapters.gateway.schema import ChatBody

DOCUMENT = openapi_document()


def test_every_route_is_described_and_every_described_route_exists() -> None:
    serving = FakeServing(toy_tokenizer())
    for path, methods in DOCUMENT["paths"].items():
        reply = get(serving, path.replace("{id}", "x"), method="PATCH")
        assert reply.status == 405, path
        assert {method.upper() for method in methods} <= set(reply.headers["allow"].split(", "))


def test_every_accepted_field_is_described() -> None:
    properties = DOCUMENT["components"]["schemas"]["ChatBody"]["properties"]
    assert set(properties) == set(ChatBody.__struct_fields__) | set(HARMLESS) | set(UNSUPPORTED)


def test_a_served_field_is_not_described_as_refused() -> None:
    assert "anyOf" in DOCUMENT["components"]["schemas"]["CompletionBody"]["properties"]["echo"]


def test_ranges_are_described() -> None:
    properties = DOCUMENT["components"]["schemas"]["ChatBody"]["properties"]
    assert {"type": "number", "minimum": 0, "maximum": 2} in properties["temperature"]["anyOf"]


def test_every_error_has_openais_shape() -> None:
    # SPEC H1
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorBody"}
    assert set(DOCUMENT["components"]["schemas"]["_Error"]["required"]) == {"message", "type", "param", "code"}


def integers(schema: object, at: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Every integer in a schema, with its place."""
    if isinstance(schema, dict):
        if schema.get("type") == "integer":
            yield at, schema
        for name, inner in schema.items():
            yield from integers(inner, f"{at}.{name}")
    elif isinstance(schema, list):
        for inner in schema:
            yield from integers(inner, at)


def test_an_integer_that_clients_send_is_bounded_where_it_is_read() -> None:
    # SPEC H2: JSON has numbers of any length; what hashes or stores a body holds 64 bits, and would fail with a 500.
    schemas = DOCUMENT["components"]["schemas"]
    found = [one for name in schemas if name.endswith("Body") for one in integers(schemas[name]["properties"], name)]
    assert found
    assert [at for at, one in found if abs(int(str(one.get("maximum", 2**64)))) > 2**63] == []
    assert [at for at, one in found if abs(int(str(one.get("minimum", -(2**64))))) > 2**63] == []
